"""A user's file of questions: which known layout it has, and how many questions are in it."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from mbt_cli.core import rows
from mbt_cli.errors import MbtError, UsageError
from mbt_cli.interfaces import Benchmark
from mbt_cli.machine.first_study import QuestionsAnswer
from mbt_cli.registry import AnyBenchmark
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.questions import SplitReader
from mbt_cli.store.records import Record, data_files, parquet_columns, read_records

LAYOUTS = ("hotpotqa", "musique", "gsm8k", "math500", "question_answer")
"""Layouts that are tried, the strictest first; 2WikiMultihopQA is HotpotQA's with evidences."""

_TRIED_RECORDS = 20
_SPLIT = "validation"
_LEAST = 'each record needs at least {"question": "...", "answer": "..."}'
_BENCHMARKS: TypeAdapter[Benchmark] = TypeAdapter(AnyBenchmark)


def read_question_file(file: str, name: str, *, layout: str | None = None) -> QuestionsAnswer:
    """The file's layout, found by trying or as named, and what its questions are like.

    Args:
        file: Path as the user typed it.
        name: What the manifest will call the benchmark.
        layout: Kind of benchmark; None tries those in `LAYOUTS`.

    Raises:
        UsageError: There is no such file, no layout fits, or a record is wrong.
    """
    kind = layout or _layout(file)
    benchmark = _benchmark(kind, file)
    reader = SplitReader(
        benchmark,
        _SPLIT,
        question=benchmark.question,
        generate=benchmark.generate,
        hub=HubAccess(offline=True),
    )
    count, with_documents = 0, False
    try:
        for frame in reader.frames():
            count += frame.height
            with_documents |= bool((frame["context"].list.len() > 0).any())
    except MbtError as error:
        raise UsageError(f"`{file}` read as `{kind}`: {error.message}", hint=_LEAST) from error
    return QuestionsAnswer(name, kind, file, count, with_documents)


def _benchmark(kind: str, file: str) -> Benchmark:
    return _BENCHMARKS.validate_python({"kind": kind, "files": {_SPLIT: file}})


def _layout(file: str) -> str:
    """The first layout in which the first records can be read."""
    path = data_files(Path(file).expanduser())[0]
    if parquet_columns(path) >= set(rows.QUESTIONS):
        return "question_answer"
    records = list(islice(read_records(path), _TRIED_RECORDS))
    if not records:
        raise UsageError(f"`{file}` is empty", hint=_LEAST)
    if all("evidences" in (record.value or {}) for record in records):
        return "2wikimultihopqa"
    problems = {kind: next(_problems(records, kind, file), None) for kind in LAYOUTS}
    found = next((kind for kind, problem in problems.items() if problem is None), None)
    if found is None:
        raise UsageError(
            f"`{file}` has none of the known layouts: {problems['question_answer']}",
            hint=f"{_LEAST}; or name a layout: --benchmark {'|'.join(LAYOUTS)}",
        )
    return found


def _problems(records: list[Record], kind: str, file: str) -> Iterator[str]:
    benchmark = _benchmark(kind, file)
    for record in records:
        if record.value is None:
            yield f"{record.where} {record.problem}"
            continue
        try:
            benchmark.question(record.value)
        except ValueError as error:
            yield f"{record.where}: {error}"
