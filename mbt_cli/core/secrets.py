"""Secrets: values that this process holds and never shows, and how they are masked.

A value is recognised as it is, in either case, and as a server may echo it: quoted in a URL,
escaped in JSON or HTML, in base64 at any offset, and in hex.
"""

import json
import re
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

MASK = "[secret]"
_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|hf|gsk|xai|nvapi)[-_][A-Za-z0-9_\-]{8,}")
_SECRET_ENDINGS = (
    *("KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD"),
    *("PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION", "COOKIE"),
)
_SECRET_PARTS = frozenset({"PASS"})
"""Endings of other words too, such as COMPASS."""
_PLACES = ("_FILE", "_PATH", "_DIR", "_SOCK")
"""Endings of variables that say where something is."""
_SHORTEST_SECRET = 8
_LONG_WORD = 16
_LONGEST_ESCAPED = 256
"""Characters up to which a pattern takes milliseconds to compile."""
_ORDINARY = re.compile(r"[A-Z]?[a-z]+([-_. ][A-Z]?[a-z]+)*|[A-Z]+([-_. ][A-Z]+)*|[\d.,:/-]+")
"""Words and numbers. Up to a length they may be part of any reply, which must not be altered."""
_USER_INFO = re.compile(r"//([^/?#\s]+)@")
_ADDRESS = re.compile(r"(?:tcp|udp|https?)://[^/?#@\s]+(?:/[^/?#@\s]{0,15})*")
"""Such as AUTH_URL and Kubernetes' AUTH_SERVICE_PORT; a longer part of a path may be a key."""
_JSON_VALUE = re.compile(r'": *"([^"\s@]{16,})"')
_QUOTED = re.compile(rb"%[0-9a-f]{2}")
_BACKSLASHES = r"(?:(?<!\\{8})\\+|\\)"
"""One or more, sought only from the first ones of a run: from each, the time is quadratic."""
_ESCAPED = re.compile(
    rf"{_BACKSLASHES}u00([0-9a-f]{{2}})|&#x0*([0-9a-f]{{2}});|&#0*(\d{{2,3}});".encode()
)


class Secrets:
    """The secrets of a process: values of variables, by the name of the variable.

    Args:
        environment: Values of variables with a part of their name that ends in KEY, TOKEN, SECRET,
            PASSWORD, ... are secrets, as are user and password of every URL. Values that are too
            short, or are ordinary words or numbers, are not: they would mask ordinary text.
        named: Variables that hold secrets, whatever their name.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, named: Collection[str] = ()
    ) -> None:
        self._names: dict[str, str] = {}
        self._needles: dict[str, tuple[bytes, ...]] = {}
        self.hold(environment or {}, named)

    def hold(self, environment: Mapping[str, str], named: Collection[str] = ()) -> None:
        """Hold more secrets; arguments as above."""
        own_names = {environment.get("USER"), environment.get("LOGNAME")}  # part of paths
        found = {
            value: name
            for name, whole in environment.items()
            for value in _values(name, whole, is_named=name in named or _is_secret(name, whole))
            if value not in own_names
        }
        if found.keys() <= self._names.keys():
            return
        self._names = {**found, **self._names}
        self._needles = {secret: _needles(secret) for secret in self._names}

    def mask(self, text: str) -> str:
        """The text with every secret replaced; takes microseconds if it has none."""
        # one secret may contain another
        found = tuple(sorted(self._that_may_be_in(text), key=len, reverse=True))
        return _pattern(found).sub(MASK, text) if found else text

    def name_in(self, text: str) -> str | None:
        """The name of a variable whose secret is in the text; None without one."""
        found = self._that_may_be_in(text)
        return next((self._names[s] for s in found if _pattern((s,)).search(text)), None)

    def _that_may_be_in(self, text: str) -> list[str]:
        if not self._needles:
            return []
        content = text.encode(errors="surrogatepass").lower()  # a fifth of the time of text.lower()
        plain = unquote_to_bytes(content) if _QUOTED.search(content) else content
        if b"\\u00" in plain or b"&#" in plain:
            # a backslash before an escape may be the secret's own, or one of the escape's
            plain = _ESCAPED.sub(_unescaped, plain).replace(b"\\", b"")
        texts = (content,) if plain is content else (content, plain.lower())
        return [
            secret
            for secret, needles in self._needles.items()
            if any(needle in one for one in texts for needle in needles)
        ]


HELD = Secrets()
"""The secrets of this process."""
hold = HELD.hold
mask = HELD.mask


def mask_json(value: Any) -> Any:
    """A JSON value with the secrets of this process replaced in every text."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(key): mask_json(item) for key, item in value.items()}
    return [mask_json(item) for item in value] if isinstance(value, list | tuple) else value


