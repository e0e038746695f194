"""Submissions: nothing twice, in parts where a queue is full, and on from where one stopped."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar, Literal

import pytest
from pydantic import PrivateAttr

from mbt_cli.core.jobs import EndedJob, QueuedJob
from mbt_cli.engine.status import cancel_jobs, study_status
from mbt_cli.engine.submit import prepare, read_submissions
from mbt_cli.errors import MbtError, QueueFullError, StageError
from mbt_cli.interfaces import Launcher
from mbt_cli.launchers.local import LocalLauncher
from mbt_cli.manifest.load import load_manifest
from mbt_cli.registry import BACKENDS, LAUNCHERS
from mbt_cli.settings import Machine
from tests.conftest import SMALL_STUDY

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Shelf(Launcher):
    """A queue that keeps what it is given, and can be told to refuse."""

    kind: str = "shelf"
    refuses: tuple[str, ...] = ()
    alive: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[dict[str, str]] = {}
    _given: list = PrivateAttr(default_factory=list)

    def render(self, job):
        return f"{' '.join(job.argv)}\n"

    def submit(self, job, script, *, after):
        if job.id in self.refuses:
            raise MbtError("no more jobs today")
        self._given.append((job.id, tuple(after)))
        return str(100 + len(self._given))

    @classmethod
    def queued(cls, label, ids):
        return [QueuedJob(number, is_running=False) for number in cls.alive if number in ids]

    @classmethod
    def ended(cls, job_id):
        outcome = cls.ends.get(job_id)
        return EndedJob(outcome, outcome.upper()) if outcome else None

    @classmethod
    def gone(cls, job_id):
        return False

    @classmethod
    def cancel(cls, job_ids): ...

    @classmethod
    def logs(cls, job_id, record, name):
        return []


@pytest.fixture
def submission(load, planned, presets, tmp_path, monkeypatch):
    """A submission to a launcher, while jobs with these ids wait in its queue."""
    monkeypatch.setenv("MBT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setitem(LAUNCHERS.shipped, "shelf", Shelf)

    def prepared(launcher, *alive, text=SMALL_STUDY, **limits):
        monkeypatch.setattr(Shelf, "alive", alive)
        manifest = load(text)
        return prepare(
            *(planned(manifest, **limits), manifest, presets, launcher, Machine()),
            record=None,
            now=NOW,
            mbt=("mbt",),
            submit="mbt submit --shelf",
            submits=True,
        )

    return prepared


def test_jobs_wait_for_those_they_need_and_the_record_says_so(submission, tmp_path):
    shelf = Shelf()

    submission(shelf).submit_jobs(print)

    (record,) = read_submissions(tmp_path / "runs", "small").values()
    assert shelf._given[2] == ("answers-1", ("101", "102"))
    assert [(job.id, job.launcher_id) for job in record.jobs][:2] == [
        ("questions-1", "101"),
        ("base-1", "102"),
    ]


def test_nothing_is_submitted_twice(submission):
    submission(Shelf()).submit_jobs(print)

    again = submission(Shelf(), "101", "102", "103", "104", "105")

    assert not again.jobs


def test_after_a_refusal_the_rest_can_be_submitted(submission):
    with pytest.raises(MbtError, match=r"2 of 5 jobs were submitted"):
        submission(Shelf(refuses=("answers-1",))).submit_jobs(print)
    shelf = Shelf()

    submission(shelf, "101", "102").submit_jobs(print)

    # jobs wait for queued ones of the earlier submission
    assert [name for name, _ in shelf._given] == ["answers-1", "scores-1", "tables-1"]
    assert set(shelf._given[0][1]) == {"101", "102"}


def test_jobs_of_another_launcher_are_not_waited_for(submission):
    with pytest.raises(MbtError):
        submission(Shelf(refuses=("base-1",))).submit_jobs(print)

    local = submission(LocalLauncher(), "101")

    assert [job.id for job in local.jobs] == ["base-1", "answers-1", "scores-1", "tables-1"]
    assert local.queued_needs(local.jobs[0]) == []


def test_the_copy_of_a_manifest_is_the_same_study(submission, load, presets):
    ready = submission(Shelf())
    ready.write_copy()

    copy = load_manifest(ready.record / "manifest.toml", presets=presets)

    assert {a: c.spec for a, c in copy.cells.items()} == {
        a: c.spec for a, c in load().cells.items()
    }


def test_a_submission_copies_no_adapter_that_its_study_does_not_use(submission, presets):
    ready = submission(Shelf())
    (file, *_) = sorted(presets.folders[-1].glob("adapters/*.gguf"))
    (cell, *_) = [one for one in ready.manifest.cells.values() if one.resolution.models]
    ((role, model),) = cell.resolution.models.items()
    llama = BACKENDS.make({"kind": "llamacpp", "model": "smollm2-135m", "adapter": str(file)})
    copied = ready.record / "presets" / "adapters" / file.name

    ready.write_copy()
    assert not copied.exists()
    assert (ready.record / "presets" / "models").is_dir()
    cell.resolution.models[role] = replace(model, backend=llama)
    ready.write_copy()
    assert copied.read_bytes() == file.read_bytes()


def test_local_jobs_run_in_order_and_after_a_failure_too(submission):
    ready = submission(LocalLauncher(at_once=2))
    fails = [replace(j, argv=("false" if j.id == "answers-1" else "true",)) for j in ready.jobs]
    lines: list[str] = []

    with pytest.raises(StageError, match=r"1 jobs failed \(`answers-1`\); all others ran"):
        replace(ready, jobs=fails).submit_jobs(lines.append)

    ended = [line for line in lines if "started" not in line]
    assert ended == [
        "questions-1: done",
        "base-1: done",
        "answers-1: failed with exit code 1",
        "scores-1: done",
        "tables-1: done",
    ]


class FullShelf(Shelf):
    """A queue that is full for the first attempts to submit a job."""

    kind: Literal["shelf"] = "shelf"
    _left: int = PrivateAttr(default=0)

    def submit(self, job, script, *, after):
        if job.id == "answers-1" and self._left:
            self._left -= 1
            raise QueueFullError("QOSMaxSubmitJobPerUserLimit")
        return super().submit(job, script, after=after)


def test_a_full_queue_is_waited_for_and_ended_jobs_are_not(submission, monkeypatch):
    full, pauses, lines = FullShelf(), [], []
    full._left = 2
    ready = submission(full)
    # the first job ends while the third one waits
    monkeypatch.setattr(Shelf, "alive", ("102",))

    done = ready.submit_jobs(lines.append, lambda: pauses.append(1))

    assert len(pauses) == 2
    assert lines == ["2 of 5 jobs were submitted; the queue takes no more now, waiting"]
    assert full._given[2] == ("answers-1", ("102",))
    assert [job.id for job in done.jobs] == [job.id for job in ready.jobs]


def test_without_wait_a_full_queue_says_how_to_go_on(submission):
    full = FullShelf()
    full._left = 1

    with pytest.raises(MbtError, match=r"2 of 5 jobs were submitted") as raised:
        submission(full).submit_jobs(print)

    assert "with `--wait` it waits" in (raised.value.hint or "")


class Narrow(Shelf):
    """A queue that takes so many tasks at once, each job counted as one."""

    kind: Literal["shelf"] = "shelf"
    splits_arrays: ClassVar[bool] = True
    most: int = 5
    _room: int = PrivateAttr(default=5)

    def submit(self, job, script, *, after):
        count = len(job.tasks)
        if count > self._room:
            raise QueueFullError("QOSMaxSubmitJobPerUserLimit", takes=self._room)
        self._room -= count
        self._given.append((job.name, tuple(after), count))
        return str(100 + len(self._given))

    def drain(self):
        self._room = self.most


def asked(record):
    """Shards of the record's arrays by cell: the first and the last one of each part."""
    found = {}
    for job in record.jobs:
        if not job.finishes:
            found.setdefault(job.cells[0], []).append(job.tasks)
    return list(found.values())


