"""The rows that a train stage learns from: prompts and completions, each with its source."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.measures import Verdicts
from mbt_cli.core.questions import documents_text
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import cut_column, think_block
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Verifier
from mbt_cli.stages.base import Keep, LoadedInput, Work
from mbt_cli.stages.inputs import kept, verdicts_on

Target = Literal["reply", "trace"]

_KEY = ("source", "question_id", "sample", "trace_id")
_ROWS_AT_ONCE = 2_000
_ROUNDING = 1e-9


def question_examples(work: Work) -> pl.DataFrame:
    """The questions of the cell as `rows.EXAMPLES` without completions."""
    template = work.resolution.templates["prompt"]
    found = []
    for cell in work.inputs.get("questions", ()):
        for question in cell.rows.collect().iter_rows(named=True):
            example = _example(template, question, question, cell.address)
            found.append({**example, "sample": 0, "trace_id": 0, "thinking": "", "completion": ""})
    if not found:
        raise StageError(f"`{work.resolution.address}` has no questions to ask")
    return pl.DataFrame(found, schema=rows.EXAMPLES).sort(_KEY)


def chosen_examples(
    work: Work,
    *,
    target: Target,
    keep: Keep | None = None,
    max_samples: int | None = None,
    max_traces: int | None = None,
    weights: Mapping[str, float] | None = None,
    field: str = "data",
) -> pl.DataFrame:
    """Every row of an input as `rows.EXAMPLES`; rows that are not trained on have a reason.

    Args:
        work: The running cell.
        target: What the model learns to write.
        keep: Which rollouts are trained on.
        max_samples: Maximum number of samples per question.
        max_traces: Maximum number of traces per sample.
        weights: Stage to its share of the rows.
        field: The input.

    Raises:
        StageError: The question of a row is missing, a row exists twice, or no row is left.
    """
    cells = [_examples_of(work, cell, target, keep) for cell in work.inputs[field]]
    found = _limited(pl.concat(cells).sort(_KEY), max_samples, max_traces)
    if weights:
        found = mixed(found, weights, work.resolution.seed)
    if not found["dropped"].is_null().any():
        reasons = found["dropped"].value_counts(sort=True).rows()[:3]
        counts = "; ".join(f"{count} x {reason}" for reason, count in reasons)
        raise StageError(
            f"`{work.resolution.address}`: none of {found.height} rows is trainable ({counts})",
            hint=f"check the rows of its `{field}`, or change `keep`",
        )
    return found


def held_out(
    examples: pl.DataFrame, share: float, limit: int | None, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Examples with some of their questions held out, and the rows of those questions.

    Args:
        examples: `rows.EXAMPLES`.
        share: Fraction of the questions that have a row to train on.
        limit: Maximum number of questions.
        seed: Equal seeds draw equal questions, in any order of the rows.

    Raises:
        StageError: There are fewer than two questions.
    """
    key = _question_key()
    usable = examples.filter(pl.col("dropped").is_null())
    questions = usable.select(key).unique().to_series().to_list()
    if len(questions) < 2:
        raise StageError(
            f"`validation` cannot hold out questions: there {_are(len(questions), 'question')}",
            hint="leave out `validation`, or train on more questions",
        )
    questions.sort(key=lambda question: sha256_of([seed, "validation", question]))
    count = min(max(1, round(share * len(questions))), len(questions) - 1, limit or len(questions))
    drawn = pl.Series(questions[:count], dtype=pl.String)
    found = usable.filter(key.is_in(drawn.implode()))
    return without_questions(examples, found), found


