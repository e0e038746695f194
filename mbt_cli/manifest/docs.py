"""Which presets are there, as Markdown: each with the first sentence of its own comment."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mbt_cli.core.benchmark_files import BenchmarkFiles
from mbt_cli.core.column_maps import ColumnMap, SourcePreset
from mbt_cli.core.model import Grows, RunOnly
from mbt_cli.core.model_settings import RunSettings, Sampling
from mbt_cli.core.recipe import Recipe
from mbt_cli.interfaces import Plugin
from mbt_cli.manifest.field_docs import field_docs
from mbt_cli.manifest.presets import PresetFolders, shipped
from mbt_cli.manifest.schema import ModelTable, StageBlock, StudyTable
from mbt_cli.manifest.toml import read_toml, toml_value
from mbt_cli.plugins import Family
from mbt_cli.registry import (
    BACKENDS,
    BENCHMARKS,
    FIGURES,
    JUDGES,
    LAUNCHERS,
    SCORES,
    TABLES,
    TRAINERS,
)
from mbt_cli.stages.base import InputReference
from mbt_cli.stages.gates import Gates
from mbt_cli.stages.kinds import STAGES
from mbt_cli.verifiers.rewards import REWARDS

Words = Mapping[str, str]
"""Class name to the section of the reference that tells of it."""

_PLAIN = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "nothing",
}
_LIMITS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)
_NO_LIMIT = 1e15
"""Beyond it a limit is the computer's, not the user's."""
_MARKS = (
    (RunOnly, "never changes results"),
    (Grows, "a larger value only adds rows"),
)


def field_lines(
    model: type[BaseModel],
    *,
    elsewhere: Words,
    leave_out: Collection[str] = (),
    needed: Collection[str] = (),
) -> Iterator[str]:
    """One Markdown list item a field; fields of tables inside it follow as `outer.inner`.

    Args:
        model: The settings class.
        elsewhere: Classes that have a section of their own and are only named here.
        leave_out: Fields that are told elsewhere.
        needed: Fields that are required though the class gives them a default.
    """
    schema = model.model_json_schema()
    yield from _lines(model, schema, elsewhere, set(leave_out), set(needed), prefix="")


def _lines(
    model: type[BaseModel],
    schema: Mapping[str, Any],
    elsewhere: Words,
    leave_out: set[str],
    needed: set[str],
    *,
    prefix: str,
) -> Iterator[str]:
    docs = field_docs(model)
    types = schema["properties"]
    definitions = schema.get("$defs", {})
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        parts = [type_words(types[name], definitions, elsewhere), _default(field, name in needed)]
        parts += [words for mark, words in _MARKS if mark in field.metadata]
        doc = " ".join(docs.get(name, "").split())
        yield f"- `{prefix}{name}` ({'; '.join(p for p in parts if p)}): {doc}"
        inner = _table_inside(field)
        if inner is not None and inner.__name__ not in elsewhere:
            own = inner.model_json_schema()
            yield from _lines(inner, own, elsewhere, set(), set(), prefix=f"{prefix}{name}.")


def _table_inside(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class that a field holds, where it holds one."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def type_words(schema: Mapping[str, Any], definitions: Mapping[str, Any], elsewhere: Words) -> str:
    """What a JSON Schema allows, in the words of somebody who writes TOML.

    Example:
        >>> type_words({"type": "integer", "minimum": 1}, {}, {})
        'whole number, at least 1'
        >>> type_words({"anyOf": [{"type": "string"}, {"type": "null"}]}, {}, {})
        'text'
        >>> type_words({"type": "array", "items": {"enum": ["a", "b"]}}, {}, {})
        'list of `"a"` or `"b"`'
    """
    if "$ref" in schema:
        return _referred(schema["$ref"], definitions, elsewhere)
    if "discriminator" in schema:
        return "name, or table with `kind`"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        each = [type_words(c, definitions, elsewhere) for c in choices if c.get("type") != "null"]
        return _joined_words(each)
    if "const" in schema or "enum" in schema:
        return _joined_words(
            [f"`{toml_value(v)}`" for v in schema.get("enum", [schema.get("const")])]
        )
    return _of_type(schema, definitions, elsewhere)


def _of_type(schema: Mapping[str, Any], definitions: Mapping[str, Any], elsewhere: Words) -> str:
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_words(schema.get('items', {}), definitions, elsewhere)}"
    if kind == "object":
        values = schema.get("additionalProperties")
        if not isinstance(values, Mapping) or not values:
            return "table"
        return f"table of {type_words(values, definitions, elsewhere)}"
    limits = [
        f"{words} {schema[key]:g}"
        for key, words in _LIMITS
        if key in schema and schema[key] < _NO_LIMIT
    ]
    return ", ".join([_PLAIN.get(str(kind), "anything"), *limits])


def _referred(reference: str, definitions: Mapping[str, Any], elsewhere: Words) -> str:
    name = reference.rpartition("/")[2]
    if name in elsewhere:
        return f"table, see `{elsewhere[name]}`"
    meant = definitions[name]
    return "table" if "properties" in meant else type_words(meant, definitions, elsewhere)


def _joined_words(words: list[str]) -> str:
    """`a, b or c`, each once."""
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last


def _default(field: FieldInfo, is_needed: bool) -> str:
    if field.is_required() or is_needed:
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return "" if isinstance(value, BaseModel) else "may be left out"
    if value in ({}, [], ()):
        return "default empty"
    return f"default `{toml_value(value)}`"


_ELSEWHERE = {"InputReference": "input", "Gates": "gates"} | {
    table.__name__: f"presets.{kind}.{name}"
    for kind, launcher in LAUNCHERS.shipped.items()
    for name, table in launcher.tables.items()
}
_OF_EVERY_STAGE = ("kind", "name")
_NAMED_BY_KIND: Mapping[str, tuple[Family[Any], str, str]] = {
    "metrics": (SCORES, "what a `score` stage may list", "formulas: `mbt help metrics NAME`"),
    "tables": (TABLES, "what a `report` stage may list as tables", ""),
    "figures": (FIGURES, "what a `report` stage may list as figures", ""),
}


def manifest_reference() -> str:
    """Every table of a manifest and every field of it, in sections `## `NAME`: what it is`."""
    sections = [*_tables(), *_stages(), *_kinds_of_tables(), *_listed_by_name(), *_preset_files()]
    return "\n\n".join(sections)


def summary_of(cls: type[object]) -> str:
    """The first paragraph of a class's own docstring, on one line."""
    return " ".join((inspect.cleandoc(cls.__doc__ or "")).partition("\n\n")[0].split())


