"""`mbt view`: a report in the browser, or traces in the terminal."""

import os
import sys
import webbrowser
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import foreign, printer
from mbt_cli.cli.show import cells_below
from mbt_cli.core.names import nearest
from mbt_cli.core.rows import NO_TEXT
from mbt_cli.core.traces import is_cut, paragraphs, trace_of
from mbt_cli.engine.status import begun_studies, study_status
from mbt_cli.errors import MbtError, MissingInputError, UsageError
from mbt_cli.manifest.presets import manifest_file
from mbt_cli.report.files import read_table, table_files
from mbt_cli.report.page import PAGE
from mbt_cli.report.studies import ListedStudy, write_studies
from mbt_cli.report.traces import (
    Trace,
    TraceCell,
    read_question_rows,
    read_traces,
    trace_cells_below,
)
from mbt_cli.settings import read_machine
from mbt_cli.store.cells import FILES
from mbt_cli.store.lineage import LINEAGE
from mbt_cli.store.reading import finished_cells, require_lineage, upstream

_INDEX = "index.html"
_LOOPBACK = "127.0.0.1"


def find_page(path: Path | None) -> Path:
    """The newest index.html of a report at or below a path, or of a manifest's study.

    Args:
        path: A page, a folder, a manifest, or None for the folder of all runs.

    Raises:
        UsageError: The path does not exist.
        MissingInputError: There is no report.
    """
    folder = study_path(path)
    if folder.is_file():
        if folder.suffix != ".html":
            hint = "name a manifest, the folder of a study or a page, such as runs/STUDY"
            raise UsageError(f"`{folder}` is not a page", hint=hint)
        return folder
    if (folder / _INDEX).is_file():
        return folder / _INDEX
    if (page := newest_page(folder)) is not None:
        return page
    found = sorted(folder.rglob(f"{PAGE}/{_INDEX}"), key=lambda page: page.stat().st_mtime)
    if not found:
        raise MissingInputError(
            f"no report below `{folder}`", hint="run `mbt report MANIFEST` first"
        )
    return found[-1]


def study_path(path: Path | None) -> Path:
    """The path itself, the folder of a manifest's or named study, or the folder of all runs.

    Raises:
        UsageError: The path does not exist.
    """
    runs = read_machine().runs
    if path is None:
        return runs
    if path.suffix == ".toml":
        manifest, machine = open_manifest(path, None, None)
        return machine.runs / manifest.study
    if path.exists():
        return path
    if (runs / path).is_dir():
        return runs / path
    if manifest_file(path) != path:
        return study_path(manifest_file(path))
    known = [folder.name for folder in runs.glob("[!.]*")]
    hint = nearest(str(path), known) if known else "run `mbt run MANIFEST` first"
    raise UsageError(f"no file, folder or study `{path}`", hint=hint)


