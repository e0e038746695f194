"""Scores of small cells, worked out by hand."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbt_cli.core.judge_scales import Points
from mbt_cli.core.measures import ScoreInputs, Verdicts
from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.errors import StageError
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.scores.answers import (
    AnswerRate,
    Containment,
    ExactMatch,
    F1Score,
    OfficialExactMatch,
    OfficialF1,
    SubstringMatch,
)
from mbt_cli.scores.at_k import AvgAtK, MajAtK, PassAtK
from mbt_cli.scores.judged import AnswerHitRate, AnswerInclusiveErrors, JudgeAccuracy
from mbt_cli.scores.lengths import AES, Degeneration, Tokens, TokensPerCorrect, aes
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.verifiers.text import TextVerifier
from tests.unit.scoring import judged, summarise

WORDS = TextVerifier()

SCHEMA = {
    "question_id": pl.String,
    "sample": pl.Int64,
    "answer": pl.String,
    "reply": pl.String,
    "reasoning": pl.String,
    "finish_reason": pl.String,
    "completion_tokens": pl.Int64,
    "failure": pl.String,
    "gold_answer": pl.String,
    "gold_aliases": pl.List(pl.String),
}
ROLLOUT = {
    "sample": 0,
    "answer": "Oslo",
    "reply": "<answer>Oslo</answer>",
    "reasoning": "It is Oslo.",
    "finish_reason": "stop",
    "completion_tokens": 100,
    "failure": None,
    "gold_answer": "Oslo",
    "gold_aliases": [],
}
FAILED = {"answer": None, "reply": None, "failure": "http_500", "completion_tokens": None}
CUT = {"answer": None, "reply": "", "finish_reason": "length", "completion_tokens": 900}


def rollouts(*changes):
    rows = [
        {"question_id": f"q{number}", **ROLLOUT, **change} for number, change in enumerate(changes)
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def verdicts(column, values, *, failures=(), votes=1):
    """One verdict per question and vote; `failures` are the places of unread ones."""
    return pl.DataFrame(
        {
            "question_id": [f"q{i // votes}" for i in range(len(values))],
            "sample": [0] * len(values),
            "vote": [i % votes for i in range(len(values))],
            column: values,
            "failure": ["unreadable" if i in failures else None for i in range(len(values))],
        },
        schema_overrides={"failure": pl.String},
    )


def measured(score, inputs):
    return {measure.metric: measure for measure in score.measure(inputs)}


def value(measure):
    return summarise(measure, resamples=10, seed=0)["value"]


def test_a_cut_reply_is_wrong_and_a_failed_one_has_no_value():
    inputs = ScoreInputs(rollouts({}, {"answer": "Bergen"}, CUT, FAILED), WORDS)

    row = summarise(measured(ExactMatch(), inputs)["exact_match"], resamples=10, seed=0)

    assert row["value"] == pytest.approx(1 / 3)
    assert (row["n"], row["failed"]) == (3, 1)


def test_samples_are_averaged_within_their_question_first():
    frame = rollouts({}, {"answer": "x"}, {"answer": "x"}, {"answer": "x"})
    frame = frame.with_columns(
        question_id=pl.Series(["q0", "q1", "q1", "q1"]), sample=pl.Series([0, 0, 1, 2])
    )

    # q0 is 1, q1 is 0: one half, though one sample of four is right
    assert value(measured(ExactMatch(), ScoreInputs(frame, WORDS))["exact_match"]) == 0.5


def test_plain_counts_and_lengths():
    loop = "So it is Oslo, or is it Bergen? Let me think again. " * 30
    inputs = ScoreInputs(rollouts({}, {**CUT, "reasoning": loop}, {"answer": ""}, FAILED), WORDS)

    found = {
        name: value(measure)
        for score in (AnswerRate(), Tokens(), Degeneration())
        for name, measure in measured(score, inputs).items()
    }

    assert found == {
        "answer_rate": pytest.approx(1 / 3),
        "tokens": pytest.approx(1100 / 3),
        "degeneration": pytest.approx(1 / 3),
        "degeneration_loops": pytest.approx(1 / 3),
    }


def test_text_that_repeats_a_little_is_no_loop():
    text = " ".join(f"Step {i}: look at document {i}." for i in range(80))
    frame = rollouts({"reply": text}, {"reply": "ha " * 20}, {"reply": "ha " * 60})

    loops = measured(Degeneration(), ScoreInputs(frame, WORDS))["degeneration_loops"]

    assert loops.questions["value"].to_list() == [0.0, 0.0, 1.0]


def test_a_share_of_questions_has_wilsons_interval():
    inputs = ScoreInputs(rollouts({}, {"answer": ""}), WORDS)

    row = summarise(measured(AnswerRate(), inputs)["answer_rate"], resamples=10, seed=0)

    # Wilson of 1 of 2 at z = 1.96: 0.5 +- 0.4055
    assert row["low"] == pytest.approx(0.0945, abs=1e-3)
    assert row["high"] == pytest.approx(0.9055, abs=1e-3)
    assert json.loads(row["settings"])["interval"] == "wilson"


def test_the_interval_of_pass_at_1_is_that_of_the_share_of_right_samples():
    frame = rollouts({}, {"answer": "x"}, {}, {}, {"answer": "x"}, {"answer": "x"})
    frame = frame.with_columns(
        question_id=pl.Series(["q0", "q0", "q1", "q1", "q2", "q2"]),
        sample=pl.Series([0, 1] * 3),
    )
    inputs = ScoreInputs(frame, WORDS)
    both = [measured(ExactMatch(), inputs)["exact_match"], measured(PassAtK(), inputs)["pass@1"]]

    ends = [[summarise(one, resamples=10, seed=0)[end] for end in ("low", "high")] for one in both]

    assert ends[0] == ends[1]
    assert 0 < ends[0][0] < ends[0][1] < 1


def test_judge_accuracy_leaves_unread_verdicts_out_and_says_what_they_could_change():
    inputs = ScoreInputs(
        rollouts({}, {}, {}, {}, FAILED),
        WORDS,
        judged({AnswerMatch: verdicts("grade", ["A", "B", "C", None, None], failures={3, 4})}),
    )

    found = measured(JudgeAccuracy(), inputs)

    assert value(found["judge_accuracy"]) == pytest.approx(1 / 3)
    assert found["judge_accuracy"].questions["failed"].sum() == 2
    assert value(found["judge_unread"]) == pytest.approx(1 / 4)
    assert value(found["judge_accuracy_if_unread_wrong"]) == pytest.approx(1 / 4)
    assert value(found["judge_accuracy_if_unread_right"]) == pytest.approx(2 / 4)


def test_votes_decide_by_majority_and_a_tie_has_no_value():
    grades = ["A", "A", "B", "B", "B", "A", "A", "B", None]
    found = verdicts("grade", grades, failures={8}, votes=3)
    inputs = ScoreInputs(rollouts({}, {}, {}), WORDS, judged({AnswerMatch: found}))

    found = measured(JudgeAccuracy(), inputs)

    assert found["judge_accuracy"].questions["value"].to_list() == [1.0, 0.0, None]
    # 2 of 3, 2 of 3, and 1 of the 2 that could be read
    assert value(found["judge_vote_agreement"]) == pytest.approx((2 / 3 + 2 / 3 + 1 / 2) / 3)


@pytest.mark.parametrize(("combine", "values"), [("mean", [5 / 7, 1.0]), ("median", [6 / 7, 1.0])])
def test_points_are_averaged_and_count_as_a_share_of_the_maximum(combine, values):
    scale = Points("points", high=7, combine=combine)
    found = verdicts("points", [7, 2, 6, 7, 7, None], failures={5}, votes=3)
    inputs = ScoreInputs(rollouts({}, {}), WORDS, {"correctness": Verdicts(found, scale)})

    measures = measured(JudgeAccuracy(), inputs)

    assert measures["judge_accuracy"].questions["value"].to_list() == pytest.approx(values)
    assert value(measures["judge_unread"]) == pytest.approx(1 / 6)
    # no two of 7, 2, 6 are equal; 7, 7 are
    assert value(measures["judge_vote_agreement"]) == pytest.approx((1 / 3 + 1) / 2)


def test_scores_that_need_a_judge_give_no_number_without_verdicts():
    inputs = ScoreInputs(rollouts({}), WORDS)

    assert JudgeAccuracy().measure(inputs) == []
    assert AES().measure(inputs) == []
    assert TokensPerCorrect().measure(inputs) == []


def test_the_same_vote_twice_is_refused():
    found = pl.concat([verdicts("grade", ["A"])] * 2)
    inputs = ScoreInputs(rollouts({}), WORDS, judged({AnswerMatch: found}))

    with pytest.raises(StageError, match="verdicts have 2 rows that share a key"):
        JudgeAccuracy().measure(inputs)


@pytest.mark.parametrize(
    ("accuracy", "tokens", "base", "expected"),
    [
        (77.5, 657, (73.8, 1156), 0.582),
        (89.9, 497, (89.2, 530), 0.086),
        (71.0, 1113, (73.8, 1156), -0.153),
        (73.8, 1156, (73.8, 1156), 0.0),
    ],
)
def test_aes_equals_the_worked_examples_and_the_formula_on_a_drop(accuracy, tokens, base, expected):
    found = aes(
        np.array([accuracy]),
        np.array([tokens]),
        base=(np.array([base[0]]), np.array([base[1]])),
        weights=(1, 3, 5),
    )

    assert found[0] == pytest.approx(expected, abs=6e-4)


def test_aes_is_paired_with_its_baseline_by_question():
    base = ScoreInputs(rollouts({"answer": "x"}, {}, {"completion_tokens": 9999}).head(2), WORDS)
    own = rollouts({"completion_tokens": 50}, {"completion_tokens": 50}, {})
    score = AES(accuracy="exact_match", beta=2)

    (found,) = score.measure(ScoreInputs(own, WORDS, baseline=base))

    # q2 has no partner. Accuracy 0.5 -> 1, tokens 100 -> 50: 1 * 0.5 + 2 * 1
    assert value(found) == pytest.approx(2.5)
    assert found.settings == {
        "alpha": 1.0,
        "beta": 2.0,
        "gamma": 5.0,
        "accuracy": "exact_match",
        "length": "all",
    }


def test_tokens_per_correct_pays_for_wrong_replies_too():
    inputs = ScoreInputs(rollouts({}, {"answer": "x", "completion_tokens": 500}, FAILED), WORDS)

    (found,) = TokensPerCorrect(accuracy="exact_match").measure(inputs)

    assert value(found) == pytest.approx(600.0)  # 300 a reply, one half right


def test_answer_hits_with_and_without_a_judge():
    frame = rollouts(
        {},
        {"reasoning": "The Osloers say Bergen.", "answer": "Bergen"},
        {"reasoning": "", "reply": "It is Oslo. <answer>Bergen</answer>", "answer": "Bergen"},
        {**CUT, "reasoning": "Oslo, Oslo, Oslo"},
    )
    found = verdicts("hit", [True, False, True, None])
    right = verdicts("grade", ["A", "B", "B", "B"])
    inputs = ScoreInputs(frame, WORDS, judged({AnswerHit: found, AnswerMatch: right}))

    hits = {k: value(m) for k, m in measured(AnswerHitRate(), inputs).items()}
    errors = {k: value(m) for k, m in measured(AnswerInclusiveErrors(), inputs).items()}

    assert hits == {
        "answer_hit": 0.5,  # the cut one was not judged and counts as no hit
        "answer_hit_unread": 0.0,
        "answer_hit_not_judged": 0.25,
        "answer_hit_substring": 1.0,  # `osloers` holds `oslo`
        "answer_hit_words": 0.75,
    }
    assert errors["answer_inclusive_errors"] == 0.25
    assert errors["answer_inclusive_errors_of_errors"] == pytest.approx(1 / 3)
    assert errors["answer_inclusive_errors_substring"] == 0.75
    assert errors["answer_inclusive_errors_words"] == 0.5


ALL = (
    ExactMatch(),
    SubstringMatch(),
    F1Score(),
    Containment(),
    OfficialExactMatch(),
    OfficialF1(),
    AvgAtK(),
    MajAtK(),
    PassAtK(),
    AnswerRate(),
    Tokens(),
    Degeneration(),
    AnswerHitRate(),
    TokensPerCorrect(accuracy="f1_score"),
)


@given(
    answers=st.lists(st.sampled_from(["Oslo", "oslo city", "x", "", None]), min_size=6, max_size=6),
    order=st.permutations(range(6)),
)
@settings(max_examples=15, deadline=None)
def test_every_score_is_the_same_for_rows_in_any_order(answers, order):
    frame = rollouts(*({"answer": answer} for answer in answers)).with_columns(
        question_id=pl.Series([f"q{i // 2}" for i in range(6)]),
        sample=pl.Series([i % 2 for i in range(6)]),
    )

    rows = [
        summarise_all(
            [
                (m, None)
                for score in ALL
                for m in score.measure(ScoreInputs(table, WORDS, official=OfficialScorer()))
            ],
            resamples=20,
            seed=1,
        )
        for table in (frame, frame[list(order)])
    ]

    for one, other in zip(*rows, strict=True):
        assert one == {k: pytest.approx(v) if k != "settings" else v for k, v in other.items()}


def test_a_breakdown_of_the_inputs_does_not_see_what_was_made_of_all_rows():
    from dataclasses import replace

    inputs = ScoreInputs(rollouts({}, {"answer": "x"}), WORDS)
    ExactMatch().measure(inputs)

    part = replace(inputs, rollouts=inputs.rollouts.head(1))

    assert value(measured(ExactMatch(), part)["exact_match"]) == 1.0
