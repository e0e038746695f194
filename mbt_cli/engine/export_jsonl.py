"""Export of scores as JSON lines: completions, results and numbers, a folder for each score cell.

Rows are read and written in slices of whole questions, so that a cell may be larger than memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import TEXT, Json
from mbt_cli.core.judge_scales import VERIFIED
from mbt_cli.core.measures import JUDGED_BY
from mbt_cli.core.rows import NO_TEXT
from mbt_cli.core.secrets import HELD, mask_json
from mbt_cli.core.sync import sync
from mbt_cli.errors import ArtifactError, MissingInputError, UsageError
from mbt_cli.registry import JUDGES
from mbt_cli.scores.at_k import pass_at_k, powers_of_two
from mbt_cli.scores.samples import Samples, Values, samples_of
from mbt_cli.stages.inputs import RowReader
from mbt_cli.store.cells import FILES
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.lineage import LINEAGE, Lineage, read_lineage
from mbt_cli.store.reading import own_rollouts, read_parquet_file, read_rows, require_lineage
from mbt_cli.store.reading import upstream as cells_behind

COMPLETIONS = "completions.jsonl"
RESULTS = "results.jsonl"
SUMMARY = "summary.json"
BY_PROMPT = "verification_results.jsonl"
PASS_AT_K = "pass_at_k.json"
LAYOUT: Mapping[str, str] = {
    COMPLETIONS: "a line for each rollout: `question_id`, `sample`, `prompt` (messages, or a "
    "text), `completion`, `reasoning`, `finish_reason`, token counts, `failure`",
    RESULTS: "the same with `answer`, `gold_answer` and, below `verdicts`, for each verifier "
    "`value`, `passed`, `passed_loose`, `parts`, `output`, `failure`",
    SUMMARY: "the model, benchmark and split, every metric with `value`, `low`, `high`, `n`, "
    "`failed`, and the usual names, such as `accuracy` and `pass@1`, beside them",
    BY_PROMPT: "with several samples: a line for each prompt with all `completions`, and the "
    "`scores` of each verifier in the same order",
    PASS_AT_K: "with several samples: `pass@k` of each verifier",
}
"""Name of a file to its content."""

_VERIFIER = "verifier"
"""The name of a judge that is the benchmark's own verifier."""
_PASS_AT = "pass@"
_INSTRUCTIONS = "instruction_accuracy"
_USUAL = {
    "verified": "accuracy",
    "verified_loose": "prompt_level_loose_acc",
    _INSTRUCTIONS: "inst_level_strict_acc",
    f"{_INSTRUCTIONS}_loose": "inst_level_loose_acc",
}
"""Metric to its name in the files of lm-evaluation-harness and alike."""
_PROMPT_LEVEL = "prompt_level_strict_acc"
_SLICE_CHARACTERS = 8 << 20
_FIRST_ROWS, _MOST_ROWS = 100, 2_000
_KEY = ["question_id", "sample"]
_OF_REPLY = (
    *("messages", "reply", "reasoning", "finish_reason"),
    *("prompt_tokens", "completion_tokens", "reasoning_tokens", "failure", "answer"),
)
_OF_VERDICT = ("value", "passed", "passed_loose", "parts", "output", "failure")


@dataclass(frozen=True, slots=True)
class ScoredCell:
    """A score cell and what it was made from.

    Args:
        place: Where its files go, below the folder of the export.
        study: Folder of the study.
        score: The cell itself.
        rollouts: The rollouts that it scores.
        questions: Their questions.
        verdicts: Name of a verifier's judge to its verdicts on them.
    """

    place: Path
    study: Path
    score: Lineage
    rollouts: Lineage
    questions: Lineage
    verdicts: Mapping[str, Lineage]

    @property
    def main(self) -> str | None:
        """The judge whose numbers need no suffix: the benchmark's own verifier, or the only one."""
        if _VERIFIER in self.verdicts:
            return _VERIFIER
        return next(iter(self.verdicts)) if len(self.verdicts) == 1 else None

    @property
    def failed(self) -> int:
        """Replies that never came."""
        return sum(n for reason, n in self.rollouts.failures.items() if reason not in NO_TEXT)

    def folder(self, cell: Lineage) -> Path:
        """Folder of a cell of the study."""
        return self.study / cell.address

    def summary(self) -> pl.DataFrame:
        """Its numbers, `rows.SUMMARY`."""
        where = self.folder(self.score)
        return read_parquet_file(where, f"{FILES}/summary.parquet", self.score).collect()


