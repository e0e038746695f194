"""A reply that came without text is wrong; only a reply that never came is missing."""

import json

import polars as pl
import pytest

from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.stages.inputs import as_scored
from mbt_cli.stages.score import with_definite

QUESTIONS = 12
"""The first six are answered, each of the others meets one of the ends below."""

STUDY = """
[study]
name = "silent"
seed = 1
max_failed_share = 0.1

[sampling.plain]
temperature = 0
max_tokens = 32

[models.student]
backend = { kind = "recorded", file = "replies.jsonl" }
sampling = "plain"

[models.judge]
backend = { kind = "canned", replies = ['{"grade": "A"}'] }
sampling = "plain"

[models.hits]
backend = { kind = "canned", replies = ["YES"] }
sampling = "plain"

[models.phases]
backend = { kind = "canned", replies = ["L_OBS: 4\\nPHASES: 1, 2, 3, 5\\nCONFIDENCE: 0.9"] }
sampling = "plain"

[benchmarks.own]
kind = "question_answer"
files = { test = "questions.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "own", split = "test", model = "student", prompt = "question" }
samples = 1

[[stage]]
kind = "judge"
name = "answers"
rollouts = "base"
matrix = { judge = "answer_match" }
judge_model = "judge"

[[stage]]
kind = "judge"
name = "hits"
rollouts = "base"
matrix = { judge = "answer_hit" }
judge_model = "hits"

[[stage]]
kind = "judge"
name = "phases"
rollouts = "base"
matrix = { judge = "phases" }
judge_model = "phases"

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
verdicts = ["answers", "hits", "phases"]
baseline = { prompt = "question" }
metrics = [
    "exact_match", "f1_score", "math_match", "answer_rate", "empty_replies", "tokens",
    "degeneration", "judge_accuracy", "answer_hit", "answer_inclusive_errors", "mqi",
    { kind = "avg_at_k", of = "math_match" }, "pass_at_k", { kind = "maj_at_k", of = "math_match" },
]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results", "degeneration"]
"""

# what the student says, and how it ends
ENDS = [
    ("", "stop"),
    (" \n", "stop"),
    ("", "tool_calls"),
    ("Nile <answer>Nile</answer>", "content_filter"),
    (r"\boxed{Nile}", "content_filter"),
]


