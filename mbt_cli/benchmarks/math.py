r"""MATH: competition problems of seven subjects with worked solutions (arXiv 2103.03874).

Official layout: records of `{problem, level, type, solution}`; the answer is in the last `\boxed`
of the solution. Records have no id, so the id is a hash of problem and solution. On the hub each
subject is a configuration, and `*` is all of them.

    Q: If $f(x) = 2x + 1$, what is $f(3)$?   A: 7   (Algebra, Level 1)
"""

import hashlib
import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.math import MathVerifier, last_boxed

_WITHOUT_BRACES = re.compile(r"\\boxed ([^$]+)")


class MATH(Benchmark):
    """MATH; licence MIT. `config` selects one subject of the hub, such as `algebra`."""

    kind: Literal["math"] = "math"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = MathVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="EleutherAI/hendrycks_math",
        config="*",
        pattern="{config}/{split}-*.parquet",
        licence="mit",
        revision="21a5633873b6a120296cce3e2df9d5550074f4a3",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 7_500, "test": 5_000}
    layout: ClassVar[frozenset[str]] = frozenset({"problem", "level", "type", "solution"})
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(
        ("unique_id", "id", "problem", "level", "type", "solution")
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        problem, solution = records.text(record, "problem"), records.text(record, "solution")
        return Question(
            question_id=records.own_id(record, "unique_id", "id") or _hashed(problem, solution),
            question=problem,
            answer=_boxed(solution),
            question_type=records.optional_text(record, "type"),
            difficulty=self.tier(record),
            metadata=records.rest(record, "unique_id", "id", "problem", "type"),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        return records.math_tier(record.get("level"))

    def official_size(self, split: str) -> int | None:
        return super().official_size(split) if self.config in (None, "*") else None


def _boxed(solution: str) -> str:
    r"""The answer of a solution: its last `\boxed`, with braces or before the next dollar sign.

    Raises:
        ValueError: It has none.

    Example:
        >>> _boxed(r"So $x = \boxed{\frac12}$."), _boxed(r"We get $\boxed 7$ apples.")
        ('\\frac12', '7')
    """
    bare = _WITHOUT_BRACES.findall(solution)
    answer = bare[-1].strip() if bare else last_boxed(solution)
    if not answer:
        raise ValueError("`solution` has no `\\boxed` answer")
    return answer


def _hashed(problem: str, solution: str) -> str:
    digest = hashlib.sha256("\n".join([problem, solution]).encode()).hexdigest()
    return f"math-{digest[:16]}"
