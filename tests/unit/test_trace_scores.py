"""RRP and MQI of eight hand-made traces."""

import json

import polars as pl
import pytest

from mbt_cli.core.measures import ScoreInputs
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.scores.features import Features
from mbt_cli.scores.mqi import MQI
from mbt_cli.scores.rrp import RRP
from mbt_cli.verifiers.text import TextVerifier
from tests.unit.scoring import judged, summarise

WORDS = TextVerifier()

# paragraphs, answer paragraph, first_correct, redundant, total | rho, delta, R
RRP_TABLE = [
    (4, 2, 4, 2, 8),  # 0.5, 0.25: 2 * 0.5 * 0.75 / 1.25 = 0.6
    (2, 0, -1, 0, 10),  # never: 1, 0: 2 * 0 * 1 / 1 = 0
    (1, 1, 5, 0, 5),  # one paragraph: 1, 0: 0
    (5, 1, 1, 0, 10),  # 0.1, 0: 2 * 0.9 * 1 / 1.9 = 0.947368
    (3, 3, 6, 6, 6),  # 1, 1: nothing left, 0
    (4, 2, 2, 3, 4),  # 0.5, 0.75: 2 * 0.5 * 0.25 / 0.75 = 0.333333
    (6, 3, 5, 5, 20),  # 0.25, 0.25: 0.75
    (2, 1, 3, 1, 4),  # 0.75, 0.25: 2 * 0.25 * 0.75 / 1 = 0.375
]
RHO = [0.5, 1, 1, 0.1, 1, 0.5, 0.25, 0.75]  # sum 5.1
DELTA = [0.25, 0, 0, 0, 1, 0.75, 0.25, 0.25]  # sum 2.5
R = [0.6, 0, 0, 1.8 / 1.9, 0, 1 / 3, 0.75, 0.375]

# level, phases, confidence, tokens
MQI_TABLE = [
    (5, [1, 2, 3, 4, 5], 0.9, 1000),
    (4, [1, 2, 3, 5], 0.9, 500),
    (3, [2, 3], 0.5, 250),
    (1, [], 0.5, 100),
    (0, [], 0.2, 50),
    (2, [5], 0.9, 400),
    (2, [2], 0.2, 800),
    (3, [1, 2, 3], 0.5, 200),
]
CORRECT = ["A", "A", "A", "B", "B", "B", "B", "A"]


def cell(count, *, tokens=None, cut=(), failed=()):
    return pl.DataFrame(
        {
            "question_id": [f"q{i}" for i in range(count)],
            "sample": [0] * count,
            "answer": ["Oslo"] * count,
            "reply": ["<answer>Oslo</answer>"] * count,
            "reasoning": ["It is Oslo."] * count,
            "finish_reason": ["length" if i in cut else "stop" for i in range(count)],
            "completion_tokens": tokens or [100] * count,
            "failure": ["http_500" if i in failed else None for i in range(count)],
            "gold_answer": ["Oslo"] * count,
            "gold_aliases": [[]] * count,
        },
        schema_overrides={"failure": pl.String, "gold_aliases": pl.List(pl.String)},
    )


def verdicts(columns, *, failures=()):
    count = len(next(iter(columns.values())))
    return pl.DataFrame(
        {
            "question_id": [f"q{i}" for i in range(count)],
            "sample": [0] * count,
            "vote": [0] * count,
            **columns,
            "failure": ["unreadable" if i in failures else None for i in range(count)],
        },
        schema_overrides={"failure": pl.String},
    )


def marks(table, *, failures=()):
    names = (
        "paragraphs",
        "answer_paragraph",
        "first_correct",
        "redundant_sentences",
        "total_sentences",
    )
    columns = {name: [row[i] for row in table] for i, name in enumerate(names)}
    return verdicts(columns, failures=failures)


def numbers(score, inputs):
    return {
        measure.metric: summarise(measure, resamples=20, seed=0)
        for measure in score.measure(inputs)
    }


