"""Rollout: a model answers every question, once or several times."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Reply, Request
from mbt_cli.core.model import Grows
from mbt_cli.core.questions import documents_text
from mbt_cli.stages.ask import AskPlan, Prompt, RetryOn, ask_model
from mbt_cli.stages.base import InputRule, Resolution, SamplingChoice, Stage, StageInput, Work
from mbt_cli.verifiers.text import extract_answer


class RolloutStage(Stage):
    """Ask a model every question of a split."""

    kind: Literal["rollout"] = "rollout"
    checkpoints: StageInput | None = None
    """Train stages whose checkpoints answer; they bring the axes model and variant."""
    prompt: str | None = None
    """Name of a prompt template, or the path of one's own."""
    samples: Annotated[int, Grows] = Field(ge=1)
    """Rollouts per question."""
    sampling: SamplingChoice | None = None
    """Another sampling than the model's own."""
    retry_on: list[RetryOn] = Field(default_factory=list)
    """Outcomes for which a question is asked again with a new seed, such as `length`."""
    retry_max_tokens: int | None = Field(default=None, gt=0)
    """Token limit of such a second try; left out, the same."""

    summary: ClassVar[str] = "ask a model every question"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split", "model")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "checkpoints": InputRule(kinds=("train",), leading=True)
    }
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("model",)
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents"})
    needed: ClassVar[tuple[str, ...]] = ("prompt",)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.ROLLOUTS

    def ask_plan(self, work: Work) -> AskPlan:
        """Every question times its samples, in the questions' order."""
        questions = work.rows("questions").select("question_id", "question", "context")
        return AskPlan(
            role="model",
            purpose="rollout",
            prompts=lambda: self._prompts(work, questions),
            total=questions.height * self.samples,
            row_of=_rollout,
            retry_on=self.retry_on,
            retry_max_tokens=self.retry_max_tokens,
        )

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        return ask_model(self.ask_plan(work), work, rows.ROLLOUTS)

    def _prompts(self, work: Work, questions: pl.DataFrame) -> Iterator[Prompt]:
        template = work.resolution.templates["prompt"]
        for question in questions.iter_rows(named=True):
            documents = documents_text(question["context"] or ())
            values = {"question": question["question"], "documents": documents}
            messages = template.fill(values)
            for sample in range(self.samples):
                yield Prompt(question["question_id"], sample, messages)


def _rollout(request: Request, reply: Reply) -> Mapping[str, Any]:
    answer = extract_answer(reply.text) if reply.text else ""
    return {
        "question_id": request.question_id,
        "sample": request.sample,
        "answer": answer or None,
    }
