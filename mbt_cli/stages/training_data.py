"""What a train stage learns from: prompts and completions, joined by key, each with its source."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.questions import documents_text
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import cut_column
from mbt_cli.errors import StageError
from mbt_cli.stages.base import Keep, LoadedInput, Work
from mbt_cli.stages.inputs import kept

_KEY = ("source", "question_id", "sample", "trace_id")
_ROWS_AT_ONCE = 2_000
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows a stage trains on."""

    target: Literal["reply", "trace"]
    keep: Keep | None = None
    max_samples: int | None = None
    max_traces: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)


def chosen_examples(work: Work, choice: Choice) -> pl.DataFrame:
    """Every row of the data as `rows.EXAMPLES`, those that are not trained on with the reason.

    Raises:
        StageError: A row's question is not there, a row stands twice, or nothing is left.
    """
    cells = [_examples_of(work, cell, choice) for cell in work.inputs["data"]]
    found = pl.concat(cells).sort(_KEY)
    found = _limited(found, choice)
    if choice.weights:
        found = mixed(found, choice.weights, work.resolution.seed)
    if not found["dropped"].is_null().any():
        reasons = found["dropped"].value_counts(sort=True).rows()
        told = "; ".join(f"{count} x {reason}" for reason, count in reasons[:3])
        raise StageError(
            f"`{work.resolution.address}`: none of {found.height} rows can be trained on ({told})",
            hint="look at the rows of its `data`, or take another `keep`",
        )
    return found


def asked_questions(work: Work) -> pl.DataFrame:
    """The questions that reinforcement asks, as `rows.EXAMPLES` without completions."""
    template = work.resolution.templates["prompt"]
    found = []
    for cell in work.inputs.get("questions", ()):
        for question in cell.rows.collect().iter_rows(named=True):
            made = _row(template, question, question, cell.address)
            found.append({**made, "sample": 0, "trace_id": 0, "completion": ""})
    if not found:
        raise StageError(f"`{work.resolution.address}` has no questions to ask")
    return pl.DataFrame(found, schema=rows.EXAMPLES).sort(_KEY)


def completion_of(target: Literal["reply", "trace"], row: Mapping[str, Any]) -> str:
    r"""What the model is to say.

    A reply keeps its thinking: where the server took it out of the text, it is put back in front,
    as the model wrote it. A trace is followed by the gold answer.

    Example:
        >>> completion_of("trace", {"trace": "We look.", "gold_answer": "Oslo"})
        '<think>\nWe look.\n</think>\n\n<answer>Oslo</answer>'
        >>> completion_of("reply", {"reply": "Oslo", "reasoning": "We look."})
        '<think>\nWe look.\n</think>\n\nOslo'
    """
    if target == "trace":
        trace = (row["trace"] or "").strip()
        answer = f"<answer>{row['gold_answer']}</answer>"
        return f"<think>\n{trace}\n</think>\n\n{answer}" if trace else ""
    reply, reasoning = row["reply"] or "", (row["reasoning"] or "").strip()
    if not reply.strip() or not reasoning or "</think>" in reply:
        return reply
    return f"<think>\n{reasoning}\n</think>\n\n{reply.lstrip()}"


def mixed(examples: pl.DataFrame, weights: Mapping[str, float], seed: int) -> pl.DataFrame:
    """The largest mix in which stages have their shares, drawn by the seed; the rest is dropped.

    Args:
        examples: `rows.EXAMPLES`.
        weights: Stage to its share; only their ratios count.
        seed: Equal seeds draw equal rows, whatever their order.
    """
    stage = pl.col("source").str.split("/").list.first()
    usable = examples.filter(pl.col("dropped").is_null())
    counts = dict(usable.group_by(stage.alias("stage")).len().iter_rows())
    scale = min(counts.get(name, 0) / weight for name, weight in weights.items() if weight > 0)
    schema = usable.select(_KEY).schema
    left: list[pl.DataFrame] = []
    for name, weight in weights.items():
        keys = usable.filter(stage == name).select(_KEY).rows()
        keys.sort(key=lambda key: sha256_of([seed, "mix", *key]))
        drawn_keys = keys[: int(weight * scale + _ROUNDING)]
        left.append(pl.DataFrame(drawn_keys, schema=schema, orient="row"))
    drawn = pl.concat(left).with_columns(pl.lit(True).alias("drawn"))
    joined = examples.join(drawn, on=_KEY, how="left", maintain_order="left")
    out = pl.col("dropped").is_null() & pl.col("drawn").is_null()
    dropped = pl.when(out).then(pl.lit("not_drawn")).otherwise("dropped").alias("dropped")
    return joined.with_columns(dropped).drop("drawn")


