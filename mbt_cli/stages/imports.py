"""Imports: rows from a stage's `source`, as the artifact that running the stage would make."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.backends.weights import sampled_sha256
from mbt_cli.core import rows
from mbt_cli.core.chat import Json, Reply
from mbt_cli.core.column_maps import ColumnMap, SourcePreset
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.lineage_notes import FUNNEL
from mbt_cli.core.questions import documents_text
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.traces import with_answering_text
from mbt_cli.errors import StageError, UsageError
from mbt_cli.stages.ask import failed_row
from mbt_cli.stages.base import Resolution, Stage, Work
from mbt_cli.stages.gates import Asked, GateResults, Gates
from mbt_cli.stages.rewrite import RewriteStage
from mbt_cli.stages.rollout import RolloutStage
from mbt_cli.stages.synthesize import SynthesizeStage
from mbt_cli.store.disk import file_sha256
from mbt_cli.store.hub import local_folder
from mbt_cli.store.imports import SourceRows, own_columns, pattern_of, read_foreign, read_published
from mbt_cli.store.records import data_files

_MISSING = "not_in_source"
"""Failure of a row that running the stage would make and the source does not have."""

_ROWS_AT_ONCE = 2_000
_KEY = ["question_id", "sample"]


def source_spec(found: Resolution) -> Json:
    """The source as it enters fingerprints: local files by content, hub data sets by revision.

    Raises:
        MissingInputError: A local file does not exist.
    """
    path, source = found.source, found.source_map
    if source is None or path is None:  # a checkpoint
        folder = Path(path or "").expanduser()
        is_local = path is not None and (folder / "config.json").is_file()
        return {"sampled_sha256": sampled_sha256(folder)} if is_local else path
    spec = spec_of(source)
    if isinstance(source, SourcePreset):
        repo = local_folder(source.repo)
        if repo is None:
            return {k: v for k, v in spec.items() if k != "licence"}
        files = str(repo / source.files(found.axes))
    else:
        files = pattern_of(path)
    kept = {k: v for k, v in spec.items() if k in ColumnMap.model_fields}
    return {**kept, "files": [file_sha256(file) for file in data_files(files)]}


def imported_rows(stage: Stage, work: Work) -> Iterator[pl.DataFrame]:
    """The cell's rows from its source.

    Rows about other questions, and samples or traces beyond the stage's numbers, are left out and
    counted. Rows that the source lacks become failed rows: `not_in_source`.

    Raises:
        StageError: No row is about a question of the cell.
        UsageError: The column map is incomplete.
    """
    source = _read(work.resolution, stage.columns(work.resolution), work)
    name = work.resolution.axes.get("model", work.resolution.source)
    work.result.model = {"name": name, "role": "source", "backend": {"kind": "source"}}
    match stage:
        case RolloutStage():
            yield from _rollouts(stage, source.frame, work)
        case SynthesizeStage():
            yield from _traces(stage.traces_per_question, stage.gates, source.frame, work)
        case RewriteStage():
            yield from _traces(stage.traces_per_rollout, stage.gates, source.frame, work)
        case _:
            raise UsageError(f"a {stage.kind} stage cannot have a `source`")


def _read(found: Resolution, schema: pl.Schema, work: Work) -> SourceRows:
    source = found.source_map
    if isinstance(source, SourcePreset):
        read = read_published(source, found.axes, schema, work.hub)
    else:
        columns, path = source or ColumnMap(columns={}), found.source or ""
        if not columns.columns:
            columns = own_columns(path, schema, columns)
        read = read_foreign(pattern_of(path), columns, schema)
    work.result.notes["source"] = {
        "from": found.source,
        "files": dict(read.files),
        "revision": read.revision,
        "rows": read.frame.height,
    }
    return read


def _rollouts(stage: RolloutStage, frame: pl.DataFrame, work: Work) -> Iterator[pl.DataFrame]:
    if frame.select(pl.col("reply", "answer").is_null().all()).row(0) == (True, True):
        raise UsageError(
            f"`{work.resolution.source}` gives rollouts neither a `reply` nor an `answer`",
            hint='map a column, as in `columns = { question_id = "id", reply = "output" }`',
        )
    placed = _placed(frame, work, {"sample": stage.samples})
    extract = work.answer_extraction()
    extracted = with_answering_text(placed)["reply"].map_elements(
        lambda text: extract(text) or None, return_dtype=pl.String()
    )
    answers = placed["answer"].fill_null(extracted)
    yield placed.with_columns(answers).select(rows.ROLLOUTS.names())
    numbers = pl.DataFrame({"sample": range(stage.samples)}, schema={"sample": pl.Int64()})
    wanted = work.rows("questions").select("question_id").join(numbers, how="cross")
    yield from _missing(wanted.join(placed, on=_KEY, how="anti"), rows.ROLLOUTS)


def _traces(most: int, gates: Gates, frame: pl.DataFrame, work: Work) -> Iterator[pl.DataFrame]:
    if frame["trace"].is_null().all():
        raise UsageError(
            f"`{work.resolution.source}` gives no `trace`",
            hint='map a column, as in `columns = { question_id = "id", trace = "text" }`',
        )
    placed = _placed(frame, work, {"trace_id": most})
    results = GateResults(gates, work.resolution.verifier_of(work.resolution.axes))
    questions = work.lazy("questions").select("question_id", "question", "context")
    for batch in placed.iter_slices(_ROWS_AT_ONCE):
        wanted = pl.col("question_id").is_in(batch["question_id"].unique().implode())
        asked = questions.filter(wanted).collect()
        by_id = {question["question_id"]: question for question in asked.iter_rows(named=True)}
        checked = [
            _checked(row, by_id[row["question_id"]], results) for row in batch.iter_rows(named=True)
        ]
        yield frame_of_rows(checked, rows.TRACES)
    lost = (
        questions.select("question_id")
        .collect()
        .join(placed, on="question_id", how="anti")
        .with_columns(sample=pl.lit(0, pl.Int64()), trace_id=pl.lit(0, pl.Int64()))
    )
    yield from _missing(lost, rows.TRACES)
    results.record(work, work.result.notes[FUNNEL])


def _checked(row: dict[str, Any], question: dict[str, Any], results: GateResults) -> dict[str, Any]:
    """A row with the gates applied; without a finish reason it counts as finished."""
    reply = Reply(
        row["trace"], row["reasoning"], row["finish_reason"] or "stop", failure=row["failure"]
    )
    asked = Asked(
        question_id=row["question_id"],
        answers=(row["gold_answer"], *(row["gold_aliases"] or ())),
        question=question["question"],
        documents=documents_text(question["context"] or ()),
    )
    checked = results.check(asked, reply)
    return {**{name: row[name] for name in rows.TRACES}, **checked}


def _placed(frame: pl.DataFrame, work: Work, most: dict[str, int]) -> pl.DataFrame:
    """Rows about the cell's questions, in the questions' order, with the gold answers.

    Args:
        frame: The rows of the source.
        work: The running cell.
        most: Column to the exclusive upper limit of its values.
    """
    asked = work.lazy("questions").select(
        "question_id", gold_answer="answer", gold_aliases="answer_aliases"
    )
    numbered = asked.with_row_index("question_row").collect()
    placed = frame.join(numbered, on="question_id", how="inner")
    address = work.resolution.address
    if placed.is_empty():
        first = frame["question_id"][0] if frame.height else None
        raise StageError(
            f"none of the {frame.height} rows of `{work.resolution.source}` is about a "
            f"question of `{address}`; its first `question_id` is `{first}`, that of the questions "
            f"`{numbered['question_id'][0] if numbered.height else None}`"
        )
    within = placed.filter(pl.col(name) < limit for name, limit in most.items())
    work.result.notes[FUNNEL] = {
        "in the source": frame.height,
        "about these questions": placed.height,
        "taken": within.height,
    }
    if within.height < frame.height:
        unused = frame.height - within.height
        work.progress.note(f"{address}: {unused} rows of the source do not belong to this cell")
    order = ["question_row", *(n for n in ("sample", "trace_id") if n in within.columns)]
    return within.sort(order)


def _missing(lost: pl.DataFrame, columns: pl.Schema) -> Iterator[pl.DataFrame]:
    for batch in lost.iter_slices(_ROWS_AT_ONCE):
        failed = [failed_row(columns, _MISSING, **row) for row in batch.iter_rows(named=True)]
        yield frame_of_rows(failed, columns)