def _tables() -> Iterator[str]:
    yield _section("study", "`[study]`", StudyTable)
    yield _section("run", "`[run]`, and for one model `[models.NAME.run]`", RunSettings)
    yield (
        "## `groups`: `[groups]`\n\nA name to a list of names: `students = [...]` is written "
        '`"@students"` wherever an axis takes values.'
    )
    yield _section("sampling", "`[sampling.NAME]`, everything that draws a reply", Sampling)
    yield _section("models", "`[models.NAME]`", ModelTable)
    yield _section("benchmarks", "`[benchmarks.NAME]`, fields of every kind", BenchmarkFiles)
    yield (
        "## `judges`: `[judges.NAME]`\n\nA judge with settings of your own, by `kind`. One that "
        "needs none is named in `matrix = { judge = [KIND] }` without a table. Scores look for "
        "verdicts by NAME, so keep the kind's own name where a score is to read them."
    )


def _stages() -> Iterator[str]:
    block = _section("stage", "`[[stage]]`, fields of every kind", StageBlock, _OF_EVERY_STAGE)
    head, _, rest = block.partition("\n\n")
    kinds = ", ".join(f"`{kind}`" for kind in STAGES)
    own = (
        f"- `kind` (required): one of {kinds}; each has a section.\n"
        "- `name` (required): by which later stages read it; a folder of this name holds its cells."
    )
    yield f"{head}\n\n{own}\n{rest}"
    for kind, stage in STAGES.items():
        lines = field_lines(
            stage, elsewhere=_ELSEWHERE, leave_out=_OF_EVERY_STAGE, needed=stage.needed
        )
        axes = ", ".join(f"`{axis}`" for axis in stage.axes)
        told = f"Its cells have the axes {axes}." if axes else ""
        yield _joined(f"## `{kind}`: {stage.summary}", told, "\n".join(lines))
    yield _section(
        "input", "an input written as a table; a stage's name stands for `{ stage = NAME }`",
        InputReference,
    )  # fmt: skip
    lines = field_lines(ColumnMap, elsewhere=_ELSEWHERE)
    begin = "- `from` (text; required): `hub:ORG/NAME`, a file, a folder or a pattern with `*`."
    yield _joined("## `source`: `source` written as a table", "", "\n".join([begin, *lines]))
    yield _section("gates", "checks on a teacher's text", Gates)


