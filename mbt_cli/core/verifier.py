"""The base of every verifier: the rule that decides whether a reply to a question is right."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any, ClassVar

import orjson
import polars as pl
from pydantic_core import PydanticCustomError

from mbt_cli.core.chat import Json
from mbt_cli.core.names import nearest
from mbt_cli.core.plugin import Plugin, absent_fields
from mbt_cli.core.questions import Question
from mbt_cli.core.traces import with_answering_text
from mbt_cli.errors import VerificationError

_REPLY_KEYS = ("answer", "reply")
_GOLD_KEYS = ("gold_answer", "gold_aliases")
_REFERENCE = {"module", "class", "settings"}


@dataclass(frozen=True, slots=True)
class VerifierData:
    """Data that a verifier reads and that no package installs; `mbt data fetch` downloads them.

    Args:
        name: What they are.
        find: Their path on this machine, or None; UsageError if that cannot be known.
        fetch: Download them, and return the path; MbtError.
        is_needed: Whether nothing can be checked without them.
    """

    name: str
    find: Callable[[], Path | None]
    fetch: Callable[[], Path]
    is_needed: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """The outcome of one of several rules that a reply must follow.

    Args:
        name: Name of the rule.
        passed: Whether the reply follows it to the letter.
        passed_loose: Whether it follows it once formatting such as bold marks is removed.
        detail: Why it does not.
    """

    name: str
    passed: bool
    passed_loose: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What a verifier finds about one reply.

    Args:
        value: How right the reply is, in [0, 1].
        passed: Whether it counts as right.
        parts: The outcome of each rule, if the verifier has several.
        passed_loose: Whether it counts as right once formatting such as bold marks is removed;
            None if the verifier makes no such difference.
        output: What a program printed when it was run; the last 4 kB.
        cpu_seconds: Processor time of programs that were run.
    """

    value: float
    passed: bool
    parts: tuple[Part, ...] = ()
    passed_loose: bool | None = None
    output: str = ""
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """A reply to check.

    Args:
        reply: The whole reply, thinking included.
        question: The question with its gold answer and aliases, and with its metadata if the
            verifier reads them.
        tagged: Text of the reply's answer tags if it is known; None: extract it.
    """

    reply: str
    question: Question
    tagged: str | None = None


