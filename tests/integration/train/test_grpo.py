"""Real reinforcement learning of a made model: what is kept, and a run that is killed."""

import inspect
import json
import re
import shutil
import signal
import sys

import polars as pl
import pytest

from mbt_cli.core.recipe import Recipe
from mbt_cli.trainers import grpo
from mbt_cli.trainers.grpo import GRPO
from tests.integration.train.conftest import STUDY

trl = pytest.importorskip("trl", reason="the training tests need the extra `train`")

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


def of_two(study):
    """The study with questions of two benchmarks, three of the first to one of the second."""
    other = '[benchmarks.other]\nkind = "tinyhop"\nlimit = 4\n\n[[stage]]'
    return study.replace("[[stage]]", other, 1).replace(
        'questions = { benchmark = "tiny", split = "train" }',
        'mixture = [{ benchmark = "tiny", weight = 3 }, { benchmark = "other", weight = 1 }]',
    )


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
        pytest.param(signal.SIGTERM, 75, id="told to stop", marks=pytest.mark.long),
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


@pytest.mark.long
def test_two_processes_go_on_within_a_round(fresh):
    launch = '{ accelerate = "multi_gpu", processes = 2, flags = { mixed_precision = "no" }'
    launch = f"stage.rl.launch={launch}, environment = {{ OMP_NUM_THREADS = '1' }} }}"
    # 8 on each device: the groups of a round lie on both
    shared = "stage.rl.recipe.device_batch_size=8"
    train = ("train", "study.toml", "--only", "rl", "--set", launch, "--set", shared)
    # a round of four steps, so that a stop after the first step falls within it
    in_rounds = of_two(STUDY_IN_ROUNDS).replace(
        "generation_batch_size = 32", "generation_batch_size = 64"
    )
    study = fresh(in_rounds.replace("max_steps = 10", "max_steps = 5"))
    assert study.run("run", "study.toml", "--only", "questions").code == 0
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
    for row in unbroken.filter(pl.col("reward").is_not_null()).iter_rows(named=True):
        for column in ("reward", "reward_format", "completion_length", "zero_std_groups"):
            mean = 0.75 * row[f"{column}:tiny"] + 0.25 * row[f"{column}:other"]
            assert row[column] == pytest.approx(mean, abs=1e-5)
    assert unbroken["entropy:tiny"].null_count() == 0


def test_an_order_is_obeyed_to_the_row(fresh):
    """Two questions a round, all replies kept: each round asks the next two of the file."""
    place = fresh(STUDY)
    assert place.run("run", "study.toml", "--only", "questions").code == 0
    asked = pl.read_parquet(place.cell("questions/benchmark=tiny/split=train") / "rows.parquet")
    wanted = asked["question_id"].to_list()[:6][::-1]
    (place.folder / "order.txt").write_text("\n".join([*wanted, "unknown-1"]) + "\n")
    (place.folder / "study.toml").write_text(
        STUDY.replace(
            'questions = { benchmark = "tiny", split = "train" }',
            'mixture = [{ benchmark = "tiny", order = "order.txt" }]',
        )
        .replace("reward = { length = 1.0 }", "reward = { length = 1.0, verified = 1.0 }")
        .replace(
            "batch_size = 32, device_batch_size = 32",
            "batch_size = 16, device_batch_size = 16, kept_replies = 16, kept_replies_every = 1",
        )
        .replace("generation_batch_size = 32", "generation_batch_size = 16")
        .replace("max_steps = 12", "max_steps = 4")
    )
    ran = place.run(*TRAIN)

    assert ran.code == 0, ran.out
    unknown = "ids in `order` that are not questions of the split: 1 of `tiny`, such as `unknown-1`"
    assert unknown in ran.out
    found = pl.read_parquet(place.cell(CELL) / "files" / "sampled_replies.parquet")
    by_round = found.group_by("step", maintain_order=True).agg(
        pl.col("question_id").unique(maintain_order=True)
    )
    assert by_round["question_id"].to_list() == [
        wanted[:2],
        wanted[2:4],
        wanted[4:],
        wanted[:2],  # the next epoch
    ]
    order = pl.read_parquet(place.cell(CELL) / "files" / "order.parquet")
    assert order["question_id"].to_list() == wanted
    assert place.lineage(CELL)["notes"]["mixture"]["tiny"]["unknown"] == 1


