"""The program `mbt`, and the one place where errors become messages and exit codes."""

import os
import sys

import typer

from mbt_cli.cli.commands import app
from mbt_cli.cli.root import seldom_collecting
from mbt_cli.errors import Interrupted, MbtError, UsageError


def main() -> None:
    """Run the command line; a traceback from here means a bug in mbt."""
    with seldom_collecting():
        _run()


def _run() -> None:
    try:
        if "_MBT_COMPLETE" in os.environ:  # a shell asks how a word may go on
            from mbt_cli.cli.shells import complete

            complete(app)
        code = app(prog_name="mbt", standalone_mode=False)
    except MbtError as error:
        sys.exit(_told(error))
    except typer.TyperException as error:
        sys.exit(_misused(error))
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # the machine's refusal, not a bug: nobody nearer knew what to say
        sys.exit(_told(MbtError(f"`{error.filename or 'the system'}`: {error.strerror or error}")))
    if code == Interrupted.exit_code:  # Typer's word for Ctrl-C
        _told(Interrupted("interrupted; everything done so far is kept"))
    sys.exit(code or 0)


def _misused(error: typer.TyperException) -> int:
    """Typer's complaint about a command line in mbt's own form."""
    said = error.format_message()
    if said.startswith("Usage:"):  # a command without a word
        typer.echo(said, err=True)
        return UsageError.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "mbt"
    words = f"{said[:1].lower()}{said[1:]}".rstrip(".").replace("'", "`")
    return _told(UsageError(words, hint=f"{command} --help"))


def _told(error: MbtError) -> int:
    """Say on stderr what is wrong and what to type; gives the exit code."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(error.message)}")
    if error.hint:
        console.print(f"[bold cyan]hint:[/] {escape(error.hint)}")
    return error.exit_code