class _Handler(SimpleHTTPRequestHandler):
    """Serves the files of one folder, and of pages below their names, to its own pages only."""

    def __init__(self, *args: Any, pages: Mapping[str, Path], **kwargs: Any) -> None:
        self._pages = pages
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        name, slash, rest = path.lstrip("/").partition("/")
        if slash and name in self._pages:
            self.directory = str(self._pages[name])
            return super().translate_path(f"/{rest}")
        return super().translate_path(path)

    def do_GET(self) -> None:
        # the name of another site may resolve to this address (DNS rebinding)
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in (_LOOPBACK, "localhost"):
            self.send_error(403, "only for this machine")
            return
        super().do_GET()

    def do_HEAD(self) -> None:
        self.send_error(405)

    def end_headers(self) -> None:
        # without it any site could include the data, which are scripts
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def serve_page(page: Path, pages: Mapping[str, Path]) -> None:
    """Serve a page on a free port of the loopback address until Ctrl-C.

    Args:
        page: Its index.html, whose folder is served.
        pages: Name of another page below it to that one's folder.
    """
    handler = partial(_Handler, directory=str(page.parent), pages=pages)
    with ThreadingHTTPServer((_LOOPBACK, 0), handler) as server:
        address = f"http://{_LOOPBACK}:{server.server_port}/{_INDEX}"
        _say(f"serving {page.parent}/ on {address} (Ctrl-C to stop)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def open_page(page: Path) -> None:
    """Open the page in a browser, or print its address if there is none."""
    uri = page.resolve().as_uri()
    _say(f"opened {uri}" if webbrowser.open(uri) else f"open this in a browser: {uri}")


def _say(text: str) -> None:
    printer().print(Text(text))


_PIPE_WIDTH = 100
_COMMON_COLUMNS = ("reply", "failure", "vote", "asked", "parts", "output")
"""Columns of a verdict that are not shown in its line."""


def print_traces(path: Path | None, question: str | None, limit: int) -> None:
    """Print `trace_views`, page by page on a terminal."""
    out = printer()
    if not out.is_terminal:
        out.width = min(out.width, _PIPE_WIDTH)  # boxes are as wide as the console
    # the settings of git: keep colours, and exit if the text fits on one screen
    os.environ.setdefault("LESS", "-FRX")
    views = trace_views(study_path(path), question, limit)
    is_paged = out.is_terminal and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    with out.pager(styles=True) if is_paged else nullcontext():
        out.print(*views, sep="\n", soft_wrap=False)


def trace_views(path: Path, question: str | None, limit: int) -> list[RenderableType]:
    """Traces of the rollouts at or below a path, or of those its cells were made from.

    Args:
        path: Folder of a study, a stage or a cell.
        question: Id of a single question.
        limit: Maximum number of traces per rollout cell.

    Raises:
        MissingInputError: There are no traces.
    """
    views = [
        view
        for cell in _cells(path)
        for view in cell_view(cell, list(_wanted(cell, question, limit)))
    ]
    if not views:
        what = f"no trace of question `{question}`" if question else "no traces"
        raise MissingInputError(
            f"{what} at or below `{path}`", hint="mbt view --terminal runs/STUDY/STAGE"
        )
    return views


def _cells(path: Path) -> list[TraceCell]:
    """Rollout cells, with every verdict of the study on them."""
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


def cell_view(cell: TraceCell, traces: Sequence[Trace]) -> Iterator[RenderableType]:
    """Traces of a cell, each with its question, the whole text and the verdicts."""
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
    is_reply = (row["failure"] or "").startswith(NO_TEXT)
    words = f"no text: {row['failure']}" if is_reply else f"failed: {row['failure']}"
    failure = [foreign(words, "red")] if row["failure"] else []
    return Group(head, *failure, *_marked(cell, trace, parts), answer, *_verdicts(cell, trace), "")


def _marked(cell: TraceCell, trace: Trace, parts: Sequence[str]) -> Iterator[RenderableType]:
    """Paragraphs, green where the answer is reached, yellow where they are redundant."""
    marks = _marks(trace)
    for number, part in enumerate(parts, start=1):
        names, style = [], ""
        if number in (marks.get("redundant_paragraphs") or ()):
            names, style = ["redundant"], "yellow"
        if number == marks.get("answer_paragraph"):
            names, style = ["answer reached", *names], "green"
        note = f" [{', '.join(names)}]" if names else ""
        yield Padding(foreign(f"{number}{note} {part}", style), (0, 0, 1, 2))


def _marks(trace: Trace) -> dict[str, Any]:
    """The first verdict that marks paragraphs."""
    votes = (vote for votes in trace.verdicts.values() for vote in votes)
    return next((dict(vote) for vote in votes if vote.get("answer_paragraph") is not None), {})


def _verdicts(cell: TraceCell, trace: Trace) -> Iterator[RenderableType]:
    for number, votes in trace.verdicts.items():
        for vote in votes:
            said = ", ".join(
                f"{name} {value}"
                for name, value in vote.items()
                if name not in _COMMON_COLUMNS and value is not None
            )
            failed = vote["failure"]
            words = f"{cell.judges[number]}: {failed or said or 'nothing to judge'}"
            yield foreign(words, "red" if failed else "cyan")
            for part in vote.get("parts") or ():
                yield _part(part)
            if output := vote.get("output"):
                yield Padding(foreign(f"last output:\n{output}", "dim"), (0, 0, 0, 2))


def _part(part: Mapping[str, Any]) -> RenderableType:
    """One rule or test of a verifier's verdict."""
    words = "passed" if part["passed"] else "passed loosely" if part["passed_loose"] else "failed"
    detail = f": {part['detail']}" if part["detail"] else ""
    style = "green" if part["passed"] else "red"
    return Padding(foreign(f"{words} {part['name']}{detail}", style), (0, 0, 0, 2))


def view_page(path: Path | None, *, is_served: bool) -> None:
    """Open the page of a report, or that of several studies, or serve it until Ctrl-C."""
    folder = study_path(path)
    studies = studies_in(folder)
    pages: dict[str, Path] = {}
    if len(studies) > 1:
        name = sha256(str(folder.resolve()).encode()).hexdigest()[:_SHOWN_HASH]
        into = read_machine().cache / "view" / name
        listed = [listed_study(folder, study, into, is_served=is_served) for study in studies]
        listed.sort(key=lambda study: study.made, reverse=True)
        pages = {study: found.parent for study in studies if (found := newest_page(folder / study))}
        page = write_studies(into, str(folder), listed)
    else:
        page = find_page(path)
        if others := [found for found in pages_of(folder) if found != page]:
            stages = ", ".join(f"`mbt view {found.parents[2]}`" for found in others)
            _say(f"the study has {len(others) + 1} pages, and this is the newest; also: {stages}")
    if is_served:
        serve_page(page, pages)
    open_page(page)


_SHOWN_HASH = 12


def studies_in(folder: Path) -> list[str]:
    """Names of the studies of a folder of runs; empty for any other path."""
    if not folder.is_dir() or (folder / _INDEX).is_file():
        return []
    for place in folder.rglob(LINEAGE):
        if any(part.startswith(".") for part in place.relative_to(folder).parts):
            continue  # replaced
        lineage = require_lineage(place.parent)
        is_runs = folder / lineage.study / lineage.address == place.parent
        return begun_studies(folder) if is_runs else []
    return []


def newest_page(study: Path) -> Path | None:
    """The index.html of the newest report at or below a folder; None if there is none."""
    return max(pages_of(study), key=lambda page: page.stat().st_mtime, default=None)


def pages_of(study: Path) -> list[Path]:
    """The index.html of each report of a study's folder, by their stages' names."""
    return sorted(study.glob(f"*/{FILES}/{PAGE}/{_INDEX}"))


def listed_study(runs: Path, name: str, into: Path, *, is_served: bool) -> ListedStudy:
    """What the list of studies shows of one; what cannot be read is said there.

    Args:
        runs: The folder of runs.
        name: The study.
        into: Folder of the list.
        is_served: Whether pages are reached by their names, else by their paths.
    """
    try:
        cells = Counter(str(cell.doing) for cell in study_status(runs, name).cells)
    except MbtError as error:
        return ListedStudy(name, {}, problem=error.message)
    page = newest_page(runs / name)
    if page is None:
        return ListedStudy(name, cells)
    place = f"{name}/{_INDEX}" if is_served else os.path.relpath(page.resolve(), into.resolve())
    link = quote(place)
    try:
        cell = page.parents[2]
        lineage = require_lineage(cell)
        table = next((read_table(path) for path in table_files(cell)), None)
    except MbtError as error:
        return ListedStudy(name, cells, link=link, problem=error.message)
    models: list[str] = []
    if table is not None and "model" in table.rows:
        models = table.rows["model"].drop_nulls().unique(maintain_order=True).to_list()
    return ListedStudy(
        name,
        cells,
        link=link,
        made=f"{lineage.started_at:%Y-%m-%d %H:%M}",
        models=models,
        table=table,
    )
