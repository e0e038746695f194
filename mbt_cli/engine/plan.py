"""The plan of a study as one JSON document: what `mbt plan` gives and `mbt submit` takes."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field, StringConstraints, ValidationError

from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model import Settings
from mbt_cli.core.recipe import Launch
from mbt_cli.engine.select import with_what_they_need
from mbt_cli.engine.states import CellState, States, Status
from mbt_cli.errors import UsageError
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.field_docs import Documented
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.schema import Name
from mbt_cli.stages.base import Model

USUAL_TOKENS: Mapping[str, int] = {
    "rollout": 2_000,
    "synthesize": 2_500,
    "rewrite": 2_500,
    "judge": 600,
}
"""Tokens of one reply, reasoning included, where no finished cell tells better."""

_PER_ROW = ("samples", "traces_per_question", "traces_per_rollout", "votes")
_ASKED_OF = ("rollouts", "questions")


@dataclass(frozen=True, slots=True)
class Size:
    """Null is not known before the data is there.

    Args:
        rows: Rows that the cell will have.
        tokens: Tokens that will be generated.
        hours: Time of its server, where the model says `expected_tokens_per_second`.
    """

    rows: int | None
    tokens: int | None
    hours: float | None


class Sizes:
    """Sizes of every cell of a study."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._tokens = _tokens_per_row(states)
        self._rows: dict[str, int | None] = {}

    def size(self, state: CellState) -> Size:
        """What one cell comes to; of a finished one, what it has."""
        rows = self._rows_of(state)
        each = self._tokens.get(state.cell.stage.name, USUAL_TOKENS.get(state.cell.kind))
        if rows is None or each is None or state.cell.resolution.source is not None:
            return Size(rows, None, None)
        tokens = round(rows * each)
        model = asked_model(state)
        speed = None if model is None else model.run.expected_tokens_per_second
        return Size(rows, tokens, None if speed is None else tokens / speed / 3600)

    def _rows_of(self, state: CellState) -> int | None:
        address = state.cell.address
        if address not in self._rows:
            self._rows[address] = self._count(state)
        return self._rows[address]

    def _count(self, state: CellState) -> int | None:
        if state.status == "done" and state.lineage is not None:
            return state.lineage.rows
        if state.cell.kind == "questions":
            return _questions(state)
        inputs = state.cell.resolution.inputs
        name = next((n for n in _ASKED_OF if n in inputs), None)
        if name is None or state.cell.kind not in USUAL_TOKENS:
            return None
        rows = self._rows_of(self._states[inputs[name][0]])
        for factor in _PER_ROW:
            times = getattr(state.cell.stage, factor, None)
            rows = None if rows is None else rows * (times or 1)
        return rows


def asked_model(state: CellState) -> Model | None:
    """The model that the cell asks, if it asks one."""
    if state.cell.kind not in USUAL_TOKENS:
        return None
    return next(iter(state.cell.resolution.models.values()), None)


def _questions(state: CellState) -> int | None:
    benchmark = state.cell.resolution.benchmark
    if benchmark is None:
        return None
    split = state.cell.resolution.axes["split"]
    of_source = benchmark.splits.get(split, split)
    sizes = [
        benchmark.official_size(of_source),
        *(_of_split(size, split, of_source) for size in (benchmark.limit, benchmark.sample)),
    ]
    return min((size for size in sizes if size is not None), default=None)


def _of_split(size: object, *names: str) -> int | None:
    if isinstance(size, Mapping):
        found = (size[name] for name in names if name in size)
        return next((number for number in found if isinstance(number, int)), None)
    return size if isinstance(size, int) else None


