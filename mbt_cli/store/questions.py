"""The questions of a benchmark: their files, the rows to use, and malformed rows."""

import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.benchmark_files import BenchmarkFiles, Cell, HubSource, PerSplit
from mbt_cli.core.chat import Json
from mbt_cli.core.column_maps import field_of, mapped_record
from mbt_cli.core.questions import Document, Question
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.errors import StageError, UsageError
from mbt_cli.store.disk import file_sha256
from mbt_cli.store.hub import HubAccess, HubRequest, fetch_files, local_folder
from mbt_cli.store.records import (
    Record,
    check_suffix,
    data_files,
    parquet_columns,
    read_frame,
    read_records,
)

Generate = Callable[[str], Iterator[Question] | None]
"""The generated questions of a split; None if the benchmark has files."""
MakeQuestion = Callable[[Mapping[str, Json]], Question]
Has = Callable[[Mapping[str, Json], str], bool]
"""Whether a record belongs to a split of the source."""
_Numbered = tuple[int, Question]

_BATCH_ROWS = 500
_BAD_ROWS_SHOWN = 5
_VALUES_SHOWN = 8
_MISSING = re.compile(r"`(\w+)` is missing")
_EMPTY = re.compile(r"`(\w+)` is empty")
_REPOSITORY = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_OWN_COLUMNS = frozenset(("question_id", "question", "answer", "context", "supporting", "position"))
_TIERS = ("easy", "medium", "hard")


_ANY_LAYOUT = HubSource(repo="", pattern="{config}/{split}-*.parquet", licence="", config="data")
"""Where the hub keeps the files of a data set without a configuration."""


_CHECKED_BYTES = 4_000_000
_CHECKED_RECORDS = 500
_CHECKED_GENERATED = 50
"""Generated questions of a split that each command makes: a study may have many splits."""


def check_split(benchmark: BenchmarkFiles, split: str, *, generate: Generate) -> None:
    """Refuse a split that a benchmark cannot have, without reading or fetching anything.

    Raises:
        UsageError: The benchmark has no such split or no source, or the file's format is unknown.
        MissingInputError: Its file does not exist.
    """
    if generate(benchmark.splits.get(split, split)) is not None:
        return
    if benchmark.source == "hub":
        hub_request(benchmark, split)
        return
    for path in _local_paths(benchmark, split):
        check_suffix(path)


def unknown_splits(
    benchmark: BenchmarkFiles, used: Collection[str], *, generate: Generate
) -> Iterator[tuple[str, str, Collection[str]]]:
    """Splits in `limit` and `sample` that nothing has: field, split and the splits that there are.

    Args:
        benchmark: The manifest's settings.
        used: Splits that cells of the study read.
        generate: The generated questions of a split.
    """
    named = benchmark.hub.split_names if benchmark.hub else {}
    known = {*used, *benchmark.files, *benchmark.splits, *named}
    for field_name in ("limit", "sample"):
        setting = getattr(benchmark, field_name)
        for split in setting if isinstance(setting, dict) else ():
            if split in known:
                continue
            try:
                is_made = generate(split) is not None
            except UsageError:
                is_made = False
            if not is_made:
                yield field_name, split, sorted(known)


def source_fingerprint(
    benchmark: BenchmarkFiles, split: str, *, generate: Generate
) -> Mapping[str, Json]:
    """Everything that determines the rows of a split, besides the fields of the benchmark.

    Local files count by their sha256, wherever they are (so that `files` and `difficulty` need
    not enter a fingerprint), the hub by repository, files and revision. A generator adds nothing,
    because its settings determine its questions.

    Raises:
        MissingInputError: A file does not exist.
        UsageError: The benchmark has no source.
    """
    found: dict[str, Json] = {}
    if tiers := _tier_files(benchmark):
        found["difficulty"] = [file_sha256(path) for path in tiers]
    if generate(benchmark.splits.get(split, split)) is not None:
        return found
    if benchmark.source == "hub":
        request = hub_request(benchmark, split)
        if local_folder(request.repo) is None:
            hub = {"repo": request.repo, "revision": request.revision}
            return {**found, "hub": {**hub, "files": request.patterns[0]}}
        paths = fetch_files(request, HubAccess(offline=True)).paths
    else:
        paths = tuple(_local_paths(benchmark, split))
    return {**found, "files": [file_sha256(path) for path in paths]}


