"""Dialogue: the model answers, and another model plays the user who asks on."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Message
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import assistant, said, saying, task_text, user


class Dialogue(Program):
    """Answer, and go on answering what a simulated user says next.

    1. `answer`: the stage's prompt.
    2. Each of `turns`: `user` reads the conversation and writes the user's next message; `answer`
       goes on in the same conversation.

    The rollout's answer is the last one. If a message of the user or an answer is unread, the
    dialogue ends with the answer before it.
    """

    kind: Literal["dialogue"] = "dialogue"
    """Names the program in a manifest."""
    turns: int = Field(default=3, ge=0, le=100)
    """Messages of the user after the first answer."""
    user_prompt: str = "dialogue_user"
    """Template of the user's next message; `{{ task }}`, `{{ dialogue }}` (the turns so far)."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "user_prompt": frozenset({"task", "dialogue"})
    }
    roles: ClassVar[Mapping[str, str]] = {"user": "plays the user"}

    def expected_requests(self) -> int:
        return 1 + 2 * self.turns

    def run(self, problem: Problem) -> Steps:
        answer, found = yield from read_reply(Ask("answer", problem.messages, reads=said))
        if found is None:
            return answer
        turns: list[Message] = [assistant(answer)]
        for _ in range(self.turns):
            messages = problem.filled(
                "user_prompt", task=task_text(problem), dialogue=_shown(turns)
            )
            ask = Ask("user", messages, {}, "user", (answer,), said, trainable=False)
            asked, words = yield from read_reply(ask)
            if words is None:
                return answer
            turns.append(user(words))
            ask = Ask("answer", (*problem.messages, *turns), built_on=(answer, asked), reads=said)
            following, found = yield from read_reply(ask)
            if found is None:
                return answer
            answer = following
            turns.append(Message(role="assistant", content=saying(answer)))
        return answer


def _shown(turns: Sequence[Message]) -> str:
    """The turns so far as text, each under who says it."""
    return "\n\n".join(f"{turn['role'].capitalize()}:\n{turn['content']}" for turn in turns)
