"""The queue of a submission over ssh: files in a folder that all hosts share, and their runners.

`mbt submit` copies this file next to the queue and starts it once on each host: it needs nothing
but Python. A runner takes jobs whose needs have ended and whose GPUs are free there, and ends when
nothing is left to do.

Files in `state/`; the first process to create one owns it, on NFS too:

- `JOB@TASK.claim-N`: which host runs a task, for the Nth time
- `JOB@TASK.ended`: how the task ended
- `JOB.cancel`: the job is not to run any more
- `host-N.beat`: replaced every second while the runner of host N lives
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

QUEUE, JOBS, STATE = "queue.json", "jobs", "state"
JOB_VARIABLE = "MBT_SSH_JOB"
"""Holds the id of a job within that job."""
SHARD_VARIABLE = "MBT_SSH_SHARD"
"""Holds `3/8` within the third of eight tasks of a job."""

_ATTEMPTS = 3
"""Hosts that may die under one task before it is given up."""
_POLL_SECONDS = 1.0
_SMI_SECONDS = 20
_BUSY_MIB = 1_000
"""Memory in use from which a GPU counts as used by somebody."""
_GRACE_SECONDS = 180.0
"""Time that a cancelled job has to keep its replies, before it is killed."""
_SIGNAL_WITH_PARENT = 1  # PR_SET_PDEATHSIG

State = Literal["waiting", "running", "completed", "failed", "cancelled"]
ALIVE = ("waiting", "running")


@dataclass(frozen=True)
class Host:
    """A host of the preset: its name for ssh, and the indices of the GPUs that jobs may use."""

    name: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class QueuedWork:
    """A job in the queue.

    Args:
        script: What to run.
        log: Folder of its logs.
        after: Ids of the jobs that must have ended first, of this queue or of another.
        tasks: Its tasks: `[0]`, or the numbers of its shards.
    """

    name: str
    script: str
    log: str
    after: tuple[str, ...]
    gpus: int
    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Condition:
    """The condition of a job or a task.

    Args:
        why: The reason or the exit code in words.
        is_ready: Whether a free host may start it.
        is_certain: Whether it has ended for certain, not by a lack of signs of life.
    """

    state: State
    why: str = ""
    is_ready: bool = False
    is_certain: bool = False


def write_once(path: Path, content: Mapping[str, Any]) -> bool:
    """Create a file whole; False if another process created it first."""
    text = json.dumps({**content, "token": uuid.uuid4().hex})
    draft = path.with_name(f".{uuid.uuid4().hex}.draft")
    draft.write_text(text, encoding="utf-8")
    try:
        os.link(draft, path)
    except OSError:  # it exists, the reply of NFS got lost, or there are no hard links
        if not path.exists():
            with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
                file.write(text)
        return path.read_text(encoding="utf-8") == text
    finally:
        draft.unlink(missing_ok=True)
    return True


class Queue:
    """A look at a queue; `refresh` takes another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / STATE
        head = json.loads((folder / QUEUE).read_text(encoding="utf-8"))
        self.hosts = [Host(name, tuple(gpus)) for name, gpus in head["hosts"]]
        self.small_jobs = int(head["small_jobs"])
        self._timeout = float(head["host_timeout_seconds"])
        self.jobs: dict[str, QueuedWork] = {}
        self._claims: dict[str, Mapping[str, Any]] = {}
        self._ended: dict[str, Condition] = {}
        self._others: dict[Path, Queue] = {}
        self.refresh()

    def refresh(self, now: float | None = None) -> None:
        """Read what has changed.

        Args:
            now: The time by the clock of the file system; default: that of a new file.
        """
        self._others.clear()
        for path in sorted((self.folder / JOBS).glob("*.json"))[len(self.jobs) :]:
            job = json.loads(path.read_text(encoding="utf-8"))
            lists = {key: tuple(job[key]) for key in ("after", "tasks")}
            self.jobs[job["name"]] = QueuedWork(**{**job, **lists})
        now = self._now() if now is None else now
        self._names = {path.name for path in self.state.iterdir()}
        self._living = {
            number for number, _ in enumerate(self.hosts) if self._age(number, now) < self._timeout
        }

    def living(self) -> list[Host]:
        """Hosts whose runner shows signs of life."""
        return [self.hosts[number] for number in sorted(self._living)]

    def attempts(self, task: str) -> int:
        """How often a task was claimed."""
        count = 0
        while f"{task}.claim-{count + 1}" in self._names:
            count += 1
        return count

    def is_cancelled(self, name: str) -> bool:
        """Whether a job is not to run any more."""
        return f"{name}.cancel" in self._names

    def task(self, job: QueuedWork, number: int) -> Condition:
        """The condition of one task."""
        task = f"{job.name}@{number}"
        if task in self._ended:
            return self._ended[task]
        if f"{task}.ended" in self._names:
            found = json.loads((self.state / f"{task}.ended").read_text(encoding="utf-8"))
            self._ended[task] = Condition(found["state"], found["why"], is_certain=True)
            return self._ended[task]
        dead, count = "", self.attempts(task)
        if count:
            host = int(self._read(f"{task}.claim-{count}")["host"])
            if host in self._living:
                return Condition("running", f"on {self.hosts[host].name}")
            dead = f"{self.hosts[host].name} shows no sign of life"
        if self.is_cancelled(job.name):
            return Condition("cancelled", "cancelled", is_certain=not count)
        if count >= _ATTEMPTS:
            return Condition("failed", f"{dead}; {count} hosts died under it")
        if not any(len(host.gpus) >= job.gpus for host in self.living()):
            others = f"no living host has {job.gpus} GPUs" if self._living else "no host is alive"
            return Condition("failed", f"{dead}, and {others}" if dead else others)
        waits = [need for need in job.after if self.job_of(need).state in ALIVE]
        if waits:
            return Condition("waiting", f"after {', '.join(Path(n).name for n in waits)}")
        why = f"{dead}; it starts again" if dead else "waits for a free host"
        return Condition("waiting", why, is_ready=True)

    def job(self, name: str) -> Condition:
        """The condition of a job: the worst of its tasks."""
        job = self.jobs[name]
        tasks = [self.task(job, number) for number in job.tasks]
        found = {condition.state: condition for condition in tasks}
        states = ("running", "waiting", "cancelled", "failed", "completed")
        worst = next(found[state] for state in states if state in found)
        return replace(worst, is_certain=all(condition.is_certain for condition in tasks))

    def job_of(self, job_id: str) -> Condition:
        """The condition of a job by its id, the path `QUEUE_FOLDER/NAME`, in any queue."""
        folder, name = Path(job_id).parent, Path(job_id).name
        if folder != self.folder and folder not in self._others:
            try:
                self._others[folder] = Queue(folder)
            except OSError:
                return Condition("failed", "its record was removed")
        queue = self if folder == self.folder else self._others[folder]
        return queue.job(name) if name in queue.jobs else Condition("failed", "no such job")

    def _read(self, name: str) -> Mapping[str, Any]:
        if name not in self._claims:
            content = json.loads((self.state / name).read_text(encoding="utf-8"))
            self._claims[name] = content
        return self._claims[name]

    def _now(self) -> float:
        """The time by the clock of the file system: other machines may have other clocks."""
        probe = self.state / f".{uuid.uuid4().hex}.probe"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)

    def _age(self, host: int, now: float) -> float:
        """Seconds since the last sign of life of a host's runner."""
        try:
            with (self.state / f"host-{host}.beat").open("rb") as file:  # asks the server of NFS
                return now - os.fstat(file.fileno()).st_mtime
        except OSError:
            return float("inf")


