"""Every error that a user can see, with its exit code.

MbtError                 1  something failed
├── UsageError           2  the command line or the environment is wrong
│   ├── ManifestError    2  the manifest is wrong; holds every problem found
│   └── MissingInputError 2 an input artifact does not exist yet
├── StaleError           1  finished cells were made with other settings
│   └── OtherServerError 1  a cell has replies of another model server
├── StageError           1  a stage ran and failed
├── ArtifactError        1  an artifact is damaged, unknown or cannot be written
├── LockedError          1  another process is running this cell
├── QueueFullError       1  a launcher takes no more jobs for now
├── BackendError         1  a model server did not start, died or refused a request
├── VerificationError    1  a verifier reached no verdict on a reply
├── Stopped             75  stopped by a signal with everything kept
├── BudgetError         77  the budget of the study is reached, with everything kept
└── Interrupted        130  stopped by Ctrl-C with everything kept
"""

from collections.abc import Sequence
from dataclasses import dataclass


class MbtError(Exception):
    """An error with a message for the user and, if possible, the command to type next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(MbtError):
    """The command line or the environment is wrong."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a manifest or preset.

    Args:
        where: Key path in the file, such as `stage.base.samples`.
        what: What is wrong, with the value.
        line: Where that is in the text, such as `line 12`; empty if unknown.
    """

    where: str
    what: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.line}: `{self.where}`: {self.what}".removeprefix(": ")


class ManifestError(UsageError):
    """The manifest is wrong; `problems` holds everything that was found."""

    def __init__(self, file: str, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        count = len(problems)
        head = f"`{file}` has {count} problem{'' if count == 1 else 's'}:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in problems)]), hint=hint)
        self.file = file
        self.problems = tuple(problems)


class MissingInputError(UsageError):
    """An input artifact does not exist yet."""


class StaleError(MbtError):
    """Finished cells were made with other settings than the manifest has now."""


class OtherServerError(StaleError):
    """A cell has replies of another model server than the one that it would ask now."""


class StageError(MbtError):
    """A stage ran and failed."""


class ArtifactError(MbtError):
    """An artifact is damaged, of an unknown kind, or cannot be written."""


class LockedError(MbtError):
    """Another process runs this cell."""


class QueueFullError(MbtError):
    """A launcher takes no more jobs until some of those in its queue have ended.

    Args:
        message: What the queue said.
        hint: What to type.
        takes: Tasks that it would take at once if the job is an array; 0 if it has to be waited
            for.
    """

    def __init__(self, message: str, *, hint: str | None = None, takes: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.takes = takes


class BackendError(MbtError):
    """A model server did not start, died, or refused a request."""


class VerificationError(MbtError):
    """A verifier reached no verdict on a reply: the row fails, and the reply is not wrong."""


class Stopped(MbtError):
    """Stopped by SIGTERM, SIGUSR1 or SIGHUP; finished work is kept."""

    exit_code = 75


class Interrupted(MbtError):
    """Stopped by Ctrl-C; finished work is kept."""

    exit_code = 130


class BudgetError(MbtError):
    """The next request could cost more than the budget of the study leaves; all work is kept."""

    exit_code = 77


class JudgeReplyError(ValueError):
    """A judge's reply cannot be parsed; its row fails and never scores zero."""
