"""Human verdicts on answers, from a file or from the metadata of the questions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from mbt_cli.core.judge_scales import Scale
from mbt_cli.core.names import nearest
from mbt_cli.errors import MbtError, StageError, UsageError
from mbt_cli.store.records import read_frame

METADATA = "metadata."
"""Begin of a reference to the metadata of the questions."""
_KEYS = ("question_id", "sample")
_COLUMNS = (*_KEYS, "label")
_OF_QUESTIONS = ("benchmark", "split")
"""Axes that decide which questions there are."""


def label_file(human: str | None) -> Path | None:
    """The file that `human` names; None if it names metadata."""
    if human is None or human.startswith(METADATA):
        return None
    return Path(human).expanduser()


def read_labels(path: Path) -> pl.DataFrame:
    """The labelled rows of a file: all columns as text, `sample` a number; empty labels left out.

    Raises:
        UsageError: The file is missing or cannot be read, a column is missing, a sample is not a
            whole number, or no label is filled in.
    """
    if not path.is_file():
        raise UsageError(f"no file `{path}` (relative to {Path.cwd()})")
    frame = read_frame(path, "labels", text=True, error=UsageError)
    for name in _COLUMNS:
        if name not in frame.columns:
            raise UsageError(
                f"`{path}` has no column `{name}`; {nearest(name, frame.columns)} "
                f"(needed are {', '.join(_COLUMNS)})"
            )
    rows = frame.with_row_index("line", offset=1).with_columns(
        pl.exclude("line").cast(pl.String).str.strip_chars()
    )
    rows = rows.filter(pl.col("label").fill_null("") != "")
    if rows.is_empty():
        raise UsageError(f"the column `label` of `{path}` is empty")
    sample = pl.col("sample").cast(pl.Int64, strict=False)
    wrong = rows.filter(sample.is_null() | (sample < 0) | pl.col("question_id").is_null())
    if wrong.height:
        line, named = wrong["line"][0], wrong["sample"][0]
        what = f"`sample` is `{named}`, not a whole number" if wrong["question_id"][0] else "no id"
        raise UsageError(f"`{path}`, row {line}: {what}")
    return rows.with_columns(sample).drop("line")


def label_problems(
    human: str,
    cells: Sequence[Mapping[str, str]],
    scales: Collection[Scale],
    known: Mapping[str, Collection[str]],
) -> Iterator[str]:
    """What is wrong with the labels of a score stage.

    Args:
        human: The setting of the stage.
        cells: Axes of each cell of the stage.
        scales: Scales of the judges of answers that the stage reads.
        known: Axis to the values that it has in the study.
    """
    axes = [axis for axis in cells[0] if len({cell.get(axis) for cell in cells}) > 1]
    path = label_file(human)
    if path is None:
        if others := [axis for axis in axes if axis not in _OF_QUESTIONS]:
            yield (
                f"`{human}` is one verdict per question, and the cells of this stage differ in "
                f"{_listed(others)}: name a file with the columns {_listed([*_COLUMNS, *others])}"
            )
        return
    try:
        rows = read_labels(path)
    except MbtError as error:
        yield error.message
        return
    if missing := [axis for axis in axes if axis not in rows.columns]:
        yield (
            f"`{path}` has no column {_listed(missing)}, in which the cells of this stage differ: "
            "add it, so that a label belongs to one rollout"
        )
        return
    own = [axis for axis in cells[0] if axis in rows.columns]
    repeated = rows.filter(pl.struct(*own, *_KEYS).is_duplicated())
    if repeated.height:
        first = repeated.row(0, named=True)
        where = ", ".join(f"{name} `{first[name]}`" for name in (*_KEYS, *own))
        yield f"`{path}` has several labels for {where}: keep one"
    elif not any(labels_of_cell(rows, cell).height for cell in cells):
        wanted = ", ".join(f"{axis} `{cells[0][axis]}`" for axis in own)
        yield f"no label in `{path}` is for a cell of this stage, such as {wanted}"
    for axis in own:  # such labels would be left out of every cell
        for value, count in rows[axis].fill_null("").value_counts(sort=True).iter_rows():
            if value not in known[axis]:
                labels = "1 label" if count == 1 else f"{count:,} labels"
                what = f"no {axis} `{value}` in the study; {nearest(value, known[axis])}"
                yield f"`{path}`: {what} ({labels})"
    for scale in scales:
        for label in rows["label"].unique(maintain_order=True):
            if scale.read_label(label) is None:
                yield f"`{path}`: the label `{label}` is none of {scale.label_words()}"
                break


def labels_of_cell(rows: pl.DataFrame, axes: Mapping[str, str]) -> pl.DataFrame:
    """The labels of one cell: `question_id`, `sample`, `label`.

    Args:
        rows: As `read_labels` gives them.
        axes: Axes of the cell; those that the file has as columns choose its rows.
    """
    own = [pl.col(axis) == value for axis, value in axes.items() if axis in rows.columns]
    return rows.filter(*own).select(_COLUMNS)


def labels_of_questions(
    human: str, questions: pl.LazyFrame, rollouts: pl.DataFrame
) -> pl.DataFrame:
    """The labels in the metadata of questions, each for the one rollout of its question.

    Args:
        human: The setting, such as `metadata.human`.
        questions: `question_id` and `metadata`.
        rollouts: `question_id` and `sample`.

    Raises:
        StageError: No question has the key, or a labelled question has several rollouts.
    """
    path = f"$.{human.removeprefix(METADATA)}"
    found = questions.select(
        "question_id", label=pl.col("metadata").str.json_path_match(path)
    ).collect()
    labels = found.filter(pl.col("label").fill_null("") != "")
    if labels.is_empty():
        raise StageError(f"no question has `{human}`", hint="correct `human` of the score stage")
    both = rollouts.select(_KEYS).join(labels, on="question_id", maintain_order="left")
    several = both.filter(pl.col("question_id").is_duplicated())
    if several.height:
        raise StageError(
            f"question `{several['question_id'][0]}` has several rollouts and one verdict in "
            f"`{human}`",
            hint=f"name a file with the columns {_listed(_COLUMNS)} in `human`",
        )
    return both


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
