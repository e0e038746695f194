"""One `[[stage]]` as written: its envelope apart from the fields of its kind."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pydantic import ValidationError

from mbt_cli.core.names import nearest
from mbt_cli.core.recipe import Recipe
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.schema import NAME_PATTERN, Document, StageBlock, address_of
from mbt_cli.manifest.toml import merged
from mbt_cli.registry import TRAINERS
from mbt_cli.stages.base import Stage
from mbt_cli.stages.kinds import STAGES
from mbt_cli.stages.train import TrainStage
from mbt_cli.trainers.known_keys import known_keys

_ENVELOPE = frozenset(StageBlock.model_fields)
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True)
class Block:
    """A stage as written, checked as far as it can be without the other stages."""

    envelope: StageBlock
    kind: type[Stage]
    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.envelope.name

    def variants(self) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
        """Each variant's name and fields; one nameless variant where there are none."""
        if not self.envelope.variants:
            yield None, self.fields
        for name, overrides in self.envelope.variants.items():
            yield name, merged(self.fields, overrides)


def read_block(raw: Mapping[str, Any], position: int, problems: Problems) -> Block | None:
    """Split a raw `[[stage]]`; None when it is too wrong to go on with."""
    where = f"stage.{raw['name']}" if isinstance(raw.get("name"), str) else f"stage[{position}]"
    kind = STAGES.get(str(raw.get("kind")))
    if kind is None:
        value = raw.get("kind")
        what = "is required and not there" if value is None else f"no kind of stage `{value}`"
        problems.add(f"{where}.kind", f"{what}; {nearest(str(value), STAGES)}")
        return None
    known = _ENVELOPE | set(kind.model_fields)
    envelope = {k: v for k, v in raw.items() if k in _ENVELOPE}
    fields = {k: v for k, v in raw.items() if k not in _ENVELOPE}
    for key in fields:
        if key not in kind.model_fields:
            problems.add(f"{where}.{key}", _unknown(key, kind, known))
    for name, overrides in dict(envelope.get("variants") or {}).items():
        for key in overrides if isinstance(overrides, dict) else ():
            if key not in kind.model_fields and key != "source":
                what = _unknown(key, kind, kind.model_fields)
                problems.add(f"{where}.variants.{name}.{key}", what)
    try:
        checked = StageBlock.model_validate(envelope)
    except ValidationError as error:
        problems.add_validation(where, error, known)
        return None
    return Block(checked, kind, {k: v for k, v in fields.items() if k in kind.model_fields})


def _unknown(key: str, kind: type[Stage], known: Collection[str]) -> str:
    tables: dict[str, Collection[str]] = {}
    if kind is TrainStage:
        methods = TRAINERS.kinds().values()
        tables["recipe"] = {*Recipe.model_fields, *(f for m in methods for f in m.model_fields)}
        tables["trainer"] = {key for method in methods for key in method.trainer_keys()}
        tables["lora"] = known_keys()["lora"]
    place = next((name for name, keys in tables.items() if key in keys), None)
    return f"unknown key; {f'it stands in `{place}`' if place else nearest(key, known)}"


class Axes:
    """Reads axis values: groups spelled out, names checked."""

    def __init__(
        self, document: Document, problems: Problems, blocks: Sequence[Block] = ()
    ) -> None:
        self._groups = document.groups
        self._problems = problems
        self._named: Mapping[str, Collection[str]] = {
            "benchmark": document.benchmarks,
            "model": {*document.models, *_models_elsewhere(blocks)},
        }
        self._is_broken = document.is_broken

    def values(self, where: str, axis: str, written: Any) -> list[str]:
        """The values of one axis, `@group` replaced by its names; wrong ones become problems."""
        items = written if isinstance(written, list) else [written]
        found: list[str] = []
        for item in items:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            if text.startswith("@"):
                found.extend(self._group(where, text[1:]))
            else:
                found.append(text)
        good = [v for v in dict.fromkeys(found) if self._is_valid(where, axis, v)]
        if not items:
            self._problems.add(where, "is an empty list, so the stage has no cells")
        return good

    def where(self, where: str, table: Mapping[str, Any]) -> dict[str, set[str]]:
        """A `where` table as axis to the values allowed."""
        return {a: set(self.values(f"{where}.{a}", a, v)) for a, v in table.items()}

    def points(self, where: str, matrix: Mapping[str, Any]) -> list[dict[str, str]]:
        """Every combination of a matrix."""
        lists = {a: self.values(f"{where}.{a}", a, v) for a, v in matrix.items()}
        return [dict(zip(lists, point, strict=True)) for point in product(*lists.values())]

    def _group(self, where: str, name: str) -> list[str]:
        if name not in self._groups:
            self._problems.add(where, f"no group `@{name}`; {nearest(name, self._groups)}")
            return []
        return list(self._groups[name])

    def _is_valid(self, where: str, axis: str, value: str) -> bool:
        if not _NAME.match(value):
            self._problems.add(
                where,
                f"`{value}` cannot be an axis value: letters, digits and `._+-` only, "
                "64 at most, a letter or digit first",
            )
            return False
        known = self._named.get(axis)
        if known is not None and value not in known and not self._is_broken(f"{axis}s", value):
            self._problems.add(where, f"no {axis} `{value}`; {nearest(value, known)}")
            return False
        return True


def _models_elsewhere(blocks: Sequence[Block]) -> set[str]:
    """Models that answered elsewhere: a stage with a `source` may name some of its own."""
    found: set[str] = set()
    for block in blocks:
        if block.envelope.source is not None:
            written = block.envelope.matrix.get("model", ())
            found |= {str(v) for v in (written if isinstance(written, list) else [written])}
    return found


QUESTIONS = "questions"


@dataclass(eq=False)
class Draft:
    """A cell of a stage.

    Args:
        block: The stage it belongs to; None for questions.
        axes: Axis to value, in the order of addresses.
        fields: The stage's fields with variant and axes applied.
        inputs: Input field to the drafts that it reads.
    """

    stage: str
    kind: str
    block: Block | None
    axes: dict[str, str]
    fields: Mapping[str, Any]
    inputs: dict[str, tuple["Draft", ...]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where the cell stands."""
        return address_of(self.stage, self.axes)

    @property
    def joined_axes(self) -> dict[str, str]:
        """Axes when read beside other stages: the stage's name stands in for a variant."""
        return {"variant": self.stage, **self.axes}
