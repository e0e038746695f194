"""A finished training as a model repository for others: the checkpoint, its card, its lineage."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.notes import TRAINING
from mbt_cli.core.number_text import number_text, significant_decimals
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import CHECKPOINT, TRAINED_GGUF
from mbt_cli.errors import UsageError
from mbt_cli.registry import BENCHMARKS, TRAINERS
from mbt_cli.report.metrics import shown
from mbt_cli.store.artifacts import FILES
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.hub import HubAccess, check_push, push_folder
from mbt_cli.store.lineage import LINEAGE, Lineage, read_lineage
from mbt_cli.store.parquet import ParquetStream
from mbt_cli.store.reading import Upstream, read_parquet_file, read_rows, require_lineage, upstream

_ROWS_AT_ONCE = 2_000
SHARD_ROWS = 100_000


def write_shards(cell: Path, lineage: Lineage, into: Path, split: str) -> int:
    """Write `SPLIT-00000-of-0000N.parquet` files; gives the number of rows.

    Raises:
        ArtifactError: The cell is damaged, or the folder cannot be written.
    """
    rows = read_rows(cell, lineage)
    schema = rows.collect_schema()
    with writing_to(into):
        into.mkdir(parents=True, exist_ok=True)
    parts: list[Path] = []
    stream: ParquetStream | None = None
    written = in_shard = 0
    for start in range(0, lineage.rows, _ROWS_AT_ONCE):
        batch = rows.slice(start, _ROWS_AT_ONCE).collect().filter(pl.col("failure").is_null())
        if stream is None:
            parts.append(into / f"{split}-{len(parts):05d}.partial")
            stream, in_shard = ParquetStream(parts[-1], schema, {"mbt": lineage.address}), 0
        stream.append(batch)
        written, in_shard = written + batch.height, in_shard + batch.height
        if in_shard >= SHARD_ROWS:
            stream.finish()
            stream = None
    if stream is not None:
        stream.finish()
    for number, part in enumerate(parts):
        part.replace(into / f"{split}-{number:05d}-of-{len(parts):05d}.parquet")
    return written


_SHOWN_HASH = 16


def bullets(title: str, items: Mapping[str, str]) -> str:
    r"""A section with one line an item, hashes cut short; nothing where there is no item.

    Example:
        >>> bullets("Models", {"base": "qwen3-4b"})
        '## Models\n\n- base: qwen3-4b'
    """
    if not items:
        return ""
    lines = [f"- {key}: {_short(value)}" for key, value in items.items()]
    return "\n".join([f"## {title}", "", *lines])


def _short(value: str) -> str:
    is_hash = len(value) == 64 and all(c in "0123456789abcdef" for c in value)
    return value[:_SHOWN_HASH] if is_hash else value


@dataclass(frozen=True, slots=True)
class CardCell:
    """One cell of the data set.

    Args:
        config: Name of its configuration.
        split: Name of its split.
        rows: Good rows, which are what is published.
        failures: Reason to the rows that are left out.
        models: Everybody who wrote for it: role or stage to model.
        templates: Prompt field to the hash of its template.
        lineage: Address and fingerprint of the cell and of everything behind it.
    """

    config: str
    split: str
    kind: str
    rows: int
    failures: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    lineage: Mapping[str, str] = field(default_factory=dict)


_WHAT = {
    "rollout": "Answers of a model to the questions of a benchmark, with its reasoning.",
    "synthesize": "Texts that a teacher wrote from a question and its answer.",
    "rewrite": "Reasoning traces of a model, rewritten by a teacher.",
}


def data_card(
    name: str,
    cells: Sequence[CardCell],
    *,
    licences: Mapping[str, str],
    columns: Sequence[str],
    made_by: str,
) -> str:
    """README.md of a data set in the hub's layout.

    Args:
        name: Title.
        cells: What is in it.
        licences: Benchmark to the licence of its data.
        columns: Names of the columns.
        made_by: Program, version and commit.
    """
    parts = [
        _data_front_matter(cells, licences),
        f"# {name}",
        _WHAT.get(cells[0].kind, "Rows made by mbt."),
        _table(cells),
        bullets("Models", _merged(cell.models for cell in cells)),
        bullets("Prompt templates (sha256)", _merged(cell.templates for cell in cells)),
        bullets("Licences of the sources", licences or {"sources": "none: made by rule"}),
        _left_out(cells),
        _reading(columns),
        bullets("Lineage (address: fingerprint)", _merged(cell.lineage for cell in cells)),
        f"Made by {made_by}. The lineage of each part is in `lineage/`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _data_front_matter(cells: Sequence[CardCell], licences: Mapping[str, str]) -> str:
    known = sorted(set(licences.values()))
    # two licences have no common name: `other` sends the reader to the text
    licence = known[0] if len(known) == 1 else "other"
    lines = ["---", f"license: {licence}", "configs:"]
    for config in dict.fromkeys(cell.config for cell in cells):
        lines += [f"- config_name: {config}", "  data_files:"]
        for cell in cells:
            if cell.config == config:
                lines += [f"  - split: {cell.split}", f"    path: {config}/{cell.split}-*.parquet"]
    return "\n".join([*lines, "---"])


def _table(cells: Sequence[CardCell]) -> str:
    lines = ["| configuration | split | rows | left out |", "|---|---|---:|---:|"]
    lines += [f"| {c.config} | {c.split} | {c.rows} | {sum(c.failures.values())} |" for c in cells]
    return "\n".join(lines)


def _left_out(cells: Sequence[CardCell]) -> str:
    counts: dict[str, int] = {}
    for cell in cells:
        for reason, count in cell.failures.items():
            counts[reason] = counts.get(reason, 0) + count
    return bullets("Rows left out, by reason", {k: str(v) for k, v in sorted(counts.items())})


def _reading(columns: Sequence[str]) -> str:
    pairs = ", ".join(f'{name} = "{name}"' for name in columns)
    return (
        "## Reading it in a study\n\n```toml\n"
        f'source = {{ from = "hub:ORG/NAME", config = "...", columns = {{ {pairs} }} }}\n```'
    )


def _merged(many: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for one in many for key, value in one.items()}


_DIGITS = 4


@dataclass(frozen=True, slots=True)
class CardScore:
    """One number of the card.

    Args:
        cell: Address of the score cell.
        metric: Name of the metric; with its unit as stored.
        n: Questions behind the value.
    """

    cell: str
    metric: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CardModel:
    """What a card says of a checkpoint.

    Args:
        name: Title.
        base: Name of the model that training started from.
        base_id: The same on the hub or on the disk; enters the front matter where it is a hub name.
        recipe: The settings as trained.
        facts: What the run measured: steps, tokens, last loss, device.
        scores: Numbers of every score cell that the checkpoint's rollouts led to.
        lineage: Address and fingerprint of the cell and of everything behind it.
        licences: Benchmark to the licence of its data.
        made_by: Program, version and commit.
    """

    name: str
    base: str
    base_id: str
    recipe: Mapping[str, Json]
    facts: Mapping[str, Json]
    scores: Sequence[CardScore] = ()
    lineage: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    made_by: str = ""


def model_card(model: CardModel) -> str:
    """README.md of a model repository."""
    parts = [
        _front_matter(model),
        f"# {model.name}",
        f"`{model.base}` ({model.base_id}), trained by mbt. The licence of the model that it came "
        "from holds for it too; name it before you publish.",
        _scores_section(model.scores),
        bullets("Recipe", {key: str(value) for key, value in model.recipe.items()}),
        bullets("The run", {key: _measured(value) for key, value in model.facts.items()}),
        bullets("Licences of the data's sources", model.licences),
        bullets("Lineage (address: fingerprint)", model.lineage),
        f"Made by {model.made_by}. The whole lineage is in `lineage.json`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _measured(value: Json) -> str:
    """A number to four digits at least, without zeros at the end of a fraction."""
    if not isinstance(value, float):
        return str(value)
    text = number_text(value, decimals=significant_decimals(value, _DIGITS))
    return text.rstrip("0").removesuffix(".") if "." in text else text


def _front_matter(model: CardModel) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if model.base_id.count("/") == 1 and not model.base_id.startswith(("/", ".", "~")):
        lines.append(f"base_model: {model.base_id}")
    return "\n".join([*lines, "---"])


def _scores_section(scores: Sequence[CardScore]) -> str:
    if not scores:
        return "No score of this checkpoint is there yet."
    lines = ["| scored in | metric | value | 95 % | n |", "|---|---|---:|---:|---:|"]
    for score in scores:
        head = shown(score.metric, score.unit)
        low, value, high = (
            number_text(v, unit=score.unit, decimals=head.decimals)
            for v in (score.low, score.value, score.high)
        )
        sign = " (%)" if score.unit == "percent" else ""
        lines.append(
            f"| {score.cell} | {head.title}{sign} | {value} | {low} to {high} | {score.n} |"
        )
    return "\n".join(lines)


HUB = "hub:"
_NOT_STATED = "local files, licence not stated"
_KINDS = ("rollout", "synthesize", "rewrite")


@dataclass(frozen=True)
class Part:
    """One cell of an export: where it is, and what it is called there."""

    folder: Path
    lineage: Lineage
    config: str
    split: str


def parts_of(folders: Sequence[Path]) -> list[Part]:
    """Finished cells as parts of one data set.

    Raises:
        UsageError: They are not the rows of one stage.
    """
    found = []
    for folder in folders:
        lineage = require_lineage(folder)
        if lineage.kind not in _KINDS:
            raise UsageError(
                f"`{folder}` is a {lineage.kind} cell; {', '.join(_KINDS)} cells can be exported, "
                "and one train cell at a time"
            )
        axes = axes_of(lineage.address)
        split = axes.pop("split", "train")
        found.append(Part(folder, lineage, "-".join(axes.values()) or "default", split))
    stages = sorted({part.lineage.stage for part in found})
    if len(stages) != 1:
        raise UsageError(f"one stage at a time, not {', '.join(stages)}", hint="name its folder")
    return found


def card_of(parts: Sequence[Part]) -> str:
    """The data set's README.md."""
    behind = [_behind(part) for part in parts]
    first = parts[0].lineage
    commit = f", commit {first.code.commit}" if first.code.commit else ""
    return data_card(
        f"{first.study}: {first.stage}",
        [_card_cell(part, below) for part, below in zip(parts, behind, strict=True)],
        licences={k: v for below in behind for k, v in licences_of(below).items()},
        columns=list(first.columns),
        made_by=f"mbt {first.code.version}{commit}",
    )