def without_secrets(words: str) -> str:
    """The text without secrets and everything that looks like a key; servers often quote keys.

    Example:
        >>> without_secrets("Incorrect key: sk-abcdef123456.")
        'Incorrect key: [secret].'
    """
    return _LOOKS_LIKE_KEY.sub(MASK, mask(words))


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret.

    Example:
        >>> is_secret("HF_TOKEN_READ"), is_secret("TOKENIZERS_PARALLELISM"), is_secret("KEY_FILE")
        (True, False, False)
    """
    upper = name.upper()
    if upper.endswith(_PLACES):
        return False
    parts = upper.split("_")
    return any(part in _SECRET_PARTS or part.endswith(_SECRET_ENDINGS) for part in parts)


def _is_secret(name: str, value: str) -> bool:
    return is_secret(name) and not _ADDRESS.fullmatch(value.strip())


def _values(name: str, whole: str, *, is_named: bool) -> Iterator[str]:
    """The secrets in the value of a variable."""
    address = f"//{whole}" if name.lower().endswith("proxy") and "//" not in whole else whole
    parts: list[str] = []
    for info in _USER_INFO.findall(address):
        parts += [info if len(info) >= _SHORTEST_SECRET else f"//{info}@", *info.split(":", 1)]
    parts += [unquote(part) for part in parts if "%" in part]
    if is_named:
        # logs are masked line by line, and a private key has several lines
        lines = [line.strip() for line in re.split(r"\n|\\n", whole)]
        parts += [whole, *(line for line in lines if " " not in line)]
        parts += [value for value in _JSON_VALUE.findall(whole) if "://" not in value]
        parts.append(whole.rpartition(" ")[2])  # Bearer KEY
    for part in map(str.strip, parts):
        is_plain = len(part) < _LONG_WORD and _ORDINARY.fullmatch(part)
        if len(part) >= _SHORTEST_SECRET and not is_plain:
            yield part


def _forms(secret: str) -> Iterator[str]:
    """Texts in which a secret may be found, escapes of single characters aside."""
    raw = secret.encode(errors="surrogateescape")
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield secret.replace("/", "\\/")
    yield raw.hex()
    for before in range(3):  # bytes in front of it in its group of three
        encoded = b64encode(bytes(before) + raw).decode()
        own = encoded[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        yield own
        yield own.replace("+", "-").replace("/", "_")


def _needles(secret: str) -> tuple[bytes, ...]:
    forms = [form.encode(errors="surrogatepass") for form in (secret, *_forms(secret))]
    raw = secret.encode(errors="surrogateescape")
    return tuple({form.lower() for form in (*forms, raw, raw.replace(b"\\", b""))})


@lru_cache(maxsize=64)
def _pattern(secrets: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_pattern_of, secrets)), re.IGNORECASE)


def _pattern_of(secret: str) -> str:
    """A regular expression for a secret, whichever of its characters are escaped."""
    is_long = len(secret) > _LONGEST_ESCAPED
    own = re.escape(secret) if is_long else "".join(map(_pattern_of_character, secret))
    return "|".join([own, *map(re.escape, _forms(secret))])


def _pattern_of_character(character: str) -> str:
    code = ord(character)
    ways = [re.escape(character), quote(character, safe="", errors="surrogateescape")]
    ways += [f"%{byte:02x}" * (code < 128) for byte in character.encode(errors="surrogateescape")]
    if code < 256:
        ways += [rf"{_BACKSLASHES}u00{code:02x}", f"&#x0*{code:x};", f"&#0*{code};"]
    return f"(?:{'|'.join(dict.fromkeys(filter(None, ways)))})"


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = int(found[3]) if found[3] else int(found[1] or found[2], 16)
    return chr(code).encode() if code < 256 else found[0]
