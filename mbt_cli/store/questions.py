"""From a benchmark's files to its questions: which rows, in which order, and what was refused."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.benchmark_files import BenchmarkFiles, PerSplit
from mbt_cli.core.chat import Json
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.questions import Document, Question
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.errors import StageError, UsageError
from mbt_cli.store.disk import sha256_of_file
from mbt_cli.store.hub import HubAccess, HubRequest, fetch_files, local_folder
from mbt_cli.store.records import Record, check_suffix, data_files, parquet_columns, read_records

Generate = Callable[[str], Iterator[Question] | None]
"""The questions of a split made by rule; None where a benchmark has files."""


def check_split(benchmark: BenchmarkFiles, split: str, *, generate: Generate) -> None:
    """Refuse a split that a benchmark cannot have, without reading or fetching anything.

    Raises:
        UsageError: It has no such split, no source at all, or a file in a form that is not read.
        MissingInputError: Its file is not there.
    """
    if generate(benchmark.splits.get(split, split)) is None and benchmark.source != "hub":
        for path in _local_paths(benchmark, split):
            check_suffix(path)


def source_fingerprint(
    benchmark: BenchmarkFiles, split: str, *, generate: Generate
) -> Mapping[str, Json]:
    """What decides the rows of a split beside the benchmark's own fields, without reading them.

    Local files count by their sha256, wherever they stand (so `files` and `difficulty` themselves
    need not enter a fingerprint); the hub by repository, files and revision; a generator by its
    settings alone, so it adds nothing.

    Raises:
        MissingInputError: A file is not there.
        UsageError: The benchmark names no source.
    """
    found: dict[str, Json] = {}
    if tiers := tier_files(benchmark):
        found["difficulty"] = [file_sha256(path) for path in tiers]
    if generate(benchmark.splits.get(split, split)) is not None:
        return found
    if benchmark.source == "hub":
        request = hub_request(benchmark, split)
        if local_folder(request.repo) is None:
            named = {"repo": request.repo, "revision": request.revision}
            return {**found, "hub": {**named, "files": request.patterns[0]}}
        paths = fetch_files(request, HubAccess(offline=True)).paths
        return {**found, "files": [file_sha256(path) for path in paths]}
    return {**found, "files": [file_sha256(path) for path in _local_paths(benchmark, split)]}


def hub_request(benchmark: BenchmarkFiles, split: str) -> HubRequest:
    """Which files of which repository hold a split.

    Raises:
        UsageError: The benchmark has no hub repository, or one is named without a revision.
    """
    official = benchmark.hub
    if official is None:
        raise UsageError("this benchmark has no hub repository", hint="name its `files` instead")
    repo = benchmark.repo or official.repo
    is_pinned = benchmark.revision or repo == official.repo or local_folder(repo)
    if not is_pinned:
        raise UsageError(
            f"`repo = {benchmark.repo!r}` has no `revision`",
            hint="name the commit, so that the study can be run again on the same rows",
        )
    name = benchmark.splits.get(split) or official.split_names.get(split, split)
    config = benchmark.config or official.config
    return HubRequest(
        repo=repo,
        patterns=(official.pattern.format(config=config, split=name),),
        revision=benchmark.revision or official.revision,
    )


def split_files(
    benchmark: BenchmarkFiles, split: str, hub: HubAccess
) -> tuple[Sequence[Path], str | None]:
    """Files of a split, and the commit where they come from the hub.

    Raises:
        MissingInputError: A file is not there.
        UsageError: The benchmark names no source.
    """
    if benchmark.source == "hub":
        fetched = fetch_files(hub_request(benchmark, split), hub)
        return fetched.paths, fetched.commit
    return _local_paths(benchmark, split), None


def tier_files(benchmark: BenchmarkFiles) -> Sequence[Path]:
    """The user's own files of difficulty tiers."""
    return data_files(Path(benchmark.difficulty).expanduser()) if benchmark.difficulty else ()


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, kept in this process while its size and time stay the same."""
    stat = path.stat()
    return _sha256_at(path.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256_at(path: Path, size: int, modified: int) -> str:
    return sha256_of_file(path)


def _local_paths(benchmark: BenchmarkFiles, split: str) -> Sequence[Path]:
    source_split = benchmark.splits.get(split, split)
    pattern = benchmark.files.get(source_split) or benchmark.files.get(split)
    if pattern is None:
        named = ", ".join(f"`{name}`" for name in sorted(benchmark.files)) or "none"
        raise UsageError(
            f"no file for split `{source_split}`; `files` names {named}",
            hint=f'add `files = {{ {source_split} = "..." }}`, or `source = "hub"`',
        )
    return data_files(Path(pattern).expanduser())


_TIERS = ("easy", "medium", "hard")
_COLUMNS = ("question_id", "tier")


def read_tiers(paths: Sequence[Path]) -> pl.DataFrame:
    """Columns question_id and tier of CSV, JSON lines or Parquet files, of one at least.

    Raises:
        UsageError: Another kind of file, a missing column, an unknown tier, or an id given twice.
    """
    tiers = pl.concat([_read_tiers(path) for path in paths])
    twice = tiers.filter(pl.col("question_id").is_duplicated())
    if not twice.is_empty():
        named = " and ".join(f"`{path}`" for path in paths)
        raise UsageError(f"{named}: question `{twice['question_id'][0]}` is there twice")
    return tiers


def _read_tiers(path: Path) -> pl.DataFrame:
    tiers = _read(path)
    if missing := [name for name in _COLUMNS if name not in tiers.columns]:
        raise UsageError(
            f"`{path}` has no column `{missing[0]}`", hint="it needs question_id, tier"
        )
    tiers = tiers.select(pl.col(name).cast(pl.String) for name in _COLUMNS)
    unknown = tiers.filter(~pl.col("tier").is_in(_TIERS))
    if not unknown.is_empty():
        found = unknown["tier"][0]
        raise UsageError(f"`{path}` holds the tier `{found}`; tiers are {', '.join(_TIERS)}")
    return tiers


def _read(path: Path) -> pl.DataFrame:
    try:
        match path.suffix:
            case ".csv":
                return pl.read_csv(path, infer_schema=False)
            case ".jsonl":
                return pl.read_ndjson(path)
            case ".parquet":
                return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}") from error
    raise UsageError(f"`{path}` ends in `{path.suffix}`; tiers come in .csv, .jsonl or .parquet")


_ROWS_AT_ONCE = 500
_BAD_ROWS_SHOWN = 5
_OURS = frozenset(("question_id", "question", "answer", "context", "supporting", "position"))

MakeQuestion = Callable[[Mapping[str, Json]], Question]
Numbered = tuple[int, Question]


@dataclass(slots=True)
class SplitReader:
    """Reads one split as the manifest asks for it, in the official order and bounded memory.

    Args:
        benchmark: What the manifest says: files or hub, limit, sample, difficulty, ...
        split: The study's name of the split; `splits` maps it to the source's.
        question: One official record to a question (`Benchmark.question`).
        generate: The questions of a split made by rule (`Benchmark.generate`).
        hub: Caches, and whether the network may be used.
        bad_rows: `file:line: what is wrong`, one each; whole once all frames are taken.
        files: Name of each file that was read to its sha256; likewise.
        revision: Commit of the hub repository; None for local files and generators.
    """

    benchmark: BenchmarkFiles
    split: str
    question: MakeQuestion
    generate: Generate
    hub: HubAccess
    bad_rows: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    revision: str | None = None

    def frames(self) -> Iterator[pl.DataFrame]:
        """`rows.QUESTIONS`, some hundred questions at a time.

        `position` is the record's own number in its source, so it has gaps where rows were refused
        or not drawn.

        Raises:
            MissingInputError: A file is not there.
            UsageError: The benchmark names no source, or the split has no question.
            ArtifactError: A file as a whole cannot be read.
            StageError: More than `max_bad_rows` rows are malformed; the message lists the first.
        """
        made = self.generate(self.benchmark.splits.get(self.split, self.split))
        paths: Sequence[Path] = ()
        if made is None:
            paths, self.revision = split_files(self.benchmark, self.split, self.hub)
        numbered = enumerate(made) if made is not None else self._read(paths)
        tiers = _Tiers(self.benchmark)
        count = 0
        for frame in _frames(_chosen(numbered, self.benchmark, self.split)):
            count += frame.height
            yield tiers.given_to(frame)
        if len(self.bad_rows) > self.benchmark.max_bad_rows:
            raise _too_many(self.bad_rows, self.benchmark.max_bad_rows, none_good=count == 0)
        if count == 0:
            raise _no_question(self.split, paths)
        self.files = {path.name: file_sha256(path) for path in (*paths, *tiers.paths)}

    def _read(self, paths: Iterable[Path]) -> Iterator[Numbered]:
        """Good questions with their record's number; what is wrong goes to `bad_rows`."""
        number, seen = -1, set[str]()
        for path in paths:
            is_ours = parquet_columns(path) >= _OURS
            for record in read_records(path):
                number += 1
                try:
                    made = _made(record, _own_question if is_ours else self.question)
                    if made.question_id in seen:
                        raise ValueError("this question id has been there before")
                except ValueError as error:
                    self.bad_rows.append(f"{record.where}{_named(record)}: {error}")
                    continue
                seen.add(made.question_id)
                yield (record.value or {}).get("position", number) if is_ours else number, made


