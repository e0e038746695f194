"""The temporary folder of a job, on nodes where the job's script did not make it."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_folder(environment: Mapping[str, str]) -> Iterator[None]:
    """Make TMPDIR for a while, if the job's script made it on the first node alone.

    As in slurm/job.sh, TMPDIR is `mbt-USER/JOB/tmp`, and a lock beside `JOB` is held meanwhile: if
    this process is killed, the next job on the node removes what is left. A folder that cannot be
    made is left out: Python then takes another.
    """
    folder = Path(environment.get("TMPDIR") or os.curdir)
    if folder.is_dir():
        yield
        return
    job = folder.parent
    lock = job.with_name(f"{job.name}.lock")
    with contextlib.ExitStack() as left:
        with contextlib.suppress(OSError):
            job.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if job.name == environment.get("SLURM_JOB_ID"):
                held = left.enter_context(lock.open("a"))
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.callback(lock.unlink, missing_ok=True)
                left.callback(shutil.rmtree, job, ignore_errors=True)
            left.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        yield
