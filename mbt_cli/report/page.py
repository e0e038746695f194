"""The HTML report: a folder that opens without a server; its data are scripts loaded on demand."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Literal

import orjson

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.tables import TableData
from mbt_cli.report.comparisons import Comparisons, page_difference
from mbt_cli.report.formats import FormattedCell, formatted_rows, heading, notes_with_legend
from mbt_cli.report.layout import column_of, row_group_starts, side_by_side
from mbt_cli.report.seeds import without_seed
from mbt_cli.report.traces import (
    SIGNS,
    Trace,
    TraceCell,
    page_trace,
    read_question_rows,
    read_traces,
    trace_cells,
)
from mbt_cli.store.cells import NOTES
from mbt_cli.store.disk import writing_to
from mbt_cli.store.lineage import Lineage, lineage_json
from mbt_cli.store.reading import Upstream, own_rollouts, upstream

# outside of JSON strings these cannot occur, so escaping them everywhere is safe
_ESCAPES = (
    (b"<", b"\\u003c"),  # no `</script>` and no `<!--`
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def script(name: str, value: Json) -> bytes:
    r"""A script that gives the page `value` under `name`.

    Args:
        name: Path of the script in the page's data folder, without its suffix.
        value: JSON; NaN and infinities become null.

    Example:
        >>> script("a/b", {"text": "</script>"})
        b'mbt.take("a/b",{"text":"\\u003c/script>"});\n'
    """
    body = orjson.dumps(value)
    for raw, escaped in _ESCAPES:
        body = body.replace(raw, escaped)
    return b"mbt.take(" + orjson.dumps(name) + b"," + body + b");\n"


def page_table(table: TableData) -> dict[str, Json]:
    """One table as it is shown: groups of columns, columns, and cells row by row.

    `addresses` has the address of each row's cell in each group, null for a mean; a table without
    groups has one without a title. `starts` are the numbers of rows with which a group of rows
    begins, and `once` the numbers of the columns whose labels it shares.
    """
    wide = side_by_side(table, mean_first=True)  # a window shows the first groups
    groups = list(dict.fromkeys(column_of(c.key)[0] for c in wide.columns if c.kind == "number"))
    titles = {column_of(c.key)[0]: c.group for c in wide.columns}
    paths = [f"{group}/address" if titles[group] else "address" for group in groups]
    columns = [wide.rows[path] for path in paths if path in wide.rows]
    return {
        "name": table.name,
        "title": table.title,
        "groups": [{"key": group, "title": titles[group]} for group in groups],
        "columns": [
            {
                "key": column_of(c.key)[1],
                "title": heading(c),
                "kind": c.kind,
                "best": c.best,
                "group": groups.index(column_of(c.key)[0]) if c.kind == "number" else None,
            }
            for c in wide.columns
        ],
        "rows": [[_cell(cell) for cell in row] for row in formatted_rows(wide)],
        "starts": [row for row, is_start in enumerate(row_group_starts(wide)) if is_start],
        "once": [k for k, c in enumerate(wide.columns) if c.key in wide.row_groups],
        "addresses": [list(row) for row in zip(*columns, strict=True)],
        "notes": notes_with_legend(table, underlines=True),
    }


def _cell(cell: FormattedCell) -> dict[str, Json]:
    """A cell without its empty parts; `v` is the unrounded number."""
    parts = {
        "t": cell.text,
        "v": cell.value if isinstance(cell.value, int | float) else None,
        "i": list(cell.interval) if cell.interval else None,
        "n": cell.n,
        "f": cell.failed,
        "r": cell.rank or None,
        "d": cell.is_tied or None,
    }
    return {key: part for key, part in parts.items() if part is not None}


PAGE = "report"
"""Folder of the page in a report's files."""
_ASSETS = (
    *("index.html", "style.css", "base.js", "main.js", "tables.js", "compare.js", "lineage.js"),
    *("filter.js", "trace.js", "traces.js"),
)
_AUTO_TRACES = 10_000
_CHUNK_BYTES = 512 << 10
_CHUNK_QUESTIONS = 64
_SHOWN_ANSWER = 120
_SHOWN_QUESTION = 400
_TABLE_FILES = ("*.md", "*.csv", "*.tex", "*.parquet")
_FIGURE_FILES = ("*.svg", "*.pdf", "*.png")