def _tokens_per_row(states: States) -> Mapping[str, float]:
    """Stage to the tokens of a row, over its finished cells."""
    rows: dict[str, int] = {}
    tokens: dict[str, int] = {}
    for state in states.all():
        if state.lineage is not None and state.lineage.tokens.completion:
            stage = state.lineage.stage
            rows[stage] = rows.get(stage, 0) + state.lineage.rows
            tokens[stage] = tokens.get(stage, 0) + state.lineage.tokens.completion
    return {stage: tokens[stage] / rows[stage] for stage in tokens if rows[stage]}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one job may hold.

    Args:
        max_cells: Cells.
        max_hours: Hours by the estimate, where there is one.
        max_rows: Rows of one cell above which it is split into shards.
    """

    max_cells: int = 24
    max_hours: float = 12.0
    max_rows: int = 100_000


@dataclass
class Draft:
    """A job as it grows.

    Args:
        server: What its server is known by; empty where it needs none.
        shards: Array tasks that share its one cell.
        merges: Whether it only merges what the tasks of another job left.
    """

    id: str
    kind: str
    server: str
    model: str
    gpus: int
    cells: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    hours: float = 0.0
    shards: int = 1
    merges: bool = False


def server_of(state: CellState) -> tuple[str, str]:
    """Key and name of the server that a cell needs; empty where it needs none."""
    cell = state.cell
    model = asked_model(state)
    if model is None or cell.resolution.source is not None:
        return "", ""
    trained = list(cell.resolution.inputs.get("checkpoints", ()))
    key = sha256_of(
        [model.name, spec_of(model.backend), model.run.concurrency, _place_of(model), trained]
    )
    return key, model.name + "".join(f" ({address})" for address in trained)


def gpus_of(state: CellState) -> int:
    """GPUs that one node gives to the cell."""
    if state.cell.resolution.source is not None:
        return 0
    recipe = state.cell.resolution.recipe
    if recipe is not None:
        return _training_gpus(state, recipe.launch)
    model = asked_model(state)
    return 0 if model is None else model.backend.gpus()


def _training_gpus(state: CellState, launch: Launch) -> int:
    """Processes on one node, each with a GPU; the embedded model trains on the processor."""
    if not state.cell.resolution.models["model"].backend.gpus():
        return 0
    told = launch.processes or launch.flags.get("num_processes")
    nodes = launch.flags.get("num_machines")
    processes = told if isinstance(told, int) else 1
    return -(-processes // nodes) if isinstance(nodes, int) else processes


def _place_of(model: Model) -> Mapping[str, Json]:
    place = getattr(model.backend, "place", None)
    return {} if place is None else dict(place.model_dump(mode="json"))


def jobs_for(states: Sequence[CellState], sizes: Mapping[str, Size], limits: Limits) -> list[Draft]:
    """Jobs that make these cells, what is needed first.

    Args:
        states: Cells to make, inputs before what reads them.
        sizes: Address to size.
        limits: How much one job may hold.
    """
    groups: dict[tuple[int, str, str], list[CellState]] = {}
    levels: dict[str, int] = {}
    keys: dict[str, str] = {}
    for state in states:
        address = state.cell.address
        keys[address] = _key_of(state)
        below = (levels[a] + (keys[a] != keys[address]) for a in state.cell.needs if a in levels)
        levels[address] = max(below, default=0)
        group = (levels[address], keys[address], "" if _may_mix(state) else state.cell.kind)
        groups.setdefault(group, []).append(state)
    drafts: list[Draft] = []
    for _, group_states in sorted(groups.items(), key=lambda item: item[0][0]):
        drafts.extend(_cut(group_states, sizes, limits))
    return _named(_linked(drafts, {s.cell.address: s for s in states}))


def _key_of(state: CellState) -> str:
    server, _ = server_of(state)
    if server:
        return server
    return state.cell.address if state.cell.kind == "train" else f"kind {state.cell.kind}"


def _may_mix(state: CellState) -> bool:
    return bool(server_of(state)[0])


def _cut(states: Sequence[CellState], sizes: Mapping[str, Size], limits: Limits) -> Iterator[Draft]:
    """One job, or several where it would grow too large; a very large cell is one of its own."""
    draft: Draft | None = None
    for state in states:
        size = sizes[state.cell.address]
        shards = _shards(state, size, limits)
        if shards > 1:
            # what came before is a job of its own, or it could wait for what waits for it
            yield from [draft] if draft is not None else []
            yield from _sharded(state, shards, size)
            draft = None
            continue
        hours = size.hours or 0.0
        if draft is not None and (
            len(draft.cells) >= limits.max_cells or draft.hours + hours > limits.max_hours
        ):
            yield draft
            draft = None
        draft = draft or _draft(state)
        draft.cells.append(state.cell.address)
        draft.hours += hours
    if draft is not None:
        yield draft


def _draft(state: CellState) -> Draft:
    server, model = server_of(state)
    return Draft("", state.cell.kind, server, model, gpus_of(state))


def _shards(state: CellState, size: Size, limits: Limits) -> int:
    if not server_of(state)[0] or size.rows is None:
        return 1
    return -(-size.rows // limits.max_rows)


def _sharded(state: CellState, shards: int, size: Size) -> Iterator[Draft]:
    asking, merging = _draft(state), _draft(state)
    asking.cells, asking.shards, asking.hours = [state.cell.address], shards, size.hours or 0.0
    yield asking
    merging.cells, merging.merges, merging.gpus, merging.server = [state.cell.address], True, 0, ""
    yield merging


def _linked(drafts: list[Draft], states: Mapping[str, CellState]) -> list[Draft]:
    """Number the jobs and let each name those that make what its cells read."""
    made_by: dict[str, Draft] = {}
    for number, draft in enumerate(drafts):
        draft.id = str(number)
        for address in draft.cells:
            if draft.merges or draft.shards == 1:
                made_by[address] = draft
    asked_by = {d.cells[0]: d for d in drafts if d.shards > 1}
    for draft in drafts:
        makers = {
            made_by[need].id: None
            for address in draft.cells
            for need in states[address].cell.needs
            if need in made_by and made_by[need] is not draft
        }
        if draft.merges:
            makers[asked_by[draft.cells[0]].id] = None
        draft.needs = sorted(makers, key=int)
    return drafts


def _named(drafts: list[Draft]) -> list[Draft]:
    """Ids that say what a job does: its stage, or `several`, and a number."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for draft in drafts:
        stages = {address.partition("/")[0] for address in draft.cells}
        base = ("merge-" if draft.merges else "") + (
            stages.pop() if len(stages) == 1 else f"{draft.kind}s"
        )
        counts[base] = counts.get(base, 0) + 1
        names[draft.id] = f"{base}-{counts[base]}"
    for draft in drafts:
        draft.needs = [names[need] for need in draft.needs]
        draft.id = names[draft.id]
    return drafts


