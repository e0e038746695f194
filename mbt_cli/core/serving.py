"""The place where a backend runs its server, and the files that it downloads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where and how a backend runs its server.

    Args:
        log: File for the server's output, with secrets masked.
        cache: Folder for downloads and compiled caches.
        environment: The process environment, `.env` merged in.
        ready_timeout_seconds: How long the server may take to answer its first request; None leaves
            it to the backend, which knows how large the model is.
        parallel: Number of requests in flight at once.
        port: Port that the user chose; overrides the backend's own.
        key: API key of the server; None generates a random one.
        told: Takes what a server that is not ready yet does, each time that it is looked at.
    """

    log: Path
    cache: Path
    environment: Mapping[str, str] = field(repr=False)
    ready_timeout_seconds: float | None = None
    parallel: int = 8
    port: int | None = None
    key: str | None = field(default=None, repr=False)
    told: Callable[[str], None] = field(default=lambda words: None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Download:
    """A file that a backend downloads itself.

    Args:
        path: Where it is after the download.
        size_bytes: Its size.
    """

    path: Path
    size_bytes: int
