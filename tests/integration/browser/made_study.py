"""A finished study made without models: questions, rollouts of methods, verdicts, scores.

    python -m tests.integration.browser.made_study FOLDER QUESTIONS METHODS

writes FOLDER/page/report/index.html and says how long that took.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.tables import Column, TableData
from mbt_cli.core.traces import paragraphs
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.report.files import write_tables
from mbt_cli.report.page import PageInputs, write_page
from mbt_cli.store.artifacts import ArtifactWriter
from mbt_cli.store.lineage import InputRecord, Lineage

STUDY = "made"
_JUDGES = {"answer_match": AnswerMatch, "phases": Phases, "redundancy": Redundancy}
_TIERS = ("easy", "medium", "hard")
_CITIES = ("Cedardale", "Oslo", "Ambleport", "Norwick", "Tallinn", "Graz")


@dataclass(frozen=True)
class Size:
    """How much there is; `trace` stands in for all texts around question 0 of the last method."""

    questions: int = 12
    methods: Sequence[str] = ("base", "mbt_s")
    trace: str | None = None


class MadeStudy:
    """Writes the cells of a small study the way the runner does."""

    def __init__(self, runs: Path, size: Size) -> None:
        self.folder = runs / STUDY
        self.size = size
        self.report = self.folder / "tables" / "files"
        self._made: dict[str, Lineage] = {}

    def write(self) -> PageInputs:
        """All cells; what a page of them is made from."""
        at = "benchmark=tiny/split=validation"
        questions = f"questions/{at}"
        self._cell(
            questions, "questions", self._questions(), (), {"benchmark": {"kind": "tinyhop"}}
        )
        scores = []
        for method in self.size.methods:
            rollouts = f"base/{at}/model=m/variant={method}"
            found = self._rollouts(method)
            self._cell(rollouts, "rollout", found, (questions,))
            judged = []
            for judge, kind in _JUDGES.items():
                address = f"verdicts/{at}/model=m/variant={method}/judge={judge}"
                verdicts = self._verdicts(judge, dict(kind.columns), found)
                spec = {"judge": {"kind": judge}}
                self._cell(address, "judge", verdicts, (rollouts, questions), spec)
                judged.append(address)
            score = f"scores/{at}/model=m/variant={method}"
            self._cell(score, "score", self._scores(found), (rollouts, *judged, questions))
            scores.append(score)
        table = _table(scores, self.size.methods)
        self.report.mkdir(parents=True, exist_ok=True)
        write_tables(self.report, [table])
        (self.report / "accuracy_tokens.svg").write_text(_FIGURE)
        return PageInputs(
            study=STUDY,
            address="tables",
            study_folder=self.folder,
            scores=scores,
            missing=["scores/benchmark=other/split=validation/model=m/variant=base"],
            tables=[table],
            manifest='[study]\nname = "made"  # <b>as written</b>\n',
        )

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
            model={"name": "judge" if kind == "judge" else "m", "id": "made-1"},
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

    def _rollouts(self, method: str) -> pl.DataFrame:
        number = list(self.size.methods).index(method)
        made = [self._rollout(method, number, q) for q in range(self.size.questions)]
        return pl.DataFrame(made, schema=rows.ROLLOUTS)

    def _rollout(self, method: str, number: int, q: int) -> dict[str, object]:
        """Method k is wrong on every (k + 2)th question; every 11th question is cut."""
        city = _CITIES[q % len(_CITIES)]
        answer = "Nowhere" if q % (number + 2) == 0 else city
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

    def _scores(self, found: pl.DataFrame) -> pl.DataFrame:
        right = (found["answer"] != "Nowhere").cast(pl.Float64)
        return found.select(
            "question_id",
            metric=pl.lit("exact_match"),
            value=right,
            n=pl.lit(1, pl.Int64),
            failed=pl.lit(0, pl.Int64),
        )


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
    study = MadeStudy(folder, Size(questions, [f"method{k}" for k in range(methods)]))
    inputs = replace(study.write(), traces="all")
    began = time.perf_counter()
    index = write_page(study.report, inputs)
    size = sum(path.stat().st_size for path in index.parent.rglob("*"))
    seconds = time.perf_counter() - began
    sys.stdout.write(
        f"{questions * methods:,} traces in {seconds:.1f} s, {size / 1e6:.0f} MB: {index}\n"
    )


if __name__ == "__main__":
    main()