class _Leases:
    """GPUs and places of this machine, for every queue of this user; the kernel frees them."""

    def __init__(self) -> None:
        self._folder = Path(f"/tmp/mbt-leases-{os.getuid()}")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"`{self._folder}` belongs to somebody else")

    def take(self, names: Collection[str], count: int) -> dict[str, IO[bytes]] | None:
        """Lease so many of these; None if fewer are free."""
        taken: dict[str, IO[bytes]] = {}
        for name in names:
            if len(taken) == count:
                break
            file = (self._folder / name).open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken[name] = file
            except OSError:
                file.close()
        if len(taken) < count:
            free(taken)
            return None
        return taken


def free(leases: Mapping[str, IO[bytes]]) -> None:
    """Give leases back; a job that still runs keeps them."""
    for file in leases.values():
        file.close()


def busy_gpus() -> set[int]:
    """Indices of the GPUs whose memory somebody uses; empty without nvidia-smi."""
    query = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    rows = (line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1)
    pairs = [(index.strip(), used.strip()) for index, used in rows]
    return {
        int(index)
        for index, used in pairs
        if index.isdigit() and used.isdigit() and int(used) >= _BUSY_MIB
    }


@dataclass
class _Running:
    """A task that runs here."""

    job: QueuedWork
    task: str
    attempt: int
    process: subprocess.Popen[bytes]
    leases: Mapping[str, IO[bytes]]
    stopped: float | None = None


