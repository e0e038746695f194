"""Rollouts with their questions and verdicts, in batches, for the page and `mbt view`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import CORRECTNESS, VERIFIED
from mbt_cli.core.rows import replies_without_text
from mbt_cli.core.traces import is_cut, paragraphs, trace_of
from mbt_cli.errors import ArtifactError, UsageError
from mbt_cli.interfaces import Judge, Verifier
from mbt_cli.plugins import benchmark_of, judge_of
from mbt_cli.store.cells import FILES
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import Upstream, read_rows, upstream

SIGNS = (
    "judged",  # a judge's verdict on the answer was parsed
    "judge_right",
    "matched",  # the verifier has a value
    "match_right",
    "cut",
    "failed",
    "votes_differ",
    "unread",  # a verdict was not parsed
    "no_answer",
)
"""Bit k of a trace's signs is set if `SIGNS[k]` holds."""

_OF_STEP = (
    *("step", "name", "role", "model", "parents", "trainable", "read", "is_unread", "is_answer"),
    *("reply", "finish_reason", "prompt_tokens", "completion_tokens", "failure"),
)
_INHERITED = "rollout_failed"
"""Start of the failure of a verdict on a failed rollout."""
_COMMON_COLUMNS = ("reply", "failure", "vote", "asked")


def page_trace(
    row: Mapping[str, Any],
    verdicts: Mapping[int, Sequence[Mapping[str, Any]]],
    steps: Sequence[Mapping[str, Any]] = (),
) -> Json:
    """The data of a rollout on the page.

    Args:
        row: A row of `rows.ROLLOUTS` without `messages`.
        verdicts: Number of a judge to its verdicts on this rollout, one per vote.
        steps: Rows of `rows.STEPS`, if a program made the rollout.
    """
    trace = trace_of(row["reasoning"], row["reply"])
    reply = row["reply"] or ""
    before, found, after = reply.partition(trace) if trace else (reply, "", "")
    return {
        "paragraphs": paragraphs(trace),
        "thinks": bool((row["reasoning"] or "").strip()),
        # the raw reply is `before`, then the trace if `within`, then `after`
        "before": before,
        "within": bool(found),
        "after": after,
        "answer": row["answer"],
        "finish": row["finish_reason"],
        "failure": row["failure"],
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "reasoning_tokens": row["reasoning_tokens"],
        "seed": None if row["seed"] is None else str(row["seed"]),  # too large for JavaScript
        "attempts": row["attempts"],
        "seconds": row["seconds"],
        "key": row["request_key"],
        "verdicts": [_verdict(judge, v) for judge, votes in verdicts.items() for v in votes],
        **({"steps": [_step(step) for step in steps]} if steps else {}),
    }


def _step(step: Mapping[str, Any]) -> Json:
    shown = {name: step[name] for name in _OF_STEP}
    return {**shown, "path": [int(part) for part in step["path"].split(".")]}


def _verdict(judge: int, verdict: Mapping[str, Any]) -> Json:
    is_rule = verdict.get("parts") is not None
    return {
        "judge": judge,
        "vote": verdict["vote"],
        "asked": verdict.get("asked", True),
        "reply": None if is_rule else verdict["reply"],  # of a rule it is what `said` has
        "failure": verdict["failure"],
        "said": {key: value for key, value in verdict.items() if key not in _COMMON_COLUMNS},
    }


def signs(
    row: Mapping[str, Any],
    value: float | None,
    verdicts: Sequence[Mapping[str, Any]],
    answer_votes: Sequence[tuple[Any, float]] = (),
) -> int:
    """`SIGNS` of one rollout as bits.

    For the judges, an answer is right if the mean of the parsed votes is above one half, and wrong
    if it is below.

    Args:
        row: A rollout.
        value: Value of the verifier; None without one.
        verdicts: All verdicts on it.
        answer_votes: The parsed votes on its answer, as verdict and as number from 0 to 1.
    """
    right, half = sum(number for _, number in answer_votes), len(answer_votes) / 2
    has_no_text = (row["failure"] or "").startswith(rows.NO_TEXT)
    held = {
        "judged": right != half,
        "judge_right": right > half,
        "matched": value is not None,
        "match_right": value == 1,
        "cut": is_cut(row["finish_reason"]),
        "failed": row["failure"] is not None and not has_no_text,
        "votes_differ": len({said for said, _ in answer_votes}) > 1,
        "unread": any(v["failure"] and not v["failure"].startswith(_INHERITED) for v in verdicts),
        "no_answer": has_no_text or not (row["answer"] or "").strip(),
    }
    return sum(1 << bit for bit, sign in enumerate(SIGNS) if held[sign])


