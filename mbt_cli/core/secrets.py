"""Secrets: values that this process holds and never shows, and how they are masked.

A value is recognised as it is, in either case, and as a server may echo it: with escapes of URLs,
JSON and HTML, several layers of them, broken by blanks, in base64 at any offset, and in hex.
"""

import json
import re
from array import array
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from html.entities import html5
from pathlib import Path
from typing import Any
from urllib.parse import unquote

MASK = "[secret]"
_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|hf|gsk|xai|nvapi)[-_][A-Za-z0-9_\-]{8,}")
_SECRET_PART = re.compile(
    r".*(KEYS?|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|AUTHORIZATION|COOKIE"
    r"|(?<!COM)(?<!BY)(?<!ASK)PASS|(?<!OLD)PWD)\d*|PAT\d*"
)
"""A part of a variable's name; COMPASS, BYPASS and ASKPASS are other words."""
_FOLDERS = ("PWD", "OLDPWD")
_PLACES = ("_FILE", "_PATH", "_DIR", "_SOCK")
"""Endings of variables that say where something is."""
_SHORTEST_SECRET = 8
_LONG_WORD = 16
_ORDINARY = re.compile(r"[A-Z]?[a-z]+([-_. ][A-Z]?[a-z]+)*|[A-Z]+([-_. ][A-Z]+)*|[\d.,:/-]+")
"""Words and numbers. Up to a length they may be part of any reply, which must not be altered."""
_USER_INFO = re.compile(r"//([^/?#\s]+)@")
_ADDRESS = re.compile(r"(?:tcp|udp|https?)://[^/?#@\s]+(?:/[^/?#@\s]{0,15})*")
"""Such as AUTH_URL and Kubernetes' AUTH_SERVICE_PORT; a longer part of a path may be a key."""
_JSON_VALUE = re.compile(r'": *"([^"\s@]{16,})"')

