"""Synthesize: a teacher writes worked solutions or five-phase traces from question and answer."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field, model_validator

from mbt_cli.core import rows
from mbt_cli.core.plugin import Grows
from mbt_cli.core.programs import Task, one_request
from mbt_cli.core.questions import documents_text
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.inference.replies import PROMPT_TOO_LONG
from mbt_cli.stages.ask import ask_model, request_batch
from mbt_cli.stages.base import InputRule, Resolution, SamplingChoice, Stage, Work
from mbt_cli.stages.gates import MOST_TRACES, Asked, GateResults, Gates

_QUESTIONS_AT_ONCE = 500


class SynthesizeStage(Stage):
    """Have a teacher write a solution or a trace for every question."""

    kind: Literal["synthesize"] = "synthesize"
    make: Literal["solution", "mbt_s"]
    """`solution`: a worked answer; `mbt_s`: a five-phase trace from scratch."""
    teacher: str | None = None
    """Which model writes."""
    traces_per_question: Annotated[int, Grows] = Field(default=1, ge=1, le=MOST_TRACES, strict=True)
    """Number of texts per question."""
    prompt: str | None = None
    """Prompt template; by default the one named like `make`."""
    sampling: SamplingChoice | None = None
    """Sampling; by default the teacher's."""
    gates: Gates = Gates()
    """Checks that a text must pass to become training data."""

    summary: ClassVar[str] = "have a teacher write solutions or traces"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split")
    inputs: ClassVar[Mapping[str, InputRule]] = {}
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("teacher",)
    allowed_failures: ClassVar[tuple[str, ...]] = (PROMPT_TOO_LONG,)
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents", "answer"})
    needed: ClassVar[tuple[str, ...]] = ("teacher",)

    @model_validator(mode="before")
    @classmethod
    def _own_prompt(cls, fields: Any) -> Any:
        return with_own_prompt(fields)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRACES

    def uses_verifier(self, resolution: Resolution) -> bool:
        return self.gates.conclusion

    def request_batch(self, work: Work) -> RequestBatch:
        """Every question times its traces, in the order of the questions."""
        questions = work.lazy("questions").select(pl.len()).collect().item()
        return request_batch(
            work,
            role="teacher",
            purpose=f"synthesize:{self.make}",
            tasks=lambda: self._tasks(work, questions),
            total=questions * self.traces_per_question,
        )

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        verifier = work.resolution.verifier_of(work.resolution.axes)
        results = GateResults(self.gates, verifier, self.make)
        batch = self.request_batch(work)
        yield from ask_model(work, batch, rows.TRACES, results.row)
        results.record(work, {"questions": (batch.total or 0) // self.traces_per_question})

    def _tasks(self, work: Work, count: int) -> Iterator[Task]:
        template = work.resolution.templates["prompt"]
        questions = work.lazy("questions").select(
            "question_id", "question", "context", "answer", "answer_aliases"
        )
        for start in range(0, count, _QUESTIONS_AT_ONCE):
            batch = questions.slice(start, _QUESTIONS_AT_ONCE).collect()
            for question in batch.iter_rows(named=True):
                values = prompt_values(question)
                messages, asked = template.fill(values), asked_of(question, values)
                for trace_id in range(self.traces_per_question):
                    seen = {"asked": asked, "made_from": {"sample": 0, "trace_id": trace_id}}
                    steps = one_request(self.make, messages)
                    yield Task(question["question_id"], trace_id, steps, seen)


def with_own_prompt(fields: Any) -> Any:
    """A stage's fields with the template named like `make` as the default of `prompt`."""
    if not isinstance(fields, dict) or fields.get("prompt") is not None:
        return fields
    return {**fields, "prompt": fields.get("make")}


def asked_of(question: Mapping[str, Any], values: Mapping[str, str]) -> Asked:
    """What the gates know of a question.

    Args:
        question: Columns of `rows.QUESTIONS`.
        values: Its `prompt_values`.
    """
    return Asked(
        question_id=question["question_id"],
        answers=(question["answer"], *(question["answer_aliases"] or ())),
        question=values["question"],
        documents=values["documents"],
    )


def prompt_values(question: Mapping[str, Any]) -> dict[str, str]:
    """Values of a template's placeholders.

    Args:
        question: `question`, `context` and `answer` of `rows.QUESTIONS`.
    """
    return {
        "question": question["question"],
        "documents": documents_text(question["context"] or ()),
        "answer": question["answer"],
    }
