"""Joins by key that several stages need."""

import polars as pl

from mbt_cli.errors import StageError
from mbt_cli.stages.work import Work

_QUESTION_COLUMNS = (
    "question_id",
    "question",
    "answer",
    "answer_aliases",
    "difficulty",
    "hops",
    "question_type",
)


def with_questions(work: Work, rollouts: str = "rollouts") -> pl.DataFrame:
    """Rollouts joined with their questions by id, in the rollouts' order.

    The question's own answer comes as `gold_answer` and `gold_aliases`; `messages` and the
    documents stay behind.

    Args:
        work: The running cell; its input `questions` is joined.
        rollouts: Name of the input that holds the rollouts.

    Raises:
        StageError: A rollout's question is not among the questions, or a rollout stands twice.
    """
    return joined_with_questions(work.lazy(rollouts), work.lazy("questions"))


def joined_with_questions(rollouts: pl.LazyFrame, questions: pl.LazyFrame) -> pl.DataFrame:
    """The same for frames: `rows.ROLLOUTS` and `rows.QUESTIONS`."""
    gold = questions.select(_QUESTION_COLUMNS).rename(
        {"answer": "gold_answer", "answer_aliases": "gold_aliases"}
    )
    left = rollouts.drop("messages")
    joined = left.join(gold, on="question_id", how="left", maintain_order="left").collect()
    lost = joined.filter(pl.col("question").is_null())
    if lost.height:
        raise StageError(
            f"{lost.height} rollouts have no question, the first is `{lost['question_id'][0]}`"
        )
    twice = joined.filter(pl.struct("question_id", "sample").is_duplicated())
    if twice.height:
        raise StageError(
            f"question `{twice['question_id'][0]}` has sample {twice['sample'][0]} twice"
        )
    return joined
