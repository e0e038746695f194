"""Multiple choice: records with a question, its options, and which of them is right.

`options` is a list, an object of label to text, or `{text: [...], label: [...]}`. The right one is
`answer_index`, its number, or `answer`: its label, its letter or its exact text.

    Q: Capital of Norway?   A. Lima   B. Oslo   Answer: B
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.option import OptionVerifier, option_letter, option_text

_ID = ("id", "_id", "question_id")
_TAKEN = (*_ID, "question", "options", "answer", "answer_index")
_Option = tuple[str, str]  # label and text


class MultipleChoice(Benchmark):
    """Records of `{question, options, answer}`; the options are put under the question."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    """Names the benchmark in a manifest."""
    index_from: Literal[0, 1] = 0
    """Number of the first option in `answer_index`."""
    shuffle: bool = False
    """Order the options by `shuffle_seed` and the id of the question: for data that always has the
    right option first."""
    shuffle_seed: int = 0
    """Seed of `shuffle`."""

    verifier: ClassVar[Verifier] = OptionVerifier()
    official: ClassVar[None] = None
    layout: ClassVar[frozenset[str]] = frozenset({"question", "options"})
    reads: ClassVar[frozenset[str]] = frozenset(_TAKEN)
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "choice"

    def question(self, record: Mapping[str, Json]) -> Question:
        question = records.text(record, "question")
        given = _options(record.get("options"))
        right = self._right(record, given)
        question_id = records.own_id(record, *_ID) or records.hashed_id(
            "\n".join([question, *(text for _, text in given)])
        )
        used = [number for number, (_, text) in enumerate(given) if text]
        if not 2 <= len(used) <= len(ascii_uppercase):
            raise ValueError(f"`options` has {len(used)} texts; 2 to {len(ascii_uppercase)} work")
        if right not in used:
            raise ValueError("the right option has no text")
        if self.shuffle:
            used.sort(key=lambda number: self._rank(question_id, number))
        texts = [given[number][1] for number in used]
        lines = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, texts, strict=False)]
        answer, text = ascii_uppercase[used.index(right)], given[right][1]
        # a text that reads as a letter, or that another option has too, names no option
        is_clear = Counter(map(option_text, texts))[option_text(text)] == 1
        is_clear = is_clear and option_letter(text) is None
        return Question(
            question_id=question_id,
            question="\n".join([question, "", *lines]),
            answer=answer,
            answer_aliases=(text,) if is_clear else (),
            metadata={**records.rest(record, *_TAKEN), "options": texts},
            options=tuple(texts),
            resolution=tuple(float(number == right) for number in used),
        )

    def _rank(self, question_id: str, number: int) -> str:
        text = f"{self.shuffle_seed}\n{question_id}\n{number}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _right(self, record: Mapping[str, Json], given: Sequence[_Option]) -> int:
        """Number of the right option, from 0."""
        index = record.get("answer_index")
        if index is not None:
            try:
                number = int(str(index)) - self.index_from
            except ValueError:
                raise ValueError(f"`answer_index` is {index!r}, not a whole number") from None
            if isinstance(index, bool) or not 0 <= number < len(given):
                raise ValueError(
                    f"`answer_index` is {index!r}; the options are {self.index_from} to "
                    f"{len(given) - 1 + self.index_from} (`index_from = {self.index_from}`)"
                )
            return number
        if isinstance(record.get("answer"), int) and not isinstance(record["answer"], bool):
            hint = 'set `columns = { answer_index = "answer" }` if it is the number of an option'
            if not any(text == str(record["answer"]) for _, text in given):
                raise ValueError(f"`answer` is the number {record['answer']}: {hint}")
        answer = records.answer_text(record.get("answer"))
        by_label = [n for n, (label, _) in enumerate(given) if label.upper() == answer.upper()]
        by_text = [n for n, (_, text) in enumerate(given) if text == answer]
        found = set(by_label) | set(by_text)
        if len(found) != 1:
            what = "no option" if not found else "several options"
            raise ValueError(f"`answer` {answer!r} is the letter or text of {what}")
        return found.pop()


def _options(value: Json) -> list[_Option]:
    """Label and text of each option; letters for options without labels, "" for an empty text.

    Example:
        >>> _options(["Lima", "Oslo"]), _options({"text": ["Lima"], "label": ["1"]})
        ([('A', 'Lima'), ('B', 'Oslo')], [('1', 'Lima')])
    """
    if isinstance(value, Mapping):
        texts, labels = value.get("text"), value.get("label")
        if isinstance(texts, list) and isinstance(labels, list):
            if len(texts) != len(labels):
                raise ValueError(f"`options` has {len(labels)} labels for {len(texts)} texts")
        else:
            labels, texts = list(value), list(value.values())
    elif isinstance(value, list | tuple):
        labels, texts = list(ascii_uppercase), list(value)
    else:
        raise ValueError(
            "`options` should be a list or an object" if value else "`options` is missing"
        )
    if len(texts) > len(ascii_uppercase):
        raise ValueError(f"`options` has {len(texts)} texts; 2 to {len(ascii_uppercase)} work")
    made = []
    for label, text in zip(labels, texts, strict=False):
        is_empty = text is None or (isinstance(text, str) and not text.strip())
        made.append((str(label).strip(), "" if is_empty else records.answer_text(text)))
    return made
