"""Cells with a `source`, and optional ones whose source is not there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mbt_cli.errors import MissingInputError
from mbt_cli.manifest.blocks import Draft
from mbt_cli.store.records import data_files

HUB = "hub:"


def source_of(draft: Draft) -> str | None:
    """What stands in for running the cell, with its axes filled in."""
    written = written_source(draft).get("from")
    return None if written is None else filled(str(written), draft.axes)


def written_source(draft: Draft) -> Mapping[str, Any]:
    """The cell's `source` as a table; empty where it has none."""
    if draft.block is None:
        return {}
    written = draft.fields.get("source", draft.block.envelope.source)
    if written is None or isinstance(written, Mapping):
        return written or {}
    return {"from": written}


def filled(written: str, axes: Mapping[str, str]) -> str:
    """A source with `{axis}` replaced by the cell's value.

    Example:
        >>> filled("checkpoints/x/{model}", {"model": "m"})
        'checkpoints/x/m'
    """
    for axis, value in axes.items():
        written = written.replace("{" + axis + "}", value)
    return written


def without_missing_sources(drafts: Sequence[Draft]) -> tuple[list[Draft], list[str]]:
    """Leave out optional cells whose source is not there, and cells that cannot do without them.

    Args:
        drafts: Inputs before what reads them.

    Returns:
        The cells that stay, and the addresses of those that do not.
    """
    gone: set[int] = set()
    for draft in drafts:
        if _is_missing(draft) or any(
            id(d) in gone
            for name, ds in draft.inputs.items()
            if not _is_many(draft, name)
            for d in ds
        ):
            gone.add(id(draft))
        for name, group in draft.inputs.items():
            draft.inputs[name] = tuple(d for d in group if id(d) not in gone)
    kept = [d for d in drafts if id(d) not in gone]
    return kept, [d.address for d in drafts if id(d) in gone]


def is_there(source: str) -> bool:
    """Whether a local source is on this disk: a folder, a file, or a pattern that fits one."""
    path = Path(source).expanduser()
    if path.exists():
        return True
    try:
        return bool(data_files(path))
    except MissingInputError:
        return False


def _is_missing(draft: Draft) -> bool:
    if draft.block is None or not draft.block.envelope.optional:
        return False
    source = source_of(draft)
    return source is not None and not source.startswith(HUB) and not is_there(source)


def _is_many(draft: Draft, name: str) -> bool:
    if draft.block is None or name.startswith("baseline_"):
        return True
    rule = draft.block.kind.inputs.get(name)
    return rule is not None and rule.many
