"""Quality gates: the checks that a teacher's text must pass to become training data.

A text that fails keeps its row: the reply as it came, no trace, and the failure
`gate_NAME: detail`. Texts are never repaired.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from mbt_cli.core.chat import Reply
from mbt_cli.core.lineage_notes import FUNNEL
from mbt_cli.core.plugin import Settings
from mbt_cli.core.programs import Task
from mbt_cli.core.rows import GATE
from mbt_cli.stages.base import Work
from mbt_cli.verifiers.text import containment, normalise

MOST_TRACES = 1_000
"""Maximum number of traces per question or rollout; seeds are numbered by it."""

_STEPS = {
    "finished": ("not_finished",),
    "final text only": ("reasoning_only", "reasoning_in_text"),
    "not empty": ("empty",),
    "no tags": ("tags",),
    "no markdown": ("markdown",),
    "no leak": ("leak",),
    "length in bounds": ("too_short", "too_long"),
    "no tail loop": ("tail_loop",),
    "names the answer": ("no_answer",),
    "no repeat": ("near_duplicate",),
}
"""The funnel's steps in the order of the gates, each with its failures."""
_SHOWN_REASONS = 3
_TAGS = re.compile(r"</?(?:think|thinking|answer|reasoning)\b[^>]*>", re.IGNORECASE)
_BRACKET_TAGS = re.compile(r"\[/?THINK\]", re.IGNORECASE)
_COPIED_CHARACTERS = 200
_LOOP_WINDOW, _LOOP_UNIT, _LOOP_REPEATS = 600, 30, 4
_SHINGLE_WORDS = 5