def scored_cells(below: Path, cells: Sequence[Path]) -> list[ScoredCell]:
    """The score cells among finished cells.

    Args:
        below: The folder that the user named.
        cells: The finished cells at or below it.

    Raises:
        UsageError: There is no score cell.
        MissingInputError: Something that a score read is gone, or changed after it was read.
    """
    lineages = {cell: require_lineage(cell) for cell in cells}
    scores = {cell: found for cell, found in lineages.items() if found.kind == "score"}
    if scores:
        return [_scored(below, cell, found) for cell, found in scores.items()]
    kinds = sorted({found.kind for found in lineages.values()})
    first, found = next(iter(lineages.items()))
    study = _study_of(first, found)
    raise UsageError(
        f"`{below}` has no score cell, only {' and '.join(kinds)} cells; `--jsonl` exports scores",
        hint=f"name the folder of a score stage: mbt export {_score_stage(study)} --jsonl",
    )


def _score_stage(study: Path) -> str:
    """A folder of scores of the study, for a hint."""
    for folder in sorted(study.glob("[!.]*")):
        path = next(folder.glob(f"**/{LINEAGE}"), None)
        found = None if path is None else read_lineage(path.parent)
        if found is not None and found.kind == "score":
            return str(folder)
    return f"{study}/SCORES"


def _scored(below: Path, cell: Path, score: Lineage) -> ScoredCell:
    study = _study_of(cell, score)
    behind = cells_behind(study, [score.address])
    for address in score.inputs:
        is_changed = address in behind.changed
        if is_changed or address in behind.lost:
            what = "has changed since" if is_changed else "no longer exists"
            raise MissingInputError(
                f"`{score.address}` reads `{address}`, which {what}",
                hint="run `mbt run MANIFEST` again, which makes what is missing or old",
            )
    rollouts = own_rollouts(behind, score)
    questions = behind.inputs(rollouts[0], "questions") if rollouts else []
    if len(rollouts) != 1 or len(questions) != 1:
        raise ArtifactError(f"`{cell}` names no rollouts and questions that it was made from")
    verdicts = {
        axes_of(judged.address)["judge"]: judged
        for judged in behind.inputs(score, "judge")
        if rollouts[0].address in judged.inputs and _is_verifier(judged)
    }
    place = cell.relative_to(below)
    return ScoredCell(place, study, score, rollouts[0], questions[0], verdicts)


def _is_verifier(judged: Lineage) -> bool:
    """Whether a rule gave the verdicts; a judge that is not loaded here is not known to."""
    spec = judged.spec if isinstance(judged.spec, dict) else {}
    judge = JUDGES.find(str((spec.get("judge") or {}).get("kind")))
    return judge is not None and judge.quantity == VERIFIED


def _study_of(folder: Path, lineage: Lineage) -> Path:
    return folder.parents[lineage.address.count("/")]


