"""Export: a stage or report as a data set, a training as a model repository, with their cards.

Scores can also be exported as JSON lines, and as orders of their questions.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.lineage_notes import TRAINING
from mbt_cli.core.number_text import ABSENT, number_text, significant_decimals
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import CHECKPOINT, HOSTED, TRAINED_GGUF
from mbt_cli.engine.export_jsonl import LAYOUT, ScoredCell, scored_cells, write_results
from mbt_cli.engine.export_report import SUMMARY, configs, read_report, tables_text, write_report
from mbt_cli.errors import StageError, UsageError
from mbt_cli.registry import BACKENDS, BENCHMARKS, TRAINERS
from mbt_cli.report.metrics import display_of
from mbt_cli.stages.base import COMMON_AXES
from mbt_cli.stages.contamination import repeated_completions, shared_questions
from mbt_cli.stages.curriculum import Direction, in_order, pass_rates
from mbt_cli.stages.kinds import STAGES
from mbt_cli.store.cells import FILES
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.hub import HubAccess, check_push, check_repository, push_folder
from mbt_cli.store.lineage import LINEAGE, Lineage, read_lineage
from mbt_cli.store.parquet import ParquetStream
from mbt_cli.store.reading import Upstream, read_parquet_file, read_rows, require_lineage, upstream

HUB = "hub:"
SHARD_ROWS = 100_000

_SUMMARIES = {
    "rollout": "Answers of a model to the questions of a benchmark, with its reasoning.",
    "synthesize": "Texts that a teacher wrote from a question and its answer.",
    "rewrite": "Reasoning traces of a model, rewritten by a teacher.",
}
"""Kinds of stages whose rows can be exported, each with a sentence for the card."""
_COUNTS = ("samples", "traces_per_question", "traces_per_rollout")
"""Fields of stages that say how many rows of a question there are."""
_NO_LICENCE = "local files, licence not stated"
_ROWS_AT_ONCE = 2_000
_SHOWN_HASH = 16
_DIGITS = 4
_CURVE = "loss.png"
_PARTIAL = ".partial"
"""Folder of an export while it is written; its content moves up at the end."""
_NOT_FACTS = ("curve", "versions")


@dataclass(frozen=True)
class Export:
    """A repository that can be written.

    Args:
        type: Type of the repository on the hub.
        card: Its README.md.
        write: Writes everything else into an empty folder.
    """

    type: Literal["dataset", "model"]
    card: str
    write: Callable[[Path], None]


def export_of(cells: Sequence[Path]) -> Export:
    """Cells of one stage or a report as a data set, or a train cell as a model repository.

    Raises:
        UsageError: The cells cannot be exported together, or the train cell has no checkpoint.
    """
    if len(cells) == 1:
        kind = require_lineage(cells[0]).kind
        if kind == "train":
            return _model(cells[0])
        if kind == "report":
            return _report(cells[0])
    return _data_set(cells)


def jsonl_of(below: Path, cells: Sequence[Path]) -> Export:
    """The score cells among some cells as JSON lines: completions, results and numbers.

    Args:
        below: The folder that the user named.
        cells: The finished cells at or below it.

    Raises:
        UsageError: There is no score cell.
        MissingInputError: Something that a score read is gone, or changed after it was read.
    """
    scored = scored_cells(below, cells)

    def write(folder: Path) -> None:
        for cell in scored:
            write_results(cell, folder)
            _write_lineage(cell.score, folder / cell.place / LINEAGE)

    return Export("dataset", _jsonl_card(scored), write)


@dataclass(frozen=True)
class _Order:
    """The questions of a benchmark's split in order of their values."""

    name: str
    lineage: Lineage
    behind: Upstream
    questions: pl.DataFrame
    left_out: int