class Gates(Settings):
    """Checks that a teacher's text must pass."""

    finished: bool = True
    """The teacher's `finish_reason` is `stop`."""
    only_final_text: bool = True
    """The text is the reply, not the teacher's own reasoning."""
    no_tags: bool = True
    """No think or answer tags in the text."""
    no_markdown: bool = True
    """No headings, lists, bold, tables or code fences."""
    no_leaks: bool = True
    """No mention of a draft, a student, a given answer or the instructions."""
    leak_patterns: tuple[str, ...] = ()
    """More regular expressions that count as leaks."""
    names_answer: bool = True
    """The text contains the gold answer or an alias as whole words."""
    min_words: int = Field(default=20, ge=0)
    """Minimum number of words."""
    max_words: int = Field(default=8000, gt=0)
    """Maximum number of words."""
    no_tail_loop: bool = True
    """The text does not end in repetitions of the same words."""
    max_overlap: float | None = Field(default=0.9, gt=0, le=1)
    """Maximum overlap of two texts about one question, as the share of common five-word runs."""

    @field_validator("leak_patterns")
    @classmethod
    def _can_be_compiled(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`{pattern}` is not a regular expression: {error}") from error
        return patterns


class GateResults:
    """Checks a cell's replies and counts what each gate stops.

    Replies about one question must come consecutively, since duplicates are searched among them.
    """

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._leaks = _compiled(_LEAKS) | _compiled({p: p for p in gates.leak_patterns})
        self._question_id: str | None = None
        self._passed: list[frozenset[tuple[str, ...]]] = []
        self._replies = 0
        self._unanswered = 0
        self._stopped: Counter[str] = Counter()

    def row(self, task: Task, reply: Reply) -> dict[str, Any]:
        """The columns of `rows.TRACES` that a reply fills.

        Args:
            task: Its row holds `answers` (gold answer and aliases) and `made_from` (columns).
            reply: The teacher's reply.
        """
        made_from: Mapping[str, Any] = task.row["made_from"]
        checked = self.check(task.question_id, reply, task.row["answers"])
        return {"question_id": task.question_id, **made_from, **checked}

    def check(self, question_id: str, reply: Reply, answers: Sequence[str]) -> dict[str, Any]:
        """The columns `trace` and `failure`; one of them is null."""
        self._replies += 1
        if question_id != self._question_id:
            self._question_id, self._passed = question_id, []
        failure = reply.failure
        # an empty reply is checked too, so that a gate names what is wrong with it
        if failure is not None and failure != "empty" and not failure.startswith(GATE):
            self._unanswered += 1
            return {"trace": None, "failure": failure}
        text = (reply.text or "").strip()
        for gate in self._active_gates():
            if problem := gate(text, reply, answers):
                self._stopped[problem.partition(":")[0]] += 1
                return {"trace": None, "failure": f"{GATE}{problem}"}
        return {"trace": text, "failure": None}

    def record(self, work: Work, before: Mapping[str, int]) -> None:
        """Write the counts into the lineage's notes, and a summary to the screen.

        Args:
            work: The running cell.
            before: Steps of the funnel before the teacher was asked.
        """
        left = self._replies - self._unanswered
        steps = {"asked": self._replies, "replied": left}
        for step, reasons in _STEPS.items():
            stopped = sum(self._stopped[reason] for reason in reasons)
            left -= stopped
            if stopped:
                steps[step] = left
        work.result.notes[FUNNEL] = {**before, **steps, "passed": left}
        work.result.notes["gates"] = {
            reason: self._stopped[reason] for reasons in _STEPS.values() for reason in reasons
        }
        if self._stopped:
            most = ", ".join(f"{n} x {r}" for r, n in self._stopped.most_common(_SHOWN_REASONS))
            address = work.resolution.address
            work.progress.note(f"{address}: {left} of {steps['replied']} replies passed ({most})")

    def _active_gates(self) -> Sequence[Callable[[str, Reply, Sequence[str]], str | None]]:
        """Checks in the order of the steps: cheap ones first, duplicates last."""
        gates = self._gates
        return [
            check
            for is_on, check in (
                (gates.finished, _unfinished),
                (gates.only_final_text, _private),
                (True, _empty),
                (gates.no_tags, _tagged),
                (gates.no_markdown, lambda text, *_: _first("markdown", _MARKDOWN_SIGNS, text)),
                (gates.no_leaks, lambda text, *_: _first("leak", self._leaks, text)),
                (True, self._length),
                (gates.no_tail_loop, _looping),
                (gates.names_answer, _answerless),
                (gates.max_overlap is not None, self._repeated),
            )
            if is_on
        ]

    def _length(self, text: str, reply: Reply, answers: Sequence[str]) -> str | None:
        words = len(text.split())
        if words < self._gates.min_words:
            return f"too_short: {words} words"
        return f"too_long: {words} words" if words > self._gates.max_words else None

    def _repeated(self, text: str, reply: Reply, answers: Sequence[str]) -> str | None:
        words = normalise(text).split()
        runs = frozenset(
            zip(*(words[start:] for start in range(_SHINGLE_WORDS)), strict=False)
        ) or frozenset((tuple(words),))
        limit = self._gates.max_overlap or 1.0
        overlaps = (len(runs & other) / len(runs | other) for other in self._passed)
        overlap = max(overlaps, default=0.0)
        if overlap >= limit:
            return f"near_duplicate: {overlap:.2f} of an earlier text"
        self._passed.append(runs)
        return None


def _unfinished(text: str, reply: Reply, answers: Sequence[str]) -> str | None:
    reason = reply.finish_reason
    return None if reason == "stop" else f"not_finished: {reason or 'no finish reason'}"


def _private(text: str, reply: Reply, answers: Sequence[str]) -> str | None:
    """Reasoning instead of a reply, or copied into it."""
    reasoning = (reply.reasoning or "").strip()
    if reasoning and not text:
        return "reasoning_only: the reply has reasoning and no text"
    if len(reasoning) >= _COPIED_CHARACTERS and reasoning in text:
        return "reasoning_in_text: the reply repeats the teacher's reasoning"
    return None


def _empty(text: str, reply: Reply, answers: Sequence[str]) -> str | None:
    return None if text else "empty: the reply has no text"


def _tagged(text: str, reply: Reply, answers: Sequence[str]) -> str | None:
    tags = (_TAGS.search(text, 0, text.rfind(">") + 1), _BRACKET_TAGS.search(text))
    found = min((tag for tag in tags if tag), key=lambda tag: tag.start(), default=None)
    return f"tags: {found[0]}" if found else None


def _looping(text: str, reply: Reply, answers: Sequence[str]) -> str | None:
    tail = " ".join(text[-2 * _LOOP_WINDOW :].split())[-_LOOP_WINDOW:]
    if len(tail) < _LOOP_UNIT * _LOOP_REPEATS:
        return None
    count = tail.count(tail[-_LOOP_UNIT:])
    return f"tail_loop: the same words {count} times" if count >= _LOOP_REPEATS else None


def _answerless(text: str, reply: Reply, answers: Sequence[str]) -> str | None:
    readable = [answer for answer in answers if normalise(answer)]
    if readable and containment(text, readable):
        return None
    # an answer of punctuation alone, such as `+`, has no words to search for
    if any(answer in text for answer in answers if answer and not normalise(answer)):
        return None
    return "no_answer: the text never names the gold answer"


def _first(gate: str, patterns: dict[str, re.Pattern[str]], text: str) -> str | None:
    lower = text.lower()
    for name, pattern in patterns.items():
        if not any(needle in lower for needle in _NEEDLES.get(name, ("",))):
            continue
        if found := pattern.search(text):
            return f"{gate}: {name} ({' '.join(found[0].split())[:60]})"
    return None


def _compiled(patterns: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}


_LEAKS: dict[str, str] = {
    "a draft": r"\b(?:original|earlier|previous|initial|rough|student'?s?) draft\b"
    r"|\b(?:as|like) (?:in )?(?:the|this|that|your|my) draft\b"
    r"|\bthe draft (?:says?|said|states?|claims?|mentions?|suggests?|assumes?|reads|concludes?)\b",
    "a student": r"\bthe student(?:'s|s') (?:thinking|trace|reasoning|answer|attempt|approach|error"
    r"|mistake|solution|work)\b"
    r"|\bthe student (?:says?|said|th(?:inks?|ought)|writes?|wrote|claims?|assumes?|concludes?"
    r"|(?:in)?correctly|mistakenly|wrongly|made|makes)\b",
    "an earlier text": r"\b(?:original|previous|earlier|given|provided) (?:trace|rollout|reasoning"
    r"|attempt|response|thinking)\b|\brewrit(?:e|ten|ing)\b.{0,20}\b(?:trace|thinking|reasoning)\b",
    "a given answer": r"\b(?:given|provided|gold|reference|known|expected|target|correct) answer"
    r" (?:is|was|says|above|states|must)\b"
    r"|\b(?:gold|ground[- ]truth|reference) (?:answer|label|solution)\b"
    r"|\b(?:answer|solution) (?:is|was|has been|we were|I was) (?:already )?(?:given|provided)\b"
    r"|\b(?:given|told) the (?:correct )?answer\b",
    "a solution": r"\b(?:the|this|our|your) (?:worked|provided|given|sample|model) solution\b"
    r"|\b(?:as|like) the solution\b"
    r"|\baccording to the solution\b",
    "the instructions": r"\b(?:as|per) (?:instructed|requested|the instructions)\b"
    r"|\bthe (?:instructions|prompt|task) (?:say|says|ask|asks|state|states|want|wants|require)"
    r"|\bfive[- ]phases?\b|(?m:^[^\S\n]*\(?phase (?:[1-5]|one|two|three|four|five)\b)"
    r"|\bas an ai\b"
    r"|\b(?:here is|here's|below is) (?:the|my|a) (?:rewritten|revised|trace|thinking)",
}
"""Phrases that show that a text was written from another one; case is ignored."""

_NEEDLES: dict[str, tuple[str, ...]] = {
    "a draft": ("draft",),
    "a student": ("the student",),
    "an earlier text": ("original", "previous", "earlier", "given", "provided", "rewrit"),
    "a given answer": ("answer", "gold", "ground", "reference", "solution"),
    "a solution": ("solution",),
    "the instructions": (
        "instruct",
        "request",
        "prompt",
        "the task",
        "phase",
        "as an ai",
        "here",
        "below",
    ),
    "bold": ("**", "__"),
}
"""A pattern is tried only if one of its words occurs: four times as fast on clean texts."""

_MARKDOWN: dict[str, str] = {
    "heading": r"(?m)^\s{0,3}#{1,6}\s",
    "bold": r"(?<![\w*])\*\*(?=\S)[^*\n]+(?<=\S)\*\*(?![\w*])"
    r"|(?<!\w)__(?=\S)[^_\n]+(?<=\S)__(?!\w)",
    "list": r"(?m)^[^\S\n]*(?:[-*•]|\d{1,2}[.)])\s+\S",
    "code fence": r"(?m)^[^\S\n]*```",
    "table": r"(?m)^[^\S\n]*\|.*\|[^\S\n]*$",
    "rule": r"(?m)^[^\S\n]*(?:-{3,}|\*{3,}|_{3,})[^\S\n]*$",
}
_MARKDOWN_SIGNS = _compiled(_MARKDOWN)
