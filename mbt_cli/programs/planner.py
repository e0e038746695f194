"""Planner: a model that decides itself when to solve, verify, improve, merge and submit."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Json, Message, Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.core.tool_calls import TOOL, Call, calls_in
from mbt_cli.programs.pieces import (
    SolutionPrompts,
    all_tags,
    assistant,
    numbered,
    one_number_in,
    said,
    saying,
    solution,
    task_text,
    user,
)

_NUMBER: Json = {"type": "integer", "description": "number of a solution, from 1"}
_NUMBERS: Json = {"type": "array", "items": {"type": "integer"}, "description": "their numbers"}
_TOOLS: Mapping[str, tuple[str, Mapping[str, Json], Sequence[str]]] = {
    "approaches": ("Name different ways to begin.", {}, ()),
    "solver": (
        "Write a new solution, along an approach if one is given.",
        {"approach": {"type": "string"}},
        (),
    ),
    "verifier": ("Write a report on a solution.", {"solution": _NUMBER}, ("solution",)),
    "improver": (
        "Write a solution again, with a report in view if one is given.",
        {"solution": _NUMBER, "report": {"type": "string"}},
        ("solution",),
    ),
    "selector": (
        "Say which of several solutions is best.",
        {"solutions": _NUMBERS},
        ("solutions",),
    ),
    "merger": ("Write one solution out of several.", {"solutions": _NUMBERS}, ("solutions",)),
    "submit": ("Make a solution the answer and end.", {"solution": _NUMBER}, ("solution",)),
}
"""Tool to its description, its parameters as JSON Schema, and those that must be given."""


class Planner(SolutionPrompts):
    """A planning model calls tools, each of which is a request, and submits a solution.

    1. `plan`: the planner reads the task and calls one tool or several: `approaches`, `solver`,
       `verifier`, `improver`, `selector`, `merger`, or `submit`, which ends it.
    2. Each call is a request with a prompt of its own; calls of one turn run side by side. What
       comes back is the next turn of the conversation. Solutions are numbered from 1.
    3. After `max_calls` calls, wrong ones included, the planner must submit.

    If it does not submit a solution that exists, the newest one is the answer; without a
    solution, the planner's last reply is. A turn without a call is asked for once more.
    """

    kind: Literal["planner"] = "planner"
    """Names the program in a manifest."""
    max_calls: int = Field(default=15, ge=1, le=1000)
    """Most calls of tools before it must submit."""
    solutions: int = Field(default=4, ge=2, le=100)
    """Most solutions that one call of `selector` or `merger` reads."""
    approaches: int = Field(default=4, ge=1, le=100)
    """Approaches that a call of `approaches` names."""
    interface: Literal["text", "tools"] = "text"
    """`text`: the prompt shows how to write a call, for any model. `tools`: calls go through the
    field `tools` of the protocol, for models and servers that have it."""
    plan_prompt: str = "planner_plan"
    """Template of the planner's first turn; `{{ task }}`, `{{ tools }}`, `{{ calls }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "plan_prompt": frozenset({"task", "tools", "calls"}),
        **SolutionPrompts.prompts,
    }
    roles: ClassVar[Mapping[str, str]] = {
        "planner": "plans, calls the tools and submits",
        "verifier": "writes reports on solutions",
        "selector": "selects among solutions",
    }

    def expected_requests(self) -> int:
        return 2 * self.max_calls + 1

    def run(self, problem: Problem) -> Steps:
        turns: list[Message] = list(self._first(problem))
        known: list[Reply] = []
        came_back: Sequence[Reply] = ()
        left = self.max_calls
        while True:
            body = {"tools": _schema()} if self.interface == "tools" else {}
            ask = Ask("plan", tuple(turns), body, "planner", tuple(came_back), calls_in)
            plan, calls = yield from read_reply(ask)
            if calls is None:
                break
            if (place := _submitted(calls, known)) is not None:
                return known[place]
            if not left:
                break
            made, left = calls[:left], max(0, left - len(calls))
            results = yield [self._call(problem, call, tuple(known)) for call in made]
            words, came_back = self._words(results, known)
            words += ["Not called: no calls are left."] * (len(calls) - len(made))
            note = (
                f"{left} calls are left." if left else "No calls are left: submit a solution now."
            )
            turns += [assistant(plan), *self._turns(calls, words, note)]
        return known[-1] if known else plan

    def _first(self, problem: Problem) -> Sequence[Message]:
        tools = "\n".join(
            f"- {name}({', '.join(fields)}): {what}" for name, (what, fields, _) in _TOOLS.items()
        )
        return problem.filled(
            "plan_prompt", task=task_text(problem), tools=tools, calls=str(self.max_calls)
        )

    def _turns(self, calls: Sequence[Call], words: Sequence[str], note: str) -> list[Message]:
        """What came back of each call, as turns of the conversation."""
        if self.interface == "tools":
            results = [*words[:-1], f"{words[-1]}\n\n{note}"]
            return [Message(role=TOOL, content=one) for one in results]
        parts = (
            f"Result {n} ({call.name or 'unreadable call'}):\n{one}"
            for n, (call, one) in enumerate(zip(calls, words, strict=True), start=1)
        )
        return [user("\n\n".join([*parts, note]))]

    def _words(
        self, results: Sequence[tuple[str, Reply | None]], known: list[Reply]
    ) -> tuple[list[str], list[Reply]]:
        """What the planner is told of each result; new solutions get their numbers."""
        words, replies = [], []
        for text, reply in results:
            if reply is None:
                words.append(text)
                continue
            replies.append(reply)
            if text:
                words.append(text)
            else:
                known.append(reply)
                words.append(f"Solution {len(known)}:\n{saying(reply)}")
        return words, replies

    def _call(self, problem: Problem, call: Call, known: Sequence[Reply]) -> Steps:
        """What a call gives: a text and the reply it is from; an empty text is a new solution."""
        task = task_text(problem)
        wrong = _problem(call, known, self.solutions)
        if wrong:
            return f"Error: {wrong}", None
        given = _solutions_of(call, known)
        name, text = call.name, {key: str(value) for key, value in call.arguments.items()}
        ask: Ask | None = None
        if name == "approaches":
            messages = problem.filled("approaches_prompt", task=task, count=str(self.approaches))
            reads = partial(all_tags, tag="approach")
            ask = Ask(name, messages, {}, "planner", (), reads, trainable=False)
        elif name == "verifier":
            messages = problem.filled("verify_prompt", task=task, solution=saying(given[0]))
            ask = Ask(name, messages, {}, "verifier", given, said, trainable=False)
        elif name == "selector":
            messages = problem.filled("select_prompt", task=task, solutions=numbered(given))
            reads_one = partial(one_number_in, tag="select", count=len(given))
            ask = Ask(name, messages, {}, "selector", given, reads_one, trainable=False)
        if ask is not None:
            reply, found = yield from read_reply(ask)
            return self._said(name, call, reply, found)
        if name == "solver":
            approach = text.get("approach", "").strip()
            filled = problem.filled("approach_prompt", task=task, approach=approach)
            new = yield from solution(name, filled if approach else problem.messages)
        elif name == "improver":
            report = text.get("report") or "No report was written: look for what is wrong yourself."
            filled = problem.filled(
                "improve_prompt", task=task, solution=saying(given[0]), report=report
            )
            new = yield from solution(name, filled, given)
        else:
            filled = problem.filled("merge_prompt", task=task, solutions=numbered(given))
            new = yield from solution(name, filled, given)
        return ("Error: no solution came back.", None) if new is None else ("", new)

    def _said(
        self, name: str, call: Call, reply: Reply, found: list[str] | str | int | None
    ) -> tuple[str, Reply | None]:
        if found is None:
            return f"Error: `{name}` gave nothing that can be read.", None
        if name == "selector":
            assert isinstance(found, int)
            return f"The best of them is solution {call.arguments['solutions'][found]}.", reply
        if isinstance(found, list):
            return "\n".join(f"- {one}" for one in found[: self.approaches]), reply
        return str(found), reply


