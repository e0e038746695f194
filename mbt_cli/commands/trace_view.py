"""Traces on the terminal: question, gold answer, marked paragraphs, answer, verdicts."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from mbt_cli.commands.lineage_view import cells_below
from mbt_cli.commands.pages import study_path
from mbt_cli.commands.plain_text import foreign
from mbt_cli.commands.printing import printer
from mbt_cli.core.traces import is_cut, paragraphs, trace_of
from mbt_cli.errors import MissingInputError
from mbt_cli.store.reading import finished_cells, require_lineage
from mbt_cli.store.traces import (
    Trace,
    TraceCell,
    read_question_rows,
    read_traces,
    trace_cells_below,
)
from mbt_cli.store.upstream import upstream

_UNSAID = ("reply", "failure", "vote", "asked")


def show_traces(path: Path | None, question: str | None, limit: int) -> None:
    """Print `trace_views`, page by page on a terminal."""
    out = printer()
    # what git sets: colours as they are, and no page to leave where one screen is enough
    os.environ.setdefault("LESS", "-FRX")
    views = trace_views(study_path(path), question, limit)
    with out.pager(styles=True) if out.is_terminal else nullcontext():
        out.print(*views, sep="\n")


def trace_views(path: Path, question: str | None, limit: int) -> list[RenderableType]:
    """Traces of the rollouts at or below a path, or of those that its cells were made from.

    Args:
        path: Folder of a study, a stage or a cell.
        question: Id of the one question wanted.
        limit: Traces of each rollout cell.

    Raises:
        MissingInputError: There are none.
    """
    views = [
        view
        for cell in _cells(path)
        for view in _cell_view(cell, list(_wanted(cell, question, limit)))
    ]
    if not views:
        what = f"no trace of question `{question}`" if question else "no traces"
        raise MissingInputError(
            f"{what} at or below `{path}`", hint="mbt view --terminal runs/STUDY/STAGE"
        )
    return views


def _cells(path: Path) -> list[TraceCell]:
    """Rollout cells, with every judge of the study that looked at them."""
    chosen = [(folder, require_lineage(folder)) for folder in cells_below(path)]
    folder, first = chosen[0]
    study = folder.parents[first.address.count("/")]
    rollouts = [cell.address for _, cell in chosen if cell.kind == "rollout"]
    behind = upstream(study, rollouts or [cell.address for _, cell in chosen])
    wanted = {cell.address for cell in behind.of_kind("rollout")}
    judges = [cell.address for _, cell in finished_cells(study) if cell.kind == "judge"]
    cells = trace_cells_below(study, [*wanted, *judges])
    return [cell for cell in cells if cell.rollouts.address in wanted]


def _wanted(cell: TraceCell, question: str | None, limit: int) -> Iterator[Trace]:
    for batch in read_traces(cell, limit, None if question is None else [question]):
        yield from batch


def _cell_view(cell: TraceCell, traces: Sequence[Trace]) -> Iterator[RenderableType]:
    ids = [trace.row["question_id"] for trace in traces]
    rows = read_question_rows(cell).collect()
    asked = {
        row["question_id"]: row for row in rows.iter_rows(named=True) if row["question_id"] in ids
    }
    if traces:
        yield Rule(Text(cell.rollouts.address, style="bold"), align="left")
    for trace in traces:
        yield _trace_view(cell, trace, asked[trace.row["question_id"]])


def _trace_view(cell: TraceCell, trace: Trace, question: dict[str, Any]) -> RenderableType:
    row = trace.row
    cut = ", truncated" if is_cut(row["finish_reason"]) else ""
    about = f"{row['question_id']}, sample {row['sample']}: {row['completion_tokens']} tokens{cut}"
    head = Panel(
        Group(
            foreign(question["question"], "bold"), foreign(f"gold: {question['answer']}", "green")
        ),
        title=foreign(about),
        title_align="left",
    )
    parts = paragraphs(trace_of(row["reasoning"], row["reply"]))
    answer = foreign(f"answer: {row['answer'] or '(none)'}", "bold")
    failure = [foreign(f"failed: {row['failure']}", "red")] if row["failure"] else []
    return Group(head, *failure, *_marked(cell, trace, parts), answer, *_verdicts(cell, trace), "")


def _marked(cell: TraceCell, trace: Trace, parts: Sequence[str]) -> Iterator[RenderableType]:
    """Paragraphs in green where the answer is reached, dim where they are redundant."""
    marks = _marks(cell, trace)
    for number, part in enumerate(parts, start=1):
        names, style = [], ""
        if number in (marks.get("redundant_paragraphs") or ()):
            names, style = ["redundant"], "yellow"
        if number == marks.get("answer_paragraph"):
            names, style = ["answer reached", *names], "green"
        note = f" [{', '.join(names)}]" if names else ""
        yield Padding(foreign(f"{number}{note} {part}", style), (0, 0, 1, 2))


def _marks(cell: TraceCell, trace: Trace) -> dict[str, Any]:
    for number, votes in trace.verdicts.items():
        if cell.judges[number] == "redundancy":
            for vote in votes:
                if vote.get("answer_paragraph") is not None:
                    return dict(vote)
    return {}


def _verdicts(cell: TraceCell, trace: Trace) -> Iterator[RenderableType]:
    for number, votes in trace.verdicts.items():
        for vote in votes:
            said = ", ".join(
                f"{name} {value}"
                for name, value in vote.items()
                if name not in _UNSAID and value is not None
            )
            failed = vote["failure"]
            words = f"{cell.judges[number]}: {failed or said or 'nothing to judge'}"
            yield foreign(words, "red" if failed else "cyan")
