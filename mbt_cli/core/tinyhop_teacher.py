"""A teacher made by rule: solutions, five-phase traces and rewrites of tinyhop questions.

The words vary with the draws; the facts come from the question's own chain. It stands in for a
strong model where none is at hand, and is always named `scripted`.
"""

from collections.abc import Sequence

from mbt_cli.core.draws import Draws
from mbt_cli.core.tinyhop_lesson import Lesson, Step, guess_in

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
    """A worked solution: the way, the traps, the answer."""
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
            _joined(_kept(lesson, student), _execution(lesson, draws)),
            _doubt(lesson, draws) if is_right else _correction(lesson, guess, draws),
            _verification(lesson, draws),
        ]
    )


def plain_trace(lesson: Lesson, draws: Draws) -> str:
    """One straight line of reasoning, without planning, doubts or checks (the matched control)."""
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
    if lesson.aside and draws.chance(1, 2):
        parts.append(f"The one on {draws.pick(lesson.aside)[0]} can be left aside.")
    return " ".join(parts)


def _planning(lesson: Lesson, draws: Draws) -> str:
    goals = lesson.plan()
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
    if not lesson.aside:
        return f"{opening} Only the document on {step.title} is about {step.subject}, so it is."
    title, _ = draws.pick(lesson.aside)
    return (
        f"{opening} The document on {title} could be mistaken for it, but our step was about "
        f"{step.subject}. So {step.object} stands."
    )


def _kept(lesson: Lesson, student: str) -> str:
    """The student's own findings that are right, in the order of the steps."""
    found = [step.object for step in lesson.steps if step.object in student]
    return (
        f"A first look already brings up {_listed(found)}. Let us see how it hangs together."
        if found
        else ""
    )


def _correction(lesson: Lesson, guess: str | None, draws: Draws) -> str:
    """A student's wrong end, noticed and put right."""
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
    if lesson.aside:
        title, sentence = lesson.aside[0]
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