def _place(number: Json, known: Sequence[Reply]) -> int | None:
    """The place of a solution by its number."""
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return number - 1 if is_number and 1 <= number <= len(known) else None


def _submitted(calls: Sequence[Call], known: Sequence[Reply]) -> int | None:
    """The place of the first solution that is submitted and exists."""
    submitted = (
        _place(call.arguments.get("solution"), known) for call in calls if call.name == "submit"
    )
    return next((place for place in submitted if place is not None), None)


def _solutions_of(call: Call, known: Sequence[Reply]) -> tuple[Reply, ...]:
    """The solutions that a checked call names."""
    named = call.arguments.get("solutions", [call.arguments.get("solution")])
    places = (_place(number, known) for number in named)
    return tuple(known[place] for place in places if place is not None)


def _problem(call: Call, known: Sequence[Reply], most: int) -> str | None:
    """What is wrong with a call, for the planner; None if nothing is."""
    if call.name not in _TOOLS:
        return f"there is no tool `{call.name}`; there are {', '.join(_TOOLS)}."
    have = f"there are {len(known)} solutions, numbered from 1."
    _, _, needed = _TOOLS[call.name]
    if "solution" in needed and _place(call.arguments.get("solution"), known) is None:
        return f"`solution` must be the number of a solution; {have}"
    if "solutions" in needed:
        named = call.arguments.get("solutions")
        if not isinstance(named, list) or not 2 <= len(named) <= most:
            return f"`solutions` must be 2 to {most} numbers of solutions; {have}"
        if any(_place(number, known) is None for number in named):
            return f"`solutions` must be numbers of solutions; {have}"
    return None


def _schema() -> list[Json]:
    """The tools as the field `tools` of a request."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": what,
                "parameters": {
                    "type": "object",
                    "properties": dict(fields),
                    "required": list(needed),
                },
            },
        }
        for name, (what, fields, needed) in _TOOLS.items()
    ]
