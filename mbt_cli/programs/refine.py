"""Refine: a pool of proofs, verified and refined in rounds, as deepseek-math does it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.core.proof_text import proof_of
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import boxed_score, numbered, task_text

_SCORES = frozenset(Fraction(halves, 2) for halves in range(3))


@dataclass(frozen=True, slots=True, eq=False)
class _Proof:
    """A proof, its text, its readable verifications with the worst first, and their mean.

    The mean is None without a readable one.
    """

    reply: Reply
    text: str
    reports: Sequence[Reply]
    mean: Fraction | None


class Refine(Program):
    r"""Write a pool of proofs, verify each several times, refine the best with what was found.

    1. `prove`: `pool` times the stage's prompt; `verify`: `verifications` of each proof, with a
       score 0, 0.5 or 1 in `\boxed{}`.
    2. Each of `rounds`: the best `pool` of all proofs so far by mean score are written again
       (`refine`), each with `reviews` of its worst verifications, and the new ones are verified.
    3. A proof with a mean of 1 ends it at once. The answer is the proof with the best mean, the
       earliest of equal ones.

    The proof in a reply is what `cut = "self_evaluation"` leaves for a judge: the text between
    `## Solution` and `## Self Evaluation`, of which either may lack. A proof without a readable
    verification is neither refined nor the answer, unless no proof has one.
    """

    kind: Literal["refine"] = "refine"
    """Names the program in a manifest."""
    pool: int = Field(default=4, ge=1, le=1000)
    """Proofs at the start, and proofs that are refined in a round."""
    verifications: int = Field(default=4, ge=1, le=1000)
    """Verifications of each proof."""
    reviews: int = Field(default=2, ge=1, le=1000)
    """Verifications of a proof that its refinement quotes, those with the lowest scores."""
    rounds: int = Field(default=2, ge=1, le=100)
    """Rounds of refinement."""
    verify_prompt: str = "refine_verify"
    r"""Template of a verification, which asks for a score in `\boxed{}`; `{{ task }}`,
    `{{ proof }}`."""
    refine_prompt: str = "refine_refine"
    """Template of a refinement; `{{ task }}`, `{{ proof }}`, `{{ reviews }}`."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "verify_prompt": frozenset({"task", "proof"}),
        "refine_prompt": frozenset({"task", "proof", "reviews"}),
    }
    roles: ClassVar[Mapping[str, str]] = {
        "verifier": "verifies proofs",
        "improver": "refines proofs",
    }

    def expected_requests(self) -> int:
        return (1 + self.rounds) * self.pool * (1 + self.verifications)

    def run(self, problem: Problem) -> Steps:
        proofs = yield [self._proof(problem, "prove", problem.messages) for _ in range(self.pool)]
        known = [proof for proof in proofs if isinstance(proof, _Proof)]
        if not known:
            return proofs[-1]
        for _ in range(self.rounds):
            scored = [proof for proof in known if proof.mean is not None]
            if not scored or _best(known).mean == 1:
                break
            best = sorted(scored, key=lambda proof: -(proof.mean or 0))[: self.pool]
            refined = yield [self._refined(problem, proof) for proof in best]
            known += [proof for proof in refined if isinstance(proof, _Proof)]
        return _best(known).reply

    def _proof(
        self,
        problem: Problem,
        name: str,
        messages: Sequence[Message],
        built_on: Sequence[Reply] = (),
        role: str = "",
    ) -> Steps:
        """A new proof with its verifications; only the failed reply if it is unread."""
        ask = Ask(name, tuple(messages), {}, role, built_on, _proof_in)
        reply, proof = yield from read_reply(ask)
        if proof is None:
            return reply
        messages = problem.filled("verify_prompt", task=task_text(problem), proof=proof)
        reads = partial(boxed_score, allowed=_SCORES)
        verify = Ask(
            "verify", messages, role="verifier", built_on=(reply,), reads=reads, trainable=False
        )
        found = yield [read_reply(verify) for _ in range(self.verifications)]
        read = [(score, report) for report, score in found if score is not None]
        reports = [report for _, report in sorted(read, key=lambda pair: pair[0])]
        total = sum((score for score, _ in read), Fraction())
        return _Proof(reply, proof, reports, total / len(read) if read else None)

    def _refined(self, problem: Problem, proof: _Proof) -> Steps:
        reviews = proof.reports[: self.reviews]
        messages = problem.filled(
            "refine_prompt",
            task=task_text(problem),
            proof=proof.text,
            reviews=numbered(reviews, "Review"),
        )
        return self._proof(problem, "refine", messages, (proof.reply, *reviews), "improver")


def _best(proofs: Sequence[_Proof]) -> _Proof:
    return max(proofs, key=lambda proof: -1 if proof.mean is None else proof.mean)


def _proof_in(text: str) -> str | None:
    """The proof in a reply; None if there is none."""
    return proof_of(text, "self_evaluation") or None
