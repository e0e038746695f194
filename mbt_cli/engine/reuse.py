"""Which replies a run of a cell may reuse: undamaged ones of the server that it would ask."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import polars as pl

from mbt_cli.core.origin import Origin
from mbt_cli.engine.plan import asked_model
from mbt_cli.engine.states import CellState
from mbt_cli.inference.journal import import_rows, lendable_keys
from mbt_cli.inference.loop import first_requests
from mbt_cli.inference.origins import check_origin, record_origin, recorded_origins
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.stages.ask import AsksModel
from mbt_cli.store.cells import JOURNAL
from mbt_cli.store.lineage import ROWS, Lineage, read_lineage
from mbt_cli.store.parquet import footer_metadata, intact_rows, row_count


def check_begun(state: CellState) -> None:
    """Refuse to go on with a cell that was begun on another server.

    Raises:
        OtherServerError: Its journal has replies of another endpoint than the manifest's.
    """
    if name := _origin_name(state):
        recorded = recorded_origins(state.folder / JOURNAL)
        check_origin(recorded, Origin(name=name), state.cell.address)


def reusable_rows(state: CellState) -> tuple[list[range], int]:
    """The rows of a finished cell whose replies a run may reuse, and the number of damaged ones.

    Reads every byte of rows.parquet. Rows without a lineage, which a user has moved away, are
    taken as they are.

    Raises:
        ArtifactError: Such rows are not a Parquet file.
    """
    rows, lineage, name = state.folder / ROWS, state.lineage, _origin_name(state)
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
    intact = intact_rows(rows, lineage.files[ROWS])
    return intact, lineage.rows - sum(map(len, intact))


class Lenders:
    """Finished cells with replies that may answer requests of other cells.

    The request keys of each are read once, so that thousands of cells can look for theirs.

    Args:
        folders: The cells' folders; unfinished ones are left out until `add`.
        since: Cells that were begun before lend nothing.
    """

    def __init__(self, folders: Iterable[Path], since: datetime | None) -> None:
        self._since = since
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
        if lineage is None or (self._since is not None and lineage.started_at < self._since):
            return
        try:
            keys = lendable_keys(folder / ROWS)
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


def borrow_replies(state: CellState, batch: RequestBatch, lenders: Lenders) -> list[str]:
    """Add the replies of other finished cells to equal requests to the journal of a cell.

    Args:
        state: The cell.
        batch: Its requests.
        lenders: Cells that may have sent equal requests.

    Returns:
        Addresses of the cells that lend replies.
    """
    if lenders.is_empty:
        return []
    name, journal, found = _origin_name(state), state.folder / JOURNAL, []
    keys = pl.DataFrame({"request_key": [one.key for one in first_requests(batch)]})
    for folder, lineage in lenders.of(keys):
        origin = recorded_origin(lineage)
        if (origin is None) != (name is None) or (origin and name and not origin.has_name(name)):
            continue
        if folder == state.folder or _is_other(origin, journal):
            continue
        try:
            intact = intact_rows(folder / ROWS, lineage.files[ROWS])
        except (OSError, pl.exceptions.PolarsError):  # its own run reports the damage
            continue
        if not intact:
            continue
        if origin is not None:
            record_origin(journal, f"borrowed-{lineage.fingerprint[:12]}", origin)
        if import_rows(folder / ROWS, journal, intact, keys=keys):
            found.append(lineage.address)
    return found


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
