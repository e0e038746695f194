"""Human labels beside a judge: agreement by hand, the corrected accuracy by simulation."""

import numpy as np
import orjson
import polars as pl
import pytest

from mbt_cli.core.judge_scales import Labels, Points
from mbt_cli.scores.agreement import share_measure
from mbt_cli.scores.human import corrected_mean, human_measures, label_sums
from mbt_cli.scores.statistics import t_quantile
from mbt_cli.scores.summaries import summarise_all

GRADES = Labels("grade", ("A", "B", "C"), right="A")


def rollouts(questions, samples=1):
    ids = np.repeat([f"q{i:04}" for i in range(questions)], samples)
    return pl.DataFrame({"question_id": ids, "sample": np.tile(np.arange(samples), questions)})


def labels(frame, values):
    """Labels of the first rollouts."""
    return frame.head(len(values)).with_columns(label=pl.Series(values, dtype=pl.String))


def measured(frame, judge, said, scale=GRADES):
    found = human_measures(frame, np.asarray(judge, dtype=float), said, scale, judge="j", suffix="")
    rows = summarise_all([(one, None) for one in found], resamples=200, seed=0)
    return {row["metric"]: {**row, "settings": orjson.loads(row["settings"])} for row in rows}


def test_agreement_with_humans_by_hand():
    # human  A A A A B B C x x x   (x: not labelled)
    # judge  1 1 1 0 0 1 0 1 0 1
    frame = rollouts(10)

    found = measured(frame, [1, 1, 1, 0, 0, 1, 0, 1, 0, 1], labels(frame, list("AAAABBC")))

    assert found["human_same"]["value"] == pytest.approx(5 / 7)
    # chance: both right 4/7 x 4/7, both wrong 3/7 x 3/7, together 25/49
    assert found["human_kappa"]["value"] == pytest.approx((5 / 7 - 25 / 49) / (24 / 49))
    counts = {"both_right": 3, "human_only": 1, "judge_only": 1, "both_wrong": 2, "pairs": 7}
    assert found["human_kappa"]["settings"].items() >= counts.items()
    assert found["judge_sensitivity"]["value"] == pytest.approx(3 / 4)
    assert found["judge_specificity"]["value"] == pytest.approx(2 / 3)
    # Wilson's interval of 3 of 4
    ends = [found["judge_sensitivity"][end] for end in ("low", "high")]
    assert ends == pytest.approx([0.3006, 0.9544], abs=1e-4)
    corrected = found["judge_accuracy_corrected"]
    assert corrected["settings"]["no_interval"] == "fewer than 10 labelled questions"
    assert corrected["low"] is None


def test_points_are_compared_by_weighted_kappa_and_have_no_sensitivity():
    frame = rollouts(4)

    found = measured(
        frame, [0, 1 / 3, 2 / 3, 1], labels(frame, ["0", "2", "0", "3"]), Points("points", high=3)
    )

    # as in the test of weighted kappa
    assert found["human_kappa"]["value"] == pytest.approx(1 - 1.25 / 3)
    assert found["human_same"]["value"] == pytest.approx(2 / 4)
    assert "judge_sensitivity" not in found


def test_labels_without_a_verdict_or_a_rollout_are_counted():
    frame = rollouts(3)
    said = pl.concat([labels(frame, ["A", "B"]), labels(rollouts(9).tail(1), ["A"])])

    found = measured(frame, [np.nan, 1, 1], said)

    facts = found["judge_accuracy_corrected"]["settings"]
    assert facts["labels"] == 3
    assert facts["labels_elsewhere"] == 1
    assert facts["labels_without_verdict"] == 1
    assert found["human_kappa"]["settings"]["pairs"] == 1


def test_the_corrected_accuracy_is_the_labels_mean_where_every_rollout_is_labelled():
    random = np.random.default_rng(1)
    human, judge = (random.random((2, 40)) < 0.6).astype(float)

    sums = label_sums(judge, human, np.arange(40))
    found = corrected_mean(sums, 40)

    assert found.mean(sums) == pytest.approx(human.mean())


