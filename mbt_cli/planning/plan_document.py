"""The plan of a study as one JSON document: what `mbt plan` gives and `mbt submit` takes."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field, StringConstraints, ValidationError

from mbt_cli.core.chat import Json
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model import Settings
from mbt_cli.errors import UsageError
from mbt_cli.manifest.document import Name
from mbt_cli.manifest.field_docs import Documented
from mbt_cli.manifest.load import Manifest
from mbt_cli.planning.jobs import Draft, Limits, jobs_for
from mbt_cli.planning.select import with_what_they_need
from mbt_cli.planning.sizes import Size, Sizes
from mbt_cli.planning.states import CellState, States, Status
from mbt_cli.planning.unread import unread

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
