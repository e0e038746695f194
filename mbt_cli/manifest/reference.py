"""The reference of manifests and presets as Markdown, made from the classes that check them."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from mbt_cli.core.benchmark_files import BenchmarkFiles
from mbt_cli.core.column_maps import ColumnMap, SourcePreset
from mbt_cli.core.gates import Gates
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.rewards import REWARDS
from mbt_cli.core.run_settings import RunSettings
from mbt_cli.core.sampling import Sampling
from mbt_cli.interfaces import Plugin
from mbt_cli.launchers.slurm import SlurmLauncher
from mbt_cli.launchers.slurm_request import Request
from mbt_cli.manifest.document import ModelTable, StageBlock, StudyTable
from mbt_cli.manifest.field_words import field_lines
from mbt_cli.registry import (
    AnyBackend,
    AnyBenchmark,
    AnyFigure,
    AnyJudge,
    AnyScore,
    AnyTable,
)
from mbt_cli.stages.base import InputReference
from mbt_cli.stages.kinds import STAGES

_ELSEWHERE = {"InputReference": "input", "Gates": "gates", "Request": "presets.slurm.job"}
_OF_EVERY_STAGE = ("kind", "name")
_NAMED_BY_KIND = {
    "metrics": (AnyScore, "what a `score` stage may list", "formulas: `mbt help metrics NAME`"),
    "tables": (AnyTable, "what a `report` stage may list as tables", ""),
    "figures": (AnyFigure, "what a `report` stage may list as figures", ""),
}


def manifest_reference() -> str:
    """Every table of a manifest and every field of it, in sections `## `NAME`: what it is`."""
    sections = [*_tables(), *_stages(), *_kinds_of_tables(), *_listed_by_name(), *_preset_files()]
    return "\n\n".join(sections)


def plugin_classes(union: Any) -> Mapping[str, type[Plugin]]:
    """`kind` to class of a union in the registry, by name."""
    members = get_args(get_args(union)[0])
    return {m.model_fields["kind"].default: m for m in sorted(members, key=_kind_of)}


def summary_of(cls: type[object]) -> str:
    """The first paragraph of a class's own docstring, on one line."""
    return " ".join((inspect.cleandoc(cls.__doc__ or "")).partition("\n\n")[0].split())


def _kind_of(cls: type[Plugin]) -> str:
    return str(cls.model_fields["kind"].default)


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
    families: Mapping[str, tuple[Any, str, Collection[str]]] = {
        "backends": (AnyBackend, "backend = {{ kind = \"{}\" }}", ()),
        "benchmarks": (AnyBenchmark, "kind = \"{}\"", BenchmarkFiles.model_fields),
        "judges": (AnyJudge, "kind = \"{}\"", ()),
    }  # fmt: skip
    for family, (union, written, shared) in families.items():
        for kind, cls in plugin_classes(union).items():
            head = f"## `{family}.{kind}`: `{written.format(kind)}`"
            lines = field_lines(cls, elsewhere=_ELSEWHERE, leave_out={"kind", *shared})
            own = "\n".join(lines) or "No fields of its own."
            yield _joined(head, summary_of(cls), own)


def _listed_by_name() -> Iterator[str]:
    for family, (union, what, more) in _NAMED_BY_KIND.items():
        lines = []
        for kind, cls in plugin_classes(union).items():
            lines.append(f"- `{kind}`: {summary_of(cls)}")
            fields = field_lines(cls, elsewhere=_ELSEWHERE, leave_out={"kind"})
            lines.extend(f"    {field}" for field in fields)
        told = "A bare name, or a table such as `{ kind = NAME, ... }` with its settings"
        yield _joined(f"## `{family}`: {what}", f"{told}; {more}." if more else f"{told}.",
                      "\n".join(lines))  # fmt: skip


def _preset_files() -> Iterator[str]:
    yield (
        "## `presets.models`: files in `presets/models/`\n\nThe fields of `models` but `preset`; "
        "`[backend]`, `[serve]` and `[place]` are tables in them."
    )
    rewards = ", ".join(f"`{name}`" for name in sorted(REWARDS))
    train = _section("presets.train", "files in `presets/train/`, and `recipe` of a stage", Recipe)
    yield f"{train}\n\nRewards are {rewards}."
    yield _section("presets.sources", "files in `presets/sources/`", SourcePreset)
    yield _section("presets.slurm", "files in `presets/slurm/`", SlurmLauncher, ("kind",))
    what = "`[job]`, `[gpu_job]` and `[small_job]` of such a file; `[job]` is laid under both"
    yield _section("presets.slurm.job", what, Request)


def _section(
    name: str, what: str, model: type[BaseModel], leave_out: Collection[str] = ()
) -> str:  # fmt: skip
    lines = field_lines(model, elsewhere=_ELSEWHERE, leave_out=leave_out)
    return _joined(f"## `{name}`: {what}", "", "\n".join(lines))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