def _kinds_of_tables() -> Iterator[str]:
    families: Mapping[str, tuple[Family[Any], str, Collection[str]]] = {
        "backends": (BACKENDS, "backend = {{ kind = \"{}\" }}", ()),
        "benchmarks": (BENCHMARKS, "kind = \"{}\"", BenchmarkFiles.model_fields),
        "judges": (JUDGES, "kind = \"{}\"", ()),
    }  # fmt: skip
    for name, (family, written, shared) in families.items():
        for kind, cls in family.kinds().items():
            head = f"## `{name}.{kind}`: `{written.format(kind)}`"
            lines = field_lines(cls, elsewhere=_ELSEWHERE, leave_out={"kind", *shared})
            own = "\n".join(lines) or "No fields of its own."
            yield _joined(head, summary_of(cls), own)


def _listed_by_name() -> Iterator[str]:
    for name, (family, what, more) in _NAMED_BY_KIND.items():
        lines = []
        for kind, cls in family.kinds().items():
            lines.append(f"- `{kind}`: {summary_of(cls)}")
            fields = field_lines(cls, elsewhere=_ELSEWHERE, leave_out={"kind"})
            lines.extend(f"    {field}" for field in fields)
        told = "A bare name, or a table such as `{ kind = NAME, ... }` with its settings"
        yield _joined(f"## `{name}`: {what}", f"{told}; {more}." if more else f"{told}.",
                      "\n".join(lines))  # fmt: skip


def _preset_files() -> Iterator[str]:
    yield (
        "## `presets.models`: files in `presets/models/`\n\nThe fields of `models` but `preset`; "
        "`[backend]`, `[serve]` and `[place]` are tables in them."
    )
    yield _section("presets.train", "files in `presets/train/`, and `recipe` of a stage", Recipe)
    for kind, cls in TRAINERS.kinds().items():
        lines = field_lines(cls, elsewhere=_ELSEWHERE, leave_out={"kind"})
        own = "\n".join(lines) or "No settings of its own."
        yield _joined(f'## `presets.train`: `method = "{kind}"`', summary_of(cls), own)
    rewards = ", ".join(f"`{name}`" for name in sorted(REWARDS))
    yield f"Rewards are {rewards}."
    yield _section("presets.sources", "files in `presets/sources/`", SourcePreset)
    for kind, launcher in LAUNCHERS.kinds().items():
        if launcher.has_presets:
            yield _section(f"presets.{kind}", f"files in `presets/{kind}/`", launcher, ("kind",))
        for name, table in launcher.tables.items():
            what = f"`[{name}]` in such a file. {summary_of(table)}"
            yield _section(f"presets.{kind}.{name}", what, table)


def _section(
    name: str, what: str, model: type[BaseModel], leave_out: Collection[str] = ()
) -> str:  # fmt: skip
    lines = field_lines(model, elsewhere=_ELSEWHERE, leave_out=leave_out)
    return _joined(f"## `{name}`: {what}", "", "\n".join(lines))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


