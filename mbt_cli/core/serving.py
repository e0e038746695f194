"""The place where a backend runs its server, and the files that it downloads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where and how a backend runs its server.

    Args:
        log: File for the server's output, with secrets masked.
        cache: Folder for downloads and compiled caches.
        environment: The process environment, `.env` merged in.
        ready_timeout_seconds: How long the server may take to answer its first request.
        parallel: Number of requests in flight at once.
        port: Port that the user chose; overrides the backend's own.
        key: API key of the server; None generates a random one.
    """

    log: Path
    cache: Path
    environment: Mapping[str, str] = field(repr=False)
    ready_timeout_seconds: float = 600.0
    parallel: int = 8
    port: int | None = None
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Download:
    """A file that a backend downloads itself.

    Args:
        path: Where it is after the download.
        size_bytes: Its size.
    """

    path: Path
    size_bytes: int