_BATCH_ROWS = 2_000
_KEY = ["question_id", "sample"]
_HIDDEN = tuple(name for name in rows.REPLY if name not in ("reply", "failure"))


@dataclass(frozen=True, slots=True)
class TraceCell:
    """A rollout cell with its questions and verdicts.

    Args:
        judged: The judge cells with verdicts on it.
    """

    study_folder: Path
    rollouts: Lineage
    questions: Lineage
    judged: Sequence[Lineage] = ()

    @property
    def judges(self) -> list[str]:
        """Name of the judge of each cell in `judged`."""
        return [axes_of(cell.address)["judge"] for cell in self.judged]

    @property
    def judge_plugins(self) -> list[Judge | None]:
        """The judge of each cell in `judged`; None if its plug-in is not loaded."""
        return [judge_of(cell.spec) for cell in self.judged]

    def folder(self, cell: Lineage) -> Path:
        """Folder of a cell of the study."""
        return self.study_folder / cell.address


@dataclass(frozen=True, slots=True)
class Trace:
    """One rollout.

    Args:
        row: The rollout without its messages, with the `position` of its question.
        signs: `SIGNS` as bits.
        verdicts: Number of the judge cell to its verdict rows, one per vote.
        steps: The requests of its program, if it has one with several.
    """

    row: Mapping[str, Any]
    signs: int
    verdicts: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()


def trace_cells(study_folder: Path, found: Upstream) -> list[TraceCell]:
    """Every rollout cell in `found` whose questions exist, by address."""
    judged: dict[str, list[Lineage]] = {}
    for cell in found.of_kind("judge"):
        for rollouts in found.inputs(cell, "rollout"):
            judged.setdefault(rollouts.address, []).append(cell)
    return [
        TraceCell(study_folder, cell, questions, judged.get(cell.address, []))
        for cell in found.of_kind("rollout")
        for questions in found.inputs(cell, "questions")[:1]
    ]


def trace_cells_below(study_folder: Path, addresses: Sequence[str]) -> list[TraceCell]:
    """The rollout cells that some finished cells were made from."""
    return trace_cells(study_folder, upstream(study_folder, addresses))


def read_question_rows(cell: TraceCell) -> pl.LazyFrame:
    """`rows.QUESTIONS` of a cell, in their official order."""
    return read_rows(cell.folder(cell.questions), cell.questions).sort("position")


def read_traces(
    cell: TraceCell, limit: int | None, questions: Sequence[str] | None = None
) -> Iterator[list[Trace]]:
    """Rollouts by question and sample, in batches.

    Args:
        cell: The cell to read.
        limit: Maximum number of rollouts; None for all.
        questions: Ids of questions; None for all.

    Raises:
        ArtifactError: A file does not match its lineage.
    """
    rollouts = read_rows(cell.folder(cell.rollouts), cell.rollouts)
    spec = cell.questions.spec if isinstance(cell.questions.spec, dict) else {}
    verifier = benchmark_of(spec).verifier
    more = ["metadata"] if verifier.reads_metadata else []
    asked = read_question_rows(cell).select(
        "question_id", "position", *more, gold_answer="answer", gold_aliases="answer_aliases"
    )
    if questions is not None:
        asked = asked.filter(pl.col("question_id").is_in(list(questions)))
    keys = rollouts.select(_KEY).join(asked, on="question_id").sort("position", "sample")
    wanted = (keys if limit is None else keys.head(limit)).collect()
    verdicts = [_verdict_rows(cell, judged) for judged in cell.judged]
    for batch in wanted.iter_slices(_BATCH_ROWS):
        frame = rollouts.drop("messages").join(batch.lazy(), on=_KEY).collect()
        made = list(
            _traces(frame.sort("position", "sample"), verdicts, cell.judge_plugins, verifier)
        )
        steps = _steps(cell, batch)
        if steps:
            keys_of = ((trace, tuple(trace.row[name] for name in _KEY)) for trace in made)
            made = [replace(trace, steps=steps.get(key, ())) for trace, key in keys_of]
        yield made


