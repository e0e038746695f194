"""A finished study made without models: questions, rollouts of methods, verdicts, scores.

    python -m tests.integration.browser.made_study FOLDER QUESTIONS METHODS [BENCHMARKS]

writes the page of such a study and says how long that took.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.addresses import axes_of
from mbt_cli.core.measures import Measure
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.core.traces import paragraphs
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.judges.verifier import VerifierJudge
from mbt_cli.registry import SCORES
from mbt_cli.report.comparisons import compared_methods
from mbt_cli.report.files import write_tables
from mbt_cli.report.page import PageInputs, write_page
from mbt_cli.report.tables import MainResults
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.store.artifacts import ArtifactWriter
from mbt_cli.store.lineage import InputRecord, Lineage

STUDY = "made"
_JUDGES = {"answer_match": AnswerMatch, "phases": Phases, "redundancy": Redundancy}
_METRICS = ("exact_match", "tokens")
assert SCORES.kinds()  # the registry is loaded, which benchmarks of lineages are looked up in
_TIERS = ("easy", "medium", "hard")
_CITIES = ("Cedardale", "Oslo", "Ambleport", "Norwick", "Tallinn", "Graz")


@dataclass(frozen=True)
class Size:
    """How much there is; `trace` stands in for all texts around question 0 of the last method.

    With `rules`, verdicts of a verifier stand beside those of the judges.
    """

    questions: int = 12
    methods: Sequence[str] = ("base", "mbt_s")
    trace: str | None = None
    rules: bool = False
    benchmarks: Sequence[str] = ("tiny",)


class MadeStudy:
    """Writes the cells of a small study the way the runner does."""

    def __init__(self, runs: Path, size: Size) -> None:
        self.folder = runs / STUDY
        self.size = size
        self.report = self.folder / "tables" / "files"
        self._made: dict[str, Lineage] = {}

    def write(self) -> PageInputs:
        """All cells; what a page of them is made from."""
        scores: dict[str, pl.DataFrame] = {}
        for place, benchmark in enumerate(self.size.benchmarks):
            scores |= self._benchmark(benchmark, place)
        inputs = _report_inputs(scores)
        is_small = len(self.size.benchmarks) == 1
        table = _table(list(scores), self.size.methods) if is_small else MainResults().build(inputs)
        self.report.mkdir(parents=True, exist_ok=True)
        write_tables(self.report, [table])
        (self.report / "accuracy_tokens.svg").write_text(_FIGURE)
        return PageInputs(
            study=STUDY,
            address="tables",
            study_folder=self.folder,
            scores=list(scores),
            missing=["scores/benchmark=other/split=validation/model=m/variant=base"],
            tables=[table],
            comparisons=compared_methods(inputs, _METRICS, resamples=200, seed=1),
            manifest='[study]\nname = "made"  # <b>as written</b>\n',
        )

    def _benchmark(self, benchmark: str, place: int) -> dict[str, pl.DataFrame]:
        """The cells of a benchmark; gives address and rows of each score cell."""
        at = f"benchmark={benchmark}/split=validation"
        questions = f"questions/{at}"
        self._cell(
            questions, "questions", self._questions(), (), {"benchmark": {"kind": "tinyhop"}}
        )
        scores = {}
        for method in self.size.methods:
            rollouts = f"base/{at}/model=m/variant={method}"
            found = self._rollouts(method, place)
            self._cell(rollouts, "rollout", found, (questions,))
            judged = []
            rules = {"verifier": VerifierJudge} if self.size.rules else {}
            for judge, kind in {**_JUDGES, **rules}.items():
                address = f"verdicts/{at}/model=m/variant={method}/judge={judge}"
                verdicts = self._verdicts(judge, dict(kind.columns), found)
                spec = {"judge": {"kind": judge}}
                model = None if judge in rules else "judge"
                self._cell(address, "judge", verdicts, (rollouts, questions), spec, model)
                judged.append(address)
            score = f"scores/{at}/model=m/variant={method}"
            scores[score] = _scores(found)
            self._cell(score, "score", scores[score], (rollouts, *judged, questions))
        return scores

    def page(self, **changes: object) -> Path:
        """Write everything and the page; gives index.html."""
        inputs = self.write()
        return write_page(self.report, PageInputs(**{**_fields(inputs), **changes}))

    def _cell(
        self,
        address: str,
        kind: str,
        frame: pl.DataFrame,
        inputs: Sequence[str],
        spec: dict[str, object] | None = None,
        model: str | None = "m",
    ) -> None:
        lineage = Lineage(
            study=STUDY,
            stage=address.partition("/")[0],
            kind=kind,
            address=address,
            fingerprint="f" * 64,
            base_fingerprint="b" * 64,
            spec=spec or {"samples": 1},
            inputs={
                a: InputRecord(fingerprint="f" * 64, sha256=self._made[a].content_sha256())
                for a in inputs
            },
            model=model and {"name": model, "id": "made-1"},
            started_at=datetime(2026, 1, 2, tzinfo=UTC),
        )
        folder = self.folder / address
        with ArtifactWriter(folder, frame.schema, address=address, fingerprint="f" * 64) as writer:
            writer.write(frame)
            self._made[address] = writer.finish(lineage)

    def _questions(self) -> pl.DataFrame:
        made = []
        for q in range(self.size.questions):
            city = _CITIES[q % len(_CITIES)]
            odd = (self.size.trace or "") if q == 0 else ""
            titles = (f"Harbour {q}", city, f"Mayor of {city}", f"Elsewhere{odd}")
            context = [
                {"title": t, "sentences": [f"{t} is a place.", f"It belongs to {city}."]}
                for t in titles
            ]
            made.append(
                {
                    **dict.fromkeys(rows.QUESTIONS),
                    "question_id": f"q{q}",
                    "position": q,
                    "question": f"Which city does harbour {q} belong to?{odd}",
                    "answer": city,
                    "answer_aliases": [f"City of {city}"],
                    "context": context,
                    "supporting": [{"title": city, "sentence": 1}],
                    "hops": 2 + q % 3,
                    "difficulty": _TIERS[q % 3],
                }
            )
        return pl.DataFrame(made, schema=rows.QUESTIONS)

    def _rollouts(self, method: str, place: int) -> pl.DataFrame:
        number = list(self.size.methods).index(method)
        made = [self._rollout(method, number, q, place) for q in range(self.size.questions)]
        return pl.DataFrame(made, schema=rows.ROLLOUTS)

    def _rollout(self, method: str, number: int, q: int, place: int) -> dict[str, object]:
        """Method k is wrong on every (k + 2)th question; every 11th question is cut.

        On the second benchmark each is wrong one question earlier, and so on.
        """
        city = _CITIES[q % len(_CITIES)]
        answer = "Nowhere" if (q + place) % (number + 2) == 0 else city
        trace = "\n\n".join(
            f"{lead} harbour {q}, {method}. " + f"I look at document {k} again. " * (6 + k)
            for k, lead in enumerate(
                ("The question asks about", "First I find", "So it is", "Wait,")
            )
        )
        if self.size.trace is not None and q == 0 and number == len(self.size.methods) - 1:
            trace = answer = self.size.trace
        return {
            **dict.fromkeys(rows.ROLLOUTS),
            "question_id": f"q{q}",
            "sample": 0,
            "answer": answer,
            "reasoning": trace,
            "reply": f"<answer>{answer}</answer>",
            "finish_reason": "length" if q % 11 == 10 else "stop",
            "completion_tokens": 100 + q,
            "seed": 1,
            "attempts": 1,
            "seconds": 0.5,
            "request_key": f"{number:04d}{q:08d}" * 5,
        }

    def _verdicts(
        self, judge: str, columns: dict[str, pl.DataType], found: pl.DataFrame
    ) -> pl.DataFrame:
        schema = pl.Schema({**rows.VERDICTS, **columns, "asked": pl.Boolean()})
        made = [
            {
                **dict.fromkeys(schema),
                "question_id": row["question_id"],
                "sample": 0,
                "vote": 0,
                "asked": True,
                **_said(judge, row),
            }
            for row in found.iter_rows(named=True)
        ]
        return pl.DataFrame(made, schema=schema)


def _scores(found: pl.DataFrame) -> pl.DataFrame:
    right = (found["answer"] != "Nowhere").cast(pl.Float64)
    values = (right, found["completion_tokens"].cast(pl.Float64))
    return pl.concat(
        found.select(
            "question_id",
            metric=pl.lit(metric),
            value=value,
            n=pl.lit(1, pl.Int64),
            failed=pl.lit(0, pl.Int64),
        )
        for metric, value in zip(_METRICS, values, strict=True)
    )


def _report_inputs(scores: dict[str, pl.DataFrame]) -> ReportInputs:
    """What the report stage makes of such scores."""
    axes = ("benchmark", "split", "model", "variant")

    def placed(frame: pl.DataFrame, address: str) -> pl.DataFrame:
        of_cell = axes_of(address)
        labels = [pl.lit(of_cell[axis]).alias(axis) for axis in axes]
        return frame.with_columns(pl.lit(address).alias("address"), *labels)

    summaries = []
    for address, frame in scores.items():
        measures = [
            (
                Measure(
                    metric=metric,
                    unit="percent" if metric == "exact_match" else "tokens",
                    questions=frame.filter(pl.col("metric") == metric).drop("metric"),
                    binary=metric == "exact_match",
                ),
                None,
            )
            for metric in _METRICS
        ]
        found = summarise_all(measures, resamples=200, seed=1)
        summaries.append(placed(pl.DataFrame(found, schema=rows.SUMMARY), address))
    every = pl.concat([placed(frame, address) for address, frame in scores.items()])
    return ReportInputs(summary=pl.concat(summaries), scores=every.lazy(), axes=axes)


def _said(judge: str, row: dict[str, object]) -> dict[str, object]:
    """Judges disagree with the verifier on question 3; one reply of question 4 is unreadable."""
    right = row["answer"] != "Nowhere"
    if judge == "answer_match":
        if row["question_id"] == "q4":
            return {"reply": "who knows", "failure": "unreadable_verdict: no verdict"}
        if "<" in str(row["answer"]):
            return {"reply": row["answer"], "failure": f"unreadable_verdict: {row['answer']}"}
        grade = "B" if row["question_id"] == "q3" or not right else "A"
        return {"reply": f'{{"grade": "{grade}"}}', "grade": grade}
    if judge == "verifier":
        return _checked(int(str(row["question_id"])[1:]), right)
    if judge == "phases":
        return {"reply": "L_OBS: 3", "l_obs": 3, "phases": [1, 2, 3], "confidence": 0.8}
    count = len(paragraphs(str(row["reasoning"])))
    answer, redundant = min(3, count), [4] if count > 3 else []
    return {
        "reply": "ANSWER_PARAGRAPH_MARKER: [[M03]]",
        "paragraphs": count,
        "answer_paragraph": answer,
        "redundant_paragraphs": redundant,
        "confidence": 0.9,
    }


def _checked(question: int, right: bool) -> dict[str, object]:
    """A check of 3 tests, or of 40 for question 2; the sandbox died on question 5.

    The last test fails if the answer is wrong, and on question 7 whatever it is.
    """
    if question == 5:
        return {"failure": "no_verdict: the sandbox died"}
    passed = right and question != 7
    count = 40 if question == 2 else 3
    parts = [
        {"name": f"test {k}", "passed": True, "passed_loose": True, "detail": ""}
        for k in range(1, count)
    ]
    last = {"name": f"test {count}", "passed": passed, "passed_loose": True, "detail": ""}
    last["detail"] = "" if passed else "assert f(2) == 3: returned <b>4</b>"
    output = 'Traceback (most recent call last):\n  File "program.py", line 1\nAssertionError\n'
    return {
        "reply": '{"value": 1}',
        "value": float(passed),
        "passed": passed,
        "passed_loose": True,
        "parts": [*parts, last],
        "output": "" if passed else output,
        "cpu_seconds": 0.25,
    }


def _fields(inputs: PageInputs) -> dict[str, object]:
    return {name: getattr(inputs, name) for name in PageInputs.__slots__}


def _table(scores: Sequence[str], methods: Sequence[str]) -> TableData:
    """Accuracy 0.5, 0.6, ... and one row without a number."""
    size = len(methods)
    made = {
        "address": [*scores, None],
        "variant": [*methods, "not_run"],
        "exact_match": [*(0.5 + k / 10 for k in range(size)), None],
        "exact_match_low": [*(0.4 for _ in methods), None],
        "exact_match_high": [*(0.7 for _ in methods), None],
        "exact_match_n": [*(12 for _ in methods), None],
        "exact_match_failed": [*(1 for _ in methods), None],
        "tokens": [*(float(900 - 100 * k) for k in range(size)), None],
    }
    columns = (
        Column("variant", "variant", kind="label"),
        Column("exact_match", "exact match", unit="percent", best="high"),
        Column("tokens", "tokens", unit="tokens", decimals=0, best="low"),
    )
    return TableData("main_results", "Main results", columns, pl.DataFrame(made), ["Made data."])


_FIGURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="160">'
    '<rect width="300" height="160" fill="#fff"/><circle cx="90" cy="80" r="9" fill="#0072B2"/>'
    '<rect x="190" y="50" width="16" height="16" fill="#D55E00"/></svg>'
)


def main() -> None:
    """Make a study and its page, and say how long the page took."""
    folder, questions, methods = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    benchmarks = [f"hop{k}" for k in range(int(sys.argv[4]) if len(sys.argv) > 4 else 1)]
    names = [f"method{k}" for k in range(methods)]
    study = MadeStudy(folder, Size(questions, names, benchmarks=benchmarks))
    inputs = replace(study.write(), traces="all")
    began = time.perf_counter()
    index = write_page(study.report, inputs)
    size = sum(path.stat().st_size for path in index.parent.rglob("*"))
    seconds = time.perf_counter() - began
    count = questions * methods * len(benchmarks)
    sys.stdout.write(f"{count:,} traces in {seconds:.1f} s, {size / 1e6:.0f} MB: {index}\n")


if __name__ == "__main__":
    main()
