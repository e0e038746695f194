"""The `scripted` backend: a rule-based teacher that writes from the facts of each tinyhop question.

It stands in for a strong model, so that the whole chain of solutions, traces and rewrites can run
anywhere. The wording varies with the draws; the facts come from the question's own chain.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from mbt_cli.benchmarks.tinyhop.benchmark import question_from_id
from mbt_cli.benchmarks.tinyhop.wording import COMPANIES, RELATIONS
from mbt_cli.core.chat import Json, Request, Responder, completion
from mbt_cli.core.questions import Question
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.serving import ServerPlace
from mbt_cli.interfaces import Backend

_YEAR_GOALS = {
    "birth_year": "the year in which {s} was born",
    "founding_year": "the year in which {s} was founded",
    "novel_year": "the year in which {s} came out",
    "film_year": "the year in which {s} was released",
}
_PLURALS = {"person": "people", "company": "companies", "novel": "novels", "film": "films"}
_COMMON_NOUNS = {"publisher": "company", "studio": "company"}
_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One fact of the chain and the sentence that states it."""

    subject: str
    relation: str
    object: str
    title: str
    sentence: str
    side: int

    @property
    def subject_called(self) -> str:
        """The subject as a question names it."""
        kinds = RELATIONS[self.relation].subjects
        return f"the {kinds[0]} {self.subject}" if kinds[0] in ("novel", "film") else self.subject

    def goal(self, subject: str | None = None) -> str:
        """The thing that the step finds, such as `the author of the novel The Silent Orchard`."""
        relation = RELATIONS[self.relation]
        pattern = _YEAR_GOALS.get(self.relation) or relation.wordings["train"].phrases[0]
        return pattern.format(s=subject or self.subject_called)

    @property
    def subject_noun(self) -> str:
        """A common noun for the subject."""
        kinds = RELATIONS[self.relation].subjects
        return "company" if kinds == COMPANIES else kinds[0]

    @property
    def object_noun(self) -> str:
        """A common noun for the object."""
        kind = RELATIONS[self.relation].object
        return _COMMON_NOUNS.get(kind, kind)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A question with its steps.

    Args:
        sides: Steps of each side; a bridge has one side.
        pick: `earlier`, `later` or `same` for two sides, else None.
        distractors: Title and first sentence of each document without a step.
    """

    question: Question
    sides: tuple[tuple[Step, ...], ...]
    pick: str | None
    distractors: tuple[tuple[str, str], ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, side by side."""
        return tuple(step for side in self.sides for step in side)

    @property
    def wanted(self) -> str:
        """The kind of answer that the question asks for."""
        if self.pick == "same":
            return "yes or no"
        if self.pick:
            return f"one of two {_PLURALS[self.sides[0][-1].subject_noun]}"
        noun = self.steps[-1].object_noun
        return "a year" if noun == "year" else f"the name of a {noun}"

    def goals(self) -> list[str]:
        """The goal of each step, in words that do not reveal the result."""
        goals = []
        for side in self.sides:
            for number, step in enumerate(side):
                goals.append(step.goal(f"that {step.subject_noun}" if number else None))
        return goals

    def verdict(self) -> str:
        """The sentence that decides between two sides; empty for a bridge."""
        if not self.pick:
            return ""
        first, second = (side[-1] for side in self.sides)
        if self.pick == "same":
            if first.object == second.object:
                return f"Both lead to {first.object}, so the two are the same."
            return f"One leads to {first.object}, the other to {second.object}, so they differ."
        chosen, other = (
            (first, second) if first.subject == self.question.answer else (second, first)
        )
        return (
            f"{chosen.object} is {self.pick} than {other.object}, "
            f"so it is {chosen.subject} and not {other.subject}."
        )


def lesson_of(question: Question) -> Lesson:
    """The lesson of a tinyhop question.

    Raises:
        KeyError: Its metadata has no chain.
    """
    sentences = {document.title: document.sentences for document in question.context}
    steps = [_step(link, sentences) for link in question.metadata["chain"]]
    sides = tuple(
        tuple(step for step in steps if step.side == side)
        for side in sorted({step.side for step in steps})
    )
    used = {step.title for step in steps}
    distractors = tuple(
        (document.title, document.sentences[0])
        for document in question.context
        if document.title not in used
    )
    return Lesson(question, sides, question.metadata["pick"], distractors)


def _step(link: Mapping[str, object], sentences: Mapping[str, Sequence[str]]) -> Step:
    title, number, side = str(link["title"]), link["sentence"], link["side"]
    assert isinstance(number, int)
    assert isinstance(side, int)
    subject, relation, found = (str(link[name]) for name in ("subject", "relation", "object"))
    return Step(subject, relation, found, title, sentences[title][number], side)


_STUDENT_BEGINS = "--- the student's thinking begins ---"
_STUDENT_ENDS = "--- the student's thinking ends ---"