class Runner:
    """Runs tasks of a queue on this host.

    Args:
        folder: The queue's.
        number: Of this host in the queue.
        secrets: Variables for jobs, kept in memory only.
    """

    def __init__(self, folder: Path, number: int, secrets: Mapping[str, str]) -> None:
        self._number = number
        self._secrets = secrets
        self._beat = folder / STATE / f"host-{number}.beat"
        self.queue = Queue(folder)
        self._host = self.queue.hosts[number]
        self._leases = _Leases()
        self._running: list[_Running] = []

    def beat(self) -> float:
        """Show a sign of life; returns its time by the clock of the file system.

        A new file in the folder also makes NFS look for those of other hosts.
        """
        draft = self._beat.with_suffix(".new")
        draft.write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
        draft.replace(self._beat)
        return self._beat.stat().st_mtime

    def run(self) -> None:
        """Run tasks until nothing waits or runs on any host."""
        while True:
            try:
                self.queue.refresh(self.beat())
                self._end_tasks()
                if not self._start_one() and not self._running and self._is_over():
                    return
            except FileNotFoundError:
                if not self._beat.parent.is_dir():  # the record was removed
                    self._stop_all()
                    return
                traceback.print_exc()
            except OSError:  # a network file system may recover
                traceback.print_exc()
            time.sleep(_POLL_SECONDS)

    def _is_over(self) -> bool:
        return not any(self.queue.job(name).state in ALIVE for name in self.queue.jobs)

    def _start_one(self) -> bool:
        """Start the first task that can start here; one at a time, so that hosts share them."""
        busy: set[int] | None = None
        for job in self.queue.jobs.values():
            if len(self._host.gpus) < job.gpus:
                continue
            for number in job.tasks:
                if not self.queue.task(job, number).is_ready:
                    continue
                if job.gpus:
                    busy = busy_gpus() if busy is None else busy
                    names = [f"gpu-{gpu}" for gpu in self._host.gpus if gpu not in busy]
                else:
                    names = [f"small-{place}" for place in range(self.queue.small_jobs)]
                leases = self._leases.take(names, job.gpus or 1)
                if leases is None:
                    break  # its other tasks need as many
                if self._start(job, number, leases):
                    return True
        return False

    def _start(self, job: QueuedWork, number: int, leases: Mapping[str, IO[bytes]]) -> bool:
        """Claim a task and start it; False if another host was faster."""
        task = f"{job.name}@{number}"
        attempt = self.queue.attempts(task) + 1
        if not write_once(self._beat.with_name(f"{task}.claim-{attempt}"), {"host": self._number}):
            free(leases)
            return False
        gpus = [name.removeprefix("gpu-") for name in leases] if job.gpus else []
        environment = {
            **os.environ,
            **self._secrets,
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            JOB_VARIABLE: str(self.queue.folder / job.name),
        }
        if number:
            environment[SHARD_VARIABLE] = f"{number}/{len(job.tasks)}"
        log = Path(job.log) / (f"{job.name}.shard-{number}.log" if number else f"{job.name}.log")
        with log.open("ab") as file:
            line = f"{task}: on {self._host.name}, attempt {attempt}, GPUs {','.join(gpus) or '-'}"
            file.write(f"==> {line}\n".encode())
            file.flush()
            process = subprocess.Popen(
                ["bash", job.script],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=[lease.fileno() for lease in leases.values()],
                preexec_fn=_end_with_parent,
            )
        _say(f"started {line}")
        self._running.append(_Running(job, task, attempt, process, leases))
        return True

    def _end_tasks(self) -> None:
        """Record the tasks that have ended; stop those that are cancelled or run elsewhere."""
        for running in list(self._running):
            code = running.process.poll()
            is_elsewhere = self.queue.attempts(running.task) > running.attempt
            is_cancelled = self.queue.is_cancelled(running.job.name)
            if code is None:
                if is_elsewhere or is_cancelled:
                    _stop(running)
                continue
            if not is_elsewhere:
                self._record(running, code, is_cancelled=is_cancelled)
            free(running.leases)
            self._running.remove(running)
            _say(f"ended {running.task}, exit code {code}")

    def _record(self, running: _Running, code: int, *, is_cancelled: bool) -> None:
        why = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        state = "completed" if code == 0 else "cancelled" if is_cancelled else "failed"
        path = self._beat.with_name(f"{running.task}.ended")
        write_once(path, {"state": state, "why": f"{why} on {self._host.name}"})

    def _stop_all(self) -> None:
        while self._running:
            for running in list(self._running):
                if running.process.poll() is None:
                    _stop(running)
                else:
                    self._running.remove(running)
            time.sleep(_POLL_SECONDS)


