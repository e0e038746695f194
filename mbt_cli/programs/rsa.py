"""Recursive self-aggregation: solutions are merged out of blocks of others, round by round."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mbt_cli.core.programs import Problem, Steps
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import blocks, choice, knock_out, merge, offsets, solutions


class RSA(Program):
    """Write solutions, merge each anew out of a block of others for some rounds, select one.

    1. `solve`: `solutions` times the stage's prompt.
    2. Each of `rounds`: every solution is replaced by one that is merged (`merge`) out of `block`
       others. The distances from a solution to those of its block are drawn once a round and are
       the same for all, so that each solution is used equally often.
    3. `compare`: a knock-out, two at a time in drawn order; or one `select` request.

    A solution that is unread leaves the pool. If no merge of a round is readable, the solutions
    before it go to the selection.
    """

    kind: Literal["rsa"] = "rsa"
    """Names the program in a manifest."""
    solutions: int = Field(default=8, ge=1, le=1000)
    """Solutions at the start, and so merges of each round."""
    rounds: int = Field(default=3, ge=0, le=100)
    """Rounds of merging."""
    block: int = Field(default=3, ge=1, le=1000)
    """Solutions that a merge reads; fewer than `solutions`."""
    selection: Literal["pairwise", "single"] = "pairwise"
    """How the answer is selected: `pairwise` by a knock-out, `single` by one request."""
    merge_prompt: str = "merge"
    """Template of a merge; `{{ task }}`, `{{ solutions }}`."""
    compare_prompt: str = "compare"
    """Template of a comparison, which asks for `<verdict>1</verdict>`, `2` or `tie`; `{{ task }}`,
    `{{ first }}`, `{{ second }}`."""
    select_prompt: str = "select"
    """Template of the selection, which asks for `<select>N</select>`; `{{ task }}`,
    `{{ solutions }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "merge_prompt": frozenset({"task", "solutions"}),
        "compare_prompt": frozenset({"task", "first", "second"}),
        "select_prompt": frozenset({"task", "solutions"}),
    }
    roles: ClassVar[Mapping[str, str]] = {
        "merger": "merges solutions",
        "selector": "compares and selects solutions",
    }

    @model_validator(mode="after")
    def _check_block(self) -> "RSA":
        if self.rounds and self.block >= self.solutions:
            raise ValueError(
                f"`block` is {self.block} of {self.solutions} `solutions`: a merge reads others, "
                f"so it must be at most {self.solutions - 1}, or `rounds` 0"
            )
        return self

    def expected_requests(self) -> int:
        last = self.solutions - 1 if self.selection == "pairwise" else min(1, self.solutions - 1)
        return self.solutions * (1 + self.rounds) + last

    def run(self, problem: Problem) -> Steps:
        pool, last = yield from solutions("solve", problem.messages, self.solutions)
        if not pool:
            return last
        for number in range(self.rounds):
            if len(pool) < 2:
                break
            distances = offsets(problem.draw("blocks", number), len(pool), self.block)
            parts = blocks(pool, distances)
            found = yield [merge(problem, block, role="merger") for block in parts]
            merged = [reply for reply in found if reply is not None]
            if not merged:
                break
            pool = merged
        if self.selection == "single":
            best = yield from choice(problem, pool, role="selector")
        else:
            best = yield from knock_out(problem, pool, role="selector")
        return best
