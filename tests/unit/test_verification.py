"""`verify_ancestry` on a finished study: every change of a byte that means something is found."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from mbt_cli import api
from mbt_cli.core.seals import sealed
from mbt_cli.errors import ArtifactError
from mbt_cli.store.lineage import parse_lineage
from mbt_cli.store.verification import verify_ancestry
from tests.conftest import SMALL_STUDY

FOLDER = "benchmark=tiny/split=validation/model=parrot/prompt=answer"
ROLLOUTS = f"base/{FOLDER}"
QUESTIONS = "questions/benchmark=tiny/split=validation"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of the small study, finished."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "study.toml").write_text(SMALL_STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        api.run(folder / "study.toml")
    return folder / "runs/small"


@pytest.fixture
def study(finished, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "runs/small"))


def problems(study, stage="tables"):
    return verify_ancestry([study / stage]).problems


def edit(lineage, *, seal=None, **changes):
    """Change values of a lineage; `seal` makes its hash."""
    record = {**orjson.loads(lineage.read_bytes()), **changes}
    lineage.write_bytes(orjson.dumps(seal(record) if seal else record))


def flipped(content, place, bit):
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def test_a_report_is_verified_with_every_cell_behind_it_once(study):
    found = verify_ancestry([study / "tables"])

    cells = [path.parent for path in study.rglob("lineage.json")]
    lineages = [orjson.loads((cell / "lineage.json").read_bytes()) for cell in cells]
    files = [record for lineage in lineages for record in lineage["files"].values()]
    assert found.problems == []
    assert found.unsealed == []
    # questions, two rollouts with their verdicts and scores, and the report
    assert (found.cells, len(cells)) == (8, 8)
    assert (found.files, found.bytes) == (len(files), sum(one["bytes"] for one in files))
    assert verify_ancestry([*cells, study / "tables"]).cells == 8


def test_every_flipped_byte_of_a_lineage_that_changes_its_meaning_is_refused(study):
    draw, ignored = random.Random(7), set()
    for path in sorted(study.rglob("lineage.json")):
        content = path.read_bytes()
        meaning = orjson.loads(content)
        for place in range(len(content)):
            changed = flipped(content, place, draw.randrange(8))
            with suppress(ArtifactError):
                parse_lineage(changed, path)
                assert orjson.loads(changed) == meaning
                ignored.add(chr(content[place]))

    # white space, and the 17th digit of `seconds` where it gives the same number
    assert ignored <= set(" \n0123456789")


def test_flipped_bytes_of_any_file_are_found_from_the_report(study):
    draw = random.Random(11)
    files = [p for p in sorted(study.rglob("*")) if p.is_file() and "logs" not in p.parts]
    files = [p for p in files if p.name not in ("lock", "lineage.json")]
    records = (".runs", ".spending")  # of runs and of what they cost
    files = [p for p in files if p.relative_to(study).parts[0] not in records]
    kinds = {path.relative_to(study).parts[0] for path in files}
    assert kinds == {"questions", "base", "answers", "scores", "tables"}
    for path in files:
        content = path.read_bytes()
        for place in {0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(2))}:
            path.write_bytes(flipped(content, place, draw.randrange(8)))
            assert any(str(path) in problem for problem in problems(study)), (path, place)
        path.write_bytes(content)
    assert problems(study) == []


OTHER = {int: 7, float: 7.5, str: "7", bool: None, dict: {"7": 7}, list: ["7"], type(None): {}}


def test_every_value_of_a_lineage_is_under_its_hash(study):
    path = study / ROLLOUTS / "lineage.json"
    content = path.read_bytes()
    for key, value in orjson.loads(content).items():
        edit(path, **{key: OTHER[type(value)]})
        (problem, *_) = problems(study)
        assert str(path) in problem, key
        path.write_bytes(content)


def test_an_input_whose_lineage_was_edited_with_its_hash_is_noticed(study):
    path = study / ROLLOUTS / "lineage.json"
    content, unnoticed = path.read_bytes(), set()
    for key, value in orjson.loads(content).items():
        if key in ("schema_version", "sha256"):
            continue
        other = {**value, "version": "7"} if key in ("code", "server") else OTHER[type(value)]
        other = {"prompt": 7} if key == "tokens" else {"sent": 7} if key == "requests" else other
        other = {"name": "7"} if key == "host" else other
        other = {} if key in ("inputs", "files", "sizes") else other
        other = {"7": "7"} if key in ("columns", "packages") else other
        other = "2026-01-01T00:00:00Z" if key == "started_at" else other
        edit(path, seal=sealed, **{key: other})
        if not problems(study):
            unnoticed.add(key)
        path.write_bytes(content)

    # what a second making of the same rows may change
    assert unnoticed == {"started_at", "seconds", "requests", "server", "code", "packages", "host"}


def test_a_lineage_that_lost_its_hash_is_noticed_by_its_readers(study):
    edit(study / ROLLOUTS / "lineage.json", sha256=None)

    assert problems(study) == [
        f"the lineage of `{ROLLOUTS}` has lost the hash that it had (by "
        f"`answers/{FOLDER.replace('prompt', 'judge=answer_match/prompt')}` and 2 more)"
    ]


def test_lineages_of_mbt_0_2_are_verified_as_far_as_they_go(study):
    for path in study.rglob("lineage.json"):
        record = orjson.loads(path.read_bytes())
        del record["sha256"]
        for read in record["inputs"].values():
            del read["lineage_sha256"]
        path.write_bytes(orjson.dumps(record))

    found = verify_ancestry([study / "tables"])

    assert found.problems == []
    assert len(found.unsealed) == found.cells == 8
    edit(study / QUESTIONS / "lineage.json", address="questions/benchmark=tiny/split=train")
    assert problems(study) == [
        f"`{study / QUESTIONS}` holds the cell `questions/benchmark=tiny/split=train`"
    ]


def test_a_lost_or_replaced_input_is_named_once_with_its_readers(study):
    shutil.rmtree(study / ROLLOUTS)

    (problem,) = problems(study)

    assert problem.startswith(f"`{ROLLOUTS}` no longer exists (by `")
    assert problem.endswith(" and 2 more)")


def test_a_cell_in_the_place_of_another_is_noticed(study):
    other = study / ROLLOUTS.replace("=answer", "=metacognitive")
    shutil.rmtree(study / ROLLOUTS)
    shutil.copytree(other, study / ROLLOUTS)

    found = problems(study)

    assert f"`{study / ROLLOUTS}` holds the cell `{other.relative_to(study)}`" in found
    assert any(problem.startswith(f"`{ROLLOUTS}` has other files now") for problem in found)


def test_a_cell_that_cannot_be_read_does_not_end_the_verification(study):
    (study / QUESTIONS / "lineage.json").write_bytes(b"{")
    (study / ROLLOUTS / "rows.parquet").write_bytes(b"")

    found = problems(study)

    assert len(found) == 2
    assert any(f"{QUESTIONS}/lineage.json` is damaged" in problem for problem in found)
    assert any(f"{ROLLOUTS}/rows.parquet` has 0 bytes" in problem for problem in found)


def test_a_damaged_lineage_is_rebuilt_as_its_message_says(study, monkeypatch):
    path = study / ROLLOUTS / "lineage.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"rows": 12', b'"rows": 13'))
    workplace = study.parents[1]
    (workplace / "study.toml").write_text(SMALL_STUDY)
    monkeypatch.chdir(workplace)

    with pytest.raises(ArtifactError, match="differs from the hash in it") as refused:
        api.run("study.toml")
    source, target = refused.value.hint.partition("`mv ")[2].partition("`")[0].split()
    Path(source).rename(target)
    made = api.run("study.toml")

    assert made.made == [ROLLOUTS]
    assert problems(study) == []
