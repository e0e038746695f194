"""Rollouts meet the solutions of their questions: by key, never by the order of rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from mbt_cli.core.traces import trace_column
from mbt_cli.errors import StageError
from mbt_cli.stages.base import Keep
from mbt_cli.stages.keeping import kept
from mbt_cli.stages.work import Work

_KEY = ["question_id", "sample"]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which rollout is rewritten with which solution; texts stay on the disk.

    Args:
        paired: question_id, sample, solution_address, solution_id, and the numbers of the rows
            that hold the texts: rollout_row, question_row, solution_row. A question's rollouts
            stand together, ordered by sample.
        unpaired: question_id, sample, problem: kept rollouts that cannot be rewritten.
        counts: Steps of the funnel up to here.
    """

    paired: pl.DataFrame
    unpaired: pl.DataFrame
    counts: Mapping[str, int]


def pair_rollouts(work: Work, keep: Keep | None) -> Pairs:
    """Rollouts that are kept, each with a solution of its own question.

    A solution made for the same sample is taken first, else the question's first by number; a
    solution that failed is never taken.

    Raises:
        StageError: A rollout has no question or stands twice, or no rollout at all has a solution.
    """
    rollouts = _with_gold(work)
    benchmark = work.resolution.benchmark
    verdicts = work.rows("verdicts") if work.inputs.get("verdicts") else None
    chosen = kept(rollouts, keep, benchmark=benchmark.kind if benchmark else "", verdicts=verdicts)
    solutions = _solutions(work)
    met = _meet(chosen, solutions).with_columns(_problem().alias("problem"))
    met = met.sort(pl.col("rollout_row").min().over("question_id"), "sample")
    paired = met.filter(pl.col("problem").is_null())
    if paired.is_empty() and (met["problem"] == "no_solution").any():
        raise StageError(
            f"none of {met.height} rollouts has a solution in {_addresses(work)}: no question id "
            "is in both",
            hint="`solutions` must be made from the same benchmark and split",
        )
    counts = {
        "rollouts": rollouts.height,
        "kept": chosen.height,
        "with a solution": paired.height,
    }
    return Pairs(paired, met.filter(pl.col("problem").is_not_null()), counts)


def _with_gold(work: Work) -> pl.DataFrame:
    """The rollouts' light columns, with what `keep` needs of their questions."""
    rollouts = (
        work.lazy("rollouts")
        .select(*_KEY, "answer", "finish_reason", "failure", (trace_column() != "").alias("told"))
        .with_row_index("rollout_row")
    )
    questions = (
        work.lazy("questions")
        .select(
            "question_id",
            pl.col("answer").alias("gold_answer"),
            pl.col("answer_aliases").alias("gold_aliases"),
        )
        .with_row_index("question_row")
    )
    joined = rollouts.join(questions, on="question_id", how="left", maintain_order="left")
    found = joined.collect(engine="streaming").sort("rollout_row")
    lost = found.filter(pl.col("question_row").is_null())
    if lost.height:
        first = lost["question_id"][0]
        raise StageError(f"{lost.height} rollouts have no question, the first is `{first}`")
    twice = found.filter(pl.struct(_KEY).is_duplicated())
    if twice.height:
        raise StageError(
            f"question `{twice['question_id'][0]}` has sample {twice['sample'][0]} twice"
        )
    return found


def _solutions(work: Work) -> pl.DataFrame:
    """Every solution's keys, ordered so that the first of a question is the one to take."""
    cells = [
        cell.rows.select(
            *_KEY,
            pl.col("trace_id").alias("solution_id"),
            pl.col("failure").alias("solution_failure"),
            # decides between two solutions under one key, whatever the order of the rows
            pl.col("trace").hash().alias("text"),
            pl.col("trace").is_not_null().alias("has_text"),
        ).with_columns(pl.lit(cell.address).alias("solution_address"))
        for cell in work.inputs["solutions"]
    ]
    numbered = pl.concat(cells).with_row_index("solution_row").collect(engine="streaming")
    return numbered.sort("question_id", "solution_address", "sample", "solution_id", "text")


def _meet(rollouts: pl.DataFrame, solutions: pl.DataFrame) -> pl.DataFrame:
    good = pl.col("solution_failure").is_null() & pl.col("has_text")
    wanted = ["solution_row", "solution_address", "solution_id"]
    usable = solutions.filter(good).select(*_KEY, *wanted)
    same_sample = usable.unique(_KEY, keep="first", maintain_order=True)
    any_sample = usable.unique("question_id", keep="first", maintain_order=True).drop("sample")
    failed = solutions.filter(~good).select("question_id", "solution_failure")
    first_failed = failed.unique("question_id", keep="first", maintain_order=True)
    met = rollouts.join(same_sample, on=_KEY, how="left", maintain_order="left")
    met = met.join(any_sample, on="question_id", how="left", suffix="_other", maintain_order="left")
    met = met.join(first_failed, on="question_id", how="left", maintain_order="left")
    # all three from the same solution: they are null together
    return met.with_columns(
        pl.when(pl.col("solution_row").is_null())
        .then(pl.col(f"{name}_other"))
        .otherwise(pl.col(name))
        .alias(name)
        for name in wanted
    ).select(
        *(*_KEY, "rollout_row", "question_row", *wanted),
        *("failure", "told", "solution_failure"),
    )


def _problem() -> pl.Expr:
    """Why a rollout cannot be rewritten; null when it can."""
    failed = pl.col("solution_failure").fill_null("it has no text")
    return (
        pl.when(pl.col("failure").is_not_null())
        .then(pl.concat_str(pl.lit("rollout_failed: "), pl.col("failure")))
        .when(~pl.col("told"))
        .then(pl.lit("rollout_failed: it has no trace"))
        .when(pl.col("solution_row").is_not_null())
        .then(None)
        .when(pl.col("solution_failure").is_not_null())
        .then(pl.concat_str(pl.lit("solution_failed: "), failed))
        .otherwise(pl.lit("no_solution"))
    )


def _addresses(work: Work) -> str:
    return ", ".join(f"`{cell.address}`" for cell in work.inputs["solutions"])