def _stop(running: _Running) -> None:
    """Ask a task to stop; kill it when it has had its time."""
    now = time.monotonic()
    running.stopped = running.stopped or now
    is_late = now - running.stopped > _GRACE_SECONDS
    if running.stopped == now or is_late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL if is_late else signal.SIGTERM)


def _end_with_parent() -> None:
    """Ask the kernel to stop this process, in order, when the runner dies."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SIGNAL_WITH_PARENT, signal.SIGTERM)


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
    sys.stderr.flush()


def _detach(log: Path) -> bool:
    """Go on in a process of its own that no terminal ends; False in the one that was called."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    into = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((nothing, 0), (into, 1), (into, 2)):
        os.dup2(descriptor, target)
    return True


def main(arguments: Sequence[str]) -> int:
    """Start the runner of one host: `FOLDER NUMBER`, with secrets as JSON on stdin."""
    folder, number = Path(arguments[0]), int(arguments[1])
    secrets = json.loads(sys.stdin.read() or "{}")
    try:
        runner = Runner(folder, number, secrets)
        runner.beat()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    if not _detach(folder / f"runner-{number}.log"):
        return 0
    _say(f"runner of {runner.queue.hosts[number].name}, process {os.getpid()}")
    runner.run()
    return 0


def conditions(ids: Collection[str]) -> Iterator[tuple[str, Condition]]:
    """The conditions of jobs by their ids; those whose record was removed are left out."""
    queues: dict[Path, Queue | None] = {}
    for job_id in ids:
        folder, name = Path(job_id).parent, Path(job_id).name
        if folder not in queues:
            try:
                queues[folder] = Queue(folder)
            except (OSError, ValueError):
                queues[folder] = None
        queue = queues[folder]
        if queue is not None and name in queue.jobs:
            yield job_id, queue.job(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
