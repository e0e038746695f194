"""Input matching: which cells an input of a stage reads."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from mbt_cli.core.addresses import STEP
from mbt_cli.core.names import NAME_PATTERN, NAME_RULE, closest, nearest
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.schema import Block, Document, address_of, ordered_axes
from mbt_cli.stages.base import InputRule, axis_text
from mbt_cli.stages.checkpoints import ALL_STEPS, TRAINING
from mbt_cli.stages.questions import QUESTIONS

_TABLES = {"model": "models", "benchmark": "benchmarks", "harness": "harnesses"}
"""Axis to the table of the manifest that holds its values."""
_ABOUT_ROLLOUTS: Mapping[tuple[str, ...], tuple[str, str, str]] = {
    ("judge",): ("judges", "judge", "choose a value of `judge` in `where`"),
    ("score",): ("scores", "score", "choose one with `where`, or name one stage"),
}
"""Kinds of stages about rollouts to what one and several of them do, and how to choose one."""
TRAIN = "train"
StepsOf = Callable[[str], Sequence[int]]
"""The steps whose checkpoints a train cell has published, by its address."""


@dataclass(eq=False)
class CellDraft:
    """A cell whose names are not resolved yet.

    Args:
        block: The stage it belongs to; None for questions.
        axes: Axis to value, in the order of addresses.
        fields: The stage's fields with variant and axes applied.
        inputs: Input field to the cells that it reads.
        steps: Of a training, the steps whose checkpoints other cells read, or `all`.
    """

    stage: str
    kind: str
    block: Block | None
    axes: dict[str, str]
    fields: Mapping[str, Any]
    inputs: dict[str, tuple["CellDraft", ...]] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)

    @property
    def address(self) -> str:
        """The cell's address."""
        return address_of(self.stage, self.axes)

    @property
    def joined_axes(self) -> dict[str, str]:
        """Axes of the cell among joined stages: the stage's name replaces a missing variant."""
        return {"variant": self.stage, **self.axes}


@dataclass(frozen=True)
class Reference:
    """An input as written: its stages, and the values that `where` allows on their axes."""

    stages: tuple[str, ...]
    where: Mapping[str, set[str]]

    @property
    def is_joined(self) -> bool:
        """Whether several stages are read as one."""
        return len(self.stages) > 1

    def __str__(self) -> str:
        stages = ", ".join(f"`{s}`" for s in self.stages)
        parts = [f"{a} = {' or '.join(sorted(v))}" for a, v in self.where.items()]
        return stages + (f" with {', '.join(parts)}" if parts else "")