def test_rrp_of_eight_traces_by_hand():
    inputs = ScoreInputs(cell(8), WORDS, judged({Redundancy: marks(RRP_TABLE)}))

    found = {name: row["value"] for name, row in numbers(RRP(), inputs).items()}

    early, lean = 1 - 5.1 / 8, 1 - 2.5 / 8
    assert found == {
        "rrp_arrival": pytest.approx(sum(RHO) / 8),
        "rrp_redundancy": pytest.approx(sum(DELTA) / 8),
        "rrp_regulation": pytest.approx(sum(R) / 8),
        "rrp_regulation_of_means": pytest.approx(2 * early * lean / (early + lean)),
        "rrp_sentences": pytest.approx(67 / 8),
        "rrp_one_paragraph": 1 / 8,
        "rrp_never_reached": 1 / 8,
        "rrp_not_judged": 0.0,
        "rrp_unread": 0.0,
    }


def test_length_aware_rrp_measures_in_the_baselines_sentences():
    baseline = ScoreInputs(
        cell(2), WORDS, judged({Redundancy: marks([(2, 1, 1, 0, 3), (2, 1, 1, 0, 7)])})
    )
    inputs = ScoreInputs(cell(8), WORDS, judged({Redundancy: marks(RRP_TABLE)}), baseline=baseline)

    found = numbers(RRP(), inputs)

    # T_base = 5: first_correct / 5 capped at 1, 1 if never; redundant / 5 capped at 1
    rho = [0.8, 1, 1, 0.2, 1, 0.4, 1, 0.6]
    delta = [0.4, 0, 0, 0, 1, 0.6, 1, 0.2]
    both = [
        2 * (1 - a) * (1 - b) / ((1 - a) + (1 - b)) if a + b < 2 else 0
        for a, b in zip(rho, delta, strict=True)
    ]
    assert found["rrp_arrival_length_aware"]["value"] == pytest.approx(sum(rho) / 8)
    assert found["rrp_redundancy_length_aware"]["value"] == pytest.approx(sum(delta) / 8)
    assert found["rrp_regulation_length_aware"]["value"] == pytest.approx(sum(both) / 8)
    assert found["rrp_arrival_length_aware"]["settings"] == '{"base_sentences":5.0}'


def test_cut_unread_and_failed_traces_enter_no_mean_and_are_counted():
    table = [*RRP_TABLE[:2], (None,) * 5, (None,) * 5]
    inputs = ScoreInputs(
        cell(5, cut={2}, failed={4}), WORDS, judged({Redundancy: marks(table, failures={3})})
    )

    found = numbers(RRP(), inputs)

    assert found["rrp_arrival"]["value"] == pytest.approx(0.75)
    assert (found["rrp_arrival"]["n"], found["rrp_arrival"]["failed"]) == (2, 3)
    assert found["rrp_not_judged"]["value"] == 0.25  # one of the four that did not fail
    assert found["rrp_unread"]["value"] == pytest.approx(0.25)


def observed(table, *, failures=()):
    names = ("l_obs", "phases", "confidence")
    columns = {name: [row[i] for row in table] for i, name in enumerate(names)}
    return verdicts(columns, failures=failures)


def test_mqi_of_eight_traces_by_hand():
    inputs = ScoreInputs(
        cell(8, tokens=[row[3] for row in MQI_TABLE]),
        WORDS,
        judged({Phases: observed(MQI_TABLE), AnswerMatch: verdicts({"grade": CORRECT})}),
    )

    found = {name: row["value"] for name, row in numbers(MQI(base_tokens=400), inputs).items()}

    # L * 400 / T: 2, 3.2, 4.8, 4, 0, 2, 1, 6
    assert found["mqi"] == pytest.approx(23 / 8)
    # mean level 20 / 8, mean tokens 3300 / 8
    assert found["mqi_of_means"] == pytest.approx(20 * 400 / 3300)
    assert found["mqi_level"] == pytest.approx(2.5)
    assert [found[f"mqi_phase_{k}"] for k in range(1, 6)] == pytest.approx(
        [3 / 8, 5 / 8, 4 / 8, 1 / 8, 3 / 8]
    )
    # right at 0.9, 0.9, 0.5, 0.5; wrong at 0.5, 0.2, 0.9, 0.2. Pairs of right and wrong:
    # each right 0.9: + against 0.5, 0.2, 0.2, tie with 0.9; each right 0.5: + 0.2, + 0.2, - 0.9
    # concordant 2 * 3 + 2 * 2 = 10, discordant 2 * 1 = 2
    assert found["mqi_gamma"] == pytest.approx(8 / 12)


