"""Plays a program by hand: its requests in the order of the loop, answered by a function."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.programs import Ask, Problem
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.templates import parse_template

PROMPTS = Path(__file__).parents[2] / "mbt_cli" / "prompts"
TASK = "How many primes are below 10?"
MESSAGES = (Message(role="user", content=TASK),)


@dataclass
class Played:
    """What a program asked, in order, what it was told, and what it returned."""

    asks: list[Ask] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    answer: Reply | None = None

    @property
    def names(self):
        return [ask.name for ask in self.asks]

    @property
    def roles(self):
        return {ask.name: ask.role for ask in self.asks}

    def prompt(self, number):
        return "\n".join(turn["content"] for turn in self.asks[number].messages)

    def said(self, name):
        """The prompts of the requests with a name."""
        return [self.prompt(n) for n, ask in enumerate(self.asks) if ask.name == name]


def problem_for(program, *, messages=MESSAGES, question=TASK, seed=0):
    """A problem with the program's own templates."""
    prompts = {
        field: parse_template(
            getattr(program, field),
            (PROMPTS / f"{getattr(program, field)}.md").read_text(),
            known=frozenset({"question", *placeholders}),
        )
        for field, placeholders in program.prompts.items()
    }
    question = {"question_id": "q1", "question": question}
    return Problem(question, messages, partial(Draws, seed, "rollout", "q1", 0), prompts)


def play(program, respond, *, most=100_000, **of_problem):
    """Run a program; `respond(ask, number)` gives a text, None for a failure, or a Reply."""
    played = Played()

    def answered(ask):
        number = len(played.asks)
        assert number < most, "the program does not end"
        played.asks.append(ask)
        for parent in ask.built_on:
            assert any(parent is reply for reply in played.replies), "built on an unknown reply"
        given = respond(ask, number)
        if not isinstance(given, Reply):
            failure = "timeout: no reply" if given is None else None
            given = Reply(text=given, finish_reason="stop", failure=failure, seed=number)
        played.replies.append(given)
        return given

    def together(items):
        """Replies and values of items that run side by side, one round of each at a time."""
        values = [None] * len(items)
        branches = {}
        for at, item in enumerate(items):
            if isinstance(item, Ask):
                values[at] = answered(item)
            else:
                branches[at] = (item, None)
        while branches:
            for at in list(branches):
                steps, sent = branches[at]
                try:
                    inner = steps.send(sent)
                except StopIteration as stop:
                    values[at] = stop.value
                    del branches[at]
                else:
                    branches[at] = (steps, together(inner))
        return values

    (played.answer,) = together([program.run(problem_for(program, **of_problem))])
    return played


def scripted(**by_name):
    """Answers each request by its name: a text for all, or a list that is used up in order."""
    left = {
        name: list(given) if isinstance(given, list) else given for name, given in by_name.items()
    }

    def respond(ask, number):
        given = left[ask.name]
        return given.pop(0) if isinstance(given, list) else given

    return respond
