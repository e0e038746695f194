"""What becomes of a teacher's reply: through the gates, into a row, counted on the way."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mbt_cli.core.cell_notes import FUNNEL
from mbt_cli.core.chat import Reply, Request
from mbt_cli.core.gates import Candidate, Gates, Inspector, reason_of
from mbt_cli.core.rows import GATE
from mbt_cli.stages.work import Work

MOST_TRACES = 1_000
"""Traces that one question or rollout may have: seeds are numbered by it."""

_STEPS = {
    "finished": ("not_finished",),
    "final text only": ("reasoning_only", "reasoning_in_text"),
    "not empty": ("empty",),
    "no tags": ("tags",),
    "no markdown": ("markdown",),
    "no leak": ("leak",),
    "length in bounds": ("too_short", "too_long"),
    "no tail loop": ("tail_loop",),
    "names the answer": ("no_answer",),
    "no repeat": ("near_duplicate",),
}
"""The funnel's steps in the order of the gates, each with the reasons that it stops."""

_SHOWN_REASONS = 3


class Intake:
    """Turns replies into rows of `rows.TRACES`.

    Replies about one question must come one after the other. A reply that fails a gate keeps its
    row: the reply as it came, no trace, and the failure `gate_NAME: detail`, which is counted
    apart from what the teacher's server failed at.

    Args:
        gates: Checks that are on.
    """

    def __init__(self, gates: Gates) -> None:
        self._inspector = Inspector(gates)
        self._asked = 0
        self._unanswered = 0
        self._stopped: Counter[str] = Counter()

    def row(self, request: Request, reply: Reply) -> dict[str, Any]:
        """The stage's own columns.

        Args:
            request: Its row holds `answers` (gold answer and aliases) and `made_from` (columns).
            reply: What came.
        """
        self._asked += 1
        failure = self._failure(request, reply)
        text = reply.text.strip() if reply.text and failure is None else None
        made_from: Mapping[str, Any] = request.row["made_from"]
        return {"question_id": request.question_id, **made_from, "trace": text, "failure": failure}

    def _failure(self, request: Request, reply: Reply) -> str | None:
        if _is_teachers_own(reply.failure):
            self._unanswered += 1
            return reply.failure
        candidate = Candidate(
            reply.text, reply.reasoning, reply.finish_reason, request.row["answers"]
        )
        problem = self._inspector.problem(request.question_id, candidate)
        if problem is None:
            return None
        self._stopped[reason_of(problem)] += 1
        return f"{GATE}{problem}"

    def tell(self, work: Work, before: Mapping[str, int]) -> None:
        """Leave the counts for lineage and report; say on the screen what the gates stopped.

        Args:
            work: The running cell.
            before: Steps that narrowed the data before the teacher was asked.
        """
        work.outcome.notes[FUNNEL] = {**before, **self.funnel()}
        work.outcome.notes["gates"] = self.stopped()
        replied = self._asked - self._unanswered
        if stopped := self._stopped.total():
            most = ", ".join(f"{n} x {r}" for r, n in self._stopped.most_common(_SHOWN_REASONS))
            passed = replied - stopped
            address = work.resolution.address
            work.progress.note(f"{address}: {passed} of {replied} replies passed ({most})")

    def funnel(self) -> dict[str, int]:
        """How many were left after each step; gates that stopped nothing are no step."""
        left = self._asked - self._unanswered
        steps = {"asked": self._asked, "replied": left}
        for step, reasons in _STEPS.items():
            stopped = sum(self._stopped[reason] for reason in reasons)
            left -= stopped
            if stopped:
                steps[step] = left
        return {**steps, "passed": left}

    def stopped(self) -> dict[str, int]:
        """Every gate's reason and how many replies it stopped, in the order of the gates."""
        return {reason: self._stopped[reason] for group in _STEPS.values() for reason in group}


def _is_teachers_own(failure: str | None) -> bool:
    """Whether there is no reply to look at; an empty one is for the gates to name."""
    return failure is not None and failure != "empty" and not failure.startswith(GATE)
