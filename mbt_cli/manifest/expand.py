"""From `[[stage]]` blocks to cells: matrix, variants and leading inputs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mbt_cli.core.names import nearest
from mbt_cli.manifest.blocks import QUESTIONS, Axes, Block, Draft
from mbt_cli.manifest.match import Meeting, Reference
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.schema import ordered_axes

_COMMON_AXES = ("benchmark", "split", "model")


class Expansion:
    """Expands stages in the manifest's order; a stage may read those before it."""

    def __init__(self, axes: Axes, problems: Problems, meeting: Meeting) -> None:
        self._axes = axes
        self._problems = problems
        self._meeting = meeting

    def add(self, block: Block) -> None:
        """Expand one stage into its cells and let later stages see them."""
        self._check_matrix(block)
        excluded = [
            self._axes.where(f"stage.{block.name}.exclude[{number}]", table)
            for number, table in enumerate(block.envelope.exclude)
        ]
        drafts = [
            draft
            for variant, fields in block.variants()
            for draft in self._variant(block, variant, fields)
        ]
        kept = [d for d in drafts if not any(_meets(d.axes, table) for table in excluded)]
        if drafts and not kept:
            self._problems.add(f"stage.{block.name}.exclude", "leaves no cell")
        if not drafts:
            self._check_references(block)
        for draft in kept:
            self._check_axes(block, draft)
            self._look_up_inputs(block, draft)
        self._meeting.stages[block.name] = kept

    def _variant(
        self, block: Block, variant: str | None, fields: Mapping[str, Any]
    ) -> Iterator[Draft]:
        points = self._axes.points(f"stage.{block.name}.matrix", block.envelope.matrix)
        own = {} if variant is None else {"variant": variant}
        for brought, inputs in self._leading(block, fields):
            for point in points:
                self._check_brought_once(block, brought, {*point, *own})
                axes = ordered_axes({**brought, **point, **own})
                filled = {**fields, **_axis_fields(block, point)}
                kind = block.kind.model_fields["kind"].default
                yield Draft(block.name, kind, block, axes, filled, dict(inputs))

    def _leading(
        self, block: Block, fields: Mapping[str, Any]
    ) -> list[tuple[dict[str, str], dict[str, tuple[Draft, ...]]]]:
        """Each cell of the leading input as (its axes, the input filled in)."""
        reference, name = self._leading_reference(block, fields)
        if not name:
            return [({}, {})]
        found = [] if reference is None else self._meeting.matching(block, name, reference)
        if reference is None:
            return []
        if not found and not self._problems:
            self._problems.add(f"stage.{block.name}.{name}", f"no cell of {reference.words()}")
        joined = reference.is_joined
        return [(d.joined_axes if joined else d.axes, {name: (d,)}) for d in found]

    def _leading_reference(
        self, block: Block, fields: Mapping[str, Any]
    ) -> tuple[Reference | None, str]:
        for name, rule in block.kind.inputs.items():
            if rule.leading and fields.get(name):
                return self._meeting.reference(block, name, rule, fields[name]), name
        return None, ""

    def _look_up_inputs(self, block: Block, draft: Draft) -> None:
        for name, rule in block.kind.inputs.items():
            written = draft.fields.get(name)
            if rule.leading or not written:
                continue
            reference = self._meeting.reference(block, name, rule, written)
            if reference is not None:
                draft.inputs[name] = self._meeting.meeting(block, draft, name, reference)
                if rule.with_questions:
                    draft.inputs[QUESTIONS] = self._questions_about(draft.inputs[name])
        if block.kind.reads_questions and {"benchmark", "split"} <= set(draft.axes):
            draft.inputs[QUESTIONS] = (self._meeting.questions_of(draft.axes),)
        if draft.fields.get("baseline"):
            self._look_up_baseline(block, draft, draft.fields["baseline"])

    def _questions_about(self, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
        """The questions that cells with a benchmark and a split are about, each once."""
        found = [
            self._meeting.questions_of(draft.axes)
            for draft in drafts
            if {"benchmark", "split"} <= set(draft.axes)
        ]
        return tuple(dict.fromkeys(found))

    def _look_up_baseline(self, block: Block, draft: Draft, change: Mapping[str, str]) -> None:
        """Inputs of the cell whose axes are this one's with some replaced."""
        reference, name = self._leading_reference(block, draft.fields)
        if reference is None:
            return
        for other in self._meeting.within(block, name, reference, {**draft.axes, **change}):
            draft.inputs["baseline_rollouts"] = (other,)
            draft.inputs["baseline_verdicts"] = self._verdicts_on(block, draft, other)

    def _verdicts_on(self, block: Block, draft: Draft, rollouts: Draft) -> tuple[Draft, ...]:
        written = draft.fields.get("verdicts")
        rule = block.kind.inputs.get("verdicts")
        if not written or rule is None:
            return ()
        reference = self._meeting.reference(block, "verdicts", rule, written)
        if reference is None:
            return ()
        return self._meeting.made_from(block, "verdicts", reference, rollouts)

    def _check_references(self, block: Block) -> None:
        """Say what is wrong with the inputs of a stage that came to no cell."""
        for _, fields in block.variants():
            for name, rule in block.kind.inputs.items():
                if fields.get(name):
                    self._meeting.reference(block, name, rule, fields[name])

    def _check_matrix(self, block: Block) -> None:
        where = f"stage.{block.name}.matrix"
        known = {*block.kind.axes, *block.kind.model_fields, *_COMMON_AXES} - {"kind", "name"}
        for axis in block.envelope.matrix:
            if axis not in known:
                self._problems.add(f"{where}.{axis}", f"unknown axis; {nearest(axis, known)}")

    def _check_brought_once(self, block: Block, brought: Mapping[str, str], own: set[str]) -> None:
        for axis in sorted(own & set(brought)):
            what = f"the input already brings the axis `{axis}`; choose among its values in `where`"
            self._problems.add(f"stage.{block.name}.matrix.{axis}", what)

    def _check_axes(self, block: Block, draft: Draft) -> None:
        for axis in block.kind.axes:
            if axis not in draft.axes:
                what = f"has no axis `{axis}`, which a {draft.kind} stage needs"
                self._problems.add(f"stage.{block.name}.matrix", what)


def _axis_fields(block: Block, point: Mapping[str, str]) -> dict[str, Any]:
    """Axes that are fields of the stage, with their values as they were written."""
    filled: dict[str, Any] = {}
    for axis, value in point.items():
        if axis in block.kind.model_fields:
            written = block.envelope.matrix[axis]
            items = written if isinstance(written, list) else [written]
            filled[axis] = next((i for i in items if str(i) == value), value)
    return filled


def _meets(axes: Mapping[str, str], table: Mapping[str, set[str]]) -> bool:
    return all(axes.get(axis) in values for axis, values in table.items())