def test_a_mixture_asks_exact_shares_in_its_order_and_logs_rewards_of_each_part(fresh):
    """Two benchmarks with shares of 3 and 1, the first in an order of a file, all replies kept:
    the sampled replies have what was asked, and the log what it earned."""
    place = fresh(
        of_two(STUDY)
        .replace("weight = 3 }", 'weight = 3, order = "order.txt" }')
        .replace("reward = { length = 1.0 }", "reward = { length = 1.0, format = 0.5 }")
        .replace(
            "batch_size = 32, device_batch_size = 32",
            "batch_size = 16, device_batch_size = 8, kept_replies = 32, kept_replies_every = 1",
        )
        .replace("max_steps = 12", 'max_steps = 8\nloss_type = "dr_grpo"\nscale_rewards = "none"')
    )
    (place.folder / "order.txt").write_text("")
    assert place.run("run", "study.toml", "--only", "questions").code == 0
    asked = pl.read_parquet(place.cell("questions/benchmark=tiny/split=train") / "rows.parquet")
    wanted = sorted(asked["question_id"], reverse=True)
    (place.folder / "order.txt").write_text("\n".join(wanted) + "\n")

    ran = place.run(*TRAIN)

    assert ran.code == 0, ran.out
    order = pl.read_parquet(place.cell(CELL) / "files" / "order.parquet")
    kept = pl.read_parquet(place.cell(CELL) / "files" / "sampled_replies.parquet")
    named = kept.with_columns(name=pl.col("source").str.extract("benchmark=(\\w+)"))
    assert named.height == 4 * 32  # an epoch: four rounds of four questions with eight replies
    questions = named.unique(["source", "question_id"], maintain_order=True)
    assert questions["step"].to_list() == [1] * 4 + [3] * 4 + [5] * 4 + [7] * 4
    assert questions.select(order.columns).equals(order)
    assert questions.filter(name="tiny")["question_id"].to_list() == wanted
    for _, of_round in named.group_by("step"):
        assert dict(of_round["name"].value_counts().iter_rows()) == {"tiny": 24, "other": 8}
    kept = pl.read_parquet(place.cell(CELL) / "files" / "sampled_replies.parquet")
    name = pl.col("source").str.extract("benchmark=(\\w+)").alias("name")
    by_hand = kept.group_by("step", name).agg(
        pl.col("reward", "reward_length", "reward_format", "tokens").mean()
    )
    rows = place.rows(CELL)
    for step, benchmark, *means in by_hand.iter_rows():
        logged = rows.row(step - 1, named=True)
        columns = ("reward", "reward_length", "reward_format", "completion_length")
        found = [logged[f"{column}:{benchmark}"] for column in columns]
        assert found == pytest.approx(means, abs=1e-5)
    assert by_hand.height == 8  # a round of four questions has both, every second step
    for row in rows.iter_rows(named=True):
        ends = sorted(row[f"entropy:{benchmark}"] for benchmark in ("tiny", "other"))
        assert ends[0] > 0
        assert row["entropy"] == pytest.approx(sum(ends) / 2, abs=(ends[1] - ends[0]) / 2 + 1e-4)
    curve = place.lineage(CELL)["notes"]["training"]["curve"]
    assert [point["reward:other"] for point in curve] == rows["reward:other"].to_list()


@pytest.mark.long
def test_a_curriculum_follows_the_pass_rates_of_a_rollout(fresh):
    """The teacher is right in 0, 1, 2, 3 or 4 of 4 samples; those that it always or never solves
    are left out, the others are asked from hard to easy."""
    place = fresh(STUDY)
    assert place.run("run", "study.toml", "--only", "questions").code == 0
    asked = pl.read_parquet(place.cell("questions/benchmark=tiny/split=train") / "rows.parquet")
    right = {name: number % 5 for number, name in enumerate(asked["question_id"])}
    lines = [
        {
            "question_id": row["question_id"],
            "sample": sample,
            "reply": f"<answer>{row['answer'] if sample < count else 'never'}</answer>",
        }
        for row, count in zip(asked.iter_rows(named=True), right.values(), strict=True)
        for sample in range(4)
    ]
    text = "".join(
        json.dumps({**line, "reply": f"<answer>{line['reply']}</answer>"}) + "\n" for line in lines
    )
    (place.folder / "replies.jsonl").write_text(text)
    canned = STUDY[STUDY.index('{ kind = "canned"') : STUDY.index("\n", STUDY.index('"canned"'))]
    score = '[[stage]]\nkind = "score"\nname = "scores"\nrollouts = "base"\n\n'
    train = STUDY.rindex("[[stage]]")
    (place.folder / "study.toml").write_text(
        (STUDY[:train] + score + STUDY[train:])
        .replace(canned, '{ kind = "recorded", file = "replies.jsonl" }')
        .replace("samples = 2", "samples = 4")
        .replace(
            'questions = { benchmark = "tiny", split = "train" }',
            'mixture = [{ benchmark = "tiny", sort = "hard_first" }]\n'
            'scores = { stage = "scores", where = { model = "teacher" } }\n'
            "keep = { pass_rate = [0.25, 0.75] }",
        )
        .replace("max_steps = 12", "max_steps = 1")
    )
    for stage in ("base", "scores"):
        ran = place.run("run", "study.toml", "--only", stage)
        assert ran.code == 0, ran.out
    ran = place.run(*TRAIN)

    assert ran.code == 0, ran.out
    left = sum(0 < number < 4 for number in right.values())
    assert f"{left} of 12 questions have a pass rate of 0.25 to 0.75" in ran.out
    order = pl.read_parquet(place.cell(CELL) / "files" / "order.parquet")["question_id"]
    rates = [right[name] for name in order]
    assert rates == sorted(rates)
    assert set(order) == {name for name, number in right.items() if 0 < number < 4}
    assert place.lineage(CELL)["notes"]["keep"] == {
        "questions": 12,
        "kept": left,
        "without_pass_rate": 0,
    }
    whole = pl.read_parquet(place.cell(CELL) / "files" / "training_set.parquet")
    assert (whole["dropped"] == "pass_rate").sum() == 12 - left
    assert any("scores/" in address for address in place.lineage(CELL)["inputs"])


def test_the_choices_are_those_of_the_installed_trl():
    source = inspect.getsource(trl.GRPOTrainer)
    for key, choices in grpo._CHOICES.items():
        for value in choices:
            assert not isinstance(value, str) or f'"{value}"' in source, (key, value)
    losses = re.findall(r'(?:self\.loss_type (?:==|in) )(\[[^]]*\]|"\w+")', source)
    assert set(re.findall(r'"(\w+)"', "".join(losses))) == set(grpo._CHOICES["loss_type"])
