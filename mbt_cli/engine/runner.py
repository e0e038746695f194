"""The only way a cell is run: lock, inputs, rows, failure count, lineage."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType

import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Endpoint, Responder
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.jobs import JobId, Shard
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.names import own_utc_name
from mbt_cli.core.progress import Progress
from mbt_cli.core.rows import GATE
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import BackendError, Interrupted, MbtError, StageError, Stopped, UsageError
from mbt_cli.inference.ask import ask
from mbt_cli.inference.journal import import_rows
from mbt_cli.inference.loop import AskReport
from mbt_cli.interfaces import Backend
from mbt_cli.manifest.cell import Cell
from mbt_cli.registry import LAUNCHERS
from mbt_cli.settings import Machine
from mbt_cli.stages.ask import AsksModel
from mbt_cli.stages.base import LoadedInput, Stage, Work, WriteRows, no_rows
from mbt_cli.stages.imports import imported_rows
from mbt_cli.stages.trained import with_checkpoints
from mbt_cli.store import provenance
from mbt_cli.store.artifacts import JOURNAL, ArtifactWriter, complete_finish
from mbt_cli.store.cells import cell_folder, move_aside, record_failure
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.lineage import ROWS, InputRecord, Lineage, Requests, ServerRecord, read_lineage
from mbt_cli.store.locks import Lock, holding
from mbt_cli.store.logs import logging_to
from mbt_cli.store.reading import input_sha256, read_rows, require_lineage


class Servers:
    """A context in which backends stay open until another one is asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: tuple[str, Endpoint | Responder] | None = None

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def open(self, backend: Backend, place: ServerPlace) -> Iterator[Endpoint | Responder]:
        """The backend's endpoint: the one that runs already, if it is the same."""
        yield self._endpoint(backend, place)

    def _endpoint(self, backend: Backend, place: ServerPlace) -> Endpoint | Responder:
        key = sha256_of([type(backend).__name__, spec_of(backend), place.parallel])
        if self._running is not None and self._running[0] == key and _is_alive(self._running[1]):
            return self._running[1]
        self.close()
        endpoint = self._stack.enter_context(backend.open(place))
        self._running = (key, endpoint)
        return endpoint

    def close(self) -> None:
        """Stop the server that runs, if any."""
        self._running = None
        self._stack.close()


def _is_alive(endpoint: Endpoint | Responder) -> bool:
    if isinstance(endpoint, Responder) or endpoint.alive is None:
        return True
    try:
        endpoint.alive()
    except BackendError:
        return False
    return True


INHERITED = (
    *("rollout_failed", "solution_failed", "no_solution"),
    *("not_in_source", "not_valid_in_source", GATE),
)
"""How failures begin that a row has from what it was made from, or from a gate; the stage itself
did not fail there, so they never count against `max_failed_share`."""