def _examples_of(work: Work, cell: LoadedInput, choice: Choice) -> pl.DataFrame:
    questions = _questions_about(work, cell)
    gold = questions.rows.select("question_id", gold_answer="answer", gold_aliases="answer_aliases")
    joined = (
        cell.rows.drop("messages")
        .join(gold, on="question_id", how="left", maintain_order="left")
        .collect()
    )
    lost = joined.filter(pl.col("gold_answer").is_null())
    if lost.height:
        raise StageError(
            f"{lost.height} rows of `{cell.address}` have no question in `{questions.address}`, "
            f"the first is `{lost['question_id'][0]}`"
        )
    if "trace_id" not in joined.columns:
        joined = joined.with_columns(pl.lit(0, dtype=pl.Int64).alias("trace_id"))
    twice = joined.filter(pl.struct(_KEY[1:]).is_duplicated())
    if twice.height:
        raise StageError(f"`{cell.address}` holds `{twice['question_id'][0]}` twice, by its key")
    joined = joined.with_columns(_dropped(joined, choice, _benchmark_kind(questions)))
    return pl.concat(_batches(work, cell, questions, joined, choice))


def _batches(
    work: Work, cell: LoadedInput, questions: LoadedInput, joined: pl.DataFrame, choice: Choice
) -> Iterator[pl.DataFrame]:
    template = work.resolution.templates["prompt"]
    wanted = ("question_id", "question", "context", "answer", "answer_aliases")
    asked = questions.rows.select(wanted)
    for batch in joined.iter_slices(_ROWS_AT_ONCE):
        ids = batch["question_id"].unique().implode()
        own = asked.filter(pl.col("question_id").is_in(ids)).collect()
        by_id = {question["question_id"]: question for question in own.iter_rows(named=True)}
        made = [
            {
                **_row(template, by_id[row["question_id"]], row, cell.address),
                "completion": completion_of(choice.target, row),
            }
            for row in batch.iter_rows(named=True)
        ]
        yield frame_of_rows(made, rows.EXAMPLES)


def _row(
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


def _dropped(joined: pl.DataFrame, choice: Choice, benchmark: str) -> pl.Series:
    """Why each row is left out, null for those that stay."""
    text = pl.col("trace" if choice.target == "trace" else "reply").fill_null("").str.strip_chars()
    reason = (
        pl.when(pl.col("failure").is_not_null())
        .then(pl.lit("failed: ") + pl.col("failure").str.split(":").list.first())
        .when(cut_column())
        .then(pl.lit("truncated"))
        .when(text == "")
        .then(pl.lit("empty"))
    )
    if choice.keep is not None and choice.target == "reply":
        stays = kept(joined, choice.keep, benchmark=benchmark).select(_KEY[1:])
        joined = joined.join(
            stays.with_columns(pl.lit(True).alias("stays")),
            on=_KEY[1:],
            how="left",
            maintain_order="left",
        )
        reason = reason.when(pl.col("stays").is_null()).then(pl.lit(f"not {choice.keep}"))
    return joined.select(reason.alias("dropped"))["dropped"]


def _limited(examples: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """The lowest samples and traces that stay, at most so many; the others are dropped."""
    stays = pl.col("dropped").is_null()
    over = pl.lit(False)
    if choice.max_samples is not None:
        rank = pl.when(stays).then("sample").rank("dense").over("source", "question_id")
        over |= rank > choice.max_samples
    if choice.max_traces is not None:
        number = pl.when(stays).then("trace_id").rank("dense")
        over |= number.over("source", "question_id", "sample") > choice.max_traces
    reason = pl.when(stays & over.fill_null(False)).then(pl.lit("beyond_maximum"))
    return examples.with_columns(reason.otherwise("dropped").alias("dropped"))


def _questions_about(work: Work, cell: LoadedInput) -> LoadedInput:
    own: Sequence[LoadedInput] = [
        q
        for q in work.inputs.get("questions", ())
        if all(q.axes[axis] == cell.axes.get(axis) for axis in ("benchmark", "split"))
    ]
    if not own:
        raise StageError(f"`{cell.address}` has no benchmark and split, so no questions are known")
    return own[0]


def _benchmark_kind(questions: LoadedInput) -> str:
    spec = questions.lineage.spec if questions.lineage is not None else {}
    kind = dict(spec.get("benchmark") or {}).get("kind", "")
    return str(kind)