def test_an_array_goes_out_in_parts_as_large_as_the_queue_takes(submission, tmp_path, monkeypatch):
    narrow, waits = Narrow(), []
    ready = submission(narrow, max_rows=1)
    monkeypatch.setattr(Shelf, "alive", tuple(str(n) for n in range(101, 200)))

    ready.submit_jobs(waits.append, narrow.drain)

    (record,) = read_submissions(tmp_path / "runs", "small").values()
    # 12 shards, of which four fit beside `questions-1`; later waves bring five, and so on
    assert asked(record)[0] == [(1, 4), (5, 9), (10, 12)]
    assert all(parts[0][0] == 1 and parts[-1][1] == 12 for parts in asked(record))
    given = {name: after for name, after, _ in narrow._given}
    # parts follow each other, and the merge follows all of them
    assert given["base-1-from-5"] == ("101", "102")
    assert given["base-1-from-10"] == ("101", "102", "103")
    assert set(given["merge-base-1"]) == {"101", "102", "103", "104"}
    assert {job.shards for job in record.jobs} == {1, 12}
    assert max(count for *_, count in narrow._given) == 5


def test_a_submission_that_stopped_within_an_array_goes_on_there(submission, tmp_path):
    with pytest.raises(MbtError, match="1 of 11 jobs were submitted, and shards up to 4 of `base"):
        submission(Narrow(), max_rows=1).submit_jobs(print)
    narrow = Narrow()

    with pytest.raises(MbtError, match="0 of 10 jobs"):
        submission(narrow, "101", "102", max_rows=1).submit_jobs(print)

    # what is queued is not submitted again, and waited for
    assert narrow._given == [("base-1-from-5", ("101", "102"), 5)]
    first, second = read_submissions(tmp_path / "runs", "small").values()
    assert [asked(first), asked(second)] == [[[(1, 4)]], [[(5, 9)]]]


