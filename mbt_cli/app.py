"""The program `mbt`, and the one place where errors become messages and exit codes.

Everything heavy is imported after signals are handled, so that one that comes meanwhile is
answered.
"""

import os
import signal
import sys
import traceback
from types import FrameType

from mbt_cli.core.signals import handled, stop_signals
from mbt_cli.errors import Interrupted, MbtError, Stopped, UsageError

_KEPT = "finished work is kept"


def main() -> None:
    """Run the command line; a traceback from here means a bug in mbt."""
    came: list[MbtError] = []

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            came.append(Interrupted(f"interrupted; {_KEPT}"))
            raise KeyboardInterrupt
        came.append(Stopped(f"stopped by {signal.Signals(number).name}; {_KEPT}"))
        raise came[-1]

    numbers = (signal.SIGINT, *stop_signals())
    with handled(numbers, stop):
        try:
            from mbt_cli.cli.streams import clean_output

            with clean_output():
                ended = _run()
        except BaseException:
            if not came:
                raise
            ended = came[0]  # an import that a signal cuts short fails in its own way
        for number in numbers:  # the message is printed whole
            signal.signal(number, signal.SIG_IGN)
        code = _print_error(ended) if isinstance(ended, MbtError) else ended
    sys.exit(code)


def _run() -> int | MbtError:
    """Run the command; returns its exit code, or the error to print."""
    import typer

    from mbt_cli.cli.root import rare_garbage_collection

    try:
        with rare_garbage_collection():
            from mbt_cli.cli.commands import app

            if "_MBT_COMPLETE" in os.environ:  # a shell asks for completions
                from mbt_cli.cli.shells import complete

                complete(app)
            code = int(app(prog_name="mbt", standalone_mode=False) or 0)
    except MbtError as error:
        return error
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # a group without a command
            typer.echo(message, err=True)
            return UsageError.exit_code
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "mbt"
        words = f"{message[:1].lower()}{message[1:]}".rstrip(".").replace("'", "`")
        return UsageError(words, hint=f"{command} --help")
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:  # refused by the machine; nothing closer to it explained why
        return MbtError(f"`{error.filename or 'the system'}`: {error.strerror or error}")
    except Exception:  # noqa: BLE001  a bug, whose traceback is cleaned like everything else
        traceback.print_exc()
        return MbtError.exit_code
    if code == Interrupted.exit_code:  # how Typer reports Ctrl-C
        return Interrupted(f"interrupted; {_KEPT}")
    return code


def _print_error(error: MbtError) -> int:
    """Print the error and its hint on stderr; return the exit code."""
    from rich.text import Text

    from mbt_cli.cli.printing import Terminal
    from mbt_cli.cli.streams import clean_output

    with clean_output():
        console = Terminal(stderr=True, soft_wrap=True)
        console.print(Text.assemble(("error:", "bold red"), f" {error.message}"))
        if error.hint:
            console.print(Text.assemble(("hint:", "bold cyan"), f" {error.hint}"))
    return error.exit_code
