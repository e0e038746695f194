"""Which rows of an input are read: `keep` on rollouts, and the first samples and traces."""

import polars as pl

from mbt_cli.core.answer_frames import answer_metrics
from mbt_cli.core.traces import cut_column
from mbt_cli.stages.base import Keep

_RIGHT = "A"


def kept(
    rollouts: pl.DataFrame,
    keep: Keep | None,
    *,
    benchmark: str,
    verdicts: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """The rollouts that `keep` lets through, in their order; a failed one never is.

    `correct` and `wrong` go by exact match with the gold answer or an alias, or by the votes of
    `answer_match` where there are verdicts. A reply without an answer is wrong.

    Args:
        rollouts: question_id, sample, answer, finish_reason, failure, gold_answer, gold_aliases.
        keep: None lets everything through, failed rollouts too.
        benchmark: Kind of the benchmark, for `answer_metrics`.
        verdicts: question_id, sample and grade, one row a vote; a rollout without a readable
            vote is neither correct nor wrong.
    """
    if keep is None:
        return rollouts
    if keep == "answered":
        wanted = pl.col("answer").fill_null("").str.strip_chars() != ""
        return rollouts.filter(pl.col("failure").is_null(), wanted)
    if keep == "not_truncated":
        return rollouts.filter(pl.col("failure").is_null(), ~cut_column())
    share = _right_by_votes(rollouts, verdicts) if verdicts is not None else None
    if share is None:
        share = answer_metrics(rollouts, benchmark)["exact_match"]
    # half of the votes is no majority, so it counts as neither
    chosen = share > 0.5 if keep == "correct" else share < 0.5
    return rollouts.filter(pl.col("failure").is_null(), chosen.fill_null(False))


def _right_by_votes(rollouts: pl.DataFrame, verdicts: pl.DataFrame) -> pl.Series:
    """Share of each rollout's readable votes that call it right; null where there is none."""
    shares = verdicts.group_by("question_id", "sample").agg(
        (pl.col("grade") == _RIGHT).mean().alias("right")
    )
    keys = rollouts.select("question_id", "sample")
    return keys.join(
        shares, on=["question_id", "sample"], how="left", maintain_order="left"
    ).to_series(2)


def usable_traces(
    traces: pl.LazyFrame, *, max_samples: int | None = None, max_traces: int | None = None
) -> pl.LazyFrame:
    """Traces that passed everything, the lowest numbers of each question first.

    Args:
        traces: `rows.TRACES`.
        max_samples: Rollouts per question at most, of those that have a usable trace.
        max_traces: Traces per rollout at most.

    Returns:
        Ordered by question_id, sample, trace_id, so the order of the input never matters.
    """
    order = ["question_id", "sample", "trace_id"]
    usable = traces.filter(pl.col("failure").is_null(), pl.col("trace").is_not_null()).sort(order)
    if max_samples is not None:
        rank = pl.col("sample").rank("dense").over("question_id")
        usable = usable.filter(rank <= max_samples)
    if max_traces is not None:
        number = pl.int_range(pl.len()).over("question_id", "sample")
        usable = usable.filter(number < max_traces)
    return usable
