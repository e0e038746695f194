from dataclasses import replace

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.progress import Silent
from mbt_cli.engine.fetch import needed_by
from mbt_cli.errors import StageError
from mbt_cli.settings import Machine
from mbt_cli.stages.mixture import MixturePart, mixture_of, mixture_problems, order_request
from mbt_cli.stages.train import TrainStage
from mbt_cli.store.hub import HubAccess
from tests.unit import teaching
from tests.unit.hub_stand_in import COMMIT, Hub, running
from tests.unit.teaching import work_of


def questions(**sizes):
    return pl.DataFrame(
        [
            {
                "source": f"questions/benchmark={name}",
                "question_id": f"{name}-{n}",
                "benchmark": name,
                "dropped": None,
            }
            for name, size in sizes.items()
            for n in range(size)
        ]
    )


def asked(found):
    return found.order["question_id"].to_list()


def share(ids, name):
    return sum(one.startswith(name) for one in ids)


def test_weights_are_exact_shares_of_the_largest_mixture():
    parts = [MixturePart(benchmark="a", weight=0.7), MixturePart(benchmark="b", weight=0.3)]
    ids = asked(mixture_of(questions(a=70, b=500), parts, "interleaved", 0))
    assert (share(ids, "a"), share(ids, "b")) == (70, 30)
    assert len(set(ids)) == 100
    for stop in range(10, 101, 10):  # every stretch of ten has seven and three
        assert abs(share(ids[:stop], "a") - 0.7 * stop) <= 1


def test_a_count_is_exact_beside_weights():
    parts = [MixturePart(benchmark="a", weight=1), MixturePart(benchmark="b", count=20)]
    ids = asked(mixture_of(questions(a=50, b=500), parts, "interleaved", 0))
    assert (share(ids, "a"), share(ids, "b")) == (50, 20)


def test_parts_follow_each_other_in_the_written_order():
    parts = [MixturePart(benchmark="b"), MixturePart(benchmark="a", count=3)]
    ids = asked(mixture_of(questions(a=5, b=4), parts, "sequential", 0))
    assert [one[0] for one in ids] == ["b"] * 4 + ["a"] * 3


def test_an_order_is_obeyed_to_the_row(tmp_path):
    wanted = ["a-3", "a-1", "x-9", "a-3", "a-0"]
    (tmp_path / "order.txt").write_text("\n".join(wanted) + "\n")
    part = MixturePart(benchmark="a", order=str(tmp_path / "order.txt"))
    found = mixture_of(questions(a=5), [part], "interleaved", 0)
    assert asked(found) == ["a-3", "a-1", "a-3", "a-0"]
    assert found.facts == {
        "a": {
            "questions": 5,
            "in_order": 5,
            "unknown": 1,
            "unknown_ids": ["x-9"],
            "asked": 4,
        }
    }