@dataclass(frozen=True, slots=True)
class PageInputs:
    """The data of a page.

    Args:
        study: Name of the study.
        address: Address of the report cell.
        study_folder: `runs/<study>`.
        scores: Addresses of the finished score cells.
        missing: Addresses of the unfinished ones.
        tables: The tables of the report.
        manifest: Text of the manifest.
        manifest_name: What to type for it in a command.
        captions: Name of a figure to its title and what it shows.
        comparisons: The paired differences of every two methods.
        traces: Most traces of each rollout cell; `auto` shares 10,000 among the cells.
        money: What the study's requests have cost, as text; empty if no price is known.
    """

    study: str
    address: str
    study_folder: Path
    scores: Sequence[str]
    missing: Sequence[str] = ()
    tables: Sequence[TableData] = ()
    manifest: str = ""
    manifest_name: str = "MANIFEST"
    captions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    comparisons: Comparisons | None = None
    traces: int | Literal["all", "auto"] = "auto"
    money: str = ""


def write_page(folder: Path, inputs: PageInputs) -> Path:
    """Write the page next to the tables and figures in `folder`.

    Args:
        folder: The report's files; the page is written to `folder/report`.
        inputs: The data of the page.

    Returns:
        Path of index.html.

    Raises:
        ArtifactError: A lineage or artifact is damaged, or the folder cannot be written.
    """
    found = upstream(inputs.study_folder, inputs.scores)
    page = folder / PAGE
    with writing_to(page):
        copy_assets(page, {name: name for name in _ASSETS})
        tables = _copied(folder, page / "tables", _TABLE_FILES)
        figures = _copied(folder, page / "figures", _FIGURE_FILES)
    cells = trace_cells(inputs.study_folder, found)
    index = _Writer(page, cells).write(_limit(inputs, len(cells)))
    overview = {
        "study": inputs.study,
        "tables": [page_table(table) for table in inputs.tables],
        "files": {"tables": tables, "figures": figures},
        "manifest": inputs.manifest,
        "manifest_name": inputs.manifest_name,
        "captions": dict(inputs.captions),
        "notes": f"{inputs.study}/{NOTES}" if (inputs.study_folder / NOTES).is_file() else None,
        # of the newest cell, so that the same cells give the same page
        "made": max((f"{c.started_at:%Y-%m-%d %H:%M}" for c in found.cells.values()), default=""),
        "money": inputs.money,
        "graph": _graph(inputs, found),
        "compare": _write_comparisons(page, inputs.comparisons),
        "rollouts_of": _rollouts_of(found),
        "missing": list(inputs.missing),
        "lost": list(found.lost),
        "changed": list(found.changed),
    }
    write_script(page, "overview", overview)
    write_script(page, "index", index)
    write_script(page, "cells", {a: lineage_json(cell).decode() for a, cell in found.cells.items()})
    return page / "index.html"


