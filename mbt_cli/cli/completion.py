"""What arguments and options complete to: names on disk, in the manifest, and on the line.

Hints about a manifest are cached, so a key press imports nothing heavy. After an edit, the manifest
is read once, as `mbt check` reads it.
"""

import json
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from zlib import crc32

import typer

from mbt_cli.core.addresses import axes_of, matches
from mbt_cli.manifest.presets import PresetFolders, manifest_file, shipped

_LAYOUT = 1
_MADE_BY = ("registry.py", "stages/kinds.py", "manifest/schema.py", "cli/completion_hints.py")
_PACKAGE = Path(__file__).resolve().parents[1]
_NAMES = (
    *("MBT_RUNS", "MBT_CACHE", "MBT_CONFIG", "MBT_PRESETS"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
)

Stamp = list[list[str | int]]
"""Path, modification time in nanoseconds and size in bytes of files, sorted."""


@dataclass(frozen=True)
class Hints:
    """The completions of one manifest.

    Args:
        cells: Addresses.
        keys: Key for `--set` to its known values.
        tables: Names of the tables of its report stages.
        models: Names of its models.
        benchmarks: Names of its benchmarks.
        files: Every file that was read, except presets.
        sources: Source patterns of its optional stages.
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
        """The folders as `settings.read_machine` finds them: the environment, then `.env`.

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
        """Folders with presets.

        Args:
            extra: Value of `--presets`.
        """
        return PresetFolders.usual(extra=extra or self.presets, config=self.config)


@dataclass(frozen=True)
class Entry:
    """The cache entry of one manifest, for one working folder and one set of presets."""

    manifest: Path
    presets: PresetFolders
    cache: Path

    def read(self) -> Hints | None:
        """The cached hints; None if there are none or a file has changed."""
        try:
            kept = json.loads(self._path().read_bytes())
            hints = Hints(**kept["hints"])
        except (OSError, ValueError, LookupError, TypeError):
            return None  # missing, or of another layout: computed again
        is_right = kept["seen"] == self._seen() and kept["stamp"] == self._stamp(hints)
        return hints if is_right else None

    def write(self, hints: Hints) -> None:
        """Write the entry atomically."""
        path = self._path()
        kept = {"seen": self._seen(), "stamp": self._stamp(hints), "hints": asdict(hints)}
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(kept), encoding="utf-8")
            partial.replace(path)
        except OSError:
            return  # completion also works without a cache; print no errors on a key press

    def _path(self) -> Path:
        name = crc32("\n".join(self._seen()).encode())
        return self.cache / "completion" / f"{name:08x}.json"

    def _seen(self) -> list[str]:
        """Everything that decides which files a name refers to."""
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


def next_steps(values: Iterable[str], typed: str, separator: str) -> list[str]:
    """The values that begin with `typed`, each cut after the part where they first differ.

    Example:
        >>> next_steps(["run.a", "run.b", "study.seed"], "", ".")
        ['run.', 'study.']
        >>> next_steps(["run.a.x", "run.a.y", "study.seed"], "r", ".")
        ['run.a.x', 'run.a.y']
    """
    fitting = [value for value in values if value.startswith(typed)]
    length = len(typed)
    while True:
        ends = (value.find(separator, length) + 1 or len(value) for value in fitting)
        cut = list(dict.fromkeys(v[:end] for v, end in zip(fitting, ends, strict=True)))
        if len(cut) != 1 or cut[0] in fitting:
            return cut
        length = len(cut[0])


def only_steps(cells: Sequence[str], typed: str) -> list[str]:
    """Continuations of `--only`: stages, then addresses, or axes in any order.

    Args:
        cells: Addresses of all cells.
        typed: The word so far; a leading `!` excludes cells.

    Example:
        >>> cells = ["base/benchmark=b/model=x", "base/benchmark=b/model=y", "scores/model=x"]
        >>> only_steps(cells, "")
        ['base', 'scores']
        >>> only_steps(cells, "ba")
        ['base', 'base/']
        >>> only_steps(cells, "base/")
        ['base/benchmark=b/model=x', 'base/benchmark=b/model=y']
        >>> only_steps(cells, "!base/model=")
        ['!base/model=x', '!base/model=y']
        >>> only_steps(cells, "base/model=x")
        ['base/model=x', 'base/model=x/']
    """
    leave_out, typed = ("!", typed[1:]) if typed.startswith("!") else ("", typed)
    if "/" in typed:
        steps = next_steps(cells, typed, "/") or _axis_steps(cells, typed)
    else:
        steps = _stage_steps(cells, typed)
    return [leave_out + step for step in steps]