class Verifier(Plugin):
    """A rule that decides whether a reply to a question is right."""

    family: ClassVar[str] = "verifiers"
    reads_reply: ClassVar[bool] = True
    """Whether it reads a reply beyond its answer tags."""
    replaces_words: ClassVar[bool] = False
    """Whether `exact_match` follows it, because comparing words says nothing about its answers."""
    reads_metadata: ClassVar[bool] = False
    """Whether it reads the question's `metadata`, such as tests or instructions."""
    runs_programs: ClassVar[bool] = False
    """Whether a check runs a program and may take seconds. Pages and lists then show what a judge
    stage has found, and never check themselves."""

    @abstractmethod
    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        """The final answer of a reply; None without one.

        Args:
            reply: The whole reply, thinking included.
            tagged: Text of its answer tags if it is known; None: extract it.
        """

    @abstractmethod
    def same(self, given: str, wanted: str) -> bool:
        """Whether two answers are the same.

        Both may be replies' answers, so that votes can be grouped: the order of the two does not
        matter, and equal texts are the same. If a is the same as b and b as c, a may still differ
        from c. Any text may be given, in any thread; slow comparisons are kept by the verifier.
        """

    def data(self) -> Sequence[VerifierData]:
        """The data that it reads, whether they are on this machine or not."""
        return ()

    def prepare(self) -> None:
        """Import its packages; UsageError if one is missing, or data that it needs."""
        return

    def check(self, reply: str, question: Question, *, tagged: str | None = None) -> Check:
        """Check one reply. It passes if its answer is the same as the gold answer or an alias.

        Args:
            reply: The whole reply, thinking included.
            question: The question with its gold answer and aliases.
            tagged: Text of the reply's answer tags if it is known; None: extract it.
        """
        answer = self.answer(reply, tagged=tagged)
        wanted = (question.answer, *question.answer_aliases)
        passed = answer is not None and any(self.same(answer, text) for text in wanted if text)
        return Check(float(passed), passed)

    def check_all(self, submissions: Iterable[Submission]) -> Iterator[Check | VerificationError]:
        """Check several replies; the results come in their order, and at any time."""
        for one in submissions:
            try:
                yield self.check(one.reply, one.question, tagged=one.tagged)
            except VerificationError as error:
                yield error

    def values(self, rollouts: pl.DataFrame) -> pl.Series:
        """`check(...).value` of every rollout; null if it failed, has no gold answer or no verdict.

        Equal rollouts are checked once. Of a truncated reply only what follows its thinking is
        checked.

        Args:
            rollouts: `question_id`, `answer`, `reply`, `failure`, `gold_answer`, `gold_aliases`,
                `finish_reason` if known, and `metadata` if the verifier reads it.
        """
        rollouts = with_answering_text(rollouts)
        keys = ["question_id", *_REPLY_KEYS, *_GOLD_KEYS]
        keys += ["metadata"] if self.reads_metadata else []
        live = pl.col("failure").is_null() & pl.col("gold_answer").is_not_null()
        rows = rollouts.filter(live).select(keys).unique(maintain_order=True)
        checks = self.check_all(
            Submission(row["reply"] or "", question_of(row), row["answer"] or "")
            for row in rows.iter_rows(named=True)
        )
        values = [None if isinstance(c, VerificationError) else c.value for c in checks]
        found = rollouts.select(*keys, live=live).join(
            rows.with_columns(value=pl.Series(values, dtype=pl.Float64)),
            on=keys,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        return found.select(pl.when("live").then("value").alias("value"))["value"]

    def votes(self, rollouts: pl.DataFrame, words: pl.Series) -> pl.Series:
        """One text per rollout, equal for the same answer to the same question; "" without one.

        The first answer by sample number represents all equal ones.

        Args:
            rollouts: `question_id`, `sample`, `answer`, `reply`, `finish_reason` if known.
            words: The tagged answers as normalised words, which scores share.
        """
        rollouts = with_answering_text(rollouts)
        keys = ["question_id", *_REPLY_KEYS]
        rows = rollouts.sort("question_id", "sample").select(keys).unique(maintain_order=True)
        seen: dict[str, list[str]] = {}
        votes = []
        for row in rows.iter_rows(named=True):
            answer = self.answer(row["reply"] or "", tagged=row["answer"] or "")
            others = seen.setdefault(row["question_id"], [])
            votes.append("" if answer is None else self._first_same(answer, others))
        return rollouts.select(keys).join(
            rows.with_columns(vote=pl.Series(votes, dtype=pl.String)),
            on=keys,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )["vote"]

    def _first_same(self, answer: str, others: list[str]) -> str:
        """The first of the others that is the same; if there is none, the answer joins them."""
        found = answer if answer in others else None
        found = found or next((other for other in others if self.same(answer, other)), None)
        if found is None:
            others.append(answer)
        return found or answer


@dataclass(frozen=True, slots=True)
class OfficialScorer:
    """How the scorer that a data set came with compares normalised words.

    The default is the one of 2WikiMultihopQA, version 1.1: data sets without a scorer follow it.

    Args:
        name: Its name in the settings of a metric.
        aliases: Compare with aliases too, each measure with its best reference; otherwise only
            with the gold answer.
        strict_closed: F1 is 0 if either side is yes, no or noanswer and they differ.
        empty_equal: F1 is 1 if both sides normalise to nothing.
    """

    name: str = "2wikimultihopqa"
    aliases: bool = True
    strict_closed: bool = True
    empty_equal: bool = False


def question_of(row: Mapping[str, Any]) -> Question:
    """The question of a rollout, as far as verifiers read it.

    Args:
        row: `question_id`, `gold_answer`, `gold_aliases`, and `metadata` as JSON if it is there.
    """
    aliases = tuple(row["gold_aliases"] or ())
    metadata = orjson.loads(row.get("metadata") or "{}")
    return Question(row["question_id"], "", row["gold_answer"] or "", aliases, metadata=metadata)


def verifier_from(value: Any) -> Verifier:
    """A verifier by its table or its kind, of the classes that are loaded; itself if it is one.

    Raises:
        PydanticCustomError: No loaded class has the kind.
        ValidationError: The table has other settings than its class.
    """
    if isinstance(value, Verifier):
        return value
    table: Any = {"kind": value} if isinstance(value, str) else value
    kinds = dict(_loaded(Verifier))
    kind = table.get("kind") if isinstance(table, Mapping) else None
    if kind not in kinds:
        words = f"no kind of verifier `{kind}`; {nearest(str(kind), kinds)}"
        raise PydanticCustomError("unknown_kind", "{words}", {"words": words})
    return kinds[kind].model_validate(table)


def _loaded(interface: Any) -> Iterator[tuple[str, type[Verifier]]]:
    for own in interface.__subclasses__():
        yield str(own.model_fields["kind"].default), own
        yield from _loaded(own)


def plugin_reference(plugin: Plugin) -> Json:
    """A verifier or benchmark as JSON, for a process that cannot import the registry."""
    kind = type(plugin)
    is_in_study = kind.file_sha256 is not None
    # settings that a verifier got later and that are not said: the job stays as it was
    unsaid = absent_fields(plugin) if isinstance(plugin, Verifier) else frozenset()
    own = {
        name: {key: plugin_reference(one) for key, one in value.items()}
        for name, value in plugin
        if isinstance(value, dict) and any(isinstance(one, Plugin) for one in value.values())
    }
    return {
        "module": inspect.getfile(kind) if is_in_study else kind.__module__,
        "class": kind.__name__,
        "settings": plugin.model_dump(mode="json", exclude={"kind", *unsaid, *own}) | own,
    }


def plugin_from(reference: Json) -> Any:
    """The plug-in that `plugin_reference` wrote."""
    module, name = reference["module"], reference["class"]
    is_file = module.endswith(".py")
    kind = run_path(module)[name] if is_file else getattr(import_module(module), name)
    return kind(**{name: _restored(value) for name, value in reference["settings"].items()})


def _restored(value: Json) -> Any:
    """A setting with the plug-ins that it holds."""
    if not isinstance(value, dict):
        return value
    if value.keys() == _REFERENCE:
        return plugin_from(value)
    return {name: _restored(one) for name, one in value.items()}