_READ_BY_PEOPLE = ("score", "report")
"""Kinds whose cells are results by themselves."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Cells of one stage that nothing reads.

    Args:
        of: Cells that the stage has in all.
        apart: Axis values that tell them from the stage's cells that are read, such as
            `benchmark=musique`; empty when no axis does, or when none is read.
    """

    stage: str
    addresses: Sequence[str]
    of: int
    apart: Sequence[str]


def unread(manifest: Manifest) -> list[Unread]:
    """What nothing reads, stage by stage in the manifest's order."""
    read = {address for cell in manifest.cells.values() for address in cell.needs}
    stages: dict[str, list[Cell]] = {}
    for address, cell in manifest.cells.items():
        if cell.kind not in _READ_BY_PEOPLE:
            stages.setdefault(address.partition("/")[0], []).append(cell)
    found = []
    for stage, cells in stages.items():
        lonely = [cell for cell in cells if cell.address not in read]
        if lonely:
            others = [cell for cell in cells if cell.address in read]
            addresses = [cell.address for cell in lonely]
            found.append(Unread(stage, addresses, len(cells), _apart(lonely, others)))
    return found


def _apart(lonely: Sequence[Cell], others: Sequence[Cell]) -> list[str]:
    if not others:
        return []
    own, theirs = _values(lonely), _values(others)
    return [
        f"{axis}={value}"
        for axis, values in own.items()
        if not set(values) & set(theirs.get(axis, ()))
        for value in values
    ]


