"""Which rollouts a stage takes: `keep`."""

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
