"""Rollout: a model answers every question, once or several times."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from traceback import walk_tb
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.plugin import AbsentByDefault, Grows, RunOnly, Settings
from mbt_cli.core.programs import Problem, Result, Task
from mbt_cli.core.questions import documents_text, stated_option
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.templates import EXAMPLES
from mbt_cli.core.traces import answering_text, is_cut
from mbt_cli.errors import MbtError, StageError
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.inference.replies import PROMPT_TOO_LONG
from mbt_cli.interfaces import Program
from mbt_cli.stages.ask import RetryOn, ask_model, failed_row, request_batch
from mbt_cli.stages.base import (
    InputRule,
    Resolution,
    SamplingChoice,
    Stage,
    StageInput,
    Work,
)
from mbt_cli.stages.checkpoints import Beside, beside_problems
from mbt_cli.stages.questions import SHOTS
from mbt_cli.stages.steps import StepsFile, totals
from mbt_cli.store.questions import read_examples

_PURPOSE = "rollout"
OPINION = "opinion"
"""The placeholder for an opinion that the user states."""
NO_SYSTEM_PROMPT = "none"
"""The system prompt that leaves a prompt as it is."""
_MOST_SAMPLES = 100_000


class RoleModel(Settings):
    """A model that plays a role of a program."""

    model: str
    """Name of a `[models.NAME]`."""
    sampling: SamplingChoice | None = None
    """Sampling in place of the model's."""


