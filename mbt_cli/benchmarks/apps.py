"""APPS: programming problems of contests and interviews, with cases (arXiv 2105.09938).

Official file: JSON lines of `{id, question, solutions, input_output, difficulty, url,
starter_code}`. `input_output` is JSON text: `inputs`, `outputs`, and `fn_name` where a function is
called instead of a program being run.

    Q: Read n and print the sum of 1 to n.   input: 4   output: 10
"""

import json
from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.code_tests import CodeTestsVerifier

_TIERS = {"introductory": "easy", "interview": "medium", "competition": "hard"}
_IDS = ("problem_id", "id")
_UNSOLVED = "# there is no reference solution"


class APPS(Benchmark):
    """APPS; licence MIT."""

    kind: Literal["apps"] = "apps"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = CodeTestsVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="codeparrot/apps",
        pattern="{split}.jsonl",
        licence="mit",
        revision="21e74ddf8de1a21436da12e3e653065c5213e9d1",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 5_000, "test": 5_000}
    layout: ClassVar[frozenset[str]] = frozenset({"question", "input_output", "starter_code"})
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "code"
    reads: ClassVar[frozenset[str]] = frozenset(
        (*_IDS, "question", "input_output", "solutions", "difficulty", "starter_code")
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        text = records.text(record, "question")
        cases = _parsed(record, "input_output") or {}
        if not isinstance(cases, dict):
            raise ValueError("`input_output` should be an object")
        solutions = _parsed(record, "solutions") or [_UNSOLVED]
        starter = str(record.get("starter_code") or "").strip()
        if cases.get("fn_name"):
            form = f"Write the function `{cases['fn_name']}`."
        else:
            form = (
                "Write a program that reads the standard input and prints to the standard output."
            )
        parts = [text, form, *([f"Begin with this code:\n{starter}"] if starter else [])]
        own_id = records.own_id(record, *_IDS)
        return Question(
            question_id=f"apps-{own_id}" if own_id else records.hashed_id(text),
            question="\n\n".join(parts),
            answer=records.text({"solutions": solutions[0]}, "solutions"),
            question_type="function" if cases.get("fn_name") else "program",
            difficulty=self.tier(record),
            # every solution of a problem takes far more room than the problem
            metadata=records.rest(record, *_IDS, "question", "solutions"),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        """By its level."""
        return _TIERS.get(str(record.get("difficulty")))


def _parsed(record: Mapping[str, Json], name: str) -> Json:
    """A field that holds JSON as text; None if it is empty."""
    value = record.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except ValueError as error:
        raise ValueError(f"`{name}` is not JSON: {error}") from None
