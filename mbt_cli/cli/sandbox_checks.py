"""Checks of the sandbox for `mbt doctor`: which levels work here, and whether programs get out."""

import os
import sys
from collections.abc import Iterator

from mbt_cli.core.findings import Finding, absent, broken, ok
from mbt_cli.errors import UsageError
from mbt_cli.sandbox.escapes import ESCAPES, escaped
from mbt_cli.sandbox.pool import LEVELS, UNSAFE, Unavailable, try_level, wanted_level

_GROUP = "sandbox"
_DO = {
    "namespaces": "allow user namespaces: sysctl user.max_user_namespaces=10000, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0",
    "bubblewrap": "apt install bubblewrap",
    "landlock": "use Linux 5.13 or newer",
}


def sandbox_findings() -> Iterator[Finding]:
    """Each level, the one that is used, and what programs reach at it."""
    if sys.platform != "linux":
        found = f"programs of models run on Linux alone, and this is {sys.platform}"
        yield absent(_GROUP, "level", found, "nothing to do: only verifiers that run code need it")
        return
    works = []
    for level, what in LEVELS.items():
        try:
            try_level(level)
        except Unavailable as error:
            yield absent(_GROUP, level, f"{what}: {error}", _DO[level])
        else:
            works.append(level)
            yield ok(_GROUP, level, f"works: {what}")
    try:
        wanted = wanted_level()
    except UsageError as error:
        yield broken(_GROUP, "level", error.message, error.hint or "")
        return
    used = next(iter(works), None) if wanted == "auto" else wanted
    if used is None or (used in LEVELS and used not in works):
        found = "no sandbox works, so programs of models are not run"
        if os.environ.get(UNSAFE, "0") not in ("", "0"):
            found = f"no sandbox works, and {UNSAFE} is set: programs of models run as you do"
        do = 'in a container that you can throw away, `[run] sandbox = "container"`'
        yield absent(_GROUP, "level", found, do)
        return
    yield ok(_GROUP, "level", f"{used}{' (auto)' if wanted == 'auto' else ''}")
    yield _escapes(used)


def _escapes(level: str) -> Finding:
    try:
        reached = escaped(level)
    except Unavailable as error:
        return broken(_GROUP, "escapes", str(error), "choose another level with MBT_SANDBOX")
    if not reached:
        return ok(_GROUP, "escapes", f"all {len(ESCAPES)} attempts failed: {', '.join(ESCAPES)}")
    do = "choose another level with MBT_SANDBOX, or a newer kernel"
    if level == "container":  # it is the container that confines
        return absent(_GROUP, "escapes", f"programs reach {', '.join(reached)}", do)
    return broken(_GROUP, "escapes", f"programs reach {', '.join(reached)}", do)
