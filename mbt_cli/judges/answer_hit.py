"""AnswerHit: does the trace reach the gold answer anywhere, even if it is dropped later?"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.judge_scales import Scale, YesNo
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import is_cut
from mbt_cli.interfaces import Judge
from mbt_cli.judges.replies import (
    gold_answers_text,
    json_verdict,
    judged_text,
    labels,
    stated_choice,
    undecorated,
)

_BARE = re.compile(r"\W*+(?:(?<=\\)boxed\{\W*+)?(?P<word>YES|NO|TRUE|FALSE)\W*", re.IGNORECASE)
_REASONED = re.compile(r"\W*(?P<word>YES|NO)\s*[.,:;)–—-]\s*\S.*", re.IGNORECASE | re.DOTALL)  # noqa: RUF001
_LABEL = labels(
    before="my|the|final|overall",
    names="answer[ _-]?hit|hit|verdict|judge?ment|decision|result|label|answer",
    conclusions="final(?:ly)?|therefore|thus|hence|so|conclusion",
)
_YES = ("YES", "TRUE")


class AnswerHit(Judge):
    """Whether the trace anywhere derives or identifies the gold answer with some support.

    An empty trace is not a hit, without a request. A truncated reply is not sent to the judge:
    its `hit` is null and counts as no hit.
    """

    quantity: ClassVar[str] = "answer_in_trace"
    scale: ClassVar[Scale] = YesNo("hit", if_null=False)
    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "gold_answer", "gold_answers", "trace"}
    )
    columns: ClassVar[Mapping[str, pl.DataType]] = {"hit": pl.Boolean()}
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {"answer_hit": {"type": "string", "enum": ["YES", "NO"]}},
        "required": ["answer_hit"],
        "additionalProperties": False,
    }

    kind: Literal["answer_hit"] = "answer_hit"
    template: str = "answer_hit"
    """Prompt template: the name of a shipped one, or a path."""

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        return template.fill(
            {
                "question": row["question"],
                "gold_answer": row["gold_answer"],
                "gold_answers": gold_answers_text(row),
                "trace": row["trace"],
            }
        )

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        text = judged_text(reply)
        verdict = json_verdict(text, ["answer_hit"])
        plain = undecorated(text) if verdict is None else str(verdict["answer_hit"])
        word = stated_choice(plain, choice=_choice, label=_LABEL, opening=_opening)
        return {"hit": word == "YES"}

    def verdict_without_model(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if is_cut(row["finish_reason"]):
            return {"hit": None}
        return None if row["trace"].strip() else {"hit": False}


def _choice(value: str) -> str | None:
    match = _BARE.fullmatch(value)
    if match is None:
        return None
    return "YES" if match["word"].upper() in _YES else "NO"


def _opening(line: str) -> Sequence[str]:
    match = _REASONED.fullmatch(line)
    if match is None:
        return []
    # in capitals it is a second verdict, not a word of the sentence
    return [match["word"].upper(), *re.findall(r"\b(?:YES|NO)\b", line)]
