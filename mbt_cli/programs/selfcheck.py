"""Self-check: verify a solution until it passes several times in a row, and correct it if not."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import assistant, majority, said, saying, solution, task_text, word_in


class SelfCheck(Program):
    """Solve, improve once, then verify and correct until the solution holds.

    1. `solve`: the stage's prompt; `improve`: once more in the same conversation.
    2. Each iteration: `verify` writes a report, `classify` says in a short second request whether
       the report accepts the solution. With several `verifications` the majority decides, and a
       tie rejects.
    3. Accepted: one more in a row. Rejected: one more error in a row, and `correct` writes the
       solution again with the first report that rejects it.

    It ends at `correct_count` acceptances in a row, `error_count` rejections in a row, or after
    `max_iterations`. An iteration without a readable verdict counts as neither.
    """

    kind: Literal["selfcheck"] = "selfcheck"
    """Names the program in a manifest."""
    correct_count: int = Field(default=5, ge=1, le=1000)
    """Acceptances in a row after which the solution is the answer."""
    error_count: int = Field(default=10, ge=1, le=1000)
    """Rejections in a row after which it gives up."""
    max_iterations: int = Field(default=30, ge=0, le=1000)
    """Most iterations of verifying and correcting."""
    verifications: int = Field(default=1, ge=1, le=100)
    """Verifications of each iteration, side by side; the majority decides."""
    return_if_not_found: bool = True
    """Whether the last solution is the answer if none is accepted often enough; else the rollout
    fails with `not_found`."""
    improve_prompt: str = "selfcheck_improve"
    """Template of the turn that asks to improve the first solution; `{{ task }}`."""
    verify_prompt: str = "selfcheck_verify"
    """Template of a verification; `{{ task }}`, `{{ solution }}`."""
    classify_prompt: str = "selfcheck_classify"
    """Template that asks for `<verdict>yes</verdict>` or `no`; `{{ report }}`."""
    correct_prompt: str = "selfcheck_correct"
    """Template of a correction; `{{ task }}`, `{{ solution }}`, `{{ report }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "improve_prompt": frozenset({"task"}),
        "verify_prompt": frozenset({"task", "solution"}),
        "classify_prompt": frozenset({"report"}),
        "correct_prompt": frozenset({"task", "solution", "report"}),
    }
    roles: ClassVar[Mapping[str, str]] = {"verifier": "verifies solutions and classifies reports"}

    def expected_requests(self) -> int:
        return 2 + self.max_iterations * (2 * self.verifications + 1)

    def run(self, problem: Problem) -> Steps:
        task = task_text(problem)
        first, found = yield from read_reply(Ask("solve", problem.messages, reads=said))
        if found is None:
            return first
        turn = problem.filled("improve_prompt", task=task)
        improved = yield from solution(
            "improve", (*problem.messages, assistant(first), *turn), (first,)
        )
        current = improved or first
        accepted = rejected = 0
        for _ in range(self.max_iterations):
            checks = yield [self._check(problem, current) for _ in range(self.verifications)]
            read = [check for check in checks if check is not None]
            verdict = majority([accepts for accepts, _ in read])
            if verdict is None:
                continue
            accepted, rejected = (accepted + 1, 0) if verdict else (0, rejected + 1)
            if accepted == self.correct_count:
                return current
            if rejected == self.error_count:
                break
            if not verdict:
                report = next(report for accepts, report in read if not accepts)
                current = (yield from self._correct(problem, current, report)) or current
        if self.return_if_not_found:
            return current
        return replace(current, text=None, failure=f"not_found: accepted {accepted} times in a row")

    def _check(self, problem: Problem, current: Reply) -> Steps:
        """Whether a verification accepts the solution, and its report; None if unread."""
        messages = problem.filled(
            "verify_prompt", task=task_text(problem), solution=saying(current)
        )
        ask = Ask("verify", messages, {}, "verifier", (current,), said, trainable=False)
        report, found = yield from read_reply(ask)
        if found is None:
            return None
        messages = problem.filled("classify_prompt", report=found)
        reads = partial(word_in, tag="verdict", words=("yes", "no"))
        ask = Ask("classify", messages, {}, "verifier", (report,), reads, trainable=False)
        _, verdict = yield from read_reply(ask)
        return None if verdict is None else (verdict == "yes", report)

    def _correct(self, problem: Problem, current: Reply, report: Reply) -> Steps:
        messages = problem.filled(
            "correct_prompt",
            task=task_text(problem),
            solution=saying(current),
            report=saying(report),
        )
        found = yield from solution("correct", messages, (current, report))
        return found
