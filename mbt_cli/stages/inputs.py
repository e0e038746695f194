"""What stages read: rollouts with their questions, those that `keep` selects, rows by number."""

import polars as pl

from mbt_cli.core.judge_scales import CORRECTNESS
from mbt_cli.core.measures import Verdicts
from mbt_cli.core.rows import replies_without_text
from mbt_cli.core.traces import cut_column, with_answering_text
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Verifier
from mbt_cli.plugins import judge_of
from mbt_cli.stages.base import Keep, LoadedInput, Work

_QUESTION_COLUMNS = (
    "question_id",
    "question",
    "answer",
    "answer_aliases",
    "difficulty",
    "hops",
    "question_type",
)
_VERDICT_TEXTS = ("messages", "reply", "reasoning")


def with_questions(work: Work, rollouts: str = "rollouts") -> pl.DataFrame:
    """Rollouts joined with their questions by id, in the order of the rollouts.

    The question's answer becomes `gold_answer` and `gold_aliases`; `messages` and the documents
    are left out.

    Args:
        work: The running cell, with its input `questions`.
        rollouts: Name of the input with the rollouts.

    Raises:
        StageError: The question of a rollout is missing, or a rollout exists twice.
    """
    return joined_with_questions(work.lazy(rollouts), work.lazy("questions"))


def joined_with_questions(rollouts: pl.LazyFrame, questions: pl.LazyFrame) -> pl.DataFrame:
    """The same for frames of `rows.ROLLOUTS` and `rows.QUESTIONS`."""
    gold = questions.select(_QUESTION_COLUMNS).rename(
        {"answer": "gold_answer", "answer_aliases": "gold_aliases"}
    )
    left = rollouts.drop("messages")
    joined = left.join(gold, on="question_id", how="left", maintain_order="left").collect()
    lost = joined.filter(pl.col("question").is_null())
    if lost.height:
        raise StageError(
            f"{lost.height} rollouts have no question; first: `{lost['question_id'][0]}`"
        )
    twice = joined.filter(pl.struct("question_id", "sample").is_duplicated())
    if twice.height:
        raise StageError(
            f"question `{twice['question_id'][0]}` has sample {twice['sample'][0]} twice"
        )
    return joined


def as_scored(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Rollouts as scores read them, by `replies_without_text`.

    A reply that was truncated while it was thinking has no answer, though rollouts of earlier
    versions may. Imported rollouts keep the answers that they came with.

    Args:
        rollouts: From `joined_with_questions`.
    """
    found = replies_without_text(rollouts)
    is_own = pl.col("request_key").is_not_null()
    is_thinking = cut_column() & (with_answering_text(found)["reply"] == "")
    return found.with_columns(pl.when(~(is_own & is_thinking)).then("answer").alias("answer"))


def kept(
    rollouts: pl.DataFrame,
    keep: Keep | None,
    *,
    verifier: Verifier,
    verdicts: Verdicts | None = None,
) -> pl.DataFrame:
    """The rollouts that `keep` selects, in their order; one without text is never selected.

    `correct` and `wrong` follow the votes of an answer judge if there are verdicts, otherwise the
    verifier. A reply without an answer is wrong.

    Args:
        rollouts: question_id, sample, answer, reply, finish_reason, failure, gold_answer,
            gold_aliases.
        keep: None selects everything, failed rollouts too.
        verifier: The benchmark's own.
        verdicts: Of an answer judge; a rollout without a parsed vote is neither correct nor wrong.
    """
    if keep is None:
        return rollouts
    if keep == "answered":
        wanted = pl.col("answer").fill_null("").str.strip_chars() != ""
        return rollouts.filter(pl.col("failure").is_null(), wanted)
    if keep == "not_truncated":
        return rollouts.filter(pl.col("failure").is_null(), ~cut_column())
    if verdicts is not None:
        share = _right_by_votes(rollouts, verdicts)
    else:
        share = verifier.values(rollouts)
    # a tie counts as neither
    chosen = share > 0.5 if keep == "correct" else share < 0.5
    return rollouts.filter(pl.col("failure").is_null(), chosen.fill_null(False))


def answer_verdicts(work: Work) -> Verdicts | None:
    """The verdicts on the final answers that a cell reads; None if it reads none.

    Raises:
        StageError: The verdicts are not about answers.
    """
    cells = work.inputs.get("verdicts", ())
    return _answer_verdicts(cells[0]) if cells else None


def verdicts_on(work: Work, cell: LoadedInput) -> Verdicts | None:
    """The verdicts that a cell reads on the answers of one of its inputs; None if it reads none.

    Raises:
        StageError: The verdicts are not about answers, or not about this input.
    """
    cells = work.inputs.get("verdicts", ())
    for judged in cells:
        if judged.lineage is not None and cell.address in judged.lineage.inputs:
            return _answer_verdicts(judged)
    if cells:
        raise StageError(f"none of the cells in `verdicts` judges `{cell.address}`")
    return None


def _answer_verdicts(cell: LoadedInput) -> Verdicts:
    judge = judge_of(cell.lineage.spec) if cell.lineage is not None else None
    if judge is None or judge.quantity != CORRECTNESS:
        raise StageError(
            f"`{cell.address}` has no verdicts on answers",
            hint="name a judge stage that grades answers in `verdicts`",
        )
    return Verdicts(cell.rows.drop(_VERDICT_TEXTS, strict=False).collect(), judge.scale)


def _right_by_votes(rollouts: pl.DataFrame, verdicts: Verdicts) -> pl.Series:
    """How right each rollout is by the mean of its parsed votes; null without one."""
    key = ["question_id", "sample"]
    shares = verdicts.rows.group_by(key).agg(verdicts.scale.share().mean().alias("right"))
    return rollouts.select(key).join(shares, on=key, how="left", maintain_order="left")["right"]


_SPREAD = 4
"""A range of rows is read in one piece if it has at most this many times the wanted rows."""


class RowReader:
    """Reads chosen rows of a frame that does not fit into memory.

    Args:
        frame: Lazy rows of one or several Parquet files.
    """

    def __init__(self, frame: pl.LazyFrame) -> None:
        self._frame = frame

    def take(self, numbers: pl.Series) -> pl.DataFrame:
        """Rows by number from 0, in the order of `numbers`, which may repeat."""
        low, high = numbers.min(), numbers.max()
        if not isinstance(low, int) or not isinstance(high, int):
            return self._frame.limit(0).collect()
        if high - low < _SPREAD * len(numbers):
            return self._frame.slice(low, high - low + 1).collect()[numbers - low]
        # scattered: one pass over the whole frame
        wanted = numbers.alias("number").unique().to_frame().cast(pl.get_index_type())
        found = self._frame.with_row_index("number").join(wanted.lazy(), on="number", how="semi")
        order = pl.DataFrame({"number": numbers}).cast(pl.get_index_type())
        part = found.collect(engine="streaming")
        return order.join(part, on="number", how="left", maintain_order="left").drop("number")