class RolloutStage(Stage):
    """Ask a model every question of a split."""

    kind: Literal["rollout"] = "rollout"
    checkpoints: StageInput | None = None
    """Train stages whose checkpoints answer; they bring the axes model and variant."""
    prompt: str | None = None
    """Name of a prompt template, or a path."""
    system_prompt: str | None = None
    """Name of a `[system_prompts]` text, which stands in place of the prompt's own system message;
    `none` leaves the prompt as it is."""
    beside: Annotated[Beside | None, RunOnly] = None
    """Evaluate checkpoints while `mbt run` trains, on GPUs that the training leaves free."""
    samples: Annotated[int, Grows] = Field(default=1, ge=1, le=_MOST_SAMPLES, strict=True)
    """Rollouts per question."""
    sampling: SamplingChoice | None = None
    """Sampling in place of the model's."""
    program: str | None = None
    """How the model works on a question: the name of a `[programs.NAME]`, or a kind of program.
    Default: it is asked once."""
    roles: dict[str, str | RoleModel] = Field(default_factory=dict)
    """Role of the program to the name of the model that plays it, `{ verifier = "big-model" }`, or
    a table; the stage's own model plays the others."""
    retry_on: list[RetryOn] = Field(default_factory=list)
    """Outcomes that are retried with a new seed, such as `length`."""
    retry_max_tokens: int | None = Field(default=None, gt=0)
    """Token limit of such a retry; default: the same limit."""
    max_prompt_tokens: Annotated[
        Annotated[int, Field(gt=0, strict=True)] | Literal["rest"] | None, AbsentByDefault
    ] = None
    """Longer prompts are left out: their rows fail with `prompt_too_long`, are counted, and never
    fail the cell. `rest`: those that the context cannot hold beside the reply's token limit."""
    shuffle_seed: Annotated[int | None, RunOnly] = None
    """Ask the questions in an order shuffled by this seed, so that shards have equal shares of easy
    and hard ones. Default: the order of the split."""

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
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents", EXAMPLES, OPINION})
    needed: ClassVar[tuple[str, ...]] = ("prompt",)
    resolved: ClassVar[tuple[str, ...]] = ("program", "roles", "system_prompt")

    def columns(self, resolution: Resolution) -> pl.Schema:
        has_own = self.program is None or resolution.source is not None
        return rows.ROLLOUTS if has_own else _ROLLOUTS_OF_PROGRAM

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        yield from beside_problems(self.beside, self.checkpoints)

    def failures_allowed(self) -> tuple[str, ...]:
        left_out = () if self.max_prompt_tokens is None else (PROMPT_TOO_LONG,)
        return (*self.allowed_failures, *left_out)

    def request_batch(self, work: Work) -> RequestBatch:
        """Every question times its samples, without prompts that are certainly too long."""
        too_long = self._too_long(work)
        questions = work.lazy("questions").select(pl.len()).collect().item()
        batch = request_batch(
            work,
            role="model",
            purpose=_PURPOSE,
            tasks=lambda: self._tasks(work, too_long),
            total=(questions - len(too_long)) * self.samples,
        )
        return replace(
            batch,
            retry_on=tuple(self.retry_on),
            accepts=rows.NO_TEXT,
            retry_max_tokens=self.retry_max_tokens,
            roles={
                role: replace(played, retry_max_tokens=self.retry_max_tokens)
                for role, played in batch.roles.items()
            },
        )

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        extract, watch = work.answer_extraction(), _EmptyReplies(work)
        columns, has_steps = self.columns(work.resolution), work.resolution.has_steps
        if too_long := self._too_long(work):
            left_out = [
                failed_row(columns, words, question_id=question_id, sample=sample)
                for question_id, words in too_long.items()
                for sample in range(self.samples)
            ]
            yield frame_of_rows(left_out, columns)

        def rollout(task: Task, reply: Reply) -> Mapping[str, Any]:
            # a program's later prompts quote replies: the limit is for the stage's own
            if not has_steps and (words := self._is_over(reply)) is not None:
                keys = {"question_id": task.question_id, "sample": task.sample, "answer": None}
                return {**keys, **_NO_REPLY, "failure": words}
            watch.add(reply)
            text = answering_text(reply.text or "", reply.finish_reason)
            answer = extract(text) if text else ""
            return {
                "question_id": task.question_id,
                "sample": task.sample,
                "answer": answer or None,
            }

        with ExitStack() as opened:
            file = opened.enter_context(StepsFile(work)) if has_steps else None

            def of_steps(result: Result) -> Mapping[str, Any]:
                if file is not None:
                    file.add(result)
                return totals(result)

            counted = None if self.program is None else of_steps
            with _errors_of(work.resolution.program):
                yield from ask_model(work, self.request_batch(work), columns, rollout, counted)
        watch.finish()

    def _tasks(self, work: Work, left_out: Collection[str]) -> Iterator[Task]:
        for question, messages in self._prompts(work):
            question_id = question["question_id"]
            for sample in range(0 if question_id in left_out else self.samples):
                draw = partial(Draws, work.resolution.seed, _PURPOSE, question_id, sample)
                problem = Problem(question, messages, draw, work.resolution.program_prompts)
                yield Task(question_id, sample, work.resolution.program.run(problem))

    def _prompts(self, work: Work) -> Iterator[tuple[Mapping[str, Any], tuple[Message, ...]]]:
        """Each question with its prompt."""
        template, shots = work.resolution.templates["prompt"], _Shots.drawn(work)
        few_shot = work.resolution.models["model"].few_shot
        for question in self._questions(work):
            values = {
                "question": question["question"],
                "documents": documents_text(question["context"] or ()),
                EXAMPLES: template.examples(shots.beside(question["question_id"])),
            }
            if OPINION in template.placeholders:
                values[OPINION] = _opinion(question)
            messages = template.fill(values)
            if few_shot is not None:
                axes = work.resolution.axes
                messages = few_shot.before(messages, axes, question["question_id"])
            yield question, messages

    def _questions(self, work: Work) -> Iterator[dict[str, Any]]:
        """The questions in the order in which they are asked, a few in memory at a time."""
        more = ["metadata"] if work.resolution.has_steps else []
        if OPINION in work.resolution.templates["prompt"].placeholders:
            more.append("options")
        columns = ("question_id", "question", "context", *more)
        batches = iter(work.batches("questions", columns))
        if self.shuffle_seed is not None:
            batches = iter([shuffled(pl.concat(batches), "order", self.shuffle_seed)])
        for batch in batches:
            yield from batch.iter_rows(named=True)

    def _too_long(self, work: Work) -> Mapping[str, str]:
        """The failure of each question whose prompt has more words than it may have tokens."""
        limit, found = self.max_prompt_tokens, dict[str, str]()
        if not isinstance(limit, int):
            return found
        for question, messages in self._prompts(work):
            texts = [message["content"] for message in messages]
            if sum(map(len, texts)) < 2 * limit:  # a word and a space
                continue
            words = sum(len(text.split()) for text in texts)
            if words > limit:
                what = f"{words:,} words or more tokens, `max_prompt_tokens` is {limit:,}"
                found[question["question_id"]] = f"{PROMPT_TOO_LONG}: {what}"
        return found

    def _is_over(self, reply: Reply) -> str | None:
        """The failure of a reply to a prompt that is too long; None if it is not."""
        limit, tokens = self.max_prompt_tokens, reply.prompt_tokens
        if not isinstance(limit, int) or tokens is None or tokens <= limit:
            return None
        return f"{PROMPT_TOO_LONG}: {tokens:,} tokens, `max_prompt_tokens` is {limit:,}"


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
            StageError: The split or file has too few questions, or a record is malformed.
            MissingInputError: The file does not exist.
        """
        benchmark, shots = work.resolution.benchmark, work.resolution.shots
        if benchmark is None or shots is None:
            return cls()
        if shots.file is not None:
            questions = read_examples(benchmark, shots.file, question=benchmark.question)
            source, more = f"`{shots.file}`", "or add some to the file"
        else:
            questions = shuffled(work.rows(SHOTS), SHOTS, shots.seed)
            source = f"`{shots.split}` of `{work.resolution.axes['benchmark']}`"
            more = "or raise `limit`"
        count = shots.count or questions.height
        if questions.height < count:
            raise StageError(
                f"{source} has {questions.height} questions for {count} examples",
                hint=f"lower `shots.count`, {more}",
            )
        rows = questions[: count + 1].iter_rows(named=True)
        return cls([(row["question_id"], _example(row)) for row in rows], count)

    def beside(self, question_id: str) -> Sequence[Mapping[str, str]]:
        """The examples in the prompt of a question, which is never its own."""
        others = (values for name, values in self.solved if name != question_id)
        return list(islice(others, self.count))


def _opinion(question: Mapping[str, Any]) -> str:
    """The option that the prompt states as the user's opinion."""
    if not question["options"]:
        raise StageError(
            f"question `{question['question_id']}` has no options, and `{{{{ opinion }}}}` is one",
            hint="use a benchmark whose questions have options; see `mbt help beliefs`",
        )
    options: list[str] = question["options"]
    return options[stated_option(question["question_id"], options)]


