r"""DeepScaleR: 40,315 competition problems for training with verified rewards.

Official file: a JSON array of `{problem, answer, solution}`; answers are LaTeX, solutions may be
empty. Records have no id, so the id is a hash of the problem.

    Q: The least positive $x$ with $2^x > 100$ is what?   A: 7
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.math import MathVerifier


class DeepScaleR(Benchmark):
    """DeepScaleR-Preview; licence MIT."""

    kind: Literal["deepscaler"] = "deepscaler"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = MathVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="agentica-org/DeepScaleR-Preview-Dataset",
        pattern="deepscaler.json",
        licence="mit",
        revision="b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 40_315}
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(("id", "problem", "answer", "solution"))

    def question(self, record: Mapping[str, Json]) -> Question:
        problem = records.text(record, "problem")
        return Question(
            question_id=records.own_id(record, "id") or records.hashed_id(problem),
            question=problem,
            answer=records.answer_text(record.get("answer")),
            metadata=records.rest(record, "id", "problem", "answer"),
        )
