"""Signals that stop a run, whatever the code does that they interrupt."""

import os
import signal

import pytest

from mbt_cli.cli.signals import raising_stopped
from mbt_cli.core.signals import held_back
from mbt_cli.errors import Stopped


class Panic(BaseException):
    """How code in Rust ends when a function of Python that it called raises."""


def interrupted():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    except Stopped:
        raise Panic from None


def test_a_signal_that_a_library_answers_with_its_own_error_stops_the_run():
    with (
        pytest.raises(Stopped, match="stopped by SIGTERM; all is kept"),
        raising_stopped("all is kept"),
    ):
        interrupted()


def test_an_error_without_a_signal_is_itself():
    with pytest.raises(Panic), raising_stopped("all is kept"):
        raise Panic


def test_a_signal_in_code_of_polars_is_handled_after_that_code():
    said = []
    code = compile(
        "os.kill(os.getpid(), signal.SIGTERM)\nsaid.append('done')", "/polars/frame.py", "exec"
    )

    def stopped():
        exec(code, {"os": os, "signal": signal, "said": said})
        signal.pause()

    with pytest.raises(Stopped), raising_stopped("all is kept"):
        stopped()
    assert said == ["done"]


def test_a_signal_that_is_held_back_comes_at_the_end_of_the_block():
    said = []

    def releases():
        with held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            said.append("released")
        said.append("more")

    with pytest.raises(Stopped), raising_stopped("all is kept"):
        releases()
    assert said == ["released"]
