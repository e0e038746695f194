"""Examples that stand before the questions that a model is asked: `files/few_shot.json`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Message
from mbt_cli.core.plugin import Settings
from mbt_cli.core.templates import EXAMPLES, filled

FEW_SHOT = "few_shot.json"
"""In the artifact's files: the examples."""
PLACEHOLDERS_OF_EXAMPLE = frozenset({"prompt", "reply"})


class Turn(Settings):
    """One turn of an example."""

    role: str
    content: str


class ShownExample(Settings):
    """A question with a reply to it, and the row that it is from."""

    source: str
    """Address of the cell with the row."""
    question_id: str
    sample: int
    trace_id: int
    turns: tuple[Turn, ...]
    """The question as turns, then the reply as the turn of the assistant."""

    def is_of(self, axes: Mapping[str, str], question_id: str) -> bool:
        """Whether it is about a question of the benchmark and split in these axes."""
        own = axes_of(self.source)
        same = all(own.get(axis) == axes.get(axis) for axis in ("benchmark", "split"))
        return same and self.question_id == question_id


class FewShotPrompt(Settings):
    """Examples in the order of their rank, with one to spare if there were enough."""

    count: int
    """Examples before a question."""
    first_is_last: bool
    """Whether the example of the first rank stands last, beside the question."""
    system: str | None
    """Text of the system prompt that shows them, with `{{ examples }}`; None: as turns."""
    form: str
    """Form of an example in the system prompt, with `{{ prompt }}` and `{{ reply }}`."""
    examples: tuple[ShownExample, ...]

    def before(
        self, messages: Sequence[Message], axes: Mapping[str, str], question_id: str
    ) -> tuple[Message, ...]:
        """A prompt with the examples; a question is never among its own.

        Args:
            messages: The prompt of the question.
            axes: Benchmark and split of the question.
            question_id: Its id.

        Example:
            >>> shown = ShownExample(source="base/benchmark=b/split=train", question_id="q1",
            ...     sample=0, trace_id=0, turns=({"role": "user", "content": "1 + 1?"},
            ...     {"role": "assistant", "content": "2"}))
            >>> few = FewShotPrompt(count=1, first_is_last=False, system=None, form="",
            ...     examples=(shown,))
            >>> asked = {"role": "user", "content": "2 + 2?"}
            >>> [turn["content"] for turn in few.before([asked], {}, "q1")]
            ['1 + 1?', '2', '2 + 2?']
        """
        others = (one for one in self.examples if not one.is_of(axes, question_id))
        shown = list(islice(others, self.count))
        if self.first_is_last:
            shown.reverse()
        system = [turn["content"] for turn in messages if turn["role"] == "system"]
        asked = [turn for turn in messages if turn["role"] != "system"]
        turns = [
            Message(role=turn.role, content=turn.content) for one in shown for turn in one.turns
        ]
        if self.system is not None:
            text = "\n\n".join(filled(self.form, _values(one)) for one in shown)
            system.append(filled(self.system, {EXAMPLES: text}))
            turns = []
        first = [Message(role="system", content="\n\n".join(system))] if system else []
        return (*first, *turns, *asked)

    def named(self) -> Iterator[dict[str, str | int]]:
        """The rows that are shown, for the lineage."""
        for one in self.examples[: self.count]:
            yield one.model_dump(exclude={"turns"})


def _values(example: ShownExample) -> Mapping[str, str]:
    *asked, reply = (turn.content for turn in example.turns)
    return {"prompt": "\n\n".join(asked), "reply": reply}
