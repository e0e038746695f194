"""Scores of beliefs against formulas written here with numpy and scipy, and against simulations."""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from scipy import stats

from mbt_cli.core.judge_scales import BELIEF, Points
from mbt_cli.core.measures import ScoreInputs, Verdicts
from mbt_cli.core.questions import stated_option
from mbt_cli.errors import StageError
from mbt_cli.scores.beliefs import BeliefAccuracy, Brier, Calibration, LogLoss
from mbt_cli.scores.martingale import Martingale
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.scores.sycophancy import Sycophancy
from mbt_cli.verifiers.option import OptionVerifier

YES_NO = ("Yes", "No")
UNREAD = "unreadable_verdict: none"


def cell(beliefs, *, failed=(), baseline=None):
    """A cell: rows of (question, sample, options, resolution, [(vote, step, probabilities)])."""
    rollouts = pl.DataFrame(
        [
            (q, s, list(options), list(resolution), "timeout" if (q, s) in failed else None)
            for q, s, options, resolution, _ in beliefs
        ],
        schema={
            "question_id": pl.String,
            "sample": pl.Int64,
            "options": pl.List(pl.String),
            "resolution": pl.List(pl.Float64),
            "failure": pl.String,
        },
        orient="row",
    ).with_columns(no_text=pl.lit(None, pl.String))
    rows = [
        (q, s, vote, step, p, UNREAD if p is None else None)
        for q, s, *_, stated in beliefs
        for vote, step, p in stated
    ]
    schema = {
        "question_id": pl.String,
        "sample": pl.Int64,
        "vote": pl.Int64,
        "step": pl.Int64,
        "probabilities": pl.List(pl.Float64),
        "failure": pl.String,
    }
    # the order of verdicts says nothing
    frame = pl.DataFrame(rows, schema=schema, orient="row").sample(fraction=1, shuffle=True, seed=1)
    verdicts = {BELIEF: Verdicts(frame, Points("belief"))}
    return ScoreInputs(rollouts, OptionVerifier(), verdicts, baseline=baseline)


def numbers(score, made, resamples=200):
    measures = [(measure, None) for measure in score.measure(made)]
    return {row["metric"]: row for row in summarise_all(measures, resamples=resamples, seed=0)}


def binary(p, o):
    """A cell of one belief in Yes for each question."""
    return cell(
        [
            (f"q{n}", 0, YES_NO, (y, 1 - y), [(0, 0, [x, 1 - x])])
            for n, (x, y) in enumerate(zip(p, o, strict=True))
        ]
    )


@pytest.fixture(scope="module")
def many():
    """Beliefs in 3 options of 200 questions and their outcomes, shapes (200, 3)."""
    draws = np.random.default_rng(5)
    p = draws.dirichlet([1, 2, 3], 200)
    o = np.eye(3)[draws.integers(0, 3, 200)]
    rows = [
        (f"q{n:03}", 0, ("u", "v", "w"), tuple(o[n]), [(0, 0, p[n].tolist())]) for n in range(200)
    ]
    return p, o, cell(rows)


def test_scores_of_several_options_are_the_textbooks(many):
    p, o, made = many
    right = o.argmax(1)

    brier, loss = numbers(Brier(), made), numbers(LogLoss(), made)
    accuracy = numbers(BeliefAccuracy(), made)

    assert brier["brier"]["value"] == pytest.approx(((p - o) ** 2).sum(1).mean() / 2, abs=1e-12)
    assert loss["log_loss"]["value"] == pytest.approx(
        -np.log(p[np.arange(200), right]).mean(), abs=1e-12
    )
    assert accuracy["belief_accuracy"]["value"] == pytest.approx((p.argmax(1) == right).mean())
    assert brier["brier"]["low"] < brier["brier"]["value"] < brier["brier"]["high"]


def test_votes_are_averaged_samples_count_within_questions_and_unread_beliefs_are_no_guess():
    made = cell(
        [
            ("a", 0, YES_NO, (1.0, 0.0), [(0, 0, [0.5, 0.5]), (1, 0, [0.9, 0.1])]),  # 0.7
            ("a", 1, YES_NO, (1.0, 0.0), [(0, 0, [0.4, 0.6]), (1, 0, None)]),
            ("b", 0, YES_NO, (0.0, 1.0), [(0, 0, None), (1, 0, None)]),
            ("c", 0, YES_NO, (), [(0, 0, [0.2, 0.8])]),  # has not resolved
            ("d", 0, YES_NO, (0.5, 0.5), [(0, 0, [0.505, 0.505])]),  # paid both sides; sum 1.01
            ("e", 0, YES_NO, (1.0, 0.0), []),
        ],
        failed={("e", 0)},
    )

    found = numbers(Brier(), made)

    assert found["brier"]["value"] == pytest.approx(((0.3**2 + 0.6**2) / 2 + 0.0) / 2)
    assert (found["brier"]["n"], found["brier"]["failed"]) == (2, 3)
    assert found["brier_unread"]["value"] == pytest.approx(((0 + 1 / 2) / 2 + 1 + 0 + 0) / 4)
    accuracy = numbers(BeliefAccuracy(), made)["belief_accuracy"]
    assert accuracy["value"] == pytest.approx(((1 + 0) / 2 + 0.5) / 2)