def set_steps(keys: Mapping[str, Sequence[str]], typed: str) -> list[str]:
    """Continuations of `--set`: a key part by part, then its values.

    Args:
        keys: Key to its known values.
        typed: The word so far.

    Example:
        >>> keys = {"study.seed": ["1"], "run.concurrency": [], "run.drain_seconds": ["20"]}
        >>> set_steps(keys, "run.")
        ['run.concurrency', 'run.drain_seconds']
        >>> set_steps(keys, "study")
        ['study.seed=', 'study.seed=1']
        >>> set_steps(keys, "run.c")
        ['run.concurrency', 'run.concurrency=']
    """
    key, equals, value = typed.partition("=")
    if equals:
        return [f"{key}={known}" for known in keys.get(key, ()) if known.startswith(value)]
    steps = next_steps(keys, typed, ".")
    if len(steps) != 1:
        return steps
    values = keys[steps[0]]
    return [f"{steps[0]}={v}" for v in ("", *values)] if values else [steps[0], f"{steps[0]}="]


def rejoined(pieces: Sequence[str], breaks: str = "=:") -> list[str]:
    """The words of a command line that bash has split at `=` and `:`.

    Args:
        pieces: bash's COMP_WORDS up to the current one.
        breaks: Characters at which bash splits words and which it keeps as separate pieces.

    Example:
        >>> rejoined(["mbt", "run", "--only", "base/model", "=", "qw"])
        ['mbt', 'run', '--only', 'base/model=qw']
        >>> rejoined(["mbt", "run", "--only", "base/model", "=", ""])
        ['mbt', 'run', '--only', 'base/model=', '']
    """
    words: list[str] = []
    goes_on = False
    for piece in pieces:
        is_break = bool(piece) and not piece.strip(breaks)
        if words and (is_break or (goes_on and piece)):
            words[-1] += piece
        else:
            words.append(piece)
        goes_on = is_break
    return words


def _stage_steps(cells: Sequence[str], typed: str) -> list[str]:
    stages = dict.fromkeys(address.partition("/")[0] for address in cells)
    fitting = [stage for stage in stages if stage.startswith(typed)]
    return [fitting[0], f"{fitting[0]}/"] if len(fitting) == 1 else fitting


def _axis_steps(cells: Sequence[str], typed: str) -> list[str]:
    """`axis=value` for axes that are not typed yet, in the cells that match the rest."""
    head, _, part = typed.rpartition("/")
    named = {word.partition("=")[0] for word in head.split("/")[1:]}
    open_axes = [
        {a: v for a, v in axes_of(cell).items() if a not in named}
        for cell in cells
        if matches(head, cell)
    ]
    pairs = dict.fromkeys(f"{a}={v}" for axes in open_axes for a, v in axes.items())
    fitting = [f"{head}/{pair}" for pair in pairs if pair.startswith(part)]
    goes_on = len(fitting) == 1 and any(len(axes) > 1 for axes in open_axes)
    return [fitting[0], f"{fitting[0]}/"] if goes_on else fitting


_CELL_MARKS = ("lineage.json", "failure.json", "journal")


@dataclass(frozen=True)
class TypedLine:
    """The complete words of a command line after its verb.

    Args:
        arguments: Words that are not options.
        options: Option to its last value.
    """

    arguments: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, words: Sequence[str], takes_value: Collection[str]) -> "TypedLine":
        """Split the words into arguments and options.

        Args:
            words: The words after the verb.
            takes_value: Names of options that take a value.

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
        """The manifest on the line."""
        return manifest_file(Path(self.arguments[0])) if self.arguments else None


def _presets_of(line: TypedLine) -> PresetFolders:
    """Folders with presets."""
    extra = line.options.get("--presets")
    return Folders.of(os.environ).preset_folders(Path(extra) if extra else None)


def _hints_of(line: TypedLine) -> Hints:
    """Hints for the manifest on the line; empty if there is none or it is wrong."""
    if line.manifest is None:
        return Hints()
    presets = _presets_of(line)
    entry = Entry(line.manifest, presets, Folders.of(os.environ).cache)
    if (kept := entry.read()) is not None:
        return kept
    from mbt_cli.cli.completion_hints import hints_for

    hints = hints_for(line.manifest, presets)
    if hints is None:
        return Hints()
    entry.write(hints)
    return hints


def _stages_of(line: TypedLine) -> Sequence[str]:
    """Stages of a manifest that has problems elsewhere."""
    from mbt_cli.cli.completion_hints import stage_names

    return stage_names(line.manifest) if line.manifest else ()


def complete_manifest(incomplete: str) -> list[str]:
    """Manifests in this folder, in manifests/ and in the folder typed; else the shipped ones."""
    names = _manifests_here(incomplete)
    if names or "/" in incomplete:
        return names
    return sorted(path.stem for path in shipped("manifests").glob(f"{incomplete}*.toml"))


def complete_only(ctx: typer.Context, incomplete: str) -> list[str]:
    """Stages, then addresses or axes in any order; stages alone while the manifest is wrong."""
    line = _line_of(ctx)
    return only_steps(_hints_of(line).cells or _stages_of(line), incomplete)


def complete_set(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys part by part, then the current value of a key and the values that it may have."""
    return set_steps(_hints_of(_line_of(ctx)).keys, incomplete)