def hub_request(benchmark: BenchmarkFiles, split: str) -> HubRequest:
    """The files of a split on the hub.

    Raises:
        UsageError: The benchmark has no hub repository, or another one without a revision.
    """
    official = benchmark.hub or _ANY_LAYOUT
    repo = benchmark.repo or official.repo
    if not repo:
        raise UsageError(
            '`source = "hub"` needs a data set: this kind has no official one',
            hint='name one with `repo = "OWNER/NAME"` and `revision = "COMMIT"`, or set '
            '`files = { test = "questions.jsonl" }` in place of `source`',
        )
    if local_folder(repo) is None and not re.fullmatch(_REPOSITORY, repo):
        raise UsageError(
            f"`repo = {benchmark.repo!r}` is neither a folder nor a data set on the hub",
            hint='write `repo = "OWNER/NAME"`, as in the address of its page',
        )
    is_pinned = benchmark.revision or repo == official.repo or local_folder(repo)
    if not is_pinned:
        raise UsageError(
            f"`repo = {benchmark.repo!r}` has no `revision`",
            hint='add `revision = "COMMIT"`, from the history of its files on the hub, so that the '
            "study always uses the same rows",
        )
    name = benchmark.splits.get(split) or official.split_names.get(split, split)
    config = benchmark.config or official.config
    return HubRequest(
        repo=repo,
        patterns=(_path_in_repo(benchmark.pattern or official.pattern, config, name),),
        revision=benchmark.revision or official.revision,
    )


def _path_in_repo(pattern: str, config: str, split: str) -> str:
    try:
        return pattern.format(config=config, split=split)
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(
            f"`pattern = {pattern!r}` has another placeholder than `{{config}}` and `{{split}}`",
            hint='write the path of the files in the repository: `"{config}/{split}-*.parquet"`',
        ) from error


def _local_paths(benchmark: BenchmarkFiles, split: str) -> Sequence[Path]:
    source_split = benchmark.splits.get(split, split)
    pattern = benchmark.files.get(source_split) or benchmark.files.get(split)
    if pattern is None:
        if benchmark.repo is not None and not benchmark.files:
            raise UsageError(
                f"`repo = {benchmark.repo!r}` is read from the hub only",
                hint='add `source = "hub"` beside it',
            )
        known = ", ".join(f"`{name}`" for name in sorted(benchmark.files)) or "none"
        raise UsageError(
            f"no file for split `{source_split}`; the splits in `files` are {known}",
            hint=f'add `files = {{ {source_split} = "..." }}`, or `source = "hub"`',
        )
    return data_files(Path(pattern).expanduser())


def _tier_files(benchmark: BenchmarkFiles) -> Sequence[Path]:
    return data_files(Path(benchmark.difficulty).expanduser()) if benchmark.difficulty else ()


