"""Which replies a run of a cell may reuse: undamaged ones of the server that it would ask."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

import polars as pl

from mbt_cli.core.origin import Origin
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.rows import STEPS_FILE
from mbt_cli.engine.plan import asked_model, asked_models
from mbt_cli.engine.states import CellState
from mbt_cli.inference.journal import import_rows, lendable_keys
from mbt_cli.inference.loop import first_requests
from mbt_cli.inference.origins import check_origin, record_origin, recorded_origins
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.stages.ask import AsksModel
from mbt_cli.store.cells import FILES, JOURNAL, cell_folder
from mbt_cli.store.lineage import ROWS, Lineage, read_lineage
from mbt_cli.store.parquet import footer_metadata, intact_rows, row_count
from mbt_cli.store.reply_index import record_cell, recorded_cells


def check_begun(state: CellState) -> None:
    """Refuse to go on with a cell that was begun on another server.

    Raises:
        OtherServerError: Its journal has replies of another endpoint than the manifest's, be it of
            the stage's own model or of one that plays a role.
    """
    for number, model in enumerate(asked_models(state)):
        if name := model.backend.origin():
            of = model.name if number else ""  # the first is the stage's own
            recorded = recorded_origins(state.folder / JOURNAL, of)
            check_origin(recorded, Origin(name=name), state.cell.address)


def replies_of(folder: Path, lineage: Lineage | None, *, has_steps: bool = False) -> Path:
    """The file with every reply of a cell: its rows, or the steps of its rollouts.

    Args:
        folder: The cell's folder.
        lineage: Its lineage, if it has one.
        has_steps: Without a lineage, whether its program makes several requests.
    """
    steps = f"{FILES}/{STEPS_FILE}"
    has_steps = has_steps if lineage is None else steps in lineage.files
    return folder / (steps if has_steps else ROWS)


def replies_file(state: CellState) -> Path:
    """`replies_of` a cell of the study."""
    return replies_of(state.folder, state.lineage, has_steps=state.cell.resolution.has_steps)


def reusable_rows(state: CellState) -> tuple[list[range], int]:
    """The rows of a finished cell whose replies a run may reuse, and the number of damaged ones.

    Reads every byte of `replies_file`. Rows without a lineage, which a user has moved away, are
    taken as they are.

    Raises:
        ArtifactError: Such rows are not a Parquet file.
    """
    rows, lineage, name = replies_file(state), state.lineage, _origin_name(state)
    if not isinstance(state.cell.stage, AsksModel):
        return [], 0
    if lineage is None:
        # rows of another server remain if `--replace` is killed at its end
        is_unsure = name is not None and recorded_origins(state.folder / JOURNAL)
        if is_unsure or not rows.is_file():
            return [], 0
        footer_metadata(rows)
        return [range(row_count(rows))], 0
    made = recorded_origin(lineage)
    if name is not None and made is not None and not made.has_name(name):
        return [], 0
    intact = intact_rows(rows, lineage.files[rows.relative_to(state.folder).as_posix()])
    kept = sum(map(len, intact))
    if rows.name == ROWS:
        return intact, lineage.rows - kept
    steps = pl.scan_parquet(state.folder / ROWS, glob=False).select(pl.col("steps").sum())
    try:
        return intact, max(0, steps.collect().item() - kept)
    except (OSError, pl.exceptions.PolarsError):
        return intact, int(not kept)


class Lenders:
    """Finished cells with replies that may answer requests of other cells.

    The request keys of each are read once, so that thousands of cells can look for theirs.

    Args:
        folders: The cells' folders; unfinished ones are left out until `add`.
        accepts: How failures begin that are good replies too.
    """

    def __init__(self, folders: Iterable[Path], accepts: Sequence[str] = ()) -> None:
        self.accepts = accepts
        self._lineages: dict[Path, Lineage] = {}
        self._folders: list[Path] = []
        self._hashes: list[pl.DataFrame] = []
        for folder in folders:
            self.add(folder)

    @property
    def is_empty(self) -> bool:
        """Whether no cell lends replies."""
        return not self._folders

    def add(self, folder: Path) -> None:
        """Add a cell that is finished by now."""
        lineage = read_lineage(folder)
        if lineage is None:
            return
        try:
            keys = lendable_keys(replies_of(folder, lineage), self.accepts)
        except (OSError, pl.exceptions.PolarsError):  # its own run reports the damage
            return
        self._lineages[folder] = lineage
        place = pl.lit(len(self._folders), pl.UInt32).alias("place")
        self._folders.append(folder)
        self._hashes.append(keys.select(pl.col("request_key").hash(), place))

    def of(self, keys: pl.DataFrame) -> Iterator[tuple[Path, Lineage]]:
        """The cells that lend replies to these requests, in the order in which they were added."""
        if not self._hashes:
            return
        wanted = keys.select(pl.col("request_key").hash())
        lending = pl.concat(self._hashes, rechunk=False).join(wanted, on="request_key", how="semi")
        places = lending["place"].unique().sort()
        for folder in dict.fromkeys(self._folders[place] for place in places):
            yield folder, self._lineages[folder]


class Lending:
    """The finished cells that may answer a study's requests: its own, and those of this machine.

    Which of them a cell takes replies from, and gives its own to, is `[run] reuse` of its model.

    Args:
        manifest: The study.
        machine: Whose cache lists the cells of all studies.
        is_off: No cell takes replies from another one.
    """

    def __init__(self, manifest: Manifest, machine: Machine, *, is_off: bool = False) -> None:
        self._manifest, self._machine, self._is_off = manifest, machine, is_off
        self._lenders: dict[tuple[str, bool], Lenders] = {}

    def to(self, state: CellState, batch: RequestBatch) -> Lenders | None:
        """The cells that may lend replies to a cell with these requests; None if none may."""
        reuse = self._reuse(state)
        if self._is_off or reuse == "off":
            return None
        key = _group(state.cell), reuse == "machine"
        if key not in self._lenders:
            runs, study = self._machine.runs, state.cell.resolution.study
            own = [cell_folder(runs, study, address) for address in self._own.get(key[0], ())]
            others = recorded_cells(self._machine.cache, key[0]) if key[1] else []
            known = {folder.resolve() for folder in own}
            folders = [*own, *(folder for folder in others if folder not in known)]
            self._lenders[key] = Lenders(folders, batch.accepts)
        return self._lenders[key]

    def add(self, state: CellState) -> None:
        """Note a cell that was finished now."""
        reuse = self._reuse(state)
        if reuse == "off" or state.cell.resolution.source:
            return
        group = _group(state.cell)
        for (of, _), lenders in self._lenders.items():
            if of == group:
                lenders.add(state.folder)
        if reuse == "machine":
            record_cell(self._machine.cache, group, state.folder)

    def _reuse(self, state: CellState) -> str:
        model = asked_model(state) if isinstance(state.cell.stage, AsksModel) else None
        return "off" if model is None else model.run.reuse or self._machine.reuse

    @cached_property
    def _own(self) -> Mapping[str, Sequence[str]]:
        """Addresses of the study's cells that ask models, by group."""
        groups: dict[str, list[str]] = {}
        for address, cell in self._manifest.cells.items():
            if isinstance(cell.stage, AsksModel):
                groups.setdefault(_group(cell), []).append(address)
        return groups


