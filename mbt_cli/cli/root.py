"""The options of `mbt` itself, and settings for a quick start.

Typer imports Pydantic to convert every value that is not a plain bool. `Group` avoids that for
`--help`.
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
    """A command group whose `--help` defaults to False, and shows each summary whole."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_WHOLE))
                    for name, command in shown
                    if command is not None and not command.hidden
                ]
            )


_WHOLE = 1_000
"""Characters of a summary before Typer would cut it; a narrow terminal wraps it."""


def install_completion(wanted: bool) -> None:
    """Install completion in the shell's start-up files."""
    if not wanted:
        return
    from typer._completion_shared import install

    shell, path = install(_shell(), "mbt", "_MBT_COMPLETE")
    typer.echo(f"completion for {shell} is installed in {path}; open a new terminal to use it")
    raise typer.Exit


def show_completion(wanted: bool) -> None:
    """Print the completion script."""
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
            help="Print the completion script.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version of mbt."
        ),
    ] = False,
) -> None:
    """Do nothing: each option acts in its callback."""


def _shell() -> str:
    """The shell that started mbt, else the login shell.

    Raises:
        UsageError: The shell is unknown.
    """
    import shellingham  # type: ignore[import-untyped]

    try:
        name, _ = shellingham.detect_shell()
    except shellingham.ShellDetectionFailure:
        name = Path(os.environ.get("SHELL", "")).name
    known = ("bash", "zsh", "fish", "powershell", "pwsh")
    if name not in known:
        raise UsageError(
            f"completion does not support the shell `{name}`", hint=f"supported: {', '.join(known)}"
        )
    return str(name)


_ALLOCATIONS_A_COLLECTION = 50_000


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely: imports and rows create no cycles, and each collection takes time.

    Skip the collections at exit, which take a sixth of a second.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, 10, 10)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
