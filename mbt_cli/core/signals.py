"""The signals that stop a run in order, and handling them for a while."""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

Handle = Callable[[int, FrameType | None], None]

_OUTPUTS = (1, 2)

_POLARS = f"{os.sep}polars{os.sep}"
_LATER_SECONDS = 0.01

_held_back: list[int] | None = None
"""Signals that came in `held_back`; None outside of it."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGUSR1, and SIGHUP, which comes when a terminal closes.

    SIGHUP is left out if it is ignored: after `nohup`, and once it has come.
    """
    hang_up = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else ()
    return (signal.SIGTERM, signal.SIGUSR1, *hang_up)


@contextmanager
def handled(numbers: Iterable[signal.Signals], handle: Handle) -> Iterator[None]:
    """Handle these signals with `handle`, then restore the previous handlers.

    Only the first SIGHUP is handled: a terminal and its shell both send it. A signal that comes in
    Python code of polars is handled a little later: some of it is called from Rust, which panics if
    `handle` raises.
    """

    def handle_one(number: int, frame: FrameType | None) -> None:
        if _held_back is not None:
            _held_back.append(number)
            return
        if frame is not None and _POLARS in frame.f_code.co_filename:
            later = threading.Timer(_LATER_SECONDS, os.kill, (os.getpid(), number))
            later.daemon = True
            later.start()
            return
        if number == signal.SIGHUP:
            ignore_hang_up()
        handle(number, frame)

    before = {number: signal.signal(number, handle_one) for number in numbers}
    try:
        yield
    finally:
        restore(before)


@contextmanager
def held_back() -> Iterator[None]:
    """Handle the signals that come in this block at its end; for what takes milliseconds."""
    global _held_back
    if _held_back is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    _held_back = came
    try:
        yield
    finally:
        _held_back = None
        for number in came:
            os.kill(os.getpid(), number)


def restore(before: dict[signal.Signals, Callable[..., object] | int | None]) -> None:
    """Restore handlers; SIGHUP stays ignored once it has come."""
    for number, handler in before.items():
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def ignore_hang_up() -> None:
    """Ignore further SIGHUP, and whatever is still written to a terminal that is gone."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for output in _OUTPUTS:
        with contextlib.suppress(OSError):  # it is closed
            if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output)
                os.close(nowhere)