def test_the_weight_is_that_of_the_paper():
    random = np.random.default_rng(2)
    truth = (random.random(20_000) < 0.7).astype(float)
    judge = np.where(random.random(20_000) < 0.85, truth, 1 - truth)
    human = np.where(np.arange(20_000) < 4_000, truth, np.nan)

    sums = label_sums(judge, human, np.arange(20_000))
    found = corrected_mean(sums, 4_000)

    # PPI++ has the labelled rollouts apart from the n others, and there the weight
    # cov(Y, F) / (1 + n / N) / var F; over all rollouts that is a weight of 1 / (1 - n / all)
    ours, others = judge[:4_000], judge[4_000:]
    apart = np.cov(truth[:4_000], ours)[0, 1] / (1 + 4_000 / 16_000) / judge.var(ddof=1)
    assert found.weight == pytest.approx(apart / (1 - 0.2), rel=2e-2)
    rest = truth[:4_000].mean() - found.weight * 0.8 * (ours.mean() - others.mean())
    assert found.mean(sums) == pytest.approx(rest)
    variance = (truth[:4_000] - found.weight * 0.8 * ours).var() / 4_000 + (
        found.weight * 0.8
    ) ** 2 * others.var() / 16_000
    assert found.error() == pytest.approx(np.sqrt(variance), rel=2e-2)


CASES = [
    # questions, samples, labels, accuracy, sensitivity, specificity
    (500, 1, 50, 0.8, 0.95, 0.8),
    (1000, 1, 100, 0.5, 0.9, 0.8),
    (1000, 1, 200, 0.95, 0.98, 0.7),
    (125, 4, 50, 0.6, 0.6, 0.5),
    (250, 4, 100, 0.3, 0.7, 0.95),
    (250, 4, 200, 0.8, 0.95, 0.8),
]


@pytest.mark.parametrize(
    ("questions", "samples", "count", "accuracy", "sensitivity", "specificity"), CASES
)
def test_the_corrected_accuracy_covers_the_truth_and_is_no_wider_than_the_labels(
    questions, samples, count, accuracy, sensitivity, specificity
):
    random = np.random.default_rng([3, questions, samples, count])
    question = np.repeat(np.arange(questions), samples)
    size = questions * samples
    covered, widths, alone, off = [], [], [], []
    for _ in range(1_500):
        easy = np.full(questions, accuracy)
        if samples > 1:  # questions differ: correlation 0.3
            easy = random.beta(accuracy * 7 / 3, (1 - accuracy) * 7 / 3, questions)
        truth = (random.random(size) < easy[question]).astype(float)
        right = random.random(size) < np.where(truth == 1, sensitivity, specificity)
        judge = np.where(right, truth, 1 - truth)
        human = np.full(size, np.nan)
        drawn = random.choice(size, count, replace=False)
        human[drawn] = truth[drawn]

        sums = label_sums(judge, human, question)
        found = corrected_mean(sums, count)
        value = found.mean(sums)
        interval = found.interval(value, samples=size)

        covered.append(interval.low <= accuracy <= interval.high)
        widths.append(found.error())
        alone.append(np.sqrt(truth[drawn].var() / (count - 1)))
        off.append(value - accuracy)

    # 1,500 studies: a standard error of 0.6 points
    assert 0.93 <= np.mean(covered) <= 0.985
    assert abs(np.mean(off)) < 4 * np.std(off) / np.sqrt(1_500)
    # a judge without use costs a degree of freedom, and the samples of a question one cluster
    assert np.mean(widths) < 1.05 * np.mean(alone)
    if sensitivity + specificity > 1.5:
        assert np.mean(widths) < 0.95 * np.mean(alone)


