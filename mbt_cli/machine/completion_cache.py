"""What completion knows of a manifest, kept between key presses; imports nothing heavy.

An entry is right as long as every file that it was made from is as it was: the manifest, what it
extends, every preset that could be found, the sources of optional cells, and mbt itself.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from zlib import crc32

from mbt_cli.manifest.presets import PresetFolders

_LAYOUT = 1
_MADE_BY = ("registry.py", "stages/kinds.py", "manifest/document.py", "machine/completion.py")
_PACKAGE = Path(__file__).resolve().parents[1]
_NAMES = (
    *("MBT_RUNS", "MBT_CACHE", "MBT_CONFIG", "MBT_PRESETS"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
)

Stamp = list[list[str | int]]
"""Path, time of the last change in nanoseconds and length in bytes of files, sorted."""


@dataclass(frozen=True)
class Hints:
    """What can be completed for one manifest.

    Args:
        cells: Addresses.
        keys: Key for `--set` to the values that are known for it.
        tables: Names of the tables that its report stages make.
        models: Names of its models.
        benchmarks: Names of its benchmarks.
        files: Every file that was read, the presets apart.
        sources: Patterns of the sources of its optional stages.
    """

    cells: Sequence[str] = ()
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tables: Sequence[str] = ()
    models: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    files: Sequence[str] = ()
    sources: Sequence[str] = ()


@dataclass(frozen=True)
class Folders:
    """The folders of `settings.Machine`, read without Pydantic."""

    runs: Path
    cache: Path
    config: Path
    presets: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Folders":
        """As `settings.read_machine` finds them: the environment, then `.env`.

        Args:
            environment: The process environment.
        """
        known = {**_from_dotenv(environment), **environment}
        home = Path.home()
        cache = Path(known.get("XDG_CACHE_HOME") or home / ".cache") / "mbt"
        config = Path(known.get("XDG_CONFIG_HOME") or home / ".config") / "mbt"
        presets = known.get("MBT_PRESETS")
        return cls(
            Path(known.get("MBT_RUNS") or "runs"),
            Path(known.get("MBT_CACHE") or cache),
            Path(known.get("MBT_CONFIG") or config),
            Path(presets) if presets else None,
        )

    def preset_folders(self, extra: Path | None) -> PresetFolders:
        """Where presets are looked for.

        Args:
            extra: What stands after `--presets`.
        """
        return PresetFolders.usual(extra=extra or self.presets, config=self.config)


@dataclass(frozen=True)
class Entry:
    """The cache entry of one manifest, seen from one working folder with one set of presets."""

    manifest: Path
    presets: PresetFolders
    cache: Path

    def read(self) -> Hints | None:
        """What was kept; None where there is nothing, or something has changed since."""
        try:
            kept = json.loads(self._path().read_bytes())
            hints = Hints(**kept["hints"])
        except (OSError, ValueError, LookupError, TypeError):
            return None  # not there, or of another layout: it is made again
        is_right = kept["seen"] == self._seen() and kept["stamp"] == self._stamp(hints)
        return hints if is_right else None

    def write(self, hints: Hints) -> None:
        """Keep it, whole or not at all."""
        path = self._path()
        kept = {"seen": self._seen(), "stamp": self._stamp(hints), "hints": asdict(hints)}
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(kept), encoding="utf-8")
            partial.replace(path)
        except OSError:
            return  # a cache that cannot be written costs time, and a key press is no place to say

    def _path(self) -> Path:
        name = crc32("\n".join(self._seen()).encode())
        return self.cache / "completion" / f"{name:08x}.json"

    def _seen(self) -> list[str]:
        """What a name of a file, or of a preset, is looked up by."""
        folders = (str(folder) for folder in self.presets.folders)
        return [str(_LAYOUT), str(self.manifest.resolve()), str(Path.cwd()), *folders]

    def _stamp(self, hints: Hints) -> Stamp:
        files = {*map(Path, hints.files), *(_PACKAGE / name for name in _MADE_BY)}
        for folder in self.presets.folders:
            files.update(folder.glob("*/*.toml"))
        for pattern in hints.sources:
            files.update(_matching(Path(pattern).expanduser()))
        return sorted(map(_stamp_of, files))


def _matching(pattern: Path) -> Iterator[Path]:
    return Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))


def _stamp_of(path: Path) -> list[str | int]:
    try:
        found = path.stat()
    except OSError:
        return [str(path), 0, -1]
    return [str(path), found.st_mtime_ns, found.st_size]


def _from_dotenv(environment: Mapping[str, str]) -> dict[str, str]:
    if environment.get("MBT_NO_DOTENV", "0") not in ("", "0"):
        return {}
    try:
        lines = Path(".env").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {k.strip(): v.strip().strip("'\"") for k, _, v in pairs if k.strip() in _NAMES}
