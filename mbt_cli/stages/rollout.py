"""Rollout: a model answers every question, once or several times."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Reply
from mbt_cli.core.plugin import Grows
from mbt_cli.core.programs import Task
from mbt_cli.core.questions import documents_text
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.templates import EXAMPLES
from mbt_cli.core.traces import answering_text, is_cut
from mbt_cli.errors import StageError
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.interfaces import Program
from mbt_cli.programs.single import Single
from mbt_cli.stages.ask import RetryOn, ask_model, request_batch
from mbt_cli.stages.base import InputRule, Resolution, SamplingChoice, Stage, StageInput, Work
from mbt_cli.stages.questions import SHOTS

_PURPOSE = "rollout"
_MOST_SAMPLES = 100_000


class RolloutStage(Stage):
    """Ask a model every question of a split."""

    kind: Literal["rollout"] = "rollout"
    checkpoints: StageInput | None = None
    """Train stages whose checkpoints answer; they bring the axes model and variant."""
    prompt: str | None = None
    """Name of a prompt template, or a path."""
    samples: Annotated[int, Grows] = Field(default=1, ge=1, le=_MOST_SAMPLES, strict=True)
    """Rollouts per question."""
    sampling: SamplingChoice | None = None
    """Sampling in place of the model's."""
    retry_on: list[RetryOn] = Field(default_factory=list)
    """Outcomes that are retried with a new seed, such as `length`."""
    retry_max_tokens: int | None = Field(default=None, gt=0)
    """Token limit of such a retry; default: the same limit."""

    summary: ClassVar[str] = "ask a model every question"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split", "model")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "checkpoints": InputRule(kinds=("train",), leading=True)
    }
    reads_questions: ClassVar[bool] = True
    reads_shots: ClassVar[bool] = True
    sends_text: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("model",)
    allowed_failures: ClassVar[tuple[str, ...]] = rows.NO_TEXT
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents", EXAMPLES})
    needed: ClassVar[tuple[str, ...]] = ("prompt",)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.ROLLOUTS

    def request_batch(self, work: Work) -> RequestBatch:
        """Every question times its samples, in the order of the questions."""
        questions = work.rows("questions").select("question_id", "question", "context")
        batch = request_batch(
            work,
            role="model",
            purpose=_PURPOSE,
            tasks=lambda: self._tasks(work, questions),
            total=questions.height * self.samples,
        )
        return replace(
            batch,
            retry_on=tuple(self.retry_on),
            accepts=rows.NO_TEXT,
            retry_max_tokens=self.retry_max_tokens,
        )

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        extract, watch = work.answer_extraction(), _EmptyReplies(work)

        def rollout(task: Task, reply: Reply) -> Mapping[str, Any]:
            watch.add(reply)
            text = answering_text(reply.text or "", reply.finish_reason)
            answer = extract(text) if text else ""
            return {
                "question_id": task.question_id,
                "sample": task.sample,
                "answer": answer or None,
            }

        yield from ask_model(work, self.request_batch(work), rows.ROLLOUTS, rollout)
        watch.finish()

    def _tasks(self, work: Work, questions: pl.DataFrame) -> Iterator[Task]:
        template, program = work.resolution.templates["prompt"], _PROGRAM
        shots = _Shots.drawn(work)
        for question in questions.iter_rows(named=True):
            question_id = question["question_id"]
            values = {
                "question": question["question"],
                "documents": documents_text(question["context"] or ()),
                EXAMPLES: template.examples(shots.beside(question_id)),
            }
            messages = template.fill(values)
            for sample in range(self.samples):
                draw = partial(Draws, work.resolution.seed, _PURPOSE, question_id, sample)
                yield Task(question_id, sample, program.run(question, messages, draw))


@dataclass(frozen=True, slots=True)
class _Shots:
    """Worked examples in the order of their draw, with one to spare.

    Args:
        solved: Question to its id and the values of an example.
        count: Examples in a prompt.
    """

    solved: Sequence[tuple[str, Mapping[str, str]]] = ()
    count: int = 0

    @classmethod
    def drawn(cls, work: Work) -> "_Shots":
        """The examples of the cell's benchmark.

        Raises:
            StageError: The split has too few questions.
        """
        benchmark = work.resolution.benchmark
        if SHOTS not in work.inputs or benchmark is None or benchmark.shots is None:
            return cls()
        shots, questions = benchmark.shots, work.rows(SHOTS)
        order = sorted(
            range(questions.height),
            key=lambda n: sha256_of(["shots", shots.seed, questions["question_id"][n]]),
        )
        if len(order) < shots.count:
            split = f"`{shots.split}` of `{work.resolution.axes['benchmark']}`"
            raise StageError(
                f"{split} has {len(order)} questions for {shots.count} examples",
                hint="lower `shots.count`, or raise `limit`",
            )
        rows = questions[order[: shots.count + 1]].iter_rows(named=True)
        return cls([(row["question_id"], _example(row)) for row in rows], shots.count)

    def beside(self, question_id: str) -> Sequence[Mapping[str, str]]:
        """The examples in the prompt of a question, which is never its own."""
        others = (values for name, values in self.solved if name != question_id)
        return list(islice(others, self.count))


def _example(row: Mapping[str, Any]) -> Mapping[str, str]:
    solution = orjson.loads(row["metadata"] or "{}").get("solution")
    return {
        "question": row["question"],
        "documents": documents_text(row["context"] or ()),
        "answer": row["answer"],
        "solution": solution if isinstance(solution, str) else row["answer"],
    }


class _EmptyReplies:
    """Tells of a model that replies without text: its server or chat template may be at fault.

    Such replies do not count as failures, so nothing else stops the run or reports them.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._kinds = Counter[str]()
        self._replies = 0

    def add(self, reply: Reply) -> None:
        """Count a reply; the first ones are noted at once if none has text."""
        kind = (reply.failure or "").partition(":")[0]
        if not (kind or is_cut(reply.finish_reason) or (reply.text or "").strip()):
            kind = _REASONING_ONLY
        if kind and kind not in (*rows.NO_TEXT, _REASONING_ONLY):
            return
        self._replies += 1
        if kind:
            self._kinds[kind] += 1
        if self._replies == _FIRST_REPLIES == self._kinds.total():
            self._note(f"the first {self._replies} replies")

    def finish(self) -> None:
        """Note the number if at least half of the replies have no text."""
        empty = self._kinds.total()
        if empty and 2 * empty >= self._replies:
            self._note(f"{empty:,} of {self._replies:,} replies")

    def _note(self, which: str) -> None:
        kinds = ", ".join(f"{count:,} x {kind}" for kind, count in self._kinds.most_common())
        self._work.progress.note(
            f"`{self._work.resolution.address}`: {which} came without text ({kinds}) and count as "
            "wrong; if the model should answer, check the server, its chat template and `request`, "
            "then run again with `--retry-failed`"
        )


_FIRST_REPLIES = 50
_REASONING_ONLY = "reasoning only"
_PROGRAM: Program = Single()
