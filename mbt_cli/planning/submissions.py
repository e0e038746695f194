"""The record of a submission: its own copy of everything, and which job got which id.

runs/<study>/submissions/<time>/
    plan.json  manifest.toml  presets/   what the jobs run, whatever is edited meanwhile
    scripts/  logs/  events/             one a job; events tell starts, requeues and ends
    jobs.json                            written anew after every job that was handed over
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import ValidationError

from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model import Settings
from mbt_cli.core.utc_names import utc_name
from mbt_cli.errors import ArtifactError
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.toml_writer import toml_text
from mbt_cli.planning.plan_document import Plan, plan_json
from mbt_cli.store.disk import write_atomically, writing_to

SUBMISSIONS = "submissions"
_JOBS = "jobs.json"


class SubmittedJob(Settings):
    """A job that was handed over."""

    id: str
    """Its name within the plan."""
    launcher_id: str
    """The queue's id of it; empty where it ran on this machine, without a queue."""
    cells: tuple[str, ...]
    """What it makes."""
    finishes: bool = True
    """Whether its cells are done when it is; an array of shards leaves that to a merging job."""
    after: tuple[str, ...] = ()
    """The queue's ids of jobs that it waits for."""


class Submission(Settings):
    """What became of one `mbt submit`."""

    schema_version: int = 1
    """Layout of this file."""
    study: str
    """Name of the study."""
    launcher: str
    """Kind of the place."""
    manifest: str
    """The manifest that a person typed."""
    again: str = ""
    """The command that goes on with it; empty in records of mbt 0.1."""
    jobs: tuple[SubmittedJob, ...] = ()
    """Jobs that were handed over, in order."""


def label_of(study: str, runs: Path) -> str:
    """What every job of a study in this runs folder bears, and no other."""
    return f"mbt:{study}:{sha256_of(str(runs.resolve()))[:12]}"


def new_record(runs: Path, study: str, *, now: datetime) -> Path:
    """A folder for a new submission, not made yet."""
    folder = runs.resolve() / study / SUBMISSIONS / utc_name(now)
    while folder.exists():  # twice within a second
        folder = folder.with_name(f"{folder.name}+")
    return folder


def write_copy(record: Path, plan: Plan, manifest: Manifest, presets: PresetFolders) -> None:
    """Keep plan, manifest, its own prompts and every preset in the record's folder.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    with writing_to(record):
        for name in ("scripts", "logs", "events"):
            (record / name).mkdir(parents=True, exist_ok=True)
        write_atomically(record / "plan.json", plan_json(plan).encode())
        write_atomically(record / "manifest.toml", toml_text(manifest.tree).encode())
        for family, path in _preset_files(presets):
            target = record / "presets" / family / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        for name in _own_prompts(manifest):
            target = record / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(manifest.path.parent / name, target)


def _preset_files(presets: PresetFolders) -> Iterator[tuple[str, Path]]:
    """Each preset that counts, but for those of clusters, with its family."""
    seen: set[tuple[str, str]] = set()
    for folder in presets.folders:
        for path in sorted(folder.glob("*/*")):
            key = (path.parent.name, path.name)
            if path.is_file() and key[0] != "slurm" and key not in seen:
                seen.add(key)
                yield path.parent.name, path


def _own_prompts(manifest: Manifest) -> Sequence[str]:
    """Prompt files that stand beside the manifest."""
    names = {t.name for c in manifest.cells.values() for t in c.resolution.templates.values()}
    folder = manifest.path.parent
    return sorted(
        name
        for name in names
        if not Path(name).is_absolute()
        and ".." not in Path(name).parts
        and (folder / name).is_file()
    )


def write_submission(record: Path, submission: Submission) -> None:
    """Say what has been handed over so far."""
    text = orjson.dumps(submission.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    write_atomically(record / _JOBS, text + b"\n")


def read_submissions(runs: Path, study: str) -> Mapping[Path, Submission]:
    """Every submission of a study by its folder, the oldest first.

    Raises:
        ArtifactError: A record is damaged.
    """
    found: dict[Path, Submission] = {}
    for path in sorted((runs.resolve() / study / SUBMISSIONS).glob(f"*/{_JOBS}")):
        try:
            found[path.parent] = Submission.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ArtifactError(
                f"`{path}` is damaged: {error}", hint="remove its folder; artifacts stay"
            ) from None
    return found


def studies_with_submissions(runs: Path) -> list[str]:
    """Names of studies that were submitted from this runs folder."""
    return sorted({path.parents[2].name for path in runs.glob(f"*/{SUBMISSIONS}/*/{_JOBS}")})
