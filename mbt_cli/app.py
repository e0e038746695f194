"""The program `mbt`, and the one place where errors become messages and exit codes.

Everything heavy is imported after signals are handled, so that one that comes meanwhile is
answered.
"""

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from mbt_cli.core.signals import handled, stop_signals
from mbt_cli.errors import Interrupted, MbtError, Stopped, UsageError

_KEPT = "finished work is kept"


def program() -> None:
    """Run the command line as a program: a signal after its end does not change its exit code."""
    numbers = (signal.SIGINT, *stop_signals())
    for number in numbers:
        signal.signal(number, lambda *_: None)  # which `main` restores
    # Python itself restores the defaults on its way out
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers])
    main()


def main() -> None:
    """Run the command line; a traceback from here means a bug in mbt."""
    _open_closed_streams()
    came: list[MbtError] = []

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            came.append(Interrupted(f"interrupted; {_KEPT}"))
            raise KeyboardInterrupt
        came.append(Stopped(f"stopped by {signal.Signals(number).name}; {_KEPT}"))
        raise came[-1]

    def swallowed(found: "sys.UnraisableHookArgs") -> None:
        """Send a signal again whose exception a callback or a finalizer ignored."""
        if isinstance(found.exc_value, KeyboardInterrupt | Stopped):
            is_interrupt = isinstance(found.exc_value, KeyboardInterrupt)
            number = signal.SIGINT if is_interrupt else signal.SIGTERM
            again = threading.Timer(0.01, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        elif not came:
            sys.__unraisablehook__(found)
        # else a finalizer of what the signal has cut short, which nobody needs to see

    numbers = (signal.SIGINT, *stop_signals())
    sys.unraisablehook = swallowed
    with handled(numbers, stop):
        try:
            from mbt_cli.cli.streams import clean_output

            with clean_output():
                try:
                    ended = _run()
                except Exception:
                    if came:
                        raise
                    traceback.print_exc()  # a bug; cleaned like everything else that is printed
                    ended = MbtError.exit_code
        except BaseException:
            if not came:
                raise
            ended = came[0]  # an import that a signal cuts short fails in its own way
        sys.unraisablehook = (lambda _: None) if came else sys.__unraisablehook__
        for number in numbers:  # the message is printed whole
            signal.signal(number, lambda *_: None)
        code = _print_error(ended) if isinstance(ended, MbtError) else ended
    sys.exit(code)


def _open_closed_streams() -> None:
    """Let a program that was started with `>&-` or `2>&-` print into nothing.

    A file that it opens would otherwise get the number of the closed stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


def _run() -> int | MbtError:
    """Run the command; returns its exit code, or the error to print."""
    import typer

    from mbt_cli.cli.root import rare_garbage_collection

    try:
        with rare_garbage_collection():
            from mbt_cli.cli.commands import app, command_line

            if "_MBT_COMPLETE" in os.environ:  # a shell asks for completions
                from mbt_cli.cli.shells import complete

                complete(app)
            code = int(command_line()(prog_name="mbt", standalone_mode=False) or 0)
            sys.stdout.flush()
    except MbtError as error:
        return error
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # a group without a command
            typer.echo(message, err=True)
            return UsageError.exit_code
        context = getattr(error, "ctx", None)
        command = context.command_path if context else _command_typed(sys.argv[1:])
        words = f"{message[:1].lower()}{message[1:]}".rstrip(".").replace("'", "`")
        for theirs, ours in _PLAIN:
            words = words.replace(theirs, ours)
        if command == "mbt" and words.startswith("no such option"):
            return UsageError(words, hint="options of a command follow it, as in `mbt run --help`")
        return UsageError(words, hint=f"{command} --help")
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:  # refused by the machine; nothing closer to it explained why
        return _refused(error)
    if code == Interrupted.exit_code:  # how Typer reports Ctrl-C
        return Interrupted(f"interrupted; {_KEPT}")
    return code


_PLAIN = (
    ("Value error, ", ""),
    ("Input should be greater than or equal to", "must be at least"),
    ("Input should be less than or equal to", "must be at most"),
    ("Input should be greater than", "must be greater than"),
    (
        "Input should be a valid integer, unable to parse string as an integer",
        "must be a whole number",
    ),
    ("got unexpected extra argument(s)", "too many arguments:"),
    ("Input should be a valid number, unable to parse string as a number", "must be a number"),
)
"""Words about numbers, without those of parsing."""


def _command_typed(words: Sequence[str]) -> str:
    """The command at the start of what was typed; `mbt` if it begins with an option."""
    first = [word for word in words[:2] if word.isalpha()]
    return " ".join(["mbt", *(first if first[:1] == ["data"] else first[:1])])


def _refused(error: OSError) -> MbtError:
    """What the machine refuses, as an error that names the file if it is known."""
    from mbt_cli.store.disk import is_about_writing, refused

    name = error.filename2 or error.filename
    if not is_about_writing(error):
        return MbtError(f"`{name or 'the system'}`: {error.strerror or error}")
    if name is not None:
        return refused(error, Path(os.fsdecode(name)))
    # every writer of files names its file; what is left in stdout would fail again at exit
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    hint = "free some space, or write the output elsewhere"
    return MbtError(f"cannot write to stdout: {error.strerror}", hint=hint)


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