@pytest.mark.parametrize(
    ("outcome", "name", "count"),
    [
        pytest.param("completed", "base-1-from-5", 5, id="completed"),
        pytest.param("failed", "base-1-from-1", 5, id="failed"),
        pytest.param("cancelled", "base-1-from-1", 5, id="cancelled"),
        pytest.param(None, "base-1-from-1", 5, id="forgotten"),
    ],
)
def test_only_tasks_that_completed_are_not_submitted_again(
    submission, monkeypatch, outcome, name, count
):
    with pytest.raises(MbtError):
        submission(Narrow(), max_rows=1).submit_jobs(print)
    monkeypatch.setattr(Shelf, "ends", {"101": "completed", "102": outcome})
    narrow = Narrow()
    narrow._room = 6  # as if the questions were made

    with pytest.raises(MbtError):
        submission(narrow, max_rows=1).submit_jobs(print)

    array = next(each for each in narrow._given if each[0].startswith("base"))
    assert (array[0], array[2]) == (name, count)


def test_a_gap_in_the_middle_is_filled(submission, monkeypatch):
    narrow, waves = Narrow(most=6), iter([6])
    narrow._room = 6

    def drain():
        narrow._room = next(waves, 0)
        if not narrow._room:
            raise MbtError("enough")

    with pytest.raises(MbtError, match="enough"):
        submission(narrow, max_rows=1).submit_jobs(print, drain)
    assert [name for name, *_ in narrow._given] == ["questions-1", "base-1-from-1", "base-1-from-6"]
    monkeypatch.setattr(Shelf, "ends", {"102": "cancelled"})

    again = submission(Narrow(), "103", max_rows=1)

    base = [job for job in again.jobs if job.id == "base-1"]
    assert [job.part for job in base] == [range(1, 6), range(12, 13)]


def test_other_settings_ask_all_shards_again(submission, monkeypatch):
    with pytest.raises(MbtError):
        submission(Narrow(), max_rows=1).submit_jobs(print)
    monkeypatch.setattr(Shelf, "ends", {"102": "completed"})

    edited = SMALL_STUDY.replace("max_tokens = 32", "max_tokens = 33")
    again = submission(Narrow(), text=edited, max_rows=1)

    assert [job.part for job in again.jobs if job.id == "base-1"] == [None]


def test_after_a_merge_every_shard_counts_as_new(submission, monkeypatch):
    wide = Narrow(most=10_000)
    wide._room = 10_000
    submission(wide, max_rows=1).submit_jobs(print)
    monkeypatch.setattr(Shelf, "ends", {"102": "completed", "103": "failed"})

    again = submission(Narrow(), max_rows=1)

    # the merge has failed, as for a reply that is missing: the array looks for it
    assert [job.part for job in again.jobs if job.id == "base-1"] == [None]


def test_a_job_that_was_not_written_down_is_not_submitted_again(submission, tmp_path, monkeypatch):
    wide = Narrow(most=10_000)
    wide._room = 10_000
    submission(wide, max_rows=5).submit_jobs(print)
    (path,) = read_submissions(tmp_path / "runs", "small")
    lines = (path / "jobs.jsonl").read_bytes().splitlines(keepends=True)
    # the process was killed while it wrote about `base-1`, the second job
    (path / "jobs.jsonl").write_bytes(lines[0] + lines[1][:20])
    scripts = {"101": "questions-1", "102": "base-1"}
    found = [
        QueuedJob(number, is_running=False, script=str(path / "scripts" / f"{name}.sh"))
        for number, name in scripts.items()
    ]
    monkeypatch.setattr(Shelf, "queued", lambda label, ids: found)

    again = submission(Narrow(), max_rows=5)

    assert [job.id for job in again.jobs][:2] == ["merge-base-1", "base-2"]
    assert again.queued_needs(again.jobs[0]) == ["101", "102"]
    known = [json.loads(line) for line in (path / "jobs.jsonl").read_bytes().splitlines()]
    assert [(job["id"], job["launcher_id"]) for job in known] == [
        ("questions-1", "101"),
        ("base-1", "102"),
    ]


def test_cancel_ends_a_submission_that_waits(submission, tmp_path):
    narrow = Narrow()

    def pause():
        cancel_jobs(tmp_path / "runs", "small", ())
        narrow.drain()

    with pytest.raises(MbtError, match="`mbt cancel small` was called") as raised:
        submission(narrow, max_rows=1).submit_jobs(print, pause)

    assert [name for name, *_ in narrow._given] == ["questions-1", "base-1-from-1"]
    assert "submits the rest" in (raised.value.hint or "")


def test_shards_without_a_merge_are_not_called_failed(submission, tmp_path, monkeypatch):
    with pytest.raises(MbtError):
        submission(Narrow(), max_rows=1).submit_jobs(print)
    monkeypatch.setattr(Shelf, "ends", {"101": "completed", "102": "completed"})

    cells = study_status(tmp_path / "runs", "small").cells

    (cell,) = [c for c in cells if c.job == "102"]
    assert cell.doing == "missing"
    assert cell.why == "shards up to 4 of 12 were asked, and the rest is not submitted yet"
