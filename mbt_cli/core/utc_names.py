"""Names made of a moment, in UTC: files and folders that bear them sort by time."""

import os
import socket
from datetime import UTC, datetime


def utc_name(moment: datetime) -> str:
    """The moment to the second, whatever its own zone.

    Example:
        >>> utc_name(datetime.fromisoformat("2026-11-22T12:07:53.5+01:00"))
        '2026-11-22T110753Z'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H%M%SZ}"


def own_utc_name() -> str:
    """The present moment, this machine and this process.

    Of two processes that begin in one second, wherever they run, each has a name of its own.
    """
    return f"{utc_name(datetime.now(UTC))}-{socket.gethostname()}-{os.getpid()}"
