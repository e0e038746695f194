"""What a notebook or a script needs: load a manifest, run a study, read what it made.

`from mbt_cli import load_manifest, run, scan`
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.core.progress import Progress, Silent
from mbt_cli.engine.execute import Execution, RunOptions, RunReport
from mbt_cli.engine.select import select
from mbt_cli.engine.states import Status
from mbt_cli.errors import Interrupted
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import read_machine
from mbt_cli.store.cells import cell_folder
from mbt_cli.store.reading import scan_study

__all__ = ["Manifest", "StudyReport", "load_manifest", "run", "scan"]


@dataclass(frozen=True)
class StudyReport:
    """What a run did, and what every cell of the study is after it.

    Args:
        study: Name of the study.
        folder: Its folder, which holds every artifact.
        states: Address to `done`, `grown`, `stale`, `missing` or `failed`, for every cell.
        made: Addresses of the cells that this run made.
        done: Addresses of chosen cells that were done already.
        sent: Requests that were sent to models.
        reused: Replies that were not asked for again.
    """

    study: str
    folder: Path
    states: Mapping[str, Status]
    made: Sequence[str]
    done: Sequence[str]
    sent: int
    reused: int

    def cell(self, address: str) -> Path:
        """Folder of one cell, such as `base/benchmark=tiny/split=validation/model=m`."""
        return cell_folder(self.folder.parent, self.study, address)


def load_manifest(
    path: str | Path, *, overrides: Sequence[str] = (), presets: str | Path | None = None
) -> Manifest:
    """Read and check a manifest; nothing is run, nothing is asked of any network.

    Args:
        path: The manifest, or the bare name of one that mbt ships (`quickstart`).
        overrides: `KEY=VALUE` as after `--set`, such as `stage.base.samples=8`.
        presets: Folder with presets that win over all others.

    Returns:
        The checked study: `cells` by address, inputs before what reads them, and `counts()` of
        them by stage.

    Raises:
        ManifestError: Something is wrong with it; `problems` holds all that was found.
        UsageError: The file is not there, or an override is not KEY=VALUE.

    Example:
        >>> manifest = load_manifest("quickstart", overrides=["benchmarks.tinyhop.limit=2"])
        >>> manifest.counts()["base"]
        3
        >>> next(iter(manifest.cells))
        'questions/benchmark=tinyhop/split=validation'
    """
    folder = None if presets is None else Path(presets)
    return open_manifest(Path(path), overrides, folder)[0]


def run(
    manifest: Manifest | str | Path,
    *,
    kind: str | None = None,
    only: str | Sequence[str] = (),
    replace: bool = False,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> StudyReport:
    """Run cells of a study on this machine, as `mbt run` does; what is done is not done again.

    In a notebook, whose thread has an event loop already, it runs in a thread of its own.

    Args:
        manifest: From `load_manifest`, or the path of one.
        kind: Run the stages of this kind alone, as the verb of that name does (`rollout`).
        only: Cells to take, as after `--only`: `base/model=qwen*`, one or several.
        replace: Make stale cells again.
        retry_failed: Ask again for rows that failed, in finished cells too.
        progress: Told of every row that is done; nothing is printed.

    Raises:
        UsageError: The manifest is wrong, or `only` matches no cell.
        MissingInputError: An input that is not among the chosen cells is not made.
        StaleError: A cell is finished under other settings and `replace` was not said.
        MbtError: A cell failed; what came before it, and every reply of it, is kept.

    Example:
        >>> report = run("study.toml", only="base/model=parrot")  # doctest: +SKIP
        >>> set(report.states.values())  # doctest: +SKIP
        {'done', 'missing'}
    """
    study = manifest if isinstance(manifest, Manifest) else load_manifest(manifest)
    wanted = [only] if isinstance(only, str) else only
    machine = read_machine()
    addresses = select(study, kind=kind, only=wanted)
    execution = Execution(study, machine, RunOptions(replace, retry_failed))
    did = _run_beside_any_loop(execution, addresses, progress or Silent())
    execution.states.refresh(study.cells)
    states = {state.cell.address: state.status for state in execution.states.all()}
    folder = machine.runs / study.study
    return StudyReport(study.study, folder, states, did.made, did.done, did.sent, did.reused)


def scan(
    study: str | Path, stage: str | None = None, *, file: str = "rows.parquet"
) -> pl.LazyFrame:
    """Every finished cell of a study as one lazy frame, its axes as columns.

    Cells that are half written or were replaced are left out. A stale cell is read as it is:
    only a manifest can tell that it is stale.

    Args:
        study: Folder of a study, or its name below the runs folder.
        stage: One stage; left out, all of them.
        file: Which Parquet file of each cell, such as `files/summary.parquet`; cells that have
            none of that name are left out.

    Returns:
        The rows' own columns, then `stage`, `address` and one column an axis. Axes are always
        text (`1e-4` stays `1e-4`), null where a stage has no such axis. A column whose type
        differs from stage to stage is widened.

    Raises:
        MissingInputError: There is no finished cell.
        ArtifactError: A file is not the one that its lineage tells of.

    Example:
        >>> rows = scan("quickstart", "scores")  # doctest: +SKIP
        >>> rows.group_by("model", "metric").agg(pl.col("value").mean())  # doctest: +SKIP
    """
    return scan_study(_study_folder(study), stage, file)


class _StopsBetween:
    """Passes everything on, and ends the run where the next piece of work would begin."""

    def __init__(self, told: Progress) -> None:
        self._told = told
        self.is_interrupted = False

    def start(self, label: str, total: int | None) -> None:
        """A piece of work begins, unless the run is to end."""
        if self.is_interrupted:
            raise Interrupted("interrupted; everything done so far is kept")
        self._told.start(label, total)

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """So many more rows are done."""
        self._told.advance(done=done, failed=failed, reused=reused, tokens=tokens)

    def note(self, text: str) -> None:
        """One line worth telling."""
        self._told.note(text)


def _run_beside_any_loop(
    execution: Execution, addresses: Sequence[str], progress: Progress
) -> RunReport:
    """Run it where requests can have an event loop of their own: one a thread is the limit."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return execution.run(addresses, progress)
    guard = _StopsBetween(progress)
    with ThreadPoolExecutor(max_workers=1) as aside:
        running = aside.submit(execution.run, addresses, guard)
        try:
            return running.result()
        except KeyboardInterrupt:
            guard.is_interrupted = True  # and wait for the piece of work that is under way
            raise


def _study_folder(study: str | Path) -> Path:
    """A bare name is looked for in the runs folder first."""
    folder = Path(study)
    named = read_machine().runs / folder
    is_name = isinstance(study, str) and len(folder.parts) == 1
    return named if is_name and named.is_dir() else folder
