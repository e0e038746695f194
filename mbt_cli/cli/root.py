"""What `mbt` itself can be told, before any verb, and how it starts quickly.

Typer converts every value that is no plain `False` or `True` with Pydantic. What stands here keeps
that away from `mbt VERB --help`.
"""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mbt_cli.errors import UsageError


class Group(TyperGroup):
    """A group of verbs whose own `--help`, where it is not said, is `False` rather than nothing."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def install_completion(wanted: bool) -> None:
    """Write completion into the shell's start-up files."""
    if not wanted:
        return
    from typer._completion_shared import install

    shell, path = install(_shell(), "mbt", "_MBT_COMPLETE")
    typer.echo(f"completion for {shell} is in {path}; open a new terminal to have it")
    raise typer.Exit


def show_completion(wanted: bool) -> None:
    """Print what a shell has to source."""
    if not wanted:
        return
    from mbt_cli.cli.shells import script

    typer.echo(script(_shell()))
    raise typer.Exit


def show_version(wanted: bool) -> None:
    """Print the version."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mbt {version('mbt-cli')}")
        raise typer.Exit


def root(
    install: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            callback=install_completion,
            is_eager=True,
            help="Install tab completion for this shell: bash, zsh, fish or PowerShell.",
        ),
    ] = False,
    show: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            callback=show_completion,
            is_eager=True,
            help="Print the script of that instead.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version of mbt."
        ),
    ] = False,
) -> None:
    """Nothing of its own: each option is done as soon as it is read."""


def _shell() -> str:
    """The shell that mbt was started from, else the one that the user logs in with.

    Raises:
        UsageError: Neither can be told.
    """
    import shellingham  # type: ignore[import-untyped]

    try:
        name, _ = shellingham.detect_shell()
    except shellingham.ShellDetectionFailure:
        name = Path(os.environ.get("SHELL", "")).name
    known = ("bash", "zsh", "fish", "powershell", "pwsh")
    if name not in known:
        raise UsageError(
            f"no completion for the shell `{name}`", hint=f"there is one for {', '.join(known)}"
        )
    return str(name)


_ALLOCATIONS_A_COLLECTION = 50_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """What imports make is no garbage, and rows hold no cycles: looking costs every request.

    Nor is it looked for when the process ends: Python does so several times, which took a sixth
    of a second.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, 10, 10)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
