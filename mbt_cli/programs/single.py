"""The program of one request: the model answers the prompt, and its reply is the answer."""

from typing import Literal

from mbt_cli.core.programs import Problem, Steps, one_request
from mbt_cli.interfaces import Program


class Single(Program):
    """Send the stage's prompt once."""

    kind: Literal["single"] = "single"
    """Names the program in a manifest."""

    def expected_requests(self) -> int:
        return 1

    def run(self, problem: Problem) -> Steps:
        return one_request("answer", problem.messages)
