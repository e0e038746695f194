r"""Calls of tools, written into the text of a reply.

    Let me count.
    <tool_call>
    {"name": "python", "arguments": {"code": "print(6 * 7)"}}
    </tool_call>

Many chat templates make a model write its calls like this. Servers with a `tools` field cut them
out of the text and send them as `tool_calls`; mbt puts them back, so that rows, journals and
request keys need no other form, and a server without the field works the same way.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.traces import answering_text

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
TOOL = "tool"
"""Role of a turn with the result of a call."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool; arguments that are not an object are empty."""

    name: str
    arguments: Mapping[str, Json]


def call_block(name: str, arguments: Json) -> str:
    r"""A call as text.

    Args:
        name: Name of the tool.
        arguments: An object, or its JSON as servers send it; what is not JSON is kept as it is.

    Example:
        >>> call_block("python", '{"code": "1"}')
        '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
    """
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def calls_in(text: str) -> list[Call] | None:
    r"""The calls in a reply outside its thinking, in their order; None if it has none.

    A block that is not JSON with a `name` is a call of the tool "", so that the model can be told.

    Example:
        >>> calls_in('<tool_call>{"name": "submit", "arguments": {"solution": 2}}</tool_call>')
        [Call(name='submit', arguments={'solution': 2})]
        >>> calls_in("No call"), calls_in("<tool_call>submit 2</tool_call>")
        (None, [Call(name='', arguments={})])
    """
    found = [_call(block) for block in _BLOCK.findall(answering_text(text, "length"))]
    return found or None


def _call(block: str) -> Call:
    try:
        content = json.loads(block)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        return Call("", {})
    arguments = content.get("arguments")
    return Call(content["name"], arguments if isinstance(arguments, dict) else {})


def protocol_messages(messages: Sequence[Message]) -> list[Mapping[str, Json]]:
    """A conversation with calls as a server with the `tools` field wants it.

    Calls in the text of an assistant turn become its `tool_calls`, and the `tool` turns that
    follow get their ids, in the same order.
    """
    found: list[Mapping[str, Json]] = []
    waiting: list[str] = []
    number = 0
    for message in messages:
        role, text = message["role"], message["content"]
        calls = (calls_in(text) or []) if role == "assistant" else []
        if role == TOOL and waiting:
            found.append({**message, "tool_call_id": waiting.pop(0)})
        elif calls:
            waiting, sent = [], []
            for call in calls:
                number += 1
                waiting.append(f"call_{number}")
                function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
                sent.append({"id": waiting[-1], "type": "function", "function": function})
            found.append(
                {"role": role, "content": _BLOCK.sub("", text).strip(), "tool_calls": sent}
            )
        else:
            found.append(message)
    return found
