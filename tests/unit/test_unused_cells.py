"""`check` and `plan` name cells that nothing reads."""

from mbt_cli.engine.plan import unused_cells
from tests.conftest import SMALL_STUDY

DATA = """
[[stage]]
kind = "synthesize"
name = "solutions"
matrix = { benchmark = ["tiny"], split = ["train", "validation"] }
make = "solution"
teacher = "judge"

[[stage]]
kind = "rewrite"
name = "mbt-r"
make = "mbt_r"
rollouts = "base"
solutions = { stage = "solutions", where = { split = "validation" } }
teacher = "judge"
traces_per_rollout = 1
"""


def test_a_whole_study_has_nothing_unused_cells(load):
    assert unused_cells(load(SMALL_STUDY)) == []


def test_cells_that_nothing_reads_are_named_with_what_tells_them_apart(load):
    found = {u.stage: u for u in unused_cells(load(SMALL_STUDY + DATA))}

    assert set(found) == {"solutions", "mbt-r"}
    assert found["solutions"].addresses == ["solutions/benchmark=tiny/split=train"]
    assert found["solutions"].of == 2
    assert found["solutions"].apart == ["split=train"]
    assert len(found["mbt-r"].addresses) == found["mbt-r"].of == 2
    assert found["mbt-r"].apart == []
