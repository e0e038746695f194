"""Evaluate checkpoints while their training runs: make what reads them, as they are published.

The cells are those of `mbt run`, and so are their locks and lineages: whoever comes first makes a
cell, and nobody makes it twice.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from mbt_cli.core.addresses import STEP
from mbt_cli.core.jobs import JobId
from mbt_cli.core.progress import Progress
from mbt_cli.engine.beside import is_training
from mbt_cli.engine.queues import is_gone
from mbt_cli.engine.runner import Runner, RunOptions, RunReport, Servers, hub_access
from mbt_cli.engine.select import WaitingError, select
from mbt_cli.engine.states import CellState, States
from mbt_cli.errors import LockedError, MbtError, MissingInputError, StageError, Stopped, UsageError
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.store.cells import FAILURE, cell_folder, published_steps, read_failure
from mbt_cli.store.lineage import LINEAGE
from mbt_cli.store.locks import living_and_dead

_POLL_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_COST_SHARE = 20
"""The watch sleeps this many times as long as a look at everything took, so that it never fills a
processor or a network file system; new steps end the pause."""
_QUEUE_SECONDS = 60.0
"""How often the queue is asked about the job that holds a lock."""
_UNREAD_SECONDS = 60.0
"""How long a manifest may be wrong or gone, as while somebody edits it, before the watch ends."""
_GRACE_SECONDS = 15.0
"""How long a training that has failed may stay without another try before the watch ends."""

Phase = Literal["not begun", "running", "ended", "failed"]


class Watch:
    """Makes chosen cells of a study as their inputs appear, until no training publishes any more.

    Args:
        manifest: The study.
        machine: This machine.
        options: As of a run; it always goes on after a cell that fails.
        choose: Chooses cells of the manifest as it is loaded then.
        until: A step after which sources of others are not watched any more.
        is_wanted: Whether the run still goes on whose training it watches.
    """

    def __init__(
        self,
        manifest: Manifest,
        machine: Machine,
        options: RunOptions,
        choose: Callable[[Manifest], Collection[str]],
        until: int | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.manifest, self._machine, self._options = manifest, machine, options
        self._choose, self._until, self._is_wanted = choose, until, is_wanted
        self._failed: dict[str, MbtError] = {}
        self._failed_since: dict[str, float] = {}
        self._queue: dict[JobId, tuple[float, bool | None]] = {}
        self._unread_since: float | None = None
        self.made: list[str] = []
        """Addresses of the cells that it has made so far."""
        self._sent = self._reused = 0

    def run(self, progress: Progress) -> RunReport:
        """Watch to the end.

        Raises:
            StageError: A cell or a training has failed; everything else is made.
            ManifestError: The manifest is wrong for longer than an edit takes.
            Stopped: The run that it was part of has ended.
        """
        shown = ""
        with Servers(hub_access(self._machine)) as servers:
            while True:
                if not self._is_wanted():
                    raise Stopped("the run that it was part of has ended; finished work is kept")
                began, before = time.monotonic(), self._signs()
                phases = self._phases()  # before the cells: what ends now has published all
                did = self._make_ready(servers, progress)
                if not did and self._unread_since is None and self._is_over(phases):
                    break
                if not did:
                    words = self._waits_for(phases)
                    if words != shown:
                        progress.note(words)
                        shown = words
                    self._pause(before, time.monotonic() - began)
                self._reload(progress)
        self._raise_failures(self._phases())
        return RunReport(self.made, [], self._sent, self._reused)

    def _reload(self, progress: Progress) -> None:
        """Load the manifest again; the last one stays while it is wrong.

        Raises:
            ManifestError: It is wrong for longer than an edit takes.
        """
        if self.manifest.load is None:
            return
        try:
            self.manifest = self.manifest.load()
            self._choose(self.manifest)
        except UsageError as error:
            now = time.monotonic()
            if self._unread_since is None:
                self._unread_since = now
                progress.note(f"{error.message}; the watch waits for its correction")
            elif now - self._unread_since >= _UNREAD_SECONDS:
                raise
        else:
            self._unread_since = None

    def _pause(self, before: Sequence[object], cost: float) -> None:
        """Wait until something has happened on disk, or long enough to look at everything."""
        end = time.monotonic() + min(_COST_SHARE * cost, _LONGEST_PAUSE_SECONDS)
        time.sleep(_POLL_SECONDS)
        while time.monotonic() < end and self._signs() == before:
            time.sleep(_POLL_SECONDS)

    def _signs(self) -> Sequence[object]:
        """What a few calls of the file system tell of trainings and sources: their steps, locks."""
        found: list[object] = [_time_of(self.manifest.path)]
        study, runs = self.manifest.study, self._machine.runs
        for address, cell in self.manifest.cells.items():
            if is_training(cell) and cell.resolution.steps:
                folder = cell_folder(runs, study, address)
                found += [published_steps(runs, study, address)]
                found += [_time_of(folder / name) is None for name in ("lock", LINEAGE, FAILURE)]
        return found

    def _make_ready(self, servers: Servers, progress: Progress) -> bool:
        """Make the chosen cells whose inputs are there; whether there were any."""
        states = States(self.manifest, self._machine.runs)
        ready = self._ready(states)
        if not ready:
            return False
        options = RunOptions(
            replace=self._options.replace,
            retry_failed=self._options.retry_failed,
            keep_going=True,
            no_cache=self._options.no_cache,
        )
        runner = Runner(self.manifest, self._machine, options, servers)
        try:
            report = runner.run(ready, progress)
        except StageError:  # some failed; which ones, their states say
            self.made += runner.made
        else:
            self.made += report.made
            self._sent += report.sent
            self._reused += report.reused
        # what another process makes now, and what lacks an input, is looked at again
        passing = (LockedError, MissingInputError)
        failed = {a: e for a, e in runner.failed.items() if not isinstance(e, passing)}
        self._failed |= failed
        return bool(runner.made or failed)

    def _ready(self, states: States) -> list[str]:
        """Chosen cells that nobody makes, with all that they read, inputs first."""
        found: dict[str, None] = {}
        for address in self._choose(self.manifest):
            cell = self.manifest.cells[address]
            if is_training(cell) or cell.training is not None:
                continue
            state = states[address]
            wanted = ("missing", "grown", "failed", *(["stale"] if self._options.replace else []))
            if state.status not in wanted or address in self._failed or self._is_held(state):
                continue
            if self._has_inputs(states, found, cell):
                found[address] = None
        return list(found)

    def _has_inputs(self, states: States, ready: Collection[str], cell: Cell) -> bool:
        """Whether what a cell reads is there, or among the cells that are made before it."""
        for name, group in cell.resolution.inputs.items():
            there = [a in ready or self._is_there(states[a]) for a in group]
            rule = cell.stage.inputs.get(name)
            enough = any if rule is not None and rule.partial else all
            if not enough(there):
                return False
        return True

    def _is_there(self, state: CellState) -> bool:
        """Whether a cell can be read; the checkpoint of a training with other settings cannot."""
        is_step = state.cell.training is not None
        return state.lineage is not None and not (is_step and state.status == "stale")

    def _is_held(self, state: CellState) -> bool:
        living, _ = living_and_dead(state.folder, self._runs, now=time.time())
        return bool(living)

    def _runs(self, job: JobId) -> bool | None:
        """Whether the job of a lock runs, as far as its queue says; asked once a minute."""
        asked, runs = self._queue.get(job, (-math.inf, None))
        if time.monotonic() - asked >= _QUEUE_SECONDS:
            runs = False if is_gone(job) else None
            self._queue[job] = time.monotonic(), runs
        return runs

    # Trainings

    def _phases(self) -> Mapping[str, Phase]:
        """How far each training is whose checkpoints are read."""
        states = States(self.manifest, self._machine.runs)
        found: dict[str, Phase] = {}
        for address, cell in self.manifest.cells.items():
            if not is_training(cell) or not cell.resolution.steps:
                continue
            state = states[address]
            if self._is_held(state):
                found[address] = "running"
                self._failed_since.pop(address, None)
            elif state.status == "done":
                found[address] = "ended"
            elif state.status == "failed" or read_failure(state.folder) is not None:
                since = self._failed_since.setdefault(address, time.monotonic())
                is_over = time.monotonic() - since >= _GRACE_SECONDS
                found[address] = "failed" if is_over else "running"
            else:
                found[address] = "not begun"
        return found

    def _is_over(self, phases: Mapping[str, Phase]) -> bool:
        if self._until is not None or not phases:
            return self._until is not None and self._has_step(self._until)
        return all(phase in ("ended", "failed") for phase in phases.values())

    def _has_step(self, step: int) -> bool:
        steps = [c.resolution.axes.get(STEP) for c in self.manifest.cells.values()]
        return any(one is not None and one.isdecimal() and int(one) >= step for one in steps)

    def _waits_for(self, phases: Mapping[str, Phase]) -> str:
        open_ones = [a for a, phase in phases.items() if phase in ("running", "not begun")]
        if not open_ones:
            return "waiting for the next folder of the source; Ctrl-C ends the watch"
        address = open_ones[0]
        if phases[address] == "not begun":
            state = States(self.manifest, self._machine.runs)[address]
            if state.status in ("stale", "grown"):
                again = f"mbt train {self.manifest.path}"
                again += " --replace" if state.status == "stale" else ""
                return f"waiting for the training `{address}`, made with other settings: `{again}`"
            return f"waiting for the training `{address}`, which does not run"
        return f"waiting for the next checkpoint of `{address}`"

    def _raise_failures(self, phases: Mapping[str, Phase]) -> None:
        failed = [a for a, phase in phases.items() if phase == "failed"]
        lines = [f"the training `{address}` has failed" for address in failed]
        lines += [f"`{address}`: {error.message}" for address, error in self._failed.items()]
        if lines:
            what = "\n".join([f"{len(lines)} cells failed; the others are made:", *lines])
            raise StageError(what, hint=f"mbt run {self.manifest.path}: what is made stays made")


def _time_of(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def to_watch(manifest: Manifest, *, only: Sequence[str] = ()) -> list[str]:
    """Cells that are made from checkpoints of steps, with the questions that they need.

    With `only`, the cells that its patterns select, and none while all of them wait for the first
    checkpoint.

    Raises:
        UsageError: A pattern matches no cell.
    """
    if only:
        try:
            return select(manifest, kind=None, only=only)
        except WaitingError:
            return []
    found: set[str] = set()
    for address, cell in manifest.cells.items():  # inputs come first
        if STEP in cell.resolution.axes or found & set(cell.needs):
            found.add(address)
    questions = {a for f in found for a in manifest.cells[f].needs if a.startswith("questions/")}
    return [address for address in manifest.cells if address in found | questions]
