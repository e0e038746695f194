"""The program of one request: the model answers the prompt, and its reply is the answer."""

from collections.abc import Mapping
from typing import Any, Literal

from mbt_cli.core.chat import Message
from mbt_cli.core.programs import Draw, Steps, one_request
from mbt_cli.interfaces import Program


class Single(Program):
    """Send the stage's prompt once."""

    kind: Literal["single"] = "single"
    """Names the program in a manifest."""

    def run(self, question: Mapping[str, Any], messages: tuple[Message, ...], draw: Draw) -> Steps:
        return one_request("answer", messages)
