"""The top level of a manifest as typed tables; what stands inside a stage is checked per cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from mbt_cli.core.model import Settings
from mbt_cli.core.model_settings import RunSettings, Sampling
from mbt_cli.interfaces import Benchmark, Judge
from mbt_cli.registry import AnyBenchmark, AnyJudge
from mbt_cli.stages.base import AxisValues, SamplingChoice

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


_FILLED_IN = {
    "model": "say `id`",
    "messages": "say `prompt` in the stage",
    "seed": "say `seed` in [study]",
    "n": "say `samples` in the stage: each sample is a request with a seed of its own",
    "stream": "replies are read whole",
    "max_tokens": "say `max_tokens` in [sampling.NAME]",
    "max_completion_tokens": "say `max_tokens` in [sampling.NAME]",
}


class StudyTable(Settings):
    """`[study]`."""

    name: Name
    """Folder below the runs folder."""
    seed: int = Field(ge=0, lt=2**63)
    """Every seed of the study is derived from it."""
    max_failed_share: float = Field(ge=0, le=1)
    """A stage fails when more than this share of its rows failed; never in a fingerprint."""
    mbt: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    """Oldest version of mbt that reads this manifest; one older than that says only so."""
    extends: str | None = None
    """Another manifest, relative to this one's folder, that this one changes."""
    plugins: list[str] = Field(default_factory=list)
    """Python files with plug-ins of the study's own, relative to the manifest's folder."""


class ModelTable(Settings):
    """`[models.NAME]`: a preset, or a backend said here; keys here win over the preset's."""

    preset: Name | None = None
    """Name of a file in presets/models/."""
    backend: dict[str, Any] | None = None
    """How the endpoint comes to be: `{ kind = "openai", base_url = ... }`."""
    sampling: SamplingChoice | None = None
    """Which `[sampling.NAME]` its requests use; a stage may say another."""
    id: str | None = None
    """The endpoint's own name for the model."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Merged into the body of every request, such as `{ reasoning_effort = "high" }`."""
    serve: dict[str, Any] = Field(default_factory=dict)
    """Flags of the server, laid on the preset's key by key; they count for results."""
    place: dict[str, Any] = Field(default_factory=dict)
    """Where and how wide it is served; never counts for results."""
    run: dict[str, Any] = Field(default_factory=dict)
    """Run-only settings for this model, such as concurrency."""
    note: str | None = None
    """For people: where the settings come from, what was not run by us."""

    @field_validator("request")
    @classmethod
    def _leaves_what_mbt_fills_in(cls, request: dict[str, Any]) -> dict[str, Any]:
        for key, instead in _FILLED_IN.items():
            if key in request:
                raise ValueError(f"`{key}` is filled in by mbt: {instead}")
        return request


class StageBlock(Settings):
    """What every `[[stage]]` may hold beside the fields of its kind."""

    kind: str
    name: Name
    matrix: dict[str, AxisValues | int | float | bool | list[int] | list[float]] = Field(
        default_factory=dict
    )
    """Axis to its values; one value pins the axis."""
    exclude: list[dict[str, AxisValues]] = Field(default_factory=list)
    """Combinations that are left out."""
    where: dict[str, AxisValues] = Field(default_factory=dict)
    """Holds for every input of the stage that has these axes."""
    variants: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Named overrides; their names are the axis `variant`."""
    source: str | dict[str, Any] | None = None
    """What stands in for running the stage: `hub:ORG/NAME` or a path, `{axis}` is filled in; or a
    table with `from` and how its columns are read."""
    optional: bool = False
    """Leave out cells whose source is not there."""


class DocumentTables(Settings):
    """Every table of a manifest, for its JSON Schema; `tables.py` reads them one by one."""

    study: StudyTable
    run: RunSettings = Field(default_factory=RunSettings)
    groups: dict[Name, list[Name]] = Field(default_factory=dict)
    sampling: dict[Name, Sampling] = Field(default_factory=dict)
    models: dict[Name, ModelTable] = Field(default_factory=dict)
    benchmarks: dict[Name, AnyBenchmark] = Field(default_factory=dict)
    judges: dict[Name, AnyJudge] = Field(default_factory=dict)
    stage: list[dict[str, Any]] = Field(default_factory=list)


@dataclass(frozen=True)
class Document:
    """The tables of a manifest that are right, before its stages are expanded into cells.

    Args:
        stage: The `[[stage]]` blocks as written.
        broken: Names of tables that are there but wrong, such as `models.x`; they are reported
            already, so whatever refers to them is not reported again.
    """

    study: StudyTable
    run: RunSettings
    groups: Mapping[str, Sequence[str]]
    sampling: Mapping[str, Sampling]
    models: Mapping[str, ModelTable]
    benchmarks: Mapping[str, Benchmark]
    judges: Mapping[str, Judge]
    stage: Sequence[Mapping[str, Any]]
    broken: frozenset[str] = frozenset()

    def is_broken(self, family: str, name: str) -> bool:
        """Whether the table is there but wrong."""
        return f"{family}.{name}" in self.broken


AXIS_ORDER = ("benchmark", "split", "model", "variant")


def ordered_axes(axes: dict[str, str]) -> dict[str, str]:
    """Axes in the order of addresses: benchmark, split, model, variant, then alphabetical."""
    first = {a: axes[a] for a in AXIS_ORDER if a in axes}
    return first | {a: axes[a] for a in sorted(axes) if a not in AXIS_ORDER}


def address_of(stage: str, axes: dict[str, str]) -> str:
    """A cell's address.

    Example:
        >>> address_of("base", {"model": "m", "benchmark": "tiny"})
        'base/benchmark=tiny/model=m'
    """
    return "/".join([stage, *(f"{axis}={value}" for axis, value in ordered_axes(axes).items())])