def order_of(cells: Sequence[Path], direction: Direction, metric: str | None) -> Export:
    """The questions of score cells in order of a metric: files that a `mixture` reads.

    Args:
        cells: Finished cells of a score stage, one for each benchmark and split.
        direction: Whether the highest values come first, or the lowest.
        metric: The metric; None for the first of `RIGHT` that a cell has.

    Raises:
        UsageError: A cell is not a score cell, or two are about the same questions.
        StageError: A cell does not have the metric.
    """
    found: dict[str, _Order] = {}
    for folder in cells:
        lineage = require_lineage(folder)
        if lineage.kind != "score":
            raise UsageError(
                f"`{folder}` is a {lineage.kind} cell; an order is made of score cells",
                hint="name the folder of a score stage: runs/STUDY/SCORES",
            )
        axes = axes_of(lineage.address)
        name = f"{axes['benchmark']}-{axes['split']}"
        if name in found:
            raise UsageError(
                f"`{found[name].lineage.address}` and `{lineage.address}` are about the same "
                "questions, and an order is made of one",
                hint="name the folder of one cell",
            )
        try:
            rates = pass_rates(read_rows(folder, lineage), metric, lineage.address)
        except StageError as error:  # the metric is an argument here
            raise UsageError(error.message, hint=error.hint) from error
        order = in_order(rates, direction)
        behind = upstream(_study_of(folder, lineage), [lineage.address])
        found[name] = _Order(name, lineage, behind, order, rates.height - order.height)

    def write(folder: Path) -> None:
        for one in found.values():
            text = "".join(f"{name}\n" for name in one.questions["question_id"])
            write_atomically(folder / f"{one.name}.txt", text.encode())
            one.questions.write_parquet(folder / f"{one.name}.parquet")
            _write_lineage(one.lineage, folder / "lineage" / f"{one.name}.json")

    return Export("dataset", _order_card(list(found.values()), direction), write)