class InputMatching:
    """Finds the cells behind input fields, among the stages that are expanded so far.

    Args:
        document: The manifest's tables.
        problems: Collects the problems.
        cycle: Names of stages that read each other in a cycle, which are reported already.
        steps_of: The steps that a training has published.

    Attributes:
        stages: Stage to its cells.
        steps: Address to cell, for the checkpoints of single steps.
        waiting: Stages without cells until a training publishes its first checkpoint.
    """

    def __init__(
        self,
        document: Document,
        problems: Problems,
        cycle: Collection[str],
        steps_of: StepsOf,
    ) -> None:
        self._document = document
        self._problems = problems
        self._cycle = cycle
        self._steps_of = steps_of
        self._names: Mapping[str, Collection[str]] = {
            "benchmark": document.benchmarks,
            "model": {*document.models, *_models_of_sources(document.blocks)},
            "harness": document.harnesses,
        }
        self._matches: dict[tuple[str, str, str], list[CellDraft]] = {}
        self._indexes: dict[tuple[Any, ...], Mapping[Any, Any]] = {}
        self.stages: dict[str, list[CellDraft]] = {}
        self.questions: dict[str, CellDraft] = {}
        self.steps: dict[str, CellDraft] = {}
        self.waiting: set[str] = set()

    def waits(self, reference: Reference) -> bool:
        """Whether cells of a reference are known only once a training publishes a checkpoint."""
        is_open = ALL_STEPS in reference.where.get(STEP, ())
        return is_open or any(stage in self.waiting for stage in reference.stages)

    def axis_values(self, where: str, axis: str, written: Any) -> list[str]:
        """The values of an axis, with `@group` replaced by its names."""
        items = written if isinstance(written, list) else [written]
        if not items:
            self._problems.add(where, "is an empty list, so the stage has no cells")
        values: list[str] = []
        for item in items:
            text = axis_text(item)
            if not text.startswith("@"):
                values.append(text)
            elif text[1:] in self._document.groups:
                values.extend(self._document.groups[text[1:]])
            else:
                groups = self._document.groups
                makes = f"`[groups]` makes one: `{text[1:]} = [...]`"
                near = nearest(text[1:], groups) if groups else makes
                self._problems.add(where, f"no group `{text}`; {near}")
        return [v for v in dict.fromkeys(values) if self._is_valid_value(where, axis, v)]

    def where(self, where: str, table: Mapping[str, Any]) -> dict[str, set[str]]:
        """A `where` table as axis to the values allowed."""
        return {a: set(self.axis_values(f"{where}.{a}", a, v)) for a, v in table.items()}

    def points(self, where: str, matrix: Mapping[str, Any]) -> list[dict[str, str]]:
        """Every combination of a matrix."""
        lists = {a: self.axis_values(f"{where}.{a}", a, v) for a, v in matrix.items()}
        return [dict(zip(lists, point, strict=True)) for point in product(*lists.values())]

    def reference(self, block: Block, name: str, rule: InputRule, written: Any) -> Reference | None:
        """The input as written; None if it names stages that it cannot read."""
        where = f"stage.{block.name}.{name}"
        if rule.kinds == (QUESTIONS,):
            if not isinstance(written, dict):
                return None  # reported when the stage's fields are checked
            return Reference((QUESTIONS,), self.where(where, written))
        table = written if isinstance(written, dict) else {"stage": written}
        names = table.get("stage", ())
        stages = (names,) if isinstance(names, str) else tuple(names)
        readable = [s for s in stages if self._is_readable(where, block, s, rule)]
        if len(readable) != len(stages) or not stages:
            return None
        return Reference(stages, self.where(f"{where}.where", table.get("where", {})))

    def all_of(self, block: Block, name: str, reference: Reference) -> list[CellDraft]:
        """Every cell of a reference that its `where` and the stage's own allow."""
        key = (block.name, name, str(reference))
        if key not in self._matches:
            self._matches[key] = self._find_all(block, name, reference)
        return self._matches[key]

    def matching(
        self, block: Block, draft: CellDraft, name: str, reference: Reference
    ) -> tuple[CellDraft, ...]:
        """Cells that match `draft`: equal on shared axes, apart from those that `where` names."""
        rule = block.kind.inputs[name]
        if rule.judges:
            return self._judging(block, draft, name, reference)
        if rule.per_questions:
            return self._of_questions(block, draft, name, reference)
        found: list[CellDraft] = []
        for stage in reference.stages:
            matches = self._on_shared_axes(block, draft, name, reference, stage)
            if rule.same_rollouts:
                own = draft.inputs.get("rollouts", ())[:1]
                matches = [d for d in matches if own and d.inputs.get("rollouts", ())[:1] == own]
            if not rule.many:
                self._check_number(draft, name, stage, matches, several=rule.several)
                if not matches:
                    whole = [d for d in self.all_of(block, name, reference) if d.stage == stage]
                    self._say_none(draft, name, reference, stage, whole)
            found.extend(matches)
        return tuple(found)

    def with_axes(
        self, block: Block, name: str, reference: Reference, axes: Mapping[str, str]
    ) -> list[CellDraft]:
        """Cells of a reference whose axes all have the values given."""
        key = (block.name, name, str(reference), "axes")
        if key not in self._indexes:
            by_names: dict[tuple[str, ...], dict[tuple[str, ...], list[CellDraft]]] = {}
            for draft in self.all_of(block, name, reference):
                own = draft.joined_axes if reference.is_joined else draft.axes
                by_values = by_names.setdefault(tuple(own), {})
                by_values.setdefault(tuple(own.values()), []).append(draft)
            self._indexes[key] = by_names
        return [
            draft
            for names, by_values in self._indexes[key].items()
            for draft in by_values.get(tuple(axes.get(n) for n in names), ())
        ]

    def made_from(
        self, block: Block, name: str, reference: Reference, rollouts: CellDraft
    ) -> tuple[CellDraft, ...]:
        """Cells of a reference that were made from these rollouts."""
        key = (block.name, name, str(reference), "rollouts")
        if key not in self._indexes:
            index = defaultdict(list)
            for draft in self.all_of(block, name, reference):
                index[id(draft.inputs["rollouts"][0])].append(draft)
            self._indexes[key] = index
        return tuple(self._indexes[key].get(id(rollouts), ()))

    def questions_of(self, axes: Mapping[str, str]) -> CellDraft:
        """The questions cell of a benchmark's split, made when it is first needed."""
        own = {"benchmark": axes["benchmark"], "split": axes["split"]}
        address = address_of(QUESTIONS, own)
        if address not in self.questions:
            self.questions[address] = CellDraft(QUESTIONS, QUESTIONS, None, own, {})
        return self.questions[address]

    def shots_of(self, axes: Mapping[str, str]) -> CellDraft | None:
        """The questions from which a benchmark draws worked examples; None without a split."""
        benchmark = self._document.benchmarks.get(axes["benchmark"])
        if benchmark is None or benchmark.shots is None or benchmark.shots.split is None:
            return None
        return self.questions_of({**axes, "split": benchmark.shots.split})

    def _is_valid_value(self, where: str, axis: str, value: str) -> bool:
        if not re.match(NAME_PATTERN, value):
            rule = NAME_RULE
            if value.startswith("["):
                rule = 'each text of a list stands in quotes: `--set \'KEY=["a", "b"]\'`'
            elif "/" in value and axis == "prompt":
                rule = (
                    "a path needs a name, which `[stage.variants]` gives it in place of the "
                    f'matrix: `mine = {{ prompt = "{value}" }}`'
                )
            self._problems.add(where, f"`{value}` is not a valid axis value: {rule}")
            return False
        known = self._names.get(axis)
        if known is not None and value not in known:
            is_new = axis in _TABLES and closest(value, known) is None
            new = f"; add a table `[{_TABLES[axis]}.{value}]`" if is_new else ""
            self._problems.add(where, f"no {axis} `{value}`; {nearest(value, known)}{new}")
            return False
        return True

    def _find_all(self, block: Block, name: str, reference: Reference) -> list[CellDraft]:
        of_stage = self.where(f"stage.{block.name}.where", block.envelope.where)
        found: list[CellDraft] = []
        for stage in reference.stages:
            drafts, wanted = self._drafts_of(stage, reference), dict(reference.where)
            steps = wanted.get(STEP, set())
            if steps and drafts and drafts[0].kind == TRAIN:
                if STEP not in drafts[0].axes:
                    others = {axis: v for axis, v in wanted.items() if axis != STEP}
                    own = {axis: v for axis, v in of_stage.items() if axis != STEP}
                    read = [d for d in drafts if _allows(others, own, d)]
                    where = f"stage.{block.name}.{name}.where.{STEP}"
                    drafts = list(self._at_steps(where, read, steps)) if read else drafts
                if ALL_STEPS in steps:
                    del wanted[STEP]
            for axis in wanted if drafts else ():
                if axis not in drafts[0].joined_axes:
                    where = f"stage.{block.name}.{name}.where.{axis}"
                    what = f"`{stage}` has no axis `{axis}`; {nearest(axis, drafts[0].axes)}"
                    self._problems.add(where, what)
            found.extend(d for d in drafts if _allows(wanted, of_stage, d))
        if not found and not block.kind.inputs[name].many:
            self._check_values(block, name, reference, of_stage)
        return found

    def _check_values(
        self, block: Block, name: str, reference: Reference, of_stage: Mapping[str, set[str]]
    ) -> None:
        """Values of `where` that no cell of the stages has, with those that there are."""
        drafts = [d for stage in reference.stages for d in self._drafts_of(stage, reference)]
        tables = {f"{name}.where": reference.where, "where": of_stage}
        for key, table in tables.items():
            for axis, values in table.items():
                known = {d.joined_axes[axis] for d in drafts if axis in d.joined_axes}
                if axis == STEP or not known or values & known:
                    continue
                value = min(values, default="")
                what = f"no cell of {', '.join(f'`{stage}`' for stage in reference.stages)} has"
                where = f"stage.{block.name}.{key}.{axis}"
                self._problems.add(where, f"{what} `{value}`; {nearest(value, known)}")

    def _at_steps(
        self, where: str, trainings: Sequence[CellDraft], steps: set[str]
    ) -> Iterator[CellDraft]:
        """The cells of the checkpoints of some steps, made when they are first needed."""
        for step in sorted(steps - {ALL_STEPS}):
            if not (step.isascii() and step.isdecimal() and int(step) and step == str(int(step))):
                what = f"`{step}` is not a step: write whole numbers from 1, or `{ALL_STEPS}`"
                self._problems.add(where, what)
                return
        for training in trainings:
            if training.fields.get("source") or (
                training.block is not None and training.block.envelope.source is not None
            ):
                what = (
                    f"`{training.stage}` has a `source`, so it publishes no steps: give it the "
                    f'axis `{STEP}` and a source such as "runs/x-{{{STEP}}}"'
                )
                self._problems.add(where, what)
                return
            training.steps |= steps
            found = {int(step) for step in steps - {ALL_STEPS}}
            if ALL_STEPS in steps:
                found |= set(self._steps_of(training.address))
            for number in sorted(found):
                axes = ordered_axes({**training.axes, STEP: str(number)})
                address = address_of(training.stage, axes)
                if address not in self.steps:
                    self.steps[address] = CellDraft(
                        training.stage,
                        training.kind,
                        training.block,
                        axes,
                        training.fields,
                        {TRAINING: (training,)},
                    )
                yield self.steps[address]

    def _drafts_of(self, stage: str, reference: Reference) -> list[CellDraft]:
        if stage != QUESTIONS:
            return self.stages.get(stage, [])
        return [
            self.questions_of({"benchmark": benchmark, "split": split})
            for benchmark in sorted(reference.where.get("benchmark", ()))
            for split in sorted(reference.where.get("split", ()))
        ]

    def _on_shared_axes(
        self, block: Block, draft: CellDraft, name: str, reference: Reference, stage: str
    ) -> list[CellDraft]:
        """Cells of one stage that equal `draft` on the axes that both have."""
        key: tuple[Any, ...] = (block.name, name, str(reference), "stage")
        if key not in self._indexes:
            by_stage = defaultdict(list)
            for other in self.all_of(block, name, reference):
                by_stage[other.stage].append(other)
            self._indexes[key] = by_stage
        of_stage: list[CellDraft] = self._indexes[key].get(stage, [])
        if not of_stage:
            return []
        shared = tuple(a for a in of_stage[0].axes if a in draft.axes and a not in reference.where)
        key = (block.name, name, f"{reference} {stage}", shared)
        if key not in self._indexes:
            by_values = defaultdict(list)
            for other in of_stage:
                by_values[tuple(other.axes.get(a) for a in shared)].append(other)
            self._indexes[key] = by_values
        return list(self._indexes[key].get(tuple(draft.axes[a] for a in shared), ()))

    def _check_number(
        self,
        draft: CellDraft,
        name: str,
        stage: str,
        found: Sequence[CellDraft],
        *,
        several: bool,
    ) -> None:
        where = f"stage.{draft.stage}.{name}"
        if len(found) > 1 and not several:
            over = [a for a in found[0].axes if len({d.axes.get(a) for d in found}) > 1]
            axes = ", ".join(f"`{a}`" for a in over)
            what = f"{len(found)} cells of `{stage}` match `{draft.address}`"
            self._problems.add(where, f"{what}; choose a value of {axes} in `where`")

    def _say_none(
        self,
        draft: CellDraft,
        name: str,
        reference: Reference,
        stage: str,
        whole: Sequence[CellDraft],
    ) -> None:
        """That no cell of a stage matches, and on which axis they part."""
        what = f"no cell of `{stage}` matches `{draft.address}`"
        for axis, value in draft.axes.items():
            values = {d.axes[axis] for d in whole if axis in d.axes}
            if values and value not in values and axis not in reference.where:
                have = ", ".join(f"`{one}`" for one in sorted(values)[:6])
                example = f'{{ stage = "{stage}", where = {{ {axis} = "{min(values)}" }} }}'
                what += f": its `{axis}` is {have}, not `{value}`; to read it, write `{example}`"
                break
        self._problems.add(f"stage.{draft.stage}.{name}", what)

    def _judging(
        self, block: Block, draft: CellDraft, name: str, reference: Reference
    ) -> tuple[CellDraft, ...]:
        """The one cell with verdicts on each cell of another input; reports where there is none."""
        rule, where = block.kind.inputs[name], f"stage.{draft.stage}.{name}"
        found: list[CellDraft] = []
        judged = [cell for other in rule.judges for cell in draft.inputs.get(other, ())]
        for cell in dict.fromkeys(judged):
            matches = self.made_from(block, name, reference, cell)
            does, do, by = _ABOUT_ROLLOUTS[rule.kinds]
            if not matches:
                self._problems.add(where, f"no cell of {reference} {does} `{cell.address}`")
            elif len(matches) > 1:
                what = f"{len(matches)} cells of {reference} {do} `{cell.address}`"
                self._problems.add(where, f"{what}; {by}")
            found.extend(matches)
        return tuple(found)

    def _of_questions(
        self, block: Block, draft: CellDraft, name: str, reference: Reference
    ) -> tuple[CellDraft, ...]:
        """The one cell about each of the questions that are read; reports where there is none."""
        where = f"stage.{draft.stage}.{name}"
        matches = [
            other
            for stage in reference.stages
            for other in self._on_shared_axes(block, draft, name, reference, stage)
        ]
        found: list[CellDraft] = []
        for asked in draft.inputs.get(QUESTIONS, ()):
            own = [d for d in matches if all(d.axes.get(a) == v for a, v in asked.axes.items())]
            if not own:
                self._problems.add(where, f"no cell of {reference} is about `{asked.address}`")
            elif len(own) > 1:
                over = [a for a in own[0].axes if len({d.axes.get(a) for d in own}) > 1]
                axes = ", ".join(f"`{a}`" for a in over) or "`variant`"
                what = f"{len(own)} cells of {reference} are about `{asked.address}`"
                self._problems.add(where, f"{what}; choose a value of {axes} in `where`")
            found.extend(own)
        return tuple(found)

    def _is_readable(self, where: str, block: Block, stage: str, rule: InputRule) -> bool:
        """Whether an input may read a stage; reports why not."""
        names = [other.name for other in self._document.blocks]
        if stage == block.name:
            self._problems.add(where, f"`{stage}` cannot read itself")
        elif stage not in names:
            self._problems.add(where, f"no stage `{stage}`; {nearest(stage, names)}")
        elif stage not in self.stages:
            if stage not in self._cycle or block.name not in self._cycle:
                what = f"`{stage}` is defined later; a stage can only read earlier ones"
                self._problems.add(where, what)
        elif self.stages[stage] and self.stages[stage][0].kind not in rule.kinds:
            kinds = " or ".join(rule.kinds)
            kind = self.stages[stage][0].kind
            self._problems.add(where, f"`{stage}` is a {kind} stage; this reads {kinds} stages")
        else:
            return True
        return False


def _models_of_sources(blocks: Sequence[Block]) -> set[str]:
    """Models that a stage with a `source` names: its data may come from models elsewhere."""
    found: set[str] = set()
    for block in blocks:
        if block.envelope.source is not None:
            written = block.envelope.matrix.get("model", ())
            found |= {str(v) for v in (written if isinstance(written, list) else [written])}
    return found


def _allows(
    own: Mapping[str, set[str]], of_stage: Mapping[str, set[str]], draft: CellDraft
) -> bool:
    axes = draft.joined_axes
    if not all(axes.get(axis) in values for axis, values in own.items()):
        return False
    # the stage's own `where` holds for inputs that have the axis and do not name it themselves
    return all(axes[a] in v for a, v in of_stage.items() if a in draft.axes and a not in own)