@dataclass(slots=True)
class SplitReader:
    """Reads one split with the manifest's settings, in the official order and bounded memory.

    Args:
        benchmark: The manifest's settings: files or hub, limit, sample, difficulty, ...
        split: The study's name of the split; `splits` maps it to the source's.
        question: One official record as a question (`Benchmark.question`).
        generate: The generated questions of a split (`Benchmark.generate`).
        has: Whether a record belongs to a split (`Benchmark.has`).
        hub: Access to the hub.
        bad_rows: `file:line: problem` of each malformed row; complete after the last frame.
        files: Name of each file to its sha256; complete after the last frame.
        revision: Commit of the hub repository; None for local files and generators.
        metadata: Keys of the questions' metadata; known after `check` of small local files and of
            generators, else None.
        has_options: Whether one of the questions has options to choose from, where `metadata` is
            known.
    """

    benchmark: BenchmarkFiles
    split: str
    question: MakeQuestion
    generate: Generate
    hub: HubAccess
    has: Has = lambda record, split: True
    bad_rows: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    revision: str | None = None
    metadata: set[str] | None = None
    has_options: bool = False
    _left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    _columns: Sequence[str] = ()

    def check(self) -> None:
        """Read local files as `frames` does; of large ones only the first records.

        Raises:
            MbtError: What `frames` would raise about these records.
        """
        made = self.generate(self.benchmark.splits.get(self.split, self.split))
        if made is not None:
            self.metadata = set()
            for one in islice(made, _CHECKED_GENERATED):
                self.metadata.update(one.metadata)
                self.has_options |= bool(one.options)
            return
        if self.benchmark.source == "hub":
            return
        paths = _local_paths(self.benchmark, self.split)
        if sum(path.stat().st_size for path in paths) <= _CHECKED_BYTES:
            self.metadata = set()
            for _ in self.frames():
                pass
            return
        is_none_good = not any(True for _ in self._read(paths, most=_CHECKED_RECORDS))
        if len(self.bad_rows) > self.benchmark.max_bad_rows:
            raise self._too_many(none_good=is_none_good)

    def check_tiers(self) -> None:
        """Read the files of `difficulty`.

        Raises:
            UsageError: One cannot be used.
        """
        if paths := _tier_files(self.benchmark):
            _read_tiers(paths)

    def frames(self) -> Iterator[pl.DataFrame]:
        """`rows.QUESTIONS` in batches.

        `position` is the record's number in its source, so it has gaps where rows were malformed
        or not sampled.

        Raises:
            MissingInputError: A file does not exist.
            UsageError: The benchmark has no source, or the split has no questions.
            ArtifactError: A file as a whole cannot be read.
            StageError: More than `max_bad_rows` rows are malformed; the message lists the first.
        """
        paths: Sequence[Path] = ()
        generated = self.generate(self.benchmark.splits.get(self.split, self.split))
        if generated is not None:
            numbered: Iterable[_Numbered] = enumerate(generated)
        else:
            paths = self._paths()
            numbered = self._read(paths)
        tier_files = _tier_files(self.benchmark)
        tiers = _read_tiers(tier_files) if tier_files else None
        count = 0
        chosen = (_row(*one) for one in _chosen(numbered, self.benchmark, self.split))
        while batch := list(islice(chosen, _BATCH_ROWS)):
            count += len(batch)
            frame = frame_of_rows(batch, rows.QUESTIONS)
            yield _with_tiers(frame, tiers, self.benchmark.default_tier)
        if len(self.bad_rows) > self.benchmark.max_bad_rows:
            raise self._too_many(none_good=count == 0)
        if count == 0:
            raise _no_questions(self.split, paths, self._left_out)
        self.files = {path.name: file_sha256(path) for path in (*paths, *tier_files)}

    def _paths(self) -> Sequence[Path]:
        if self.benchmark.source != "hub":
            return _local_paths(self.benchmark, self.split)
        fetched = fetch_files(hub_request(self.benchmark, self.split), self.hub)
        self.revision = fetched.commit
        return fetched.paths

    def _read(self, paths: Iterable[Path], *, most: int | None = None) -> Iterator[_Numbered]:
        """Questions with their record's number; malformed records are added to `bad_rows`."""
        number, seen = -1, set[str]()
        for path in paths:
            is_own = parquet_columns(path) >= _OWN_COLUMNS
            for record in islice(read_records(path), most):
                number += 1
                self._columns = self._columns or tuple(record.value or ())
                try:
                    if record.value is None:
                        raise ValueError(record.problem)
                    if not self._passes(record.value):
                        continue
                    if is_own:
                        made = _own_question(record.value, self.benchmark.has_answers)
                    else:
                        mapped = mapped_record(record.value, self.benchmark.columns)
                        if not self.has(mapped, self.benchmark.splits.get(self.split, self.split)):
                            continue
                        made = self.question(mapped)
                    if made.question_id in seen:
                        raise ValueError("duplicate question id")
                except (ValueError, KeyError) as error:
                    what = str(error)
                    if isinstance(error, KeyError):
                        what = f"`{error.args[0]}` is missing"
                    elif (missing := _MISSING.fullmatch(what)) and missing[1] in self._columns:
                        what = f"`{missing[1]}` is empty"
                    elif self._lacks(empty := _EMPTY.fullmatch(what)) and empty:
                        what = f"`{empty[1]}` is missing"
                    self.bad_rows.append(f"{record.where}{_id_of(record)}: {what}")
                    continue
                seen.add(made.question_id)
                if self.metadata is not None:
                    self.metadata.update(made.metadata)
                    self.has_options |= bool(made.options)
                yield (record.value or {}).get("position", number) if is_own else number, made

    def _lacks(self, said: re.Match[str] | None) -> bool:
        """Whether a field that is said to be empty is not in the data at all."""
        return said is not None and said[1] not in {*self._columns, *self.benchmark.columns}

    def _too_many(self, *, none_good: bool) -> StageError:
        allowed, count = self.benchmark.max_bad_rows, len(self.bad_rows)
        are_alike = len({line.partition(": ")[2] for line in self.bad_rows}) == 1
        most = 1 if are_alike and none_good else _BAD_ROWS_SHOWN
        shown = "\n".join(f"  {line}" for line in self.bad_rows[:most])
        same = " with the same problem" if most == 1 else ""
        rest = f"\n  and {count - most:,} more{same}" if count > most else ""
        hint = f"correct the file, or set `max_bad_rows = {count}` to leave them out"
        if none_good:
            missing = _MISSING.search(self.bad_rows[0])
            column = missing[1] if missing and missing[1] not in self._columns else None
            if column is not None and column not in self.benchmark.columns and self._columns:
                names = ", ".join(f"`{name}`" for name in self._columns)
                hint = (
                    f'the data has {names}: say which it is, `columns = {{ {column} = "..." }}`, '
                    "or choose another `kind`"
                )
            elif "no column" in self.bad_rows[0]:
                hint = "correct the name of the column in the manifest"
            else:
                hint = "no row has this layout: correct the file, or choose another `kind`"
            hint = f"{hint}; `mbt help data` shows the layouts"
        return StageError(
            f"{count} malformed row{'' if count == 1 else 's'}, {allowed} allowed:\n{shown}{rest}",
            hint=hint,
        )

    def _passes(self, record: Mapping[str, Json]) -> bool:
        """Whether the rows to use include this one; remembers values that do not pass."""
        for column, wanted in self.benchmark.filter.items():
            found = field_of(record, column)
            if not any(_equal(found, one) for one in _listed(wanted)):
                others = self._left_out.setdefault(column, {})
                if len(others) < _VALUES_SHOWN:
                    others[str(found)] = None
                return False
        return True