class FailureShare:
    """Counts rows that failed in the stage itself, against the share that the study allows.

    Args:
        max_share: Of all rows of the cell, `max_failed_share` of the manifest.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._rows = 0
        self._reasons: Counter[str] = Counter()

    def add(self, frame: pl.DataFrame) -> None:
        """Count the rows of a frame."""
        self._rows += frame.height
        if "failure" in frame.columns:
            failures = frame["failure"].drop_nulls()
            self._reasons.update(f for f in failures if not f.startswith(INHERITED))

    def check(self, address: str) -> None:
        """Refuse a cell of which too much failed.

        Raises:
            StageError: With the commonest reasons.
        """
        failed = self._reasons.total()
        if failed <= self._max_share * self._rows:
            return
        most = "; ".join(f"{count} x {reason}" for reason, count in self._reasons.most_common(3))
        raise StageError(
            f"`{address}`: {failed} of {self._rows} rows failed, `max_failed_share` allows "
            f"{self._max_share:.1%} ({most})",
            hint="the good replies are kept: mend the cause and run the same command again, with "
            "`--retry-failed` if the server refused them; or raise `[study] max_failed_share`",
        )


def ask_shard(stage: Stage, work: Work, shard: Shard) -> AskReport:
    """Send what the journal does not hold of this shard's share.

    Raises:
        UsageError: The stage asks no model, so there is nothing to share.
    """
    address = work.resolution.address
    if not isinstance(stage, AsksModel) or work.resolution.source is not None:
        raise UsageError(f"`{address}` asks no model, so it has no shards")
    batch = stage.request_batch(work)
    total = None if batch.total is None else -(-(batch.total - shard.number + 1) // shard.of)
    share = replace(batch, tasks=lambda: shard.share(batch.tasks()), total=total)
    work.progress.start(f"{address} shard {shard}", total)
    return ask(share, work.journal, work.progress, writer=f"{shard.number}-of-{shard.of}")


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CellRun:
    """One cell to make, with the fingerprints that planning gave it.

    Args:
        replace: Move the finished artifact aside when the new one is whole.
        again: Make it though it is finished, since there is more to read now.
    """

    cell: Cell
    fingerprint: str
    base_fingerprint: str
    sizes: Mapping[str, int | None]
    max_failed_share: float
    replace: bool = False
    again: bool = False
    retry_failed: bool = False


def current_job(environment: Mapping[str, str]) -> JobId | None:
    """The job that this process belongs to, if a launcher started it."""
    for kind, launcher in LAUNCHERS.kinds().items():
        if launcher.job_id_variable and (own := environment.get(launcher.job_id_variable)):
            return JobId(kind, own)
    return None


def is_gone(job: JobId) -> bool:
    """Whether a job that holds a lock has left its queue for certain."""
    launcher = LAUNCHERS.find(job.launcher)
    return launcher is not None and launcher.gone(job.id)


class Runner:
    """Runs cells of one study on this machine."""

    def __init__(self, machine: Machine, servers: Servers, progress: Progress) -> None:
        self._machine = machine
        self._servers = servers
        self._progress = progress
        self._holding = partial(holding, job=current_job(machine.environment), is_gone=is_gone)

    def run(self, job: CellRun) -> Lineage:
        """Make one cell.

        Raises:
            LockedError: Another process makes it now.
            StageError: More rows failed than `max_failed_share` allows; what is there is kept.
            MbtError: Anything else that stopped it; replies so far are kept.
        """
        folder = self._folder(job, job.cell.address)
        with self._holding(folder) as lock, logging_to(folder / "logs", self._machine.environment):
            if finished := self._already_made(job, folder):
                return finished
            _log.info("%s begins, fingerprint %s", job.cell.address, job.fingerprint)
            try:
                return self._make(job, folder, lock)
            except (Stopped, Interrupted) as error:
                _log.warning("%s", error.message)
                raise
            except MbtError as error:
                _log.exception("%s failed", job.cell.address)
                record_failure(folder, job.cell.address, error, now=datetime.now(UTC))
                raise

    def run_shard(self, job: CellRun, shard: Shard) -> AskReport:
        """Ask one shard's share of a cell's requests; `run` makes the rows when all are there.

        Raises:
            LockedError: Another process makes the cell, or this shard of it, now.
            MbtError: Anything else that stopped it; replies so far are kept.
        """
        folder = self._folder(job, job.cell.address)
        held = (shard.number - 1, shard.of)
        logs = logging_to(folder / "logs", self._machine.environment)
        with self._holding(folder, shard=held), logs:
            groups = job.cell.resolution.inputs
            inputs = {name: self._load(job, name, groups[name]) for name in groups}
            work = self._work(job, inputs, folder / JOURNAL, folder)
            return ask_shard(job.cell.stage, work, shard)

    def _folder(self, job: CellRun, address: str) -> Path:
        return cell_folder(self._machine.runs, job.cell.resolution.study, address)

    def _already_made(self, job: CellRun, folder: Path) -> Lineage | None:
        """What another process, or a run that was killed at its very end, has made meanwhile."""
        complete_finish(folder)
        lineage = read_lineage(folder)
        same = lineage is not None and lineage.fingerprint == job.fingerprint
        wanted = job.replace or job.again or job.retry_failed
        return lineage if same and not wanted else None

    def _make(self, job: CellRun, folder: Path, lock: Lock) -> Lineage:
        provenance.begin()
        started, clock = datetime.now(UTC), monotonic()
        cell, journal = job.cell, folder / JOURNAL
        if (folder / ROWS).is_file() and isinstance(cell.stage, AsksModel):
            import_rows(folder / ROWS, journal)
        inputs = {
            name: self._load(job, name, cell.resolution.inputs[name])
            for name in cell.resolution.inputs
        }
        records = _input_records(inputs)
        columns = cell.stage.columns(cell.resolution)
        failures = FailureShare(job.max_failed_share)
        with ArtifactWriter(
            folder, columns, address=cell.address, fingerprint=job.fingerprint
        ) as writer:

            def write(frame: pl.DataFrame) -> None:
                failures.add(frame)
                writer.write(frame)

            work = self._work(job, inputs, journal, writer.files, write)
            for frame in _frames(cell, work):
                write(frame)
            failures.check(cell.address)
            lineage = _lineage(job, work, records, started)
            lock.check()
            if job.replace:
                move_aside(self._machine.runs, cell.resolution.study, folder, now=started)
            made = writer.finish(lineage.model_copy(update={"seconds": monotonic() - clock}))
        _log.info("%s is done: %d rows, %d failed", made.address, made.rows, made.failed_rows)
        return made

    def _load(self, job: CellRun, name: str, addresses: tuple[str, ...]) -> tuple[LoadedInput, ...]:
        """The cells behind an input; those not made yet are left out where the stage allows it."""
        rule = job.cell.stage.inputs.get(name)
        folders = {address: self._folder(job, address) for address in addresses}
        return tuple(
            load_input(folder, address)
            for address, folder in folders.items()
            if rule is None or not rule.partial or read_lineage(folder) is not None
        )

    def _work(
        self,
        job: CellRun,
        inputs: Mapping[str, tuple[LoadedInput, ...]],
        journal: Path,
        files: Path,
        write: WriteRows = no_rows,
    ) -> Work:
        return Work(
            resolution=with_checkpoints(job.cell.resolution, inputs),
            inputs=inputs,
            journal=journal,
            files=files,
            place=lambda run: server_place(self._machine, journal.parent, run),
            open=self._servers.open,
            write=write,
            hub=hub_access(self._machine),
            progress=self._progress,
            retry_failed=job.retry_failed,
        )


def _frames(cell: Cell, work: Work) -> Iterator[pl.DataFrame]:
    """The cell's rows: made, or from what stands in for making them."""
    is_sourced = cell.resolution.source_map is not None
    return imported_rows(cell.stage, work) if is_sourced else cell.stage.run(work)


