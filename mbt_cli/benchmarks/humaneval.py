'''HumanEval: Python functions to complete from their docstrings (arXiv 2107.03374).

Official file: JSON lines of `{task_id, prompt, entry_point, canonical_solution, test}`; `test`
defines a function `check`.

    Q: def strlen(string: str) -> int: """ Return length of given string ...
'''

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.code_tests import CodeTestsVerifier


class HumanEval(Benchmark):
    """HumanEval; licence MIT."""

    kind: Literal["humaneval"] = "humaneval"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = CodeTestsVerifier(
        cut=("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    )
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="openai/openai_humaneval",
        config="openai_humaneval",
        pattern="{config}/{split}-*.parquet",
        licence="mit",
        revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"test": 164}
    layout: ClassVar[frozenset[str]] = frozenset({"prompt", "entry_point", "test"})
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "code"
    reads: ClassVar[frozenset[str]] = frozenset(
        ("task_id", "prompt", "entry_point", "canonical_solution", "test")
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        for name in ("prompt", "entry_point", "test"):
            records.text(record, name)
        prompt = str(record["prompt"])  # with the white space at its end, which a model continues
        return Question(
            question_id=records.own_id(record, "task_id") or records.hashed_id(prompt),
            question=prompt,
            answer=records.text(record, "canonical_solution"),
            metadata=records.rest(record, "task_id", "canonical_solution"),
        )