def write_results(cell: ScoredCell, folder: Path) -> None:
    """Write the files of `LAYOUT` into an empty folder.

    Raises:
        ArtifactError: An artifact differs from its lineage, or the folder cannot be written.
        StageError: Two rows of an artifact have the same question and sample.
    """
    into = folder / cell.place
    rows = _Rows(cell)
    has_several = len(rows.order) > len(rows.samples.ids)
    with ExitStack() as files:
        completions = files.enter_context(_Lines(into / COMPLETIONS))
        results = files.enter_context(_Lines(into / RESULTS))
        by_prompt = files.enter_context(_Lines(into / BY_PROMPT)) if has_several else None
        for question, rollouts in rows.questions():
            for rollout in rollouts:
                completions.write(rollout.completion)
                results.write(
                    {
                        **rollout.completion,
                        "answer": rollout.answer,
                        "gold_answer": question["answer"],
                        "verdicts": rollout.verdicts,
                    }
                )
            if by_prompt is not None:
                by_prompt.write(_prompt_line(question, rollouts))
    summary = _summary(cell, rows)
    _write_json(into / SUMMARY, summary)
    if has_several:
        asked = {name: value for name, value in summary.items() if name.startswith(_PASS_AT)}
        _write_json(into / PASS_AT_K, {**_about(cell, rows), **rows.pass_at_k(), **asked})


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A rollout as it is written: secrets are masked."""

    completion: Mapping[str, Json]
    answer: str | None
    verdicts: Mapping[str, Json]
    characters: int
    """Length of all its texts."""


def _prompt_line(question: Mapping[str, Json], rollouts: Sequence[_Rollout]) -> Json:
    first = rollouts[0]
    return {
        "question_id": question["question_id"],
        "prompt": first.completion["prompt"],
        "gold_answer": question["answer"],
        "samples": [rollout.completion["sample"] for rollout in rollouts],
        "completions": [rollout.completion["completion"] for rollout in rollouts],
        "finish_reasons": [rollout.completion["finish_reason"] for rollout in rollouts],
        "scores": {
            judge: [rollout.verdicts[judge]["value"] for rollout in rollouts]
            for judge in first.verdicts
        },
    }


class _Rows:
    """The rollouts of a cell with their verdicts, question by question.

    Attributes:
        samples: Question and sample of each rollout.
        order: Numbers of the rollouts: questions as they come first, each with all its samples.
        values: Name of a judge to the value of its verdict on each rollout, NaN without one.
        passed: The same for `passed`.
    """

    def __init__(self, cell: ScoredCell) -> None:
        self._cell = cell
        rollouts = read_rows(cell.folder(cell.rollouts), cell.rollouts)
        keys = rollouts.select(*_KEY, "failure").collect()
        self.samples: Samples = samples_of(keys)
        question = self.samples.question
        first = np.full(len(self.samples.ids), len(question))
        np.minimum.at(first, question, np.arange(len(question)))
        self.order = np.lexsort((self.samples.sample, first[question]))
        self.values: dict[str, Values] = {}
        self.passed: dict[str, Values] = {}
        self._readers = {"": RowReader(rollouts.select(*_KEY, *_OF_REPLY))}
        self._places: dict[str, pl.Series] = {}
        for judge, judged in cell.verdicts.items():
            verdicts = read_rows(cell.folder(judged), judged)
            found = verdicts.select(*_KEY, "value", "passed").with_row_index("place").collect()
            samples_of(found.select(*_KEY, failure=pl.lit(None)))
            mine = keys.select(_KEY).join(found, on=_KEY, how="left", maintain_order="left")
            self.values[judge] = mine["value"].cast(pl.Float64).fill_null(np.nan).to_numpy()
            self.passed[judge] = mine["passed"].cast(pl.Float64).fill_null(np.nan).to_numpy()
            self._places[judge] = mine["place"]
            self._readers[judge] = RowReader(verdicts.select(_OF_VERDICT))
        gold = read_rows(cell.folder(cell.questions), cell.questions)
        asked = gold.select("question_id", "answer").collect()
        self._answers: dict[str, str | None] = dict(asked.iter_rows())

    def questions(self) -> Iterator[tuple[Mapping[str, Json], list[_Rollout]]]:
        """Each question with its rollouts by sample."""
        numbers = self.samples.question[self.order]
        ends = np.flatnonzero(np.diff(numbers, append=-1)) + 1  # of questions
        begin, most = 0, _FIRST_ROWS
        while begin < len(numbers):
            last = int(np.searchsorted(ends, begin + most, side="right")) - 1
            end = int(ends[last]) if last >= 0 and ends[last] > begin else int(ends[last + 1])
            characters = 0
            for question, rollouts in self._read(self.order[begin:end]):
                yield question, rollouts
                characters += sum(rollout.characters for rollout in rollouts)
            most = int(_SLICE_CHARACTERS * (end - begin) / max(1, characters))
            begin, most = end, min(_MOST_ROWS, most)

    def _read(
        self, numbers: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Mapping[str, Json], list[_Rollout]]]:
        rows = self._readers[""].take(pl.Series(numbers)).iter_rows(named=True)
        verdicts = {judge: self._verdicts(judge, numbers) for judge in self._places}
        for name, group in groupby(enumerate(rows), lambda numbered: numbered[1]["question_id"]):
            if name not in self._answers:
                raise ArtifactError(f"a rollout has no question; its id: `{name}`")
            rollouts = [
                _rollout(row, {judge: found[at] for judge, found in verdicts.items()})
                for at, row in group
            ]
            yield mask_json({"question_id": name, "answer": self._answers[name]}), rollouts

    def _verdicts(self, judge: str, numbers: npt.NDArray[np.int64]) -> list[Mapping[str, Json]]:
        """The verdicts of a judge on some rollouts; empty ones where there is none."""
        places = self._places[judge].gather(numbers)
        found = self._readers[judge].take(places.drop_nulls()).iter_rows(named=True)
        nothing: Mapping[str, Json] = dict.fromkeys(_OF_VERDICT)
        return [nothing if place is None else next(found) for place in places]

    def pass_at_k(self) -> dict[str, Json]:
        """Mean over prompts of the unbiased pass@k of each judge, k = 1, 2, 4, ..."""
        found: dict[str, Json] = {}
        for judge, values in self.values.items():
            for k in powers_of_two(self.samples):
                chances = pass_at_k(self.samples, values, k)
                name = _with_judge(f"{_PASS_AT}{k}", judge, self._cell.main)
                found[name] = _mean(chances)
        return found


def _rollout(row: Mapping[str, Any], verdicts: Mapping[str, Mapping[str, Json]]) -> _Rollout:
    messages = row["messages"]
    is_text = bool(messages) and messages[0]["role"] == TEXT
    completion = {
        "question_id": row["question_id"],
        "sample": row["sample"],
        "prompt": messages[0]["content"] if is_text else messages,
        "completion": row["reply"],
        **{name: row[name] for name in _OF_REPLY if name not in ("messages", "reply", "answer")},
    }
    texts: list[str] = []
    for part in (completion, row["answer"], verdicts):
        _add_texts(part, texts)
    text = "\n".join(texts)
    found = _Rollout(completion, row["answer"], verdicts, len(text))
    if HELD.name_in(text) is None:  # one look at all texts: most rows hold no secret
        return found
    return _Rollout(mask_json(completion), mask_json(row["answer"]), mask_json(verdicts), len(text))


def _add_texts(value: Json, texts: list[str]) -> None:
    """Add every text in a JSON value, without keys."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _add_texts(part, texts)