def _steps(
    cell: TraceCell, keys: pl.DataFrame
) -> Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]:
    """Question and sample to the steps of that rollout; empty if no program made several."""
    name = f"{FILES}/{rows.STEPS_FILE}"
    if name not in cell.rollouts.files:
        return {}
    path = cell.folder(cell.rollouts) / name
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    try:
        steps = pl.scan_parquet(path, glob=False).select(*_KEY, "path", *_OF_STEP)
        frame = steps.join(keys.lazy().select(_KEY), on=_KEY, how="semi").collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ArtifactError(f"`{path}` cannot be read: {error}") from error
    for row in frame.sort(*_KEY, "step").iter_rows(named=True):
        found.setdefault((row["question_id"], row["sample"]), []).append(row)
    return found


def _traces(
    frame: pl.DataFrame,
    verdicts: Sequence[pl.LazyFrame],
    judges: Sequence[Judge | None],
    verifier: Verifier,
) -> Iterator[Trace]:
    keys = frame.select(_KEY)
    judged = [of_judge.join(keys.lazy(), on=_KEY).collect() for of_judge in verdicts]
    values = _verified(keys, judged, judges, verifier)
    if values is None and verifier.runs_programs:
        values = [None] * frame.height
    elif values is None:
        try:
            values = verifier.values(replies_without_text(frame)).to_list()
        except UsageError:  # a package of the verifier is not installed
            values = [None] * frame.height
    if "metadata" in frame.columns:
        frame = frame.drop("metadata")
    votes = [_by_rollout(of_judge) for of_judge in judged]
    answer_votes: dict[tuple[str, int], list[tuple[Any, float]]] = {}
    for of_judge, judge in zip(judged, judges, strict=True):
        if judge is not None and judge.quantity == CORRECTNESS:
            scale = judge.verdict_scale()
            parsed = of_judge.select(*_KEY, scale.column, number=scale.share()).drop_nulls("number")
            for question, sample, said, number in parsed.iter_rows():
                answer_votes.setdefault((question, sample), []).append((said, number))
    for row, value in zip(frame.iter_rows(named=True), values, strict=True):
        key = (row["question_id"], row["sample"])
        own = {number: found[key] for number, found in enumerate(votes) if key in found}
        every = [vote for found in own.values() for vote in found]
        yield Trace(row, signs(row, value, every, answer_votes.get(key, ())), own)


def _verified(
    keys: pl.DataFrame,
    judged: Sequence[pl.DataFrame],
    judges: Sequence[Judge | None],
    own: Verifier,
) -> list[float | None] | None:
    """Values of the rollouts by a judge that is a verifier, preferably the benchmark's own.

    None without one.
    """
    rules = [
        (judge.rule(own) is not own, number, judge)
        for number, judge in enumerate(judges)
        if judge is not None and judge.quantity == VERIFIED
    ]
    if not rules:
        return None
    _, number, judge = min(rules, key=lambda rule: rule[:2])
    found = judged[number].select(*_KEY, judge.verdict_scale().share().alias("value"))
    return keys.join(found, on=_KEY, how="left", maintain_order="left")["value"].to_list()


def _verdict_rows(cell: TraceCell, judged: Lineage) -> pl.LazyFrame:
    found = read_rows(cell.folder(judged), judged)
    return found.drop(_HIDDEN, strict=False)


def _by_rollout(frame: pl.DataFrame) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    order = [name for name in (*_KEY, "vote", "step") if name in frame.columns]
    for row in frame.sort(order).iter_rows(named=True):
        key = (row.pop("question_id"), row.pop("sample"))
        found.setdefault(key, []).append(row)
    return found