def _values(cells: Sequence[Cell]) -> Mapping[str, Mapping[str, None]]:
    """Axis to its values, each once in order."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for axis, value in cell.resolution.axes.items():
            found.setdefault(axis, {})[value] = None
    return found


PLAN_VERSION = 1
"""The layout of a plan that this mbt writes, and the only one it takes."""

JobName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]
_TO_MAKE = ("missing", "failed", "grown", "stale")


class PlannedCell(Settings):
    """A cell as it stands."""

    address: str
    """Where it stands, below the study's folder too."""
    kind: str
    """Kind of its stage."""
    status: Status
    """done, grown, stale, missing or failed."""
    needs: tuple[str, ...] = ()
    """Addresses that it reads."""
    rows: int | None = None
    """Rows it has or will have; null is not known yet."""
    tokens: int | None = None
    """Tokens to generate, by estimate; null where none are or it is not known."""
    gpu_hours: float | None = None
    """GPU hours by estimate; null where the model says no `expected_tokens_per_second`."""


class PlannedJob(Settings):
    """One job: a command that a person could type as well."""

    id: JobName
    """Its name within the plan."""
    kind: str
    """Kind of its first cell's stage."""
    model: str = ""
    """The server it boots, once; empty where it boots none."""
    cells: tuple[str, ...]
    """What it makes, in order."""
    needs: tuple[str, ...] = ()
    """Ids of jobs that must have succeeded."""
    argv: tuple[str, ...]
    """The command; an array task adds `--shard N/OF`."""
    shards: int = 1
    """Array tasks."""
    resources: dict[str, Json] = Field(default_factory=dict)
    """`gpus` a node, and `hours` by estimate."""


class Plan(Settings):
    """What is to be done for a study, and what is done already."""

    schema_version: int = PLAN_VERSION
    """Layout of this document."""
    study: Name
    """Name of the study."""
    manifest: str
    """Path of the manifest, from the folder where the plan was made."""
    overrides: tuple[str, ...] = ()
    """What `--set` said."""
    only: tuple[str, ...] = ()
    """What `--only` said; the jobs make those cells and what they need."""
    presets: str | None = None
    """Folder that `--presets` named."""
    fingerprint: str
    """Hash of the manifest's text with overrides and of every cell's fingerprint."""
    replace: bool = False
    """Whether stale cells are made again."""
    cells: tuple[PlannedCell, ...]
    """Every cell, inputs before what reads them."""
    jobs: tuple[PlannedJob, ...]
    """What is left to do, what is needed first."""
    unread: tuple[str, ...] = ()
    """Cells that nothing reads."""
    left_out: tuple[str, ...] = ()
    """Optional cells whose source is not there."""

    @property
    def boots(self) -> int:
        """Times that a model server starts; each task of an array starts its own."""
        return sum(job.shards for job in self.jobs if job.model)

    def command(self, *, replace: bool = False) -> str:
        """What makes this plan again, as a person would type it."""
        words = ["mbt", "plan", self.manifest]
        words += [word for pattern in self.only for word in ("--only", pattern)]
        words += [word for override in self.overrides for word in ("--set", override)]
        words += ["--presets", self.presets] if self.presets else []
        words += ["--replace"] if replace or self.replace else []
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of `mbt plan`.

    Args:
        limits: How much one job may hold.
        only: Patterns of the cells to make; what they need and is not there comes along.
        overrides: What `--set` said.
        presets: Folder that `--presets` named.
        replace: Whether stale cells are made again.
    """

    limits: Limits = field(default_factory=Limits)
    only: Sequence[str] = ()
    overrides: Sequence[str] = ()
    presets: Path | None = None
    replace: bool = False


def make_plan(manifest: Manifest, states: States, options: PlanOptions) -> Plan:
    """The plan of a study, or of a part of it, from manifest, presets and lineage alone."""
    measured = Sizes(states)
    sizes = {state.cell.address: measured.size(state) for state in states.all()}
    taken = set(with_what_they_need(manifest, states, options.only))
    to_make = [s for s in states.all() if s.status in _TO_MAKE and s.cell.address in taken]
    todo = [s for s in to_make if options.replace or s.status != "stale"]
    drafts = jobs_for(todo, sizes, options.limits)
    gpus = {address: draft.gpus for draft in drafts for address in draft.cells}
    return Plan(
        study=manifest.study,
        manifest=str(manifest.path),
        overrides=tuple(options.overrides),
        only=tuple(options.only),
        presets=None if options.presets is None else str(options.presets),
        fingerprint=plan_fingerprint(manifest, states),
        replace=options.replace,
        cells=tuple(_cell(s, sizes[s.cell.address], gpus) for s in states.all()),
        jobs=tuple(_job(d, str(manifest.path), replace=options.replace) for d in drafts),
        unread=tuple(address for lonely in unread(manifest) for address in lonely.addresses),
        left_out=tuple(manifest.left_out),
    )


def plan_fingerprint(manifest: Manifest, states: States) -> str:
    """Changes with the manifest's text, its overrides, presets, prompts and data files."""
    prints = {state.cell.address: state.fingerprint for state in states.all()}
    return sha256_of({"text": sha256_of(dict(manifest.tree)), "cells": prints})