def _order_card(orders: Sequence[_Order], direction: Direction) -> str:
    from huggingface_hub import DatasetCardData

    configs = [{"config_name": one.name, "data_files": f"{one.name}.parquet"} for one in orders]
    table = [
        "| file | by | questions | without a value | mean | always 0 | always 1 |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    models, licences, lineage = dict[str, str](), dict[str, str](), dict[str, str]()
    for one in orders:
        values = one.questions["value"]
        mean = number_text(sum(values) / max(1, len(values)), decimals=_DIGITS - 1)
        ends = f"{(values == 0).sum()} | {(values == 1).sum()}"
        metric = next(iter(one.questions["metric"]), "-")
        table.append(
            f"| {one.name}.txt | {metric} | {len(values)} | {one.left_out} | {mean} | {ends} |"
        )
        lineage |= {address: cell.fingerprint for address, cell in one.behind.cells.items()}
        licences |= _licences(one.behind)
        models |= {
            f"{cell.address} ({cell.kind})": _model_words(cell.model)
            for cell in one.behind.cells.values()
            if cell.model
        }
    first = orders[0]
    how = "the highest value first" if direction == "easy_first" else "the lowest value first"
    part = f'{{ benchmark = "{axes_of(first.lineage.address)["benchmark"]}", '
    part += f'order = "FOLDER/{first.name}.txt" }}'
    return _card(
        DatasetCardData(license="other", configs=configs).to_yaml(),
        f"# {first.lineage.study}: questions in order",
        f"Ids of questions, one a line, {how}; beside each file a table with the values. The value "
        "of a question is the mean over its samples; equal ones are in a fixed, random order.",
        "\n".join(table),
        f"In a train stage:\n\n```toml\nmixture = [{part}]\n```",
        _section("Models", models),
        _section("Licences of the sources", licences or {"sources": "none: generated by rules"}),
        _section("Lineage (address: fingerprint)", lineage),
        f"Made by {_made_by(first.lineage)}. The lineage of each file is in `lineage/`.",
    )


def _jsonl_card(scored: Sequence[ScoredCell]) -> str:
    from huggingface_hub import DatasetCardData

    configs = [
        {"config_name": Path(name).stem, "data_files": f"**/{name}"}
        for name in LAYOUT
        if name.endswith(".jsonl")
    ]
    table = ["| folder | model | completions | failed | numbers |", "|---|---|---:|---:|---|"]
    lineage, models, licences = dict[str, str](), dict[str, str](), dict[str, str]()
    for cell in scored:
        behind = upstream(cell.study, [cell.score.address])
        lineage |= {address: below.fingerprint for address, below in behind.cells.items()}
        licences |= _licences(behind)
        models |= {
            f"{below.address} ({below.kind})": _model_words(below.model)
            for below in behind.cells.values()
            if below.model
        }
        model = axes_of(cell.rollouts.address).get("model", "")
        counts = f"{cell.rollouts.rows} | {cell.failed}"
        table.append(f"| {cell.place} | {model} | {counts} | {_numbers(cell)} |")
    first = scored[0].score
    return _card(
        DatasetCardData(license="other", configs=configs).to_yaml(),
        f"# {first.study}: completions and scores",
        "A folder for each score cell, with its lineage and these files of UTF-8:",
        "\n".join(f"- `{name}`: {content}" for name, content in LAYOUT.items()),
        "\n".join(table),
        _section("Models", models),
        _section("Licences of the sources", licences or {"sources": "none: generated by rules"}),
        _section("Lineage (address: fingerprint)", lineage),
        f"Made by {_made_by(first)}.",
    )


def _numbers(cell: ScoredCell) -> str:
    """Every metric of a cell in one line, as tables show it."""
    shown = []
    for row in cell.summary().filter(pl.col("by").is_null()).iter_rows(named=True):
        value = number_text(
            row["value"], unit=row["unit"], decimals=display_of(row["metric"], row["unit"]).decimals
        )
        shown.append(f"{row['metric']} {value}{' %' if row['unit'] == 'percent' else ''}")
    return ", ".join(shown)


def publish(export: Export, to: str, access: HubAccess, *, private: bool) -> str:
    """Write an export; returns its location.

    Args:
        export: From `export_of`.
        to: `hub:ORG/NAME`, or a folder that is new or empty.
        access: For the hub.
        private: Whether a new repository is private.

    Raises:
        UsageError: The folder is not empty, or there is no token.
        MbtError: The disk or the hub refuses.
    """

    def write(folder: Path) -> None:
        export.write(folder)
        write_atomically(folder / "README.md", export.card.encode())

    if not to.startswith(HUB):
        folder = _new_folder(to)
        partial = folder / _PARTIAL
        with writing_to(folder):
            _remove(partial)
            partial.mkdir(parents=True)
            write(partial)
            for path in partial.iterdir():
                _remove(folder / path.name)
                path.rename(folder / path.name)
            partial.rmdir()
        return str(folder)
    with tempfile.TemporaryDirectory() as work:
        write(Path(work))
        repo = to.removeprefix(HUB)
        return push_folder(Path(work), repo, access, private=private, kind=export.type)


def refusal(to: str, access: HubAccess) -> str:
    """Why `publish` cannot write there, with a hint; empty if it can."""
    try:
        if to.startswith(HUB):
            check_push(to.removeprefix(HUB), access)
        else:
            _new_folder(to)
    except UsageError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""


def check_place(to: str, *, public: bool) -> None:
    """Refuse what is neither a repository nor a folder, before anything is read.

    Raises:
        UsageError: It is not, or it is a folder that should become public.
    """
    if to.startswith(HUB):
        check_repository(to.removeprefix(HUB))
        return
    if re.match(r"\w+:", to):
        raise UsageError(
            f"`{to}` is not a place for an export", hint="--to hub:OWNER/NAME, or a folder"
        )
    if public:
        raise UsageError(
            "`--public` is for a new repository, and this export goes to a folder",
            hint="leave it out, or --to hub:OWNER/NAME",
        )


def _new_folder(to: str) -> Path:
    """The folder that an export goes to; one that a crash left unfinished is written again."""
    check_place(to, public=False)
    folder = Path(to).expanduser()
    if folder.is_file():
        raise UsageError(f"`{to}` is a file", hint="name a new folder")
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_empty and not (folder / _PARTIAL).is_dir():
        raise UsageError(f"`{to}` is not empty", hint="name a new folder")
    return folder


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Part:
    """One cell of a data set, with its configuration and split on the hub."""

    folder: Path
    lineage: Lineage
    behind: Upstream
    config: str
    split: str


def _data_set(cells: Sequence[Path]) -> Export:
    parts = []
    for folder in cells:
        lineage = require_lineage(folder)
        if lineage.kind not in _SUMMARIES:
            raise UsageError(
                f"`{folder}` is a {lineage.kind} cell; {', '.join(_SUMMARIES)} cells can be "
                "exported, and a single train or report cell",
                hint="name the folder of one such stage: runs/STUDY/STAGE",
            )
        axes = axes_of(lineage.address)
        split = axes.pop("split", "train")
        behind = upstream(_study_of(folder, lineage), [lineage.address])
        parts.append(_Part(folder, lineage, behind, "-".join(axes.values()) or "default", split))
    stages = sorted({part.lineage.stage for part in parts})
    if len(stages) != 1:
        raise UsageError(
            f"only one stage can be exported at a time, not {', '.join(stages)}",
            hint="name the folder of a stage",
        )
    return Export("dataset", _data_card(parts), lambda folder: _write_data_set(parts, folder))


def _write_data_set(parts: Sequence[_Part], folder: Path) -> None:
    for part in parts:
        _write_shards(part, folder / part.config)
        _write_lineage(part.lineage, folder / "lineage" / f"{part.config}-{part.split}.json")


def _write_shards(part: _Part, into: Path) -> None:
    """Write the rows that did not fail as `SPLIT-00000-of-0000N.parquet` files."""
    rows = read_rows(part.folder, part.lineage)
    schema = rows.collect_schema()
    with writing_to(into):
        into.mkdir(parents=True, exist_ok=True)
    shards: list[Path] = []
    stream: ParquetStream | None = None
    written = 0
    for start in range(0, part.lineage.rows, _ROWS_AT_ONCE):
        batch = rows.slice(start, _ROWS_AT_ONCE).collect().filter(pl.col("failure").is_null())
        if stream is None:
            shards.append(into / f"{part.split}-{len(shards):05d}.partial")
            stream, written = ParquetStream(shards[-1], schema, {"mbt": part.lineage.address}), 0
        stream.append(batch)
        written += batch.height
        if written >= SHARD_ROWS:
            stream.finish()
            stream = None
    if stream is not None:
        stream.finish()
    for number, shard in enumerate(shards):
        shard.replace(into / f"{part.split}-{number:05d}-of-{len(shards):05d}.parquet")


def _data_card(parts: Sequence[_Part]) -> str:
    from huggingface_hub import DatasetCardData

    first = parts[0].lineage
    licences = {k: v for part in parts for k, v in _licences(part.behind).items()}
    known = sorted(set(licences.values()))
    data = DatasetCardData(
        # several licences have no common identifier, words are none: `other` refers to the text
        license=known[0] if len(known) == 1 and " " not in known[0] else "other",
        configs=[
            {
                "config_name": config,
                "data_files": [
                    {"split": part.split, "path": f"{config}/{part.split}-*.parquet"}
                    for part in parts
                    if part.config == config
                ],
            }
            for config in dict.fromkeys(part.config for part in parts)
        ],
    )
    table = ["| configuration | split | rows | left out |", "|---|---|---:|---:|"]
    models, templates, failures, lineage = dict[str, str](), {}, dict[str, int](), {}
    for part in parts:
        cell = part.lineage
        good, failed = cell.rows - cell.failed_rows, sum(cell.failures.values())
        table.append(f"| {part.config} | {part.split} | {good} | {failed} |")
        for name, sha256 in (_spec_of(cell).get("templates") or {}).items():
            templates[f"{name} of {part.config} {part.split}"] = sha256
        for reason, count in cell.failures.items():
            failures[reason] = failures.get(reason, 0) + count
        for address, below in part.behind.cells.items():
            lineage[address] = below.fingerprint
            if below.model:
                words = _model_words(below.model)
                asked = models.setdefault(f"{below.stage} ({below.kind})", words)
                if words not in asked.split("; "):
                    models[f"{below.stage} ({below.kind})"] = f"{asked}; {words}"
    return _card(
        data.to_yaml(),
        f"# {first.study}: {first.stage}",
        _SUMMARIES[first.kind],
        "\n".join(table),
        _section("Models", models),
        _section("Prompt templates (sha256)", templates),
        _section("Licences of the sources", licences or {"sources": "none: generated by rules"}),
        _contamination(parts),
        _section("Rows left out, by reason", {k: str(n) for k, n in sorted(failures.items())}),
        _reading(parts),
        _section("Lineage (address: fingerprint)", lineage),
        f"Made by {_made_by(first)}. The lineage of each part is in `lineage/`.",
    )


def _reading(parts: Sequence[_Part]) -> str:
    """The stage of a manifest that reads the data set, with what else the manifest needs."""
    first = parts[0].lineage
    kind = STAGES[first.kind]
    cells = [axes_of(part.lineage.address) for part in parts]
    is_input = any(rule.leading for rule in kind.inputs.values()) and first.kind != "rollout"
    # axes that a stage of this kind can set itself; the others come from what it reads
    own = [axis for axis in cells[0] if axis in {*COMMON_AXES, *kind.axes, *kind.model_fields}]
    is_whole = not is_input and len(own) == len(cells[0])
    chosen = cells if is_whole else cells[:1]
    values = {axis: list(dict.fromkeys(axes[axis] for axes in chosen)) for axis in own}
    lines = ["[[stage]]", f'kind = "{first.kind}"', f'name = "{first.stage}"']
    if is_input:
        lines.append('rollouts = "..."  # a rollout stage of the manifest')
    else:
        matrix = ", ".join(f"{axis} = {orjson.dumps(v).decode()}" for axis, v in values.items())
        lines.append(f"matrix = {{ {matrix} }}")
    spec = _spec_of(first)
    for name in ("make", *_COUNTS):
        if name in spec and spec[name] != kind.model_fields[name].default:
            lines.append(f"{name} = {orjson.dumps(spec[name]).decode()}")
    config = "-".join(f"{{{axis}}}" for axis in cells[0] if axis != "split")
    columns = ", ".join(f'{name} = "{name}"' for name in first.columns)
    lines += [
        "",
        "[stage.source]",
        'from = "hub:ORG/NAME"',
        f'config = "{config if is_whole or is_input else parts[0].config}"',
        f"columns = {{ {columns} }}",
    ]
    named = [f"`[{axis}s.{v}]`" for axis in ("benchmark", "model") for v in values.get(axis, ())]
    beside = f"With {', '.join(named)} in the manifest:\n\n" if named and not is_input else ""
    text = "\n".join(lines)
    return f"## Reading it in a study\n\n{beside}```toml\n{text}\n```"


def _contamination(parts: Sequence[_Part]) -> str:
    """Questions that stand in other finished splits of the study, and completions that repeat."""
    trained, others = dict[str, Path](), dict[str, Path]()
    repeated = []
    for part in parts:
        study = _study_of(part.folder, part.lineage)
        own = [a for a, cell in part.behind.cells.items() if cell.kind == "questions"]
        trained |= {address: study / address for address in own}
        if found := repeated_completions(part.lineage.address, part.folder):
            repeated.append(str(found))
        for path in study.glob("questions/**/" + LINEAGE):
            cell = read_lineage(path.parent)
            if cell is not None and cell.kind == "questions":
                others[cell.address] = path.parent
    shared = shared_questions(trained, {a: others[a] for a in sorted(others) if a not in trained})
    lines = [str(one).removeprefix("contamination: ") for one in (*shared, *repeated)]
    found_none = "none found: no question stands in another finished split of the study, and no "
    found_none += "completion under two questions"
    return "\n".join(["## Contamination", "", *(f"- {line}" for line in lines or [found_none])])


def _model_words(model: Mapping[str, Json]) -> str:
    """A model with its backend; rule-based replies are never presented as those of a model."""
    backend = model.get("backend") or {}
    kind = backend.get("kind")
    which = backend.get("model") or model.get("id") or ""
    found = BACKENDS.find(str(kind))
    has_model = found is None or found.has_model
    return f"{model.get('name')} ({'' if has_model else 'no model: '}{kind} {which}".strip() + ")"


def _report(folder: Path) -> Export:
    from huggingface_hub import DatasetCardData

    report = read_report(folder)
    lineage = report.lineage
    data = DatasetCardData(license="other", configs=configs(report))
    behind = upstream(_study_of(folder, lineage), [lineage.address])
    models = {
        f"{cell.address} ({cell.kind})": _model_words(cell.model)
        for cell in behind.cells.values()
        if cell.model
    }

    def write(target: Path) -> None:
        write_report(report, target)
        _write_lineage(lineage, target / LINEAGE)

    card = _card(
        data.to_yaml(),
        f"# {lineage.study}: {lineage.address}",
        "Results of a study: each table as Parquet, CSV, Markdown, LaTeX and HTML in `tables/`, "
        f"every number with its interval in `{SUMMARY}`, figures, and the page "
        "(`page/index.html`), which has questions and replies.",
        tables_text(report),
        _section("Models", models),
        _section("Licences of the sources", _licences(behind)),
        _section(
            "Lineage (address: fingerprint)",
            {address: cell.fingerprint for address, cell in behind.cells.items()},
        ),
        f"Made by {_made_by(lineage)}. The lineage of the report is in `{LINEAGE}`.",
    )
    return Export("dataset", card, write)


def _model(folder: Path) -> Export:
    from huggingface_hub import ModelCardData

    lineage = require_lineage(folder)
    if (folder / FILES / CHECKPOINT / HOSTED).is_file():
        raise UsageError(
            f"`{folder}` is a model at its provider, which gives no weights to export",
            hint="its data can be exported: name the folder of the stage that it was trained on",
        )
    if not (folder / FILES / CHECKPOINT / "config.json").is_file():
        raise UsageError(f"`{folder}` holds no checkpoint")
    study = _study_of(folder, lineage)
    behind = upstream(study, [lineage.address])
    model = (_spec_of(lineage).get("models") or {}).get("model") or {}
    backend = model.get("backend") or {}
    base_id = str(backend.get("model") or model.get("id") or "unknown")
    is_on_hub = base_id.count("/") == 1 and not base_id.startswith(("/", ".", "~"))
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base_id if is_on_hub else None,
    )
    facts = lineage.notes.get(TRAINING) or {}
    base = axes_of(lineage.address).get("model", "a model")
    card = _card(
        data.to_yaml(),
        f"# {lineage.study}: {lineage.address}",
        f"`{base}` ({base_id}), trained by mbt. The licence of the base model applies to it too; "
        "name it before you publish.",
        _score_table(study, lineage.address),
        _section("Recipe", dict(_flat(_used_settings(_spec_of(lineage).get("recipe") or {})))),
        _section(
            "The run",
            {k: _measured(v) for k, v in facts.items() if k not in _NOT_FACTS and v is not None},
        ),
        _section("Licences of the data's sources", _licences(behind)),
        _section(
            "Lineage (address: fingerprint)",
            {address: cell.fingerprint for address, cell in behind.cells.items()},
        ),
        f"Made by {_made_by(lineage)}. The whole lineage is in `lineage.json`.",
    )
    return Export("model", card, lambda target: _write_model(folder, lineage, target))


