"""The rows of a training as tokens: made before it starts, in several processes, in shards.

The folder `tokens` of a training:

    settings.json    what the rows are made with, and when
    00000.arrow      rows of the first row group of the examples; ranks map it into memory
    00000.parquet    texts of all examples of this row group
    whole.json       the files with all rows; written last
"""

import multiprocessing
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mbt_cli.core import rows
from mbt_cli.core.cpus import usable_cpus
from mbt_cli.core.memory import allowed_bytes, return_freed_memory
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.sync import sync
from mbt_cli.core.training_job import (
    SHARD,
    TOKENS,
    TRAINING_SET,
    VALIDATION_SET,
    VALIDATION_TOKENS,
    WHOLE,
    TrainingJob,
)
from mbt_cli.training.mask import HINTS
from mbt_cli.training.problems import TrainingError
from mbt_cli.training.tokenizer import (
    ModelTokenizer,
    load_tokenizer,
    tokenizer_digest,
    without_torch,
)

_SETTINGS = "settings.json"
_TEXTS = ".parquet"
_PARTIAL = ".partial"
_PACKED = "packed"
_SAMPLE = "sample.txt"
_KEY = ("source", "question_id", "sample", "trace_id")
_ROWS_AT_ONCE = 100
_ROWS_A_GROUP = 500
"""Rows of a row group of the texts."""
_PROCESS_BYTES = 1 << 30
"""Memory reckoned for a process: a large tokenizer, long rows and their texts."""
_PACKAGES = ("mbt-cli", "transformers", "tokenizers")


@dataclass(frozen=True)
class RowSet:
    """Examples that become rows.

    Args:
        examples: Their Parquet file.
        tokens: Folder of the shards, in the training folder.
        texts: Name of the file with the texts, in the training folder and the artifact.
        missing: The problem if no row is left.
    """

    examples: str
    tokens: str = TOKENS
    texts: str = TRAINING_SET
    missing: str = "no row is left to train on"

    @classmethod
    def held_out(cls, examples: str) -> "RowSet":
        """The rows whose loss is measured while a model trains."""
        return cls(examples, VALIDATION_TOKENS, VALIDATION_SET, "no held-out row can be used")