def test_mqi_takes_the_baselines_mean_tokens_over_all_its_replies():
    baseline = ScoreInputs(cell(2, tokens=[300, 500], cut={1}), WORDS)
    inputs = ScoreInputs(
        cell(1, tokens=[200]), WORDS, judged({Phases: observed([(3, [1], 0.5)])}), baseline=baseline
    )

    found = numbers(MQI(), inputs)

    assert found["mqi"]["value"] == pytest.approx(6.0)  # 3 * 400 / 200
    assert json.loads(found["mqi"]["settings"])["base_tokens"] == 400.0
    assert "mqi_gamma" not in found


def test_the_interval_of_mqi_counts_the_baselines_own_spread():
    lengths = [100, 900] * 20
    baseline = ScoreInputs(cell(40, tokens=lengths), WORDS)
    verdicts = judged({Phases: observed([(3, [1], 0.5)] * 40)})
    inputs = ScoreInputs(cell(40, tokens=[200, 201] * 20), WORDS, verdicts, baseline=baseline)

    resampled = numbers(MQI(), inputs)
    fixed = numbers(MQI(base_tokens=500), inputs)

    for name in ("mqi", "mqi_of_means"):
        assert resampled[name]["value"] == pytest.approx(fixed[name]["value"])
        width, less = (one[name]["high"] - one[name]["low"] for one in (resampled, fixed))
        assert width > 20 * less


def test_mqi_counts_the_questions_with_a_level_and_its_difference_is_of_the_same_numbers():
    baseline = ScoreInputs(cell(4, tokens=[100, 200, 300, 400]), WORDS)
    table = [(3, [1], 0.5), (None, None, None), (3, [1], 0.5), (None, None, None)]
    verdicts = judged({Phases: observed(table)})
    own = ScoreInputs(cell(4, tokens=[250] * 4, cut={1, 3}), WORDS, verdicts, baseline=baseline)
    (index, of_means, *_) = MQI().measure(own)

    for one in (index, of_means):
        row = summarise(one, baseline=one, resamples=50, seed=1)
        assert (row["value"], row["baseline"]) == (pytest.approx(3.0), pytest.approx(3.0))
        assert row["n"] == 2


def test_mqi_without_a_base_length_gives_levels_and_phases_only():
    inputs = ScoreInputs(cell(1), WORDS, judged({Phases: observed([(3, [1], 0.5)])}))

    assert set(numbers(MQI(), inputs)) == {
        "mqi_level",
        *(f"mqi_phase_{k}" for k in range(1, 6)),
        "mqi_not_judged",
        "mqi_unread",
    }


def test_a_cut_reply_has_no_level():
    table = [(3, [1], 0.5), (None, None, None)]
    inputs = ScoreInputs(cell(2, cut={1}), WORDS, judged({Phases: observed(table)}))

    found = numbers(MQI(base_tokens=100), inputs)

    assert found["mqi"]["value"] == pytest.approx(3.0)
    assert (found["mqi"]["n"], found["mqi"]["failed"]) == (1, 1)
    assert found["mqi_not_judged"]["value"] == 0.5


def test_scores_of_traces_give_nothing_without_their_judge():
    inputs = ScoreInputs(cell(1), WORDS)

    assert RRP().measure(inputs) == []
    assert MQI().measure(inputs) == []


def test_features_of_a_trace_are_counted_per_hundred_words():
    texts = [
        # 20 words in 3 paragraphs, 2 hedges, 1 turn, 1 reason, 2 numbers, 1 question
        "It may be Oslo. Or is it 2 towns?\n\nPerhaps, but I don\u2019t know.\n\nSo 1,905 "
        "because of a law.",
        "",
        "42",
    ]
    rollouts = cell(4, failed=[3]).with_columns(
        reply=pl.Series([*texts, None]), reasoning=pl.lit(None, pl.String)
    )

    found = {
        one.metric.removeprefix("features_"): one.questions["value"].to_list()
        for one in Features().measure(ScoreInputs(rollouts, WORDS))
    }

    assert found["words"] == [20, None, 1, None]
    assert found["steps"] == [3, None, 1, None]
    assert found["hedges"] == [10, None, 0, None]
    assert (found["turns"][0], found["reasons"][0], found["questions"][0]) == (5, 5, 5)
    assert (found["numbers"][0], found["numbers"][2]) == (10, 100)