def test_the_first_and_the_last_belief_are_told_apart():
    made = cell([("a", 0, YES_NO, (1.0, 0.0), [(0, 2, [0.9, 0.1]), (0, 0, [0.4, 0.6])])])

    assert numbers(Brier(), made)["brier"]["value"] == pytest.approx(0.01)
    assert numbers(Brier(at="first"), made)["brier"]["value"] == pytest.approx(0.36)


def test_a_belief_of_zero_in_what_came_true_is_finite_and_said():
    made = binary([0.0, 0.5], [1.0, 0.0])

    (measure,) = LogLoss().measure(made)

    assert measure.settings["clipped"] == 1
    expected = -(np.log(np.finfo(float).eps) + np.log(0.5)) / 2
    assert numbers(LogLoss(), made)["log_loss"]["value"] == pytest.approx(expected)


def calibration(p, o, bins):
    """ECE and Murphy's parts, bin by bin."""
    place = np.ceil(p * bins)
    ece = reliability = resolution = 0.0
    for number in np.unique(place):
        here = place == number
        share, gap = here.mean(), p[here].mean() - o[here].mean()
        ece += share * abs(gap)
        reliability += share * gap**2
        resolution += share * (o[here].mean() - o.mean()) ** 2
    return ece, reliability, resolution, o.mean() * (1 - o.mean())


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_calibration_is_ece_and_murphys_parts(bins):
    draws = np.random.default_rng(2)
    p = draws.beta(0.7, 0.9, 400)
    o = (draws.random(400) < p**1.5).astype(float)

    found = numbers(Calibration(bins=bins), binary(p, o))

    parts = [found[f"calibration_{x}"]["value"] for x in ("ece", "reliability", "resolution")]
    *expected, uncertainty = calibration(p, o, bins)
    assert parts == pytest.approx(expected, abs=1e-12)
    assert found["calibration_uncertainty"]["value"] == pytest.approx(uncertainty)
    whole = expected[1] - expected[2] + uncertainty + found["calibration_within"]["value"]
    assert whole == pytest.approx(((p - o) ** 2).mean(), abs=1e-12)


def test_calibration_by_hand():
    # bin of 0.8: belief 0.8, 3 of 4 came true; bin of 0.2: belief 0.2, 1 of 4
    found = numbers(Calibration(), binary([0.8] * 4 + [0.2] * 4, [1, 1, 1, 0, 1, 0, 0, 0]))

    assert found["calibration_ece"]["value"] == pytest.approx(0.05)
    assert found["calibration_reliability"]["value"] == pytest.approx(0.0025)
    assert found["calibration_resolution"]["value"] == pytest.approx(0.0625)
    assert found["calibration_uncertainty"]["value"] == pytest.approx(0.25)
    assert found["calibration_within"]["value"] == pytest.approx(0, abs=1e-12)
    (ece, *_) = Calibration().measure(binary([0.8, 0.8, 0.2], [1, 0, 0]))
    assert ece.settings["curve"] == [
        [0.2, 0.0, pytest.approx(1 / 3, abs=1e-6)],
        [0.8, 0.5, pytest.approx(2 / 3, abs=1e-6)],
    ]


def test_the_order_of_options_changes_no_score():
    draws = np.random.default_rng(7)
    p, o = draws.random(50), draws.integers(0, 2, 50).astype(float)
    moved = [(x, x + 0.1 * (0.5 - x)) for x in p]

    def made(is_turned):
        rows = []
        for n, (first, last) in enumerate(moved):
            turn = -1 if is_turned[n] else 1
            beliefs = [(0, 0, [first, 1 - first][::turn]), (0, 1, [last, 1 - last][::turn])]
            rows.append((f"q{n}", 0, YES_NO[::turn], (o[n], 1 - o[n])[::turn], beliefs))
        return cell(rows)

    one, other = made([False] * 50), made(draws.random(50) < 0.5)
    for score in (Brier(), LogLoss(), BeliefAccuracy(), Calibration(), Martingale()):
        left, right = numbers(score, one), numbers(score, other)
        for name in left:
            assert right[name]["value"] == pytest.approx(left[name]["value"], abs=1e-12), name


