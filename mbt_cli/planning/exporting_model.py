"""A finished training as a model repository for others: the checkpoint, its card, its lineage."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.cell_notes import TRAINING
from mbt_cli.core.chat import Json
from mbt_cli.core.model_card import CardModel, CardScore, model_card
from mbt_cli.core.training_job import CHECKPOINT, TRAINED_GGUF
from mbt_cli.errors import UsageError
from mbt_cli.planning.exporting import HUB, licences_of, new_folder
from mbt_cli.store.artifacts import FILES
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.hub_push import push_folder
from mbt_cli.store.lineage import LINEAGE, Lineage, read_lineage
from mbt_cli.store.reading import read_parquet_file, require_lineage
from mbt_cli.store.upstream import upstream

_CURVE = "loss.png"
_NOT_FACTS = ("curve", "versions")


def card_of_model(folder: Path) -> str:
    """The README.md of a train cell's checkpoint.

    Raises:
        UsageError: The cell holds no checkpoint.
    """
    lineage = require_lineage(folder)
    if not (folder / FILES / CHECKPOINT / "config.json").is_file():
        raise UsageError(f"`{folder}` holds no checkpoint")
    study = folder.parents[lineage.address.count("/")]
    behind = upstream(study, [lineage.address])
    commit = f", commit {lineage.code.commit}" if lineage.code.commit else ""
    spec = lineage.spec if isinstance(lineage.spec, dict) else {}
    model = (spec.get("models") or {}).get("model") or {}
    return model_card(
        CardModel(
            name=f"{lineage.study}: {lineage.address}",
            base=axes_of(lineage.address).get("model", "a model"),
            base_id=_base_id(model),
            recipe=_flat(_used(spec.get("recipe") or {})),
            facts=_facts(lineage),
            scores=list(_scores(study, lineage.address)),
            lineage={address: cell.fingerprint for address, cell in behind.cells.items()},
            licences=licences_of(behind),
            made_by=f"mbt {lineage.code.version}{commit}",
        )
    )


def export_model(folder: Path, to: str, access: HubAccess, *, private: bool) -> str:
    """Write the checkpoint with its card; gives where it is now.

    Args:
        folder: A finished train cell.
        to: `hub:ORG/NAME` or a folder that is not there yet, or empty.
        access: For the hub.
        private: Whether a new repository is seen by its owners alone.

    Raises:
        UsageError: The cell holds no checkpoint, the folder is not empty, or there is no token.
        MbtError: The disk or the hub refuses.
    """
    card = card_of_model(folder)
    if not to.startswith(HUB):
        target = new_folder(to)
        _write(folder, card, target)
        return str(target)
    with tempfile.TemporaryDirectory() as work:
        _write(folder, card, Path(work))
        return push_folder(Path(work), to.removeprefix(HUB), access, private=private, kind="model")


def _write(cell: Path, card: str, target: Path) -> None:
    files = cell / FILES
    with writing_to(target):
        # the GGUF beside it is mbt's own, for serving where training began from one
        left_out = shutil.ignore_patterns(TRAINED_GGUF)
        shutil.copytree(files / CHECKPOINT, target, dirs_exist_ok=True, ignore=left_out)
        if (files / _CURVE).is_file():
            shutil.copyfile(files / _CURVE, target / _CURVE)
    told = require_lineage(cell).model_dump(mode="json", exclude={"host"})
    write_atomically(target / LINEAGE, orjson.dumps(told, option=orjson.OPT_INDENT_2))
    write_atomically(target / "README.md", card.encode())


def _base_id(model: Mapping[str, Json]) -> str:
    backend = model.get("backend") or {}
    return str(backend.get("model") or model.get("id") or "unknown")


def _facts(lineage: Lineage) -> Mapping[str, Json]:
    told = lineage.notes.get(TRAINING) or {}
    return {k: v for k, v in told.items() if k not in _NOT_FACTS and v is not None}


def _used(recipe: Mapping[str, Json]) -> Mapping[str, Json]:
    """The settings without those that its method and its tuning do not read."""
    unread = {"rewards", "reward_words"} if recipe.get("method") == "sft" else set[str]()
    unread |= {"lora"} if recipe.get("tuning") == "full" else set()
    return {name: value for name, value in recipe.items() if name not in unread}


def _flat(table: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        elif value not in (None, [], ""):
            found[f"{prefix}{key}"] = value
    return found


def _scores(study: Path, address: str) -> Iterator[CardScore]:
    """Numbers of the score cells whose own rollouts this checkpoint made."""
    for path in sorted(study.rglob(LINEAGE)):
        lineage = read_lineage(path.parent)
        if lineage is None or lineage.kind != "score":
            continue
        reads: Mapping[str, list[str]] = lineage.notes.get("reads") or {}
        own = [read_lineage(study / rollouts) for rollouts in reads.get("rollouts", ())]
        if any(cell is not None and address in cell.inputs for cell in own):
            summary = read_parquet_file(path.parent, "files/summary.parquet", lineage).collect()
            for row in summary.filter(summary["by"].is_null()).iter_rows(named=True):
                wanted = ("metric", "unit", "value", "low", "high", "n")
                yield CardScore(cell=lineage.address, **{name: row[name] for name in wanted})
