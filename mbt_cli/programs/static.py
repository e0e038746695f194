"""Static: a fixed plan of approaches, solutions, verification and improvement, then merging."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.programs.pieces import (
    SolutionPrompts,
    all_tags,
    choice,
    merge,
    said,
    saying,
    solution,
    task_text,
)


class Static(SolutionPrompts):
    """Solve along several lines, verify and improve each solution, and combine them.

    1. `approaches`: one request names that many ways to begin; each is a line, and `without` more
       lines have no approach.
    2. Each line: `solve` writes `solutions` solutions; each is verified (`verify`) and improved
       (`improve`) `verifications` times.
    3. `merge` (or `select`): the solutions of each line become one, then the lines become one.

    If the approaches are unread, one line without an approach takes their place where no other
    line is left. A merge that is unread gives its first solution.
    """

    kind: Literal["static"] = "static"
    """Names the program in a manifest."""
    approaches: int = Field(default=0, ge=0, le=100)
    """Lines that begin with an approach; one request names all of them."""
    without: int = Field(default=4, ge=0, le=100)
    """Lines without an approach."""
    solutions: int = Field(default=2, ge=1, le=100)
    """Solutions of each line."""
    verifications: int = Field(default=1, ge=0, le=100)
    """Times that each solution is verified and improved."""
    combine: Literal["merge", "select"] = "merge"
    """`merge` writes one solution out of several; `select` takes one of them."""

    roles: ClassVar[Mapping[str, str]] = {
        "planner": "names approaches",
        "verifier": "verifies solutions",
        "improver": "improves solutions",
        "merger": "merges or selects solutions",
    }

    @model_validator(mode="after")
    def _check_lines(self) -> "Static":
        if not self.approaches + self.without:
            raise ValueError("`approaches` and `without` are both 0: nothing would be solved")
        return self

    def expected_requests(self) -> int:
        lines = self.approaches + self.without
        solved = lines * self.solutions * (1 + 2 * self.verifications)
        combined = (lines if self.solutions > 1 else 0) + (1 if lines > 1 else 0)
        return (1 if self.approaches else 0) + solved + combined

    def run(self, problem: Problem) -> Steps:
        ideas: Sequence[str] = ()
        built_on: Sequence[Reply] = ()
        if self.approaches:
            named, found = yield from read_reply(self._approaches(problem))
            ideas, built_on = (found or ())[: self.approaches], (named,)
        task = task_text(problem)
        lines: list[tuple[Sequence[Message], Sequence[Reply]]] = [
            (problem.filled("approach_prompt", task=task, approach=idea), built_on)
            for idea in ideas
        ]
        count = self.without if self.without or ideas else 1
        lines += [(problem.messages, ())] * count
        ended = yield [self._line(problem, messages, built_on) for messages, built_on in lines]
        best = [reply for reply, is_read in ended if is_read]
        if not best:
            return ended[-1][0]
        answer = yield from self._combined(problem, best)
        return answer

    def _approaches(self, problem: Problem) -> Ask:
        messages = problem.filled(
            "approaches_prompt", task=task_text(problem), count=str(self.approaches)
        )
        reads = partial(all_tags, tag="approach")
        return Ask("approaches", messages, role="planner", reads=reads, trainable=False)

    def _line(
        self, problem: Problem, messages: Sequence[Message], built_on: Sequence[Reply]
    ) -> Steps:
        """The solution of a line, or a failed reply, and which of both it is."""
        ask = Ask("solve", tuple(messages), built_on=built_on, reads=said)
        found = yield [self._solution(problem, ask) for _ in range(self.solutions)]
        read = [reply for reply, is_read in found if is_read]
        if not read:
            return found[-1]
        answer = yield from self._combined(problem, read)
        return answer, True

    def _solution(self, problem: Problem, ask: Ask) -> Steps:
        reply, found = yield from read_reply(ask)
        if found is None:
            return reply, False
        task = task_text(problem)
        for _ in range(self.verifications):
            messages = problem.filled("verify_prompt", task=task, solution=saying(reply))
            verify = Ask("verify", messages, {}, "verifier", (reply,), said, trainable=False)
            report, words = yield from read_reply(verify)
            if words is None:
                continue
            messages = problem.filled(
                "improve_prompt", task=task, solution=saying(reply), report=words
            )
            improved = yield from solution("improve", messages, (reply, report), "improver")
            reply = improved or reply
        return reply, True

    def _combined(self, problem: Problem, parts: Sequence[Reply]) -> Steps:
        if len(parts) == 1:
            return parts[0]
        if self.combine == "select":
            chosen = yield from choice(problem, parts, role="merger")
            return chosen
        merged = yield from merge(problem, parts, role="merger")
        return merged or parts[0]
