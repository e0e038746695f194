"""The job that this process belongs to, and whether another one has ended."""

from collections.abc import Mapping

from mbt_cli.core.jobs import JobId
from mbt_cli.registry import LAUNCHERS


def current_job(environment: Mapping[str, str]) -> JobId | None:
    """The job that this process belongs to, if a launcher started it."""
    for kind, launcher in LAUNCHERS.kinds().items():
        if launcher.job_id_variable and (own := environment.get(launcher.job_id_variable)):
            return JobId(kind, own)
    return None


def is_gone(job: JobId) -> bool:
    """Whether a job has left its queue for certain."""
    launcher = LAUNCHERS.find(job.launcher)
    return launcher is not None and launcher.gone(job.id)
