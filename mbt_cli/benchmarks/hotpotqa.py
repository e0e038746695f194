"""HotpotQA, distractor setting: two-hop questions over ten paragraphs (arXiv 1809.09600).

Official file: a JSON array of `{_id, question, answer, supporting_facts: [[title, sentence]],
context: [[title, [sentence]]], type, level}`; the hub has the same in Parquet.

    Q: Were Scott Derrickson and Ed Wood of the same nationality?   A: yes
"""

from collections.abc import Mapping, Sized
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.interfaces import Benchmark

_LABELS = {"easy": "easy", "medium": "medium"}
_TYPES = {"comparison": "easy", "bridge": "medium"}
_HARD_FROM_FACTS = 3


class HotpotQA(Benchmark):
    """HotpotQA distractor; licence CC BY-SA 4.0."""

    kind: Literal["hotpotqa"] = "hotpotqa"
    """Names the benchmark in a manifest."""

    official: ClassVar[OfficialScorer] = OfficialScorer(name="hotpotqa", aliases=False)
    hub: ClassVar[HubSource] = HubSource(
        repo="hotpotqa/hotpot_qa",
        config="distractor",
        pattern="{config}/{split}-*.parquet",
        licence="cc-by-sa-4.0",
        revision="1908d6afbbead072334abe2965f91bd2709910ab",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 90_447, "validation": 7_405}
    layout: ClassVar[frozenset[str]] = frozenset({"question", "answer", "context"})

    def question(self, record: Mapping[str, Json]) -> Question:
        return Question(
            question_id=records.text(record, "_id", "id"),
            question=records.text(record, "question"),
            answer=records.text(record, "answer"),
            context=records.documents(record.get("context")),
            supporting=records.supporting(record.get("supporting_facts")),
            question_type=records.optional_text(record, "type"),
            hops=2,
            difficulty=self.tier(record),
            metadata=records.rest(
                record, "_id", "id", "question", "answer", "context", "supporting_facts", "type"
            ),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        """By the label. Questions labelled hard or not at all: three or more facts are hard."""
        if label := _LABELS.get(str(record.get("level"))):
            return label
        facts = record.get("supporting_facts")
        if isinstance(facts, Mapping):  # the hub's layout
            facts = facts.get("title")
        if isinstance(facts, Sized) and len(facts) >= _HARD_FROM_FACTS:
            return "hard"
        return _TYPES.get(str(record.get("type")))
