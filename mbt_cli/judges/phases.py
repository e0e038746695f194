"""Phases: which of the five metacognitive phases a trace shows, and how high its level is (MQI)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.judge_prompts import CONFIDENCE_SCHEMA, gold_answers_text
from mbt_cli.core.judge_replies import judged_text, undecorated
from mbt_cli.core.phases import read_observed
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import is_cut
from mbt_cli.interfaces import Judge


class Phases(Judge):
    """Rates the metacognition of a trace: level 0..5, phases present, confidence.

    An empty trace is a direct answer: level 0 without phases, by the rubric, and is not sent. A
    reply that was cut is not sent either: its columns are null.
    """

    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "gold_answer", "gold_answers", "difficulty", "trace"}
    )
    version: ClassVar[int] = 2
    columns: ClassVar[Mapping[str, pl.DataType]] = {
        "l_obs": pl.Int64(),
        "phases": pl.List(pl.Int64()),
        "confidence": pl.Float64(),
    }
    compared_column: ClassVar[str] = "l_obs"
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {
            "L_OBS": {"type": "integer", "minimum": 0, "maximum": 5},
            "PHASES": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 5},
                "maxItems": 5,
            },
            "CONFIDENCE": CONFIDENCE_SCHEMA,
        },
        "required": ["L_OBS", "PHASES", "CONFIDENCE"],
        "additionalProperties": False,
    }

    kind: Literal["phases"] = "phases"
    template: str = "phases"
    """Prompt template: the name of a shipped one or a file."""

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        return template.fill(
            {
                "question": row["question"],
                "gold_answer": row["gold_answer"],
                "gold_answers": gold_answers_text(row),
                "difficulty": row["difficulty"] or "medium",
                "trace": row["trace"],
            }
        )

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        observed = read_observed(undecorated(judged_text(reply)))
        return {
            "l_obs": observed.level,
            "phases": list(observed.phases),
            "confidence": observed.confidence,
        }

    def known(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if is_cut(row["finish_reason"]):
            return dict.fromkeys(self.columns)
        if row["trace"].strip():
            return None
        return {"l_obs": 0, "phases": [], "confidence": None}
