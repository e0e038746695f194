"""Tools: the model runs Python while it works on a question."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Json, Message, Reply
from mbt_cli.core.programs import Ask, Problem, Steps
from mbt_cli.core.tool_calls import TOOL, Call, calls_in
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import assistant, said, user

_PYTHON = "python"
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": _PYTHON,
        "description": "Run a Python program. It starts afresh each time; print what you need.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the whole program"}},
            "required": ["code"],
        },
    },
}


class Tools(Program):
    """Let the model call Python, at most `max_calls` times, and then answer.

    1. `work`: the stage's prompt. Its calls run side by side (`python`), each in a fresh sandbox,
       and their output is the next turn. Calls beyond `max_calls` are not run.
    2. The first reply without a call is the answer. After the last call the model is told to
       answer, and what comes is the answer.

    The stage fills the role `python` with a model whose backend is `python`, which runs code
    instead of writing text. A run of a program is therefore a request as any other: its output is
    in the journal, so that a run that resumes goes on from the same output.
    """

    kind: Literal["tools"] = "tools"
    """Names the program in a manifest."""
    max_calls: int = Field(default=8, ge=1, le=1000)
    """Most programs that are run for a rollout."""
    interface: Literal["tools", "text"] = "tools"
    """`tools`: calls go through the field `tools` of the protocol, for models and servers that
    have it. `text`: the prompt shows how to write a call, for any model."""
    describe_prompt: str = "tools_describe"
    """Template of the turn that explains the tool, for `text` alone; `{{ calls }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {"describe_prompt": frozenset({"calls"})}
    roles: ClassVar[Mapping[str, str]] = {
        "python": "runs the code; a model of the backend `python`"
    }
    needed_roles: ClassVar[frozenset[str]] = frozenset({"python"})
    code_roles: ClassVar[frozenset[str]] = frozenset({"python"})

    def expected_requests(self) -> int:
        return 2 * self.max_calls + 1

    def run(self, problem: Problem) -> Steps:
        turns = list(problem.messages)
        if self.interface == "text":
            turns += problem.filled("describe_prompt", calls=str(self.max_calls))
        came_back: list[Reply] = []
        left = self.max_calls
        while True:
            reply = yield from _worked(Ask("work", tuple(turns), self._body(left), "", came_back))
            calls = None if reply.failure else calls_in(reply.text or "")
            if calls is None or not left:
                return reply
            made, left = calls[:left], max(0, left - len(calls))
            outputs = yield [self._python(call, reply) for call in made]
            words = [text for text, _ in outputs]
            words += ["Not run: no calls are left."] * (len(calls) - len(made))
            came_back = [output for _, output in outputs if output is not None]
            note = "" if left else "No calls are left. Write the final answer now."
            turns += [assistant(reply), *self._turns(words, note)]

    def _body(self, left: int) -> Mapping[str, Json]:
        if self.interface == "text":
            return {}
        return {"tools": [_TOOL]} if left else {"tools": [_TOOL], "tool_choice": "none"}

    def _turns(self, words: list[str], note: str) -> list[Message]:
        """The outputs as turns of the conversation."""
        if self.interface == "tools":
            *others, last = words
            texts = [*others, f"{last}\n\n{note}" if note else last]
            return [Message(role=TOOL, content=text) for text in texts]
        parts = [f"Output {number}:\n{text}" for number, text in enumerate(words, start=1)]
        return [user("\n\n".join([*parts, note] if note else parts))]

    def _python(self, call: Call, reply: Reply) -> Steps:
        """The output of a call, and the reply that holds it; None if nothing was run."""
        code = call.arguments.get("code")
        if call.name != _PYTHON:
            return f"Error: there is no tool `{call.name}`; there is `{_PYTHON}`.", None
        if not isinstance(code, str) or not code.strip():
            return "Error: `code` must be a Python program.", None
        ask = Ask(_PYTHON, (user(code),), {}, _PYTHON, (reply,), trainable=False)
        (output,) = yield [ask]
        if output.failure or output.text is None:
            return f"Error: the program was not run: {output.failure}", output
        return output.text, output


def _worked(ask: Ask) -> Steps:
    """A reply with a call or an answer; asked for once more, with a new seed, if it has neither."""
    reply = Reply()
    for _ in range(2):
        (reply,) = yield [ask]
        if not reply.failure and said(reply.text or ""):
            return reply
    return reply
