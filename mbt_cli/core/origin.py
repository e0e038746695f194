"""Where replies come from, if not from a server that mbt started."""

from collections.abc import Iterable
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import Settings

LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
"""Names of this machine in addresses."""

_LOCALHOST = tuple(name for name in LOOPBACK if name != "::1")  # another server may listen there

_SCHEMES = {"http": 80, "https": 443}


class Origin(Settings):
    """The endpoint that replies come from."""

    name: str
    """Its address with host and port, or the `identity` that the manifest gives it."""
    addresses: tuple[str, ...] = ()
    """Every address at which it answered."""
    is_declared: bool = False
    """Whether the manifest gives it an `identity`: its model may then move to another folder."""
    is_model_partly_unknown: bool = False
    """Whether some replies came while it listed no model."""
    model: dict[str, Json] = Field(default_factory=dict)
    """What it says of its model at `/models`, such as `id` and `root`."""

    def merged(self, others: Iterable["Origin"]) -> Self:
        """This origin with the addresses and the model that earlier sessions recorded."""
        merged = self
        for other in others:
            is_silent = bool(merged.model) != bool(other.model)
            merged = merged.model_copy(
                update={
                    "is_model_partly_unknown": is_silent
                    or merged.is_model_partly_unknown
                    or other.is_model_partly_unknown,
                    "addresses": tuple(dict.fromkeys((*other.addresses, *merged.addresses))),
                    "model": {**other.model, **merged.model},
                }
            )
        return merged

    def has_name(self, name: str) -> bool:
        """Whether the endpoint is known by this name; IPv4 names of this machine are equal."""
        return _place(self.name) == _place(name)

    def other_model(self, now: "Origin") -> tuple[str, Json, Json] | None:
        """Key, old and new value if the endpoint now serves another model; else None.

        If it has an `identity` or moves between machines, the folders of a path may differ.
        """
        stays = all(self.has_name(one) for one in (*self.addresses, *now.addresses))
        moves = now.is_declared or not stays
        for key in sorted(self.model.keys() & now.model.keys()):
            old, new = self.model[key], now.model[key]
            if old != new and not (moves and file_name(old) == file_name(new)):
                return key, old, new
        return None


def _place(name: str) -> str:
    """An address with its port, all names of this machine equal; any other name as it is.

    Example:
        >>> _place("http://127.0.0.1:8000/v1/") == _place("http://localhost:8000/v1")
        True
        >>> _place("https://API.example.com/v1"), _place("qwen3-8b")
        ('https://api.example.com:443/v1', 'qwen3-8b')
    """
    try:
        parts = urlsplit(name)
        port = parts.port or _SCHEMES[parts.scheme]
    except (ValueError, KeyError):
        return name
    host = "localhost" if parts.hostname in _LOCALHOST else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


def file_name(path: Json) -> Json:
    """The last part of an absolute path; any other value as it is."""
    return path.rstrip("/").rpartition("/")[2] if str(path).startswith("/") else path
