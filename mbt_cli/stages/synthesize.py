"""Synthesize: a teacher writes worked solutions or five-phase traces from question and answer."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field, model_validator

from mbt_cli.core import rows
from mbt_cli.core.model import Grows
from mbt_cli.core.questions import documents_text
from mbt_cli.stages.ask import AskPlan, Prompt, ask_model
from mbt_cli.stages.base import InputRule, Resolution, SamplingChoice, Stage, Work
from mbt_cli.stages.gates import MOST_TRACES, GateResults, Gates

_QUESTIONS_AT_ONCE = 500


class SynthesizeStage(Stage):
    """Have a teacher write a solution or a trace for every question."""

    kind: Literal["synthesize"] = "synthesize"
    make: Literal["solution", "mbt_s"]
    """`solution`: a worked answer; `mbt_s`: a five-phase trace from scratch."""
    teacher: str | None = None
    """Which model writes."""
    traces_per_question: Annotated[int, Grows] = Field(default=1, ge=1, le=MOST_TRACES)
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
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents", "answer"})
    needed: ClassVar[tuple[str, ...]] = ("teacher",)

    @model_validator(mode="before")
    @classmethod
    def _own_prompt(cls, fields: Any) -> Any:
        return with_own_prompt(fields)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRACES

    def ask_plan(self, work: Work) -> AskPlan:
        """Every question times its traces, in the questions' order."""
        return self._plan(work, GateResults(self.gates))

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        results = GateResults(self.gates)
        plan = self._plan(work, results)
        yield from ask_model(plan, work, rows.TRACES)
        results.record(work, {"questions": plan.total // self.traces_per_question})

    def _plan(self, work: Work, results: GateResults) -> AskPlan:
        questions = work.lazy("questions").select(pl.len()).collect().item()
        return AskPlan(
            role="teacher",
            purpose=f"synthesize:{self.make}",
            prompts=lambda: self._prompts(work, questions),
            total=questions * self.traces_per_question,
            row_of=results.row,
        )

    def _prompts(self, work: Work, count: int) -> Iterator[Prompt]:
        template = work.resolution.templates["prompt"]
        questions = work.lazy("questions").select(
            "question_id", "question", "context", "answer", "answer_aliases"
        )
        for start in range(0, count, _QUESTIONS_AT_ONCE):
            batch = questions.slice(start, _QUESTIONS_AT_ONCE).collect()
            for question in batch.iter_rows(named=True):
                messages = template.fill(prompt_values(question))
                answers = (question["answer"], *(question["answer_aliases"] or ()))
                for trace_id in range(self.traces_per_question):
                    seen = {"answers": answers, "made_from": {"sample": 0, "trace_id": trace_id}}
                    yield Prompt(question["question_id"], trace_id, messages, row=seen)


def with_own_prompt(fields: Any) -> Any:
    """A stage's fields with the template named like `make` as the default of `prompt`."""
    if not isinstance(fields, dict) or fields.get("prompt") is not None:
        return fields
    return {**fields, "prompt": fields.get("make")}


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