def _group(cell: Cell) -> str:
    """Cells with equal requests agree in this: questions, and all settings but sizes that grow."""
    axes = cell.resolution.axes
    return sha256_of([cell.kind, axes.get("benchmark"), axes.get("split"), cell.base_spec])


def borrow_replies(
    state: CellState, batch: RequestBatch, lenders: Lenders, *, since: datetime | None = None
) -> list[str]:
    """Add the replies of other finished cells to equal requests to the journal of a cell.

    Args:
        state: The cell.
        batch: Its requests.
        lenders: Cells that may have sent equal requests.
        since: Cells that were begun before lend nothing.

    Returns:
        Addresses of the cells that lend replies; below the study's name if it is another one.
    """
    if lenders.is_empty:
        return []
    journal, found = state.folder / JOURNAL, []
    keys = _keys(batch)
    for folder, lineage in _fitting(state, lenders, keys):
        if since is not None and lineage.started_at < since:
            continue
        try:
            replies = replies_of(folder, lineage)
            intact = intact_rows(replies, lineage.files[replies.relative_to(folder).as_posix()])
        except (OSError, pl.exceptions.PolarsError):  # its own run reports the damage
            continue
        if not intact:
            continue
        if (origin := recorded_origin(lineage)) is not None:
            record_origin(journal, f"borrowed-{lineage.fingerprint[:12]}", origin)
        # which requests a program makes later follows from its replies: all may be wanted
        wanted = lendable_keys(replies, lenders.accepts) if batch.goes_on else keys
        if import_rows(replies, journal, intact, keys=wanted, accepts=lenders.accepts):
            is_own = lineage.study == state.cell.resolution.study
            found.append(lineage.address if is_own else f"{lineage.study}/{lineage.address}")
    return found