def _write_model(cell: Path, lineage: Lineage, target: Path) -> None:
    files = cell / FILES
    with writing_to(target):
        # the GGUF file is for serving by mbt
        without_gguf = shutil.ignore_patterns(TRAINED_GGUF)
        shutil.copytree(files / CHECKPOINT, target, dirs_exist_ok=True, ignore=without_gguf)
        if (files / _CURVE).is_file():
            shutil.copyfile(files / _CURVE, target / _CURVE)
    _write_lineage(lineage, target / LINEAGE)


def _score_table(study: Path, address: str) -> str:
    """The numbers of every score cell whose rollouts this checkpoint made."""
    lines = ["| scored in | metric | value | 95 % | n |", "|---|---|---:|---:|---:|"]
    for path in sorted(study.rglob(LINEAGE)):
        lineage = read_lineage(path.parent)
        if lineage is None or lineage.kind not in ("score", "harness"):
            continue
        reads: Mapping[str, list[str]] = lineage.notes.get("reads") or {}
        rollouts = [read_lineage(study / cell) for cell in reads.get("rollouts", ())]
        is_own = lineage.kind == "harness" and address in lineage.inputs
        if not is_own and not any(c is not None and address in c.inputs for c in rollouts):
            continue
        summary = read_parquet_file(path.parent, "files/summary.parquet", lineage).collect()
        for row in summary.filter(summary["by"].is_null()).iter_rows(named=True):
            head = display_of(row["metric"], row["unit"])
            low, value, high = (
                number_text(row[name], unit=row["unit"], decimals=head.decimals)
                for name in ("low", "value", "high")
            )
            sign = " (%)" if row["unit"] == "percent" else ""
            lines.append(
                f"| {lineage.address} | {head.title}{sign} | {value} | {low} to {high} "
                f"| {ABSENT if row['n'] is None else row['n']} |"
            )
    return "\n".join(lines) if len(lines) > 2 else "This checkpoint has no scores yet."


