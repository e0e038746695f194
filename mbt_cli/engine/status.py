"""The state of submitted studies: their cells, logs, and cancelling their jobs.

Sources: lineages, journals, locks, the records of submissions and the queues of launchers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import orjson

from mbt_cli.core.addresses import matches
from mbt_cli.core.chat import Json
from mbt_cli.core.jobs import EndedJob, QueuedJob
from mbt_cli.core.names import nearest
from mbt_cli.engine.plan import PlannedCell, read_plan
from mbt_cli.engine.select import nothing_matches
from mbt_cli.engine.submit import (
    Submission,
    SubmittedJob,
    queued_jobs,
    read_submissions,
    studies_with_submissions,
)
from mbt_cli.errors import MbtError, UsageError
from mbt_cli.registry import LAUNCHERS
from mbt_cli.store.cells import JOURNAL, cell_folder, read_failure
from mbt_cli.store.lineage import LINEAGE
from mbt_cli.store.locks import holders

Doing = Literal["done", "running", "pending", "failed", "cancelled", "missing"]

_LAST_LINES = 5
_TAIL_BYTES = 16_384
_NO_ANSWER = "the queue does not answer"
_TOKENS = re.compile(rb'"completion_tokens":(\d{1,12})[,}]')


@dataclass(frozen=True, slots=True)
class CellStatus:
    """The status of a cell.

    Args:
        rows_done: Replies in its journal; all rows of a finished cell.
        rows: Rows it will have, if known.
        tokens: Tokens of the replies in its journal.
        job: The launcher's id of the job that makes it; empty if there is none.
        why: Why it waits or failed.
        log: The last lines of its job's log, for a failed cell.
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
    """The status of a study.

    Args:
        manifest: The manifest that was submitted.
        events: What its jobs reported about requeues.
        unasked: Why the queue did not answer; empty if it did.
        again: The command that continues it.
    """

    study: str
    manifest: str
    cells: Sequence[CellStatus]
    events: Sequence[str] = ()
    unasked: str = ""
    again: str = ""


