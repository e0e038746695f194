"""`--dry-run`: the requests that a verb would send; nothing is sent or written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.core.chat import Message, Reply, Request
from mbt_cli.core.progress import Silent
from mbt_cli.core.rows import GATE, UNREADABLE
from mbt_cli.engine.reuse import Lending, check_begun, lent_keys, replies_file, reusable_rows
from mbt_cli.engine.runner import RunOptions, Servers, hub_access, load_input, server_place
from mbt_cli.engine.states import CellState, States
from mbt_cli.errors import StageError
from mbt_cli.inference.journal import JournalIndex
from mbt_cli.inference.loop import first_requests, requests_so_far
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.stages.ask import AsksModel
from mbt_cli.stages.base import LoadedInput, Work
from mbt_cli.stages.checkpoints import with_checkpoints
from mbt_cli.store.artifacts import can_complete_finish
from mbt_cli.store.cells import JOURNAL, cell_folder
from mbt_cli.store.lineage import ROWS

_ROWS_AT_ONCE = 1_000
_OF_REPLY = (
    *("reasoning", "finish_reason", "prompt_tokens", "completion_tokens", "reasoning_tokens"),
    *("seed", "attempts", "seconds", "failure"),
)


@dataclass(frozen=True)
class DryRun:
    """The work that a run would do for one cell.

    Args:
        requests: First requests that would be sent, and those whose reply would be reused; null
            if the stage asks no model or an input is missing.
        waits_for: The input that does not exist yet.
        first_prompt: The first conversation, rendered.
        goes_on: Whether later requests follow from the replies: those that are not known yet are
            not counted.
    """

    address: str
    status: str
    why: Sequence[str] = ()
    requests: tuple[int, int] | None = None
    waits_for: str | None = None
    first_prompt: Sequence[Message] = ()
    goes_on: bool = False


def dry_run(
    manifest: Manifest,
    machine: Machine,
    addresses: Sequence[str],
    options: RunOptions | None = None,
) -> Iterator[DryRun]:
    """The work that a run with these options would do for each cell, in order."""
    states, chosen = States(manifest, machine.runs), options or RunOptions()
    lending = Lending(manifest, machine, is_off=chosen.no_cache)
    for address in addresses:
        yield _dry_run(states, states[address], machine, lending, retry_failed=chosen.retry_failed)


def check_complete(manifest: Manifest, machine: Machine, addresses: Sequence[str]) -> None:
    """Refuse to merge shards before every request has its reply: merging sends nothing.

    Raises:
        StageError: Replies are missing; the message has the cell and their number.
    """
    for cell in dry_run(manifest, machine, addresses):
        new, known = cell.requests or (0, 0)
        folder = cell_folder(machine.runs, manifest.study, cell.address)
        if cell.status != "done" and new and not can_complete_finish(folder):
            raise StageError(
                f"`{cell.address}`: {new} of {new + known} requests have no reply yet",
                hint="run its missing shards again: "
                f"mbt run {manifest.path} --only {cell.address} --shard N/OF",
            )


def _dry_run(
    states: States, state: CellState, machine: Machine, lending: Lending, *, retry_failed: bool
) -> DryRun:
    cell = state.cell
    if not isinstance(cell.stage, AsksModel) or cell.resolution.source is not None:
        return DryRun(cell.address, state.status, state.why)
    for address in cell.needs:
        needed = states[address]
        if needed.status != "done" and needed.cell.kind != "questions":
            return DryRun(cell.address, state.status, state.why, waits_for=address)
    inputs = {
        name: tuple(_loaded(states[address], machine) for address in group)
        for name, group in cell.resolution.inputs.items()
    }
    check_begun(state)
    batch = cell.stage.request_batch(_work(cell, inputs, state.folder, machine))
    new = reused = 0
    first: Sequence[Message] = ()
    lenders = lending.to(state, batch)
    lent = set() if lenders is None else lent_keys(state, batch, lenders)
    if batch.goes_on and state.status == "done" and not retry_failed:
        return DryRun(cell.address, state.status, state.why, (0, _steps_made(state)))
    with ExitStack() as opened:
        if batch.goes_on:
            reply_of = opened.enter_context(_known_replies(state, retry_failed=retry_failed))
            requests = requests_so_far(batch, reply_of)
        else:
            is_known = opened.enter_context(_known_keys(state, retry_failed=retry_failed))
            requests = ((one, is_known(one.key)) for one in first_requests(batch))
        for request, has_reply in requests:
            first = first or request.messages
            known = has_reply or request.key in lent
            reused, new = reused + known, new + (not known)
    return DryRun(cell.address, state.status, state.why, (new, reused), None, first, batch.goes_on)


def _steps_made(state: CellState) -> int:
    """Number of requests behind the rows of a finished cell."""
    steps = pl.scan_parquet(state.folder / ROWS, glob=False).select(pl.col("steps").sum())
    return int(steps.collect().item())


@contextmanager
def _known_replies(
    state: CellState, *, retry_failed: bool
) -> Iterator[Callable[[Request], Reply | None]]:
    """The reply to a request, from the steps of the finished cell or from its journal."""
    stored = _StoredReplies(replies_file(state), reusable_rows(state)[0])
    with ExitStack() as opened:
        journal = state.folder / JOURNAL
        index = opened.enter_context(JournalIndex(journal)) if journal.is_dir() else None

        def reply_of(request: Request) -> Reply | None:
            standing = None if index is None else index.standing(request.key)
            if index is not None and standing is not None:
                is_kept = not (retry_failed and standing.failure)
                return index.reply(request.key) if is_kept else None
            found = stored.reply(request.key)
            return None if found is None or found.failure else found

        yield reply_of


class _StoredReplies:
    """Replies in a Parquet file with the columns of `rows.REPLY`, read a part at a time."""

    def __init__(self, path: Path, parts: Sequence[range]) -> None:
        self._path = path
        self._places: dict[str, int] = {}
        self._part: tuple[int, list[dict[str, Any]]] = -1, []
        if parts:
            keys = pl.scan_parquet(path, glob=False).select("request_key").collect()["request_key"]
            for part in parts:
                self._places |= {keys[n]: n for n in part if keys[n] is not None}

    def reply(self, key: str) -> Reply | None:
        """The reply to a request; None if the file has none."""
        if (place := self._places.get(key)) is None:
            return None
        number, within = divmod(place, _ROWS_AT_ONCE)
        if self._part[0] != number:
            rows = pl.scan_parquet(self._path, glob=False)
            part = rows.slice(number * _ROWS_AT_ONCE, _ROWS_AT_ONCE).select("reply", *_OF_REPLY)
            self._part = number, part.collect().rows(named=True)
        row = self._part[1][within]
        return Reply(text=row["reply"], **{name: row[name] for name in _OF_REPLY})


@contextmanager
def _known_keys(state: CellState, *, retry_failed: bool) -> Iterator[Callable[[str], bool]]:
    """Whether a request has a reply: in the rows, or in the journal of an unfinished run."""
    if state.status == "done" and not retry_failed:  # its failed rows stay as they are
        yield lambda key: True
        return
    folder = state.folder
    failure = pl.col("failure")
    has_reply = [failure.str.starts_with(reason) for reason in (GATE, UNREADABLE)]
    is_good = pl.any_horizontal(failure.is_null(), *has_reply)
    keys: set[str] = set()
    for part in reusable_rows(state)[0]:
        rows = pl.scan_parquet(folder / ROWS, glob=False).slice(part.start, len(part))
        keys |= set(rows.filter(is_good).select("request_key").collect()["request_key"])
    if not (folder / JOURNAL).is_dir():
        yield keys.__contains__
        return
    with JournalIndex(folder / JOURNAL) as index:

        def is_known(key: str) -> bool:
            found = index.standing(key)
            is_kept = found is not None and not (retry_failed and found.failure)
            return key in keys or is_kept

        yield is_known


def _work(
    cell: Cell, inputs: Mapping[str, tuple[LoadedInput, ...]], folder: Path, machine: Machine
) -> Work:
    return Work(
        resolution=with_checkpoints(cell.resolution, inputs),
        inputs=inputs,
        journal=folder / JOURNAL,
        files=folder,
        place=partial(server_place, machine, folder),
        open=Servers().open,
        hub=hub_access(machine),
        progress=Silent(),
    )


def _loaded(state: CellState, machine: Machine) -> LoadedInput:
    """A finished cell from the disk, or questions made in memory."""
    cell = state.cell
    if state.status == "done":
        return load_input(state.folder, cell.address)
    work = _work(cell, {}, state.folder, machine)
    rows = pl.concat(list(cell.stage.run(work))).lazy()
    axes = cell.resolution.axes
    return LoadedInput(cell.address, axes, cell.kind, state.folder, rows, None)
