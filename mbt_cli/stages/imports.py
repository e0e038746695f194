"""Stages whose `source` stands in for running them: rows that others made, as the same artifact."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.backends.weights import sampled_sha256
from mbt_cli.core import rows
from mbt_cli.core.chat import Json, Reply, Request
from mbt_cli.core.column_maps import ColumnMap, SourcePreset
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.notes import FUNNEL
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.errors import StageError, UsageError
from mbt_cli.stages.ask import failed_row
from mbt_cli.stages.base import Resolution, Stage, Work
from mbt_cli.stages.gates import Intake
from mbt_cli.stages.rewrite import RewriteStage
from mbt_cli.stages.rollout import RolloutStage
from mbt_cli.stages.synthesize import SynthesizeStage
from mbt_cli.store.hub import local_folder
from mbt_cli.store.imports import SourceRows, own_columns, pattern_of, read_foreign, read_published
from mbt_cli.store.questions import file_sha256
from mbt_cli.store.records import data_files
from mbt_cli.verifiers.text import extract_answer

MISSING = "not_in_source"
"""A row that the stage would have made and the source does not have."""

_ROWS_AT_ONCE = 2_000
_KEY = ["question_id", "sample"]


def source_spec(found: Resolution) -> Json:
    """What counts of a source for fingerprints: local files by their bytes, the hub by revision.

    Raises:
        MissingInputError: A local file is not there.
    """
    source, told = found.source_map, found.source
    if source is None or told is None:
        return _checkpoint_spec(told)
    spec = spec_of(source)
    if isinstance(source, SourcePreset) and local_folder(source.repo) is None:
        return {k: v for k, v in spec.items() if k != "licence"}
    kept = {k: v for k, v in spec.items() if k in ColumnMap.model_fields}
    return {**kept, "files": [file_sha256(path) for path in _local_files(found)]}


def _checkpoint_spec(told: str | None) -> Json:
    """A checkpoint from elsewhere: a folder by its content, wherever it stands."""
    if told is None or not (Path(told).expanduser() / "config.json").is_file():
        return told
    return {"sampled_sha256": sampled_sha256(Path(told).expanduser())}


def _local_files(found: Resolution) -> list[Path]:
    source = found.source_map
    if isinstance(source, SourcePreset):
        folder = local_folder(source.repo) or Path(source.repo)
        return data_files(folder / source.files(found.axes))
    return data_files(pattern_of(found.source or ""))


def sourced_rows(stage: Stage, work: Work) -> Iterator[pl.DataFrame]:
    """The cell's rows from its source, one way for each kind of stage.

    Rows about other questions, and beyond the stage's own numbers, are left out and counted; rows
    that the source does not have are failed ones with the reason `not_in_source`.

    Raises:
        StageError: No row is about a question of the cell.
        UsageError: The column map does not say enough.
    """
    read = _read(work.resolution, stage.columns(work.resolution), work)
    name = work.resolution.axes.get("model", work.resolution.source)
    work.outcome.model = {"name": name, "role": "source", "backend": {"kind": "source"}}
    match stage:
        case RolloutStage():
            yield from _rollouts(stage, read, work)
        case SynthesizeStage() | RewriteStage():
            yield from _traces(stage, read, work)
        case _:
            raise UsageError(f"a {stage.kind} stage cannot have a `source`")


def _read(found: Resolution, schema: pl.Schema, work: Work) -> SourceRows:
    source = found.source_map
    if isinstance(source, SourcePreset):
        read = read_published(source, found.axes, schema, work.hub)
    else:
        told, path = source or ColumnMap(columns={}), found.source or ""
        whole = told if told.columns else own_columns(path, schema, told)
        read = read_foreign(pattern_of(path), whole, schema)
    work.outcome.notes["source"] = {
        "from": found.source,
        "files": dict(read.files),
        "revision": read.revision,
        "rows": read.frame.height,
    }
    return read


def _placed(read: SourceRows, work: Work, most: dict[str, int]) -> pl.DataFrame:
    """Rows about the cell's questions, in the questions' order, with the gold answers.

    Args:
        read: What the source holds.
        work: The running cell.
        most: Column to the number that its values stay below.
    """
    asked = work.lazy("questions").select(
        "question_id", gold_answer="answer", gold_aliases="answer_aliases"
    )
    numbered = asked.with_row_index("question_row").collect()
    placed = read.frame.join(numbered, on="question_id", how="inner")
    address = work.resolution.address
    if placed.is_empty():
        raise StageError(
            f"none of the {read.frame.height} rows of `{work.resolution.source}` is about a "
            f"question of `{address}`; its first `question_id` is `{_first_id(read.frame)}`"
        )
    within = placed.filter(pl.col(name) < limit for name, limit in most.items())
    counts = {
        "in the source": read.frame.height,
        "about these questions": placed.height,
        "taken": within.height,
    }
    work.outcome.notes[FUNNEL] = counts
    if within.height < read.frame.height:
        left = read.frame.height - within.height
        work.progress.note(f"{address}: {left} rows of the source are not of this cell")
    order = ["question_row", *(n for n in ("sample", "trace_id") if n in within.columns)]
    return within.sort(order)


def _first_id(frame: pl.DataFrame) -> str | None:
    return frame["question_id"][0] if frame.height else None


def _rollouts(stage: RolloutStage, read: SourceRows, work: Work) -> Iterator[pl.DataFrame]:
    if read.frame.select(pl.col("reply", "answer").is_null().all()).row(0) == (True, True):
        raise UsageError(
            f"`{work.resolution.source}` gives rollouts neither a `reply` nor an `answer`",
            hint='say where one stands, as in `columns = { question_id = "id", reply = "output" }`',
        )
    placed = _placed(read, work, {"sample": stage.samples})
    answers = (
        pl.col("answer").fill_null(
            pl.col("reply").map_elements(_answer_in, return_dtype=pl.String())
        ),
    )
    yield placed.with_columns(answers).select(rows.ROLLOUTS.names())
    numbers = pl.DataFrame({"sample": range(stage.samples)}, schema={"sample": pl.Int64()})
    wanted = work.rows("questions").select("question_id").join(numbers, how="cross")
    yield from _missing(wanted.join(placed, on=_KEY, how="anti"), rows.ROLLOUTS)


def _answer_in(reply: str) -> str | None:
    return extract_answer(reply) or None


def _traces(
    stage: SynthesizeStage | RewriteStage, read: SourceRows, work: Work
) -> Iterator[pl.DataFrame]:
    if read.frame["trace"].is_null().all():
        raise UsageError(
            f"`{work.resolution.source}` gives no `trace`",
            hint='say where it stands, as in `columns = { question_id = "id", trace = "text" }`',
        )
    if isinstance(stage, RewriteStage):
        most = stage.traces_per_rollout
    else:
        most = stage.traces_per_question
    placed = _placed(read, work, {"trace_id": most})
    intake = Intake(stage.gates)
    for batch in placed.iter_slices(_ROWS_AT_ONCE):
        checked = [_checked(row, intake) for row in batch.iter_rows(named=True)]
        yield frame_of_rows(checked, rows.TRACES)
    questions = work.lazy("questions").select("question_id").collect()
    lost = questions.join(placed, on="question_id", how="anti").with_columns(
        sample=pl.lit(0, pl.Int64()), trace_id=pl.lit(0, pl.Int64())
    )
    yield from _missing(lost, rows.TRACES)
    intake.tell(work, work.outcome.notes[FUNNEL])


def _checked(row: dict[str, Any], intake: Intake) -> dict[str, Any]:
    """A row through the gates; a source that tells no finish reason is taken at its word."""
    answers = (row["gold_answer"], *(row["gold_aliases"] or ()))
    request = Request(
        "", row["question_id"], row["sample"], (), 0, {}, {"answers": answers, "made_from": {}}
    )
    reply = Reply(
        row["trace"], row["reasoning"], row["finish_reason"] or "stop", failure=row["failure"]
    )
    return {**{name: row[name] for name in rows.TRACES}, **intake.row(request, reply)}


def _missing(lost: pl.DataFrame, columns: pl.Schema) -> Iterator[pl.DataFrame]:
    for batch in lost.iter_slices(_ROWS_AT_ONCE):
        failed = [failed_row(columns, MISSING, **row) for row in batch.iter_rows(named=True)]
        yield frame_of_rows(failed, columns)