_PART = re.compile(r"([A-Z][A-Za-z]*(?:,? [A-Za-z']+){0,11}): (.*)")
"""A line that opens a part of a docstring: `Formula: ...`, `Known holes: ...`."""


def metric_reference() -> str:
    """One section a score: what it is, formula, unit, columns, known holes, settings."""
    return "\n\n".join(_metric_section(kind, cls) for kind, cls in SCORES.kinds().items())


def _metric_section(kind: str, cls: type[Plugin]) -> str:
    parts = [f"- **{name}**: {text}" for name, text in docstring_parts(cls)]
    fields = list(field_lines(cls, elsewhere={}, leave_out={"kind"}))
    settings = ["- **Settings**:", *(f"    {line}" for line in fields)] if fields else []
    return "\n".join([f"## `{kind}`", "", summary_of(cls), "", *parts, *settings])


def docstring_parts(cls: type[object]) -> Iterator[tuple[str, str]]:
    """The named parts of a docstring behind its first paragraph, each on one line.

    Example:
        >>> from mbt_cli.scores.answer_rate import AnswerRate
        >>> [name for name, _ in docstring_parts(AnswerRate)]
        ['Formula', 'Unit', 'Reads', 'Failed rollout', 'Known holes']
    """
    name, words = "", list[str]()
    for line in inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[2].splitlines():
        if found := _PART.fullmatch(line):
            if name:
                yield name, " ".join(words)
            name, words = found[1], [found[2]]
        else:
            words.append(line)
    if name:
        yield name, " ".join(words)


FAMILIES: Mapping[str, str] = {
    "models": 'models, named by `preset = "NAME"` in `[models.X]`',
    "train": 'training methods, named by `preset = "NAME"` on a `train` stage',
    "accelerate": "processes of a training, named by `launch.accelerate`",
    "sources": "published data sets, named by `source = \"hub:ORG/NAME\"` on a stage",
} | {
    kind: f"{launcher.places}, named by `mbt submit --{kind} --preset NAME`"
    for kind, launcher in LAUNCHERS.shipped.items()
    if launcher.has_presets
}  # fmt: skip


def preset_reference(folders: PresetFolders) -> str:
    """One section a family, one line a preset; `yours` marks those that mbt does not ship."""
    sections = [
        f"Those that mbt ships are files in `{shipped('presets')}`: copy one to begin with."
    ]
    for family, what in FAMILIES.items():
        lines = [_line(family, name, folders) for name in folders.names(family)]
        sections.append("\n".join([f"## `{family}`: {what}", "", *lines]))
    return "\n\n".join(sections)


def _line(family: str, name: str, folders: PresetFolders) -> str:
    path = folders.find(family, name)
    assert path is not None
    is_ours = path.resolve().is_relative_to(shipped("presets").resolve())
    whose = "" if is_ours else f" (yours: {path})"
    sizes = ", ".join(_sizes(read_toml(path))) if family == "models" else ""
    return f"- `{name}`: {'; '.join(p for p in (_first_sentence(path), sizes) if p)}{whose}"


def _first_sentence(path: Path) -> str:
    r"""The first sentence of the comment that a file opens with, without its period."""
    found = re.match(r"(?:#[^\n]*\n)*", path.read_text(encoding="utf-8"))
    words = " ".join(line.lstrip("# ") for line in (found[0] if found else "").splitlines())
    return re.split(r"(?<=[^.])\.(?:\s|$)|:\s", words, maxsplit=1)[0].strip()


def _sizes(preset: Mapping[str, Any]) -> Iterator[str]:
    """How many GPUs it takes and how long its context is, where it says so."""
    if gpus := preset.get("place", {}).get("tensor_parallel_size"):
        yield f"{gpus} GPU{'s' if gpus > 1 else ''}"
    context = preset.get("serve", {}).get("max_model_len") or preset.get("backend", {}).get(
        "context"
    )
    if context:
        yield f"context {context:,}"
