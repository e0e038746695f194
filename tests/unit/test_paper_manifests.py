"""The shipped manifests of the paper say the published study, cell for cell."""

import re
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
        # published rollouts of 3 students and the teacher, 3 students and 18 trained models on 3
        # benchmarks
        pytest.param("paper-published-data", 4 + 9 + 54, 18, id="published data"),
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


PUBLISHED_SAMPLING = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
ASKS = frozenset({"rollout", "synthesize", "rewrite", "judge"})


@pytest.mark.parametrize("name", ["paper", "paper-small", "paper-published-data"])
def test_every_model_is_sampled_as_published(presets, name):
    manifest = load_manifest(MANIFESTS / f"{name}.toml", presets=presets)

    asking = [cell for cell in manifest.cells.values() if cell.kind in ASKS]
    found = [model for cell in asking for model in cell.resolution.models.values()]

    assert {model.name for model in found} >= {"qwen3-0.6b", "gemma-4-31b-it"}
    for model in found:
        assert model.sampling.body() | PUBLISHED_SAMPLING == model.sampling.body(), model.name
        assert model.sampling.max_tokens == "rest"


@pytest.mark.parametrize("name", ["paper", "paper-small", "paper-published-data"])
def test_every_model_is_served_as_published_whatever_its_preset_says(presets, name):
    manifest = load_manifest(MANIFESTS / f"{name}.toml", presets=presets)

    models = {m.name: m for c in manifest.cells.values() for m in c.resolution.models.values()}
    assert {model.backend.serve["max_model_len"] for model in models.values()} == {32768}
    assert {model.backend.gpus() for model in models.values()} == {4}
    asked = {name: model.request for name, model in models.items() if model.request}
    assert asked in ({}, {"gpt-oss-120b": {"reasoning_effort": "high"}})


def test_every_finished_rollout_is_sampled_and_rewritten_once(presets):
    manifest = load_manifest(MANIFESTS / "paper.toml", presets=presets)

    rollouts = [c.stage for c in manifest.cells.values() if c.kind == "rollout"]
    rewrites = [c.stage for c in manifest.cells.values() if c.kind == "rewrite"]

    assert {stage.samples for stage in rollouts} == {1}
    assert {(s.traces_per_rollout, s.keep, s.truncated) for s in rewrites} == {(1, None, False)}


def test_four_rewrites_a_rollout_are_one_setting_a_stage_away(presets):
    more = [f"stage.{name}.traces_per_rollout=4" for name in ("mbt-r", "distill-r", "direct-r")]
    once = load_manifest(MANIFESTS / "paper.toml", presets=presets)

    manifest = load_manifest(MANIFESTS / "paper.toml", presets=presets, overrides=more)

    rewrites = [c.stage for c in manifest.cells.values() if c.kind == "rewrite"]
    assert {stage.traces_per_rollout for stage in rewrites} == {4}
    assert set(manifest.cells) == set(once.cells)


def test_distilled_students_learn_only_from_finished_and_correct_rollouts(presets):
    paper = load_manifest(MANIFESTS / "paper.toml", presets=presets)
    published = load_manifest(MANIFESTS / "paper-published-data.toml", presets=presets)

    distilled = [
        cell.stage
        for cell in paper.cells.values()
        if cell.resolution.axes.get("variant") in ("self-distill", "gpt-oss-distill")
        and cell.kind == "train"
    ]
    sources = {
        address: cell.resolution.source_map
        for address, cell in published.cells.items()
        if cell.stage.kind == "rollout" and cell.resolution.source_map
    }

    # a truncated rollout is never trained on
    assert {stage.keep for stage in distilled} == {"correct"}
    assert {source.valid for source in sources.values()} == {("valid", "evaluation")}
    teacher = "teacher-rollouts/benchmark=hotpotqa/split=train/model=gpt-oss-120b"
    axes = published.cells[teacher].resolution.axes
    assert sources[teacher].files(axes) == "gpt-oss-120b-high/train-*.parquet"


def test_the_judge_may_decide_which_rollouts_are_correct(presets, tmp_path):
    """As the topic `paper` tells to change a copy of the manifest."""
    help_text = (REPOSITORY / "mbt_cli/help/paper.md").read_text(encoding="utf-8")
    (stage,) = re.findall(r"^```toml\n(.*?)^```", help_text, re.MULTILINE | re.DOTALL)
    paper = (MANIFESTS / "paper.toml").read_text(encoding="utf-8")
    before, marker, after = paper.partition('[[stage]]\nkind = "train"\nname = "sft"\n')
    after = after.replace('keep = "correct"', 'keep = "correct", verdicts = "train-answers"')
    (tmp_path / "mine.toml").write_text(f"{before}{stage}\n{marker}{after}", encoding="utf-8")

    manifest = load_manifest(tmp_path / "mine.toml", presets=presets)

    read = {
        cell.resolution.axes["variant"]: cell.resolution.inputs.get("verdicts", ())
        for address, cell in manifest.cells.items()
        if address.startswith("sft/model=qwen3-4b/")
    }
    where = "train-answers/benchmark=hotpotqa/split=train"
    assert {variant: verdicts for variant, verdicts in read.items() if verdicts} == {
        "self-distill": (f"{where}/model=qwen3-4b/judge=answer_match",),
        "gpt-oss-distill": (f"{where}/model=gpt-oss-120b/judge=answer_match",),
    }


def test_published_traces_are_read_as_the_published_training_reads_them(presets):
    manifest = load_manifest(MANIFESTS / "paper-published-data.toml", presets=presets)

    rewrites = [cell for cell in manifest.cells.values() if cell.kind == "rewrite"]
    read = {
        cell.resolution.source_map.files(cell.resolution.axes): cell.resolution.source_map.valid
        for cell in rewrites
    }

    assert not any(cell.stage.gates.enabled for cell in rewrites)
    configurations = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "gpt-oss-120b-high")
    assert read == {f"{name}/train-*.parquet": "valid" for name in configurations}


def test_a_sampling_may_leave_the_token_limit_to_the_context(load):
    manifest = load(SMALL_STUDY.replace("max_tokens = 32", 'max_tokens = "rest"'))

    rollout = next(cell for cell in manifest.cells.values() if cell.kind == "rollout")
    assert rollout.resolution.models["model"].sampling.max_tokens == "rest"
