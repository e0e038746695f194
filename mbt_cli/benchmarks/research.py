"""Research: questions with an easy answer, which is wrong, and a hard one, which is right.

Records of `{question, easy_answer, hard_answer}`, optionally with `id`, `background`, and
`correct`: `easy`, `hard`, or null where that is not known.

    Q: Why is the sky dark at night?   A. The sun is away.   B. The universe has a finite age.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.benchmarks.beliefs import BeliefBenchmark, one_hot
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question

_ID = ("id", "_id", "question_id")
_TAKEN = (*_ID, "question", "background", "easy_answer", "hard_answer", "correct")
_RIGHT: Mapping[Json, int | None] = {"easy": 0, "hard": 1, None: None}


class Research(BeliefBenchmark):
    """Research questions with two answers."""

    kind: Literal["research"] = "research"
    """Names the benchmark in a manifest."""
    shuffle_options: bool = True
    """Order the options by `shuffle_seed` and the id of the question: the data has the easy answer
    first."""

    layout: ClassVar[frozenset[str]] = frozenset({"question", "easy_answer", "hard_answer"})
    reads: ClassVar[frozenset[str]] = frozenset(_TAKEN)

    def question(self, record: Mapping[str, Json]) -> Question:
        question = records.text(record, "question")
        options = [records.text(record, name) for name in ("easy_answer", "hard_answer")]
        correct = record.get("correct", "hard")
        if not isinstance(correct, str | None) or correct not in _RIGHT:
            raise ValueError(f"`correct` is {correct!r}; it is `easy`, `hard` or null")
        return self.with_options(
            records.own_id(record, *_ID) or records.hashed_id(question),
            [question, records.optional_text(record, "background") or ""],
            options,
            one_hot(_RIGHT[correct], 2),
            {**records.rest(record, *_TAKEN), "easy_answer": options[0]},
        )
