"""Quality gates: what a teacher's text must be to become training data.

Each gate is a named check that can be switched off. A text that fails keeps its row, with the
reason `name: detail`; nothing is ever repaired.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from mbt_cli.core.chat import Reply, Request
from mbt_cli.core.model import Settings
from mbt_cli.core.notes import FUNNEL
from mbt_cli.core.rows import GATE
from mbt_cli.stages.base import Work
from mbt_cli.verifiers.text import containment, normalise

LEAKS: dict[str, str] = {
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
    r"|\bfive[- ]phases?\b|(?m:^\s*\(?phase (?:[1-5]|one|two|three|four|five)\b)"
    r"|\bas an ai\b"
    r"|\b(?:here is|here's|below is) (?:the|my|a) (?:rewritten|revised|trace|thinking)",
}
"""What gives away that a text was written from another one; matched in any case."""

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
"""A pattern is tried only where one of its words is there: four times as fast on clean texts."""

MARKDOWN: dict[str, str] = {
    "heading": r"(?m)^\s{0,3}#{1,6}\s",
    "bold": r"(?<![\w*])\*\*(?=\S)[^*\n]+(?<=\S)\*\*(?![\w*])"
    r"|(?<!\w)__(?=\S)[^_\n]+(?<=\S)__(?!\w)",
    "list": r"(?m)^\s*(?:[-*•]|\d{1,2}[.)])\s+\S",
    "code fence": r"(?m)^\s*```",
    "table": r"(?m)^\s*\|.*\|\s*$",
    "rule": r"(?m)^\s*(?:-{3,}|\*{3,}|_{3,})\s*$",
}
_TAGS = re.compile(r"</?(?:think|thinking|answer|reasoning)\b[^>]*>|\[/?THINK\]", re.IGNORECASE)
_COPIED_CHARACTERS = 200
_LOOP_WINDOW, _LOOP_UNIT, _LOOP_REPEATS = 600, 30, 4
_SHINGLE_WORDS = 5


class Gates(Settings):
    """Which checks a teacher's text must pass."""

    finished: bool = True
    """The teacher stopped by itself."""
    only_final_text: bool = True
    """The text is the reply, not the teacher's private reasoning."""
    no_tags: bool = True
    """No think or answer tags inside."""
    no_markdown: bool = True
    """No headings, lists, bold, tables or code fences."""
    no_leaks: bool = True
    """No word about a draft, a student, a given answer or the instructions."""
    leak_patterns: tuple[str, ...] = ()
    """More regular expressions that count as leaks."""
    names_answer: bool = True
    """The gold answer or an alias stands in the text, as whole words."""
    min_words: int = Field(default=20, ge=0)
    """Fewest words."""
    max_words: int = Field(default=8000, gt=0)
    """Most words."""
    no_tail_loop: bool = True
    """The text does not end in the same words over and over."""
    max_overlap: float | None = Field(default=0.9, gt=0, le=1)
    """Share of five-word runs that two texts about one question may have in common."""

    @field_validator("leak_patterns")
    @classmethod
    def _can_be_compiled(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`{pattern}` is no regular expression: {error}") from error
        return patterns


@dataclass(frozen=True, slots=True)
class Candidate:
    """One teacher's reply, before it is training data.

    Args:
        text: What the server sent as the reply's content.
        reasoning: What it sent as the teacher's own thinking.
        answers: Gold answer and aliases.
    """

    text: str | None
    reasoning: str | None
    finish_reason: str | None
    answers: Sequence[str]


class Inspector:
    """Puts candidates through the gates; knows the texts kept for the question at hand.

    Candidates of one question must come one after the other, since near-duplicates are looked for
    among them only.
    """

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._leaks = _compiled(LEAKS) | _compiled({p: p for p in gates.leak_patterns})
        self._question_id: str | None = None
        self._kept: list[frozenset[tuple[str, ...]]] = []

    def problem(self, question_id: str, candidate: Candidate) -> str | None:
        """Why the candidate cannot be training data: `name: detail`; None when it can."""
        if question_id != self._question_id:
            self._question_id, self._kept = question_id, []
        text = (candidate.text or "").strip()
        for check in self._checks():
            if found := check(text, candidate):
                return found
        return None

    def _checks(self) -> Sequence[Callable[[str, Candidate], str | None]]:
        """The gates that are on, cheap ones first; near-duplicates last, since it remembers."""
        gates = self._gates
        chosen: tuple[tuple[bool, Callable[[str, Candidate], str | None]], ...] = (
            (gates.finished, _unfinished),
            (gates.only_final_text, _private),
            (True, _empty),
            (gates.no_tags, _tagged),
            (gates.no_markdown, lambda text, _: _first("markdown", _MARKDOWN, text)),
            (gates.no_leaks, lambda text, _: _first("leak", self._leaks, text)),
            (True, self._length),
            (gates.no_tail_loop, _looping),
            (gates.names_answer, _answerless),
            (gates.max_overlap is not None, self._repeated),
        )
        return [check for is_on, check in chosen if is_on]

    def _length(self, text: str, candidate: Candidate) -> str | None:
        words = len(text.split())
        if words < self._gates.min_words:
            return f"too_short: {words} words"
        return f"too_long: {words} words" if words > self._gates.max_words else None

    def _repeated(self, text: str, candidate: Candidate) -> str | None:
        shingles = _shingles(text)
        limit = self._gates.max_overlap or 1.0
        overlap = max((_overlap(shingles, other) for other in self._kept), default=0.0)
        if overlap >= limit:
            return f"near_duplicate: {overlap:.2f} of an earlier text"
        self._kept.append(shingles)
        return None


def reason_of(problem: str) -> str:
    """The name of the gate without the detail, for counting.

    Example:
        >>> reason_of("too_short: 3 words")
        'too_short'
    """
    return problem.partition(":")[0]


def _unfinished(text: str, candidate: Candidate) -> str | None:
    reason = candidate.finish_reason
    return None if reason == "stop" else f"not_finished: {reason or 'no finish reason'}"


def _empty(text: str, candidate: Candidate) -> str | None:
    return None if text else "empty: the reply has no text"


def _private(text: str, candidate: Candidate) -> str | None:
    """Reasoning in place of a reply, or pasted into it."""
    reasoning = (candidate.reasoning or "").strip()
    if reasoning and not text:
        return "reasoning_only: the reply has reasoning and no text"
    if len(reasoning) >= _COPIED_CHARACTERS and reasoning in text:
        return "reasoning_in_text: the reply repeats the teacher's reasoning"
    return None


def _tagged(text: str, candidate: Candidate) -> str | None:
    found = _TAGS.search(text)
    return f"tags: {found[0]}" if found else None


def _answerless(text: str, candidate: Candidate) -> str | None:
    readable = [answer for answer in candidate.answers if normalise(answer)]
    if readable and containment(text, readable):
        return None
    # an answer of signs alone, such as `+`, has no words to look for
    if any(answer in text for answer in candidate.answers if answer and not normalise(answer)):
        return None
    return "no_answer: the text never names the gold answer"


def _looping(text: str, candidate: Candidate) -> str | None:
    tail = " ".join(text[-2 * _LOOP_WINDOW :].split())[-_LOOP_WINDOW:]
    if len(tail) < _LOOP_UNIT * _LOOP_REPEATS:
        return None
    count = tail.count(tail[-_LOOP_UNIT:])
    return f"tail_loop: the same words {count} times" if count >= _LOOP_REPEATS else None


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


_MARKDOWN = _compiled(MARKDOWN)


def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = normalise(text).split()
    if len(words) < _SHINGLE_WORDS:
        return frozenset((tuple(words),))
    return frozenset(zip(*(words[start:] for start in range(_SHINGLE_WORDS)), strict=False))


def _overlap(first: frozenset[tuple[str, ...]], second: frozenset[tuple[str, ...]]) -> float:
    """Jaccard index."""
    return len(first & second) / len(first | second)


MOST_TRACES = 1_000
"""Traces that one question or rollout may have: seeds are numbered by it."""

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
"""The funnel's steps in the order of the gates, each with the reasons that it stops."""

_SHOWN_REASONS = 3


class Intake:
    """Turns replies into rows of `rows.TRACES`.

    Replies about one question must come one after the other. A reply that fails a gate keeps its
    row: the reply as it came, no trace, and the failure `gate_NAME: detail`, which is counted
    apart from what the teacher's server failed at.

    Args:
        gates: Checks that are on.
    """

    def __init__(self, gates: Gates) -> None:
        self._inspector = Inspector(gates)
        self._asked = 0
        self._unanswered = 0
        self._stopped: Counter[str] = Counter()

    def row(self, request: Request, reply: Reply) -> dict[str, Any]:
        """The stage's own columns.

        Args:
            request: Its row holds `answers` (gold answer and aliases) and `made_from` (columns).
            reply: What came.
        """
        self._asked += 1
        failure = self._failure(request, reply)
        text = reply.text.strip() if reply.text and failure is None else None
        made_from: Mapping[str, Any] = request.row["made_from"]
        return {"question_id": request.question_id, **made_from, "trace": text, "failure": failure}

    def _failure(self, request: Request, reply: Reply) -> str | None:
        if _is_teachers_own(reply.failure):
            self._unanswered += 1
            return reply.failure
        candidate = Candidate(
            reply.text, reply.reasoning, reply.finish_reason, request.row["answers"]
        )
        problem = self._inspector.problem(request.question_id, candidate)
        if problem is None:
            return None
        self._stopped[reason_of(problem)] += 1
        return f"{GATE}{problem}"

    def tell(self, work: Work, before: Mapping[str, int]) -> None:
        """Leave the counts for lineage and report; say on the screen what the gates stopped.

        Args:
            work: The running cell.
            before: Steps that narrowed the data before the teacher was asked.
        """
        work.outcome.notes[FUNNEL] = {**before, **self.funnel()}
        work.outcome.notes["gates"] = self.stopped()
        replied = self._asked - self._unanswered
        if stopped := self._stopped.total():
            most = ", ".join(f"{n} x {r}" for r, n in self._stopped.most_common(_SHOWN_REASONS))
            passed = replied - stopped
            address = work.resolution.address
            work.progress.note(f"{address}: {passed} of {replied} replies passed ({most})")

    def funnel(self) -> dict[str, int]:
        """How many were left after each step; gates that stopped nothing are no step."""
        left = self._asked - self._unanswered
        steps = {"asked": self._asked, "replied": left}
        for step, reasons in _STEPS.items():
            stopped = sum(self._stopped[reason] for reason in reasons)
            left -= stopped
            if stopped:
                steps[step] = left
        return {**steps, "passed": left}

    def stopped(self) -> dict[str, int]:
        """Every gate's reason and how many replies it stopped, in the order of the gates."""
        return {reason: self._stopped[reason] for group in _STEPS.values() for reason in group}


def _is_teachers_own(failure: str | None) -> bool:
    """Whether there is no reply to look at; an empty one is for the gates to name."""
    return failure is not None and failure != "empty" and not failure.startswith(GATE)
