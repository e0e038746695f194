"""Export of a report: its tables, numbers, figures and page, to a folder, the hub or W&B."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.findings import installed
from mbt_cli.core.tables import TableData
from mbt_cli.errors import MbtError, MissingInputError, UsageError
from mbt_cli.report.files import read_table, table_files
from mbt_cli.report.formats import markdown
from mbt_cli.report.page import PAGE
from mbt_cli.store.cells import FILES
from mbt_cli.store.disk import writing_to
from mbt_cli.store.lineage import Lineage, read_lineage
from mbt_cli.store.reading import read_parquet_file, require_lineage

WANDB = "wandb:"
SUMMARY = "summary.parquet"

_FIGURES = (".png", ".svg", ".pdf")
_PROJECT = re.compile(r"(?:[A-Za-z0-9_-]+/)?[A-Za-z0-9_.-]{1,128}")
_ID_DIGITS = 16


@dataclass(frozen=True)
class ReportExport:
    """A finished report.

    Args:
        files: Folder of its files.
        lineage: Its lineage.
        tables: Its tables, unrounded.
        summary: Every number of the scores that it reads, a row each: `address`, the axes,
            `metric`, `value` with its interval `low` and `high`, `n`, and `by` and `group` in a
            breakdown.
    """

    files: Path
    lineage: Lineage
    tables: Sequence[TableData]
    summary: pl.DataFrame


def read_report(cell: Path) -> ReportExport:
    """The finished report in the folder of a cell.

    Raises:
        MissingInputError: A score that it reads is gone.
        ArtifactError: A file of it is damaged.
    """
    lineage = require_lineage(cell)
    tables = [read_table(path) for path in table_files(cell)]
    study = cell.parents[lineage.address.count("/")]
    return ReportExport(cell / FILES, lineage, tables, _summary(study, lineage))


def _summary(study: Path, report: Lineage) -> pl.DataFrame:
    frames = []
    for address in report.inputs:
        lineage = read_lineage(study / address)
        if lineage is None:
            raise MissingInputError(
                f"`{address}`, which the report reads, is not there", hint="run `mbt report` again"
            )
        if lineage.kind in ("score", "harness"):
            scores = read_parquet_file(study / address, f"{FILES}/{SUMMARY}", lineage)
            axes = [pl.lit(value).alias(axis) for axis, value in axes_of(address).items()]
            labels = [pl.lit(address).alias("address"), *axes]
            frames.append(scores.select(*labels, pl.all()).collect())
    return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()


def configs(report: ReportExport) -> list[dict[str, str]]:
    """The configurations of the data set on the hub: the numbers, and each table."""
    tables = [
        {"config_name": table.name, "data_files": f"tables/{table.name}.parquet"}
        for table in report.tables
    ]
    return [{"config_name": "summary", "data_files": SUMMARY}, *tables]


def tables_text(report: ReportExport) -> str:
    """Every table in Markdown."""
    return "\n\n".join(markdown(table).strip() for table in report.tables)


def write_report(report: ReportExport, folder: Path) -> None:
    """Write tables, numbers, figures and the page into an empty folder."""
    with writing_to(folder):
        report.summary.write_parquet(folder / SUMMARY)
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        (folder / "figures").mkdir(exist_ok=True)
        for path in sorted(report.files.iterdir()):
            if path.is_file():
                into = "figures" if path.suffix in _FIGURES else "tables"
                shutil.copyfile(path, folder / into / path.name)
        if (report.files / PAGE).is_dir():
            shutil.copytree(report.files / PAGE, folder / "page", dirs_exist_ok=True)


# --- Weights & Biases


def wandb_values(report: ReportExport) -> dict[str, float]:
    """The summary of a run: STAGE/AXIS VALUES/METRIC to the value, without breakdowns.

    Example: `scores/hotpotqa-validation-qwen3-4b/exact_match`.
    """
    if report.summary.is_empty():
        return {}
    whole = report.summary.filter(pl.col("by").is_null(), pl.col("value").is_not_null())
    return {
        f"{_place(row['address'])}/{row['metric']}": row["value"]
        for row in whole.iter_rows(named=True)
    }


def _place(address: str) -> str:
    stage = address.partition("/")[0]
    values = "-".join(axes_of(address).values())
    return f"{stage}/{re.sub(r'[^A-Za-z0-9_.-]+', '_', values)}" if values else stage


def refusal_of_wandb(to: str) -> UsageError | None:
    """Why nothing can be logged there, with what to type; None if it can."""
    if not _PROJECT.fullmatch(to.removeprefix(WANDB)):
        return UsageError(
            f"`{to}` is not a project of Weights & Biases",
            hint="--to wandb:PROJECT or --to wandb:ENTITY/PROJECT",
        )
    if installed("wandb") is None:
        return UsageError("Weights & Biases is not installed", hint="pip install wandb")
    return None


def log_to_wandb(report: ReportExport, to: str) -> str:
    """Log a report as one run: its numbers as the summary, tables, figures, and its files.

    The run is in the group of the study, beside its trainings. Its id follows from the report's
    content, so that logging it again continues the same run. WANDB_MODE, WANDB_DIR and
    WANDB_API_KEY work as in wandb.

    Args:
        report: The report.
        to: `wandb:PROJECT` or `wandb:ENTITY/PROJECT`.

    Returns:
        Address of the run, or the command that uploads an offline run.

    Raises:
        UsageError: Not the name of a project, or wandb is not installed.
        MbtError: The server refuses or cannot be reached.
    """
    if refused := refusal_of_wandb(to):
        raise refused
    import wandb
    from wandb.errors import Error

    entity, _, project = to.removeprefix(WANDB).rpartition("/")
    lineage = report.lineage
    try:
        run = wandb.init(
            entity=entity or None,
            project=project,
            group=lineage.study,
            job_type="report",
            name=f"{lineage.study} {lineage.address}",
            id=f"report-{lineage.fingerprint[:_ID_DIGITS]}",
            resume="allow",
            config=_facts(lineage),
            # neither the terminal nor the state of this machine belongs to the report
            settings=wandb.Settings(
                console="off", disable_git=True, x_disable_stats=True, silent=True
            ),
        )
        with run:
            run.summary.update(wandb_values(report))
            run.log(dict(_media(report, wandb)))
            files = wandb.Artifact(f"{lineage.study}-{lineage.stage}", type="report")
            files.add_dir(str(report.files))
            run.log_artifact(files)
            place = f"wandb sync {Path(run.dir).parent}" if run.offline else str(run.url)
    except Error as error:
        raise MbtError(
            f"Weights & Biases: {error}",
            hint="log in by `wandb login`, or set WANDB_MODE=offline and upload later",
        ) from error
    return place


def _facts(lineage: Lineage) -> Mapping[str, str]:
    return {
        "study": lineage.study,
        "address": lineage.address,
        "fingerprint": lineage.fingerprint,
        "mbt": lineage.code.version,
        "commit": lineage.code.commit or "",
    }


def _media(report: ReportExport, wandb: Any) -> Iterator[tuple[str, Any]]:
    frames = {f"tables/{table.name}": table.rows for table in report.tables}
    for name, frame in {"summary": report.summary, **frames}.items():
        plain = frame.select(pl.all().exclude(pl.List, pl.Struct))
        rows = [list(row) for row in plain.iter_rows()]
        if rows:
            yield name, wandb.Table(columns=plain.columns, data=rows)
    for path in sorted(report.files.glob("*.png")):
        yield f"figures/{path.stem}", wandb.Image(str(path))
