"""2WikiMultihopQA: questions over Wikipedia with evidence triples (arXiv 2011.01060).

Official file: a JSON array in HotpotQA's layout with `evidences: [[subject, relation, object]]`
and `answer_id`. The dev file has labels, the test file has none.

    Q: Which film whose director is younger, Forbidden Ground or Free Guy?   A: Free Guy
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.interfaces import Benchmark

_HOPS = {"comparison": 2, "inference": 2, "compositional": 2, "bridge_comparison": 4}

_TIERS = {
    "comparison": "easy",
    "inference": "medium",
    "compositional": "medium",
    "bridge_comparison": "hard",
}


class TwoWikiMultihopQA(Benchmark):
    """2WikiMultihopQA; licence Apache-2.0."""

    kind: Literal["2wikimultihopqa"] = "2wikimultihopqa"
    """Names the benchmark in a manifest."""

    official: ClassVar[OfficialScorer] = OfficialScorer()
    hub: ClassVar[HubSource] = HubSource(
        repo="framolfese/2WikiMultihopQA",
        pattern="data/{split}-*.parquet",
        licence="apache-2.0",
        revision="fe713bfbd1afbca1a65246741a75890405d56a3a",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 167_454, "validation": 12_576}
    layout: ClassVar[frozenset[str]] = frozenset({"question", "answer", "context", "evidences"})

    def question(self, record: Mapping[str, Json]) -> Question:
        question_type = records.optional_text(record, "type")
        return Question(
            question_id=records.text(record, "_id", "id"),
            question=records.text(record, "question"),
            answer=records.text(record, "answer"),
            answer_aliases=records.texts(record.get("answer_aliases"), "answer_aliases"),
            context=records.documents(record.get("context")),
            supporting=records.supporting(record.get("supporting_facts")),
            question_type=question_type,
            hops=_HOPS.get(question_type or ""),
            difficulty=self.tier(record),
            metadata=records.rest(
                record,
                *("_id", "id", "question", "answer", "answer_aliases", "context"),
                *("supporting_facts", "type"),
            ),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        """By the type of question."""
        return _TIERS.get(str(record.get("type")))
