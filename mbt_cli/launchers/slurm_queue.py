"""What Slurm says about our jobs: squeue for the living, sacct or scontrol for the rest."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from mbt_cli.errors import MbtError

_SECONDS = 30
_NO_SLURM = "see with `sinfo` that Slurm runs; `mbt submit --local 1` runs jobs on this machine"
_FORMAT = "%F\t%K\t%T\t%r\t%j\t%k"
_LIVING = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job or array task.

    Args:
        id: Slurm's id of the job, of the whole array for a task.
        task: Its number or numbers in the array; empty for a job that is none.
        state: As Slurm spells it: PENDING, RUNNING, ...
        reason: Why it waits.
        name: Its name: study and job id.
        label: Its comment: what all jobs of a study bear.
    """

    id: str
    task: str
    state: str
    reason: str
    name: str
    label: str


def queued(label: str) -> list[QueuedJob]:
    """Jobs of one label that wait or run; none where there is no Slurm.

    Raises:
        MbtError: squeue fails.
    """
    command = ("squeue", "--noheader", "--array", f"--format={_FORMAT}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired:
        raise MbtError(f"`squeue` has not answered for {_SECONDS} s", hint=_NO_SLURM) from None
    if done.returncode:
        raise MbtError(f"`squeue` fails: {done.stderr.strip()}", hint=_NO_SLURM)
    return [job for line in done.stdout.splitlines() if (job := _job(line)) and job.label == label]


def queued_where_reachable(label: str) -> list[QueuedJob]:
    """The same for what submits nothing to Slurm: a queue that cannot be asked holds nothing."""
    try:
        return queued(label)
    except MbtError:
        return []


def has_left_queue(job: str) -> bool:
    """Whether Slurm says for certain that a job neither waits nor runs."""
    command = ("squeue", "--noheader", "--format=%T", "--jobs", job)
    done = _answer(command)
    if done is None:
        return False
    if done.returncode:
        return "Invalid job id" in done.stderr
    return not any(state in _LIVING for state in done.stdout.split())


def _job(line: str) -> QueuedJob | None:
    fields = line.split("\t")
    if len(fields) != 6 or fields[2] not in _LIVING:
        return None
    number, task, state, reason, name, label = fields
    return QueuedJob(number, "" if task == "N/A" else task, state, reason, name, label)


def ended_state(job: str) -> str:
    """How a job ended, such as `COMPLETED`, `CANCELLED`, `OUT_OF_MEMORY`; empty if forgotten."""
    for command in (
        ("sacct", "--noheader", "--allocations", "--format=State", "--jobs", job),
        ("scontrol", "--oneliner", "show", "job", job),
    ):
        done = _answer(command)
        if done is not None and done.returncode == 0 and (state := _state(done.stdout)):
            return state
    return ""


def _answer(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """What a command printed; None where it is not there or does not answer in time."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None


def _state(text: str) -> str:
    """The worst state of what is shown: one task that failed tells more than nine that did not."""
    words = text.replace("JobState=", " JobState= ").split()
    shown = [words[i + 1] for i, w in enumerate(words[:-1]) if w == "JobState="]
    states = shown or words
    bad = [s for s in states if s != "COMPLETED" and s.isupper()]
    return bad[0].rstrip("+") if bad else next((s for s in states if s.isupper()), "")


def cancel(jobs: Sequence[str]) -> None:
    """Take jobs out of the queue and stop those that run.

    Raises:
        MbtError: scancel refuses.
    """
    done = subprocess.run(
        ("scancel", *jobs), capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise MbtError(f"`scancel` fails: {done.stderr.strip()}", hint=_NO_SLURM)
