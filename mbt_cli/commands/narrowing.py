"""The command line with one verb's options alone, for a quick start."""

from collections.abc import Sequence
from copy import copy
from inspect import getdoc
from typing import Any

import typer
from typer.models import CommandInfo


def narrowed(app: typer.Typer, words: Sequence[str]) -> Any:
    """The command line with the options of one verb alone: making those of all takes a while.

    Args:
        app: Every verb.
        words: The verb, if one is said.

    Returns:
        Typer's command; other verbs have their name and first line.
    """
    if "help" in words:  # it tells of any of them
        return typer.main.get_command(app)
    light = copy(app)
    verbs = app.registered_commands
    light.registered_commands = [v if v.name in words else _without_options(v) for v in verbs]
    return typer.main.get_command(light)


def _without_options(verb: CommandInfo) -> CommandInfo:
    light = copy(verb)
    light.help = verb.help or getdoc(verb.callback)
    light.callback = _nothing
    return light


def _nothing() -> None:
    """A verb without options."""
