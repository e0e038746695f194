"""Where a server's command is."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from mbt_cli.errors import BackendError


def find_executable(named: str, environment: Mapping[str, str], *, install: str) -> str:
    """A command's path: as named, on the search path, or beside this Python.

    Raises:
        BackendError: It is nowhere; the hint says how to install it.
    """
    found = shutil.which(named, path=environment.get("PATH"))
    beside = Path(sys.executable).parent / named
    if found is None and beside.is_file():
        found = str(beside)
    if found is None:
        raise BackendError(
            f"there is no command `{named}` to serve with",
            hint=f"{install}, or name another environment's by `place.executable`",
        )
    return found
