"""Quality gates: the checks that a teacher's text must pass to become training data.

A text that fails keeps its row: the reply as it came, no trace, and the failure
`gate_NAME: detail`. Texts are never repaired.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from mbt_cli.core.chat import Reply
from mbt_cli.core.lineage_notes import FUNNEL
from mbt_cli.core.plugin import AbsentByDefault, Settings
from mbt_cli.core.programs import Task
from mbt_cli.core.rows import GATE
from mbt_cli.core.verifier import Verifier
from mbt_cli.gates.conclusion import conclusion_problem
from mbt_cli.gates.copies import copied_share, runs_of
from mbt_cli.gates.forms import loop_problem, markdown_problem, refusal_problem, tag_problem
from mbt_cli.gates.language import Language, language_problem
from mbt_cli.gates.leaks import Leaks
from mbt_cli.gates.phases import phase_problem
from mbt_cli.gates.words import folded, names_any
from mbt_cli.stages.base import Work
from mbt_cli.verifiers.text import TextVerifier, normalise

MOST_TRACES = 1_000
"""Maximum number of traces per question or rollout; seeds are numbered by it."""

_FIVE_PHASES = frozenset({"mbt_s", "mbt_r"})
_SHOWN_REASONS = 3
_COPIED_CHARACTERS = 200
_SHINGLE_WORDS = 5


class Gates(Settings):
    """Checks that a teacher's text must pass."""

    version: ClassVar[int] = 2
    """Raised when the same settings judge texts otherwise; enters the fingerprint."""

    enabled: Annotated[bool, AbsentByDefault] = True
    """Whether texts are checked; without, only empty ones are dropped."""
    finished: bool = True
    """The teacher's `finish_reason` is `stop`."""
    only_final_text: bool = True
    """The text is the reply, not the teacher's own reasoning."""
    no_tags: bool = True
    """No think or answer tags and no control tokens of a chat format in the text."""
    no_refusals: bool = True
    """The text does not refuse, and does not speak of itself as a model."""
    language: Language | Literal["any"] = "en"
    """Language of every paragraph; names and short quotations may be in others. Most rules on
    leaks, conclusions and phases know English only."""
    no_markdown: bool = True
    """No headings, lists, bold, tables, code fences or labels such as `Planning:`."""
    no_leaks: bool = True
    """No mention of a given answer, a worked solution, a student, a draft or the instructions, in
    common wordings: rules cannot know all, so read a sample of the traces that pass. A student, a
    draft or a solution that the question itself names is none."""
    leak_patterns: tuple[str, ...] = ()
    """More regular expressions that count as leaks."""
    min_words: int = Field(default=20, ge=0)
    """Minimum number of words."""
    max_words: int = Field(default=8000, gt=0)
    """Maximum number of words."""
    no_tail_loop: bool = True
    """The text does not end in repetitions of the same words."""
    max_copied: float = Field(default=0.5, gt=0, le=1)
    """Maximum share of words in runs of eight or more that stand in the question or its documents;
    1 switches the check off."""
    names_answer: bool = True
    """The text contains the gold answer or an alias as whole words."""
    conclusion: bool = True
    """The last statement gives the gold answer, as the benchmark's verifier compares answers."""
    phases: Literal["order", "off"] | None = None
    """`order`: five or more paragraphs show the five phases in their order, the first and the last
    phase at the ends. By default `order` for `mbt_s` and `mbt_r` that a teacher writes."""
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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a text is about.

    Args:
        answers: Gold answer and aliases.
        question: The question.
        documents: Its documents, as one text.
    """

    question_id: str
    answers: Sequence[str]
    question: str = ""
    documents: str = ""


@dataclass(frozen=True, slots=True)
class _Gate:
    """A check.

    Args:
        step: Its row in the funnel.
        reasons: Its failures.
        is_on: Whether the settings ask for it.
        problem: The failure of a text, as `reason: detail`; None if it passes.
    """

    step: str
    reasons: tuple[str, ...]
    is_on: bool
    problem: Callable[[str, Reply, Asked], str | None]


class GateResults:
    """Checks a cell's replies and counts what each gate stops.

    Replies about one question must come consecutively, since duplicates are searched among them.

    Args:
        gates: The settings.
        verifier: How the benchmark compares answers.
        make: What the teacher wrote; None for texts from elsewhere.
    """

    def __init__(
        self, gates: Gates, verifier: Verifier | None = None, make: str | None = None
    ) -> None:
        self._gates = gates
        self._verifier = verifier or TextVerifier()
        if gates.conclusion:
            self._verifier.prepare()
        self._leaks = Leaks({pattern: pattern for pattern in gates.leak_patterns})
        self._in_order = gates.phases == "order" or (gates.phases is None and make in _FIVE_PHASES)
        self._checks = self._all_gates() if gates.enabled else (_NOT_EMPTY,)
        self._question_id: str | None = None
        self._sources: frozenset[int] | None = None
        self._passed: list[frozenset[tuple[str, ...]]] = []
        self._replies = 0
        self._unanswered = 0
        self._stopped: Counter[str] = Counter()

    def row(self, task: Task, reply: Reply) -> dict[str, Any]:
        """The columns of `rows.TRACES` that a reply fills.

        Args:
            task: Its row holds `asked` and `made_from` (columns).
            reply: The teacher's reply.
        """
        made_from: Mapping[str, Any] = task.row["made_from"]
        checked = self.check(task.row["asked"], reply)
        return {"question_id": task.question_id, **made_from, **checked}

    def check(self, asked: Asked, reply: Reply) -> dict[str, Any]:
        """The columns `trace` and `failure`; one of them is null."""
        self._replies += 1
        if asked.question_id != self._question_id:
            self._question_id, self._sources, self._passed = asked.question_id, None, []
        failure = reply.failure
        # an empty reply is checked too, so that a gate names what is wrong with it
        if failure is not None and failure != "empty" and not failure.startswith(GATE):
            self._unanswered += 1
            return {"trace": None, "failure": failure}
        text = (reply.text or "").strip()
        for gate in self._checks:
            if gate.is_on and (problem := gate.problem(text, reply, asked)):
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
        for gate in self._checks:
            if gate.is_on:
                left -= sum(self._stopped[reason] for reason in gate.reasons)
                steps[gate.step] = left
        work.result.notes[FUNNEL] = {**before, **steps, "passed": left}
        work.result.notes["gates"] = {
            reason: self._stopped[reason] for gate in self._checks for reason in gate.reasons
        }
        if self._stopped:
            most = ", ".join(f"{n} x {r}" for r, n in self._stopped.most_common(_SHOWN_REASONS))
            address = work.resolution.address
            work.progress.note(f"{address}: {left} of {steps['replied']} replies passed ({most})")

    def _all_gates(self) -> Sequence[_Gate]:
        """Checks in their order: cheap ones first, duplicates last."""
        gates = self._gates
        return (
            _Gate("finished", ("not_finished",), gates.finished, _unfinished),
            _Gate(
                "final text only",
                ("reasoning_only", "reasoning_in_text"),
                gates.only_final_text,
                _private,
            ),
            _NOT_EMPTY,
            _Gate("no tags", ("tags",), gates.no_tags, lambda text, *_: tag_problem(text)),
            _Gate(
                "no refusal",
                ("refusal",),
                gates.no_refusals,
                lambda text, *_: refusal_problem(text),
            ),
            _Gate("language", ("language",), gates.language != "any", self._foreign),
            _Gate(
                "no markdown",
                ("markdown",),
                gates.no_markdown,
                lambda text, *_: markdown_problem(text),
            ),
            _Gate(
                "no leak",
                ("leak",),
                gates.no_leaks,
                lambda text, _, asked: self._leaks.problem(folded(text), asked.question),
            ),
            _Gate("length in bounds", ("too_short", "too_long"), True, self._length),
            _Gate(
                "no tail loop",
                ("tail_loop",),
                gates.no_tail_loop,
                lambda text, *_: loop_problem(text),
            ),
            _Gate("not copied", ("copied",), gates.max_copied < 1, self._copied),
            _Gate("names the answer", ("no_answer",), gates.names_answer, _answerless),
            _Gate("right conclusion", ("conclusion",), gates.conclusion, self._concludes),
            _Gate("phases in order", ("phases",), self._in_order, self._out_of_order),
            _Gate("no repeat", ("near_duplicate",), gates.max_overlap is not None, self._repeated),
        )

    def _foreign(self, text: str, reply: Reply, asked: Asked) -> str | None:
        wanted = self._gates.language
        return None if wanted == "any" else language_problem(folded(text), wanted)

    def _length(self, text: str, reply: Reply, asked: Asked) -> str | None:
        words = len(text.split())
        if words < self._gates.min_words:
            return f"too_short: {words} words"
        return f"too_long: {words} words" if words > self._gates.max_words else None

    def _copied(self, text: str, reply: Reply, asked: Asked) -> str | None:
        if self._sources is None:
            self._sources = runs_of((asked.question, asked.documents))
        share = copied_share(text, self._sources)
        if share <= self._gates.max_copied:
            return None
        return f"copied: {share:.2f} of the words are from the question and its documents"

    def _concludes(self, text: str, reply: Reply, asked: Asked) -> str | None:
        return conclusion_problem(text, asked.answers, self._verifier)

    def _out_of_order(self, text: str, reply: Reply, asked: Asked) -> str | None:
        return phase_problem(text, is_english=self._gates.language == "en")

    def _repeated(self, text: str, reply: Reply, asked: Asked) -> str | None:
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


def _unfinished(text: str, reply: Reply, asked: Asked) -> str | None:
    reason = reply.finish_reason
    return None if reason == "stop" else f"not_finished: {reason or 'no finish reason'}"


def _private(text: str, reply: Reply, asked: Asked) -> str | None:
    """Reasoning instead of a reply, or copied into it."""
    reasoning = (reply.reasoning or "").strip()
    if reasoning and not text:
        return "reasoning_only: the reply has reasoning and no text"
    if len(reasoning) >= _COPIED_CHARACTERS and reasoning in text:
        return "reasoning_in_text: the reply repeats the teacher's reasoning"
    return None


def _empty(text: str, reply: Reply, asked: Asked) -> str | None:
    return None if text else "empty: the reply has no text"


_NOT_EMPTY = _Gate("not empty", ("empty",), True, _empty)


def _answerless(text: str, reply: Reply, asked: Asked) -> str | None:
    if names_any(text, asked.answers):
        return None
    return "no_answer: the text never names the gold answer"