class ScriptedBackend(Backend):
    """Write solutions, traces, rewrites and answers of tinyhop questions by rule."""

    kind: Literal["scripted"] = "scripted"
    """Names the backend in a manifest."""

    version: ClassVar[int] = 2
    toy_label: ClassVar[str] = "scripted"
    has_model: ClassVar[bool] = False

    def identity(self) -> Mapping[str, Json]:
        return {"kind": self.kind, "version": self.version}

    def open(self, place: ServerPlace) -> AbstractContextManager[Responder]:
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Responder]:
        yield Responder(_respond, version=f"scripted {self.version}", supports_schema=False)


def _respond(request: Request) -> Mapping[str, Json]:
    """A completion for one request; LookupError if the teacher cannot answer it."""
    try:
        lesson = lesson_of(question_from_id(request.question_id))
    except ValueError as error:
        raise LookupError(f"the scripted teacher only knows tinyhop questions: {error}") from error
    purpose = request.purpose.rpartition(":")[2]
    draws = Draws("scripted", purpose, request.seed)
    if purpose == "rollout":
        answer = f"<answer>{lesson.question.answer}</answer>"
        return completion(request, answer, plain_trace(lesson, draws), "stop")
    return completion(request, _text(purpose, request, lesson, draws), None, "stop")


def _text(purpose: str, request: Request, lesson: Lesson, draws: Draws) -> str:
    match purpose:
        case "solution":
            return solution(lesson, draws)
        case "mbt_s":
            return fresh_trace(lesson, draws)
        case "mbt_r":
            return rewritten_trace(lesson, _student(request), draws)
        case "plain":
            return plain_trace(lesson, draws)
    raise LookupError(f"the scripted teacher does not do `{request.purpose}`")


def _student(request: Request) -> str:
    """The student's thinking: the part between the marks of the shipped prompt, else all of it."""
    last = request.messages[-1]["content"]
    begins, ends = last.find(_STUDENT_BEGINS), last.rfind(_STUDENT_ENDS)
    return last[begins + len(_STUDENT_BEGINS) : ends] if 0 <= begins < ends else last


def guess_in(trace: str, lesson: Lesson) -> str | None:
    """The answer that a student's thinking ends with: its last name that could be an answer.

    Example:
        >>> lesson = lesson_of(question_from_id("tinyhop-0-train-h2-d4-0"))
        >>> guess_in(f"So it is {lesson.question.answer}.", lesson) == lesson.question.answer
        True
    """
    question = lesson.question
    if lesson.pick == "same":
        found = _YES_OR_NO.findall(trace)
        return str(found[-1]).lower() if found else None
    names = {step.object for step in lesson.steps} | {step.subject for step in lesson.steps}
    names |= {document.title for document in question.context} | {question.answer}
    places = {name: trace.rfind(name) for name in names}
    for alias in question.answer_aliases:
        places[question.answer] = max(places[question.answer], trace.rfind(alias))
    # by position; the longer one of two names at the same position
    last = max(places, key=lambda name: (places[name], len(name), name))
    return last if places[last] >= 0 else None


_READS = (
    "The document on {title} says: {sentence}",
    "In the document on {title} we read: {sentence}",
    "Here the document on {title} helps: {sentence}",
)
_GIVES = (
    "So {goal} is {found}.",
    "That makes {found} {goal}.",
    "This means that {goal} is {found}.",
)
_ENDS = ("The answer is {answer}.", "So the answer is {answer}.", "We answer: {answer}.")


def solution(lesson: Lesson, draws: Draws) -> str:
    """A worked solution: the steps, the traps and the answer."""
    way = " ".join(_walk(step, draws) for step in lesson.steps)
    return _paragraphs(
        [_joined(way, lesson.verdict()), " ".join(_traps(lesson)), _end(lesson, draws)]
    )


def fresh_trace(lesson: Lesson, draws: Draws) -> str:
    """A five-phase trace from scratch (MBT-S)."""
    return _paragraphs(
        [
            _understanding(lesson, draws),
            _planning(lesson, draws),
            _execution(lesson, draws),
            _doubt(lesson, draws),
            _verification(lesson, draws),
        ]
    )


def rewritten_trace(lesson: Lesson, student: str, draws: Draws) -> str:
    """A five-phase trace that starts from a student's own thinking (MBT-R).

    What the student found is kept; where the student ended elsewhere than at the answer, the
    thinking goes that way first, notices it and turns back.
    """
    guess = guess_in(student, lesson)
    is_right = guess == lesson.question.answer
    return _paragraphs(
        [
            _understanding(lesson, draws),
            _planning(lesson, draws),
            _joined(_right_findings(lesson, student), _execution(lesson, draws)),
            _doubt(lesson, draws) if is_right else _correction(lesson, guess, draws),
            _verification(lesson, draws),
        ]
    )


def plain_trace(lesson: Lesson, draws: Draws) -> str:
    """The steps alone, without planning, doubts or checks (the matched control)."""
    way = [_joined(*(_walk(step, draws) for step in side)) for side in lesson.sides]
    return _paragraphs([*way, _joined(lesson.verdict(), _end(lesson, draws))])


