"""200,000 beliefs scored by mbt, and by a loop over pandas groups with statsmodels' slope.

    chrt -i 0 nice -n 19 python tests/bench/beliefs.py

20,000 questions with 2 samples, 5 beliefs each. Both sides get the same rows and compute Brier, log
loss, accuracy, calibration with 10 bins and the slope of change on belief; the numbers are compared
before the times are. mbt's times have no intervals (which the loop does not have either); what the
summaries with 1,000 resamples add is printed beside.
"""

import sys
import time
from collections.abc import Mapping

import numpy as np
import pandas as pd
import polars as pl
from statsmodels.regression.linear_model import OLS
from statsmodels.tools import add_constant

from mbt_cli.core.judge_scales import BELIEF, Points
from mbt_cli.core.measures import ScoreInputs, Verdicts
from mbt_cli.scores.beliefs import BeliefAccuracy, Brier, Calibration, LogLoss
from mbt_cli.scores.martingale import Martingale
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.verifiers.option import OptionVerifier

QUESTIONS, SAMPLES, STEPS = 20_000, 2, 5
SCORES = (Brier(), LogLoss(), BeliefAccuracy(), Calibration(), Martingale())


def made() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rollouts and verdicts of beliefs that wander from the prior to the outcome."""
    draws = np.random.default_rng(0)
    outcome = draws.random(QUESTIONS) < 0.4
    rollouts = QUESTIONS * SAMPLES
    question = np.repeat(np.arange(QUESTIONS), SAMPLES)
    moves = draws.normal(0, 0.08, (rollouts, STEPS)) + 0.02 * (outcome[question][:, None] - 0.4)
    beliefs = np.clip(draws.beta(2, 3, (rollouts, 1)) + moves.cumsum(axis=1), 0.01, 0.99)
    ids = [f"q{number:05}" for number in question]
    samples = np.tile(np.arange(SAMPLES), QUESTIONS)
    frame = pl.DataFrame(
        {
            "question_id": ids,
            "sample": samples,
            "options": [["Yes", "No"]] * rollouts,
            "resolution": [[float(outcome[q]), float(not outcome[q])] for q in question],
        }
    ).with_columns(failure=pl.lit(None, pl.String), no_text=pl.lit(None, pl.String))
    p = beliefs.ravel()
    verdicts = pl.DataFrame(
        {
            "question_id": np.repeat(ids, STEPS).tolist(),
            "sample": np.repeat(samples, STEPS),
            "vote": np.zeros(len(p), np.int64),
            "step": np.tile(np.arange(STEPS), rollouts),
            "probabilities": np.column_stack([p, 1 - p]).tolist(),
        },
        schema_overrides={"probabilities": pl.List(pl.Float64)},
    ).with_columns(failure=pl.lit(None, pl.String))
    return frame, verdicts


def by_loop(rollouts: pd.DataFrame, verdicts: pd.DataFrame) -> Mapping[str, float]:
    """The numbers by a loop over the rollouts, as scripts of one study have it."""
    outcome = {(r.question_id, r.sample): r.resolution[0] for r in rollouts.itertuples()}
    rows = []
    for key, group in verdicts.groupby(["question_id", "sample"], sort=False):
        ordered = group.sort_values("step")
        p = [probabilities[0] for probabilities in ordered["probabilities"]]
        o, last = outcome[key], p[-1]
        rows.append(
            {
                "question_id": key[0],
                "brier": (last - o) ** 2,
                "log_loss": -(o * np.log(last) + (1 - o) * np.log(1 - last)),
                "belief_accuracy": float((last > 0.5) == bool(o)),
                "p": last,
                "o": o,
                "b": p[0],
                "d": last - p[0],
            }
        )
    frame = pd.DataFrame(rows)
    found = frame.groupby("question_id")[["brier", "log_loss", "belief_accuracy"]].mean().mean()
    edges = np.linspace(0, 1, 11)
    bins = pd.cut(frame["p"], edges, include_lowest=True)
    ece = sum(
        len(part) / len(frame) * abs(part["p"].mean() - part["o"].mean())
        for _, part in frame.groupby(bins, observed=True)
    )
    slope = OLS(frame["d"].to_numpy(), add_constant(frame["b"].to_numpy())).fit().params[1]
    return {**found.to_dict(), "calibration_ece": float(ece), "martingale": float(slope)}


def by_mbt(rollouts: pl.DataFrame, verdicts: pl.DataFrame, resamples: int) -> Mapping[str, float]:
    """The same numbers by mbt's scores."""
    given = {BELIEF: Verdicts(verdicts, Points("belief"))}
    inputs = ScoreInputs(rollouts, OptionVerifier(), given)
    measures = [(measure, None) for score in SCORES for measure in score.measure(inputs)]
    if resamples:
        rows = summarise_all(measures, resamples=resamples, seed=0)
        return {row["metric"]: row["value"] for row in rows}
    found = {}
    for measure, _ in measures:
        columns = measure.questions.select(pl.exclude("question_id", "n", "failed")).mean()
        means = {name: np.asarray(columns[name].to_numpy()) for name in columns.columns}
        value = measure.estimate(means) if measure.estimate else means["value"]
        found[measure.metric] = float(np.asarray(value).ravel()[0])
    return found


def main() -> None:
    rollouts, verdicts = made()
    started = time.perf_counter()
    loop = by_loop(rollouts.to_pandas(), verdicts.to_pandas())
    of_loop = time.perf_counter() - started
    times = []
    for _ in range(3):
        started = time.perf_counter()
        own = by_mbt(rollouts, verdicts, 0)
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    by_mbt(rollouts, verdicts, 1_000)
    whole = time.perf_counter() - started
    for name, value in loop.items():
        if abs(own[name] - value) > 1e-9:
            sys.exit(f"{name} is {own[name]} by mbt and {value} by the loop")
    best = min(times)
    sys.stdout.write(
        f"{verdicts.height:,} beliefs: loop {of_loop:.2f} s, mbt {best:.2f} s "
        f"({of_loop / best:.0f} times as fast); with 1,000 resamples {whole:.2f} s\n"
    )


if __name__ == "__main__":
    main()
