"""Real reinforcement learning of a made model: what is kept, and a run that is killed."""

import shutil
import signal
import sys

import polars as pl
import pytest

from mbt_cli.core.recipe import Recipe
from mbt_cli.trainers.grpo import GRPO
from tests.integration.train.conftest import STUDY

CELL = "rl/model=tiny"
# 32 replies a round = 4 questions x 8, in two steps of 16; 12 questions: 6 steps an epoch
STUDY_IN_ROUNDS = (
    STUDY.replace("reward = { length = 1.0 }", "reward = { length = 1.0, format = 0.5 }")
    .replace("batch_size = 32, device_batch_size = 32", "batch_size = 16, device_batch_size = 16")
    .replace("reward_words = 12 }", "reward_words = 12, save_every_steps = 3, kept_replies = 3 }")
    .replace("max_steps = 12", "max_steps = 10")
)
ONE_THREAD = "stage.rl.launch={ environment = { OMP_NUM_THREADS = '1' } }"
TRAIN = ("train", "study.toml", "--only", "rl", "--set", ONE_THREAD)


@pytest.fixture(scope="module")
def unbroken(place):
    """The study's folder after a whole training."""
    (place.folder / "study.toml").write_text(STUDY_IN_ROUNDS)
    ran = place.run(*TRAIN)
    assert ran.code == 0, ran.out
    return place


def test_the_log_has_each_reward_its_spread_and_how_replies_end(unbroken):
    rows = unbroken.rows(CELL)
    sampled = rows.filter(pl.col("reward").is_not_null())
    log = "".join(path.read_text() for path in unbroken.cell(CELL).glob("logs/*.train.log"))

    assert rows["step"].to_list() == list(range(1, 11))
    assert sampled["step"].to_list() == [1, 3, 5, 7, 9]
    total = sampled["reward_length"] + 0.5 * sampled["reward_format"]
    assert sampled["reward"].to_list() == pytest.approx(total.to_list(), abs=1e-5)
    assert sampled["truncated"].is_between(0, 1).all()
    assert sampled["unscored"].to_list() == [0] * 5
    assert sampled["reward_std"].is_between(0, 1, closed="right").all()
    assert sampled["zero_std_groups"].is_between(0, 1).all()
    assert (sampled["shortest_completion"] <= sampled["completion_length"]).all()
    assert sampled["longest_completion"].max() == 16
    assert rows["entropy"].null_count() == rows["clip_ratio"].null_count() == 0
    assert (rows["tokens"].diff().drop_nulls() >= 0).all()
    assert "a checkpoint every 4 steps, not 3" in log
    curve = unbroken.lineage(CELL)["notes"]["training"]["curve"]
    assert [point["reward_length"] for point in curve] == rows["reward_length"].to_list()
    assert (unbroken.cell(CELL) / "files" / "loss.png").stat().st_size > 10_000


def test_some_replies_are_kept_with_their_rewards(unbroken):
    found = pl.read_parquet(unbroken.cell(CELL) / "files" / "sampled_replies.parquet")
    questions = pl.read_parquet(unbroken.cell(CELL) / "files" / "training_set.parquet")

    assert found["step"].to_list() == [1, 1, 1]  # the next would follow step 10
    assert found["question_id"].is_in(questions["question_id"].implode()).all()
    assert found.filter("truncated")["tokens"].to_list() == [16] * found["truncated"].sum()
    for row in found.iter_rows(named=True):
        words = len(row["text"].split())
        worth = 0 if row["truncated"] else max(0, 1 - words / 12)
        assert row["reward_length"] == pytest.approx(worth)
        assert row["reward"] == row["reward_length"] + 0.5 * row["reward_format"]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGKILL, -9, id="killed"),
        pytest.param(signal.SIGTERM, 75, id="told to stop"),
    ],
)
def test_a_broken_run_ends_as_an_unbroken_one(unbroken, fresh, number, code):
    broken = fresh(STUDY_IN_ROUNDS)
    assert broken.run("run", "study.toml", "--only", "base").code == 0

    stopped = broken.run_until_step(7, number, *TRAIN)
    resumed = broken.run(*TRAIN)

    assert stopped.code == code, stopped.out
    assert resumed.code == 0, resumed.out
    log = "".join(path.read_text() for path in broken.cell(CELL).glob("logs/*.train.log"))
    assert "resuming from step" in log
    left_out = ("seconds", "tokens_per_second", "memory_bytes")
    assert broken.rows(CELL).drop(left_out).equals(unbroken.rows(CELL).drop(left_out))
    kept = [
        pl.read_parquet(each.cell(CELL) / "files" / "sampled_replies.parquet")
        for each in (broken, unbroken)
    ]
    assert kept[0].equals(kept[1])


def test_a_batch_that_does_not_divide_stops_before_the_model_is_loaded(unbroken):
    ran = unbroken.run(*TRAIN, "--set", "stage.rl.trainer.generation_batch_size=40")

    assert ran.code == 2
    assert "40 / 16 = 2.50" in ran.out


def test_fewer_questions_than_a_round_are_refused(fresh):
    study = fresh(STUDY_IN_ROUNDS)
    assert study.run("run", "study.toml", "--only", "base").code == 0

    ran = study.run(*TRAIN, "--set", "stage.rl.trainer.generation_batch_size=128")

    assert ran.code == 1
    assert "12 questions are fewer than the 16 of one generation batch (128 replies / 8" in ran.out


def test_the_installed_trl_says_which_vllm_to_install():
    recipe = Recipe.model_construct(trainer={"use_vllm": True})

    found = GRPO(rewards={"f1_score": 1}).missing(recipe, sys.executable)

    assert found is None or 'pip install "vllm>=0.' in found.do


def test_two_processes_go_on_within_a_round(fresh):
    launch = '{ accelerate = "multi_gpu", processes = 2, flags = { mixed_precision = "no" }'
    launch = f"stage.rl.launch={launch}, environment = {{ OMP_NUM_THREADS = '1' }} }}"
    # 8 on each device: the groups of a round lie on both
    shared = "stage.rl.recipe.device_batch_size=8"
    train = ("train", "study.toml", "--only", "rl", "--set", launch, "--set", shared)
    # a round of four steps, so that a stop after the first step falls within it
    in_rounds = STUDY_IN_ROUNDS.replace("generation_batch_size = 32", "generation_batch_size = 64")
    study = fresh(in_rounds.replace("max_steps = 10", "max_steps = 5"))
    assert study.run("run", "study.toml", "--only", "base").code == 0
    whole = study.run(*train)
    assert whole.code == 0, whole.out
    left_out = ("seconds", "tokens_per_second", "memory_bytes")
    unbroken = study.rows(CELL).drop(left_out)
    shutil.rmtree(study.cell(CELL))

    stopped = study.run_until_step(1, signal.SIGTERM, *train)
    rounds = list(study.cell(CELL).glob("journal/training/*/checkpoints/*/mbt-round-1.pt"))
    resumed = study.run(*train)

    assert (stopped.code, resumed.code) == (75, 0), stopped.out + resumed.out
    assert rounds
    assert study.rows(CELL).drop(left_out).equals(unbroken)
    assert study.lineage(CELL)["notes"]["training"]["processes"] == 2
