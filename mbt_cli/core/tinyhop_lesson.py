"""A tinyhop question as something to explain: its steps, what decides it, and what tempts.

What `core/tinyhop_teacher.py` puts into words.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mbt_cli.core.questions import Question
from mbt_cli.core.tinyhop_wording import COMPANIES, RELATIONS

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
    """One fact of the chain, and the sentence that tells it."""

    subject: str
    relation: str
    object: str
    title: str
    sentence: str
    side: int

    @property
    def subject_called(self) -> str:
        """The subject as a question would call it."""
        kinds = RELATIONS[self.relation].subjects
        return f"the {kinds[0]} {self.subject}" if kinds[0] in ("novel", "film") else self.subject

    def goal(self, subject: str | None = None) -> str:
        """What the step finds, such as `the author of the novel The Silent Orchard`."""
        relation = RELATIONS[self.relation]
        pattern = _YEAR_GOALS.get(self.relation) or relation.wordings["train"].phrases[0]
        return pattern.format(s=subject or self.subject_called)

    @property
    def subject_noun(self) -> str:
        """The subject's kind in a plain word."""
        kinds = RELATIONS[self.relation].subjects
        return "company" if kinds == COMPANIES else kinds[0]

    @property
    def object_noun(self) -> str:
        """The object's kind in a plain word."""
        kind = RELATIONS[self.relation].object
        return _COMMON_NOUNS.get(kind, kind)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A question with its steps.

    Args:
        sides: Steps of each side; a bridge has one side.
        pick: `earlier`, `later` or `same` for two sides, else None.
        aside: Title and first sentence of the documents that hold no step.
    """

    question: Question
    sides: tuple[tuple[Step, ...], ...]
    pick: str | None
    aside: tuple[tuple[str, str], ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, side by side."""
        return tuple(step for side in self.sides for step in side)

    @property
    def wanted(self) -> str:
        """What kind of answer the question asks for."""
        if self.pick == "same":
            return "yes or no"
        if self.pick:
            return f"one of two {_PLURALS[self.sides[0][-1].subject_noun]}"
        noun = self.steps[-1].object_noun
        return "a year" if noun == "year" else f"the name of a {noun}"

    def plan(self) -> list[str]:
        """What each step looks for, said before anything is known."""
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
    """The lesson of a question that `core/tinyhop.py` made.

    Raises:
        KeyError: Its metadata holds no chain.
    """
    sentences = {document.title: document.sentences for document in question.context}
    steps = [_step(link, sentences) for link in question.metadata["chain"]]
    sides = tuple(
        tuple(step for step in steps if step.side == side)
        for side in sorted({step.side for step in steps})
    )
    used = {step.title for step in steps}
    aside = tuple(
        (document.title, document.sentences[0])
        for document in question.context
        if document.title not in used
    )
    return Lesson(question, sides, question.metadata["pick"], aside)


def _step(link: Mapping[str, object], sentences: Mapping[str, Sequence[str]]) -> Step:
    title, number, side = str(link["title"]), link["sentence"], link["side"]
    assert isinstance(number, int)
    assert isinstance(side, int)
    subject, relation, found = (str(link[name]) for name in ("subject", "relation", "object"))
    return Step(subject, relation, found, title, sentences[title][number], side)


def guess_in(trace: str, lesson: Lesson) -> str | None:
    """What a student's thinking settles on: the last name in it that could be an answer.

    Example:
        >>> from mbt_cli.core.tinyhop import Settings, make_question
        >>> lesson = lesson_of(make_question(Settings(0, "train", (2,), 4), 0))
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
    # by place; of two names at the same place the longer one
    last = max(places, key=lambda name: (places[name], len(name), name))
    return last if places[last] >= 0 else None
