"""Whether a reply follows the instructions of its question (IFEval, IFBench, IF-RLVR)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import Check, Part, Verifier, VerifierData
from mbt_cli.errors import VerificationError
from mbt_cli.verifiers.instructions import packages
from mbt_cli.verifiers.instructions.checkers import Arguments, Checker
from mbt_cli.verifiers.instructions.ifbench import IFBENCH
from mbt_cli.verifiers.instructions.ifeval import IFEVAL
from mbt_cli.verifiers.instructions.ifevalg import IFEVALG
from mbt_cli.verifiers.instructions.text import Text, without_thinking

IDS = "instruction_id_list"
"""The metadata with the ids of a question's instructions."""
KWARGS = "kwargs"
"""The metadata with the arguments of each; an object, or null."""

_SETS: Mapping[str, Mapping[str, Checker]] = {
    "ifeval": IFEVAL,
    "ifbench": IFBENCH,
    "ifevalg": IFEVALG,
}
_DATA: Mapping[str, Sequence[str]] = {
    "ifbench": (packages.PUNKT, packages.STOPWORDS),
    "ifeval": (packages.PUNKT,),
    "ifevalg": (packages.PUNKT,),
}
_PACKAGES = ("emoji", "langdetect", "nltk", "regex", "syllapy")


class InstructionsVerifier(Verifier):
    """Right if the reply follows every instruction of its question to the letter.

    The question's metadata name the instructions and their arguments. Thinking is left out before
    the check; a reply of thinking alone, or of white space, follows nothing. A reply follows an
    instruction strictly as it is, and loosely if one of eight forms of it does: with and without
    asterisks, each with all lines, without the first, without the last and without both.

    No verdict, and so a failed row: an unknown instruction, an argument that is missing or of
    another type, and a word whose part of speech is needed while NLTK's tagger is missing.

    Example:
        >>> question = Question("q", "", "", metadata={
        ...     "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]})
        >>> check = InstructionsVerifier(checkers="ifeval").check("Yes, of course", question)
        >>> check.passed, check.parts[0].detail
        (False, 'wanted no comma, found 1')
    """

    reads_metadata: ClassVar[bool] = True
    replaces_words: ClassVar[bool] = True

    kind: Literal["instructions"] = "instructions"
    """Names the verifier."""
    checkers: Literal["ifeval", "ifbench", "ifevalg"]
    """The set of rules: 25 of IFEval, 58 of IFBench, or those of IFEval and 33 more for training.
    Some rules have the same name in two sets and differ."""
    value: Literal["all", "share"] = "all"
    """`all`: 1 if every instruction is followed, else 0. `share`: the share that is followed, a
    reward that grows with each of them."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return without_thinking(reply) or None

    def same(self, given: str, wanted: str) -> bool:
        return given == wanted

    def prepare(self) -> None:
        packages.require(_PACKAGES, _DATA[self.checkers])

    def data(self) -> Sequence[VerifierData]:
        needed = _DATA[self.checkers]
        optional = (packages.TAGGER,) if self.checkers == "ifbench" else ()
        return [
            VerifierData(
                f"NLTK {name}",
                partial(packages.data_path, name),
                partial(packages.fetch_data, name),
                is_needed=name in needed,
            )
            for name in (*needed, *optional)
        ]

    def instructions(self) -> set[str]:
        """The ids of the instructions that its set has rules for."""
        return set(_SETS[self.checkers])

    def metadata(self, names: Json, kwargs: Json) -> dict[str, Json]:
        """The instructions of a question as the verifier reads them, without empty arguments.

        Args:
            names: The ids of the instructions.
            kwargs: The arguments of each: null, or an object whose values may be null.

        Raises:
            ValueError: Something is wrong with them.
        """
        if not isinstance(names, list | tuple) or not isinstance(kwargs, list | tuple):
            raise ValueError("the ids of the instructions and their arguments should be two lists")
        if not names or len(names) != len(kwargs):
            raise ValueError(f"{len(names)} instructions have {len(kwargs)} sets of arguments")
        for name in names:
            if name not in _SETS[self.checkers]:
                raise ValueError(f"`{name}` is not an instruction of `{self.checkers}`")
        if not all(values is None or isinstance(values, dict) for values in kwargs):
            raise ValueError("the arguments of an instruction should be an object")
        given = [{k: v for k, v in (values or {}).items() if v is not None} for values in kwargs]
        return {IDS: list(names), KWARGS: given}

    def check(self, reply: str, question: Question, *, tagged: str | None = None) -> Check:
        """Check one reply: a part for each instruction, `detail` where it is not followed.

        Raises:
            VerificationError: No verdict is possible.
            UsageError: A package or NLTK's data are missing.
        """
        forms = _Forms(without_thinking(reply))
        parts = tuple(
            self._part(name, values, forms) for name, values in _instructions(question.metadata)
        )
        followed = sum(part.passed for part in parts)
        passed = followed == len(parts)
        return Check(
            value=followed / len(parts) if self.value == "share" else float(passed),
            passed=passed,
            parts=parts,
            passed_loose=all(part.passed_loose for part in parts),
        )

    def _part(self, name: str, values: Mapping[str, Any], forms: "_Forms") -> Part:
        checker = _SETS[self.checkers].get(name)
        if checker is None:
            raise VerificationError(f"`{name}` is not an instruction of `{self.checkers}`")
        arguments = Arguments(values)
        try:
            if not forms.strict.whole.strip():
                return Part(name, False, False, "the reply is empty")
            strict = checker(forms.strict, arguments)
            if strict.followed:
                return Part(name, True, True)
            loose = any(checker(form, arguments).followed for form in forms.others())
        except VerificationError as error:
            raise VerificationError(f"{name}: {error.message}", hint=error.hint) from error
        except TimeoutError as error:  # NLTK limits the time of its expressions
            raise VerificationError(f"{name}: NLTK took too long to read the reply") from error
        return Part(name, False, loose, strict.detail)


class _Forms:
    """A reply, and the other forms of it of which a loose check accepts one."""

    def __init__(self, reply: str) -> None:
        self.strict = Text(reply)
        self._others: list[Text] | None = None

    def others(self) -> Iterator[Text]:
        """Each different form that has text."""
        if self._others is None:
            self._others = [Text(form) for form in loose_forms(self.strict.whole)]
        yield from self._others


def loose_forms(reply: str) -> list[str]:
    r"""The seven other forms of a reply for the loose check, without doubles and empty ones.

    Example:
        >>> loose_forms("Sure:\n*a* b\nBye")
        ['Sure:\na b\nBye', '*a* b\nBye', 'Sure:\n*a* b', '*a* b', 'a b\nBye', 'Sure:\na b', 'a b']
    """
    lines = reply.split("\n")
    fewer = ["\n".join(some).strip() for some in (lines[1:], lines[:-1], lines[1:-1])]
    forms = [reply.replace("*", ""), *fewer, *(form.replace("*", "") for form in fewer)]
    return [form for form in dict.fromkeys(forms) if form.strip() and form != reply]


def _instructions(metadata: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Each instruction of a question with its arguments.

    Raises:
        VerificationError: The metadata have none, or not as many arguments as instructions.
    """
    names, kwargs = metadata.get(IDS) or (), metadata.get(KWARGS) or ()
    if not names:
        raise VerificationError(f"the question has no instructions in its metadata `{IDS}`")
    if not _are(names, str):
        raise VerificationError(f"`{IDS}` is not a list of texts")
    if not _are(kwargs, Mapping | None):
        raise VerificationError(f"`{KWARGS}` is not a list of objects")
    if len(names) != len(kwargs):
        raise VerificationError(f"`{KWARGS}` has {len(kwargs)} entries, `{IDS}` has {len(names)}")
    return [(name, values or {}) for name, values in zip(names, kwargs, strict=True)]


def _are(values: object, kind: Any) -> bool:
    """Whether something is a list whose members are of a kind."""
    return isinstance(values, list | tuple) and all(isinstance(one, kind) for one in values)
