"""A cell: a stage at one point of its axes, with all names resolved."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mbt_cli.core.addresses import STEP
from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import base_spec_of, growth_of, spec_of
from mbt_cli.core.plugin import Plugin
from mbt_cli.core.verifier import Verifier
from mbt_cli.interfaces import Benchmark
from mbt_cli.stages.base import Resolution, Stage
from mbt_cli.stages.checkpoints import TRAINING
from mbt_cli.stages.imports import source_spec
from mbt_cli.store.disk import file_sha256
from mbt_cli.store.hub import HubRequest
from mbt_cli.store.questions import source_fingerprint
from mbt_cli.store.records import data_files

_NOT_IN_SPEC = ("kind", "name", "sampling", "baseline")
_PER_SPLIT = ("splits", "limit", "sample", "size")


@dataclass(frozen=True)
class Cell:
    """Everything that determines one artifact."""

    stage: Stage
    resolution: Resolution

    @property
    def address(self) -> str:
        """Its address, on screen and on disk."""
        return self.resolution.address

    @property
    def kind(self) -> str:
        """The verb that makes it."""
        return self.stage.kind

    @property
    def training(self) -> str | None:
        """Address of the training that publishes it, if it is the checkpoint of a step."""
        return next(iter(self.resolution.inputs.get(TRAINING, ())), None)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Addresses of every cell it reads, each once."""
        return tuple(dict.fromkeys(a for group in self.resolution.inputs.values() for a in group))

    @cached_property
    def spec(self) -> dict[str, Json]:
        """Everything except inputs that changes its rows, with all names resolved."""
        return self._spec(spec_of)

    @cached_property
    def base_spec(self) -> dict[str, Json]:
        """The same without sizes that may grow, and without what these bring along."""
        return {k: v for k, v in self.older_base_spec.items() if k not in self._brought}

    @cached_property
    def older_base_spec(self) -> dict[str, Json]:
        """The base spec of older lineages, where verifiers of metrics are in it."""
        return self._spec(base_spec_of)

    @property
    def _brought(self) -> Collection[str]:
        return ("verifiers",) if self.stage.verifiers_by_member else ()

    def _spec(self, as_json: Callable[[object], Json]) -> dict[str, Json]:
        stage, found = self.stage, self.resolution
        if self.training is not None:  # whatever else decides a checkpoint is in its training
            return {STEP: found.axes[STEP]}
        named = {*_NOT_IN_SPEC, *stage.inputs, *stage.models, *stage.prompts, *stage.resolved}
        spec: dict[str, Json] = {k: v for k, v in as_json(stage).items() if k not in named}
        spec |= {name: {"sha256": file_sha256(p)} for name, p in stage.files_read().items()}
        spec |= {name: _on_hub(request) for name, request in stage.hub_files_read().items()}
        spec["models"] = {role: model.spec() for role, model in found.models.items()}
        spec["templates"] = {name: t.sha256 for name, t in found.templates.items()}
        if found.judge is not None:
            spec["judge"] = as_json(found.judge)
        if found.harness is not None:
            # the program counts by its name, not by the folder that it is installed in
            spec["harness"] = {**as_json(found.harness), **found.harness.of_program()}
        if found.has_steps and not found.judges_in_steps:
            own = as_json(found.program)
            spec["program"] = {k: v for k, v in own.items() if k not in found.program.prompts}
            spec["program"]["templates"] = {n: t.sha256 for n, t in found.program_prompts.items()}
        if found.trainer is not None:
            own = as_json(found.trainer)
            spec["recipe"] = found.trainer.spec(found.recipe) if found.recipe else own
        if verifiers := self._verifiers(as_json, lambda own: stage.verifiers_used(own, found)):
            spec["verifiers"] = verifiers
        if found.source is not None:
            spec["source"] = source_spec(found)
        if found.shots is not None:
            spec["shots"] = _by_content(as_json(found.shots))
        if stage.kind == "questions" and found.benchmark is not None:
            split = found.axes["split"]
            spec["benchmark"] = _for_split(as_json(found.benchmark), split)
            spec["files"] = source_fingerprint(
                found.benchmark, split, generate=found.benchmark.generate
            )
        else:
            spec["seed"] = found.seed
        return spec

    def _verifiers(
        self,
        as_json: Callable[[object], Json],
        verifiers_used: Callable[[Verifier], Sequence[Verifier]],
    ) -> dict[str, Json]:
        """Benchmark to the verifier that its rows depend on, or to several.

        The first version of the default one is left out: older cells do not record it.
        """
        if self.resolution.source is not None:
            return {}
        found: dict[str, Json] = {}
        for benchmark, own in self.resolution.verifiers.items():
            used = [
                as_json(verifier)
                for verifier in verifiers_used(own)
                if verifier != Benchmark.verifier or verifier.version > 1
            ]
            if used:
                found[benchmark] = used if len(used) > 1 else used[0]
        return found

    @cached_property
    def sizes(self) -> dict[str, int | None]:
        """Sizes of which more only adds rows, by path; None: no limit."""
        stage = self.stage

        def behind(member: Plugin) -> Json:
            return self._verifiers(spec_of, lambda own: stage.verifiers_of(member, own))

        return self._sizes(behind)

    @cached_property
    def older_sizes(self) -> dict[str, int | None]:
        """The sizes of older lineages, where verifiers are in the base spec."""
        return self._sizes(lambda member: None)

    def _sizes(self, behind: Callable[[Plugin], Json]) -> dict[str, int | None]:
        if self.training is not None:
            return {}
        if self.stage.kind == "questions" and self.resolution.benchmark is not None:
            axes = self.resolution.axes
            own = growth_of(self.resolution.benchmark)
            return {
                f"benchmarks.{axes['benchmark']}.{path}": size
                for path, size in own.items()
                if path.partition(".")[2] in ("", axes["split"])
            }
        growth = growth_of(self.stage, behind)
        return {f"stage.{self.stage.name}.{path}": size for path, size in growth.items()}


def _by_content(shots: dict[str, Json]) -> dict[str, Json]:
    """The spec of worked examples, with the content of their file in place of its name."""
    if (file := shots.get("file")) is None:
        return shots
    return {**shots, "file": [file_sha256(p) for p in data_files(Path(file).expanduser())]}


def _on_hub(request: HubRequest) -> dict[str, Json]:
    """A file on the hub as specs name it."""
    return {"hub": request.repo, "file": request.patterns[0], "revision": request.revision}


def _for_split(benchmark: dict[str, Json], split: str) -> dict[str, Json]:
    """A benchmark's spec without the settings of other splits.

    The names of files are left out too: their hashes are in the cell's spec.
    """
    left_out = ("files", "difficulty", "shots")  # files count by their content, shots in prompts
    narrowed = {k: v for k, v in benchmark.items() if k not in left_out}
    for key in _PER_SPLIT:
        if isinstance(narrowed.get(key), dict):
            narrowed[key] = narrowed[key].get(split)
    return narrowed
