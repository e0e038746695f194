"""Writes a first manifest: checked before it is written, and never over another file."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from mbt_cli.errors import UsageError
from mbt_cli.machine.first_study import Answers, study_text
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders


def refuse_existing(path: Path) -> None:
    """Say no before anything is asked.

    Raises:
        UsageError: There is a file or folder of that name, or the name is not that of a manifest.
    """
    if path.exists():
        raise UsageError(
            f"`{path}` is there already, and is left as it is",
            hint="name another file, such as my-study.toml",
        )
    if path.suffix != ".toml":
        raise UsageError(f"`{path}` does not end in .toml", hint=f"mbt init {path}.toml")


def write_study(path: Path, answers: Answers, presets: PresetFolders) -> None:
    """Write the manifest that the answers make.

    Raises:
        UsageError: There is a file of that name by now, or it cannot be written.
        ManifestError: The answers make no right manifest; nothing is written.
    """
    text = study_text(answers, str(path))
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_text(text, encoding="utf-8")
        load_manifest(draft, presets=presets)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {error.strerror}") from error


def next_commands(path: Path, answers: Answers, environment: Mapping[str, str]) -> list[str]:
    """What to type next, each line a command with a comment."""
    variable = answers.model.api_key_env
    lines = []
    if variable and not environment.get(variable):
        lines.append((f"export {variable}=...", "the key, or a line of .env"))
    lines += [
        (f"mbt check {path}", "is it right, and how many cells does it expand to?"),
        (f"mbt doctor {path}", "is everything here that it needs?"),
    ]
    if answers.kind in ("gpu", "cluster"):
        lines.append((f"mbt data fetch {path}", "weights and questions, where there is a network"))
    if answers.kind == "cluster":
        submit = f"mbt plan {path} | mbt submit --slurm --preset one-gpu"
        lines += [
            (f"mbt plan {path}", "what is to be done, job by job"),
            (f"{submit} --dry-run", "each script; nothing is submitted"),
            (submit, "copy presets/slurm/one-gpu.toml to fill in your cluster"),
            (f"mbt status {answers.study} --watch", "what the jobs are doing"),
        ]
    else:
        lines.append((f"mbt run {path}", "every stage, down to the table"))
    lines.append((f"mbt view runs/{answers.study}", "the report page, when it is done"))
    width = max(len(command) for command, _ in lines if len(command) < _WIDE)
    return [f"{command:<{width}}  # {comment}" for command, comment in lines]


_WIDE = 50
