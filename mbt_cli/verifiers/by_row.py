"""Several verifiers in one: the question says which of them decides."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema

from mbt_cli.core.names import nearest
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import Check, Submission, Verifier, VerifierData, verifier_from
from mbt_cli.errors import VerificationError
from mbt_cli.verifiers.math import final_answer

_BATCH = 512
_Member = Annotated[
    SerializeAsAny[Verifier],
    BeforeValidator(verifier_from),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class ByRowVerifier(Verifier):
    """Right if the verifier that the question's metadata name finds so.

    A question that names none, or one that is not there, has no verdict: its row fails.

    Example:
        >>> from mbt_cli.verifiers.text import TextVerifier
        >>> mixed = ByRowVerifier(verifiers={"words": TextVerifier()})
        >>> question = Question("q", "", "Oslo", metadata={"verifier": "words"})
        >>> mixed.check("<answer>oslo</answer>", question).passed
        True
    """

    reads_metadata: ClassVar[bool] = True
    replaces_words: ClassVar[bool] = True

    kind: Literal["by_row"] = "by_row"
    """Names the verifier."""
    verifiers: dict[str, _Member] = Field(min_length=1)
    """Name in the metadata to verifier: `{ gsm8k = { kind = "number", rule = "flexible" } }`."""
    column: str = "verifier"
    """Key of the metadata that holds the name."""

    def __hash__(self) -> int:
        return hash((type(self), self.column, tuple(self.verifiers.items())))

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        """The tagged or boxed answer, whatever the question is."""
        return final_answer(reply, tagged=tagged)

    def same(self, given: str, wanted: str) -> bool:
        return given == wanted

    @property
    def runs_programs(self) -> bool:  # type: ignore[override]
        """Whether one of its verifiers does."""
        return any(verifier.runs_programs for verifier in self.verifiers.values())

    def data(self) -> Sequence[VerifierData]:
        return [data for verifier in self.verifiers.values() for data in verifier.data()]

    def prepare(self) -> None:
        for verifier in self.verifiers.values():
            verifier.prepare()

    def check(self, reply: str, question: Question, *, tagged: str | None = None) -> Check:
        """Check one reply.

        Raises:
            VerificationError: The question names no verifier that is there, or that one reached no
                verdict.
        """
        return self._member(question).check(reply, question, tagged=tagged)

    def check_all(self, submissions: Iterable[Submission]) -> Iterator[Check | VerificationError]:
        waiting = iter(submissions)
        while batch := list(islice(waiting, _BATCH)):
            yield from self._checked(batch)

    def _checked(self, batch: list[Submission]) -> Iterator[Check | VerificationError]:
        """The outcomes of a batch in its order; each verifier gets all of its own at once."""
        found: list[Check | VerificationError | None] = [None] * len(batch)
        places: dict[str, list[int]] = {}
        for place, one in enumerate(batch):
            try:
                places.setdefault(self._name(one.question), []).append(place)
            except VerificationError as error:
                found[place] = error
        for name, own in places.items():
            checks = self.verifiers[name].check_all(batch[place] for place in own)
            for place, check in zip(own, checks, strict=True):
                found[place] = check
        yield from (check for check in found if check is not None)

    def _member(self, question: Question) -> Verifier:
        return self.verifiers[self._name(question)]

    def _name(self, question: Question) -> str:
        name: Any = question.metadata.get(self.column)
        if isinstance(name, str) and name in self.verifiers:
            return name
        what = f"names the verifier `{name}`" if name else "names no verifier"
        raise VerificationError(
            f"`{self.column}` of the question {what}; {nearest(str(name or ''), self.verifiers)}"
        )
