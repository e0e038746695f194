"""SIGINT and the signals that stop a run, while requests are in flight: keep every reply."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mbt_cli.core.signals import handled, ignore_hang_up, restore, stop_signals
from mbt_cli.errors import Interrupted, MbtError, Stopped

_INTERRUPT_DRAIN_SECONDS = 2.0
_HINT = "run the same command again to resume: only missing replies are requested"


class StopRequest:
    """Which signal asked this run to stop, if any."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def error(self) -> MbtError:
        """The exception to raise."""
        if self.signal == signal.SIGINT:
            return Interrupted("interrupted; every reply that had arrived is kept", hint=_HINT)
        name = self.signal.name if self.signal else "a signal"
        return Stopped(f"stopped by {name}; every reply that had arrived is kept", hint=_HINT)

    def drain_seconds(self, usual: float) -> float:
        """Time to wait for replies in flight; shorter after Ctrl-C."""
        return min(usual, _INTERRUPT_DRAIN_SECONDS) if self.signal == signal.SIGINT else usual


@contextmanager
def raising(request: StopRequest) -> Iterator[None]:
    """Outside an event loop: a signal raises an exception in the main thread.

    Does nothing in other threads, which get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        raise request.error()

    with handled((signal.SIGINT, *stop_signals()), handle):
        yield


@contextmanager
def stopping(request: StopRequest, stop: Callable[[], None]) -> Iterator[None]:
    """Inside an event loop: a signal calls `stop`, and the loop runs on until it is drained."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def handle(number: signal.Signals) -> None:
        request.signal = request.signal or number
        if number == signal.SIGHUP:
            loop.remove_signal_handler(number)
            ignore_hang_up()
        stop()

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, *stop_signals())}
    for number in before:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in before:
            loop.remove_signal_handler(number)
        restore(before)