def export(parts: Sequence[Part], to: str, access: HubAccess, *, private: bool) -> str:
    """Write the data set; gives where it is now.

    Args:
        parts: From `parts_of`.
        to: `hub:ORG/NAME` or a folder that is not there yet, or empty.
        access: For the hub.
        private: Whether a new repository is seen by its owners alone.

    Raises:
        UsageError: The folder is not empty, or there is no token.
        MbtError: The disk or the hub refuses.
    """
    if not to.startswith(HUB):
        folder = new_folder(to)
        _write(parts, folder)
        return str(folder)
    with tempfile.TemporaryDirectory() as work:
        _write(parts, Path(work))
        return push_folder(Path(work), to.removeprefix(HUB), access, private=private)


def refused(to: str, access: HubAccess) -> str:
    """Why `export` could not write there now, and what to do; empty where it could."""
    try:
        if to.startswith(HUB):
            check_push(to.removeprefix(HUB), access)
        else:
            new_folder(to)
    except UsageError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""


def new_folder(to: str) -> Path:
    """A folder that is not there yet, or empty.

    Raises:
        UsageError: It is not empty, or a file.
    """
    folder = Path(to).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"`{to}` is not empty", hint="name a new folder")
    return folder


def _write(parts: Sequence[Part], folder: Path) -> None:
    (folder / "lineage").mkdir(parents=True, exist_ok=True)
    for part in parts:
        write_shards(part.folder, part.lineage, folder / part.config, part.split)
        told = part.lineage.model_dump(mode="json", exclude={"host"})
        name = f"{part.config}-{part.split}.json"
        write_atomically(folder / "lineage" / name, orjson.dumps(told, option=orjson.OPT_INDENT_2))
    write_atomically(folder / "README.md", card_of(parts).encode())


