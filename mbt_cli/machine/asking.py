"""A short question to a program of this machine."""

import subprocess
from collections.abc import Mapping, Sequence


def answer_of(
    command: Sequence[str], environment: Mapping[str, str], *, seconds: float
) -> subprocess.CompletedProcess[str] | None:
    """What a command printed; None when it cannot be run or does not answer in time."""
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
