"""Which replies a run of a cell may reuse: those of the server that it would ask."""

from mbt_cli.core.origin import Origin
from mbt_cli.engine.plan import asked_model
from mbt_cli.engine.states import CellState
from mbt_cli.inference.origins import check_origin, recorded_origins
from mbt_cli.stages.ask import AsksModel
from mbt_cli.store.cells import JOURNAL
from mbt_cli.store.lineage import ROWS, Lineage


def check_begun(state: CellState) -> None:
    """Refuse to go on with a cell that was begun on another server.

    Raises:
        OtherServerError: Its journal has replies of another endpoint than the manifest's.
    """
    if name := _origin_name(state):
        recorded = recorded_origins(state.folder / JOURNAL)
        check_origin(recorded, Origin(name=name), state.cell.address)


def reuses_rows(state: CellState) -> bool:
    """Whether a run may reuse the replies in rows.parquet."""
    if not isinstance(state.cell.stage, AsksModel) or not (state.folder / ROWS).is_file():
        return False
    name = _origin_name(state)
    if name is None:
        return True
    if state.lineage is None:  # rows of another server, if `--replace` was killed at its end
        return not recorded_origins(state.folder / JOURNAL)
    made = recorded_origin(state.lineage)
    return made is None or made.has_name(name)


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
