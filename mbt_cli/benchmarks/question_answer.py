"""Your own questions: records with a question and its answer.

JSON lines or a JSON array of `{question, answer}`, optionally with `id`, `answer_aliases` and
`context`. An answer may be a number or a list (the others are aliases of the first). The context is
a string, a list of strings, or HotpotQA's `[[title, [sentence]]]`.

    Q: Which river runs through Cairo?   A: Nile
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Document, Question
from mbt_cli.interfaces import Benchmark

_ID = ("id", "_id", "question_id")
_ALIASES = "answer_aliases"


class QuestionAnswer(Benchmark):
    """Records of `{question, answer}`."""

    kind: Literal["question_answer"] = "question_answer"
    """Names the benchmark in a manifest."""

    layout: ClassVar[frozenset[str]] = frozenset({"question"})
    reads: ClassVar[frozenset[str]] = frozenset((*_ID, "question", "answer", _ALIASES, "context"))

    def question(self, record: Mapping[str, Json]) -> Question:
        question = records.text(record, "question")
        answer, *others = _answers(record.get("answer"))
        aliases = (*others, *records.texts(record.get(_ALIASES), _ALIASES))
        return Question(
            question_id=records.own_id(record, *_ID) or records.hashed_id(question),
            question=question,
            answer=answer,
            answer_aliases=aliases,
            context=_context(record.get("context")),
            metadata=records.rest(record, *_ID, "question", "answer", _ALIASES, "context"),
        )


def _answers(value: Json) -> list[str]:
    """The answer, followed by its aliases.

    Example:
        >>> _answers(["New York", "NYC"]), _answers(7), _answers(True)
        (['New York', 'NYC'], ['7'], ['yes'])
    """
    if not isinstance(value, list):
        return [records.answer_text(value)]
    if not value:
        raise ValueError("`answer` is an empty list")
    return [records.answer_text(item) for item in value]


def _context(value: Json) -> tuple[Document, ...]:
    """Documents; a string without a title gets its number as one."""
    if not value:
        return ()
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, Sequence) and all(isinstance(item, str) for item in texts):
        return tuple(Document(str(number), (text,)) for number, text in enumerate(texts, 1))
    return records.documents(value)
