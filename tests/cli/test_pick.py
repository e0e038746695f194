"""Samples that a training picks: wrong choices are found, and one query picks the same."""

import re
from pathlib import Path

import pytest

from mbt_cli.engine.runner import load_input
from mbt_cli.engine.states import States
from mbt_cli.manifest.load import load_manifest
from mbt_cli.stages.pick import Pick, picked_rows
from tests.cli.test_curriculum import STUDY, TRAIN, ids
from tests.conftest import REPOSITORY

__all__ = ["ids"]

SFT = TRAIN.replace('"rl"', '"sft"').replace('"grpo"', '"sft"').replace("use_vllm = false", "")
SFT += 'data = { stage = "base", where = { model = "tiny" } }\ntarget = "reply"\n'
PICK = 'pick = { scores = "scores", metric = "exact_match", best = 0.5, per_question = 1 }\n'
QUERY = re.compile(r"^```python\n(.*?best = 0\.5.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_query_of_the_help_picks_the_same(mbt, workplace, ids, monkeypatch):
    (code,) = QUERY.findall((REPOSITORY / "mbt_cli/help/training.md").read_text())
    monkeypatch.chdir(workplace)
    axes = "benchmark=tiny/split=train/model=tiny"
    scores, base = (
        load_input(workplace / "runs/made" / name / axes, f"{name}/{axes}")
        for name in ("scores", "base")
    )

    for share, count in ((0.5, 4), (0.1, 2)):
        names = {}
        exec(code.replace('"small"', '"made"').replace("0.5", str(share)), names)
        pick = Pick(scores="scores", metric="exact_match", best=share, per_question=1, at_most=100)
        found, total = picked_rows([scores], [base], pick)

        assert total == 20
        assert found["source"].unique().to_list() == [base.address]
        key = ["question_id", "sample"]
        assert found.select(key).rows() == names["picked"].select(key).rows()
        # 10 of 20 are right, in four questions; of the first two, by sample and id, both questions
        assert found.height == count


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (PICK.replace("best", "bset"), "`stage.sft.pick.bset`: unknown key; did you mean `best`"),
        (PICK.replace("exact_match", "exact_mach"), "did you mean `exact_match`?"),
        (PICK.replace("exact_match", "brier"), "no score of this training makes it: add it to"),
        (PICK.replace("best = 0.5", "worst = 1.5"), "`1.5`: must be at most 1"),
        (PICK.replace("best = 0.5, ", ""), "needs exactly one of `best = 0.25`"),
        (PICK.replace("best", "worst = 0.1, best"), "needs exactly one of `best = 0.25`"),
        (PICK.replace("best = 0.5", "between = [1, 0]"), "needs the lower number first"),
        (PICK.replace('"scores"', '"score"'), "no stage `score`; did you mean `scores`?"),
        (PICK.replace('"scores"', '"base"'), "`base` is a rollout stage; this reads score stages"),
        ('pick = "scores"\n', "`scores`: must be a table"),
    ],
)
def test_a_pick_that_cannot_be_followed_is_refused(mbt, workplace, lines, message):
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(STUDY + SFT + lines)

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert message in ran.err
    (line,) = {n for n, text in enumerate((STUDY + SFT + lines).splitlines(), 1) if "pick" in text}
    assert f"line {line}" in ran.err or f":{line}" in ran.err


DPO = SFT.replace('preset = "sft"', 'preset = "dpo"')
PAIRS = 'pick = { scores = "scores", metric = "exact_match" }\n'


@pytest.mark.parametrize(
    ("more", "message", "at"),
    [
        ("", "`stage.sft.pick`: is required: the values of the replies", "[[stage]]"),
        (PICK, "`stage.sft.pick.best`: a pair is the best and the worst reply", "pick"),
        (PAIRS.replace("exact_match", "brier"), "no score of this training makes it", "pick"),
        (PAIRS + "max_samples = 1\n", "`stage.sft.max_samples`: is 1, and a pair", "max_samples"),
        (PAIRS + 'keep = "correct"\n', "`stage.sft.keep`: `correct` leaves the better", "keep"),
        (PAIRS + "recipe = { beta = 0.1 }\n", "write `trainer = { beta = ... }`", "recipe"),
    ],
)
def test_pairs_that_cannot_be_made_are_refused(mbt, workplace, more, message, at):
    text = STUDY + DPO + more
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(text)

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert message in ran.err
    line = max(n for n, one in enumerate(text.splitlines(), 1) if one.startswith(at))
    assert f"line {line}" in ran.err or f":{line}" in ran.err


def test_one_sample_of_a_question_makes_no_pair(mbt, workplace):
    text = STUDY.replace("samples = 4", "samples = 1") + DPO + PAIRS
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(text)

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert "`base` has 1 sample of a question, and a pair needs two replies" in ran.err
    (workplace / "study.toml").write_text(STUDY + DPO + PAIRS)
    assert mbt("check", "study.toml").code == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('loss_type = "sigmiod"', "`sigmiod` is unknown; did you mean `sigmoid`?"),
        ('loss_type = ["sft", "ipo"], loss_weights = [1]', "has 1 weights for the 2"),
        ('loss_type = "exo_pair"', "is required for `exo_pair`"),
        ('loss_type = "apo_zero", f_divergence_type = "forward_kl"', "`forward_kl` goes with"),
        ("sync_ref_model = true", "cannot be resumed"),
    ],
)
def test_settings_that_trl_would_refuse_late_are_refused(mbt, workplace, settings, message):
    (workplace / "replies.jsonl").write_text("")
    text = DPO.replace("trainer = {  }", f"trainer = {{ {settings} }}")
    (workplace / "study.toml").write_text(STUDY + text + PAIRS)

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert message in ran.err


def test_a_training_depends_on_what_is_picked(workplace, presets, monkeypatch):
    monkeypatch.chdir(workplace)
    (workplace / "replies.jsonl").write_text("")

    def state(lines):
        (workplace / "study.toml").write_text(STUDY + SFT + lines)
        manifest = load_manifest(Path("study.toml"), presets=presets)
        states = States(manifest, workplace / "runs")
        (address,) = [one for one in manifest.cells if one.startswith("sft/")]
        return states[address].fingerprint, manifest.cells[address]

    without, best, more = map(state, ("", PICK, PICK.replace("0.5", "0.6")))

    assert len({without[0], best[0], more[0]}) == 3
    assert "pick" not in without[1].spec  # trainings of earlier versions stay done
    scores = "scores/benchmark=tiny/split=train/model=tiny"
    assert [scores in cell.needs for _, cell in (without, best)] == [False, True]
