"""Addresses of objects in a manifest: `s3://` wherever a path stands becomes a local copy."""

from collections.abc import Mapping
from typing import Any

from mbt_cli.errors import MissingInputError
from mbt_cli.manifest.problems import Problems
from mbt_cli.store.objects import ObjectCache, is_address, local_copy

_NO_PATHS = ("study", "run", "groups", "sampling", "system_prompts")
"""Tables without paths; those of `[run]` are places, not files."""


def with_local_copies(
    tree: Mapping[str, Any], cache: ObjectCache, problems: Problems
) -> Mapping[str, Any]:
    """The tables of a manifest with the path of a local copy in place of each address.

    What does not exist is a problem; that of an optional stage, or of a benchmark, stays as
    written, and counts as a missing file where it is read.

    Raises:
        UsageError: Access is denied, or no package reads objects.
        MbtError: The store did not answer.
    """
    found: dict[str, Any] = {}
    for table, value in tree.items():
        if table in _NO_PATHS:
            found[table] = value
        elif table == "stage" and isinstance(value, list):
            found[table] = [_stage(block, cache, problems) for block in value]
        else:
            found[table] = copied(value, cache, problems, table, may_lack=table == "benchmarks")
    return found


def _stage(block: Any, cache: ObjectCache, problems: Problems) -> Any:
    if not isinstance(block, dict):
        return block
    where = f"stage.{block.get('name', block.get('kind', ''))}"
    return copied(block, cache, problems, where, may_lack=block.get("optional") is True)


def copied(
    value: Any, cache: ObjectCache, problems: Problems, where: str, *, may_lack: bool = False
) -> Any:
    """A value with local copies of all addresses in it.

    Args:
        value: Text, or tables and lists with text in them.
        cache: Where copies are kept.
        problems: Collects the addresses of nothing.
        where: Key path of the value.
        may_lack: Leave such an address as it is.
    """
    if isinstance(value, dict):
        parts = {key: (f"{where}.{key}", one) for key, one in value.items()}
        return {
            key: copied(one, cache, problems, place, may_lack=may_lack)
            for key, (place, one) in parts.items()
        }
    if isinstance(value, list):
        return [
            copied(one, cache, problems, f"{where}.{number}", may_lack=may_lack)
            for number, one in enumerate(value)
        ]
    if not isinstance(value, str) or not is_address(value):
        return value
    try:
        return str(local_copy(value, cache))
    except MissingInputError as error:
        if not may_lack:
            problems.add(where, f"{error.message}; {error.hint}")
    return value