def test_the_judge_alone_misses_the_truth_that_the_corrected_accuracy_covers():
    random = np.random.default_rng(4)
    missed, covered = 0, 0
    for _ in range(200):
        truth = (random.random(800) < 0.6).astype(float)
        judge = np.where(random.random(800) < 0.9, truth, 1.0)  # never calls a right answer wrong
        human = np.where(random.permutation(800) < 100, truth, np.nan)
        sums = label_sums(judge, human, np.arange(800))
        found = corrected_mean(sums, 100)
        interval = found.interval(found.mean(sums), samples=800)
        covered += interval.low <= 0.6 <= interval.high
        error = t_quantile(799) * judge.std(ddof=1) / np.sqrt(800)
        missed += abs(judge.mean() - 0.6) > error

    assert covered >= 186
    assert missed > 100


def test_labels_that_are_not_drawn_at_random_are_noticed():
    frame = rollouts(400)
    judge = np.where(np.arange(400) < 100, 1.0, np.arange(400) % 2)

    first = measured(frame, judge, labels(frame, ["A"] * 90 + ["B"] * 10))
    random = np.random.default_rng(5)
    mixed = measured(frame, random.permutation(judge), labels(frame, ["A"] * 60 + ["B"] * 40))

    assert first["judge_accuracy_corrected"]["settings"]["unlike"] == [1.0, 0.5]
    assert "unlike" not in mixed["judge_accuracy_corrected"]["settings"]


@pytest.mark.parametrize(
    ("scale", "label", "share"),
    [
        (GRADES, "a", 1.0),
        (GRADES, "C", 0.0),
        (GRADES, "wrong", 0.0),
        (GRADES, "1", 1.0),
        (GRADES, "D", None),
        (Points("points", high=7), "3.5", 0.5),
        (Points("points", high=7), "8", None),
        (Points("points", high=7), "right", None),
    ],
)
def test_labels_are_read_in_the_words_of_people_and_of_the_scale(scale, label, share):
    assert scale.read_label(label) == share


@pytest.mark.parametrize("whole", [False, True], ids=["labels at random", "whole clusters"])
def test_the_corrected_accuracy_covers_the_truth_where_questions_come_in_clusters(whole):
    random = np.random.default_rng(7)
    clusters = np.repeat(np.arange(80), random.integers(2, 9, 80))
    size = len(clusters)
    covered, by_questions = [], []
    for _ in range(1_000):
        easy = random.beta(0.6 * 7 / 3, 0.4 * 7 / 3, 80)  # correlation 0.3
        truth = (random.random(size) < easy[clusters]).astype(float)
        judge = np.where(random.random(size) < 0.75, truth, 1 - truth)
        drawn = (
            np.isin(clusters, random.choice(80, 40, replace=False))
            if whole
            else np.isin(np.arange(size), random.choice(size, size // 2, replace=False))
        )
        sums = label_sums(judge, np.where(drawn, truth, np.nan), np.arange(size))
        found = corrected_mean(sums, int(drawn.sum()))
        mean = found.mean(sums)
        interval = found.interval(mean, samples=size, clusters=clusters)
        covered.append(interval.low <= 0.6 <= interval.high)
        interval = found.interval(mean, samples=size)
        by_questions.append(interval.low <= 0.6 <= interval.high)

    assert 0.93 <= np.mean(covered) <= 0.98
    assert np.mean(by_questions) < 0.91


def test_agreement_of_a_judge_counts_clusters_where_there_are_some():
    hits = pl.DataFrame(
        {"question_id": [f"q{k:02}" for k in range(40)], "hit": [k % 20 < 10 for k in range(40)]}
    )
    measure = share_measure("judge_sensitivity", hits, settings={})

    alone, in_clusters = (measure.interval(c) for c in (None, np.repeat(np.arange(4), 10)))

    assert alone == pytest.approx((0.352, 0.648), abs=0.001)
    # 4 clusters whose questions all agree
    assert in_clusters == pytest.approx((0.15, 0.85), abs=0.01)
