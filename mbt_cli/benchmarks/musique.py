"""MuSiQue-Ans: two- to four-hop questions over twenty paragraphs (arXiv 2108.00573).

Official file: JSON lines of `{id, question, answer, answer_aliases, answerable,
question_decomposition, paragraphs: [{idx, title, paragraph_text, is_supporting}]}`. The id starts
with the shape of the question: `3hop1__...`.

    Q: What is the seat of the county where Van Hook Township is located?   A: Stanley
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Document, Question
from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.interfaces import Benchmark

_TIERS = {"2": "easy", "3": "medium", "4": "hard"}


class MuSiQue(Benchmark):
    """MuSiQue-Ans; licence CC BY 4.0."""

    kind: Literal["musique"] = "musique"
    """Names the benchmark in a manifest."""

    official: ClassVar[OfficialScorer] = OfficialScorer(
        name="musique", strict_closed=False, empty_equal=True
    )
    hub: ClassVar[HubSource] = HubSource(
        repo="dgslibisey/MuSiQue",
        pattern="musique_ans_v1.0_{split}.jsonl",
        split_names={"validation": "dev"},
        licence="cc-by-4.0",
        revision="c8f4f8c9465fb69d31a8eae894c3fd509c4ca321",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 19_938, "validation": 2_417}
    layout: ClassVar[frozenset[str]] = frozenset({"question", "answer", "paragraphs"})

    def question(self, record: Mapping[str, Json]) -> Question:
        question_id = records.text(record, "id")
        paragraphs = _paragraphs(record)
        shape = re.match(r"(\d)hop\d?", question_id)
        return Question(
            question_id=question_id,
            question=records.text(record, "question"),
            answer=records.text(record, "answer"),
            answer_aliases=records.texts(record.get("answer_aliases"), "answer_aliases"),
            context=tuple(Document(title, (body,)) for title, body, _ in paragraphs),
            supporting=tuple((title, 0) for title, _, is_supporting in paragraphs if is_supporting),
            question_type=shape[0] if shape else None,
            hops=int(shape[1]) if shape else None,
            difficulty=self.tier(record),
            metadata=records.rest(
                record, "id", "question", "answer", "answer_aliases", "paragraphs"
            ),
        )

    def tier(self, record: Mapping[str, Json]) -> str | None:
        """By the number of hops; questions without an answer are hard."""
        if record.get("answerable") is False:
            return "hard"
        hops = re.match(r"([234])hop", str(record.get("id")))
        return _TIERS[hops[1]] if hops else None


def _paragraphs(record: Mapping[str, Json]) -> list[tuple[str, str, bool]]:
    """Title, text and whether it supports the answer; each paragraph is one sentence."""
    paragraphs = record.get("paragraphs")
    if not isinstance(paragraphs, Sequence) or isinstance(paragraphs, str):
        raise ValueError("`paragraphs` is missing or not a list")
    if not all(isinstance(paragraph, Mapping) for paragraph in paragraphs):
        raise ValueError("`paragraphs` should contain objects")
    return [
        (
            records.text(paragraph, "title"),
            records.text(paragraph, "paragraph_text"),
            paragraph.get("is_supporting") is True,
        )
        for paragraph in paragraphs
    ]
