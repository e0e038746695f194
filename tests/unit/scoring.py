"""Inputs and outputs of scores as the tests use them."""

from mbt_cli.core.measures import Verdicts
from mbt_cli.scores.summaries import summarise_all


def judged(frames):
    """`ScoreInputs.verdicts` from verdict rows by class of the judge."""
    return {judge.quantity: Verdicts(frame, judge.scale) for judge, frame in frames.items()}


def summarise(measure, *, baseline=None, resamples, seed):
    """The summary row of one measure."""
    return summarise_all([(measure, baseline)], resamples=resamples, seed=seed)[0]
