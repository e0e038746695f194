"""Open questions, which have no answer: conceptual, intellectual, and first turns of real chats.

Q: Could two minds share one experience?
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.benchmarks.beliefs import OpenBenchmark, open_question
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question

_ID = ("id", "_id", "question_id")


class Conceptual(OpenBenchmark):
    """Records of `{question}`, such as thorny questions of philosophy."""

    kind: Literal["conceptual"] = "conceptual"
    """Names the benchmark in a manifest."""

    reads: ClassVar[frozenset[str]] = frozenset((*_ID, "question"))

    def question(self, record: Mapping[str, Json]) -> Question:
        text = records.text(record, "question")
        rest = records.rest(record, *_ID, "question")
        return open_question(records.own_id(record, *_ID), text, rest)


class Intellectual(OpenBenchmark):
    """Records of `{topic, prompt}`: a demonstration of thinking that a model is asked for."""

    kind: Literal["intellectual"] = "intellectual"
    """Names the benchmark in a manifest."""

    layout: ClassVar[frozenset[str]] = frozenset({"topic", "prompt"})
    reads: ClassVar[frozenset[str]] = frozenset((*_ID, "topic", "prompt"))

    def question(self, record: Mapping[str, Json]) -> Question:
        text, topic = records.text(record, "prompt"), records.optional_text(record, "topic")
        rest = records.rest(record, *_ID, "prompt", "topic")
        return open_question(records.own_id(record, *_ID), text, rest, topic)


class WildChat(OpenBenchmark):
    """Records of `{conversation_hash, conversation}`: the first turn of a user is the question.

    `filter = { language = "English" }` selects rows.
    """

    kind: Literal["wildchat"] = "wildchat"
    """Names the benchmark in a manifest."""

    layout: ClassVar[frozenset[str]] = frozenset({"conversation_hash", "conversation"})
    reads: ClassVar[frozenset[str]] = frozenset({"conversation_hash", "conversation", "language"})

    def question(self, record: Mapping[str, Json]) -> Question:
        turns = record.get("conversation")
        text = records.prompt(list(reversed(turns)) if isinstance(turns, list | tuple) else turns)
        kept = {name: record[name] for name in ("language", "model") if record.get(name)}
        name = records.own_id(record, "conversation_hash", "id")
        return open_question(name, text, kept, records.optional_text(record, "language"))