def _limit(inputs: PageInputs, cells: int) -> int | None:
    """Maximum number of traces per cell; None for all."""
    if inputs.traces == "auto":
        return -(-_AUTO_TRACES // max(1, cells))
    return None if inputs.traces == "all" else inputs.traces


def copy_assets(page: Path, names: Mapping[str, str]) -> None:
    """Copy assets into a page's folder; `names` has the name of each there."""
    page.mkdir(parents=True, exist_ok=True)
    for name, there in names.items():
        asset = files("mbt_cli").joinpath("report", "assets", name)
        (page / there).write_bytes(asset.read_bytes())


def _copied(source: Path, target: Path, patterns: Iterable[str]) -> list[str]:
    """Copy files of a folder into the page's own folder, so that the page is self-contained."""
    found = sorted(path for pattern in patterns for path in source.glob(pattern))
    if found:
        target.mkdir(exist_ok=True)
    for path in found:
        shutil.copyfile(path, target / path.name)
    return [path.name for path in found]


def _graph(inputs: PageInputs, found: Upstream) -> list[Json]:
    """Every cell that the report depends on, inputs first, the report last."""
    nodes: list[Json] = [_node(cell, found) for cell in found.cells.values()]
    nodes += [
        {"address": address, "stage": address.partition("/")[0], "kind": "score", "inputs": []}
        for address in inputs.missing
    ]
    report = {"address": inputs.address, "stage": inputs.address.partition("/")[0]}
    reads = [*inputs.scores, *inputs.missing]
    return [*nodes, {**report, "kind": "report", "inputs": reads, "made": True}]


def _rollouts_of(found: Upstream) -> dict[str, list[str]]:
    """Address of a score cell, and of the row that all its seeds share, to its rollouts."""
    rollouts: dict[str, list[str]] = {}
    for score in found.of_kind("score"):
        for address in {score.address, without_seed(score.address)}:
            own = [cell.address for cell in own_rollouts(found, score)]
            rollouts.setdefault(address, []).extend(own)
    return rollouts


def _write_comparisons(page: Path, compared: Comparisons | None) -> Json:
    """Write the differences of each method from the later ones; returns what was compared.

    A script has, by the number of the later method, a list for each metric: the difference on each
    benchmark and the mean.
    """
    if compared is None:
        return None
    for number in range(len(compared.methods) - 1):
        later = {
            str(second): [
                [page_difference(one, column) for one in rows]
                for rows, column in zip(metrics, compared.metrics, strict=True)
            ]
            for (first, second), metrics in compared.pairs.items()
            if first == number
        }
        write_script(page, f"compare-{number}", later)
    return {
        "methods": list(compared.methods),
        "cells": [list(cells) for cells in compared.cells],
        "benchmarks": list(compared.benchmarks),
        "metrics": [
            {"key": c.key, "title": heading(c), "unit": c.unit, "best": c.best}
            for c in compared.metrics
        ],
        "left_out": compared.left_out,
    }


def _node(cell: Lineage, found: Upstream) -> Json:
    model = cell.model or {}
    return {
        "address": cell.address,
        "stage": cell.stage,
        "kind": cell.kind,
        "made": True,
        "inputs": [address for address in cell.inputs if address in found.cells],
        "rows": cell.rows,
        "failed": cell.failed_rows,
        "model": model.get("name"),
        "tokens": cell.tokens.completion,
    }


@dataclass
class _QuestionSet:
    """The questions of a benchmark and split that have traces on the page."""

    address: str
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, question_id: str) -> int:
        return self.numbers.setdefault(question_id, len(self.numbers))