def _behind(part: Part) -> Upstream:
    study = part.folder.parents[part.lineage.address.count("/")]
    return upstream(study, [part.lineage.address])


def _card_cell(part: Part, behind: Upstream) -> CardCell:
    lineage = part.lineage
    spec = lineage.spec if isinstance(lineage.spec, dict) else {}
    return CardCell(
        config=part.config,
        split=part.split,
        kind=lineage.kind,
        rows=lineage.rows - lineage.failed_rows,
        failures=lineage.failures,
        models={
            f"{cell.stage} ({cell.kind})": _model_words(cell.model)
            for cell in behind.cells.values()
            if cell.model
        },
        templates={
            f"{name} of {part.config} {part.split}": sha256
            for name, sha256 in (spec.get("templates") or {}).items()
        },
        lineage={address: cell.fingerprint for address, cell in behind.cells.items()},
    )


def _model_words(model: Mapping[str, Json]) -> str:
    """A model by name, and by what it runs on: a scripted teacher is never shown as a model."""
    backend = model.get("backend") or {}
    kind = backend.get("kind")
    which = backend.get("model") or model.get("id") or ""
    is_rule = kind in ("scripted", "canned", "recorded")
    return f"{model.get('name')} ({'no model: ' if is_rule else ''}{kind} {which}".strip() + ")"


def licences_of(behind: Upstream) -> dict[str, str]:
    """Benchmark to the licence of its data, for everything behind some cells."""
    kinds = BENCHMARKS.kinds()
    found = {}
    for cell in behind.of_kind("questions"):
        spec = cell.spec if isinstance(cell.spec, dict) else {}
        kind = str((spec.get("benchmark") or {}).get("kind"))
        benchmark = kinds.get(kind)
        if benchmark is not None and benchmark.hub is not None:
            found[kind] = benchmark.hub.licence
        elif (spec.get("files") or {}).get("files"):
            found[kind] = _NOT_STATED
    return found


