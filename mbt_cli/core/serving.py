"""Where a backend may put what it needs while its server runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """What a backend gets from the machine's side.

    Args:
        log: File for the server's output, with secrets masked.
        cache: Folder for downloads and compiled caches.
        environment: The process environment, `.env` merged in.
        ready_timeout_seconds: How long the server may take to answer its first request.
        parallel: Requests that will be in flight at once.
        port: Port that a person asked for; it wins over the backend's own.
        key: Key that the server shall ask for; null has a random one made.
    """

    log: Path
    cache: Path
    environment: Mapping[str, str] = field(repr=False)
    ready_timeout_seconds: float = 600.0
    parallel: int = 8
    port: int | None = None
    key: str | None = field(default=None, repr=False)
