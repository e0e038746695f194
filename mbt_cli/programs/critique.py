"""Critique: answer, criticise the answer, revise it."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import said, saying, solution, task_text


class Critique(Program):
    """Answer, criticise, revise.

    1. `answer`: the stage's prompt.
    2. `criticise`: a critic reads the task and the answer and lists what is wrong.
    3. `revise`: the answer is written again with the critique in view.

    Steps 2 and 3 repeat `rounds` times. If a critique or a revision is unread, the answer stands.
    """

    kind: Literal["critique"] = "critique"
    """Names the program in a manifest."""
    rounds: int = Field(default=1, ge=0, le=100)
    """Times that the answer is criticised and revised."""
    criticise_prompt: str = "critique_criticise"
    """Template of the critique; `{{ task }}` is the stage's prompt, `{{ answer }}` the answer."""
    revise_prompt: str = "critique_revise"
    """Template of the revision; `{{ critique }}` is the critique."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "criticise_prompt": frozenset({"task", "answer"}),
        "revise_prompt": frozenset({"task", "answer", "critique"}),
    }
    roles: ClassVar[Mapping[str, str]] = {"critic": "criticises the answer"}

    def expected_requests(self) -> int:
        return 1 + 2 * self.rounds

    def run(self, problem: Problem) -> Steps:
        ask = Ask("answer", problem.messages, reads=said)
        answer, found = yield from read_reply(ask)
        if found is None:
            return answer
        task = task_text(problem)
        for _ in range(self.rounds):
            ask = Ask(
                "criticise",
                problem.filled("criticise_prompt", task=task, answer=saying(answer)),
                role="critic",
                built_on=(answer,),
                reads=said,
                trainable=False,
            )
            report, critique = yield from read_reply(ask)
            if critique is None:
                return answer
            revision = problem.filled(
                "revise_prompt", task=task, answer=saying(answer), critique=critique
            )
            revised = yield from solution("revise", revision, (answer, report))
            if revised is None:
                return answer
            answer = revised
        return answer