def server_place(machine: Machine, folder: Path, run: RunSettings) -> ServerPlace:
    """Where a server that a cell starts keeps its log, and what it may use of this machine."""
    return ServerPlace(
        log=folder / "logs" / f"{own_utc_name()}.server.log",
        cache=machine.cache,
        environment=machine.environment,
        ready_timeout_seconds=run.server_ready_timeout_seconds,
        parallel=run.concurrency,
    )


def hub_access(machine: Machine) -> HubAccess:
    """How this machine may reach the hub."""
    environment = machine.environment
    return HubAccess(
        offline=machine.is_offline,
        endpoint=environment.get("HF_ENDPOINT") or None,
        token=environment.get("HF_TOKEN") or None,
    )


def load_input(folder: Path, address: str) -> LoadedInput:
    """A finished cell as an input.

    Raises:
        MissingInputError: It is not finished.
        ArtifactError: Its files are not what its lineage says.
    """
    lineage = require_lineage(folder)
    rows = read_rows(folder, lineage)
    return LoadedInput(address, axes_of(address), lineage.kind, folder, rows, lineage)


def _input_records(
    inputs: Mapping[str, tuple[LoadedInput, ...]],
) -> dict[str, InputRecord]:
    """Fingerprint and hash of every input; each byte is read once."""
    read = {cell.address: cell for group in inputs.values() for cell in group}
    return {
        address: InputRecord(
            fingerprint=cell.lineage.fingerprint, sha256=input_sha256(cell.folder, cell.lineage)
        )
        for address, cell in read.items()
        if cell.lineage is not None
    }


def _lineage(
    job: CellRun, work: Work, inputs: dict[str, InputRecord], started: datetime
) -> Lineage:
    cell, asked = job.cell, work.outcome.asked
    return Lineage(
        study=cell.resolution.study,
        stage=cell.stage.name,
        kind=cell.kind,
        address=cell.address,
        fingerprint=job.fingerprint,
        base_fingerprint=job.base_fingerprint,
        sizes=dict(job.sizes),
        spec=cell.spec,
        inputs=inputs,
        model=work.outcome.model,
        notes=work.outcome.notes,
        server=ServerRecord(version=asked.version, flags=asked.flags) if asked else None,
        requests=Requests(
            sent=asked.sent, retried=asked.retried, reused=asked.reused, failed=asked.failed
        )
        if asked
        else Requests(),
        started_at=started,
    )
