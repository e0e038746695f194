"""Secrets: values that are never written, and how they are masked."""

import re
from collections.abc import Mapping
from urllib.parse import quote

MASK = "[secret]"
_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|hf|gsk|xai|nvapi)[-_][A-Za-z0-9_\-]{8,}")
_SECRET_ENDINGS = (
    *("KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD"),
    *("PASSPHRASE", "CREDENTIAL", "CREDENTIALS"),
)
_SHORTEST_SECRET = 6  # shorter values are switches such as `true`, and would mask common words


class Secrets:
    """The secrets of one environment.

    Args:
        environment: Values of variables with a part of their name that ends in KEY, TOKEN, SECRET,
            PASSWORD, ... are secrets, as they are and as a URL quotes them.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = [value for name, value in environment.items() if is_secret(name)]
        # logs are masked line by line, and a private key has several lines
        lines = (line.strip() for value in named for line in (value, *value.splitlines()))
        values = {line for line in lines if len(line) >= _SHORTEST_SECRET}
        quoted = {quote(value, safe="", errors="surrogateescape") for value in values}
        self._values = sorted(
            values | quoted, key=len, reverse=True
        )  # one secret may contain another

    def mask(self, text: str) -> str:
        """The text with every secret replaced."""
        for value in self._values:
            text = text.replace(value, MASK)
        return text


def without_secrets(words: str) -> str:
    """The text with everything that looks like a key masked; servers often quote keys.

    Example:
        >>> without_secrets("Incorrect key: sk-abcdef123456.")
        'Incorrect key: [secret].'
    """
    return _LOOKS_LIKE_KEY.sub(MASK, words)


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret.

    Example:
        >>> is_secret("HF_TOKEN_READ"), is_secret("TOKENIZERS_PARALLELISM")
        (True, False)
    """
    return any(part.endswith(_SECRET_ENDINGS) for part in name.upper().split("_"))