@pytest.fixture
def silent(workplace):
    """Twelve questions: six right replies, five without text, and one that never comes."""
    questions = [
        {"id": f"q{n:02}", "question": f"Which river? {n}", "answer": "Nile"}
        for n in range(QUESTIONS)
    ]
    said = [("It is <answer>Nile</answer>", "stop")] * 6 + ENDS
    replies = [
        {"question_id": f"q{n:02}", "reply": reply, "finish_reason": end}
        for n, (reply, end) in enumerate(said)
    ]
    for name, lines in (("questions", questions), ("replies", replies)):
        (workplace / f"{name}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    (workplace / "silent.toml").write_text(STUDY)
    return workplace / "runs/silent"


def summary(study):
    """Metric to its row."""
    (path,) = study.glob("scores/**/summary.parquet")
    return {row["metric"]: row for row in pl.read_parquet(path).iter_rows(named=True)}


def test_replies_without_text_are_wrong_and_only_what_never_came_is_missing(mbt, silent):
    ran = mbt("run", "silent.toml")

    assert ran.code == 0, ran.err
    found = summary(silent)
    # six of the eleven replies that came are right
    for metric in (
        *("exact_match", "f1_score", "math_match", "answer_rate", "judge_accuracy", "answer_hit"),
        *("math_match_avg@1", "pass@1", "math_match_maj@1"),
    ):
        assert found[metric]["value"] == pytest.approx(6 / 11), metric
        assert (found[metric]["n"], found[metric]["failed"]) == (11, 1), metric
    assert found["empty_replies"]["value"] == pytest.approx(5 / 11)
    assert found["degeneration"]["value"] == pytest.approx(2 / 11)
    assert found["judge_unread"]["value"] == found["answer_hit_unread"]["value"] == 0
    assert found["judge_accuracy_if_unread_right"]["value"] == pytest.approx(6 / 11)
    assert found["answer_inclusive_errors"]["value"] == 0
    # tokens: 3 in each right reply, 2 and 1 in the filtered ones, 0 in the empty ones
    assert found["tokens"]["value"] == pytest.approx((6 * 3 + 2 + 1) / 11)
    assert found["tokens"]["n"] == 11
    (path,) = silent.glob("scores/**/samples.parquet")
    missing = pl.read_parquet(path).filter(question_id="q11")
    assert missing.height == missing["value"].null_count() > 20
    # level 4 where it answered, 0 where it said nothing; filtered replies are truncated
    assert found["mqi_level"]["value"] == pytest.approx(6 * 4 / 9)
    assert found["mqi_level"]["n"] == 9


def test_no_judge_is_asked_about_a_reply_without_text(mbt, silent):
    mbt("run", "silent.toml")

    rows = pl.concat(
        pl.read_parquet(path).select("question_id", "asked")
        for path in silent.glob("*/**/judge=*/**/rows.parquet")
    )

    asked = rows.filter("asked").group_by("question_id").len()
    assert sorted(asked.rows()) == [(f"q{n:02}", 3) for n in range(6)]


def test_a_cell_of_silence_is_finished_and_told_of_but_failures_still_stop_it(mbt, silent):
    told = mbt("rollout", "silent.toml", "--set", "study.max_failed_share=0.08")
    lines = [json.dumps({"question_id": f"q{n:02}", "reply": ""}) for n in range(QUESTIONS)]
    (silent.parents[1] / "replies.jsonl").write_text("\n".join(lines))
    all_empty = mbt("rollout", "silent.toml", "--set", "study.name=mute")

    assert told.code == 1
    assert "1 of 12 rows failed" in told.err
    assert all_empty.code == 0, all_empty.err
    assert "12 of 12 replies came without text (12 x empty)" in " ".join(all_empty.err.split())


def test_scores_read_finished_rollouts_and_verdicts_without_asking_again(mbt, silent):
    mbt("run", "silent.toml")
    before = {p: p.read_bytes() for p in silent.glob("*/**/lineage.json") if "scores" not in str(p)}

    again = mbt("run", "silent.toml", "--only", "scores", "--set", "stage.scores.resamples=100")
    replaced = mbt(
        "run", "silent.toml", "--only", "scores", "--set", "stage.scores.resamples=100", "--replace"
    )

    assert again.code == 1  # the score cell alone is stale
    assert replaced.code == 0, replaced.err
    assert all(path.read_bytes() == content for path, content in before.items())
    assert summary(silent)["exact_match"]["value"] == pytest.approx(6 / 11)


def test_tables_and_traces_tell_of_them(mbt, silent):
    ran = mbt("run", "silent.toml")
    seen = mbt("view", "--terminal", "--limit", "12", str(silent / "base"))

    notes = " ".join(mbt("report", "silent.toml").out.split())
    assert ran.code == seen.code == 0
    assert "wrong in every accuracy: 5 replies, at most 45.5 % of a cell's." in notes
    assert "no text: content_filter" in seen.out
    assert "failed: no_reply" in seen.out
    (lineage,) = silent.glob("scores/**/lineage.json")
    assert json.loads(lineage.read_text())["notes"]["no_text"] == {
        "replies": 11,
        "empty": 3,
        "content_filter": 2,
    }


THINKING = "so <answer>Nile</answer> or"


def test_rollouts_of_earlier_versions_have_no_answer_in_thinking_that_was_cut():
    rollouts = pl.DataFrame(
        {
            "question_id": ["own", "closed", "imported", "whole"],
            "sample": 0,
            "answer": "Nile",
            "reply": [
                f"<think>{THINKING}",
                f"<think>a</think>{THINKING}",
                *[f"<think>{THINKING}"] * 2,
            ],
            "reasoning": THINKING,
            "finish_reason": ["length", "length", "length", "stop"],
            "failure": pl.Series([None] * 4, dtype=pl.String),
            "request_key": ["key", "key", None, "key"],
        }
    )
    verdicts = rollouts.select(
        "question_id", "sample", "failure", vote=pl.lit(0), grade=pl.lit("A"), asked=pl.lit(True)
    )

    scored = as_scored(rollouts)
    found = with_definite(verdicts, AnswerMatch(), scored)

    assert scored["answer"].to_list() == [None, "Nile", "Nile", "Nile"]
    assert found["grade"].to_list() == ["B", "A", "A", "A"]


def test_mbt_compare_counts_them_alike(mbt, silent):
    mbt("run", "silent.toml")
    (cell,) = (path.parent for path in silent.glob("base/**/lineage.json"))
    mbt("run", "silent.toml", "--set", 'study.name="again"')
    again = silent.parent / "again" / cell.relative_to(silent)

    ran = mbt("compare", str(cell), str(again))

    assert ran.code == 0, ran.err
    assert "54.5" in next(line for line in ran.out.splitlines() if "exact" in line)
