"""Questions by pass rate: an order from scores, and a training that reads scores itself."""

import json

import polars as pl
import pytest

STUDY = """
[study]
name = "made"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 1
max_tokens = 32

[models.tiny]
backend = { kind = "recorded", file = "replies.jsonl" }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 5

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "tiny", split = "train", model = "tiny" }
prompt = "answer"
samples = 4

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
"""
TRAIN = """
[models.small]
backend = { kind = "transformers", model = "org/small", context = 2048 }
sampling = "plain"

[[stage]]
kind = "train"
name = "rl"
preset = "grpo"
prompt = "answer"
matrix = { model = "small" }
trainer = { use_vllm = false }
"""
RIGHT = (4, 0, 2, 1, 3)
"""Right replies of four to each question."""


@pytest.fixture
def ids(mbt, workplace):
    """Ids of the questions, whose scores are finished."""
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(STUDY)
    assert mbt("run", "study.toml", "--only", "questions").code == 0
    asked = pl.read_parquet(next((workplace / "runs/made/questions").rglob("rows.parquet")))
    lines = [
        {
            "question_id": row["question_id"],
            "sample": sample,
            "reply": f"<answer>{row['answer'] if sample < right else 'never'}</answer>",
        }
        for right, row in zip(RIGHT, asked.iter_rows(named=True), strict=True)
        for sample in range(4)
    ]
    (workplace / "replies.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    ran = mbt("run", "study.toml")
    assert ran.code == 0, ran.err
    return asked["question_id"].to_list()


def test_scores_become_an_order_of_their_questions(mbt, workplace, ids):
    shown = mbt("export", "runs/made/scores", "--order", "easy_first", "--to", "out")
    assert shown.code == 0, shown.err
    assert "| tiny-train.txt | exact_match | 5 | 0 | 0.500 | 1 | 1 |" in shown.out
    assert not (workplace / "out").exists()

    written = mbt("export", "runs/made/scores", "--order", "easy_first", "--to", "out", "--write")
    assert written.code == 0, written.err
    easy = [ids[n] for n in (0, 4, 2, 3, 1)]
    assert (workplace / "out/tiny-train.txt").read_text().splitlines() == easy
    values = pl.read_parquet(workplace / "out/tiny-train.parquet")
    assert dict(values.select("question_id", "value").iter_rows())[ids[4]] == 0.75

    hard = mbt("export", "runs/made/scores", "--order", "hard_first", "--to", "hard", "--write")
    assert hard.code == 0, hard.err
    assert (workplace / "hard/tiny-train.txt").read_text().splitlines() == easy[::-1]

    for arguments, message in (
        (("runs/made/base", "--order", "easy_first"), "an order is made of score cells"),
        (("runs/made/scores", "--order", "easy_first", "--metric", "f2"), "no metric `f2`"),
        (("runs/made/scores", "--metric", "f1_score"), "`--metric` is for `--order`"),
        (("runs/made/scores", "--order", "easy_first", "--jsonl"), "give one of them"),
    ):
        ran = mbt("export", *arguments, "--to", "other")
        assert ran.code in (1, 2)
        assert message in ran.err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            'mixture = [{ benchmark = "tiny" }]\nkeep = { pass_rate = [0.1, 0.9] }',
            "`stage.rl.keep`: reads pass rates: name a score stage in `scores`",
        ),
        (
            'mixture = [{ benchmark = "tiny", sort = "easy_first" }]\nscores = "scores"',
            "no cell of `scores` is about `questions/benchmark=tiny/split=train`",
        ),
        (
            'mixture = [{ benchmark = "tiny" }]\nkeep = { pass_rate = [0.9, 0.1] }',
            "must be two numbers of [0, 1], the lower one first",
        ),
        (
            'mixture = [{ benchmark = "tiny", sort = "easy_first", order = "x.txt" }]',
            "has an `order` and a `sort`; keep one",
        ),
        (
            'mixture = [{ benchmark = "tiny" }]\nscores = { stage = "scores", where = '
            '{ model = "tiny" } }',
            "`stage.rl.scores`: is read by `keep = { pass_rate = [0.1, 0.9] }` and `sort` alone",
        ),
    ],
)
def test_a_curriculum_that_cannot_be_followed_is_refused(mbt, workplace, lines, message):
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(STUDY + TRAIN + lines + "\n")
    ran = mbt("check", "study.toml")
    assert ran.code == 2
    assert message in ran.err


def test_a_training_depends_on_the_scores_that_choose_its_questions(mbt, workplace):
    (workplace / "replies.jsonl").write_text("")
    chosen = (
        'mixture = [{ benchmark = "tiny", sort = "easy_first" }]\n'
        'scores = { stage = "scores", where = { model = "tiny" } }\n'
        "keep = { pass_rate = [0.1, 0.9] }\n"
    )
    (workplace / "study.toml").write_text(STUDY + TRAIN + chosen)
    ran = mbt("plan", "study.toml", "--only", "rl", "--json")
    assert ran.code == 0, ran.err
    assert "scores/benchmark=tiny/split=train/model=tiny" in ran.out
