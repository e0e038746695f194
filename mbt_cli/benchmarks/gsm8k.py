"""GSM8K: school word problems whose answer is a number (arXiv 2110.14168).

Official file: JSON lines of `{question, answer}`; the answer is a worked solution that ends in
`#### n`. Records have no id, so the id is a hash of the question.

    Q: Natalia sold clips to 48 friends in April and half as many in May. How many in all?   A: 72
"""

import hashlib
from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.number import NumberVerifier

_MARK = "####"


class GSM8K(Benchmark):
    """GSM8K; licence MIT."""

    kind: Literal["gsm8k"] = "gsm8k"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = NumberVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="openai/gsm8k",
        config="main",
        pattern="{config}/{split}-*.parquet",
        licence="mit",
        revision="740312add88f781978c0658806c59bc2815b9866",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 7_473, "test": 1_319}
    layout: ClassVar[frozenset[str]] = frozenset({"question", "answer"})
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(("question", "answer"))

    def question(self, record: Mapping[str, Json]) -> Question:
        question = records.text(record, "question")
        worked, mark, number = records.text(record, "answer").rpartition(_MARK)
        if not mark or not number.strip():
            raise ValueError(f"`answer` does not end in `{_MARK}` and a number")
        written = number.strip()
        answer = written.replace(",", "")  # 1,000 and 1000 are the same number
        return Question(
            question_id=f"gsm8k-{hashlib.sha256(question.encode()).hexdigest()[:16]}",
            question=question,
            answer=answer,
            answer_aliases=() if answer == written else (written,),
            metadata={"solution": worked.strip(), **records.rest(record, "question", "answer")},
        )
