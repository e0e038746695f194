"""Rewrite: a teacher rewrites the traces of a student."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field, model_validator

from mbt_cli.core import rows
from mbt_cli.core.plugin import Grows
from mbt_cli.core.programs import Task, one_request
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.traces import cut_column, trace_column, trace_of
from mbt_cli.errors import StageError
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.inference.replies import PROMPT_TOO_LONG
from mbt_cli.interfaces import Verifier
from mbt_cli.stages.ask import ask_model, failed_row, request_batch
from mbt_cli.stages.base import (
    VERIFIED,
    InputRule,
    Keep,
    Resolution,
    SamplingChoice,
    Stage,
    StageInput,
    Work,
)
from mbt_cli.stages.gates import MOST_TRACES, GateResults, Gates
from mbt_cli.stages.inputs import RowReader, answer_verdicts, gold_columns, kept
from mbt_cli.stages.synthesize import asked_of, prompt_values, with_own_prompt

_KEY = ["question_id", "sample"]
_ROLLOUTS_AT_ONCE = 250
_FAILED_AT_ONCE = 5_000


class RewriteStage(Stage):
    """Have a teacher rewrite the trace of every rollout."""

    kind: Literal["rewrite"] = "rewrite"
    make: Literal["mbt_r", "plain"]
    """`mbt_r`: five phases; `plain`: coherent and correct without them (the control)."""
    rollouts: StageInput | None = None
    """Rollouts whose traces are rewritten."""
    solutions: StageInput | None = None
    """Worked solutions of the same questions."""
    teacher: str | None = None
    """Model that rewrites."""
    traces_per_rollout: Annotated[int, Grows] = Field(ge=1, le=MOST_TRACES, strict=True)
    """Number of rewrites per rollout."""
    keep: Keep | None = None
    """Which rollouts are rewritten; by default all that did not fail."""
    truncated: bool = False
    """Rewrite truncated rollouts too, whose `finish_reason` is `length`, say."""
    verdicts: StageInput | None = None
    """Verdicts of `answer_match` that decide what is correct, instead of the verifier."""
    prompt: str | None = None
    """Prompt template; by default the one named like `make`."""
    sampling: SamplingChoice | None = None
    """Sampling; by default the teacher's."""
    gates: Gates = Gates()
    """Checks that a text must pass to become training data."""

    summary: ClassVar[str] = "have a teacher rewrite a student's traces"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split", "model")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "rollouts": InputRule(kinds=("rollout",), leading=True),
        "solutions": InputRule(kinds=("synthesize",)),
        "verdicts": InputRule(kinds=("judge",), same_rollouts=True),
    }
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("teacher",)
    allowed_failures: ClassVar[tuple[str, ...]] = (PROMPT_TOO_LONG,)
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "documents", "answer", "solution", "trace"}
    )
    needed: ClassVar[tuple[str, ...]] = ("rollouts", "solutions", "teacher")

    @model_validator(mode="before")
    @classmethod
    def _own_prompt(cls, fields: Any) -> Any:
        return with_own_prompt(fields)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRACES

    def uses_verifier(self, resolution: Resolution) -> bool:
        return self.gates.conclusion or (self.keep in VERIFIED and self.verdicts is None)

    def request_batch(self, work: Work) -> RequestBatch:
        """Every kept rollout that has a solution, once per trace."""
        paired, _, _ = _pair_rollouts(work, self.keep, truncated=self.truncated)
        return self._batch(work, paired)

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        paired, unpaired, counts = _pair_rollouts(work, self.keep, truncated=self.truncated)
        for batch in unpaired.iter_slices(_FAILED_AT_ONCE):
            failed = [
                failed_row(
                    rows.TRACES,
                    row["problem"],
                    question_id=row["question_id"],
                    sample=row["sample"],
                    trace_id=0,
                    rollout_address=work.input("rollouts").address,
                    rollout_sample=row["sample"],
                )
                for row in batch.iter_rows(named=True)
            ]
            yield frame_of_rows(failed, rows.TRACES)
        verifier = work.resolution.verifier_of(work.resolution.axes)
        results = GateResults(self.gates, verifier, self.make)
        yield from ask_model(work, self._batch(work, paired), rows.TRACES, results.row)
        results.record(work, counts)

    def _batch(self, work: Work, paired: pl.DataFrame) -> RequestBatch:
        return request_batch(
            work,
            role="teacher",
            purpose=f"rewrite:{self.make}",
            tasks=lambda: self._tasks(work, paired),
            total=paired.height * self.traces_per_rollout,
        )

    def _tasks(self, work: Work, paired: pl.DataFrame) -> Iterator[Task]:
        template = work.resolution.templates["prompt"]
        for row in _with_texts(work, paired):
            trace = trace_of(row["reasoning"], row["reply"])
            own = {"solution": row["solution"], "trace": trace}
            values = prompt_values(row)
            messages, asked = template.fill({**values, **own}), asked_of(row, values)
            made_from = {
                "sample": row["sample"],
                "rollout_address": work.input("rollouts").address,
                "rollout_sample": row["sample"],
                "solution_address": row["solution_address"],
                "solution_id": row["solution_id"],
            }
            for trace_id in range(self.traces_per_rollout):
                seen = {"asked": asked, "made_from": {**made_from, "trace_id": trace_id}}
                number = row["sample"] * MOST_TRACES + trace_id
                steps = one_request(self.make, messages)
                yield Task(row["question_id"], number, steps, seen)


