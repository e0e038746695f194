"""Signals to orders: Ctrl-C and SIGTERM stop a run in order, whatever it does at the moment."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mbt_cli.errors import Interrupted, Stopped
from mbt_cli.inference.stopping import handled

_STOPPING = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def raising_stopped(*numbers: signal.Signals, left: str) -> Iterator[None]:
    """While this lasts, these signals raise Stopped, which says what is `left`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(f"stopped by {signal.Signals(number).name}; {left}")

    with handled(numbers, stop):
        yield


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """While this lasts, SIGTERM and SIGUSR1 end the run with exit code 75, Ctrl-C with 130.

    The dispatcher handles signals itself while requests are in flight; this holds elsewhere.

    Args:
        command: What a user types to go on.
    """
    try:
        with raising_stopped(*_STOPPING, left="everything done so far is kept"):
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; everything done so far is kept", hint=_again(command)
        ) from None
    except (Interrupted, Stopped) as error:
        error.hint = _again(command)
        raise


def _again(command: str) -> str:
    return f"go on with `{command}`; no reply is paid for twice"
