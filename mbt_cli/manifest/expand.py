"""From `[[stage]]` blocks to cells: matrix, variants, inputs and sources."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mbt_cli.backends.weights import is_whole_model
from mbt_cli.core.addresses import STEP
from mbt_cli.core.names import listed, nearest
from mbt_cli.errors import MissingInputError
from mbt_cli.interfaces import Benchmark
from mbt_cli.manifest.match import TRAIN, CellDraft, InputMatching, Reference, StepsOf
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.schema import Block, Document, ordered_axes, written_input
from mbt_cli.stages.checkpoints import ALL_STEPS
from mbt_cli.stages.kinds import STAGES
from mbt_cli.stages.questions import QUESTIONS, SHOTS
from mbt_cli.store.records import data_files

HUB = "hub:"


def no_steps(address: str) -> Sequence[int]:
    """The steps that a training has published, where no runs folder is known: none."""
    return ()


def expand(
    document: Document,
    problems: Problems,
    steps_of: StepsOf = no_steps,
    warnings: Problems | None = None,
) -> tuple[list[CellDraft], list[str]]:
    """Every cell of a manifest, inputs before the cells that read them.

    Args:
        document: The tables of the manifest.
        problems: Collects the problems.
        steps_of: The steps that a training has published.
        warnings: Collects what changes nothing, and was probably meant to.

    Returns:
        The cells, and the stages that have none until a training publishes a checkpoint.
    """
    expansion = _Expansion(
        document, problems, steps_of, Problems() if warnings is None else warnings
    )
    for block in document.blocks:
        expansion.add(block)
    matching = expansion.matching
    of_stages: dict[str, list[CellDraft]] = {n: [*ds] for n, ds in matching.stages.items()}
    for draft in matching.steps.values():
        of_stages[draft.stage].append(draft)
    cells = [*matching.questions.values(), *(d for ds in of_stages.values() for d in ds)]
    return cells, [block.name for block in document.blocks if block.name in matching.waiting]


class _Expansion:
    """Expands stages in the manifest's order; a stage may read those before it."""

    def __init__(
        self, document: Document, problems: Problems, steps_of: StepsOf, warnings: Problems
    ) -> None:
        self._warnings = warnings
        self._document = document
        self._problems = problems
        cycles = _cycles(document.blocks, problems)
        self.matching = InputMatching(document, problems, cycles, steps_of)

    def add(self, block: Block) -> None:
        """Expand a stage into its cells and add them for later stages."""
        excluded = [
            self.matching.where(f"stage.{block.name}.exclude[{number}]", table)
            for number, table in enumerate(block.envelope.exclude)
        ]
        drafts = [
            draft
            for variant, fields in block.variants()
            for draft in self._drafts_of(block, variant, fields)
        ]
        self._check_axes(block, drafts)
        kept = [d for d in drafts if not any(_is_in(d.axes, table) for table in excluded)]
        if not self._problems:
            self._warn_of_exclude(block, drafts, excluded)
        if drafts and not kept:
            self._problems.add(f"stage.{block.name}.exclude", "excludes every cell of the stage")
        if kept and not self._problems and self._waits(block):
            drafts = kept = []
        if not drafts:  # its inputs are still checked
            for _, fields in block.variants():
                for name, rule in block.kind.inputs.items():
                    if written := written_input(fields, name):
                        self.matching.reference(block, name, rule, written)
        for draft in kept:
            for axis in block.kind.axes:
                # the axes of an input that is wrong are not known
                if axis not in draft.axes and not (self._problems and draft.inputs):
                    what = f"has no axis `{axis}`, which a {draft.kind} stage needs"
                    add = f"add `{axis} = {self._value_of(axis)}`"
                    self._problems.add(f"stage.{block.name}.matrix", f"{what}: {add}")
            self._look_up_inputs(block, draft)
        self._check_baseline(block, kept)
        self.matching.stages[block.name] = kept

    def _warn_of_exclude(
        self, block: Block, drafts: Sequence[CellDraft], excluded: Sequence[Mapping[str, set[str]]]
    ) -> None:
        """Tables of `exclude` that no cell matches; `--set` may have taken their cells away."""
        for number, table in enumerate(excluded):
            if not drafts or any(_is_in(draft.axes, table) for draft in drafts):
                continue
            where = f"stage.{block.name}.exclude[{number}]"
            end = "so this excludes nothing"
            for axis, values in table.items():
                known = {d.axes[axis] for d in drafts if axis in d.axes}
                if not values & known:
                    value = min(values, default="")
                    what = f"no cell has {axis} `{value}`, {end}; {nearest(value, known)}"
                    self._warnings.add(f"{where}.{axis}", what)
                    break
            else:
                self._warnings.add(where, f"no cell has this combination, {end}: remove it")

    def _waits(self, block: Block) -> bool:
        """Whether an input has no cells until a training publishes its first checkpoint."""
        for _, fields in block.variants():
            for name, rule in block.kind.inputs.items():
                written = written_input(fields, name)
                if not written or rule.kinds == (QUESTIONS,):
                    continue
                reference = self.matching.reference(block, name, rule, written)
                if reference is None or not self.matching.waits(reference):
                    continue
                if not self.matching.all_of(block, name, reference):
                    self.matching.waiting.add(block.name)
        return block.name in self.matching.waiting

    def _value_of(self, axis: str) -> str:
        """An example of the values of an axis, in TOML."""
        document = self._document
        named = {
            "benchmark": document.benchmarks,
            "model": document.models,
            "harness": document.harnesses,
        }
        first = next(iter(named.get(axis, ())), None)
        return "[...]" if first is None else f'["{first}"]'

    def _check_baseline(self, block: Block, drafts: Sequence[CellDraft]) -> None:
        """At least one cell has the baseline that the stage names."""
        named = [d for d in drafts if isinstance(d.fields.get("baseline"), Mapping)]
        if not named or self._problems or any("baseline_rollouts" in d.inputs for d in named):
            return
        for axis, value in named[0].fields["baseline"].items():
            values = dict.fromkeys(d.axes[axis] for d in drafts if axis in d.axes)
            if value not in values:
                where = f"stage.{block.name}.baseline.{axis}"
                self._problems.add(where, f"no cell has `{value}`; {nearest(str(value), values)}")

    def _check_axes(self, block: Block, drafts: Sequence[CellDraft]) -> None:
        """The axes that `exclude`, `baseline` and `where` name must exist."""
        earlier = self.matching.stages.values()
        if not drafts or not all(earlier):
            return  # a mistake reported already has left the axes unknown
        own = {axis for draft in drafts for axis in draft.axes}
        read = {
            "benchmark",
            "split",
            *(a for stage in earlier for d in stage for a in d.joined_axes),
        }
        named: list[tuple[str, Any, set[str]]] = [
            (f"exclude[{number}]", table, own)
            for number, table in enumerate(block.envelope.exclude)
        ]
        named.append(("baseline", drafts[0].fields.get("baseline"), own))
        named.append(("where", block.envelope.where, read))
        for key, table, axes in named:
            for axis in table if isinstance(table, Mapping) else ():
                if axis not in axes:
                    where = f"stage.{block.name}.{key}.{axis}"
                    is_one = any(axis in {*k.axes, *k.model_fields} for k in STAGES.values())
                    have = listed([f"`{one}`" for one in ordered_axes(dict.fromkeys(axes, ""))])
                    near = f"these cells do not have it; {have}" if is_one else nearest(axis, axes)
                    self._problems.add(where, f"unknown axis; {near}")
                elif key == "baseline":
                    self.matching.where(f"stage.{block.name}.baseline", {axis: table[axis]})

    def _drafts_of(
        self, block: Block, variant: str | None, fields: Mapping[str, Any]
    ) -> Iterator[CellDraft]:
        where = f"stage.{block.name}.matrix"
        matrix = self._with_steps(block, variant, fields)
        if matrix is None:
            return
        points = self.matching.points(where, matrix)
        own = {} if variant is None else {"variant": variant}
        for of_input, inputs in self._leading(block, fields):
            for point in points:
                pinned = {block.axis(key): value for key, value in point.items()}
                for axis in sorted({*pinned, *own} & set(of_input)):
                    what = f"the input already has the axis `{axis}`; choose values in `where`"
                    self._problems.add(f"{where}.{axis}", what)
                axes = ordered_axes({**of_input, **pinned, **own})
                filled = block.with_axes(fields, point)
                yield CellDraft(block.name, block.kind_name, block, axes, filled, dict(inputs))

    def _with_steps(
        self, block: Block, variant: str | None, fields: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """The matrix with the steps that a source has; None if it has none yet."""
        matrix = block.envelope.matrix
        if not follows_source(block):
            return matrix
        axes = {} if variant is None else {"variant": variant}
        source = source_of(CellDraft(block.name, TRAIN, block, axes, fields))
        if source is None or "{" + STEP + "}" not in source or source.startswith(HUB):
            what = f'`{ALL_STEPS}` is for a folder\'s `source` with "{{{STEP}}}" in it'
            self._problems.add(f"stage.{block.name}.matrix.{STEP}", what)
            return None
        if steps := steps_in(source):
            return {**matrix, STEP: steps}
        self.matching.waiting.add(block.name)
        return None

    def _leading(
        self, block: Block, fields: Mapping[str, Any]
    ) -> list[tuple[dict[str, str], dict[str, tuple[CellDraft, ...]]]]:
        """Each cell of the leading input as (its axes, the input filled in)."""
        reference, name = self._leading_reference(block, fields)
        if not name:
            return [({}, {})]
        if reference is None:
            return []
        found = self.matching.all_of(block, name, reference)
        if not found and self.matching.waits(reference):
            self.matching.waiting.add(block.name)
        elif not found and not self._problems:
            self._problems.add(f"stage.{block.name}.{name}", f"no cell of {reference}")
        joined = reference.is_joined
        return [(d.joined_axes if joined else d.axes, {name: (d,)}) for d in found]

    def _leading_reference(
        self, block: Block, fields: Mapping[str, Any]
    ) -> tuple[Reference | None, str]:
        for name, rule in block.kind.inputs.items():
            if rule.leading and fields.get(name):
                return self.matching.reference(block, name, rule, fields[name]), name
        return None, ""

    def _look_up_inputs(self, block: Block, draft: CellDraft) -> None:
        for name, rule in block.kind.inputs.items():
            written = written_input(draft.fields, name)
            if rule.leading or not written:
                continue
            reference = self.matching.reference(block, name, rule, written)
            if reference is not None:
                found = self.matching.matching(block, draft, name, reference)
                draft.inputs[name] = found
                if rule.partial:
                    self._check_divided(block, draft, name, reference)
                if rule.with_questions:
                    questions = [
                        self.matching.questions_of(other.axes)
                        for other in found
                        if {"benchmark", "split"} <= set(other.axes)
                    ]
                    known = draft.inputs.get(QUESTIONS, ())
                    draft.inputs[QUESTIONS] = tuple(dict.fromkeys([*known, *questions]))
        if block.kind.reads_questions and {"benchmark", "split"} <= set(draft.axes):
            draft.inputs[QUESTIONS] = (self.matching.questions_of(draft.axes),)
            shots = self.matching.shots_of(draft.axes) if block.kind.reads_shots else None
            if shots is not None:
                draft.inputs[SHOTS] = (shots,)
        if draft.fields.get("baseline"):
            self._look_up_baseline(block, draft, draft.fields["baseline"])

    def _check_divided(
        self, block: Block, draft: CellDraft, name: str, reference: Reference
    ) -> None:
        """The axes by which a report is divided must be axes of what it reads, and their values."""
        read = self.matching.all_of(block, name, reference)
        known = {axis for other in read for axis in other.axes}
        for key in block.envelope.matrix if read else ():
            axis = block.axis(key)
            where = f"stage.{block.name}.matrix.{key}"
            if axis not in draft.axes or axis in block.kind.model_fields:
                continue
            if axis not in known:
                what = f"`{axis}` divides a {draft.kind} by an axis that nothing it reads has"
                self._problems.add(where, f"{what}: remove it; {nearest(axis, known)}")
                continue
            values = {other.axes[axis] for other in read if axis in other.axes}
            if (value := draft.axes[axis]) not in values:
                what = f"nothing that this {draft.kind} reads has `{value}`"
                self._problems.add(where, f"{what}; {nearest(value, values)}")

    def _look_up_baseline(self, block: Block, draft: CellDraft, change: Mapping[str, str]) -> None:
        """The inputs of the cell that differs from this one in the axes of `baseline`."""
        reference, name = self._leading_reference(block, draft.fields)
        if reference is None:
            return
        rule, written = block.kind.inputs.get("verdicts"), draft.fields.get("verdicts")
        verdicts = None
        if rule is not None and written:
            verdicts = self.matching.reference(block, "verdicts", rule, written)
        axes = {**draft.axes, **change}
        for other in self.matching.with_axes(block, name, reference, axes):
            draft.inputs["baseline_rollouts"] = (other,)
            draft.inputs["baseline_verdicts"] = (
                ()
                if verdicts is None
                else self.matching.made_from(block, "verdicts", verdicts, other)
            )


def _is_in(axes: Mapping[str, str], table: Mapping[str, set[str]]) -> bool:
    return all(axes.get(axis) in values for axis, values in table.items())


def _cycles(blocks: Sequence[Block], problems: Problems) -> set[str]:
    """Names of stages that read each other in a cycle; each cycle is one problem."""
    reads = {block.name: sorted(_stages_read(block)) for block in blocks}
    found: set[str] = set()
    for start in reads:
        cycle = _cycle_through(start, reads)
        if len(cycle) > 1 and not found & set(cycle):
            found |= set(cycle)
            names = " -> ".join(f"`{n}`" for n in (*cycle, start))
            problems.add(f"stage.{start}", f"stages read each other in a cycle: {names}")
    return found


def _cycle_through(start: str, reads: Mapping[str, Sequence[str]]) -> list[str]:
    """A path of stages from `start` back to it; empty if there is none."""
    trails = [[start]]
    seen = {start}
    while trails:
        trail = trails.pop()
        for name in reads.get(trail[-1], ()):
            if name == start:
                return trail
            if name not in seen:
                seen.add(name)
                trails.append([*trail, name])
    return []


def _stages_read(block: Block) -> set[str]:
    names: set[str] = set()
    for _, fields in block.variants():
        for name in block.kind.inputs:
            written = written_input(fields, name)
            table = written if isinstance(written, dict) else {"stage": written}
            stages = table.get("stage") or ()
            names |= {stages} if isinstance(stages, str) else set(stages)
    return names


def source_of(draft: CellDraft) -> str | None:
    """The cell's source, with `{axis}` replaced by the cell's value."""
    source = source_table(draft).get("from")
    if source is None:
        return None
    source = str(source)
    for axis, value in draft.axes.items():
        source = source.replace("{" + axis + "}", value)
    return source


def source_table(draft: CellDraft) -> Mapping[str, Any]:
    """The cell's `source` as a table; empty if it has none."""
    if draft.block is None:
        return {}
    written = draft.fields.get("source", draft.block.envelope.source)
    if written is None or isinstance(written, Mapping):
        return written or {}
    return {"from": written}


def follows_source(block: Block) -> bool:
    """Whether a stage has a cell for every step that its source has."""
    return block.kind_name == TRAIN and block.envelope.matrix.get(STEP) in (ALL_STEPS, [ALL_STEPS])


def steps_in(source: str) -> list[int]:
    """The steps of a source such as `runs/x-{step}` whose folder has a whole model.

    Other axes in the pattern stand for any text: each cell then looks at its own folder.
    """
    head, _, tail = str(Path(source).expanduser()).partition("{" + STEP + "}")
    tail = tail.partition("/")[0]
    before = re.sub(r"\\{[^/{}]*\\}", "[^/]*", re.escape(head))
    pattern = re.compile(f"{before}([0-9]+){re.escape(tail)}")
    glob = re.sub(r"\{[^/{}]*\}", "*", head) + "*" + tail
    anchor = Path(glob).anchor
    found = set()
    for path in Path(anchor or ".").glob(glob.removeprefix(anchor)):
        if (match := pattern.fullmatch(str(path))) and is_whole_model(path):
            found.add(int(match[1]))
    return sorted(found)


def source_exists(source: str) -> bool:
    """Whether a local source exists: a folder, a file, or a pattern that matches one."""
    path = Path(source).expanduser()
    if path.exists():
        return True
    try:
        return bool(data_files(path))
    except MissingInputError:
        return False


def without_missing_sources(
    drafts: Sequence[CellDraft], benchmarks: Mapping[str, Benchmark]
) -> tuple[list[CellDraft], list[str]]:
    """Leave out optional cells whose source or data do not exist, and cells that need them.

    Args:
        drafts: Inputs before the cells that read them.
        benchmarks: The tables of the manifest.

    Returns:
        The cells that stay, and the addresses of the others.
    """
    left_out: set[int] = set()
    for draft in drafts:
        if (
            _lacks_source(draft)
            or _lacks_data(draft, benchmarks)
            or any(
                id(other) in left_out
                for name, others in draft.inputs.items()
                if not _may_be_empty(draft, name)
                for other in others
            )
        ):
            left_out.add(id(draft))
        for name, others in draft.inputs.items():
            draft.inputs[name] = tuple(d for d in others if id(d) not in left_out)
    read = {id(d) for one in drafts if id(one) not in left_out for d in _read_by(one)}
    unread = {id(d) for one in drafts if id(one) in left_out for d in _read_by(one)} - read
    left_out |= {id(d) for d in drafts if id(d) in unread and _is_missing(d, benchmarks)}
    kept = [d for d in drafts if id(d) not in left_out]
    return kept, [d.address for d in drafts if id(d) in left_out]


def _lacks_source(draft: CellDraft) -> bool:
    if draft.block is None or not draft.block.envelope.optional:
        return False
    source = source_of(draft)
    return source is not None and not source.startswith(HUB) and not source_exists(source)


def _lacks_data(draft: CellDraft, benchmarks: Mapping[str, Benchmark]) -> bool:
    """Whether an optional cell asks questions of a local file that does not exist."""
    is_optional = draft.block is not None and draft.block.envelope.optional
    return is_optional and _is_missing(draft, benchmarks)


def _is_missing(draft: CellDraft, benchmarks: Mapping[str, Benchmark]) -> bool:
    """Whether the local file with the questions of a cell does not exist."""
    benchmark = benchmarks.get(draft.axes.get("benchmark", ""))
    if benchmark is None:
        return False
    split = draft.axes.get("split", "")
    file = benchmark.files.get(benchmark.splits.get(split, split)) or benchmark.files.get(split)
    return file is not None and not source_exists(file)


def _read_by(draft: CellDraft) -> Iterator[CellDraft]:
    return (d for others in draft.inputs.values() for d in others)


def _may_be_empty(draft: CellDraft, name: str) -> bool:
    if draft.block is None or name.startswith("baseline_"):
        return True
    rule = draft.block.kind.inputs.get(name)
    return rule is not None and rule.many
