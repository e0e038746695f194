"""A cell before its names are resolved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mbt_cli.manifest.blocks import Block
from mbt_cli.manifest.document import address_of

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