def without_questions(examples: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Examples whose question, or an equal prompt, is held out are dropped."""
    key = _question_key()
    is_held = key.is_in(held.select(key).unique().to_series().implode())
    prompt = pl.col("messages").list.last().struct.field("content")
    is_held |= prompt.is_in(held.select(prompt).unique().to_series().implode())
    reason = pl.when(pl.col("dropped").is_null() & is_held).then(pl.lit("held_out"))
    return examples.with_columns(reason.otherwise("dropped").alias("dropped"))


def _question_key() -> pl.Expr:
    """Benchmark, split and id of an example's question, as text."""
    about = pl.col("source").str.extract("/(benchmark=[^/]+/split=[^/]+)").fill_null("")
    return pl.concat_str(about, pl.lit(" "), "question_id")


def _are(count: int, noun: str) -> str:
    return f"is 1 {noun}" if count == 1 else f"are {count} {noun}s"


def _examples_of(work: Work, cell: LoadedInput, target: Target, keep: Keep | None) -> pl.DataFrame:
    questions = _questions_of(work, cell)
    gold = questions.rows.select("question_id", gold_answer="answer", gold_aliases="answer_aliases")
    joined = (
        cell.rows.drop("messages")
        .join(gold, on="question_id", how="left", maintain_order="left")
        .collect()
    )
    lost = joined.filter(pl.col("gold_answer").is_null())
    if lost.height:
        raise StageError(
            f"{lost.height} rows of `{cell.address}` have no question in `{questions.address}`; "
            f"first: `{lost['question_id'][0]}`"
        )
    if "trace_id" not in joined.columns:
        joined = joined.with_columns(pl.lit(0, dtype=pl.Int64).alias("trace_id"))
    twice = joined.filter(pl.struct(_KEY[1:]).is_duplicated())
    if twice.height:
        raise StageError(
            f"`{cell.address}` has two rows with the same key, question `{twice['question_id'][0]}`"
        )
    verifier = work.resolution.verifier_of(cell.axes)
    dropped = _dropped(joined, target, keep, verifier, verdicts_on(work, cell))
    batches = _batches(work, cell, questions, joined.with_columns(dropped), target)
    return pl.concat(batches)


def _questions_of(work: Work, cell: LoadedInput) -> LoadedInput:
    for questions in work.inputs.get("questions", ()):
        if all(questions.axes[axis] == cell.axes.get(axis) for axis in ("benchmark", "split")):
            return questions
    raise StageError(f"`{cell.address}` has no benchmark and split, so its questions are unknown")


def _dropped(
    joined: pl.DataFrame,
    target: Target,
    keep: Keep | None,
    verifier: Verifier,
    verdicts: Verdicts | None,
) -> pl.Series:
    """Why a row is not trained on; null for rows that are."""
    text = pl.col("trace" if target == "trace" else "reply").fill_null("").str.strip_chars()
    reason = (
        pl.when(pl.col("failure").is_not_null())
        .then(pl.lit("failed: ") + pl.col("failure").str.split(":").list.first())
        .when(cut_column())
        .then(pl.lit("truncated"))
        .when(text == "")
        .then(pl.lit("empty"))
    )
    if keep is not None and target == "reply":
        stays = kept(joined, keep, verifier=verifier, verdicts=verdicts).select(_KEY[1:])
        joined = joined.join(
            stays.with_columns(pl.lit(True).alias("stays")),
            on=_KEY[1:],
            how="left",
            maintain_order="left",
        )
        reason = reason.when(pl.col("stays").is_null()).then(pl.lit(f"not {keep}"))
    return joined.select(reason.alias("dropped"))["dropped"]


def _batches(
    work: Work, cell: LoadedInput, questions: LoadedInput, joined: pl.DataFrame, target: Target
) -> Iterator[pl.DataFrame]:
    template = work.resolution.templates["prompt"]
    wanted = ("question_id", "question", "context", "answer", "answer_aliases")
    asked = questions.rows.select(wanted)
    for batch in joined.iter_slices(_ROWS_AT_ONCE):
        ids = batch["question_id"].unique().implode()
        own = asked.filter(pl.col("question_id").is_in(ids)).collect()
        by_id = {question["question_id"]: question for question in own.iter_rows(named=True)}
        examples = []
        for row in batch.iter_rows(named=True):
            thinking, text = completion_of(target, row)
            example = _example(template, by_id[row["question_id"]], row, cell.address)
            examples.append({**example, "thinking": thinking, "completion": text})
        yield frame_of_rows(examples, rows.EXAMPLES)


def _example(
    template: Template, question: Mapping[str, Any], row: Mapping[str, Any], source: str
) -> dict[str, Any]:
    documents = documents_text(question["context"] or ())
    values = {"question": question["question"], "documents": documents}
    return {
        "source": source,
        "question_id": question["question_id"],
        "sample": row.get("sample"),
        "trace_id": row.get("trace_id"),
        "messages": list(template.fill(values)),
        "references": [question["answer"], *(question["answer_aliases"] or ())],
        "dropped": row.get("dropped"),
    }


def completion_of(target: Target, row: Mapping[str, Any]) -> tuple[str, str]:
    """Thinking and text that the model learns to write; thinking may be empty.

    A reply keeps its thinking, whether the server has separated it from the text or not. A trace
    is followed by the gold answer. The model's own chat template decides how both are written.

    Example:
        >>> completion_of("trace", {"trace": "We look.", "gold_answer": "Oslo"})
        ('We look.', '<answer>Oslo</answer>')
        >>> completion_of("reply", {"reply": "<think>We look.</think>Oslo", "reasoning": None})
        ('We look.', 'Oslo')
    """
    if target == "trace":
        return (row["trace"] or "").strip(), f"<answer>{row['gold_answer']}</answer>"
    reply, reasoning = row["reply"] or "", (row["reasoning"] or "").strip()
    if block := think_block(reply):
        return block[0], block[1].lstrip()
    return (reasoning, reply.lstrip()) if reasoning else ("", reply)


def _limited(
    examples: pl.DataFrame, max_samples: int | None, max_traces: int | None
) -> pl.DataFrame:
    """Drop all but the lowest samples of a question and the lowest traces of a sample."""
    stays = pl.col("dropped").is_null()
    over = pl.lit(False)
    if max_samples is not None:
        rank = pl.when(stays).then("sample").rank("dense").over("source", "question_id")
        over |= rank > max_samples
    if max_traces is not None:
        number = pl.when(stays).then("trace_id").rank("dense")
        over |= number.over("source", "question_id", "sample") > max_traces
    reason = pl.when(stays & over.fill_null(False)).then(pl.lit("beyond_maximum"))
    return examples.with_columns(reason.otherwise("dropped").alias("dropped"))


def mixed(examples: pl.DataFrame, weights: Mapping[str, float], seed: int) -> pl.DataFrame:
    """Draw the largest mixture in which the stages have their shares; other rows are dropped.

    Args:
        examples: `rows.EXAMPLES`.
        weights: Stage to its share; only their ratios count.
        seed: Equal seeds draw equal rows, in any order of the rows.
    """
    stage = pl.col("source").str.split("/").list.first()
    usable = examples.filter(pl.col("dropped").is_null())
    counts = dict(usable.group_by(stage.alias("stage")).len().iter_rows())
    scale = min(counts.get(name, 0) / weight for name, weight in weights.items() if weight > 0)
    drawn = []
    for name, weight in weights.items():
        keys = usable.filter(stage == name).select(_KEY).rows()
        keys.sort(key=lambda key: sha256_of([seed, "mix", *key]))
        drawn += keys[: int(weight * scale + _ROUNDING)]
    chosen = pl.DataFrame(drawn, schema=usable.select(_KEY).schema, orient="row").with_columns(
        pl.lit(True).alias("drawn")
    )
    joined = examples.join(chosen, on=_KEY, how="left", maintain_order="left")
    left_out = pl.col("dropped").is_null() & pl.col("drawn").is_null()
    dropped = pl.when(left_out).then(pl.lit("not_drawn")).otherwise("dropped").alias("dropped")
    return joined.with_columns(dropped).drop("drawn")
