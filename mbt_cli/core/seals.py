"""Seals: JSON records that hold the hash of their own content, so that any change is found."""

from collections.abc import Mapping

from mbt_cli.core.chat import Json
from mbt_cli.core.request_keys import sha256_of

SEAL = "sha256"
"""Key of a record's seal: the hash of the canonical JSON of all its other keys."""
BROKEN = "its content differs from the hash in it (`sha256`)"


def sealed(record: Mapping[str, Json]) -> dict[str, Json]:
    """The record with its seal as the last key.

    Example:
        >>> sealed({"rows": 3})["sha256"][:12]
        '2bafd4629cc0'
    """
    content = _content(record)
    return {**content, SEAL: sha256_of(content)}


def is_broken(record: Mapping[str, Json]) -> bool:
    """Whether a record differs from its seal; one without a seal, of mbt 0.2, does not.

    Example:
        >>> is_broken({"rows": 4, "sha256": "2bafd462"}), is_broken({"rows": 4})
        (True, False)
    """
    if record.get(SEAL) is None:
        return False
    try:
        return bool(record[SEAL] != sha256_of(_content(record)))
    except TypeError:  # nested deeper than anything that is written
        return True


def _content(record: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in record.items() if key != SEAL}
