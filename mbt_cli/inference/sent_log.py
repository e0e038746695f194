"""Records of what was sent to a provider, one JSON object a line, each on the disk before the next.

A line is torn by a kill or whole; the next one begins on a line of its own.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.inference.journal import unwritable


def kept_records(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a file, in their order; none if there is no file."""
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with suppress(orjson.JSONDecodeError):  # a kill tore it
                record = orjson.loads(line)
                if isinstance(record, dict):
                    yield record


def keep_record(path: Path, record: Mapping[str, Json]) -> None:
    """Append a record; it is on the disk when this returns.

    Raises:
        ArtifactError: The file cannot be written.
    """
    try:
        with path.open("ab") as file:
            file.write(b"\n" + orjson.dumps(record) + b"\n")  # a torn line ends here
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error