def test_equal_seeds_draw_equal_orders():
    parts = [MixturePart(benchmark="a")]
    orders = [asked(mixture_of(questions(a=30), parts, "interleaved", seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_a_count_above_the_questions_is_refused():
    with pytest.raises(StageError, match="wants 6 questions of `a`, which has 5"):
        mixture_of(questions(a=5), [MixturePart(benchmark="a", count=6)], "interleaved", 0)


def test_an_order_without_a_known_question_is_refused(tmp_path):
    (tmp_path / "order.txt").write_text("b-1\n")
    part = MixturePart(benchmark="a", order=str(tmp_path / "order.txt"))
    with pytest.raises(StageError, match="none of the 1 ids"):
        mixture_of(questions(a=5), [part], "interleaved", 0)


def test_problems_of_a_mixture_are_named():
    parts = [
        MixturePart(benchmark="a", weight=1, count=2),
        MixturePart(benchmark="a", order="no.txt"),
    ]
    assert [where for where, _ in mixture_problems(parts)] == [
        "mixture.0",
        "mixture.0.benchmark",
        "mixture.1.benchmark",
        "mixture.1.order",
        "mixture",
    ]


def test_an_order_on_the_hub_is_named_with_its_revision():
    on_hub = MixturePart(benchmark="a", order="hub:org/curricula/gsm8k/easy.txt@v2")
    request = order_request(on_hub)
    assert (request.repo, request.patterns, request.revision, request.type) == (
        "org/curricula",
        ("gsm8k/easy.txt",),
        "v2",
        "dataset",
    )
    assert list(mixture_problems([on_hub])) == []
    (problem,) = mixture_problems([MixturePart(benchmark="a", order="hub:org/curricula")])
    assert problem == (
        "mixture.0.order",
        "`hub:org/curricula` is not a file: `hub:OWNER/NAME/FILE@REVISION`",
    )


def test_an_order_may_come_from_elsewhere(tmp_path):
    (tmp_path / "fetched").write_text("a-2\na-1\n")
    part = MixturePart(benchmark="a", order="hub:org/curricula/easy.txt")
    found = mixture_of(questions(a=5), [part], "interleaved", 0, {"a": tmp_path / "fetched"})
    assert asked(found) == ["a-2", "a-1"]


def test_orders_of_the_hub_are_fetched_and_questions_are_kept_by_pass_rate(tmp_path):
    order = b"q3\nq1\nq0\nelsewhere\nq2\n"
    stage = TrainStage(
        name="rl",
        preset="grpo",
        mixture=[
            MixturePart(benchmark="a", order="hub:org/curricula/a/easy.txt@main"),
            MixturePart(benchmark="b", sort="hard_first"),
        ],
        mixing="sequential",
        scores="rates",
        keep={"pass_rate": [0.1, 0.9]},
    )
    rates = {"a": (1.0, 0.5, None, 0.25), "b": (0.5, 0.125, 0.0, 0.875)}
    told = []
    work = work_of(stage, tmp_path, {"questions": [teaching.questions(4)] * 2})
    asked = [
        replace(cell, address=f"questions/benchmark={name}", axes=axes(name))
        for name, cell in zip("ab", work.inputs["questions"], strict=True)
    ]
    scores = [
        replace(asked[0], address=f"rates/benchmark={name}", axes=axes(name), rows=scored(values))
        for name, values in rates.items()
    ]
    with running(Hub({"datasets/org/curricula": {"a/easy.txt": order}})) as hub:
        work = replace(
            work,
            inputs={"questions": tuple(asked), "scores": tuple(scores)},
            hub=HubAccess(cache=tmp_path / "cache", endpoint=hub.endpoint),
            progress=type("Told", (Silent,), {"note": lambda self, text: told.append(text)})(),
        )
        examples, _ = stage._examples(work)

    assert examples.order["question_id"].to_list() == ["q3", "q1", "q1", "q0", "q3"]
    assert examples.order["source"].str.tail(1).to_list() == ["a", "a", "b", "b", "b"]
    reasons = examples.index.select("source", "question_id", "dropped").sort("source")
    assert [row[2] for row in reasons.rows()] == (
        ["pass_rate", None, "no_pass_rate", None, None, None, "pass_rate", None]
    )
    assert told == [
        f"{work.resolution.address}: 5 of 8 questions have a pass rate of 0.1 to 0.9",
        f"{work.resolution.address}: ids in `order` that are not questions of the split: "
        "1 of `a`, such as `elsewhere`",
    ]
    assert work.result.notes["mixture"]["a"]["left_out"] == 2
    assert work.result.notes["mixture"]["a"]["commit"] == COMMIT


def axes(benchmark):
    return {"benchmark": benchmark, "split": "train"}


def scored(values):
    rows_of = [
        {"question_id": f"q{n}", "metric": "verified", "value": value, "n": 8, "failed": 0}
        for n, value in enumerate(values)
    ]
    return pl.LazyFrame(rows_of, schema=rows.SCORES)


TWO = """
[study]
name = "two"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.tiny]
backend = { kind = "transformers", model = "org/tiny", context = 2048 }
sampling = "plain"

[benchmarks.a]
kind = "tinyhop"
limit = 4

[benchmarks.b]
kind = "tinyhop"
limit = 2

[[stage]]
kind = "train"
name = "rl"
preset = "grpo"
prompt = "answer"
matrix = { model = "tiny" }
reward = { verified = 1, format = 0.1 }
mixture = [{ benchmark = "a", order = "hub:org/curricula/a.txt@v1" }, { benchmark = "b" }]
"""


def test_a_mixture_reads_the_questions_of_all_its_benchmarks(load):
    cell = load(TWO).cells["rl/model=tiny"]

    assert cell.needs == (
        "questions/benchmark=a/split=train",
        "questions/benchmark=b/split=train",
    )
    columns = cell.stage.columns(cell.resolution)
    assert {"reward:a", "reward_format:b", "entropy:a", "zero_std_groups:b"} <= columns.keys()
    one = load(TWO.replace('}, { benchmark = "b" }]', "}]")).cells["rl/model=tiny"]
    assert not any(":" in column for column in one.stage.columns(one.resolution))


def test_an_order_of_the_hub_is_downloaded_with_the_study_and_its_revision_counts(load, tmp_path):
    manifest = load(TWO)
    cell = manifest.cells["rl/model=tiny"]

    assert cell.spec["order of a"] == {"hub": "org/curricula", "file": "a.txt", "revision": "v1"}
    machine = Machine(cache=tmp_path)
    needed = needed_by(manifest, machine, models=(), benchmarks=())
    assert "org/curricula/a.txt at v1" in [one.what for one in needed]
    other = load(TWO.replace("@v1", "@v2")).cells["rl/model=tiny"]
    assert other.spec != cell.spec
