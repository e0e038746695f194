r"""AIME and BeyondAIME: competition problems whose answer is a whole number.

Records of `{problem, answer}`, where the answer is a number or its digits, such as `033`.

    Q: Find the number of ordered pairs (a, b) with ab = 2024 and a < b.   A: 008
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.math import MathVerifier

_ID = ("id", "problem_idx", "ID")
_TAKEN = (*_ID, "problem", "answer")
_LARGEST = 999


class AIME(Benchmark):
    """American Invitational Mathematics Examination; the hub's set of 2024 has 30 problems."""

    kind: Literal["aime"] = "aime"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = MathVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="HuggingFaceH4/aime_2024",
        pattern="data/{split}-*.parquet",
        licence="not stated",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        split_names={"test": "train"},
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"test": 30}
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(_TAKEN)

    def question(self, record: Mapping[str, Json]) -> Question:
        answer = _whole_number(record.get("answer"))
        if not 0 <= answer <= _LARGEST:
            raise ValueError(f"`answer` is {answer}; those of AIME are 0 to {_LARGEST}")
        return _question(record, answer)


class BeyondAIME(Benchmark):
    """BeyondAIME: 100 harder problems in the manner of AIME; licence CC0."""

    kind: Literal["beyond_aime"] = "beyond_aime"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = MathVerifier()
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="ByteDance-Seed/BeyondAIME",
        pattern="data/{split}-*.parquet",
        licence="cc0-1.0",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"test": 100}
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(_TAKEN)

    def question(self, record: Mapping[str, Json]) -> Question:
        return _question(record, _whole_number(record.get("answer")))


def _question(record: Mapping[str, Json], answer: int) -> Question:
    problem = records.text(record, "problem")
    return Question(
        question_id=records.own_id(record, *_ID) or records.hashed_id(problem),
        question=problem,
        answer=str(answer),
        metadata=records.rest(record, *_TAKEN),
    )


def _whole_number(value: Json) -> int:
    r"""An answer as a number; ValueError if it is not a whole one.

    Example:
        >>> _whole_number("033"), _whole_number(204.0), _whole_number(r"$336^\circ$")
        (33, 204, 336)
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    written = records.answer_text(value).strip("$").removesuffix(r"^\circ")
    if not re.fullmatch(r"-?[0-9]{1,30}", written):
        raise ValueError(f"`answer` should be a whole number, not {value!r}")
    return int(written)
