"""Reasoning cache: long work in chunks, of which each sees a summary of the one before."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import said, saying, task_text


class ReasoningCache(Program):
    """Solve, summarise the thinking, solve again with the summary alone, and so on.

    1. `solve`: the stage's prompt; its thinking may be cut at the token limit.
    2. `summarise`: the thinking in at most two paragraphs, without anything new.
    3. `continue`: the task and the summary; its thinking is summarised next.

    The answer is the last reply that says anything outside its thinking. If a summary is unread,
    the one before it is used again, or none.
    """

    kind: Literal["reasoning_cache"] = "reasoning_cache"
    """Names the program in a manifest."""
    iterations: int = Field(default=3, ge=1, le=100)
    """Times that the model works on the task."""
    summarise_prompt: str = "reasoning_cache_summarise"
    """Template of a summary; `{{ task }}`, `{{ reasoning }}`."""
    continue_prompt: str = "reasoning_cache_continue"
    """Template of the work that goes on; `{{ task }}`, `{{ summary }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "summarise_prompt": frozenset({"task", "reasoning"}),
        "continue_prompt": frozenset({"task", "summary"}),
    }
    roles: ClassVar[Mapping[str, str]] = {"summariser": "summarises the thinking"}

    def expected_requests(self) -> int:
        return 2 * self.iterations - 1

    def run(self, problem: Problem) -> Steps:
        task = task_text(problem)
        ask = Ask("solve", problem.messages)
        work = yield from _worked(ask)
        answer = work
        for _ in range(self.iterations - 1):
            if (thinking := _thinking(work)) is not None:
                summarise = Ask(
                    "summarise",
                    problem.filled("summarise_prompt", task=task, reasoning=thinking),
                    role="summariser",
                    built_on=(work,),
                    reads=said,
                )
                reply, summary = yield from read_reply(summarise)
                if summary is not None:
                    messages = problem.filled("continue_prompt", task=task, summary=summary)
                    ask = Ask("continue", messages, built_on=(reply,))
            work = yield from _worked(ask)
            if saying(work) or not saying(answer):
                answer = work
        return answer


def _worked(ask: Ask) -> Steps:
    """A reply with text or thinking; asked for once more, with a new seed, if it has neither."""
    reply = Reply()
    for _ in range(2):
        (reply,) = yield [ask]
        if _thinking(reply) is not None:
            return reply
    return reply


def _thinking(reply: Reply) -> str | None:
    """The thinking of a reply, or all that it says if the thinking is not separate."""
    found = (reply.reasoning or reply.text or "").strip()
    return None if reply.failure else found or None
