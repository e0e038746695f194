r"""What several programs share: templates, the task as text, readers of replies, pieces of flows.

An inner reply that cannot be read is asked for once more with a new seed (`read_reply`). If it is
still unread it is left out: a solution does not enter the pool, a score does not enter the mean, a
match is decided by lot.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import ClassVar

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.traces import said as said
from mbt_cli.interfaces import Program

_BOXED = re.compile(r"\\boxed\s*\{\s*(?:\\text\s*\{)?\s*([^{}]*?)\s*\}")
_NUMBER = re.compile(r"-?\d{1,6}(?:\.\d{1,6}|/\d{1,6})?")


class SolutionPrompts(Program):
    """The templates of programs that solve along approaches, verify, improve and combine."""

    approaches_prompt: str = "static_approaches"
    """Template that asks for each approach in `<approach>...</approach>`; `{{ task }}`,
    `{{ count }}`."""
    approach_prompt: str = "static_solve"
    """Template of a solution along an approach; `{{ task }}`, `{{ approach }}`."""
    verify_prompt: str = "static_verify"
    """Template of a report on a solution; `{{ task }}`, `{{ solution }}`."""
    improve_prompt: str = "static_improve"
    """Template of an improvement; `{{ task }}`, `{{ solution }}`, `{{ report }}`."""
    merge_prompt: str = "merge"
    """Template of a merge; `{{ task }}`, `{{ solutions }}`."""
    select_prompt: str = "select"
    """Template of a selection, which asks for `<select>N</select>`; `{{ task }}`,
    `{{ solutions }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "approaches_prompt": frozenset({"task", "count"}),
        "approach_prompt": frozenset({"task", "approach"}),
        "verify_prompt": frozenset({"task", "solution"}),
        "improve_prompt": frozenset({"task", "solution", "report"}),
        "merge_prompt": frozenset({"task", "solutions"}),
        "select_prompt": frozenset({"task", "solutions"}),
    }


def saying(reply: Reply) -> str:
    """What a reply says outside its thinking; empty if it says nothing."""
    return said(reply.text or "") or ""


def task_text(problem: Problem) -> str:
    """The stage's prompt for the question as one text, for prompts that quote it."""
    return "\n\n".join(message["content"] for message in problem.messages)


def user(text: str) -> Message:
    """A turn of the user."""
    return Message(role="user", content=text)


def assistant(reply: Reply) -> Message:
    """A reply as a turn of a conversation, without its thinking."""
    return Message(role="assistant", content=saying(reply))


def solution(
    name: str, messages: Sequence[Message], built_on: Sequence[Reply] = (), role: str = ""
) -> Steps:
    """Ask for a text; returns its reply, or None if it is unread."""
    ask = Ask(name, tuple(messages), role=role, built_on=tuple(built_on), reads=said)
    reply, found = yield from read_reply(ask)
    return None if found is None else reply


def solutions(name: str, messages: Sequence[Message], count: int) -> Steps:
    """Ask for several texts side by side.

    Returns:
        The replies that have one, and the last reply, which is the answer if there are none.
    """
    ask = Ask(name, tuple(messages), reads=said)
    found = yield [read_reply(ask) for _ in range(count)]
    return [reply for reply, text in found if text is not None], found[-1][0]


def last_tag(text: str, tag: str) -> str | None:
    """The content of the last `<tag>...</tag>` outside the thinking; None without one.

    Example:
        >>> last_tag("<keep>[1]</keep> or <keep> [2] </keep>", "keep")
        '[2]'
    """
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", said(text) or "", re.DOTALL | re.IGNORECASE)
    return found[-1].strip() if found else None


def all_tags(text: str, tag: str) -> list[str] | None:
    """The contents of every `<tag>...</tag>` outside the thinking; None if there is none."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", said(text) or "", re.DOTALL | re.IGNORECASE)
    return [part.strip() for part in found if part.strip()] or None


def word_in(text: str, tag: str, words: Collection[str]) -> str | None:
    """The last tag's content if it is one of the words, whatever its case."""
    word = (last_tag(text, tag) or "").casefold().strip(" .")
    return word if word in words else None


def boxed_score(text: str, allowed: Collection[Fraction]) -> Fraction | None:
    r"""The number in the last `\boxed{}` outside the thinking, if it is an allowed one.

    Example:
        >>> halves = [Fraction(n, 2) for n in range(3)]
        >>> boxed_score(r"Score: \boxed{0.5}", halves), boxed_score(r"\boxed{8}", halves)
        (Fraction(1, 2), None)
    """
    found = _BOXED.findall(said(text) or "")
    if not found or not _NUMBER.fullmatch(found[-1]):
        return None
    try:
        score = Fraction(found[-1])
    except ZeroDivisionError:
        return None
    return score if score in allowed else None


def numbers_in(text: str, tag: str, count: int) -> list[int] | None:
    """Numbers from 1 to count in the last tag, such as `[1, 4]`, as places from 0; no number twice.

    None if there is no tag, or it holds anything else.

    Example:
        >>> numbers_in("<keep>[4, 1, 4]</keep>", "keep", 4)
        [3, 0]
        >>> numbers_in("<keep>[]</keep>", "keep", 4), numbers_in("<keep>[5]</keep>", "keep", 4)
        ([], None)
    """
    content = last_tag(text, tag)
    if content is None:
        return None
    found = re.fullmatch(r"\[?\s*((?:\d{1,6}\s*(?:,\s*|(?=\]|$)))*)\]?", content)
    if found is None:
        return None
    numbers = [int(number) - 1 for number in re.findall(r"\d+", found[1])]
    return list(dict.fromkeys(numbers)) if all(0 <= n < count for n in numbers) else None


def one_number_in(text: str, tag: str, count: int) -> int | None:
    """A single number from 1 to count in the last tag, as a place from 0."""
    found = numbers_in(text, tag, count)
    return found[0] if found is not None and len(found) == 1 else None


def numbered(replies: Sequence[Reply], word: str = "Solution") -> str:
    """Replies one after the other, each under a heading with its number from 1."""
    parts = (f"### {word} {n}\n\n{saying(reply)}" for n, reply in enumerate(replies, start=1))
    return "\n\n".join(parts)


def majority(votes: Sequence[bool]) -> bool | None:
    """Whether more votes are yes than no; a tie is no, and no votes are None."""
    return 2 * sum(votes) > len(votes) if votes else None


def offsets(draws: Draws, count: int, block: int) -> list[int]:
    """Different distances from 1 to count - 1, in ascending order; the same for every solution.

    With them each of `count` solutions stands in equally many blocks.
    """
    return sorted(draws.shuffled(range(1, count))[:block])


def blocks(items: Sequence[Reply], distances: Sequence[int]) -> list[list[Reply]]:
    """For each item, the ones at the given distances behind it, in a circle."""
    return [[items[(at + far) % len(items)] for far in distances] for at in range(len(items))]


def knock_out(
    problem: Problem, entrants: Sequence[Reply], *, prompt: str = "compare_prompt", role: str = ""
) -> Steps:
    """Compare two at a time, in drawn order, until one is left.

    The template gets `task`, `first` and `second` and asks for `<verdict>1</verdict>`, `2` or
    `tie`. A tie, or a verdict that is unread, is decided by lot.
    """
    draws = problem.draw("pairs")
    order = draws.shuffled(entrants)
    while len(order) > 1:
        pairs = list(zip(order[::2], order[1::2], strict=False))
        found = yield [read_reply(_match(problem, pair, prompt, role)) for pair in pairs]
        winners = []
        for (first, second), (_, verdict) in zip(pairs, found, strict=True):
            side = {"1": first, "2": second}.get(verdict)
            winners.append(draws.pick((first, second)) if side is None else side)
        order = [*order[2 * len(pairs) :], *winners]  # who had no match plays first in the next
    return order[0]


def _match(problem: Problem, pair: tuple[Reply, Reply], prompt: str, role: str) -> Ask:
    first, second = pair
    return Ask(
        "compare",
        problem.filled(prompt, task=task_text(problem), first=saying(first), second=saying(second)),
        role=role,
        built_on=pair,
        reads=partial(word_in, tag="verdict", words=("1", "2", "tie")),
        trainable=False,
    )


def choice(
    problem: Problem, entrants: Sequence[Reply], *, prompt: str = "select_prompt", role: str = ""
) -> Steps:
    """Choose one by a single request that quotes all; an unread choice is made by lot.

    The template gets `task` and `solutions` and asks for `<select>3</select>`.
    """
    if len(entrants) == 1:
        return entrants[0]
    ask = Ask(
        "select",
        problem.filled(prompt, task=task_text(problem), solutions=numbered(entrants)),
        role=role,
        built_on=tuple(entrants),
        reads=partial(one_number_in, tag="select", count=len(entrants)),
        trainable=False,
    )
    _, place = yield from read_reply(ask)
    return problem.draw("select").pick(entrants) if place is None else entrants[place]


def merge(problem: Problem, parts: Sequence[Reply], *, role: str = "") -> Steps:
    """Write one solution out of several by `merge_prompt`; returns a Reply, or None if unread."""
    messages = problem.filled("merge_prompt", task=task_text(problem), solutions=numbered(parts))
    found = yield from solution("merge", messages, parts, role)
    return found
