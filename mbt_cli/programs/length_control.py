"""Length control: answer within a number of words, and rewrite answers that are not."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mbt_cli.core.chat import Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import said, saying, solution, task_text


class LengthControl(Program):
    """Answer with `least` to `most` words; rewrite an answer that is shorter or longer.

    1. `answer`: `answer_prompt` quotes the stage's prompt and says the length.
    2. `adjust`: while the answer has another length, at most `attempts` times, it is written anew.

    Words are those outside the thinking. The answer is the one whose length is nearest to the
    range, the earliest of equal ones.
    """

    kind: Literal["length_control"] = "length_control"
    """Names the program in a manifest."""
    least: int = Field(default=0, ge=0, le=1_000_000)
    """Words that the answer has at least."""
    most: int = Field(default=300, ge=1, le=1_000_000)
    """Words that the answer has at most."""
    attempts: int = Field(default=2, ge=0, le=100)
    """Times that an answer of another length is written anew."""
    answer_prompt: str = "length_control_answer"
    """Template of the answer; `{{ task }}`, `{{ least }}`, `{{ most }}`."""
    adjust_prompt: str = "length_control_adjust"
    """Template of a rewrite; `{{ task }}`, `{{ answer }}`, `{{ words }}` (how many it has),
    `{{ least }}`, `{{ most }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "answer_prompt": frozenset({"task", "least", "most"}),
        "adjust_prompt": frozenset({"task", "answer", "words", "least", "most"}),
    }

    @model_validator(mode="after")
    def _check_range(self) -> "LengthControl":
        if self.least > self.most:
            raise ValueError(f"`least` is {self.least}, and `most` only {self.most}")
        return self

    def expected_requests(self) -> int:
        return 1 + self.attempts

    def run(self, problem: Problem) -> Steps:
        limits = {"least": str(self.least), "most": str(self.most), "task": task_text(problem)}
        ask = Ask("answer", problem.filled("answer_prompt", **limits), reads=said)
        answer, found = yield from read_reply(ask)
        if found is None:
            return answer
        written = [answer]
        for _ in range(self.attempts):
            if not self._distance(answer):
                break
            messages = problem.filled(
                "adjust_prompt", answer=saying(answer), words=str(_words(answer)), **limits
            )
            adjusted = yield from solution("adjust", messages, (answer,))
            if adjusted is not None:
                answer = adjusted
                written.append(answer)
        return min(written, key=self._distance)

    def _distance(self, reply: Reply) -> int:
        """Words that are missing or too many."""
        return max(0, self.least - _words(reply), _words(reply) - self.most)


def _words(reply: Reply) -> int:
    return len(saying(reply).split())
