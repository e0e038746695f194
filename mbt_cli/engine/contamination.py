"""Contamination: questions that are both trained and evaluated on, and completions that repeat.

Both are found by joins on hashes, over the finished cells alone. Questions are equal if their texts
are after lower case, without punctuation and articles; completions if their texts are, without the
space around them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mbt_cli.engine.states import States
from mbt_cli.errors import ArtifactError
from mbt_cli.manifest.load import Manifest
from mbt_cli.store.reading import read_rows, require_lineage
from mbt_cli.verifiers.text import normalised

_SHOWN = 3
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
    """

    trained: str
    evaluated: str
    count: int
    of: int
    first: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        some = ", ".join(f"`{a}` is `{b}`" if a != b else f"`{a}`" for a, b in self.first)
        return (
            f"contamination: {self.count:,} of {self.of:,} questions of `{self.evaluated}` also "
            f"stand in `{self.trained}`, such as {some}"
        )


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


def contamination(
    manifest: Manifest, states: States
) -> list[SharedQuestions | RepeatedCompletions]:
    """What the finished cells of a study share between training and evaluation.

    Evaluated on are the questions that checkpoints are asked, and those behind the `validation`
    of a training.
    """
    trained: dict[str, None] = {}
    evaluated: dict[str, None] = {}
    data: dict[str, None] = {}
    for cell in manifest.cells.values():
        inputs = cell.resolution.inputs
        if cell.kind == "train":
            own = inputs.get("data", ())
            data.update(dict.fromkeys(own))
            held = _questions_of(manifest, inputs.get("validation", ()))
            evaluated.update(dict.fromkeys(held))
            asked = () if own else inputs.get("questions", ())
            trained.update(dict.fromkeys((*_questions_of(manifest, own), *asked)))
        elif inputs.get("checkpoints"):
            evaluated.update(dict.fromkeys(_questions_of(manifest, [cell.address])))
    done = {a: states[a].folder for a in manifest.cells if states[a].lineage is not None}
    folders = [{a: done[a] for a in group if a in done} for group in (trained, evaluated)]
    found: list[SharedQuestions | RepeatedCompletions] = []
    found += shared_questions(*folders)
    for address in data:
        if address in done and (repeated := repeated_completions(address, done[address])):
            found.append(repeated)
    return found


def _questions_of(manifest: Manifest, addresses: Sequence[str]) -> Iterator[str]:
    """The questions of rollouts and traces; those of a training are not theirs."""
    for address in addresses:
        cell = manifest.cells[address]
        if cell.kind == "questions":
            yield address
        elif cell.kind != "train":
            yield from _questions_of(manifest, cell.needs)


def shared_questions(
    trained: Mapping[str, Path], evaluated: Mapping[str, Path]
) -> list[SharedQuestions]:
    """Questions that stand on both sides; each side maps addresses of questions to folders."""
    if not trained or not evaluated:
        return []
    read = {a: _texts(folder) for a, folder in {**trained, **evaluated}.items()}
    found = []
    for address in evaluated:
        for other in trained:
            both = read[address].join(
                read[other].rename({"question_id": "other"}), on="text", maintain_order="left"
            )
            both = both.unique("question_id", keep="first", maintain_order=True)
            if both.height:
                first = both.head(_SHOWN).select("question_id", "other").rows()
                of = read[address].height
                found.append(SharedQuestions(other, address, both.height, of, first))
    return found


def _texts(folder: Path) -> pl.DataFrame:
    """`question_id` and the hash of the normalized `text`; empty if the cell is damaged."""
    try:
        rows = read_rows(folder, require_lineage(folder)).select("question_id", "question")
        found = rows.collect()
    except (ArtifactError, pl.exceptions.PolarsError, OSError):  # `mbt show --verify` names it
        return pl.DataFrame(schema={"question_id": pl.String(), "text": pl.UInt64()})
    text = normalised(found["question"])
    kept = found.select("question_id").with_columns(text.hash().alias("text"))
    return kept.filter((text != "").fill_null(value=False))


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