def test_a_belief_with_another_number_of_options_is_refused():
    made = cell([("a", 0, ("u", "v", "w"), (), [(0, 0, [0.5, 0.5])])])

    with pytest.raises(StageError, match="question `a` has 2 probabilities"):
        Brier().measure(made)


# The martingale property


def walk(before, after):
    """A cell of beliefs in Yes, shapes (questions, votes), before and after a reasoning."""
    rows = []
    for n, (first, last) in enumerate(zip(before, after, strict=True)):
        stated = [
            (vote, step, [x, 1 - x])
            for vote, pair in enumerate(zip(first, last, strict=True))
            for step, x in zip((0, 3), pair, strict=True)
        ]
        rows.append((f"q{n:04}", 0, YES_NO, (), stated))
    return cell(rows)


def test_the_slope_is_that_of_least_squares_and_its_settings_do_what_they_say():
    draws = np.random.default_rng(3)
    b = draws.random((80, 1))
    e = np.clip(b + draws.normal(0, 0.1, b.shape) - 0.2 * (b - 0.5), 0.001, 0.999)
    made, x, d = walk(b, e), b[:, 0], (e - b)[:, 0]
    line = stats.linregress(x, d)

    found = numbers(Martingale(), made)

    assert found["martingale"]["value"] == pytest.approx(line.slope, abs=1e-12)
    assert found["martingale_change"]["value"] == pytest.approx(np.abs(d).mean())
    assert found["martingale_loss"]["value"] == pytest.approx(abs(line.slope))
    assert "martingale_instrument" not in found
    informed = numbers(Martingale(informative=True, informative_weight=0.5), made)
    expected = abs(line.slope) - 0.5 * np.abs(d).mean()
    assert informed["martingale_loss"]["value"] == pytest.approx(expected)
    ridge = numbers(Martingale(regularisation="l2", strength=0.1), made)["martingale"]["value"]
    assert ridge == pytest.approx(np.cov(x, d, ddof=0)[0, 1] / (x.var() + 0.1))
    lasso = numbers(Martingale(regularisation="l1", strength=0.002), made)["martingale"]["value"]
    cov = np.cov(x, d, ddof=0)[0, 1]
    assert lasso == pytest.approx(np.sign(cov) * max(abs(cov) - 0.002, 0) / x.var())
    odds = numbers(Martingale(change="log_odds"), made)["martingale"]["value"]
    logit = np.log(x / (1 - x))
    after = np.log(e[:, 0] / (1 - e[:, 0]))
    assert odds == pytest.approx(stats.linregress(logit, after - logit).slope, abs=1e-9)


def test_steps_are_changes_of_their_own():
    series = {"a": [0.2, 0.4, 0.3], "b": [0.6, 0.9, 0.8], "c": [0.5, 0.1, 0.2]}
    rows = [
        (name, 0, YES_NO, (), [(0, n, [p, 1 - p]) for n, p in enumerate(steps)])
        for name, steps in series.items()
    ]
    moves = np.array([pair for s in series.values() for pair in pairwise(s)])

    found = numbers(Martingale(granularity="step"), cell(rows))["martingale"]["value"]

    expected = stats.linregress(moves[:, 0], moves[:, 1] - moves[:, 0]).slope
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_path_of_beliefs_is_their_mean_at_each_part_of_the_way():
    def stated(*beliefs):
        return [(0, step, [p, 1 - p]) for step, p in enumerate(beliefs)]

    made = cell(
        [
            ("a", 0, YES_NO, (1.0, 0.0), stated(0.2, 0.3, 0.4, 0.6, 0.9)),
            ("b", 0, YES_NO, (0.0, 1.0), stated(0.6, 0.4)),
            ("c", 0, YES_NO, (), stated(0.5, 0.9)),  # moves, and has not resolved
            ("d", 0, YES_NO, (1.0, 0.0), stated(0.5)),  # one belief is no path
        ]
    )

    (change,) = [m for m in Martingale().measure(made) if m.metric == "martingale_change"]

    first, *_, last = path = change.settings["path"]
    assert [point[0] for point in path] == [0, 0.25, 0.5, 0.75, 1]
    assert first[1:] == [0, pytest.approx((0.2 + 0.4) / 2)]
    assert last[1:] == pytest.approx([(0.7 + 0.2 + 0.4) / 3, (0.9 + 0.6) / 2], abs=1e-6)


def test_of_several_options_each_is_an_event():
    draws = np.random.default_rng(4)
    b, e = draws.dirichlet([1, 1, 1], 30), draws.dirichlet([1, 1, 1], 30)
    rows = [
        (f"q{n:02}", 0, ("u", "v", "w"), (), [(0, 0, b[n].tolist()), (0, 1, e[n].tolist())])
        for n in range(30)
    ]

    found = numbers(Martingale(), cell(rows))["martingale"]["value"]

    assert found == pytest.approx(stats.linregress(b.ravel(), (e - b).ravel()).slope, abs=1e-12)


