"""Completion in bash, zsh and fish: Typer's, with words rejoined where bash splits them at `=`."""

import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import typer
from typer._completion_classes import BashComplete, FishComplete, ZshComplete, completion_init
from typer._completion_shared import get_completion_script

from mbt_cli.cli.completion import TypedLine, rejoined
from mbt_cli.errors import MbtError

VARIABLE = "_MBT_COMPLETE"
"""Set by the shell function at each key press: `complete_bash`, `source_zsh` and so on."""

_QUOTES = ("'", '"')


class Bash(BashComplete):
    """bash splits words at `=` and `:`, and replaces only the last piece."""

    _kept = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        pieces = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        *words, current = rejoined(pieces)
        if current[:1] in _QUOTES:  # a quoted word is not split
            return [_unquoted(word) for word in words[1:]], current[1:]
        last = pieces[-1]
        self._kept = len(current) if not last.strip("=:") else len(current) - len(last)
        return [_unquoted(word) for word in words[1:]], current

    def format_completion(self, item: Any) -> str:
        return str(item.value)[self._kept :]

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        return _completions(self.cli, args, incomplete)


class Zsh(ZshComplete):
    """zsh passes whole words."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        return _completions(self.cli, args, incomplete)


class Fish(FishComplete):
    """fish passes whole words."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        return _completions(self.cli, args, incomplete)


_SHELLS: Mapping[str, type[Bash | Zsh | Fish]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def complete(app: typer.Typer) -> None:
    """Answer one key press, or print the completion script, and exit.

    Typer handles all other shells.
    """
    instruction, _, shell = os.environ[VARIABLE].partition("_")
    if shell not in _SHELLS:
        completion_init()
        return
    if instruction == "source":
        typer.echo(script(shell))
        sys.exit(0)
    empty = typer.core.TyperGroup(name="mbt")
    asked = _SHELLS[shell](empty, {}, "mbt", VARIABLE)
    asked.cli = typer.main.get_command(app)
    try:
        typer.echo(asked.complete())
    except MbtError:
        sys.exit(1)  # do not print errors for an unfinished line; the command reports them
    sys.exit(0)


def script(shell: str) -> str:
    """The completion script for a shell, such as `bash`."""
    return get_completion_script(prog_name="mbt", complete_var=VARIABLE, shell=shell)


def _completions(command: Any, words: list[str], incomplete: str) -> list[Any]:
    """Completions of the word, including values after `--option=`.

    Typer would parse the line first, which always imports Pydantic.
    """
    context = command.context_class(command, info_name="mbt", resilient_parsing=True)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        verb = rest.pop(0)
        command = command.commands[verb]
        context = command.context_class(
            command, info_name=verb, parent=context, resilient_parsing=True
        )
    valued = {name: p for p in command.params if _takes_value(p) for name in p.opts}
    line = TypedLine.read(rest, valued)
    context.obj = line
    option, equals, value = incomplete.partition("=")
    if equals and option in valued:
        items = valued[option].shell_complete(context, value)
        return [type(item)(f"{option}={item.value}", help=item.help) for item in items]
    asked = _waiting(rest, valued)
    if asked is None and not incomplete.startswith("-"):
        asked = _argument(command, len(line.arguments))
    return list((asked or command).shell_complete(context, incomplete))


def _takes_value(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not parameter.is_flag


def _waiting(rest: list[str], valued: Mapping[str, Any]) -> Any | None:
    """The option whose value is being typed."""
    for back, word in enumerate(reversed(rest), start=1):
        if word in valued:
            return valued[word] if valued[word].nargs >= back else None
    return None


def _argument(command: Any, place: int) -> Any | None:
    """The argument at this position."""
    found = [p for p in command.params if p.param_type_name == "argument"]
    if place < len(found):
        return found[place]
    return found[-1] if found and found[-1].nargs == -1 else None


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word
