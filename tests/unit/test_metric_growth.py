"""More metrics make scores grow, whatever verifier they bring; other verifiers make them stale."""

from datetime import UTC, datetime

import pytest

from mbt_cli.core.fingerprint import fingerprint_of_stable
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.engine.states import States
from mbt_cli.store.lineage import FileRecord, InputRecord, Lineage, lineage_json
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.text import TextVerifier

STUDY = """
[study]
name = "small"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.parrot]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>"] }
sampling = "plain"

[benchmarks.words]
kind = "tinyhop"
limit = 4

[benchmarks.sums]
kind = "gsm8k"
files = { test = "sums.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["words"], split = ["validation"], model = ["parrot"] }
prompt = "answer"

[[stage]]
kind = "rollout"
name = "math"
matrix = { benchmark = ["sums"], split = ["test"], model = ["parrot"] }
prompt = "math"

[[stage]]
kind = "score"
name = "scores"
rollouts = ["base", "math"]
metrics = ["exact_match"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results"]
"""
WORDS = "scores/benchmark=words/split=validation/model=parrot/variant=base"
SUMS = "scores/benchmark=sums/split=test/model=parrot/variant=math"
MORE = STUDY.replace('["exact_match"]', '["exact_match", "math_match"]')


@pytest.fixture
def states(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    return lambda text: States(load(text), tmp_path / "runs")


@pytest.fixture
def finish(states):
    """Writes the lineages of cells of a study, as this mbt does or as it did before."""

    def write(text, *, older=False, only=""):
        found = states(text)
        base, sizes, files = {}, {}, {}
        for state in found.all():
            cell, address = state.cell, state.cell.address
            inputs, version = list(cell.needs), type(cell.stage).version
            base[address], sizes[address] = state.base_fingerprint, dict(state.sizes)
            if older:
                spec, read = cell.older_base_spec, {a: base[a] for a in inputs}
                base[address] = fingerprint_of_stable(cell.kind, version, spec, read)
                sizes[address] = dict(cell.older_sizes)
                for a in inputs:
                    sizes[address] |= sizes[a]
            lineage = Lineage(
                study="small", stage=cell.stage.name, kind=cell.kind, address=address,
                fingerprint=state.fingerprint, base_fingerprint=base[address],
                sizes=sizes[address], spec=cell.spec, started_at=datetime.now(UTC),
                files={"rows.parquet": FileRecord(bytes=1, sha256=sha256_of(address))},
                inputs={
                    a: InputRecord(fingerprint=found[a].fingerprint, sha256=files[a])
                    for a in inputs
                },
            )  # fmt: skip
            files[address] = lineage.content_sha256()
            if address.startswith(only):
                state.folder.mkdir(parents=True, exist_ok=True)
                (state.folder / "lineage.json").write_bytes(lineage_json(lineage))

    return write


def statuses(states):
    return {
        state.cell.address: state.status
        for state in states.all()
        if state.cell.kind in ("score", "report")
    }


@pytest.mark.parametrize("older", [False, True], ids=["this form", "the older form"])
def test_a_metric_that_brings_a_verifier_grows_scores_of_words(states, finish, older):
    finish(STUDY, older=older)

    found = states(MORE)

    assert statuses(found) == {WORDS: "grown", SUMS: "grown", "tables": "grown"}
    assert found[WORDS].why == ["`stage.scores.metrics` has `math_match` now"]


@pytest.mark.parametrize("older", [False, True], ids=["this form", "the older form"])
def test_the_report_grows_after_the_scores_have(states, finish, older):
    finish(STUDY, older=older)
    finish(MORE, only="scores")

    assert statuses(states(MORE)) == {WORDS: "done", SUMS: "done", "tables": "grown"}


@pytest.mark.parametrize("older", [False, True], ids=["this form", "the older form"])
def test_samples_grow_scores_with_verifiers(states, finish, older):
    finish(MORE, older=older)

    assert set(statuses(states(MORE)).values()) == {"done"}
    more = MORE.replace('prompt = "math"', 'prompt = "math"\nsamples = 3')
    assert statuses(states(more)) == {WORDS: "done", SUMS: "grown", "tables": "grown"}


@pytest.mark.parametrize("older", [False, True], ids=["this form", "the older form"])
@pytest.mark.parametrize("metrics", ["same", "more"])
def test_another_version_of_a_verifier_that_was_read_makes_scores_stale(
    states, finish, monkeypatch, older, metrics
):
    finish(MORE, older=older)
    monkeypatch.setattr(MathVerifier, "version", 99)

    text = MORE if metrics == "same" else MORE.replace('"math_match"', '"math_match", "f1_score"')
    found = states(text)

    grown = "done" if metrics == "same" else "grown"
    assert statuses(found) == {WORDS: "stale", SUMS: grown, "tables": "stale"}
    assert any("verifiers" in reason for reason in found[WORDS].why)


@pytest.mark.parametrize("older", [False, True], ids=["this form", "the older form"])
def test_another_verifier_of_words_is_never_growth(states, finish, monkeypatch, older):
    finish(STUDY, older=older)
    monkeypatch.setattr(TextVerifier, "version", 99)

    # f1_score and exact_match read the benchmark's own verifier only if it replaces words
    with_pass = STUDY.replace('["exact_match"]', '["exact_match", "math_match"]')
    assert statuses(states(with_pass))[WORDS] == "grown"

    monkeypatch.setattr(TextVerifier, "replaces_words", True)
    assert statuses(states(with_pass))[WORDS] == "stale"


def test_fewer_metrics_with_a_verifier_make_scores_stale(states, finish):
    finish(MORE)

    assert statuses(states(STUDY)) == {WORDS: "stale", SUMS: "stale", "tables": "stale"}