def _made(record: Record, question: MakeQuestion) -> Question:
    if record.value is None:
        raise ValueError(record.problem)
    return question(record.value)


def _named(record: Record) -> str:
    """The record's id where it has one, for messages."""
    values = record.value or {}
    found = next((values[name] for name in ("_id", "id", "question_id") if values.get(name)), None)
    return f" (id `{found}`)" if found is not None else ""


def _own_question(row: Mapping[str, Json]) -> Question:
    """A row of a questions Parquet that mbt wrote, whatever the benchmark."""
    for name in ("question_id", "question", "answer", "position"):
        if row[name] is None or row[name] == "":
            raise ValueError(f"`{name}` is empty")
    return Question(
        question_id=row["question_id"],
        question=row["question"],
        answer=row["answer"],
        answer_aliases=tuple(row.get("answer_aliases") or ()),
        context=tuple(
            Document(document["title"], tuple(document["sentences"]))
            for document in row["context"] or ()
        ),
        supporting=tuple((fact["title"], fact["sentence"]) for fact in row["supporting"] or ()),
        question_type=row.get("question_type"),
        hops=row.get("hops"),
        difficulty=row.get("difficulty"),
        metadata=orjson.loads(row.get("metadata") or "{}"),
    )


def _chosen(
    numbered: Iterable[Numbered], benchmark: BenchmarkFiles, split: str
) -> Iterable[Numbered]:
    """The first `limit`, and of those `sample` drawn by id: a larger number only adds rows."""
    limit, count = _for_split(benchmark.limit, split), _for_split(benchmark.sample, split)
    if limit is not None:
        numbered = islice(numbered, limit)
    if count is None:
        return numbered

    def rank(item: Numbered) -> str:
        return sha256_of([benchmark.sample_seed, item[1].question_id])

    return sorted(heapq.nsmallest(count, numbered, key=rank), key=lambda item: item[0])


