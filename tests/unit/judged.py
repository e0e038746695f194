"""Verdicts for scores, by the judge that gives them."""

from mbt_cli.core.measures import Verdicts


def judged(frames):
    """`ScoreInputs.verdicts` from verdict rows by class of the judge."""
    return {judge.quantity: Verdicts(frame, judge.scale) for judge, frame in frames.items()}
