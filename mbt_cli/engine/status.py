"""What every cell of a submitted study is doing, from lineage, journals, records and the queue."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import orjson

from mbt_cli.core.addresses import matches
from mbt_cli.core.chat import Json
from mbt_cli.core.names import nearest
from mbt_cli.engine.plan import Plan, read_plan
from mbt_cli.engine.select import nothing_matches
from mbt_cli.engine.submit import (
    Submission,
    SubmittedJob,
    label_of,
    read_submissions,
    studies_with_submissions,
)
from mbt_cli.errors import MbtError, UsageError
from mbt_cli.launchers.slurm import QueuedJob, ended_state, queued
from mbt_cli.store.artifacts import JOURNAL
from mbt_cli.store.cells import cell_folder, read_failure
from mbt_cli.store.lineage import LINEAGE
from mbt_cli.store.locks import holders

Doing = Literal["done", "running", "pending", "failed", "cancelled", "missing"]

_LAST_LINES = 5
_TAIL_BYTES = 16_384
_UNKNOWN = "the queue does not answer"
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_BAD = ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")


@dataclass(frozen=True, slots=True)
class CellStatus:
    """One cell.

    Args:
        rows_done: Replies in its journal; of a finished cell, all its rows.
        rows: Rows it will have, where that is known.
        tokens: Tokens of the replies in its journal.
        job: The queue's id of the job that makes it; empty where it has none.
        why: Why it waits or what went wrong.
        log: The last lines of its job's log, for a failed one.
    """

    address: str
    doing: Doing
    rows_done: int = 0
    rows: int | None = None
    tokens: int = 0
    job: str = ""
    why: str = ""
    log: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """A study as it stands.

    Args:
        manifest: The manifest it was submitted from.
        events: What its jobs said of requeues and retries.
        unasked: Why the queue could not be asked; empty where it was.
        again: The command that goes on with it.
    """

    study: str
    manifest: str
    cells: Sequence[CellStatus]
    events: Sequence[str] = ()
    unasked: str = ""
    again: str = ""


def study_status(runs: Path, study: str) -> StudyStatus:
    """Look at a study's newest submission, its artifacts and the queue.

    Raises:
        UsageError: The study was never submitted from here.
    """
    records = read_submissions(runs, study)
    if not records:
        raise _never_submitted(runs, study)
    newest = list(records)[-1]
    plan = read_plan((newest / "plan.json").read_text(encoding="utf-8"), f"`{newest}/plan.json`")
    in_queue = any(job.launcher_id for s in records.values() for job in s.jobs)
    found: Sequence[QueuedJob] = ()
    unasked = ""
    try:
        found = _by_urgency(queued(label_of(study, runs))) if in_queue else ()
    except MbtError as error:  # the disk still knows most of it
        unasked = error.message
    living = {job.id: job for job in found}
    look = _Look(runs, plan, _newest_jobs(records), living, {}, is_asked=not unasked)
    cells = [look.cell(c.address, c.rows) for c in plan.cells]
    submission = records[newest]
    again = submission.again or f"{plan.command()} | mbt submit --slurm"
    return StudyStatus(study, submission.manifest, cells, _events(newest), unasked, again)


def _never_submitted(runs: Path, study: str | None) -> UsageError:
    known = studies_with_submissions(runs)
    if study and (runs / study).is_dir() and study not in known:
        raise UsageError(
            f"study `{study}` was run here and never submitted, so no job of it is anywhere",
            hint="mbt run MANIFEST --dry-run  tells what each cell is and what it waits for",
        )
    what = f"nothing of a study `{study}`" if study else "nothing"
    return UsageError(
        f"{what} was submitted from `{runs}`",
        hint=nearest(study or "", known) if known else "mbt plan MANIFEST | mbt submit --slurm",
    )


def _by_urgency(jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
    """Running tasks last, so that of an array's tasks those are what is told."""
    return sorted(jobs, key=lambda job: job.state == "RUNNING")


def _newest_jobs(records: Mapping[Path, Submission]) -> dict[str, tuple[Path, SubmittedJob]]:
    """Cell to the last job handed over for it: of shards and their merge, the merge."""
    found: dict[str, tuple[Path, SubmittedJob]] = {}
    for folder, submission in records.items():
        for job in submission.jobs:
            found.update(dict.fromkeys(job.cells, (folder, job)))
    return found


