"""The shipped manifests of the paper say the published study, cell for cell."""

from collections import Counter
from pathlib import Path

import pytest

from mbt_cli.manifest.load import load_manifest
from tests.conftest import REPOSITORY, SMALL_STUDY

MANIFESTS = REPOSITORY / "manifests"
STUDENTS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
# 3 benchmarks x [(3 students + teacher) x 2 splits + 3 students x (1 prompted + 10 trained)] = 123
# rollouts; validation alone: 3 x (4 + 3 + 30) = 111 judged twice; MuSiQue alone: 37 judged twice
PAPER = {
    "base": 24,
    "metacognitive-prompt": 9,
    "trained": 90,
    "solutions": 3,
    "mbt-s": 3,
    "mbt-r": 9,
    "distill-r": 9,
    "direct-r": 3,
    "sft": 18,
    "grpo": 12,
    "answers": 222,
    "marks": 74,
    "scores": 111,
    "tables": 1,
}


def counts(manifest):
    return {k: n for k, n in manifest.counts().items() if k != "questions"}


def test_the_paper_has_the_cells_of_the_published_study(presets):
    manifest = load_manifest(MANIFESTS / "paper.toml", presets=presets)

    judged = Counter(
        c.resolution.axes["judge"] for c in manifest.cells.values() if c.kind == "judge"
    )
    on_musique = {a for a in manifest.cells if a.startswith("scores/benchmark=musique/")}
    assert counts(manifest) == PAPER
    assert judged == {"answer_match": 111, "answer_hit": 111, "redundancy": 37, "phases": 37}
    assert len(on_musique) == 37


def test_external_checkpoints_add_nine_rows_a_benchmark(presets, tmp_path, monkeypatch):
    for variant in ("shorter-better", "token-skip", "limopro"):
        for student in STUDENTS:
            (tmp_path / "checkpoints" / variant / student).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    manifest = load_manifest(MANIFESTS / "paper.toml", presets=presets)

    kinds = Counter(cell.kind for cell in manifest.cells.values())
    # 9 more models on 3 benchmarks: 123 + 27 rollouts; 2 x (111 + 27) + 2 x (37 + 9) judged
    assert kinds["rollout"] == 150
    assert kinds["judge"] == 2 * 138 + 2 * 46
    assert counts(manifest)["scores"] == 138
    assert not manifest.left_out


@pytest.mark.parametrize(
    ("name", "rollouts", "trainings"),
    [
        # one student and the teacher on 2 splits, 1 prompted, 10 trained
        pytest.param("paper-small", 4 + 1 + 10, 10, id="small"),
        # 3 published rollout sets, 3 students and 12 trained models on 3 benchmarks
        pytest.param("paper-published-data", 3 + 9 + 36, 12, id="published data"),
    ],
)
def test_the_smaller_studies_expand(presets, name, rollouts, trainings):
    manifest = load_manifest(MANIFESTS / f"{name}.toml", presets=presets)

    kinds = Counter(cell.kind for cell in manifest.cells.values())
    assert (kinds["rollout"], kinds["train"]) == (rollouts, trainings)


def test_the_reference_text_of_the_study_expands_alike(presets, shared):
    reference = Path(shared) / "paper_study.toml"

    theirs = load_manifest(reference, presets=presets)

    assert set(theirs.cells) == set(load_manifest(MANIFESTS / "paper.toml", presets=presets).cells)


def test_a_sampling_may_leave_the_token_limit_to_the_context(load):
    manifest = load(SMALL_STUDY.replace("max_tokens = 32", 'max_tokens = "rest"'))

    rollout = next(cell for cell in manifest.cells.values() if cell.kind == "rollout")
    assert rollout.resolution.models["model"].sampling.max_tokens == "rest"
