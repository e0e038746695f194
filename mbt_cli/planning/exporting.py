"""A stage's cells as a data set for others: shards, lineage and a card."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.data_card import CardCell, data_card
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Benchmark
from mbt_cli.store.disk import write_atomically
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.hub_push import check_push, push_folder
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import require_lineage
from mbt_cli.store.shards_out import write_shards
from mbt_cli.store.upstream import Upstream, upstream

HUB = "hub:"
_NOT_STATED = "local files, licence not stated"
_KINDS = ("rollout", "synthesize", "rewrite")


@dataclass(frozen=True)
class Part:
    """One cell of an export: where it is, and what it is called there."""

    folder: Path
    lineage: Lineage
    config: str
    split: str


def parts_of(folders: Sequence[Path]) -> list[Part]:
    """Finished cells as parts of one data set.

    Raises:
        UsageError: They are not the rows of one stage.
    """
    found = []
    for folder in folders:
        lineage = require_lineage(folder)
        if lineage.kind not in _KINDS:
            raise UsageError(
                f"`{folder}` is a {lineage.kind} cell; {', '.join(_KINDS)} cells can be exported, "
                "and one train cell at a time"
            )
        axes = axes_of(lineage.address)
        split = axes.pop("split", "train")
        found.append(Part(folder, lineage, "-".join(axes.values()) or "default", split))
    stages = sorted({part.lineage.stage for part in found})
    if len(stages) != 1:
        raise UsageError(f"one stage at a time, not {', '.join(stages)}", hint="name its folder")
    return found


def card_of(parts: Sequence[Part]) -> str:
    """The data set's README.md."""
    behind = [_behind(part) for part in parts]
    first = parts[0].lineage
    commit = f", commit {first.code.commit}" if first.code.commit else ""
    return data_card(
        f"{first.study}: {first.stage}",
        [_card_cell(part, below) for part, below in zip(parts, behind, strict=True)],
        licences={k: v for below in behind for k, v in licences_of(below).items()},
        columns=list(first.columns),
        made_by=f"mbt {first.code.version}{commit}",
    )


def export(parts: Sequence[Part], to: str, access: HubAccess, *, private: bool) -> str:
    """Write the data set; gives where it is now.

    Args:
        parts: From `parts_of`.
        to: `hub:ORG/NAME` or a folder that is not there yet, or empty.
        access: For the hub.
        private: Whether a new repository is seen by its owners alone.

    Raises:
        UsageError: The folder is not empty, or there is no token.
        MbtError: The disk or the hub refuses.
    """
    if not to.startswith(HUB):
        folder = new_folder(to)
        _write(parts, folder)
        return str(folder)
    with tempfile.TemporaryDirectory() as work:
        _write(parts, Path(work))
        return push_folder(Path(work), to.removeprefix(HUB), access, private=private)


def refused(to: str, access: HubAccess) -> str:
    """Why `export` could not write there now, and what to do; empty where it could."""
    try:
        if to.startswith(HUB):
            check_push(to.removeprefix(HUB), access)
        else:
            new_folder(to)
    except UsageError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""


def new_folder(to: str) -> Path:
    """A folder that is not there yet, or empty.

    Raises:
        UsageError: It is not empty, or a file.
    """
    folder = Path(to).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"`{to}` is not empty", hint="name a new folder")
    return folder


def _write(parts: Sequence[Part], folder: Path) -> None:
    (folder / "lineage").mkdir(parents=True, exist_ok=True)
    for part in parts:
        write_shards(part.folder, part.lineage, folder / part.config, part.split)
        told = part.lineage.model_dump(mode="json", exclude={"host"})
        name = f"{part.config}-{part.split}.json"
        write_atomically(folder / "lineage" / name, orjson.dumps(told, option=orjson.OPT_INDENT_2))
    write_atomically(folder / "README.md", card_of(parts).encode())


def _behind(part: Part) -> Upstream:
    study = part.folder.parents[part.lineage.address.count("/")]
    return upstream(study, [part.lineage.address])


def _card_cell(part: Part, behind: Upstream) -> CardCell:
    lineage = part.lineage
    spec = lineage.spec if isinstance(lineage.spec, dict) else {}
    return CardCell(
        config=part.config,
        split=part.split,
        kind=lineage.kind,
        rows=lineage.rows - lineage.failed_rows,
        failures=lineage.failures,
        models={
            f"{cell.stage} ({cell.kind})": _model_words(cell.model)
            for cell in behind.cells.values()
            if cell.model
        },
        templates={
            f"{name} of {part.config} {part.split}": sha256
            for name, sha256 in (spec.get("templates") or {}).items()
        },
        lineage={address: cell.fingerprint for address, cell in behind.cells.items()},
    )


def _model_words(model: Mapping[str, Json]) -> str:
    """A model by name, and by what it runs on: a scripted teacher is never shown as a model."""
    backend = model.get("backend") or {}
    kind = backend.get("kind")
    which = backend.get("model") or model.get("id") or ""
    is_rule = kind in ("scripted", "canned", "recorded")
    return f"{model.get('name')} ({'no model: ' if is_rule else ''}{kind} {which}".strip() + ")"


def licences_of(behind: Upstream) -> dict[str, str]:
    """Benchmark to the licence of its data, for everything behind some cells."""
    kinds = {b.model_fields["kind"].default: b for b in Benchmark.__subclasses__()}
    found = {}
    for cell in behind.of_kind("questions"):
        spec = cell.spec if isinstance(cell.spec, dict) else {}
        kind = str((spec.get("benchmark") or {}).get("kind"))
        benchmark = kinds.get(kind)
        if benchmark is not None and benchmark.hub is not None:
            found[kind] = benchmark.hub.licence
        elif (spec.get("files") or {}).get("files"):
            found[kind] = _NOT_STATED
    return found