@dataclass(frozen=True)
class _Look:
    runs: Path
    plan: Plan
    jobs: Mapping[str, tuple[Path, SubmittedJob]]
    living: Mapping[str, QueuedJob]
    ended: dict[str, str]
    is_asked: bool

    def cell(self, address: str, rows: int | None) -> CellStatus:
        folder = cell_folder(self.runs, self.plan.study, address)
        _, job = self.jobs.get(address, (folder, None))
        number = job.launcher_id if job is not None else ""
        if (folder / LINEAGE).is_file():
            return CellStatus(address, "done", rows or 0, rows, job=number)
        done, tokens = _journal(folder / JOURNAL)
        if any(h.is_alive_here() is not False for h in holders(folder)):
            return CellStatus(address, "running", done, rows, tokens, number)
        if job is not None and (waiting := self._waiting(job)) is not None:
            return CellStatus(address, "pending", done, rows, tokens, number, waiting)
        if number and not self.is_asked and self._failure(address, folder) is None:
            return CellStatus(address, "pending", done, rows, tokens, number, _UNKNOWN)
        return self._not_there(address, folder, CellStatus(address, "missing", done, rows, tokens))

    def _waiting(self, job: SubmittedJob) -> str | None:
        """Why a living job waits; null for a job that is gone."""
        living = self.living.get(job.launcher_id)
        if living is None:
            return None
        return "its job is running" if living.state == "RUNNING" else living.reason

    def _not_there(self, address: str, folder: Path, sofar: CellStatus) -> CellStatus:
        """A cell that nobody makes any more, or ever did."""
        failure = self._failure(address, folder)
        if address not in self.jobs:
            doing: Doing = "missing" if failure is None else "failed"
            return _with(sofar, doing, str(failure["message"]) if failure else "", "", ())
        record, job = self.jobs[address]
        state = self._end_of(job.launcher_id)
        if state.startswith("CANCELLED") or (failure is None and self._broken(job)):
            why = self._broken(job) or "cancelled"
            return _with(sofar, "cancelled", why, job.launcher_id, ())
        if failure is not None or state in _BAD or state == "COMPLETED":
            why = str(failure["message"]) if failure else f"its job ended {state}"
            return _with(sofar, "failed", why, job.launcher_id, log_tail(record, job.id))
        return _with(sofar, "missing", f"its job ended {state}" if state else "", "", ())

    def _failure(self, address: str, folder: Path) -> Mapping[str, Json] | None:
        """What stopped it, unless that was before it was submitted again."""
        failure = read_failure(folder)
        if failure is None or address not in self.jobs:
            return failure
        submitted = (self.jobs[address][0] / "plan.json").stat().st_mtime
        is_older = datetime.fromisoformat(failure["failed_at"]).timestamp() < submitted
        return None if is_older else failure

    def _broken(self, job: SubmittedJob) -> str:
        """Which of the jobs it waited for did not succeed."""
        for number in job.after:
            state = self._end_of(number)
            if number not in self.living and state not in ("COMPLETED", ""):
                return f"never ran: job {number}, which it needs, ended {state}"
        return ""

    def _end_of(self, number: str) -> str:
        if not number or not self.is_asked:
            return ""
        if number not in self.ended:
            self.ended[number] = "" if number in self.living else ended_state(number)
        return self.ended[number]


def _with(sofar: CellStatus, doing: Doing, why: str, job: str, log: Sequence[str]) -> CellStatus:
    return CellStatus(
        sofar.address, doing, sofar.rows_done, sofar.rows, sofar.tokens, job, why, log
    )


def _journal(folder: Path) -> tuple[int, int]:
    """Replies and their tokens in the journal of a cell."""
    count = tokens = 0
    for path in folder.glob("*.jsonl"):
        with path.open("rb") as lines:
            for line in lines:
                count += 1
                if found := _TOKENS.search(line):
                    tokens += int(found[1])
    return count, tokens


def logs_of(record: Path, job: str) -> list[Path]:
    """Log files of a job, the one that was written to last at the end."""
    found = [*(record / "logs").glob(f"{job}-*.log"), *(record / "scripts").glob(f"{job}.log")]
    own = [path for path in found if re.fullmatch(rf"{re.escape(job)}(-[0-9_]+)?", path.stem)]
    return sorted(own, key=lambda path: path.stat().st_mtime)


def log_tail(record: Path, job: str) -> list[str]:
    """The last lines of a job's log."""
    logs = logs_of(record, job)
    if not logs:
        return []
    with logs[-1].open("rb") as file:
        file.seek(max(0, logs[-1].stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text.splitlines()[-_LAST_LINES:]


def _events(record: Path) -> list[str]:
    """Lines that tell of requeues, retries and giving up."""
    found = []
    for path in sorted((record / "events").glob("*.log")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "requeued" in line:
                found.append(f"{path.stem}: {line.partition(chr(9))[2]}")
    return found


def status_json(status: StudyStatus) -> str:
    """The status as JSON, for scripts."""
    return orjson.dumps(status, option=orjson.OPT_INDENT_2).decode() + "\n"


def log_file(runs: Path, study: str | None, wanted: str) -> Path:
    """The newest log of what matches.

    Args:
        runs: The runs folder.
        study: Name of a study; null looks at all that were submitted from here.
        wanted: A pattern for cells as for `--only`, or the id of a job: the plan's or the queue's.

    Raises:
        UsageError: Nothing matches, or nothing has been written yet.
    """
    logs: list[Path] = []
    jobs: set[str] = set()
    for name in [study] if study else studies_with_submissions(runs):
        for record, submission in read_submissions(runs, name).items():
            for job in submission.jobs:
                jobs.add(job.id)
                if wanted in (job.id, job.launcher_id) or any(
                    matches(wanted, address) for address in job.cells
                ):
                    logs.extend(logs_of(record, job.id))
    if not jobs:
        raise _never_submitted(runs, study)
    if not logs:
        raise UsageError(f"no log of `{wanted}`", hint=f"jobs are {', '.join(sorted(jobs))}")
    return max(logs, key=lambda path: path.stat().st_mtime)


def jobs_to_cancel(runs: Path, study: str, only: Sequence[str]) -> list[str]:
    """The queue's ids of living jobs; with patterns, of those that make a matching cell.

    Raises:
        UsageError: The study was never submitted from here, or no cell of it matches.
        MbtError: The queue does not answer.
    """
    cells = [a for s in read_submissions(runs, study).values() for job in s.jobs for a in job.cells]
    if not cells:
        raise _never_submitted(runs, study)
    for pattern in only:
        if not any(matches(pattern, address) for address in cells):
            raise nothing_matches(pattern, set(cells))
    if not any(job.launcher_id for s in read_submissions(runs, study).values() for job in s.jobs):
        return []  # all of it ran on this machine, where no queue knows of it
    living = {job.id for job in queued(label_of(study, runs))}
    if not only:
        return sorted(living)
    return sorted(
        {
            job.launcher_id
            for submission in read_submissions(runs, study).values()
            for job in submission.jobs
            if job.launcher_id in living
            and any(matches(pattern, address) for pattern in only for address in job.cells)
        }
    )