def shuffled(questions: pl.DataFrame, purpose: str, seed: int) -> pl.DataFrame:
    """The questions in an order by seed; of two, the first does not depend on the others."""
    ids = questions["question_id"]
    order = sorted(range(questions.height), key=lambda n: sha256_of([purpose, seed, ids[n]]))
    return questions[order]


def _example(row: Mapping[str, Any]) -> Mapping[str, str]:
    solution = orjson.loads(row["metadata"] or "{}").get("solution")
    return {
        "question": row["question"],
        "documents": documents_text(row["context"] or ()),
        "answer": row["answer"],
        "solution": solution if isinstance(solution, str) else row["answer"],
    }


@contextmanager
def _errors_of(program: Program) -> Iterator[None]:
    """Say where the code of a user's own program fails.

    Raises:
        StageError: It failed; every reply is kept.
    """
    try:
        yield
    except (MbtError, GeneratorExit):
        raise
    except Exception as error:
        module = type(program).__module__
        lines = [
            line
            for frame, line in walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") == module
        ]
        if program.file_sha256 is None or not lines:
            raise
        raise StageError(
            f"the program `{program.kind}` failed in line {lines[-1]} of its file: "
            f"{type(error).__name__}: {error}",
            hint="every reply is kept; correct the file and run the same command again",
        ) from error


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
_NO_REPLY = dict.fromkeys(("reply", "reasoning", "finish_reason"))
_ROLLOUTS_OF_PROGRAM = pl.Schema({**rows.ROLLOUTS, **rows.OF_PROGRAM})