def read_examples(benchmark: BenchmarkFiles, file: str, *, question: MakeQuestion) -> pl.DataFrame:
    """`rows.QUESTIONS` of a file with worked examples in the benchmark's layout, in its order.

    Raises:
        MissingInputError: The file does not exist.
        ArtifactError: It cannot be read.
        StageError: A record is malformed.
    """
    whole: dict[str, Any] = {"limit": None, "sample": None, "filter": {}, "max_bad_rows": 0}
    local: dict[str, Any] = {"source": None, "files": {file: file}, "splits": {}}
    made = benchmark.model_copy(update={**whole, **local, "difficulty": None})
    reader = SplitReader(made, file, question=question, generate=lambda _: None, hub=HubAccess())
    return pl.concat(reader.frames())


def _listed(wanted: Cell | tuple[Cell, ...]) -> tuple[Cell, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def _equal(found: Json, wanted: Cell) -> bool:
    """Whether a value is the one that a filter wants; values of CSV are text.

    Example:
        >>> _equal("5", 5), _equal(True, "true"), _equal("Physics", "physics"), _equal(1, True)
        (True, True, False, False)
    """
    if isinstance(found, bool) or isinstance(wanted, bool):
        return str(found).lower() == str(wanted).lower()
    return bool(found == wanted) or str(found) == str(wanted)


def _id_of(record: Record) -> str:
    """The record's id for messages, if it has one."""
    values = record.value or {}
    found = next((values[name] for name in ("_id", "id", "question_id") if values.get(name)), None)
    return f" (id `{found}`)" if found is not None else ""


def _own_question(row: Mapping[str, Json], has_answer: bool) -> Question:
    """A row of a questions Parquet file that mbt wrote, for any benchmark."""
    filled = ("question_id", "question", *(("answer",) if has_answer else ()), "position")
    for name in filled:
        if row[name] is None or row[name] == "":
            raise ValueError(f"`{name}` is empty")
    return Question(
        question_id=row["question_id"],
        question=row["question"],
        answer=row["answer"] or "",
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
        options=tuple(row.get("options") or ()),
        resolution=tuple(row.get("resolution") or ()),
    )


def _row(position: int, question: Question) -> dict[str, Json]:
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
        "options": question.options,
        "resolution": question.resolution,
    }