def _for_split(setting: PerSplit | None, split: str) -> int | None:
    return setting.get(split) if isinstance(setting, dict) else setting


def _frames(numbered: Iterable[Numbered]) -> Iterator[pl.DataFrame]:
    stored = (_stored(position, question) for position, question in numbered)
    while batch := list(islice(stored, _ROWS_AT_ONCE)):
        yield frame_of_rows(batch, rows.QUESTIONS)


def _stored(position: int, question: Question) -> dict[str, Json]:
    return {
        "question_id": question.question_id,
        "position": position,
        "question": question.question,
        "answer": question.answer,
        "answer_aliases": question.answer_aliases,
        "context": [
            {"title": document.title, "sentences": document.sentences}
            for document in question.context
        ],
        "supporting": [
            {"title": title, "sentence": sentence} for title, sentence in question.supporting
        ],
        "question_type": question.question_type,
        "hops": question.hops,
        "difficulty": question.difficulty,
        "metadata": orjson.dumps(question.metadata).decode(),
    }


class _Tiers:
    """Gives each question its tier: the user's by question id, else its own, else the default."""

    def __init__(self, benchmark: BenchmarkFiles) -> None:
        self.paths = tier_files(benchmark)
        self._default = benchmark.default_tier
        self._by_id = read_tiers(self.paths) if self.paths else None

    def given_to(self, frame: pl.DataFrame) -> pl.DataFrame:
        own = pl.col("difficulty").fill_null(self._default)
        if self._by_id is None:
            return frame.with_columns(own)
        joined = frame.join(self._by_id, on="question_id", how="left", maintain_order="left")
        return joined.with_columns(pl.col("tier").fill_null(own).alias("difficulty")).drop("tier")


def _no_question(split: str, paths: Sequence[Path]) -> UsageError:
    named = ", ".join(f"`{path}`" for path in paths)
    return UsageError(
        f"split `{split}` has no question" + (f": {named} holds no record" if named else ""),
        hint="put the data there, or correct the path in the manifest" if named else None,
    )


def _too_many(bad_rows: Sequence[str], allowed: int, *, none_good: bool) -> StageError:
    shown = "\n".join(f"  {line}" for line in bad_rows[:_BAD_ROWS_SHOWN])
    more = len(bad_rows) - _BAD_ROWS_SHOWN
    rest = f"\n  and {more} more" if more > 0 else ""
    return StageError(
        f"{len(bad_rows)} malformed row{'' if len(bad_rows) == 1 else 's'}, {allowed} allowed:\n"
        f"{shown}{rest}",
        hint="no row has this layout: correct the file, or choose another `kind`; "
        "`mbt help manifest` lists them"
        if none_good
        else f"correct the file, or set `max_bad_rows = {len(bad_rows)}` to leave them out",
    )