def study_status(runs: Path, study: str) -> StudyStatus:
    """The status of a study, from its newest submission, its artifacts and the queue.

    Raises:
        UsageError: The study was never submitted from this runs folder.
    """
    records = read_submissions(runs, study)
    if not records:
        raise _never_submitted(runs, study)
    newest = list(records)[-1]
    plan = read_plan((newest / "plan.json").read_bytes(), f"{newest}/plan.json")
    status = _Status(runs, study, records)
    events = []
    for path in sorted((newest / "events").glob("*.log")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "requeued" in line:
                events.append(f"{path.stem}: {line.partition(chr(9))[2]}")
    return StudyStatus(
        study,
        records[newest].manifest,
        [status.cell(planned) for planned in plan.cells],
        events,
        status.no_answer,
        records[newest].again or f"{plan.command()} | mbt submit --slurm",
    )


def status_json(status: StudyStatus) -> str:
    """The status as JSON, for scripts."""
    return orjson.dumps(status, option=orjson.OPT_INDENT_2).decode() + "\n"


class _Status:
    """Finds the status of cells; every launcher is asked once about its queue."""

    def __init__(self, runs: Path, study: str, records: Mapping[Path, Submission]) -> None:
        self.no_answer = ""
        self._runs = runs
        self._study = study
        self._jobs: dict[str, tuple[Path, str, SubmittedJob]] = {}
        """Cell to record, launcher and job that was submitted last; for shards, the merging job."""
        for record, submission in records.items():
            for job in submission.jobs:
                self._jobs.update(dict.fromkeys(job.cells, (record, submission.launcher, job)))
        self._queued: dict[str, QueuedJob] = {}
        self._ended: dict[str, EndedJob | None] = {}
        try:
            found = queued_jobs(runs, study, records.values())
        except MbtError as error:  # most of the status comes from the disk
            self.no_answer = error.message
            return
        # of the tasks of an array, a running one counts
        jobs = sorted((job for queue in found.values() for job in queue), key=_is_running)
        self._queued = {job.id: job for job in jobs}

    def cell(self, planned: PlannedCell) -> CellStatus:
        """The status of one cell."""
        folder = cell_folder(self._runs, self._study, planned.address)
        _, _, job = self._jobs.get(planned.address, (None, None, None))
        number = job.launcher_id if job is not None else ""
        status = CellStatus(planned.address, "missing", rows=planned.rows, job=number)
        if (folder / LINEAGE).is_file():
            return replace(status, doing="done", rows_done=planned.rows or 0)
        replies, tokens = _count_replies(folder / JOURNAL)
        status = replace(status, rows_done=replies, tokens=tokens)
        if any(holder.is_alive_here() is not False for holder in holders(folder)):
            return replace(status, doing="running")
        if queued := self._queued.get(number):
            why = "its job is running" if queued.is_running else queued.reason
            return replace(status, doing="pending", why=why)
        failure = self._failure(planned.address, folder)
        if number and self.no_answer and failure is None:
            return replace(status, doing="pending", why=_NO_ANSWER)
        message = str(failure["message"]) if failure else ""
        return self._without_job(replace(status, why=message))

    def _without_job(self, status: CellStatus) -> CellStatus:
        """The status of a cell that no job makes now; `status.why` is its own failure, if any."""
        if status.address not in self._jobs:
            return replace(status, doing="failed" if status.why else "missing")
        record, kind, job = self._jobs[status.address]
        ended = self._end_of(kind, job.launcher_id)
        broken = self._failed_need(kind, job)
        if (ended and ended.outcome == "cancelled") or (broken and not status.why):
            return replace(status, doing="cancelled", why=broken or "cancelled")
        if status.why or ended:
            why = status.why or f"its job ended {ended.state if ended else ''}"
            log = _log_tail(_logs(kind, record, job))
            return replace(status, doing="failed", why=why, log=log)
        return replace(status, job="")

    def _failure(self, address: str, folder: Path) -> Mapping[str, Json] | None:
        """Why a cell stopped, unless it was submitted again since."""
        failure = read_failure(folder)
        if failure is None or address not in self._jobs:
            return failure
        submitted = (self._jobs[address][0] / "plan.json").stat().st_mtime
        is_older = datetime.fromisoformat(failure["failed_at"]).timestamp() < submitted
        return None if is_older else failure

    def _failed_need(self, kind: str, job: SubmittedJob) -> str:
        """Which of the jobs that a job waited for did not succeed."""
        for number in job.after:
            ended = self._end_of(kind, number)
            if ended is not None and ended.outcome != "completed":
                return f"never ran: job {number}, which it needs, ended {ended.state}"
        return ""

    def _end_of(self, kind: str, number: str) -> EndedJob | None:
        launcher = LAUNCHERS.find(kind)
        if not number or self.no_answer or number in self._queued or launcher is None:
            return None
        if number not in self._ended:
            self._ended[number] = launcher.ended(number)
        return self._ended[number]


def _is_running(job: QueuedJob) -> bool:
    return job.is_running


def _count_replies(journal: Path) -> tuple[int, int]:
    """Replies in the journal of a cell, and their tokens."""
    count = tokens = 0
    for path in journal.glob("*.jsonl"):
        with path.open("rb") as lines:
            for line in lines:
                count += 1
                if found := _TOKENS.search(line):
                    tokens += int(found[1])
    return count, tokens


def _logs(launcher: str, record: Path, job: SubmittedJob) -> Sequence[Path]:
    known = LAUNCHERS.find(launcher)
    return known.logs(job.launcher_id, record, job.id) if known else ()


def _log_tail(logs: Sequence[Path]) -> list[str]:
    """The last lines of the newest log."""
    if not logs:
        return []
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    with newest.open("rb") as file:
        file.seek(max(0, newest.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text.splitlines()[-_LAST_LINES:]


def log_file(runs: Path, study: str | None, wanted: str) -> Path:
    """The newest log of a job.

    Args:
        runs: The runs folder.
        study: Name of a study; None searches all studies that were submitted from here.
        wanted: A pattern for cells as for `--only`, or the id of a job, the plan's or the
            launcher's.

    Raises:
        UsageError: No job matches, or none that does has a log yet.
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
                    logs.extend(_logs(submission.launcher, record, job))
    if not jobs:
        raise _never_submitted(runs, study)
    if not logs:
        raise UsageError(f"no log of `{wanted}`", hint=f"the jobs are {', '.join(sorted(jobs))}")
    return max(logs, key=lambda path: path.stat().st_mtime)


def cancel_jobs(runs: Path, study: str, only: Sequence[str]) -> list[str]:
    """Cancel the queued and running jobs of a study; with patterns, those of matching cells.

    Returns:
        The launchers' ids of the cancelled jobs.

    Raises:
        UsageError: The study was never submitted from here, or no cell of it matches.
        MbtError: A queue does not answer, or a launcher refuses.
    """
    submissions = read_submissions(runs, study).values()
    cells = {a for submission in submissions for job in submission.jobs for a in job.cells}
    if not cells:
        raise _never_submitted(runs, study)
    for pattern in only:
        if not any(matches(pattern, address) for address in cells):
            raise nothing_matches(pattern, cells)
    chosen = {
        job.launcher_id
        for submission in submissions
        for job in submission.jobs
        if any(matches(pattern, address) for pattern in only for address in job.cells)
    }
    cancelled: list[str] = []
    for kind, queue in queued_jobs(runs, study, submissions).items():
        ids = sorted({job.id for job in queue if not only or job.id in chosen})
        if ids and (launcher := LAUNCHERS.find(kind)):
            launcher.cancel(ids)
            cancelled.extend(ids)
    return cancelled


def _never_submitted(runs: Path, study: str | None) -> UsageError:
    known = studies_with_submissions(runs)
    if study and (runs / study).is_dir() and study not in known:
        raise UsageError(
            f"study `{study}` was run here, not submitted, so it has no jobs",
            hint="mbt run MANIFEST --dry-run  shows the state of each cell",
        )
    what = f"nothing of a study `{study}`" if study else "nothing"
    return UsageError(
        f"{what} was submitted from `{runs}`",
        hint=nearest(study or "", known) if known else "mbt plan MANIFEST | mbt submit --slurm",
    )
