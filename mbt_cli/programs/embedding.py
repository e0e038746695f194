"""The program of one embedding: its reply is the vector of the prompt, as JSON."""

from typing import ClassVar, Literal

from mbt_cli.core.chat import Wants
from mbt_cli.core.programs import Problem, Steps, one_request
from mbt_cli.interfaces import Program


class EmbeddingProgram(Program):
    """Ask for the vector of the prompt, whose turns are one text; the reply is `Embedding`."""

    asks: ClassVar[Wants] = "embedding"

    kind: Literal["embedding"] = "embedding"
    """Names the program in a manifest."""

    def expected_requests(self) -> int:
        return 1

    def run(self, problem: Problem) -> Steps:
        text = "\n\n".join(turn["content"] for turn in problem.messages)
        return one_request("embed", ({"role": "user", "content": text},), wants=self.asks)
