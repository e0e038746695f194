"""Judges that say yes or no: is an answer equal to the reference, is a solution right?"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.judge_scales import CORRECTNESS, Scale, YesNo
from mbt_cli.core.proof_text import Cut, proof_of
from mbt_cli.core.templates import Template
from mbt_cli.errors import JudgeReplyError
from mbt_cli.interfaces import Judge
from mbt_cli.judges.replies import (
    gold_answers_text,
    json_verdict,
    judged_text,
    labels,
    stated_choice,
    undecorated,
    written,
)

_KEY = "verdict"
_TAG = re.compile(r"<\s*verdict\s*>\s*(?P<value>[^<>]{0,40}?)\s*<\s*/\s*verdict\s*>", re.IGNORECASE)
_BARE = re.compile(r"\W*+(?:(?<=\\)boxed\{\W*+)?(?P<word>YES|NO|TRUE|FALSE)\W*", re.IGNORECASE)
_REASONED = re.compile(r"\W*(?P<word>YES|NO)\s*[.,:;)–—-]\s*\S.*", re.IGNORECASE | re.DOTALL)  # noqa: RUF001
_LABEL = labels(
    before="my|the|final|overall",
    names="verdict|judge?ment|decision|result|label|conclusion",
    conclusions="final(?:ly)?|therefore|thus|hence|so",
)


def read_yes_no(reply: str) -> bool:
    r"""The one verdict of a reply: `<verdict>yes</verdict>`, JSON, or a labelled or lone word.

    Raises:
        JudgeReplyError: The reply states none, or both.

    Example:
        >>> read_yes_no("They agree. <verdict>yes</verdict>"), read_yes_no('{"verdict": "no"}')
        (True, False)
    """
    text = judged_text(reply)
    tagged = {_choice(match["value"]) for match in _TAG.finditer(text)}
    if tagged:
        word = tagged.pop()
        if tagged or word is None:
            raise JudgeReplyError("several verdicts, or one that is neither yes nor no, in tags")
        return word == "YES"
    verdict = json_verdict(text, [_KEY])
    plain = undecorated(text) if verdict is None else str(verdict[_KEY])
    return stated_choice(plain, choice=_choice, label=_LABEL, opening=_opening) == "YES"


def _choice(value: str) -> str | None:
    match = _BARE.fullmatch(value)
    if match is None:
        return None
    return "YES" if match["word"].upper() in ("YES", "TRUE") else "NO"


def _opening(line: str) -> Sequence[str]:
    match = _REASONED.fullmatch(line)
    if match is None:
        return []
    # in capitals it is a second verdict, not a word of the sentence
    return [match["word"].upper(), *re.findall(r"\b(?:YES|NO)\b", line)]


class _YesNoJudge(Judge):
    """A judge whose verdict is yes or no."""

    quantity: ClassVar[str] = CORRECTNESS
    scale: ClassVar[Scale] = YesNo("right")
    columns: ClassVar[Mapping[str, pl.DataType]] = {"right": pl.Boolean()}
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {_KEY: {"type": "string", "enum": ["yes", "no"]}},
        "required": [_KEY],
        "additionalProperties": False,
    }

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"right": read_yes_no(reply)}


class AnswerEquivalence(_YesNoJudge):
    """Whether a final answer to a math problem means the same as the reference answer.

    Reads a yes or no. A rollout without an answer is wrong, without a request.
    """

    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "gold_answer", "gold_answers", "answer", "proof"}
    )

    kind: Literal["answer_equivalence"] = "answer_equivalence"
    template: str = "answer_equivalence"
    """Prompt template: the name of a shipped one, or a path."""
    reads: Literal["answer", "reply"] = "answer"
    """What the judge is shown as the answer: the tagged or boxed one, or the whole reply without
    its thinking, for models that end in a sentence. A reply with text then always has an answer."""

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        return template.fill(
            {
                "question": row["question"],
                "gold_answer": row["gold_answer"],
                "gold_answers": gold_answers_text(row),
                "answer": self._shown(row),
                "proof": proof_of(row["reply"]),
            }
        )

    def verdict_without_model(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if self._shown(row) else {"right": False}

    def _shown(self, row: Mapping[str, Any]) -> str:
        return proof_of(row["reply"]) if self.reads == "reply" else (row["answer"] or "").strip()


class SolutionCheck(_YesNoJudge):
    """Whether a solution is complete and right, by the reference solution if there is one.

    Reads a yes or no. An empty solution, also of a reply that was cut in its thinking, is wrong,
    without a request.
    """

    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "proof", "solution", "rubric", "gold_answer"}
    )
    reads_metadata: ClassVar[bool] = True

    kind: Literal["solution_check"] = "solution_check"
    template: str = "solution_check"
    """Prompt template: the name of a shipped one, or a path."""
    cut: Cut | None = None
    """What is taken off a reply before it is checked: `self_evaluation` is the prover's own verdict
    behind `## Self Evaluation`."""

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        metadata = row.get("metadata") or {}
        return template.fill(
            {
                "question": row["question"],
                "proof": proof_of(row["reply"], self.cut),
                "solution": written(metadata.get("solution")),
                "rubric": written(metadata.get("rubric")),
                "gold_answer": row["gold_answer"] or written(None),
            }
        )

    def verdict_without_model(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if proof_of(row["reply"], self.cut) else {"right": False}