class _Writer:
    """Writes traces and their questions in chunks, with an index to find them."""

    def __init__(self, page: Path, cells: Sequence[TraceCell]) -> None:
        self._page = page
        self._cells = cells
        self._sets: dict[str, _QuestionSet] = {}

    def write(self, limit: int | None) -> Json:
        """Write all chunks; returns the index of traces and questions."""
        cells = [] if limit == 0 else [self._cell(n, c, limit) for n, c in enumerate(self._cells)]
        by_address = {cell.questions.address: cell for cell in self._cells}
        sets = [
            self._set(number, questions, by_address[address])
            for number, (address, questions) in enumerate(self._sets.items())
        ]
        return {"signs": list(SIGNS), "sets": sets, "cells": cells, "limit": limit}

    def _cell(self, number: int, cell: TraceCell, limit: int | None) -> Json:
        """Write the chunks of a rollout cell; returns its part of the index."""
        questions = self._sets.setdefault(
            cell.questions.address, _QuestionSet(cell.questions.address)
        )
        traces: dict[str, list[Json]] = {
            name: [] for name in ("question", "sample", "signs", "tokens", "answer")
        }
        chunks = _Chunks(self._page, f"traces-{number}")
        for batch in read_traces(cell, limit):
            for trace in batch:
                _add(traces, trace, questions.number(trace.row["question_id"]))
                chunks.add(page_trace(trace.row, trace.verdicts, trace.steps))
        axes = axes_of(cell.rollouts.address)
        return {
            "address": cell.rollouts.address,
            "stage": cell.rollouts.stage,
            "axes": axes,
            "set": list(self._sets).index(cell.questions.address),
            "judges": [
                {"judge": judge, "address": judged.address, "model": _model_name(judged)}
                for judge, judged in zip(cell.judges, cell.judged, strict=True)
            ],
            "rows": cell.rollouts.rows,
            "starts": chunks.finish(),
            "traces": traces,
        }

    def _set(self, number: int, questions: _QuestionSet, cell: TraceCell) -> Json:
        """Write the questions of a set; returns their part of the index."""
        wanted = questions.numbers
        rows = read_question_rows(cell).drop("position", "metadata").collect()
        shown = [r for r in rows.iter_rows(named=True) if r["question_id"] in wanted]
        shown.sort(key=lambda row: wanted[row["question_id"]])
        for start in range(0, len(shown), _CHUNK_QUESTIONS):
            name = f"questions-{number}-{start // _CHUNK_QUESTIONS}"
            write_script(self._page, name, shown[start : start + _CHUNK_QUESTIONS])
        axes = axes_of(questions.address)
        return {
            "address": questions.address,
            "benchmark": axes.get("benchmark"),
            "split": axes.get("split"),
            "chunk": _CHUNK_QUESTIONS,
            "id": [row["question_id"] for row in shown],
            "question": [(row["question"] or "")[:_SHOWN_QUESTION] for row in shown],
            "gold": [(row["answer"] or "")[:_SHOWN_ANSWER] for row in shown],
            "difficulty": [row["difficulty"] for row in shown],
        }


def _add(columns: Mapping[str, list[Json]], trace: Trace, question: int) -> None:
    columns["question"].append(question)
    columns["sample"].append(trace.row["sample"])
    columns["signs"].append(trace.signs)
    columns["tokens"].append(trace.row["completion_tokens"])
    columns["answer"].append((trace.row["answer"] or "")[:_SHOWN_ANSWER])


def _model_name(cell: Lineage) -> Json:
    return (cell.model or {}).get("name")


class _Chunks:
    """Writes records in scripts of about half a megabyte, numbered from 0."""

    def __init__(self, page: Path, name: str) -> None:
        self._page = page
        self._name = name
        self._starts: list[int] = []
        self._pending: list[Json] = []
        self._bytes = 0
        self._count = 0

    def add(self, record: Json) -> None:
        self._pending.append(record)
        self._bytes += sum(len(text) for text in _texts(record)) + 500
        self._count += 1
        if self._bytes >= _CHUNK_BYTES:
            self._write()

    def finish(self) -> list[int]:
        """Write the rest; returns the number of the first record of every chunk."""
        self._write()
        return self._starts

    def _write(self) -> None:
        if not self._pending:
            return
        write_script(self._page, f"{self._name}-{len(self._starts)}", self._pending)
        self._starts.append(self._count - len(self._pending))
        self._pending, self._bytes = [], 0


def _texts(record: Json) -> Iterator[str]:
    yield from record["paragraphs"]
    yield record["before"]
    yield record["after"]
    for step in record.get("steps", ()):
        yield step["reply"] or ""
    for verdict in record["verdicts"]:
        yield verdict["reply"] or verdict["said"].get("output") or ""
        yield from (part["detail"] or "" for part in verdict["said"].get("parts") or ())


def write_script(page: Path, name: str, value: Json) -> None:
    """Write one script of data, `data/NAME.js`; the artifact's writer flushes it to the disk."""
    path = page / "data" / f"{name}.js"
    with writing_to(path):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(script(name, value))
