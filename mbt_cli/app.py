"""The program `mbt`, and the one place where errors become messages and exit codes."""

import os
import sys

import typer

from mbt_cli.cli.commands import app
from mbt_cli.cli.root import rare_garbage_collection
from mbt_cli.errors import Interrupted, MbtError, UsageError


def main() -> None:
    """Run the command line; a traceback from here means a bug in mbt."""
    with rare_garbage_collection():
        _run()


def _run() -> None:
    try:
        if "_MBT_COMPLETE" in os.environ:  # a shell asks for completions
            from mbt_cli.cli.shells import complete

            complete(app)
        code = app(prog_name="mbt", standalone_mode=False)
    except MbtError as error:
        sys.exit(_print_error(error))
    except typer.TyperException as error:
        sys.exit(_print_usage_error(error))
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # refused by the machine; nothing closer to it explained why
        sys.exit(
            _print_error(MbtError(f"`{error.filename or 'the system'}`: {error.strerror or error}"))
        )
    if code == Interrupted.exit_code:  # how Typer reports Ctrl-C
        _print_error(Interrupted("interrupted; finished work is kept"))
    sys.exit(code or 0)


def _print_usage_error(error: typer.TyperException) -> int:
    """Print Typer's usage error as mbt prints errors."""
    message = error.format_message()
    if message.startswith("Usage:"):  # a group without a command
        typer.echo(message, err=True)
        return UsageError.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "mbt"
    words = f"{message[:1].lower()}{message[1:]}".rstrip(".").replace("'", "`")
    return _print_error(UsageError(words, hint=f"{command} --help"))


def _print_error(error: MbtError) -> int:
    """Print the error and its hint on stderr; return the exit code."""
    from rich.console import Console
    from rich.markup import escape

    from mbt_cli.core.secrets import mask

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(mask(error.message))}")
    if error.hint:
        console.print(f"[bold cyan]hint:[/] {escape(mask(error.hint))}")
    return error.exit_code