def _summary(cell: ScoredCell, rows: _Rows) -> dict[str, Json]:
    table = cell.summary()
    numbers = {
        row["metric"]: {name: row[name] for name in ("value", "low", "high", "n", "failed")}
        | {"unit": _unit(row["unit"])}
        for row in table.filter(pl.col("by").is_null()).iter_rows(named=True)
    }
    usual = usual_names({name: number["value"] for name, number in numbers.items()}, cell.main)
    for judge, passed in rows.passed.items():
        if numbers.keys() & {_INSTRUCTIONS, f"{_INSTRUCTIONS}{JUDGED_BY}{judge}"}:
            shares = rows.samples.per_question({"value": passed})["value"]
            usual[_with_judge(_PROMPT_LEVEL, judge, cell.main)] = shares.mean()
    groups = table.filter(pl.col("by").is_not_null())
    named = ("by", "group", "metric", "value", "low", "high", "n", "failed")
    return {
        **_about(cell, rows),
        **usual,
        "metrics": numbers,
        "groups": groups.select(named).to_dicts(),
    }


def _about(cell: ScoredCell, rows: _Rows) -> dict[str, Json]:
    axes = axes_of(cell.rollouts.address)
    return {
        "study": cell.score.study,
        "cell": cell.score.address,
        **{axis: axes.pop(axis, None) for axis in ("model", "benchmark", "split")},
        "axes": axes,
        "model_id": (cell.rollouts.model or {}).get("id"),
        "prompts": len(rows.samples.ids),
        "samples": int(rows.samples.counts().max(initial=0)),
        "completions": len(rows.order),
        "failed": cell.failed,
    }


def usual_names(metrics: Mapping[str, float | None], main: str | None) -> dict[str, Json]:
    """The numbers under the names of lm-evaluation-harness and of pass@k scripts.

    Args:
        metrics: Metric to value.
        main: The judge whose numbers need no suffix.

    Example:
        >>> usual_names({"verified:strict": 0.5, "verified:verifier": 0.6}, "verifier")
        {'accuracy:strict': 0.5, 'accuracy': 0.6}
        >>> usual_names({"verified_pass@4": 0.7, "exact_match": 0.5}, None)
        {'pass@4': 0.7}
    """
    found: dict[str, Json] = {}
    for metric, value in metrics.items():
        base, _, judge = metric.partition(JUDGED_BY)
        if (name := _USUAL.get(base)) is None:
            name = base.removeprefix("verified_")
            if not name.startswith(_PASS_AT) or (name == base and name in found):
                continue
        found[_with_judge(name, judge, main)] = value
    return found


def _with_judge(name: str, judge: str, main: str | None) -> str:
    return name if judge in ("", main) else f"{name}{JUDGED_BY}{judge}"


def _unit(unit: str) -> str:
    """The unit of the value as it stands in the file; tables show shares as per cent."""
    return "share" if unit == "percent" else unit


def _mean(values: Values) -> float | None:
    """The mean of the values that are not NaN; None without any."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else None


class _Lines:
    """A new file of JSON lines; it is flushed to the disk at the end of the context.

    Raises:
        ArtifactError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")

    def __enter__(self) -> "_Lines":
        return self

    def write(self, record: Json) -> None:
        """Append a line."""
        with writing_to(self._path):
            self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with writing_to(self._path), self._file:
            if error is None:
                self._file.flush()
                sync(self._file.fileno())


def _write_json(path: Path, content: Json) -> None:
    write_atomically(path, orjson.dumps(mask_json(content), option=orjson.OPT_INDENT_2) + b"\n")