def _used_settings(recipe: Mapping[str, Json]) -> Mapping[str, Json]:
    """The recipe without settings that its method and its tuning do not use."""
    unused = {"lora"} if recipe.get("tuning") == "full" else set[str]()
    if method := TRAINERS.kinds().get(str(recipe.get("method"))):
        unused |= set(recipe) - set(Recipe.model_fields) - set(method.model_fields)
    return {name: value for name, value in recipe.items() if name not in unused}


def _flat(table: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value not in (None, [], ""):
            yield f"{prefix}{key}", str(value)


def _measured(value: Json) -> str:
    """A fraction with four significant digits, without trailing zeros; integers whole.

    Example:
        >>> [_measured(n) for n in (145128.0, 0.09990610927343369, 48211.37, 0.4, "cpu")]
        ['145128', '0.09991', '48211', '0.4', 'cpu']
    """
    if not isinstance(value, float):
        return str(value)
    text = number_text(value, decimals=significant_decimals(value, _DIGITS))
    return text.rstrip("0").removesuffix(".") if "." in text else text


def _card(front_matter: str, *parts: str) -> str:
    return "\n\n".join([f"---\n{front_matter.strip()}\n---", *(p for p in parts if p)]) + "\n"


def _section(title: str, items: Mapping[str, str]) -> str:
    """A list under a heading, hashes shortened; empty without items."""
    if not items:
        return ""
    lines = [f"- {key}: {_short(value)}" for key, value in items.items()]
    return "\n".join([f"## {title}", "", *lines])


def _short(value: str) -> str:
    is_hash = len(value) == 64 and all(c in "0123456789abcdef" for c in value)
    return value[:_SHOWN_HASH] if is_hash else value


def _licences(behind: Upstream) -> dict[str, str]:
    """Benchmark to the licence of its data, for every benchmark behind some cells."""
    found = {}
    for cell in behind.of_kind("questions"):
        spec = _spec_of(cell)
        kind = str((spec.get("benchmark") or {}).get("kind"))
        benchmark = BENCHMARKS.kinds().get(kind)
        if benchmark is not None and benchmark.hub is not None:
            found[kind] = benchmark.hub.licence
        elif (spec.get("files") or {}).get("files"):
            found[kind] = _NO_LICENCE
    return found


def _spec_of(lineage: Lineage) -> Mapping[str, Json]:
    return lineage.spec if isinstance(lineage.spec, dict) else {}


def _study_of(folder: Path, lineage: Lineage) -> Path:
    return folder.parents[lineage.address.count("/")]


def _made_by(lineage: Lineage) -> str:
    commit = f", commit {lineage.code.commit}" if lineage.code.commit else ""
    return f"mbt {lineage.code.version}{commit}"


def _write_lineage(lineage: Lineage, path: Path) -> None:
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    content = lineage.model_dump(mode="json", exclude={"host"})
    write_atomically(path, orjson.dumps(content, option=orjson.OPT_INDENT_2))
