"""What stages read: rollouts with their questions, those that `keep` selects, rows by number."""

from collections.abc import Iterator, Mapping

import orjson
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import CORRECTNESS
from mbt_cli.core.measures import CLUSTER, QuestionClusters, Verdicts
from mbt_cli.core.names import nearest
from mbt_cli.core.rows import replies_without_text
from mbt_cli.core.traces import cut_column, with_answering_text
from mbt_cli.errors import StageError, UsageError
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


METADATA = "metadata."
"""Before the key of a record's other fields in the name of a column of questions."""
CLUSTER_COLUMNS = ("context", "question_type", "hops", "difficulty", "answer")
"""Columns of questions, besides the metadata, whose equal values can make a cluster."""


def question_clusters(
    questions: pl.LazyFrame, column: str, asked: pl.Series, where: str
) -> QuestionClusters:
    """The clusters of questions: those with equal values of a column.

    Args:
        questions: `rows.QUESTIONS`.
        column: One of `CLUSTER_COLUMNS`, or `metadata.KEY`, where KEY may lead into tables.
        asked: Ids of the questions that need a cluster.
        where: The benchmark and split, for the message.

    Raises:
        UsageError: A question has no value.
    """
    name = "metadata" if column.startswith(METADATA) else column
    ids = asked.unique().alias("question_id").to_frame().lazy()
    found = questions.select("question_id", name).join(ids, on="question_id", how="semi").collect()
    if name == "metadata":
        records = [dict(_leaves(orjson.loads(text or "{}"))) for text in found["metadata"]]
        key = column.removeprefix(METADATA)
        values = [record.get(key) for record in records]
        if all(value is None for value in values):
            known = {f"{METADATA}{other}" for record in records for other in record}
            raise UsageError(
                f"`cluster`: no question of `{where}` has `{column}`; "
                f"{nearest(column, {*known, *CLUSTER_COLUMNS})}"
            )
        names = pl.Series(CLUSTER, values, pl.String())
    elif name == "context":
        # documents in another order are the same documents
        names = found["context"].list.sort().hash().cast(pl.String())
        names = pl.select(pl.when(found["context"].list.len() > 0).then(names)).to_series()
    else:
        names = found[name].cast(pl.String())
    lacking = found.filter(names.is_null() | (names == ""))["question_id"].sort()
    if len(lacking):
        raise UsageError(
            f"`cluster`: {len(lacking):,} of {found.height:,} questions of `{where}` have no "
            f"`{column}`, such as `{lacking[0]}`",
            hint="give each question one in the data (its own id for one that stands alone), or "
            "take another column",
        )
    return QuestionClusters(column, found.select("question_id", names.alias(CLUSTER)))


def _leaves(record: Mapping[str, Json], path: str = "") -> Iterator[tuple[str, str]]:
    """Key paths and texts of the values of a record; empty values have none."""
    for key, value in record.items():
        at = f"{path}.{key}" if path else key
        if value is None or value == "":
            continue
        yield at, value if isinstance(value, str) else orjson.dumps(value).decode()
        if isinstance(value, Mapping):
            yield from _leaves(value, at)


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
