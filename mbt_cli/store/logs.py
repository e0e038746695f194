"""The log file of one run of a cell, with secrets masked."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from mbt_cli.store.disk import write_atomically, writing_to

_MASK = "***"
_SECRET_ENDINGS = ("KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIALS")
_SHORTEST_SECRET = 6  # shorter values are switches such as `true`, and would mask common words
_TIME = "%Y-%m-%dT%H%M%SZ"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Secrets:
    """Values that must not be written anywhere.

    Args:
        environment: Values of variables whose names end in KEY, TOKEN, SECRET, PASSWORD, ... are
            secrets.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._values: set[str] = set()
        for name, value in (environment or {}).items():
            if any(part.endswith(_SECRET_ENDINGS) for part in name.upper().split("_")):
                self.add(value)

    def add(self, value: str | None) -> None:
        """Mask this value from now on."""
        if value and len(value.strip()) >= _SHORTEST_SECRET:
            self._values.update({value.strip(), quote(value.strip(), safe="")})

    def mask(self, text: str) -> str:
        """The text with every secret replaced."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, _MASK)
        return text

    def mask_file(self, path: Path) -> None:
        """Replace every secret in a finished log, such as a server's own."""
        if not path.is_file():
            return
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        masked = self.mask(text)
        if masked != text:
            write_atomically(path, masked.encode("utf-8", errors="surrogateescape"))


class MaskingFormatter(logging.Formatter):
    """Formats a record, its traceback included, and masks secrets in the outcome."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__(_FORMAT)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.mask(super().format(record))


@contextmanager
def logging_to(
    folder: Path, environment: Mapping[str, str], *, secrets: Secrets | None = None
) -> Iterator[Path]:
    """Send what mbt logs to `<UTC>.log` in a cell's log folder for a while.

    Args:
        folder: Folder for logs; made if it is not there.
        environment: Its secret variables are masked.
        secrets: In place of those of `environment`, for secrets that come up at run time.

    Raises:
        ArtifactError: The file cannot be written.
    """
    path = folder / f"{datetime.now(UTC):{_TIME}}.log"
    with writing_to(path):
        folder.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(MaskingFormatter(secrets or Secrets(environment)))
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