_CURVE = "loss.png"
_NOT_FACTS = ("curve", "versions")


def card_of_model(folder: Path) -> str:
    """The README.md of a train cell's checkpoint.

    Raises:
        UsageError: The cell holds no checkpoint.
    """
    lineage = require_lineage(folder)
    if not (folder / FILES / CHECKPOINT / "config.json").is_file():
        raise UsageError(f"`{folder}` holds no checkpoint")
    study = folder.parents[lineage.address.count("/")]
    behind = upstream(study, [lineage.address])
    commit = f", commit {lineage.code.commit}" if lineage.code.commit else ""
    spec = lineage.spec if isinstance(lineage.spec, dict) else {}
    model = (spec.get("models") or {}).get("model") or {}
    return model_card(
        CardModel(
            name=f"{lineage.study}: {lineage.address}",
            base=axes_of(lineage.address).get("model", "a model"),
            base_id=_base_id(model),
            recipe=_flat(_used(spec.get("recipe") or {})),
            facts=_facts(lineage),
            scores=list(_scores(study, lineage.address)),
            lineage={address: cell.fingerprint for address, cell in behind.cells.items()},
            licences=licences_of(behind),
            made_by=f"mbt {lineage.code.version}{commit}",
        )
    )


def export_model(folder: Path, to: str, access: HubAccess, *, private: bool) -> str:
    """Write the checkpoint with its card; gives where it is now.

    Args:
        folder: A finished train cell.
        to: `hub:ORG/NAME` or a folder that is not there yet, or empty.
        access: For the hub.
        private: Whether a new repository is seen by its owners alone.

    Raises:
        UsageError: The cell holds no checkpoint, the folder is not empty, or there is no token.
        MbtError: The disk or the hub refuses.
    """
    card = card_of_model(folder)
    if not to.startswith(HUB):
        target = new_folder(to)
        _write_model(folder, card, target)
        return str(target)
    with tempfile.TemporaryDirectory() as work:
        _write_model(folder, card, Path(work))
        return push_folder(Path(work), to.removeprefix(HUB), access, private=private, kind="model")


def _write_model(cell: Path, card: str, target: Path) -> None:
    files = cell / FILES
    with writing_to(target):
        # the GGUF beside it is mbt's own, for serving where training began from one
        left_out = shutil.ignore_patterns(TRAINED_GGUF)
        shutil.copytree(files / CHECKPOINT, target, dirs_exist_ok=True, ignore=left_out)
        if (files / _CURVE).is_file():
            shutil.copyfile(files / _CURVE, target / _CURVE)
    told = require_lineage(cell).model_dump(mode="json", exclude={"host"})
    write_atomically(target / LINEAGE, orjson.dumps(told, option=orjson.OPT_INDENT_2))
    write_atomically(target / "README.md", card.encode())


def _base_id(model: Mapping[str, Json]) -> str:
    backend = model.get("backend") or {}
    return str(backend.get("model") or model.get("id") or "unknown")


def _facts(lineage: Lineage) -> Mapping[str, Json]:
    told = lineage.notes.get(TRAINING) or {}
    return {k: v for k, v in told.items() if k not in _NOT_FACTS and v is not None}


def _used(recipe: Mapping[str, Json]) -> Mapping[str, Json]:
    """The settings without those that its method and its tuning do not read."""
    methods = TRAINERS.kinds()
    unused = {"lora"} if recipe.get("tuning") == "full" else set[str]()
    if method := methods.get(str(recipe.get("method"))):
        unused |= set(recipe) - set(Recipe.model_fields) - set(method.model_fields)
    return {name: value for name, value in recipe.items() if name not in unused}


def _flat(table: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        elif value not in (None, [], ""):
            found[f"{prefix}{key}"] = value
    return found


def _scores(study: Path, address: str) -> Iterator[CardScore]:
    """Numbers of the score cells whose own rollouts this checkpoint made."""
    for path in sorted(study.rglob(LINEAGE)):
        lineage = read_lineage(path.parent)
        if lineage is None or lineage.kind != "score":
            continue
        reads: Mapping[str, list[str]] = lineage.notes.get("reads") or {}
        own = [read_lineage(study / rollouts) for rollouts in reads.get("rollouts", ())]
        if any(cell is not None and address in cell.inputs for cell in own):
            summary = read_parquet_file(path.parent, "files/summary.parquet", lineage).collect()
            for row in summary.filter(summary["by"].is_null()).iter_rows(named=True):
                wanted = ("metric", "unit", "value", "low", "high", "n")
                yield CardScore(cell=lineage.address, **{name: row[name] for name in wanted})
