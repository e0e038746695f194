"""What there is to complete: on the disk, on the line that is typed, and in the manifest it names.

While the cache is warm nothing heavy is imported. After an edit the manifest is read once, in this
process, as `mbt check` reads it.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from mbt_cli.machine.completion_cache import Entry, Folders, Hints
from mbt_cli.manifest.presets import PresetFolders, manifest_file, shipped

_CELL_MARKS = ("lineage.json", "failure.json", "journal")


@dataclass(frozen=True)
class TypedLine:
    """The complete words of a command line, behind its verb.

    Args:
        arguments: Words that are no options.
        options: Option to the value that it was given last.
    """

    arguments: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, words: Sequence[str], takes_value: Collection[str]) -> "TypedLine":
        """Tell arguments from options.

        Args:
            words: The words behind the verb.
            takes_value: Names of options that a value follows.

        Example:
            >>> TypedLine.read(["x.toml", "-q", "--only", "a", "--set=b=1"], {"--only", "--set"})
            TypedLine(arguments=['x.toml'], options={'--only': 'a', '--set': 'b=1'})
        """
        arguments, options = [], {}
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=")
            if name in takes_value:
                options[name] = value if equals else next(left, "")
            elif not word.startswith("-"):
                arguments.append(word)
        return cls(arguments, options)

    @property
    def manifest(self) -> Path | None:
        """The manifest that it names."""
        return manifest_file(Path(self.arguments[0])) if self.arguments else None


def typed_line(ctx: typer.Context) -> TypedLine:
    """The line, as `shells` has read it."""
    return ctx.obj if isinstance(ctx.obj, TypedLine) else TypedLine()


def presets_of(line: TypedLine) -> PresetFolders:
    """Where presets are looked for."""
    extra = line.options.get("--presets")
    return Folders.of(os.environ).preset_folders(Path(extra) if extra else None)


def hints_of(line: TypedLine) -> Hints:
    """What is known of the manifest on the line; nothing where there is none, or it is wrong."""
    if line.manifest is None:
        return Hints()
    presets = presets_of(line)
    entry = Entry(line.manifest, presets, Folders.of(os.environ).cache)
    if (kept := entry.read()) is not None:
        return kept
    from mbt_cli.machine.completion import hints_for

    hints = hints_for(line.manifest, presets)
    if hints is None:
        return Hints()
    entry.write(hints)
    return hints


def stages_of(line: TypedLine) -> Sequence[str]:
    """Names of the stages of a manifest that is wrong elsewhere."""
    from mbt_cli.machine.completion import stage_names

    return stage_names(line.manifest) if line.manifest else ()


def manifests(incomplete: str) -> list[str]:
    """Manifests here, in manifests/ and in the folder that is typed; else those that mbt ships."""
    names = manifests_here(incomplete)
    if names or "/" in incomplete:
        return names
    return sorted(path.stem for path in shipped("manifests").glob(f"{incomplete}*.toml"))


def manifests_here(incomplete: str) -> list[str]:
    """Those that are files of one's own."""
    folders = [incomplete.rpartition("/")[0]] if "/" in incomplete else ["", "manifests"]
    found = [path for folder in folders for path in _manifests_in(Path(folder))]
    return [str(path) for path in found if str(path).startswith(incomplete)]


def topics() -> list[str]:
    """Topics of the help."""
    return sorted(path.stem for path in (Path(__file__).parents[1] / "help").glob("*.md"))


def studies() -> list[str]:
    """Names of the studies in the runs folder."""
    return [path.name for path in _folders_in(Folders.of(os.environ).runs)]


def cell_folders(incomplete: str) -> list[str]:
    """Folders from the runs folder down to the cells; a lone one is gone into."""
    typed = incomplete or f"{Folders.of(os.environ).runs}/"
    folder, slash, start = typed.rpartition("/")
    inside = _folders_in(Path(folder or slash or "."))
    found = [path for path in inside if path.name.startswith(start)]
    while len(found) == 1 and (deeper := _folders_in(found[0])):
        found = deeper
    return [str(path) if _is_cell(path) else f"{path}/" for path in found]


def _folders_in(folder: Path) -> list[Path]:
    """Folders that are not hidden; a cell has none that matter."""
    if not folder.is_dir() or _is_cell(folder):
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_cell(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _CELL_MARKS)


def _manifests_in(folder: Path) -> list[Path]:
    """TOML files with a study in them: a pyproject.toml is none."""
    return [path for path in sorted(folder.glob("*.toml")) if _has_study(path)]


def _has_study(path: Path) -> bool:
    try:
        return "[study]" in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