_LAYERS = 4
"""Escapes of escapes that are undone; without a limit, the time is quadratic."""
_ESCAPE = re.compile(
    rb"%([0-9a-f]{2})"
    rb"|\\+(?:u([0-9a-f]{4})|u\{0*([0-9a-f]{1,6})\}|x([0-9a-f]{2})|([nrt]))?"
    rb"|&#x0*([0-9a-f]{1,6});?|&#0*([0-9]{1,7});?|&([a-z]{2,31};)"
)
"""In URLs, in JSON and program text, and in HTML, in lower case. Other backslashes are dropped."""
_ENTITIES = {
    name.lower().encode(): character.encode().lower()
    for name, character in sorted(html5.items(), reverse=True)  # small letters overwrite capitals
    if name.endswith(";") and len(character) == 1 and character < "\u0100"
}
_BLANKS = bytes(range(33)) + b"\x7f"
_BLANK = re.compile(
    rb"[\x00-\x20\x7f]+|\xc2[\xa0\xad]|\xe2\x80[\x80-\x8f\xa8-\xaf]|\xe2\x81[\x9f-\xaf]"
    rb"|\xe3\x80\x80|\xef\xbb\xbf|\xcd\x8f|\xe1\xa0\x8e"
)
"""Blanks, line ends, control characters and characters without width, in UTF-8."""
_NOT_IN_HEX = bytes(n for n in range(256) if not chr(n).isalnum() or n > 127)
_BETWEEN_HEX = re.compile(rb"0x|[^0-9a-z]+")


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
        self._needles: dict[str, _Needles] = {}
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
        self._needles = {secret: _Needles(secret) for secret in self._names}

    def mask(self, text: str) -> str:
        """The text with every secret replaced; takes microseconds if it has none."""
        found = sorted((start, end) for _, start, end in self._found_in(text))
        if not found:
            return text
        content = text.encode(errors="surrogatepass")
        parts, done = [], 0
        for start, end in found:
            if start >= done:
                parts += [content[done:start], MASK.encode()]
            done = max(done, end)  # one secret may contain another
        return b"".join([*parts, content[done:]]).decode(errors="surrogatepass")

    def name_in(self, text: str) -> str | None:
        """The name of a variable whose secret is in the text; None without one."""
        return next((self._names[secret] for secret, _, _ in self._found_in(text)), None)

    def _found_in(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Secrets, with the bytes of the text that show them."""
        if not self._needles:
            return
        content = text.encode(errors="surrogatepass").lower()
        plain = _plain(content)
        in_hex = plain.replace(b"0x", b"").translate(None, _NOT_IN_HEX)
        traced: tuple[_Traced, _Traced] | None = None
        for secret, needles in self._needles.items():
            shown = [span for raw in needles.raw for span in _spans(raw, content)]
            hits = sum(map(plain.count, needles.plain)) + in_hex.count(needles.in_hex)
            if hits > len(shown):  # others than those that are shown as they are
                traced = traced or _traced(content)
                shown += [s for needle in needles.plain for s in traced[0].spans(needle)]
                shown += traced[1].spans(needles.in_hex)
            for start, end in shown:
                # rows of digits are in many tables
                if needles.has_letter or not _BLANK.search(content[start:end]):
                    yield secret, *_whole_characters(content, start, end)


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
    return upper not in _FOLDERS and any(map(_SECRET_PART.fullmatch, parts))


def _is_secret(name: str, value: str) -> bool:
    return is_secret(name) and not _ADDRESS.fullmatch(value.strip()) and not _is_place(value)


def _is_place(value: str) -> bool:
    try:
        return value.startswith("/") and Path(value).exists()
    except (OSError, ValueError):
        return False


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


class _Needles:
    """What is sought in a text to find a secret.

    Args:
        secret: The secret.

    Attributes:
        raw: The secret itself.
        plain: What is left of it, and of its base64, without escapes and blanks.
        in_hex: Its bytes in hex.
        has_letter: Whether it may be found although blanks break it.
    """

    def __init__(self, secret: str) -> None:
        # a variable may hold bytes that are not UTF-8; Python shows them as surrogates
        own, raw = secret.encode(errors="surrogatepass"), secret.encode(errors="surrogateescape")
        self.raw = {own.lower(), raw.lower()}
        escaped = json.dumps(secret).encode()[1:-1]  # other characters are pairs of escapes
        forms = [own, raw, escaped, own.replace(b" ", b"+")]  # as forms of web pages write blanks
        for before in range(3):  # bytes in front of it in its group of three
            encoded = b64encode(bytes(before) + raw)
            part = encoded[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
            forms += [part, part.replace(b"+", b"-").replace(b"/", b"_")]
        found = {_plain(form.lower()) for form in forms}
        self.plain = tuple(form for form in found if len(form) >= _SHORTEST_SECRET)
        self.in_hex = raw.hex().encode()
        self.has_letter = any(map(str.isalpha, secret))


def _plain(text: bytes) -> bytes:
    """A text in lower case without escapes and blanks; as is a secret, whichever escapes it has."""
    for _ in range(_LAYERS):
        if not (b"%" in text or b"\\" in text or b"&" in text):
            break
        text = _ESCAPE.sub(_unescaped, text)
    text = text.translate(None, _BLANKS)
    return text if text.isascii() else _BLANK.sub(b"", text)


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found.lastindex is None:  # a backslash alone, the most frequent
        return b""
    byte, unicode, braced, hexadecimal, _, html_hex, html_decimal, name = found.groups()
    if byte:
        return bytes.fromhex(byte.decode()).lower()
    if name:
        return _ENTITIES.get(name, found[0])
    digits = unicode or braced or hexadecimal or html_hex
    if not digits and not html_decimal:
        return b" "  # a line end or a tab
    code = int(digits, 16) if digits else int(html_decimal)
    return chr(code).encode(errors="surrogatepass").lower() if code < 0x110000 else found[0]


def _spans(needle: bytes, text: bytes) -> Iterator[tuple[int, int]]:
    at = text.find(needle)
    while at >= 0:
        yield at, at + len(needle)
        at = text.find(needle, at + len(needle))


class _Traced:
    """A text of which parts are replaced, and where each of its bytes was at first."""

    def __init__(self, text: bytes, starts: "array[int]", ends: "array[int]") -> None:
        self._text, self._starts, self._ends = text, starts, ends

    def sub(self, pattern: re.Pattern[bytes], by: Callable[[re.Match[bytes]], bytes]) -> "_Traced":
        parts, starts, ends, done = [], array("q"), array("q"), 0
        for found in pattern.finditer(self._text):
            start, end = found.span()
            new = by(found)
            parts += [self._text[done:start], new]
            starts += self._starts[done:start]
            starts.extend([self._starts[start]] * len(new))
            ends += self._ends[done:start]
            ends.extend([self._ends[end - 1]] * len(new))
            done = end
        return _Traced(
            b"".join([*parts, self._text[done:]]),
            starts + self._starts[done:],
            ends + self._ends[done:],
        )

    def spans(self, needle: bytes) -> Iterator[tuple[int, int]]:
        """Where a text is, in the bytes of the first text."""
        for start, end in _spans(needle, self._text):
            yield self._starts[start], self._ends[end - 1]


def _traced(text: bytes) -> tuple[_Traced, _Traced]:
    """The text as `_plain` has it, and what of that may be hex."""
    plain = _Traced(text, array("q", range(len(text))), array("q", range(1, len(text) + 1)))
    for _ in range(_LAYERS):
        plain = plain.sub(_ESCAPE, _unescaped)
    plain = plain.sub(_BLANK, lambda found: b"")
    return plain, plain.sub(_BETWEEN_HEX, lambda found: b"")


def _whole_characters(content: bytes, start: int, end: int) -> tuple[int, int]:
    """A span of bytes, grown to whole characters of UTF-8."""
    while start and content[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(content) and content[end] & 0xC0 == 0x80:
        end += 1
    return start, end