def _chosen(
    numbered: Iterable[_Numbered], benchmark: BenchmarkFiles, split: str
) -> Iterable[_Numbered]:
    """The first `limit`, and `sample` of those by the hash of their id.

    A larger `limit` or `sample` therefore only adds rows.
    """
    limit, count = _for_split(benchmark.limit, split), _for_split(benchmark.sample, split)
    if limit is not None:
        numbered = islice(numbered, limit)
    if count is None:
        return numbered

    def rank(item: _Numbered) -> str:
        return sha256_of([benchmark.sample_seed, item[1].question_id])

    return sorted(heapq.nsmallest(count, numbered, key=rank), key=lambda item: item[0])


def _for_split(setting: PerSplit | None, split: str) -> int | None:
    return setting.get(split) if isinstance(setting, dict) else setting


def _read_tiers(paths: Sequence[Path]) -> pl.DataFrame:
    """Columns question_id and tier of the user's files.

    Raises:
        UsageError: A file cannot be read, a column is missing, a tier is unknown, or an id occurs
            twice.
    """
    frames = []
    for path in paths:
        frame = read_frame(path, "tiers", text=True, error=UsageError)
        if missing := [name for name in ("question_id", "tier") if name not in frame.columns]:
            raise UsageError(
                f"`{path}` has no column `{missing[0]}`",
                hint="it needs the columns question_id and tier",
            )
        frames.append(frame.select(pl.col("question_id", "tier").cast(pl.String)))
        unknown = frames[-1].filter(~pl.col("tier").is_in(_TIERS))["tier"]
        if len(unknown):
            raise UsageError(
                f"`{path}` has the unknown tier `{unknown[0]}`; tiers are {', '.join(_TIERS)}"
            )
    tiers = pl.concat(frames)
    twice = tiers.filter(pl.col("question_id").is_duplicated())["question_id"]
    if len(twice):
        names = " and ".join(f"`{path}`" for path in paths)
        raise UsageError(f"{names}: duplicate question id `{twice[0]}`")
    return tiers


def _with_tiers(frame: pl.DataFrame, tiers: pl.DataFrame | None, default: str) -> pl.DataFrame:
    """Each question with the user's tier, else its own, else the default."""
    own = pl.col("difficulty").fill_null(default)
    if tiers is None:
        return frame.with_columns(own)
    joined = frame.join(tiers, on="question_id", how="left", maintain_order="left")
    return joined.with_columns(pl.col("tier").fill_null(own).alias("difficulty")).drop("tier")


def _no_questions(
    split: str, paths: Sequence[Path], left_out: Mapping[str, Iterable[str]]
) -> UsageError:
    if left_out:
        seen = "; ".join(f"`{name}` is {', '.join(found)}" for name, found in left_out.items())
        return UsageError(
            f"split `{split}` has no questions: no record passes `filter`",
            hint=f"in the data, {seen}",
        )
    names = ", ".join(f"`{path}`" for path in paths)
    hint = "put the data there, or correct the path in the manifest"
    if any(path.suffix in (".csv", ".tsv") for path in paths):
        hint += "; the first line of a table names its columns, and each other line is a question"
    return UsageError(
        f"split `{split}` has no questions" + (f": {names} has no records" if names else ""),
        hint=hint if names else None,
    )
