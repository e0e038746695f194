"""Jobs on this machine: those whose needs are met, as many at once as there is room for."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mbt_cli.core.jobs import Job
from mbt_cli.engine.submit import Submitting
from mbt_cli.launchers.local import LocalLauncher

_LOOK_SECONDS = 0.2


@dataclass
class LocalRun:
    """What became of the jobs.

    Args:
        done: Ids of jobs that succeeded.
        failed: Id to exit code.
        skipped: Id of a job to the failed job that it would have read from.
    """

    done: list[str] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def run_here(
    submitting: Submitting, *, at_once: int, gpus: Sequence[str], note: Callable[[str], None]
) -> LocalRun:
    """Run every job of a submission here, each when what it needs is done.

    Args:
        submitting: The jobs, what is needed first.
        at_once: How many run at the same time.
        gpus: Indices of free GPUs; a job that wants some waits until enough are free.
        note: Told of starts and ends.
    """
    submitting.keep()
    submitting.record_jobs_here()
    run, free = LocalRun(), list(gpus)
    launcher = LocalLauncher()
    waiting = list(submitting.jobs)
    known = {job.id for job in waiting}
    running: dict[str, tuple[subprocess.Popen[bytes], Job, list[str]]] = {}
    try:
        while waiting or running:
            _skip(waiting, run)
            for job in [j for j in waiting if set(j.needs) & known <= set(run.done)]:
                wanted = min(job.gpus, len(gpus))
                if len(running) >= at_once or wanted > len(free):
                    continue
                mine, free = free[:wanted], free[wanted:]
                script = submitting.write_script(launcher, job)
                running[job.id] = (launcher.start(script, mine), job, mine)
                waiting.remove(job)
                note(f"{job.id}: started, {len(job.cells)} cells, log {script.with_suffix('.log')}")
            free.extend(_collect(running, run, note))
            time.sleep(_LOOK_SECONDS)
    finally:
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            process.wait()
    return run


def _skip(waiting: list[Job], run: LocalRun) -> None:
    """Leave out jobs whose needs have failed, and those that need them."""
    for job in list(waiting):
        broken = next((n for n in job.needs if n in run.failed or n in run.skipped), None)
        if broken is not None:
            run.skipped[job.id] = run.skipped.get(broken, broken)
            waiting.remove(job)


def _collect(
    running: dict[str, tuple[subprocess.Popen[bytes], Job, list[str]]],
    run: LocalRun,
    note: Callable[[str], None],
) -> list[str]:
    """Note which have ended; gives the GPUs that are free again."""
    free: list[str] = []
    for name, (process, _, mine) in list(running.items()):
        code = process.poll()
        if code is None:
            continue
        del running[name]
        free.extend(mine)
        if code == 0:
            run.done.append(name)
            note(f"{name}: done")
        else:
            run.failed[name] = code
            note(f"{name}: failed with exit code {code}")
    return free