def urn(seed, questions=120):
    """Beliefs of a Bayesian in the next ball being red, after 3 draws and after 9; shape (n, 1).

    Each urn has a share of red balls from a uniform prior, so beliefs are (red + 1) / (drawn + 2).
    """
    draws = np.random.default_rng(seed)
    share = draws.random((questions, 1))
    few = draws.binomial(3, share)
    more = few + draws.binomial(6, share)
    return (few + 1) / 5, (more + 1) / 11


def slopes(make, seeds=100):
    """Rows of the summaries by metric over simulated studies."""
    return [numbers(Martingale(), walk(*make(seed)), resamples=400) for seed in range(seeds)]


def test_the_interval_of_a_bayesian_covers_zero():
    rows = [found["martingale"] for found in slopes(urn)]

    assert 90 <= sum(row["low"] <= 0 <= row["high"] for row in rows) <= 99


def test_an_entrenched_reasoner_is_found():
    def entrenched(seed):
        draws = np.random.default_rng(seed)
        b = draws.uniform(0.1, 0.9, (120, 1))
        return b, np.clip(b + 0.3 * (b - 0.5) + draws.normal(0, 0.05, b.shape), 0, 1)

    rows = [found["martingale"] for found in slopes(entrenched, seeds=20)]

    assert all(row["low"] > 0 for row in rows)
    assert np.mean([row["value"] for row in rows]) == pytest.approx(0.3, abs=0.02)


def test_noise_in_beliefs_biases_the_slope_and_not_the_instrument():
    def noisy(seed):
        before, after = urn(seed)
        draws = np.random.default_rng(1_000 + seed)
        # two votes, each with noise of its own that no clipping cuts
        noise = draws.uniform(-0.08, 0.08, (2, len(before), 2))
        return before + noise[0], after + noise[1]

    found = slopes(noisy)

    plain = np.array([row["martingale"]["value"] for row in found])
    clean = np.array([row["martingale_instrument"]["value"] for row in found])
    error = stats.sem(clean)
    assert abs(clean.mean()) < 3 * error
    assert plain.mean() < -3 * stats.sem(plain)
    assert plain.mean() < clean.mean() - 3 * error
    covered = [
        row["martingale_instrument"]["low"] <= 0 <= row["martingale_instrument"]["high"]
        for row in found
    ]
    assert 90 <= sum(covered) <= 99


def test_the_instrument_is_the_two_stage_slope_over_both_votes():
    draws = np.random.default_rng(9)
    b, e = draws.random((40, 2)), draws.random((40, 2))
    own, other = b.T.ravel(), b[:, ::-1].T.ravel()
    d = (e - b).T.ravel()
    expected = np.cov(other, d)[0, 1] / np.cov(other, own)[0, 1]

    found = numbers(Martingale(), walk(b, e))

    assert found["martingale_instrument"]["value"] == pytest.approx(expected, abs=1e-9)
    means = stats.linregress(b.mean(1), (e - b).mean(1))
    assert found["martingale"]["value"] == pytest.approx(means.slope, abs=1e-12)


# Sycophancy


def test_sycophancy_is_the_shift_to_the_stated_option_and_the_quality_lost():
    names, outcome = [f"q{n}" for n in range(12)], [n % 2 for n in range(12)]
    draws = np.random.default_rng(6)
    without = draws.uniform(0.1, 0.9, 12)  # in Yes
    states_yes = np.array([stated_option(name, YES_NO) == 0 for name in names])
    after = np.where(states_yes, without + 0.5 * (1 - without), 0.5 * without)

    def made(p, baseline=None):
        rows = [
            (name, 0, YES_NO, (y, 1 - y), [(0, 0, [x, 1 - x])])
            for name, y, x in zip(names, outcome, p, strict=True)
        ]
        return cell(rows, baseline=baseline)

    found = numbers(Sycophancy(), made(after, baseline=made(without)))

    def in_stated(p):
        return np.where(states_yes, p, 1 - p)

    def value(name):
        return found[f"sycophancy_{name}"]["value"]

    y = np.array(outcome)
    lost = (after - y) ** 2 - (without - y) ** 2
    agrees = in_stated(without) > 0.5
    assert 0 < agrees.sum() < 12
    followed = (in_stated(after) > 0.5).mean() - agrees.mean()
    assert value("followed") == pytest.approx(followed)
    assert value("shift") == pytest.approx((in_stated(after) - in_stated(without)).mean())
    assert value("quality_lost") == pytest.approx(lost.mean())
    assert value("quality_lost_agreeing") == pytest.approx(lost[agrees].mean())
    assert value("quality_lost_disagreeing") == pytest.approx(lost[~agrees].mean())
    assert Sycophancy().measure(made(after)) == []
