"""Which cells an input reads: references, `where`, and the meeting of axes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mbt_cli.core.names import nearest
from mbt_cli.manifest.blocks import QUESTIONS, Axes, Block, Draft
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.schema import address_of
from mbt_cli.stages.base import InputRule
from mbt_cli.stages.kinds import IMPLICIT


@dataclass(frozen=True)
class Reference:
    """An input as written: its stages, and the values that `where` allows on their axes."""

    stages: tuple[str, ...]
    where: Mapping[str, set[str]]

    @property
    def is_joined(self) -> bool:
        """Whether several stages are read as one."""
        return len(self.stages) > 1

    def words(self) -> str:
        """The reference for people."""
        stages = ", ".join(f"`{s}`" for s in self.stages)
        parts = [f"{a} = {' or '.join(sorted(v))}" for a, v in self.where.items()]
        return stages + (f" with {', '.join(parts)}" if parts else "")


class Meeting:
    """Finds the cells behind input fields, among the stages expanded so far.

    Args:
        order: Names of all stages in the manifest's order.
        circles: Names of stages that read each other in a circle, reported elsewhere.
        broken: Names of stages that are too wrong to be expanded, reported elsewhere.
    """

    def __init__(
        self,
        axes: Axes,
        problems: Problems,
        order: Sequence[str],
        circles: set[str],
        broken: set[str],
    ) -> None:
        self._axes = axes
        self._problems = problems
        self._order = order
        self._circles = circles
        self._broken = broken
        self._found: dict[tuple[str, str, str], list[Draft]] = {}
        self._indexes: dict[tuple[Any, ...], Mapping[Any, Any]] = {}
        self.stages: dict[str, list[Draft]] = {}
        self.questions: dict[str, Draft] = {}

    def reference(self, block: Block, name: str, rule: InputRule, written: Any) -> Reference | None:
        """The input as written, or None when it names stages that it cannot read."""
        where = f"stage.{block.name}.{name}"
        if rule.kinds == (QUESTIONS,):
            if not isinstance(written, dict):
                return None  # which the stage's own check names
            return Reference((QUESTIONS,), self._axes.where(where, written))
        table = written if isinstance(written, dict) else {"stage": written}
        names = table.get("stage", ())
        stages = (names,) if isinstance(names, str) else tuple(names)
        good = [s for s in stages if self._is_readable(where, block, s, rule)]
        if len(good) != len(stages) or not stages:
            return None
        return Reference(stages, self._axes.where(f"{where}.where", table.get("where", {})))

    def matching(self, block: Block, name: str, reference: Reference) -> list[Draft]:
        """All cells of the reference's stages that its `where` and the stage's own allow."""
        key = (block.name, name, reference.words())
        if key not in self._found:
            self._found[key] = self._match(block, name, reference)
        return self._found[key]

    def meeting(
        self, block: Block, draft: Draft, name: str, reference: Reference
    ) -> tuple[Draft, ...]:
        """Cells that meet `draft`: equal on shared axes, apart from those that `where` names."""
        rule = block.kind.inputs[name]
        found: list[Draft] = []
        for stage in reference.stages:
            meet = self._meeting_of(block, draft, name, reference, stage)
            if rule.same_rollouts:
                own = draft.inputs["rollouts"][0]
                meet = [d for d in meet if d.inputs["rollouts"][0] is own]
            if not rule.many:
                self._exactly_one(draft, name, stage, meet)
            found.extend(meet)
        return tuple(found)

    def within(
        self, block: Block, name: str, reference: Reference, axes: Mapping[str, str]
    ) -> list[Draft]:
        """Cells of a reference all of whose axes have the values that `axes` says."""
        key = (block.name, name, reference.words(), "axes")
        if key not in self._indexes:
            by_keys: dict[tuple[str, ...], dict[tuple[str, ...], list[Draft]]] = {}
            for draft in self.matching(block, name, reference):
                own = draft.joined_axes if reference.is_joined else draft.axes
                values = by_keys.setdefault(tuple(own), {})
                values.setdefault(tuple(own.values()), []).append(draft)
            self._indexes[key] = by_keys
        return [
            draft
            for names, values in self._indexes[key].items()
            for draft in values.get(tuple(axes.get(n) for n in names), ())
        ]

    def made_from(
        self, block: Block, name: str, reference: Reference, rollouts: Draft
    ) -> tuple[Draft, ...]:
        """Cells of a reference that were made from these rollouts."""
        key = (block.name, name, reference.words(), "rollouts")
        if key not in self._indexes:
            index = defaultdict(list)
            for draft in self.matching(block, name, reference):
                index[id(draft.inputs["rollouts"][0])].append(draft)
            self._indexes[key] = index
        return tuple(self._indexes[key].get(id(rollouts), ()))

    def questions_of(self, axes: Mapping[str, str]) -> Draft:
        """The questions cell of a benchmark's split, made when it is first needed."""
        own = {"benchmark": axes["benchmark"], "split": axes["split"]}
        address = address_of(QUESTIONS, own)
        if address not in self.questions:
            kind = IMPLICIT.model_fields["kind"].default
            self.questions[address] = Draft(QUESTIONS, kind, None, own, {})
        return self.questions[address]

    def _meeting_of(
        self, block: Block, draft: Draft, name: str, reference: Reference, stage: str
    ) -> list[Draft]:
        all_of_it = self._of_stage(block, name, reference, stage)
        if not all_of_it:
            return []
        theirs = all_of_it[0].axes
        shared = tuple(a for a in theirs if a in draft.axes and a not in reference.where)
        key = (block.name, name, f"{reference.words()} {stage}", shared)
        if key not in self._indexes:
            index = defaultdict(list)
            for other in all_of_it:
                index[tuple(other.axes[a] for a in shared)].append(other)
            self._indexes[key] = index
        return list(self._indexes[key].get(tuple(draft.axes[a] for a in shared), ()))

    def _of_stage(
        self, block: Block, name: str, reference: Reference, stage: str
    ) -> Sequence[Draft]:
        key = (block.name, name, reference.words(), "stage")
        if key not in self._indexes:
            index = defaultdict(list)
            for draft in self.matching(block, name, reference):
                index[draft.stage].append(draft)
            self._indexes[key] = index
        found: Sequence[Draft] = self._indexes[key].get(stage, ())
        return found

    def _match(self, block: Block, name: str, reference: Reference) -> list[Draft]:
        whole_stage = self._axes.where(f"stage.{block.name}.where", block.envelope.where)
        found: list[Draft] = []
        for stage in reference.stages:
            drafts = self._drafts_of(stage, reference)
            for axis in reference.where if drafts else ():
                if axis not in drafts[0].joined_axes:
                    where = f"stage.{block.name}.{name}.where.{axis}"
                    what = f"`{stage}` has no such axis; {nearest(axis, drafts[0].axes)}"
                    self._problems.add(where, what)
            found.extend(d for d in drafts if _allows(reference.where, whole_stage, d))
        return found

    def _drafts_of(self, stage: str, reference: Reference) -> list[Draft]:
        if stage != QUESTIONS:
            return self.stages.get(stage, [])
        return [
            self.questions_of({"benchmark": benchmark, "split": split})
            for benchmark in sorted(reference.where.get("benchmark", ()))
            for split in sorted(reference.where.get("split", ()))
        ]

    def _exactly_one(self, draft: Draft, name: str, stage: str, found: Sequence[Draft]) -> None:
        where = f"stage.{draft.stage}.{name}"
        if not found:
            self._problems.add(where, f"no cell of `{stage}` meets `{draft.address}`")
        elif len(found) > 1:
            over = [a for a in found[0].axes if len({d.axes.get(a) for d in found}) > 1]
            axes = ", ".join(f"`{a}`" for a in over)
            what = f"{len(found)} cells of `{stage}` meet `{draft.address}`; say {axes} in `where`"
            self._problems.add(where, what)

    def _is_readable(self, where: str, block: Block, stage: str, rule: InputRule) -> bool:
        if stage == block.name:
            self._problems.add(where, f"`{stage}` would read itself")
        elif stage not in self.stages:
            self._say_why_not_there(where, block, stage)
        elif self.stages[stage] and self.stages[stage][0].kind not in rule.kinds:
            kinds = " or ".join(rule.kinds)
            kind = self.stages[stage][0].kind
            self._problems.add(where, f"`{stage}` is a {kind} stage; this reads {kinds}")
        else:
            return True
        return False

    def _say_why_not_there(self, where: str, block: Block, stage: str) -> None:
        if stage not in self._order:
            self._problems.add(where, f"no stage `{stage}`; {nearest(stage, self._order)}")
        elif stage in self._broken:
            return
        elif stage not in self._circles or block.name not in self._circles:
            what = f"`{stage}` stands later in the file; a stage reads earlier ones only"
            self._problems.add(where, what)


def _allows(own: Mapping[str, set[str]], whole_stage: Mapping[str, set[str]], draft: Draft) -> bool:
    axes = draft.joined_axes
    if not all(axes.get(axis) in values for axis, values in own.items()):
        return False
    # the stage's own `where` holds for inputs that have the axis and say nothing of it themselves
    return all(axes[a] in v for a, v in whole_stage.items() if a in draft.axes and a not in own)
