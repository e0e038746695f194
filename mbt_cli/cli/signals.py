"""Signals: Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP stop a run cleanly at any moment."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mbt_cli.core.signals import handled, stop_signals
from mbt_cli.errors import Interrupted, Stopped


@contextmanager
def raising_stopped(left: str) -> Iterator[None]:
    """Raise Stopped on a signal to stop until the context ends; `left` describes what remains."""
    came: list[Stopped] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(Stopped(f"stopped by {signal.Signals(number).name}; {left}"))
        raise came[-1]

    with handled(stop_signals(), stop):
        try:
            yield
        except BaseException as error:
            # polars panics if Python code that it calls raises
            if not came or isinstance(error, Stopped):
                raise
            raise came[-1] from error


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """End the run with exit code 75 on a signal to stop, and with 130 on Ctrl-C.

    While requests are in flight, the request loop handles signals itself.

    Args:
        command: The command that resumes the run.
    """
    try:
        with raising_stopped("finished work is kept"):
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; finished work is kept", hint=_resume_hint(command)
        ) from None
    except (Interrupted, Stopped) as error:
        error.hint = _resume_hint(command)
        raise


def _resume_hint(command: str) -> str:
    return f"resume with `{command}`; saved replies are not requested again"
