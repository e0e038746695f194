"""Contamination: questions that are both trained and evaluated on, and completions that repeat.

Both are found by joins on hashes, over the finished cells alone. Questions are equal if their words
and mathematical signs are, in lower case and without articles; completions if their texts are,
without the space around them.

Two other questions are near if they share most of what sets them apart: at least half of the
weight of the runs of three words of the longer one, where a run in k of N questions weighs
log(N / k). A run in more than 100 of the questions that are trained on is taken for a template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mbt_cli.errors import ArtifactError
from mbt_cli.store.reading import read_rows, require_lineage

_SHOWN = 3
_WORDS = r"\w+|[-+*/^=<>]"
_ARTICLES = ("a", "an", "the")
_RUN = 3
_NEAR = 0.5
_TEMPLATE = 100
_TEXTS = ("trace", "reply")
"""Columns of a completion, the first that the rows have."""


@dataclass(frozen=True, slots=True)
class SharedQuestions:
    """Questions of one cell that stand in another.

    Args:
        trained: Address of the questions that are trained on.
        evaluated: Address of those that are evaluated on.
        count: Questions of `evaluated` that stand in `trained`.
        of: All questions of `evaluated`.
        first: Ids of the first ones, in `evaluated` and `trained`.
        near: Other questions of `evaluated` that are near one of `trained`.
        nearest: Ids of the nearest ones.
    """

    trained: str
    evaluated: str
    count: int
    of: int
    first: Sequence[tuple[str, str]]
    near: int = 0
    nearest: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        some = ", ".join(f"`{a}` is `{b}`" if a != b else f"`{a}`" for a, b in self.first)
        close = ", ".join(f"`{a}` is near `{b}`" for a, b in self.nearest)
        parts = [f"{self.count:,} of {self.of:,} questions of `{self.evaluated}` also stand"]
        if self.count:
            parts[0] += f" in `{self.trained}`, such as {some}"
            if self.near:
                parts.append(f"{self.near:,} more are near one there, such as {close}")
        else:
            parts = [
                f"{self.near:,} of {self.of:,} questions of `{self.evaluated}` are near one of "
                f"`{self.trained}`, such as {close}"
            ]
        return f"contamination: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class RepeatedCompletions:
    """Equal completions of different questions in one cell.

    Args:
        address: The cell.
        texts: Completions that stand under several questions.
        rows: Rows that have one of them.
        of: All rows with a completion.
        first: Ids of questions that share the most frequent one.
    """

    address: str
    texts: int
    rows: int
    of: int
    first: Sequence[str]

    def __str__(self) -> str:
        some = ", ".join(f"`{name}`" for name in self.first)
        return (
            f"contamination: {self.rows:,} of {self.of:,} rows of `{self.address}` have a "
            f"completion that stands under another question too ({self.texts:,} texts), such as "
            f"{some}"
        )


def shared_questions(
    trained: Mapping[str, Path], evaluated: Mapping[str, Path]
) -> list[SharedQuestions]:
    """Questions that stand on both sides; each side maps addresses of questions to folders."""
    if not trained or not evaluated:
        return []
    read = {a: _words(folder) for a, folder in {**trained, **evaluated}.items()}
    runs = {address: _runs(words) for address, words in read.items()}
    found = []
    for address in evaluated:
        for other in trained:
            own, there = read[address], read[other]
            both = own.select("question_id", "text").join(
                there.select("text", other="question_id"), on="text", maintain_order="left"
            )
            both = both.unique("question_id", keep="first", maintain_order=True)
            near = _near(runs[address], runs[other]) if address != other else _NONE_NEAR
            near = near.join(both, on="question_id", how="anti", maintain_order="left")
            if both.height or near.height:
                first, nearest = (
                    part.head(_SHOWN).select("question_id", "other").rows() for part in (both, near)
                )
                found.append(
                    SharedQuestions(
                        other, address, both.height, own.height, first, near.height, nearest
                    )
                )
    return found


def _words(folder: Path) -> pl.DataFrame:
    """`question_id`, `words` and `text`, their hash; empty if the cell is damaged."""
    words = pl.col("question").str.to_lowercase().str.extract_all(_WORDS)
    kept = words.list.eval(pl.element().filter(~pl.element().is_in(_ARTICLES)))
    try:
        rows = read_rows(folder, require_lineage(folder))
        found = rows.select("question_id", kept.alias("words")).collect()
    except (ArtifactError, pl.exceptions.PolarsError, OSError):  # `mbt show --verify` names it
        found = pl.DataFrame(schema={"question_id": pl.String(), "words": pl.List(pl.String())})
    said = found.filter((pl.col("words").list.len() > 0).fill_null(value=False))
    return said.with_columns(text=pl.col("words").list.join(" ").hash())


def _runs(questions: pl.DataFrame) -> pl.DataFrame:
    """`question_id` and the hash of each run of words in it, each once."""
    words = questions.select("question_id", word="words").explode("word")
    following = [pl.col("word").shift(-k).over("question_id").alias(str(k)) for k in range(1, _RUN)]
    runs = words.with_columns(following).drop_nulls()
    return runs.select("question_id", run=pl.struct(pl.exclude("question_id")).hash()).unique()


_NONE_NEAR = pl.DataFrame(schema={"question_id": pl.String(), "other": pl.String()})


def _near(evaluated: pl.DataFrame, trained: pl.DataFrame) -> pl.DataFrame:
    """`question_id` of each question that is near another, and the nearest, the nearest first."""
    questions = sum(side["question_id"].n_unique() for side in (evaluated, trained))
    weights = (
        pl.concat([evaluated, trained])
        .group_by("run")
        .agg(weight=(questions / pl.len()).log().clip(lower_bound=0.0))
    )
    own, there = (side.join(weights, on="run") for side in (evaluated, trained))
    whole, whole_there = (
        side.group_by("question_id").agg(pl.col("weight").sum().alias(name))
        for side, name in ((own, "whole"), (there, "whole_there"))
    )
    told = there.filter(pl.len().over("run") <= _TEMPLATE)
    shared = (
        own.join(told.select("run", other="question_id"), on="run")
        .group_by("question_id", "other")
        .agg(pl.col("weight").sum())
        .join(whole, on="question_id")
        .join(whole_there, left_on="other", right_on="question_id")
        .with_columns(share=pl.col("weight") / pl.max_horizontal("whole", "whole_there"))
        .filter(pl.col("share") >= _NEAR)
        .sort(["share", "question_id", "other"], descending=[True, False, False])
    )
    return shared.unique("question_id", keep="first", maintain_order=True).select(
        "question_id", "other"
    )


def repeated_completions(address: str, folder: Path) -> RepeatedCompletions | None:
    """Completions of a cell that stand under several questions; None if there are none."""
    try:
        rows = read_rows(folder, require_lineage(folder))
        names = rows.collect_schema().names()
        column = next((name for name in _TEXTS if name in names), None)
        if column is None or not {"question_id", "failure"} <= set(names):
            return None
        text = pl.col(column).str.strip_chars()
        found = (
            rows.filter(pl.col("failure").is_null() & (text != ""))
            .select("question_id", text.hash().alias("text"))
            .collect(engine="streaming")
        )
    except (ArtifactError, pl.exceptions.PolarsError, OSError):  # `mbt show --verify` names it
        return None
    groups = (
        found.group_by("text")
        .agg(
            pl.col("question_id").unique().sort().head(_SHOWN).alias("first"),
            pl.col("question_id").n_unique().alias("questions"),
            pl.len().alias("rows"),
        )
        .filter(pl.col("questions") > 1)
        .sort(["rows", "text"], descending=[True, False])
    )
    if groups.is_empty():
        return None
    first = groups["first"][0].to_list()
    return RepeatedCompletions(
        address, groups.height, int(groups["rows"].sum()), found.height, first
    )
