r"""IMO-Bench and ProofBench: olympiad problems with answers, and proofs with points.

IMO-AnswerBench and IMO-ProofBench (arXiv 2511.01846) are CSV files with the columns
`Problem ID, Problem, Short Answer, Category, Subcategory, Source`, and
`Problem ID, Problem, Solution, Grading guidelines, Category, Level, Short Answer, Source`.
IMO-GradingBench has a row for each graded proof: `Grading ID, Problem ID, Problem, Solution,
Grading guidelines, Response, Points, Reward, Problem Source`. ProofBench (arXiv 2510.13888) has
records of `{problem_id, problem, reference_solution, marking_scheme, metadata}`.

    Q: Find all $N$ such that the sum of the $N^2$ numbers is $\frac{N^3-N^2+2}{4}$.   A: 3
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.chat import Json
from mbt_cli.core.proof_text import proof_of
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.math import MathVerifier, final_answer

_LEVELS = {"pre-imo": "easy", "imo-easy": "easy", "imo-medium": "medium", "imo-hard": "hard"}
_MOST_POINTS = 7


def _more(record: Mapping[str, Json], *names: str) -> dict[str, Json]:
    """The named fields that have a value, under names such as `short_answer`."""
    found = {name: _stripped(record.get(name)) for name in names}
    return {
        name.lower().replace(" ", "_").replace("grading_guidelines", "rubric"): value
        for name, value in found.items()
        if value not in (None, "")
    }


def _stripped(value: Json) -> Json:
    return value.strip() if isinstance(value, str) else value


class IMOAnswer(Benchmark):
    """IMO-AnswerBench: 400 problems with short answers; licence CC BY 4.0."""

    kind: Literal["imo_answer"] = "imo_answer"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = MathVerifier()
    official: ClassVar[None] = None
    layout: ClassVar[frozenset[str]] = frozenset(
        {"Problem ID", "Problem", "Short Answer", "Subcategory"}
    )
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "math"
    reads: ClassVar[frozenset[str]] = frozenset(
        ("Problem ID", "Problem", "Short Answer", "Category", "Subcategory", "Source")
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        problem = records.text(record, "Problem")
        return Question(
            question_id=records.own_id(record, "Problem ID") or records.hashed_id(problem),
            question=problem,
            answer=records.text({"Short Answer": _as_text(record, "Short Answer")}, "Short Answer"),
            question_type=records.optional_text(record, "Category"),
            metadata=_more(record, "Category", "Subcategory", "Source"),
        )

    def extract_answer(self, reply: str) -> str:
        return final_answer(reply) or ""


class _Proofs(Benchmark):
    """Problems to prove, which have no gold answer: the whole proof is the answer."""

    official: ClassVar[None] = None
    has_answers: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "proof"

    def extract_answer(self, reply: str) -> str:
        return proof_of(reply)


class IMOProof(_Proofs):
    """IMO-ProofBench: 60 problems with solution and grading guidelines; licence CC BY 4.0."""

    kind: Literal["imo_proof"] = "imo_proof"
    """Names the benchmark in a manifest."""

    layout: ClassVar[frozenset[str]] = frozenset(
        {"Problem ID", "Problem", "Solution", "Grading guidelines", "Level"}
    )
    reads: ClassVar[frozenset[str]] = frozenset(
        (
            *("Problem ID", "Problem", "Solution", "Grading guidelines"),
            *("Category", "Level", "Short Answer", "Source"),
        )
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        problem = records.text(record, "Problem")
        records.text(record, "Grading guidelines")
        return Question(
            question_id=records.own_id(record, "Problem ID") or records.hashed_id(problem),
            question=problem,
            answer="",
            question_type=records.optional_text(record, "Category"),
            difficulty=self.tier(record),
            metadata=_more(
                record,
                *("Solution", "Grading guidelines", "Category", "Level", "Short Answer", "Source"),
            ),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        """By the level: pre-IMO and IMO-easy are easy."""
        return _LEVELS.get(str(record.get("Level") or "").strip().lower())


class ProofBench(_Proofs):
    """ProofBench: problems of six contests with marking schemes; splits `24_25` and `other`."""

    kind: Literal["proofbench"] = "proofbench"
    """Names the benchmark in a manifest."""

    layout: ClassVar[frozenset[str]] = frozenset({"problem", "marking_scheme"})
    reads: ClassVar[frozenset[str]] = frozenset(
        (
            *("problem_id", "id", "problem", "reference_solution", "solution"),
            *("marking_scheme", "metadata", "contest", "contest_year"),
        )
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        problem = records.text(record, "problem")
        about = record.get("metadata")
        about = about if isinstance(about, Mapping) else record
        contest = records.own_id(about, "contest")
        metadata = {
            "solution": _as_text(record, "reference_solution", "solution"),
            "rubric": _scheme(record.get("marking_scheme")),
            "contest": contest,
            "contest_year": records.own_id(about, "contest_year"),
        }
        return Question(
            question_id=records.own_id(record, "problem_id", "id") or records.hashed_id(problem),
            question=problem,
            answer="",
            question_type=contest,
            metadata={name: value for name, value in metadata.items() if value},
        )


class IMOGrading(_Proofs):
    """IMO-GradingBench: proofs with the points that humans gave; licence CC BY 4.0.

    The proofs are read as the `source` of a rollout stage; a judge grades them, and its points are
    compared with `human = "metadata.points"`.
    """

    kind: Literal["imo_grading"] = "imo_grading"
    """Names the benchmark in a manifest."""

    layout: ClassVar[frozenset[str]] = frozenset({"Grading ID", "Problem", "Response", "Points"})
    reads: ClassVar[frozenset[str]] = frozenset(
        (
            *("Grading ID", "Problem ID", "Problem", "Solution", "Grading guidelines"),
            *("Response", "Points", "Reward", "Problem Source"),
        )
    )

    def question(self, record: Mapping[str, Json]) -> Question:
        grading = records.own_id(record, "Grading ID")
        if grading is None:
            raise ValueError("`Grading ID` is missing")
        metadata = _more(
            record,
            *("Problem ID", "Solution", "Grading guidelines", "Reward", "Problem Source"),
        )
        return Question(
            question_id=grading,
            question=records.text(record, "Problem"),
            answer="",
            question_type=records.optional_text(record, "Reward"),
            metadata={**metadata, "points": _points(record.get("Points"))},
        )


def _as_text(record: Mapping[str, Json], *names: str) -> str | None:
    """The first of these fields that has a value, as text."""
    return records.own_id(record, *names)


def _scheme(value: Json) -> Json:
    """A marking scheme: text, or a list of entries.

    Raises:
        ValueError: It is missing or empty.
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str) and value:
        return dict(value) if isinstance(value, Mapping) else list(value)
    raise ValueError("`marking_scheme` is missing" if not value else "`marking_scheme` is empty")


def _points(value: Json) -> str:
    """The points of a human, as text; ValueError if they are none, or above 7.

    Example:
        >>> _points(" 6 "), _points(7.0), _points("0")
        ('6', '7', '0')
    """
    written = records.answer_text(value) if value is not None else ""
    try:
        points = float(written)
    except ValueError:
        raise ValueError(f"`Points` should be a number, not {value!r}") from None
    if not 0 <= points <= _MOST_POINTS:
        raise ValueError(f"`Points` is {points:g}; points are 0 to {_MOST_POINTS}")
    return f"{points:g}"