def _with_texts(work: Work, paired: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Each pair with the texts of its question, rollout and solution, in bounded memory."""
    questions = RowReader(
        work.lazy("questions").select("question", "context", "answer", "answer_aliases")
    )
    rollouts = RowReader(work.lazy("rollouts").select("reasoning", "reply"))
    solutions = RowReader(work.lazy("solutions").select(pl.col("trace").alias("solution")))
    for batch in paired.iter_slices(_ROLLOUTS_AT_ONCE):
        together = pl.concat(
            [
                batch,
                questions.take(batch["question_row"]),
                rollouts.take(batch["rollout_row"]),
                solutions.take(batch["solution_row"]),
            ],
            how="horizontal",
        )
        yield from together.iter_rows(named=True)


def _pair_rollouts(
    work: Work, keep: Keep | None, *, truncated: bool
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """The kept rollouts, each with a solution of its own question; texts stay on disk.

    A solution for the same sample is preferred; otherwise the first one of the question is used.
    Failed solutions are never used.

    Returns:
        Pairs: question_id, sample, solution_address, solution_id, and the row numbers of the
        texts (rollout_row, question_row, solution_row), the rollouts of a question consecutive
        and ordered by sample. Kept rollouts that cannot be rewritten: question_id, sample,
        problem. The steps of the funnel so far.

    Raises:
        StageError: A rollout has no question or exists twice, or no rollout has a solution.
    """
    verifier = work.resolution.verifier_of(work.resolution.axes)
    rollouts = _with_gold(work, verifier)
    whole = rollouts
    if not truncated:
        whole = rollouts.filter(~cut_column() | pl.col("failure").is_not_null())
    chosen = kept(whole, keep, verifier=verifier, verdicts=answer_verdicts(work))
    solutions = _solutions(work)
    joined = _with_solutions(chosen, solutions).with_columns(_problem().alias("problem"))
    joined = joined.sort(pl.col("rollout_row").min().over("question_id"), "sample")
    paired = joined.filter(pl.col("problem").is_null())
    if paired.is_empty() and (joined["problem"] == "no_solution").any():
        addresses = ", ".join(f"`{cell.address}`" for cell in work.inputs["solutions"])
        raise StageError(
            f"none of {joined.height} rollouts has a solution in {addresses}: they share no "
            "question id",
            hint="`solutions` must be made from the same benchmark and split",
        )
    counts = {
        "rollouts": rollouts.height,
        "not truncated": whole.height,
        "kept": chosen.height,
        "with a solution": paired.height,
    }
    return paired, joined.filter(pl.col("problem").is_not_null()), counts


def _with_gold(work: Work, verifier: Verifier) -> pl.DataFrame:
    """The rollouts with what the verifier reads of them and of their questions."""
    reply = ["reply"] if verifier.reads_reply else []
    columns = [*_KEY, "answer", "finish_reason", "failure", *reply]
    rollouts = (
        work.lazy("rollouts")
        .select(*columns, (trace_column() != "").alias("has_trace"))
        .with_row_index("rollout_row")
    )
    questions = (
        work.lazy("questions")
        .select("question_id", *gold_columns(verifier))
        .with_row_index("question_row")
    )
    joined = rollouts.join(questions, on="question_id", how="left", maintain_order="left")
    found = joined.collect(engine="streaming").sort("rollout_row")
    lost = found.filter(pl.col("question_row").is_null())
    if lost.height:
        first = lost["question_id"][0]
        raise StageError(f"{lost.height} rollouts have no question; first: `{first}`")
    twice = found.filter(pl.struct(_KEY).is_duplicated())
    if twice.height:
        raise StageError(
            f"question `{twice['question_id'][0]}` has sample {twice['sample'][0]} twice"
        )
    return found


def _solutions(work: Work) -> pl.DataFrame:
    """The keys of every solution, the preferred one of a question first."""
    cells = [
        cell.rows.select(
            *_KEY,
            pl.col("trace_id").alias("solution_id"),
            pl.col("failure").alias("solution_failure"),
            # breaks ties between two solutions with one key, in any order of the rows
            pl.col("trace").hash().alias("text"),
            pl.col("trace").is_not_null().alias("has_text"),
        ).with_columns(pl.lit(cell.address).alias("solution_address"))
        for cell in work.inputs["solutions"]
    ]
    numbered = pl.concat(cells).with_row_index("solution_row").collect(engine="streaming")
    return numbered.sort("question_id", "solution_address", "sample", "solution_id", "text")


def _with_solutions(rollouts: pl.DataFrame, solutions: pl.DataFrame) -> pl.DataFrame:
    good = pl.col("solution_failure").is_null() & pl.col("has_text")
    wanted = ["solution_row", "solution_address", "solution_id"]
    usable = solutions.filter(good).select(*_KEY, *wanted)
    same_sample = usable.unique(_KEY, keep="first", maintain_order=True)
    any_sample = usable.unique("question_id", keep="first", maintain_order=True).drop("sample")
    failed = solutions.filter(~good).select("question_id", "solution_failure")
    first_failed = failed.unique("question_id", keep="first", maintain_order=True)
    joined = rollouts.join(same_sample, on=_KEY, how="left", maintain_order="left")
    joined = joined.join(
        any_sample, on="question_id", how="left", suffix="_other", maintain_order="left"
    )
    joined = joined.join(first_failed, on="question_id", how="left", maintain_order="left")
    # the three columns of one solution are null together
    return joined.with_columns(
        pl.when(pl.col("solution_row").is_null())
        .then(pl.col(f"{name}_other"))
        .otherwise(pl.col(name))
        .alias(name)
        for name in wanted
    ).select(
        *(*_KEY, "rollout_row", "question_row", *wanted),
        *("failure", "has_trace", "solution_failure"),
    )


def _problem() -> pl.Expr:
    """Why a rollout cannot be rewritten; null if it can."""
    failed = pl.col("solution_failure").fill_null("it has no text")
    return (
        pl.when(pl.col("failure").is_not_null())
        .then(pl.concat_str(pl.lit("rollout_failed: "), pl.col("failure")))
        .when(~pl.col("has_trace"))
        .then(pl.lit("rollout_failed: it has no trace"))
        .when(pl.col("solution_row").is_not_null())
        .then(None)
        .when(pl.col("solution_failure").is_not_null())
        .then(pl.concat_str(pl.lit("solution_failed: "), failed))
        .otherwise(pl.lit("no_solution"))
    )
