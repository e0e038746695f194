"""Secrets: values that this process holds and never shows, and how they are masked.

A value is recognised as it is, in either case, and as a server may echo it: quoted in a URL,
escaped in JSON or HTML, in base64 at any offset, and in hex.
"""

import json
import re
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
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
_SERVICE_ADDRESS = re.compile(r"(?:tcp|udp)://[^\s@]*")
"""What Kubernetes writes into variables such as AUTH_SERVICE_PORT."""
_JSON_VALUE = re.compile(r'": *"([^"\s@]{16,})"')
_QUOTED = re.compile(rb"%[0-9a-f]{2}")
_ESCAPED = re.compile(rb"\\{1,16}u00([0-9a-f]{2})|&#x0*([0-9a-f]{2});|&#0*(\d{2,3});")


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
        self._needles: tuple[bytes, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self.hold(environment or {}, named)

    def hold(self, environment: Mapping[str, str], named: Collection[str] = ()) -> None:
        """Hold more secrets; arguments as above."""
        own_names = {environment.get("USER"), environment.get("LOGNAME")}  # part of paths
        found = {
            value: name
            for name, whole in environment.items()
            for value in _values(name, whole, is_named=name in named or is_secret(name))
            if value not in own_names
        }
        if found.keys() <= self._names.keys():
            return
        self._names = {**found, **self._names}
        forms = {form for secret in self._names for form in (secret, *_forms(secret))}
        self._needles = tuple(form.encode(errors="surrogatepass").lower() for form in forms)
        self._pattern = None

    def mask(self, text: str) -> str:
        """The text with every secret replaced; takes microseconds if it has none."""
        if not self._may_hold(text):
            return text
        if self._pattern is None:
            # one secret may contain another
            ordered = sorted(self._names, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(_pattern_of, ordered)), re.IGNORECASE)
        return self._pattern.sub(MASK, text)

    def name_in(self, text: str) -> str | None:
        """The name of a variable whose secret is in the text; None without one."""
        if not self._may_hold(text):
            return None
        found = (
            n for s, n in self._names.items() if re.search(_pattern_of(s), text, re.IGNORECASE)
        )
        return next(found, None)

    def _may_hold(self, text: str) -> bool:
        if not self._needles:
            return False
        content = text.encode(errors="surrogatepass").lower()  # a fifth of the time of text.lower()
        if any(needle in content for needle in self._needles):
            return True
        plain = unquote_to_bytes(content) if _QUOTED.search(content) else content
        if b"\\u00" in plain or b"&#" in plain:
            plain = _ESCAPED.sub(_unescaped, plain)
        return plain is not content and any(n in plain.lower() for n in self._needles)


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


def _values(name: str, whole: str, *, is_named: bool) -> Iterator[str]:
    """The secrets in the value of a variable."""
    address = f"//{whole}" if name.lower().endswith("proxy") and "//" not in whole else whole
    parts: list[str] = []
    for info in _USER_INFO.findall(address):
        parts += [info if len(info) >= _SHORTEST_SECRET else f"//{info}@", *info.split(":", 1)]
    parts += [unquote(part) for part in parts if "%" in part]
    if is_named and not _SERVICE_ADDRESS.fullmatch(whole):
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


def _pattern_of(secret: str) -> str:
    """A regular expression for a secret, whichever of its characters are escaped."""
    is_long = len(secret) > _LONGEST_ESCAPED
    own = re.escape(secret) if is_long else "".join(map(_pattern_of_character, secret))
    return "|".join([own, *map(re.escape, _forms(secret))])


def _pattern_of_character(character: str) -> str:
    code = ord(character)
    ways = [re.escape(character), quote(character, safe="", errors="surrogateescape")]
    ways += [f"%{byte:02x}" * (code < 128) for byte in character.encode(errors="surrogateescape")]
    ways += [rf"\\{{1,16}}u00{code:02x}", f"&#x0*{code:x};", f"&#0*{code};"] if code < 256 else []
    return f"(?:{'|'.join(dict.fromkeys(filter(None, ways)))})"


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = int(found[3]) if found[3] else int(found[1] or found[2], 16)
    return bytes([code]) if code < 256 else found[0]
