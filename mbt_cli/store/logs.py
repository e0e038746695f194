"""The log file of a cell's run, with secrets masked."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mbt_cli.core.names import own_utc_name
from mbt_cli.core.secrets import mask
from mbt_cli.store.disk import writing_to

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _LogFile(logging.FileHandler):
    """A log file whose loss stops no run: a full disk is reported by what needs it."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record."""

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class MaskingFormatter(logging.Formatter):
    """Format a record and its traceback, with secrets masked."""

    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


@contextmanager
def logging_to(folder: Path) -> Iterator[Path]:
    """Write mbt's log to `<UTC>-<machine>-<process>.log` in a cell's log folder.

    Args:
        folder: Folder of the logs, created if missing.

    Raises:
        ArtifactError: The file cannot be written.
    """
    path = folder / f"{own_utc_name()}.log"
    with writing_to(path):
        folder.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(MaskingFormatter(_FORMAT))
    logger = logging.getLogger("mbt_cli")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, level) if level else logging.INFO)
    try:
        yield path
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
