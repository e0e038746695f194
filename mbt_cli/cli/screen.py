"""Progress on stderr: live bars on a terminal, plain lines elsewhere."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from mbt_cli.cli.printing import Terminal
from mbt_cli.core.number_text import counted
from mbt_cli.core.progress import Progress as Progressing
from mbt_cli.core.progress import Silent

_LINE_SECONDS = 15.0
_WAITING_LINE_SECONDS = 60.0
_AXIS = re.compile(r"/\w+=")


@contextmanager
def screen(quiet: bool, verbose: bool) -> Iterator[Progressing]:
    """Show the progress of a run until the context ends."""
    console = Terminal(stderr=True)
    if quiet:
        yield Silent()
    elif console.is_terminal:
        with _bar(console) as bar:
            yield Live(bar)
    else:
        lines = Lines(verbose=verbose)
        yield lines
        lines.finish()


class _Label(ProgressColumn):
    """A column that shrinks on a narrow terminal."""

    def render(self, task: Task) -> Text:
        """An address without the names of its axes."""
        return Text(_AXIS.sub("/", task.description), no_wrap=True, overflow="ellipsis")


def _bar(console: Terminal) -> Progress:
    def whole() -> Column:
        return Column(no_wrap=True)

    return Progress(
        SpinnerColumn(table_column=whole()),
        _Label(),
        BarColumn(bar_width=16, table_column=whole()),
        MofNCompleteColumn(table_column=whole()),
        TextColumn("{task.fields[counts]}", markup=False, table_column=whole()),
        TimeElapsedColumn(table_column=whole()),
        TimeRemainingColumn(table_column=whole()),
        console=console,
        refresh_per_second=4,
    )


class _Counts:
    """Counts of one task."""

    def __init__(self) -> None:
        self.label = ""
        self.total: int | None = None
        self.begin(None)

    def begin(self, total: int | None) -> None:
        self.total = total
        self.done = self.failed = self.reused = self.tokens = 0
        self.started = time.monotonic()

    def add(self, done: int, failed: int, reused: int, tokens: int) -> None:
        self.done += done
        self.failed += failed
        self.reused += reused
        self.tokens += tokens

    def words(self) -> str:
        rate = self.tokens / max(time.monotonic() - self.started, 1e-3)
        parts = [f"{rate:,.0f} tokens/s"] if self.tokens else []
        parts += [f"{self.reused:,} reused"] if self.reused else []
        parts += [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join(parts)


class Live:
    """One line with a bar per task; finished tasks stay visible."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._counts = _Counts()
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None) -> None:
        """Add a bar."""
        self._counts.begin(total)
        self._task = self._bar.add_task(label, total=total, counts="")

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """Move the bar."""
        self._counts.add(done, failed, reused, tokens)
        if self._task is not None:
            self._bar.update(self._task, completed=self._counts.done, counts=self._counts.words())

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bar.console.print(text)

    def waiting(self, why: str) -> None:
        """Show the reason in the place of the counts."""
        if self._task is not None:
            self._bar.update(self._task, counts=why or self._counts.words())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to others."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


class Lines:
    """Plain lines at the start, at intervals, and at the end of each task."""

    def __init__(self, *, verbose: bool) -> None:
        self._counts = _Counts()
        self._label = ""
        self._printed = ""
        self._last = 0.0
        self._waited = -_WAITING_LINE_SECONDS
        self._seconds = 2.0 if verbose else _LINE_SECONDS

    def start(self, label: str, total: int | None) -> None:
        """Finish the previous task and start this one."""
        self.finish()
        self._label = label
        self._counts.begin(total)
        self._last = time.monotonic()
        self._print("started" if total is None else f"started, {counted(total, 'row')}")

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """Count, and print a line at intervals."""
        self._counts.add(done, failed, reused, tokens)
        now = time.monotonic()
        if now - self._last >= self._seconds:
            self._last = now
            self._print(self._progress())

    def note(self, text: str) -> None:
        """Print the line."""
        sys.stderr.write(f"{text}\n")

    def waiting(self, why: str) -> None:
        """Print the reason, at most once a minute."""
        now = time.monotonic()
        if why and now - self._waited >= _WAITING_LINE_SECONDS:
            self._waited = now
            self._print(f"{self._progress()}, {why}")

    def paused(self) -> AbstractContextManager[None]:
        """Lines do not move."""
        return nullcontext()

    def finish(self) -> None:
        """Print the last line of the task."""
        if self._label:
            self._print(self._progress())
            self._label = ""

    def _progress(self) -> str:
        counts = self._counts
        shown = counted(counts.done, "row")
        if counts.total is not None:
            shown = f"{counts.done:,} of {counted(counts.total, 'row')}"
        words = f", {counts.words()}" if counts.words() else ""
        left = _left(counts.done, counts.total, time.monotonic() - counts.started)
        return f"{shown}{words}{left}"

    def _print(self, words: str) -> None:
        line = f"{self._label}: {words}\n"
        if line != self._printed:  # the last line may be printed already
            sys.stderr.write(line)
        self._printed = line


def _left(done: int, total: int | None, seconds: float) -> str:
    if not total or not done or done >= total:
        return ""
    return f", {seconds / done * (total - done):,.0f} s left"
