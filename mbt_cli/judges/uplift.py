"""Uplift: whether a reasoning helps to predict what an investigation finds out in the world."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl

from mbt_cli.core.chat import Json, Message, Wants
from mbt_cli.core.judge_scales import UPLIFT, Points, Scale
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import steps_of
from mbt_cli.interfaces import Judge
from mbt_cli.judges.scored_texts import PLACE, SCORE, scored_text

_TEMPLATES: Mapping[str, str] = {
    "plain": "uplift",
    "rephrased": "uplift_rephrased",
    "tool_call": "uplift_tool_call",
}


class Uplift(Judge):
    """The log-probability of the finding of each task, with the reasoning before it and without.

    The judge model is the forecaster. Tasks and findings are those of the stage's `investigations`
    on the same rollout. Each text that is scored has a row: of every task one with the reasoning
    (`sign` 1) and one without (`sign` -1), whose sum is the task's uplift.
    """

    quantity: ClassVar[str] = UPLIFT
    scale: ClassVar[Scale] = Points("logprob", low=-math.inf, high=0.0)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "notes", "task"})
    columns: ClassVar[Mapping[str, pl.DataType]] = {
        **PLACE,  # a trial is a task
        "task": pl.String(),
        **SCORE,
    }
    reply_schema: ClassVar[Mapping[str, Json]] = {}

    kind: Literal["uplift"] = "uplift"
    forecast: Literal["plain", "rephrased", "tool_call"] = "plain"
    """How the forecaster meets the finding: as the reply to the task; as a report in neutral words,
    for investigations with `rephrase`; or as what a tool call for the report gives back."""
    template: str = "uplift"
    """Prompt template: the name of a shipped one, or a path. Default: `uplift`, `uplift_rephrased`
    or `uplift_tool_call`, by `forecast`; `{{ notes }}` is the reasoning as a block, or empty."""

    @classmethod
    def usual_templates(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        name = given.get("forecast", "plain")
        return {"template": _TEMPLATES[name]} if name in _TEMPLATES else {}

    def wants(self) -> Wants:
        return "likelihood"

    def reads_investigations(self) -> bool:
        return True

    def views(self, row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        key = (row["question_id"], row["sample"])
        notes = "\n\n".join(steps_of(row))
        return [
            {
                "question_id": row["question_id"],
                "sample": row["sample"],
                "question": row["question"],
                "step": 2 * number + part,
                "trial": number,
                "texts": 2,
                "sign": sign,
                "task": one["task"],
                "finding": one["finding"],
                "notes": notes if sign > 0 else "",
            }
            for number, one in enumerate(row["investigations"].get(key, ()))
            for part, sign in enumerate((1, -1))
        ]

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        notes = row["notes"]
        block = f"Notes of an analyst:\n<notes>\n{notes}\n</notes>\n\n" if notes else ""
        values = {"question": row["question"], "notes": block, "task": row["task"]}
        return [*template.fill(values), {"role": "assistant", "content": row["finding"]}]

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**scored_text(reply, row), "task": row["task"]}
