"""AnswerMatch: is the final answer right?"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.judge_replies import json_verdict, judged_text, shown, undecorated
from mbt_cli.core.templates import Template
from mbt_cli.errors import JudgeReplyError
from mbt_cli.interfaces import Judge

_WORDS = {"A": "CORRECT", "B": "INCORRECT", "C": "NOT ATTEMPTED"}
_GRADES = {word: grade for grade, word in _WORDS.items()}
_WORD = r"(?:NOT[ _-]?ATTEMPTED|INCORRECT|CORRECT)"
_GRADE = rf"(?P<letter>[ABC])(?:\s*[-–—:=(.,)]+\s*(?P<said>{_WORD})\b)?|(?P<word>{_WORD})"  # noqa: RUF001
_OPEN, _CLOSE = r"[\"'(\[{]*", r"[\"')\]}]*"
_BARE = re.compile(rf"\W*(?:\\boxed\{{)?{_OPEN}(?:{_GRADE}){_CLOSE}[\s.!$]*", re.IGNORECASE)
# `A: same city` and `B. The answer ...`, but neither `C. S. Lewis wrote it` nor `A correct one is`
_REASONED = re.compile(
    r"\W*(?P<letter>[ABC])(?:\s*[:)–—-]\s*\S|[.,]\s+(?:the|it|this|that|because|since|as|both|given"  # noqa: RUF001
    r"|predicted|answer|reference|explanation|reason(?:ing)?|justification)\b).*",
    re.IGNORECASE | re.DOTALL,
)
_OTHER_GRADES = {"A": re.compile(r"\b[BC]\b"), "B": re.compile(r"\bC\b"), "C": re.compile(r"\bB\b")}
_LABEL = re.compile(
    r"^\W*(?:(?:(?:my|the|final|overall|correct)\s+)*(?:grade|verdict|judge?ment|decision|result"
    r"|label|rating|classification|evaluation)\s*(?:[:=]|\bis\b:?)"
    r"|(?:final(?:ly)?|(?:final\s+)?answer|therefore|thus|hence|so|conclusion)\s*[:,])"
    r"\s*(?P<value>.*)$",
    re.IGNORECASE | re.MULTILINE,
)


class AnswerMatch(Judge):
    """Grades the final answer against the gold answer and its aliases: A, B or C.

    A correct, B incorrect, C not attempted. A rollout without an answer is B and is not sent.
    """

    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "gold_answer", "gold_answers", "answer"}
    )
    columns: ClassVar[Mapping[str, pl.DataType]] = {"grade": pl.String()}
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {"grade": {"type": "string", "enum": ["A", "B", "C"]}},
        "required": ["grade"],
        "additionalProperties": False,
    }

    kind: Literal["answer_match"] = "answer_match"
    template: str = "answer_match"
    """Prompt template: the name of a shipped one or a file."""

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        return template.fill(
            {
                "question": row["question"],
                "gold_answer": row["gold_answer"],
                "gold_answers": gold_answers_text(row),
                "answer": row["answer"],
            }
        )

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        text = judged_text(reply)
        verdict = json_verdict(text, ["grade"])
        if verdict is not None:
            return {"grade": _only_grade([str(verdict["grade"])], reply)}
        return {"grade": _only_grade(_stated(undecorated(text)), reply)}

    def known(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if (row["answer"] or "").strip() else {"grade": "B"}


def gold_answers_text(row: Mapping[str, Any]) -> str:
    """The gold answer and its aliases for a prompt, one a line."""
    aliases = [alias for alias in row["gold_aliases"] or [] if alias != row["gold_answer"]]
    return "\n".join(f"- {text}" for text in (row["gold_answer"], *aliases))


def _stated(plain: str) -> list[str]:
    """Pieces of a reply that state a grade: behind a label, else its first and last line."""
    labelled = [match["value"] for match in _LABEL.finditer(plain) if _grade(match["value"])]
    if labelled:
        return labelled
    lines = [line for line in plain.splitlines() if line.strip()]
    if not lines:
        return []
    bare = [line for line in (lines[0], lines[-1]) if _BARE.fullmatch(line)]
    reasoned = _REASONED.fullmatch(lines[0])
    if reasoned and lines[0] not in bare:
        letter = reasoned["letter"].upper()
        # a second grade in the reasoning leaves it open which of the two is meant
        bare += [letter, *_OTHER_GRADES[letter].findall(lines[0])]
    return bare


def _grade(value: str) -> str | None:
    """The grade that a short piece of text says; None when it says none, or two."""
    match = _BARE.fullmatch(value)
    if match is None:
        return None
    word = match["said"] or match["word"]
    by_word = _GRADES[re.sub(r"[ _-]?ATTEMPTED", " ATTEMPTED", word.upper())] if word else None
    letter = match["letter"]
    if letter is None:
        return by_word
    return letter.upper() if by_word in (None, letter.upper()) else None


def _only_grade(values: Sequence[str], reply: str) -> str:
    grades = {_grade(value) for value in values}
    if len(grades) == 1 and None not in grades:
        return str(grades.pop())
    if not grades or grades == {None}:
        raise JudgeReplyError(f"no grade A, B or C in {shown(reply)}")
    raise JudgeReplyError(f"several verdicts in {shown(reply)}")
