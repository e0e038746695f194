"""Secrets that are written where files keep them: in settings, bodies of requests and addresses."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = re.compile(
    r"auth|authorization|bearer|cookies?|credentials?|headers|jwt|pass(phrase|wd|words?)|pat|pwd"
    r"|secrets?|(access|api|auth|bearer|private|secret|subscription)(keys?|tokens?)"
)
_KEY = re.compile(r"key|token")
_OTHER_KEY = re.compile(
    r"cache|dedup|foreign|group|idempotency|partition|primary|public|sort"
    r"|audio|begin|bos|cls|decoder|end|eo[smt]|first|image|last|mask|next|pad|prefix|reasoning|sep"
    r"|special|start|stop|suffix|think|thinking|unk|video"
)
"""Words beside `key`, as in `cache_key`, and beside `token`, as in `pad_token`."""
_OF_KEYS = frozenset({"access", "api", "private", "subscription"})
"""Words beside `keys` and `tokens`."""
_ABOUT = re.compile(r"budget|count|format|ids?|limit|method|mode|name|policy|type")
"""Last words of names that are not secret, such as `token_limit`."""
_JSON_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_NAMES = ("properties", "patternProperties", "$defs", "definitions")
"""Tables of a JSON schema whose keys are names of the user's own."""
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|(?:sk|gsk|xai|nvapi)[-_](?=[\w-]*\d)[\w-]{20,}|AIza[\w-]{35}"
    r"|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36})"
)
"""Keys of hosts of models, of hubs and of clouds."""
_USER_INFO = re.compile(r"\w://[^/?#\s]+@")


def is_key_name(name: str) -> bool:
    """Whether a text under this name is a key or a table of headers, by the words of the name.

    Example:
        >>> [is_key_name(n) for n in ("openai_api_key", "X-Team-Token", "apiKeys", "hf_token")]
        [True, True, True, True]
        >>> [is_key_name(n) for n in ("prompt_cache_key", "stop_tokens", "token_limit", "keyboard")]
        [False, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    own = set(words)
    if not words or words[0] == "allowed" or _ABOUT.fullmatch(words[-1]):
        return False
    if any(map(_ALWAYS.fullmatch, words)) or {"connection", "string"} <= own:
        return True
    if own & {"keys", "tokens"}:
        return bool(own & _OF_KEYS)
    return any(map(_KEY.fullmatch, words)) and not any(map(_OTHER_KEY.fullmatch, words))


def masked_keys(text: str, mask: str) -> str:
    """The text with everything replaced that has the shape of a key.

    Example:
        >>> masked_keys("hf_" + "a1" * 17 + " of hf-internal-testing/tiny", "[secret]")
        '[secret] of hf-internal-testing/tiny'
    """
    return _SHAPES.sub(mask, text)


def written_secrets(table: Mapping[str, Any]) -> Iterator[str]:
    """Keys, at any depth of a table, whose texts are secrets by the key or by a user in a URL."""
    for key, value in table.items():
        texts = [value] if isinstance(value, str) else []
        if isinstance(value, list):
            texts = [item for item in value if isinstance(item, str)]
        if any(map(_USER_INFO.search, texts)) or (is_key_name(key) and _holds_text(value)):
            yield key
        elif isinstance(value, dict) and key in _NAMES:
            for name, schema in value.items():
                yield from _in(schema if isinstance(schema, dict) else {name: schema})
        else:
            yield from _in(value)


def _in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from written_secrets(value)
    elif isinstance(value, list):
        for item in value:
            yield from _in(item)


def _holds_text(value: Any) -> bool:
    if isinstance(value, dict):
        kind = value.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        is_schema = bool(kinds) and all(k in _JSON_TYPES for k in kinds)  # of a tool's argument
        return not is_schema and any(map(_holds_text, value.values()))
    return any(map(_holds_text, value)) if isinstance(value, list) else isinstance(value, str)