def _understanding(lesson: Lesson, draws: Draws) -> str:
    titles = list(dict.fromkeys(step.title for step in lesson.steps))
    wants = draws.pick(("The answer must be {w}.", "What is wanted is {w}.", "We want {w}."))
    bears = draws.pick(
        (
            "The documents that matter are those on {t}.",
            "We only need what is written about {t}.",
            "What bears on it stands in the documents on {t}.",
        )
    )
    parts = [wants.format(w=lesson.wanted), bears.format(t=_listed(titles))]
    if lesson.distractors and draws.chance(1, 2):
        parts.append(f"The one on {draws.pick(lesson.distractors)[0]} can be left aside.")
    return " ".join(parts)


def _planning(lesson: Lesson, draws: Draws) -> str:
    goals = lesson.goals()
    opening = draws.pick(
        ("Our plan: first we find {g}", "We begin with {g}", "The first step is {g}")
    )
    middle = "".join(f", then {goal}" for goal in goals[1:])
    last = {
        "same": " In the end we see whether both sides lead to the same place.",
        None: " The last of these is the answer.",
    }.get(lesson.pick, " In the end we compare the two years.")
    return f"{opening.format(g=goals[0])}{middle}.{last}"


def _execution(lesson: Lesson, draws: Draws) -> str:
    return _joined(*(_walk(step, draws) for step in lesson.steps), lesson.verdict())


def _doubt(lesson: Lesson, draws: Draws) -> str:
    """A look-alike that a careful reader would think of, and why it is not meant."""
    step = draws.pick(lesson.steps)
    opening = draws.pick(
        ("Could we have taken the wrong document?", "Wait, is that the right one?")
    )
    if not lesson.distractors:
        return f"{opening} Only the document on {step.title} is about {step.subject}, so it is."
    title, _ = draws.pick(lesson.distractors)
    return (
        f"{opening} The document on {title} could be mistaken for it, but our step was about "
        f"{step.subject}. So {step.object} stands."
    )


def _right_findings(lesson: Lesson, student: str) -> str:
    """The student's own findings that are right, in the order of the steps."""
    found = [step.object for step in lesson.steps if step.object in student]
    return (
        f"A first look already brings up {_listed(found)}. Let us see how it hangs together."
        if found
        else ""
    )


def _correction(lesson: Lesson, guess: str | None, draws: Draws) -> str:
    """The student's wrong conclusion, noticed and corrected."""
    notices = draws.pick(("But wait.", "Something is wrong here.", "Let us stop for a moment."))
    last = lesson.steps[-1]
    back = draws.pick(("We go back to the steps.", "We return to what the documents say."))
    proof = lesson.verdict() or f"The document on {last.title} is plain: {last.sentence}"
    if guess is None:
        first = "Our first idea was a guess that no document carries."
        return f"{notices} {first} {back} {proof}"
    tempting = f"It was tempting to say {guess}."
    return f"{tempting} {notices} {_why_not(lesson, guess)} {back} {proof}"


def _why_not(lesson: Lesson, guess: str) -> str:
    if lesson.pick == "same":
        return f"Nothing that we have read makes it {guess}."
    on_the_way = [step for step in lesson.steps if step.object == guess]
    if on_the_way:
        return f"{guess} is {on_the_way[0].goal()}, which is only a step on the way."
    if lesson.pick and guess in {side[-1].subject for side in lesson.sides}:
        return f"{guess} does not come {lesson.pick}."
    if guess in {step.subject for step in lesson.steps}:
        return f"{guess} is where the question begins, not where it ends."
    return f"The document on {guess} is about something that the question does not mention."


def _verification(lesson: Lesson, draws: Draws) -> str:
    opening = draws.pick(("To be sure we go backwards:", "Read from the end, it holds too:"))
    steps = "; ".join(f"{step.object} is said of {step.subject}" for step in reversed(lesson.steps))
    return f"{opening} {steps}. {_end(lesson, draws)}"


def _traps(lesson: Lesson) -> Sequence[str]:
    traps = []
    if len(lesson.sides) == 1 and len(lesson.steps) > 1:
        early = lesson.steps[-2]
        traps.append(
            f"One may stop at {early.object}; but that is {early.goal()}, and the question wants "
            f"{lesson.wanted}."
        )
    if lesson.pick:
        traps.append("One may look at one side only; both sides must be followed to their end.")
    if lesson.distractors:
        title, sentence = lesson.distractors[0]
        traps.append(
            f"One may also be led astray by the document on {title}, where it says: {sentence} "
            f"The name shows that it is about something else."
        )
    return traps


def _walk(step: Step, draws: Draws) -> str:
    return f"{_reads(step, draws)} {_gives(step, draws)}"


def _reads(step: Step, draws: Draws) -> str:
    return draws.pick(_READS).format(title=step.title, sentence=step.sentence)


def _gives(step: Step, draws: Draws) -> str:
    return draws.pick(_GIVES).format(goal=step.goal(), found=step.object)


def _end(lesson: Lesson, draws: Draws) -> str:
    return draws.pick(_ENDS).format(answer=lesson.question.answer)


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _paragraphs(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)
