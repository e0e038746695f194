"""`mbt pull`: what running and finished jobs of a study have put into its mirror."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import typer

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.core.addresses import STEP
from mbt_cli.core.names import NAME_PATTERN
from mbt_cli.engine.mirroring import came_text
from mbt_cli.engine.select import taken
from mbt_cli.engine.status import cells_of_jobs
from mbt_cli.engine.submit import read_submissions
from mbt_cli.errors import MissingInputError, UsageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine, read_machine
from mbt_cli.store.lineage import LINEAGE
from mbt_cli.store.mirror import Mirror


def pull(
    study: str, only: list[str] | None, job: str | None, source: str | None, *, follow: bool
) -> None:
    """Fetch finished cells, replies and logs; with `follow`, again and again.

    Args:
        study: Its name or manifest.
        only: Patterns for cells.
        job: Pattern for names of submitted jobs, whose cells are fetched.
        source: The mirror; default: that of the study, then that of its newest submission.
        follow: Whether to go on until every cell is here.

    Raises:
        UsageError: The study has no mirror, or no job fits.
        MissingInputError: The mirror has nothing of the study.
        MbtError: The mirror did not answer.
    """
    manifest, machine = _opened(study)
    name = manifest.study if manifest else study
    place = source or machine.mirror or _mirror_of_jobs(machine.runs, name)
    if place is None:
        raise UsageError(
            f"the study `{name}` has no mirror",
            hint='name it: `--from s3://BUCKET/FOLDER`, `[run] mirror = "s3://..."` in its '
            "manifest, or MBT_MIRROR",
        )
    mirror = Mirror(place, machine.runs, name)
    own = None if job is None else cells_of_jobs(machine.runs, name, job)
    is_taken = taken(only or ())

    def wanted(address: str) -> bool:  # a training's checkpoints are cells below its own
        is_own = own is None or address in own or address.partition(f"/{STEP}=")[0] in own
        return is_own and is_taken(address)

    seconds = manifest.document.run.mirror_seconds if manifest else 5.0
    while True:
        came = mirror.pull(wanted, logs=True)
        for address in (*came.cells, *(f"{a} (unfinished)" for a in came.journals)):
            typer.echo(address)
        if came:
            typer.echo(came_text(came, place), err=True)
        if not follow or (manifest and _is_whole(manifest, machine, wanted)):
            break
        time.sleep(seconds)
    if not came and not (machine.runs / name).is_dir():
        raise MissingInputError(
            f"`{place}` has nothing of the study `{name}`",
            hint="check the name and the address; a run puts something there within seconds",
        )
    typer.echo(f"{machine.runs / name}/", err=True)


def _mirror_of_jobs(runs: Path, study: str) -> str | None:
    """Where the newest submission whose jobs do not see the runs folder puts its results."""
    found = [one.mirror for one in read_submissions(runs, study).values() if one.mirror]
    return found[-1] if found else None


def _opened(study: str) -> tuple[Manifest | None, Machine]:
    """The manifest of a study, where there is one of that name, and the machine."""
    names = [study] if study.endswith(".toml") else [f"{study}.toml", f"manifests/{study}.toml"]
    for name in names:
        if Path(name).is_file():
            return open_manifest(Path(name), None, None)
    if study.endswith(".toml") or not re.fullmatch(NAME_PATTERN, study):
        raise UsageError(f"no study or manifest `{study}`", hint="mbt pull STUDY, or its manifest")
    return None, read_machine()


def _is_whole(manifest: Manifest, machine: Machine, wanted: Callable[[str], bool]) -> bool:
    """Whether every chosen cell of the study is finished here."""
    if manifest.load is not None and manifest.has_open_steps:
        manifest = manifest.load()
    folder = machine.runs / manifest.study
    return not manifest.waiting and all(
        (folder / address / LINEAGE).is_file() for address in manifest.cells if wanted(address)
    )