def command_for(
    cells: Sequence[str], manifest: str, *, merges: bool = False, replace: bool = False
) -> tuple[str, ...]:
    """What makes these cells, as a person would type it."""
    only = [part for address in cells for part in ("--only", address)]
    verb = "merge" if merges else "run"
    return ("mbt", verb, manifest, *only, *(["--replace"] if replace else []))


def plan_json(plan: Plan) -> str:
    """The document, one line a top-level key where that is short."""
    return orjson.dumps(plan.model_dump(mode="json"), option=orjson.OPT_INDENT_2).decode() + "\n"


def read_plan(text: str, where: str) -> Plan:
    """A plan from its JSON.

    Args:
        text: The document.
        where: What it was read from, for messages.

    Raises:
        UsageError: It is no plan, or one of another version.
    """
    again = "make it again: `mbt plan MANIFEST | mbt submit --slurm`"
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise UsageError(f"{where} holds no plan", hint=again) from None
    if not isinstance(found, dict):
        raise UsageError(f"{where} holds no plan", hint=again)
    version = found.get("schema_version")
    if isinstance(version, int) and version != PLAN_VERSION:
        raise UsageError(
            f"{where} is a plan of version {version}; this mbt takes version {PLAN_VERSION}",
            hint=again,
        )
    try:
        plan = Plan.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UsageError(f"{where} is no plan: `{place}`: {first['msg']}", hint=again) from None
    if wrong := _tangled(plan):
        raise UsageError(f"{where} is no plan: {wrong}", hint=again)
    return plan


def _tangled(plan: Plan) -> str:
    """What is wrong with the jobs: each stands there once, and so does all that it needs."""
    known = Counter(job.id for job in plan.jobs)
    if twice := [name for name, count in known.items() if count > 1]:
        return f"job `{twice[0]}` stands there twice"
    for job in plan.jobs:
        if unknown := [name for name in job.needs if name not in known]:
            return f"job `{job.id}` needs `{unknown[0]}`, which is no job of it"
    return ""


def plan_schema() -> str:
    """The JSON Schema of plans."""
    schema = Plan.model_json_schema(schema_generator=Documented)
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() + "\n"


def _cell(state: CellState, size: Size, gpus: Mapping[str, int]) -> PlannedCell:
    address = state.cell.address
    hours = None if size.hours is None else size.hours * max(gpus.get(address, 0), 1)
    return PlannedCell(
        address=address,
        kind=state.cell.kind,
        status=state.status,
        needs=state.cell.needs,
        rows=size.rows,
        tokens=size.tokens,
        gpu_hours=hours,
    )


def _job(draft: Draft, manifest: str, *, replace: bool) -> PlannedJob:
    return PlannedJob(
        id=draft.id,
        kind=draft.kind,
        model=draft.model if draft.server else "",
        cells=tuple(draft.cells),
        needs=tuple(draft.needs),
        argv=command_for(draft.cells, manifest, merges=draft.merges, replace=replace),
        shards=draft.shards,
        resources={"gpus": draft.gpus, "hours": round(draft.hours, 2) or None},
    )
