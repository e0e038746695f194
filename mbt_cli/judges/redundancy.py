"""Redundancy: where the trace first reaches the answer, and which paragraphs add nothing (RRP)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.judge_prompts import CONFIDENCE_SCHEMA, gold_answers_text
from mbt_cli.core.judge_replies import judged_text, undecorated
from mbt_cli.core.redundancy import read_marks, sentence_counts
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import mark, paragraphs, unjudgeable
from mbt_cli.interfaces import Judge

_NEVER, _END = "[[M00]]", "[[M_END]]"
_MARKER: Json = {"type": "string", "pattern": r"^\[\[M(_END|[0-9]{2,4})\]\]$"}


class Redundancy(Judge):
    """Marks the paragraph that first reaches the gold answer, and the redundant paragraphs.

    The trace is shown with a marker after each paragraph but the last. An empty trace, and one
    whose reply was cut, is not sent: its columns are null.
    """

    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "gold_answer", "gold_answers", "marked_trace", "paragraphs"}
    )
    version: ClassVar[int] = 2
    columns: ClassVar[Mapping[str, pl.DataType]] = {
        "paragraphs": pl.Int64(),
        "answer_paragraph": pl.Int64(),  # 0 if the answer is never reached
        "redundant_paragraphs": pl.List(pl.Int64()),
        "first_correct": pl.Int64(),  # sentences up to the answer paragraph's end, -1 if never
        "redundant_sentences": pl.Int64(),
        "total_sentences": pl.Int64(),
        "confidence": pl.Float64(),
    }
    compared_column: ClassVar[str] = "answer_paragraph"
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {
            "ANSWER_PARAGRAPH_MARKER": _MARKER,
            "REDUNDANT_PARAGRAPH_MARKERS": {"type": "array", "items": _MARKER, "maxItems": 400},
            "CONFIDENCE": CONFIDENCE_SCHEMA,
        },
        "required": ["ANSWER_PARAGRAPH_MARKER", "REDUNDANT_PARAGRAPH_MARKERS", "CONFIDENCE"],
        "additionalProperties": False,
    }

    kind: Literal["redundancy"] = "redundancy"
    template: str = "redundancy"
    """Prompt template: the name of a shipped one or a file."""

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        parts = paragraphs(row["trace"])
        return template.fill(
            {
                "question": row["question"],
                "gold_answer": row["gold_answer"],
                "gold_answers": gold_answers_text(row),
                "marked_trace": mark(parts),
                "paragraphs": str(len(parts)),
            }
        )

    def schema_for(self, row: Mapping[str, Any]) -> Mapping[str, Json]:
        """Markers of this trace alone, each as often as there are paragraphs at most."""
        count = len(paragraphs(row["trace"]))
        markers: Json = [*(f"[[M{number:02d}]]" for number in range(1, count)), _END]
        return {
            **self.reply_schema,
            "properties": {
                "ANSWER_PARAGRAPH_MARKER": {"type": "string", "enum": [_NEVER, *markers]},
                "REDUNDANT_PARAGRAPH_MARKERS": {
                    "type": "array",
                    "items": {"type": "string", "enum": markers},
                    "maxItems": count,
                },
                "CONFIDENCE": CONFIDENCE_SCHEMA,
            },
        }

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        parts = paragraphs(row["trace"])
        marks = read_marks(undecorated(judged_text(reply)), len(parts))
        return {
            "paragraphs": len(parts),
            "answer_paragraph": marks.answer,
            "redundant_paragraphs": list(marks.redundant),
            **sentence_counts(marks, parts),
            "confidence": marks.confidence,
        }

    def known(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return dict.fromkeys(self.columns) if unjudgeable(row) else None
