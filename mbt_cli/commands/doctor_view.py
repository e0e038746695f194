"""What the doctor found, for people and for scripts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mbt_cli.commands.plain_text import foreign
from mbt_cli.commands.printing import printer
from mbt_cli.machine.findings import Finding
from mbt_cli.machine.orphans import Orphans

_STYLES = {"ok": "green", "absent": "yellow", "broken": "red"}

Look = Callable[[Iterator[Finding]], list[Finding]]


@contextmanager
def looking() -> Iterator[Look]:
    """Collects findings, and tells on stderr, while it is a terminal, what was just looked at."""
    with Console(stderr=True).status("looking") as status:

        def look(findings: Iterator[Finding]) -> list[Finding]:
            found = []
            for finding in findings:
                found.append(finding)
                status.update(f"looked at {finding.group}: {finding.what}")
            return found

        yield look


def findings_json(found: Sequence[Finding]) -> str:
    """One JSON object: whether nothing is broken, and every line."""
    is_fine = all(finding.state != "broken" for finding in found)
    return orjson.dumps({"ok": is_fine, "findings": list(found)}).decode()


def print_findings(found: Sequence[Finding]) -> None:
    """A table, and how many lines want something."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    table.add_column("what to do", overflow="fold", ratio=1)
    group = ""
    for finding in found:
        name = finding.group if finding.group != group else ""
        group = finding.group
        mark = "broken: " if finding.state == "broken" else ""  # not every reader sees colours
        do = foreign(f"{mark}{finding.do or 'ok'}", _STYLES[finding.state])
        table.add_row(name, foreign(finding.what), foreign(finding.found), do)
    out = printer()
    out.print(table)
    out.print(_summary(found))


def _summary(found: Sequence[Finding]) -> Text:
    wrong = sum(finding.state == "broken" for finding in found)
    optional = sum(finding.state == "absent" for finding in found)
    words = f"{wrong} broken" if wrong else "nothing is broken"
    if optional:
        words += f"; {optional} not here, for those who want them"
    return Text(words, style="red" if wrong else "green")


def stopped_words(stopped: Sequence[Orphans]) -> str:
    """What was ended."""
    if not stopped:
        return "nothing to stop: no server was left behind"
    return "\n".join(f"stopped {orphans.words}" for orphans in stopped)
