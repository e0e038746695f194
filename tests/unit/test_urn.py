"""Urns: the told balls are those of the urn, and Laplace's rule is the best belief."""

import numpy as np
import pytest

from mbt_cli.benchmarks.urn import Urn


def test_a_question_tells_its_balls_and_says_the_best_belief():
    (first, *_) = Urn(seed=3, size=1, drawn=4).generate("train")

    told = first.question.split("drawn: ")[1].split(". Is")[0].split(", ")
    assert len(told) == 4
    assert first.metadata["red"] == told.count("red")
    assert first.metadata["best"] == (told.count("red") + 1) / 6
    assert first.options == ("Yes", "No")
    assert sorted(first.resolution) == [0, 1]
    assert first.answer == "AB"[first.resolution.index(1)]


def test_splits_and_seeds_have_other_urns_and_more_questions_only_add():
    few, more = (list(Urn(size=n).generate("train")) for n in (20, 40))
    others = list(Urn(size=20).generate("test")), list(Urn(seed=1, size=20).generate("train"))

    assert more[:20] == few
    for other in others:
        assert not {q.question_id for q in other} & {q.question_id for q in few}
        assert [q.metadata["red"] for q in other] != [q.metadata["red"] for q in few]


def test_the_best_belief_is_calibrated_and_beats_the_others():
    asked = list(Urn(size=4000).generate("test"))
    outcome = np.array([question.resolution[0] for question in asked])
    best = np.array([question.metadata["best"] for question in asked])
    share = np.array([question.metadata["red"] / 9 for question in asked])

    # of a uniform share, each number of red balls is as likely: 400 questions of each
    for red in range(10):
        own = outcome[best == (red + 1) / 11]
        assert own.mean() == pytest.approx((red + 1) / 11, abs=4 * 0.5 / len(own) ** 0.5)
    brier = [((belief - outcome) ** 2).mean() for belief in (best, share, np.full(4000, 0.5))]
    # mean of p (1 - p) over (r + 1) / 11, r from 0 to 9
    assert brier[0] == pytest.approx(np.mean([r * (11 - r) / 121 for r in range(1, 11)]), abs=0.01)
    assert brier[0] < brier[1] < brier[2]
