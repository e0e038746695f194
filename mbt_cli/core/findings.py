"""Findings of `mbt doctor`: what a check of this machine or of a study found."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        group: What the check is about, such as `Python` or `disk`.
        what: What was checked.
        found: The result, never a secret.
        state: `ok`; `absent` if only some studies need it; `broken` if no study, or not the given
            one, can run without it.
        do: What to type or change; empty if nothing.
    """

    group: str
    what: str
    found: str
    state: State = "ok"
    do: str = ""


def ok(group: str, what: str, found: str) -> Finding:
    """A check that passed."""
    return Finding(group, what, found)


def absent(group: str, what: str, found: str, do: str) -> Finding:
    """Something is missing that only some studies need."""
    return Finding(group, what, found, "absent", do)


def broken(group: str, what: str, found: str, do: str) -> Finding:
    """Something is missing that the study needs."""
    return Finding(group, what, found, "broken", do)


def answer_of(
    command: Sequence[str], environment: Mapping[str, str], *, seconds: float
) -> subprocess.CompletedProcess[str] | None:
    """The finished command; None if it cannot be run or times out."""
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