def lent_keys(state: CellState, batch: RequestBatch, lenders: Lenders) -> set[str]:
    """Keys of the requests whose replies `borrow_replies` would take, were all cells undamaged."""
    if lenders.is_empty:
        return set()
    keys, found = _keys(batch), set[str]()
    for folder, lineage in _fitting(state, lenders, keys):
        lent = lendable_keys(replies_of(folder, lineage), lenders.accepts)
        found.update(lent.join(keys, on="request_key", how="semi")["request_key"])
    return found


def _keys(batch: RequestBatch) -> pl.DataFrame:
    return pl.DataFrame({"request_key": [one.key for one in first_requests(batch)]})


def _fitting(
    state: CellState, lenders: Lenders, keys: pl.DataFrame
) -> Iterator[tuple[Path, Lineage]]:
    """Other cells with replies to these requests from the server that this cell would ask."""
    name, journal, own = _origin_name(state), state.folder / JOURNAL, state.folder.resolve()
    for folder, lineage in lenders.of(keys):
        origin = recorded_origin(lineage)
        if (origin is None) != (name is None) or (origin and name and not origin.has_name(name)):
            continue
        if folder.resolve() != own and not _is_other(origin, journal):
            yield folder, lineage


def is_begun_afresh(state: CellState) -> bool:
    """Whether the journal has replies of another server than the finished cell.

    A run with `replace` began so, and was stopped: the finished cell's replies stay out.
    """
    made = recorded_origin(state.lineage) if state.lineage else None
    return _is_other(made, state.folder / JOURNAL)


def return_replies(journal: Path) -> bool:
    """Remove the replies that other cells lent; returns whether there were any."""
    lent = [*journal.glob("borrowed-*.jsonl"), *journal.glob("origin-borrowed-*.json")]
    for path in lent:
        path.unlink(missing_ok=True)
    return bool(lent)


def _is_other(origin: Origin | None, journal: Path) -> bool:
    """Whether a journal has replies of another endpoint or model."""
    return origin is not None and any(
        not origin.has_name(one.name) or origin.other_model(one) is not None
        for one in recorded_origins(journal)
    )


def recorded_origin(lineage: Lineage) -> Origin | None:
    """Where the replies of a finished cell come from, unless mbt started the server.

    Lineages of older versions have only the address in the settings of the model.
    """
    if lineage.server is not None and lineage.server.origin is not None:
        return lineage.server.origin
    backend = (lineage.model or {}).get("backend") or {}
    address = backend.get("base_url")
    return Origin(name=address, addresses=(address,)) if address else None


def moved_from(state: CellState) -> str | None:
    """The endpoint that a finished cell was asked at, if the manifest now names another one."""
    name = _origin_name(state)
    made = recorded_origin(state.lineage) if name and state.lineage else None
    return made.name if made is not None and made.name != name else None


def _origin_name(state: CellState) -> str | None:
    model = asked_model(state)
    return None if model is None else model.backend.origin()