class RowMaker(Protocol):
    """Turns examples into rows of a training method."""

    schema: ClassVar[pa.Schema]
    """Columns of a row."""
    texts: ClassVar[pl.Schema]
    """Columns of its texts: those of `rows.TRAINING_SET`, and others of the method."""

    def __init__(self, job: TrainingJob, tokenizer: ModelTokenizer) -> None: ...

    def row(self, example: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Columns of `texts`, and the row; None if the example is dropped.

        Raises:
            ChatTemplateError: The template cannot be trained with.
        """


@dataclass(frozen=True)
class Packing:
    """How TRL packs rows into longer ones.

    Args:
        length: Tokens of a packed row.
        strategy: `packing_strategy` of TRL.
        processes: `dataset_num_proc` of TRL; decides which rows can be packed together.
    """

    length: int
    strategy: str
    processes: int | None


def write_rows(
    job: TrainingJob,
    maker: type[RowMaker],
    rows_of: RowSet | None = None,
    *,
    packing: Packing | None = None,
    shuffled: bool = False,
    processes: int | None = None,
) -> None:
    """Write the rows and texts of a job's examples; complete shards of a killed run are kept.

    Rows are made once, with the time of the first run: a resumed run reads those, so that a chat
    template that contains the date cannot change them.

    Args:
        job: The training.
        maker: Makes its rows; a class of a module, since other processes import it.
        rows_of: The examples; by default those to train on.
        packing: Pack the rows.
        shuffled: Shuffle them by the job's seed, before and after packing.
        processes: Number of processes; by default one for each processor.

    Raises:
        ChatTemplateError: The template cannot be trained with.
        TrainingError: No row is left, or the tokenizer is not that of a checkpoint.
    """
    if packing is None:
        without_torch(job.weights)
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own would keep what a batch took
    of = rows_of or RowSet(job.examples)
    folder, texts = Path(job.folder) / of.tokens, Path(job.folder) / of.texts
    order = [astuple(packing) if packing else None, job.seed if shuffled else None]
    tokenizer = tokenizer_digest(load_tokenizer(job.weights))
    settings = [maker.__name__, job.recipe.max_length, job.template, order, tokenizer]
    return_freed_memory()
    _keep_matching(folder, sha256_of(settings), job)
    if not (folder / WHOLE).is_file():
        _make_shards((folder, of.examples, job, maker), processes or usable_cpus())
        _join_texts(folder, texts, maker)
        _refuse_without_rows(texts, of.missing)
        shards = _filled(folder)
        made = _arranged(folder, shards, packing, job.seed if shuffled else None)
        _write(folder / WHOLE, {"files": [path.name for path in made]})
    whole = {WHOLE, _SETTINGS, *orjson.loads((folder / WHOLE).read_bytes())["files"]}
    for path in folder.iterdir():
        if path.name not in whole:
            path.unlink()
    shutil.copyfile(texts, Path(job.files) / of.texts)
    if of.tokens == TOKENS:
        sample = _sample(texts)
        (Path(job.files) / _SAMPLE).write_text(sample, encoding="utf-8")


def _keep_matching(folder: Path, digest: str, job: TrainingJob) -> None:
    """Remove shards that were made with anything else, and note what the next are made with.

    Complete rows stay if only a package is newer: their training goes on with what it began with.
    """
    path = folder / _SETTINGS
    packages = {name: _version(name) for name in _PACKAGES}
    if path.is_file():
        found = orjson.loads(path.read_bytes())
        is_same = found["digest"] == digest
        if is_same and ((folder / WHOLE).is_file() or found["packages"] == packages):
            return
        checkpoints = Path(job.folder) / "checkpoints"
        if not is_same and any(checkpoints.glob("checkpoint-*")):
            raise TrainingError(
                f"the tokenizer or the chat template of `{job.weights.model}` has changed since "
                "this training began",
                f"restore it, or delete `{checkpoints}` to train from the start",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now().isoformat()  # noqa: DTZ005 - chat templates show local time
    _write(path, {"digest": digest, "packages": packages, "now": now})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_Work = tuple[Path, str, TrainingJob, type[RowMaker]]
"""Folder of the shards, file of the examples, training, and what makes the rows."""


def _make_shards(work: _Work, processes: int) -> None:
    """Make the shards that are missing, in as many processes as there is memory for."""
    folder, examples, _, _ = work
    every = range(pq.ParquetFile(examples).num_row_groups)
    missing = [number for number in every if not _shard(folder, number).is_file()]
    processes = min(processes, len(missing), allowed_bytes() // _PROCESS_BYTES)
    if processes <= 1:
        maker_of_all = _ShardMaker(*work)
        for number in missing:
            maker_of_all.make(number)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, work)
    try:
        for future in as_completed([pool.submit(_make, number) for number in missing]):
            future.result()
    except BrokenProcessPool as error:
        raise TrainingError(
            "a process that tokenizes was killed, most likely because memory ran out",
            "request more memory or fewer processors; the same command keeps what is tokenized",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


class _ShardMaker:
    """Makes the shards of one process."""

    def __init__(
        self, folder: Path, examples: str, job: TrainingJob, maker: type[RowMaker]
    ) -> None:
        now = datetime.fromisoformat(orjson.loads((folder / _SETTINGS).read_bytes())["now"])
        self._tokenizer = ModelTokenizer(load_tokenizer(job.weights), job.template, now)
        self._folder, self._job, self._maker = folder, job, maker
        self._examples = pq.ParquetFile(examples)
        return_freed_memory()  # of the tokenizer's file

    def make(self, number: int) -> None:
        """Write one shard and its texts; the shard has its name once both are complete."""
        # a new one for each, so that a shard does not depend on those before it
        maker = self._maker(self._job, self._tokenizer)
        shard, texts = _shard(self._folder, number), _texts(self._folder, number)
        partial = shard.with_suffix(_PARTIAL)
        schema = rows.arrow_schema(maker.texts)
        with (
            texts.open("wb") as text_file,
            pq.ParquetWriter(text_file, schema, compression="zstd") as text_writer,
            partial.open("wb") as file,
            pa.ipc.new_stream(file, maker.schema) as writer,
        ):
            for batch in self._examples.iter_batches(_ROWS_AT_ONCE, row_groups=[number]):
                made = [(example, *maker.row(example)) for example in batch.to_pylist()]
                told = [{**{key: e[key] for key in _KEY}, **text} for e, text, _ in made]
                text_writer.write_table(pa.Table.from_pylist(told, schema=schema))
                kept = [row for _, _, row in made if row is not None]
                writer.write_batch(_batch(kept, maker.schema))
        for path in (texts, partial):
            _sync(path)
        partial.replace(shard)


def _batch(made: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column([row[field.name] for row in made], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if type_ != pa.list_(pa.int32()):
        return pa.array(values, type_)
    # through NumPy: Arrow takes four times as long to read lists of Python's integers
    starts = np.cumsum([0, *map(len, values)], dtype=np.int32)
    tokens = np.fromiter(chain.from_iterable(values), np.int32, starts[-1])
    return pa.ListArray.from_arrays(starts, tokens)


_made_here: _ShardMaker
"""Makes the shards of this process, which a pool has started."""


def _begin(folder: Path, examples: str, job: TrainingJob, maker: type[RowMaker]) -> None:
    global _made_here
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    without_torch(job.weights)
    pa.set_memory_pool(pa.system_memory_pool())
    _made_here = _ShardMaker(folder, examples, job, maker)


def _end_with(parent: BaseProcess) -> None:
    parent.join()  # a pool's processes would wait for a parent that was killed
    os._exit(1)


def _make(number: int) -> None:
    _made_here.make(number)


def _join_texts(folder: Path, into: Path, maker: type[RowMaker]) -> None:
    """Write the texts of all shards as one file."""
    schema = rows.arrow_schema(maker.texts)
    partial = into.with_suffix(_PARTIAL)
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for path in sorted(folder.glob(f"*{_TEXTS}")):
            for batch in pq.ParquetFile(path).iter_batches(_ROWS_A_GROUP):
                writer.write_table(pa.Table.from_batches([batch]))
    partial.replace(into)


def _sample(texts: Path) -> str:
    """The first row that is trained on, as text."""
    for batch in pq.ParquetFile(texts).iter_batches(_ROWS_A_GROUP):
        table = pa.Table.from_batches([batch])
        for row in table.filter(pc.is_null(table["dropped"])).slice(0, 1).to_pylist():
            if row["completion"] is None:
                return ""
            text = f"{row['prompt']}\n>>> trained from here\n{row['completion']}\n<<< to here\n"
            if "rejected" in row:
                text += f">>> rejected\n{row['rejected']}\n<<< to here\n"
            return text
    return ""


def _refuse_without_rows(texts: Path, missing: str) -> None:
    dropped = pl.read_parquet(texts, columns=["dropped"])["dropped"]
    if dropped.is_null().any():
        return
    counts = dropped.str.split(":").list.first().value_counts(sort=True)
    reasons = "; ".join(f"{n} x {reason}" for reason, n in counts.rows())
    lengths = dropped.str.extract(r"^over_long: (\d+)").cast(pl.Int64).drop_nulls().to_list()
    shortest = f"; the shortest has {min(lengths)} tokens" if lengths else ""
    raise TrainingError(
        f"{missing} ({reasons}{shortest})",
        HINTS.get(counts["dropped"][0], f"check {texts}"),
    )


def _arranged(
    folder: Path, shards: Sequence[Path], packing: Packing | None, seed: int | None
) -> Sequence[Path]:
    """The files with the rows as they are trained on: shuffled and packed as TRL does it."""
    if packing is None and seed is None:
        return shards
    from datasets import Dataset, concatenate_datasets

    found = concatenate_datasets([Dataset.from_file(str(path)) for path in shards])
    if seed is not None:
        found = found.shuffle(seed=seed, keep_in_memory=True)
    if packing is not None:
        from trl import pack_dataset

        options = {
            "num_proc": packing.processes,
            "cache_file_name": str(folder / f"packed{SHARD}"),
            "load_from_cache_file": False,
        }
        found = pack_dataset(found, packing.length, packing.strategy, options)
        if seed is not None:
            found = found.shuffle(seed=seed, keep_in_memory=True)
    if seed is not None:
        found = found.flatten_indices(cache_file_name=str(folder / f"shuffled{SHARD}"))
    made = [Path(file["filename"]) for file in found.cache_files]
    for path in made:
        _sync(path)
    return made


def _filled(folder: Path) -> list[Path]:
    """The shards that have rows, in order."""
    shards = sorted(folder.glob(f"[0-9]*{SHARD}"))
    return [path for path in shards if pa.ipc.open_stream(pa.memory_map(str(path))).read_all()]


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:06}{SHARD}"


def _texts(folder: Path, number: int) -> Path:
    return folder / f"{number:06}{_TEXTS}"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_suffix(_PARTIAL)
    partial.write_bytes(orjson.dumps(content))
    _sync(partial)
    partial.replace(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        sync(file.fileno())