def complete_table(ctx: typer.Context) -> list[str]:
    """Tables of the manifest's report stages."""
    return list(_hints_of(_line_of(ctx)).tables)


def complete_model(ctx: typer.Context) -> list[str]:
    """Models of the manifest."""
    return list(_hints_of(_line_of(ctx)).models)


def complete_benchmark(ctx: typer.Context) -> list[str]:
    """Benchmarks of the manifest."""
    return list(_hints_of(_line_of(ctx)).benchmarks)


def complete_cluster(ctx: typer.Context) -> list[str]:
    """Presets of the launchers that `mbt submit` has options for."""
    presets = _presets_of(_line_of(ctx))
    kinds = [ctx.params.get("launcher"), *(param.name for param in ctx.command.params)]
    return sorted({name for kind in kinds if kind for name in presets.names(kind)})


def complete_model_preset(ctx: typer.Context) -> list[str]:
    """Model presets."""
    return list(_presets_of(_line_of(ctx)).names("models"))


def complete_topic(incomplete: str) -> list[str]:
    """Topics of `mbt help`; metrics once the start of no topic is typed."""
    topics = sorted(path.stem for path in (_PACKAGE / "help").glob("*.md"))
    if any(topic.startswith(incomplete) for topic in topics):
        return topics
    return _metrics()


def complete_part(ctx: typer.Context) -> list[str]:
    """Sections of the topic that is typed; the metrics for `metrics`."""
    topic = next(iter(_line_of(ctx).arguments), "")
    path = _PACKAGE / "help" / f"{topic}.md"
    if not path.is_file():
        return []
    from mbt_cli.cli.help import sections  # only for this answer

    return [*(_metrics() if topic == "metrics" else ()), *sections(path.read_text("utf-8"))]


def _metrics() -> list[str]:
    from mbt_cli.registry import SCORES  # only for this answer

    return sorted(SCORES.kinds())


def complete_place() -> list[str]:
    """Places where a first study's model can run."""
    return list(tomllib.loads((_PACKAGE / "cli/templates/kinds.toml").read_text("utf-8")))


def complete_layout() -> list[str]:
    """Kinds of benchmarks."""
    from mbt_cli.registry import BENCHMARKS  # only for this answer: it takes a tenth of a second

    return sorted(BENCHMARKS.kinds())


def complete_study() -> list[str]:
    """Studies in the runs folder."""
    return [path.name for path in _folders_in(Folders.of(os.environ).runs)]


def complete_cell_folder(incomplete: str) -> list[str]:
    """Folders from the runs folder down to the cells; a lone folder is entered."""
    typed = incomplete or f"{Folders.of(os.environ).runs}/"
    folder, slash, start = typed.rpartition("/")
    inside = _folders_in(Path(folder or slash or "."))
    found = [path for path in inside if path.name.startswith(start)]
    while len(found) == 1 and (deeper := _folders_in(found[0])):
        found = deeper
    return [str(path) if _is_cell(path) else f"{path}/" for path in found]


def complete_study_path(incomplete: str) -> list[str]:
    """Manifests, and folders of artifacts."""
    return [*_manifests_here(incomplete), *complete_cell_folder(incomplete)]


def _line_of(ctx: typer.Context) -> TypedLine:
    """The typed line, which `shells` leaves in the context."""
    return ctx.obj if isinstance(ctx.obj, TypedLine) else TypedLine()


def _manifests_here(incomplete: str) -> list[str]:
    folders = [incomplete.rpartition("/")[0]] if "/" in incomplete else ["", "manifests"]
    found = [path for folder in folders for path in _manifests_in(Path(folder))]
    return [str(path) for path in found if str(path).startswith(incomplete)]


def _folders_in(folder: Path) -> list[Path]:
    """Visible subfolders; none for a cell."""
    if not folder.is_dir() or _is_cell(folder):
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_cell(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _CELL_MARKS)


def _manifests_in(folder: Path) -> list[Path]:
    """TOML files that hold a study."""
    return [path for path in sorted(folder.glob("*.toml")) if _has_study(path)]


def _has_study(path: Path) -> bool:
    try:
        return path.is_file() and "[study]" in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
