"""Rollouts with their questions and verdicts, batch by batch, for people who read traces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.addresses import axes_of
from mbt_cli.core.answer_frames import answer_metrics
from mbt_cli.core.math_answers import same_form, same_number
from mbt_cli.core.math_match import is_right
from mbt_cli.core.page_traces import signs
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import read_rows
from mbt_cli.store.upstream import Upstream, upstream

_BATCH_ROWS = 2_000
_KEY = ["question_id", "sample"]
_UNSHOWN = tuple(name for name in rows.REPLY if name not in ("reply", "failure"))


@dataclass(frozen=True, slots=True)
class TraceCell:
    """A rollout cell with what belongs to it.

    Args:
        judged: Judge cells that gave verdicts on it.
    """

    study_folder: Path
    rollouts: Lineage
    questions: Lineage
    judged: Sequence[Lineage] = ()

    @property
    def judges(self) -> list[str]:
        """Name of the judge of each cell in `judged`."""
        return [axes_of(cell.address)["judge"] for cell in self.judged]

    def folder(self, cell: Lineage) -> Path:
        """Where a cell of the study is."""
        return self.study_folder / cell.address


@dataclass(frozen=True, slots=True)
class Trace:
    """One rollout.

    Args:
        row: The rollout without its messages, with `position` of its question.
        verdicts: Number of the judge cell to verdict rows, one a vote.
        signs: `page_traces.SIGNS` as bits.
    """

    row: Mapping[str, Any]
    signs: int
    verdicts: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


def trace_cells(study_folder: Path, found: Upstream) -> list[TraceCell]:
    """Every rollout cell among `found` whose questions are there, by address."""
    judged: dict[str, list[Lineage]] = {}
    for cell in found.of_kind("judge"):
        for rollouts in found.inputs(cell, "rollout"):
            judged.setdefault(rollouts.address, []).append(cell)
    return [
        TraceCell(study_folder, cell, questions, judged.get(cell.address, []))
        for cell in found.of_kind("rollout")
        for questions in found.inputs(cell, "questions")[:1]
    ]


def trace_cells_below(study_folder: Path, addresses: Sequence[str]) -> list[TraceCell]:
    """The same for everything that some finished cells stand on."""
    return trace_cells(study_folder, upstream(study_folder, addresses))


def read_question_rows(cell: TraceCell) -> pl.LazyFrame:
    """`rows.QUESTIONS` of a cell, in their official order."""
    return read_rows(cell.folder(cell.questions), cell.questions).sort("position")


def read_traces(
    cell: TraceCell, limit: int | None, questions: Sequence[str] | None = None
) -> Iterator[list[Trace]]:
    """Rollouts by question and sample, in batches.

    Args:
        cell: What to read.
        limit: How many at most; None for all.
        questions: Ids of the questions wanted; None for all.

    Raises:
        ArtifactError: A file is not the one its lineage tells of.
    """
    rollouts = read_rows(cell.folder(cell.rollouts), cell.rollouts)
    asked = read_question_rows(cell).select(
        "question_id", "position", gold_answer="answer", gold_aliases="answer_aliases"
    )
    if questions is not None:
        asked = asked.filter(pl.col("question_id").is_in(list(questions)))
    keys = rollouts.select(_KEY).join(asked, on="question_id").sort("position", "sample")
    wanted = (keys if limit is None else keys.head(limit)).collect()
    verdicts = [_verdict_rows(cell, judged) for judged in cell.judged]
    kind = _benchmark_kind(cell.questions)
    for batch in wanted.iter_slices(_BATCH_ROWS):
        frame = rollouts.drop("messages").join(batch.lazy(), on=_KEY).collect()
        yield list(_traces(frame.sort("position", "sample"), verdicts, cell.judges, kind))


def _traces(
    frame: pl.DataFrame, verdicts: Sequence[pl.LazyFrame], judges: Sequence[str], kind: str
) -> Iterator[Trace]:
    matches = _matches(frame, kind)
    keys = frame.select(_KEY)
    votes = [_by_rollout(of_judge.join(keys.lazy(), on=_KEY).collect()) for of_judge in verdicts]
    for row, match in zip(frame.iter_rows(named=True), matches, strict=True):
        key = (row["question_id"], row["sample"])
        own = {number: found[key] for number, found in enumerate(votes) if key in found}
        named = {judges[number]: list(found) for number, found in own.items()}
        yield Trace(row, signs(row, match, named), own)


def _matches(frame: pl.DataFrame, kind: str) -> Sequence[float | None]:
    """Exact match of each row; math sets by their own rule, as far as the form alone tells."""
    rules = {"gsm8k": same_number, "math500": same_form}
    if kind not in rules:
        return answer_metrics(frame, kind)["exact_match"].to_list()
    return [
        None if row["failure"] else is_right(row, rules[kind])
        for row in frame.iter_rows(named=True)
    ]


def _verdict_rows(cell: TraceCell, judged: Lineage) -> pl.LazyFrame:
    found = read_rows(cell.folder(judged), judged)
    return found.drop(_UNSHOWN, strict=False)


def _by_rollout(frame: pl.DataFrame) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in frame.sort(*_KEY, "vote").iter_rows(named=True):
        key = (row.pop("question_id"), row.pop("sample"))
        found.setdefault(key, []).append(row)
    return found


def _benchmark_kind(questions: Lineage) -> str:
    """Kind of the benchmark, which decides how answers are read; empty where nothing tells."""
    spec = questions.spec if isinstance(questions.spec, dict) else {}
    benchmark = spec.get("benchmark")
    return str(benchmark.get("kind", "")) if isinstance(benchmark, dict) else ""
