r"""MATH-500: competition problems with a closed answer in LaTeX (arXiv 2305.20050).

Official file: JSON lines of `{problem, solution, answer, level, subject, unique_id}`.

    Q: Convert the point $(0,3)$ to polar coordinates.   A: \left( 3, \frac{\pi}{2} \right)
"""

import hashlib
from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.math import MathVerifier


class MATH500(Benchmark):
    """MATH-500; licence MIT."""

    kind: Literal["math500"] = "math500"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = MathVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="HuggingFaceH4/MATH-500",
        pattern="{split}.jsonl",
        licence="mit",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"test": 500}
    layout: ClassVar[frozenset[str]] = frozenset({"problem", "answer"})
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(
        ("unique_id", "id", "problem", "answer", "subject", "level")
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        problem = records.text(record, "problem")
        has_id = record.get("unique_id") or record.get("id")
        fingerprint = hashlib.sha256(problem.encode()).hexdigest()[:16]
        return Question(
            question_id=records.text(record, "unique_id", "id")
            if has_id
            else f"math500-{fingerprint}",
            question=problem,
            answer=records.answer_text(record.get("answer")),
            question_type=records.optional_text(record, "subject"),
            difficulty=self.tier(record),
            metadata=records.rest(record, "unique_id", "id", "problem", "answer", "subject"),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        return records.math_tier(record.get("level"))
