"""Which replies a run of a cell may reuse: undamaged ones of the server that it would ask."""

from mbt_cli.core.origin import Origin
from mbt_cli.engine.plan import asked_model
from mbt_cli.engine.states import CellState
from mbt_cli.inference.origins import check_origin, recorded_origins
from mbt_cli.stages.ask import AsksModel
from mbt_cli.store.cells import JOURNAL
from mbt_cli.store.lineage import ROWS, Lineage
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
