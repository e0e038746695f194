"""What the doctor finds: a line each, right or with what to do."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Args:
        group: What it is about, such as `Python` or `disk`.
        what: The thing that was looked at.
        found: What was seen, never a secret.
        state: `ok`; `absent`, which only counts for who wants it; `broken`, which stops the
            manifest, or any study.
        do: What to type or change; empty when it is right.
    """

    group: str
    what: str
    found: str
    state: State = "ok"
    do: str = ""


def ok(group: str, what: str, found: str) -> Finding:
    """A thing that is right."""
    return Finding(group, what, found)


def absent(group: str, what: str, found: str, do: str) -> Finding:
    """A thing that is not there, and that only some studies want."""
    return Finding(group, what, found, "absent", do)


def broken(group: str, what: str, found: str, do: str) -> Finding:
    """A thing without which it does not work."""
    return Finding(group, what, found, "broken", do)
