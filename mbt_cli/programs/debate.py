"""Debate: the model argues for one side, then for the other, and then decides."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import said, saying, solution, task_text

_SIDES = ("A", "B")


class Debate(Program):
    """Argue in turns for two sides, then answer.

    1. `argue`: side A proposes an answer and defends it, side B attacks it and proposes another,
       and so on for `turns` turns; each turn sees all before it.
    2. `conclude`: the answer, with the whole debate in view.

    A turn that is unread is left out of the debate.
    """

    kind: Literal["debate"] = "debate"
    """Names the program in a manifest."""
    turns: int = Field(default=4, ge=1, le=100)
    """Turns of both sides together; A has the first."""
    argue_prompt: str = "debate_argue"
    """Template of a turn; `{{ task }}`, `{{ side }}` (A or B), `{{ debate }}` (so far)."""
    conclude_prompt: str = "debate_conclude"
    """Template of the answer; `{{ task }}`, `{{ debate }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "argue_prompt": frozenset({"task", "side", "debate"}),
        "conclude_prompt": frozenset({"task", "debate"}),
    }
    roles: ClassVar[Mapping[str, str]] = {"opponent": "argues for side B"}

    def expected_requests(self) -> int:
        return self.turns + 1

    def run(self, problem: Problem) -> Steps:
        task = task_text(problem)
        held: list[tuple[str, Reply]] = []
        for turn in range(self.turns):
            side = _SIDES[turn % 2]
            messages = problem.filled("argue_prompt", task=task, side=side, debate=_shown(held))
            said_before = [reply for _, reply in held]
            role = "opponent" if side == "B" else ""
            reply = yield from solution("argue", messages, said_before, role)
            if reply is not None:
                held.append((side, reply))
        messages = problem.filled("conclude_prompt", task=task, debate=_shown(held))
        built_on = [reply for _, reply in held]
        answer, _ = yield from read_reply(Ask("conclude", messages, built_on=built_on, reads=said))
        return answer


def _shown(held: Sequence[tuple[str, Reply]]) -> str:
    """The turns so far, each under the name of its side."""
    turns = (f"Side {side}:\n{saying(reply)}" for side, reply in held)
    return "\n\n".join(turns) or "(nothing has been said yet)"
