"""Tournament: score solutions, keep those that agree, then a knock-out, as nomos does it."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import (
    boxed_score,
    knock_out,
    numbered,
    numbers_in,
    saying,
    solutions,
    task_text,
)

_BEST = 7
_SCORES = frozenset(Fraction(points) for points in range(_BEST + 1))


class Tournament(Program):
    r"""Write solutions, score each, keep the best that agree, and let them compete.

    1. `solve`: `solutions` times the stage's prompt; `score`: 0 to 7 for each, in `\boxed{}`.
    2. If at least `enough_perfect` have 7 points, those stay; else the best `keep`. A solution
       without a readable score comes behind all others.
    3. `consolidate`: one request names those that agree on the right conclusion
       (`<keep>[1, 4]</keep>`); if it names none or is unread, all stay.
    4. `compare`: a knock-out in drawn order; ties are decided by lot.
    """

    kind: Literal["tournament"] = "tournament"
    """Names the program in a manifest."""
    solutions: int = Field(default=16, ge=1, le=1000)
    """Solutions that are written and scored."""
    keep: int = Field(default=12, ge=1, le=1000)
    """Most solutions that stay after scoring."""
    enough_perfect: int = Field(default=8, ge=1, le=1000)
    """Number of solutions with full points from which only these stay, even more than `keep`."""
    score_prompt: str = "tournament_score"
    r"""Template of a score, which asks for 0 to 7 in `\boxed{}`; `{{ task }}`, `{{ solution }}`."""
    consolidate_prompt: str = "tournament_consolidate"
    """Template of the consolidation, which asks for `<keep>[1, 4]</keep>`; `{{ task }}`,
    `{{ solutions }}`."""
    compare_prompt: str = "compare"
    """Template of a comparison, which asks for `<verdict>1</verdict>`, `2` or `tie`; `{{ task }}`,
    `{{ first }}`, `{{ second }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "score_prompt": frozenset({"task", "solution"}),
        "consolidate_prompt": frozenset({"task", "solutions"}),
        "compare_prompt": frozenset({"task", "first", "second"}),
    }
    roles: ClassVar[Mapping[str, str]] = {
        "scorer": "scores solutions",
        "selector": "consolidates and compares solutions",
    }

    def expected_requests(self) -> int:
        can_all_stay = self.enough_perfect <= self.solutions or self.keep >= self.solutions
        most = self.solutions if can_all_stay else self.keep
        return 2 * self.solutions + (most if most > 1 else 0)

    def run(self, problem: Problem) -> Steps:
        written, last = yield from solutions("solve", problem.messages, self.solutions)
        if not written:
            return last
        scores = yield [self._score(problem, reply) for reply in written]
        kept = self._best(written, scores)
        if len(kept) > 1:
            kept = yield from self._consolidated(problem, kept)
        best = yield from knock_out(problem, kept, role="selector")
        return best

    def _score(self, problem: Problem, reply: Reply) -> Steps:
        ask = Ask(
            "score",
            problem.filled("score_prompt", task=task_text(problem), solution=saying(reply)),
            role="scorer",
            built_on=(reply,),
            reads=partial(boxed_score, allowed=_SCORES),
            trainable=False,
        )
        _, score = yield from read_reply(ask)
        return score

    def _best(self, written: Sequence[Reply], scores: Sequence[Fraction | None]) -> Sequence[Reply]:
        """The perfect solutions if they are enough, else the best; in the order of writing."""
        perfect = [reply for reply, score in zip(written, scores, strict=True) if score == _BEST]
        if len(perfect) >= self.enough_perfect:
            return perfect
        ranks = [-1 if score is None else score for score in scores]
        best = sorted(range(len(written)), key=lambda at: -ranks[at])[: self.keep]
        return [written[at] for at in sorted(best)]

    def _consolidated(self, problem: Problem, kept: Sequence[Reply]) -> Steps:
        ask = Ask(
            "consolidate",
            problem.filled("consolidate_prompt", task=task_text(problem), solutions=numbered(kept)),
            role="selector",
            built_on=tuple(kept),
            reads=partial(numbers_in, tag="keep", count=len(kept)),
            trainable=False,
        )
        _, places = yield from read_reply(ask)
        return [kept[at] for at in places] if places else kept
