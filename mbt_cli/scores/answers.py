"""Scores of final answers: how many there are, and how many are right by words or as math."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import polars as pl

from mbt_cli.core.findings import Finding, absent, missing_packages, pip_line
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.traces import cut_column
from mbt_cli.core.verifier import Verifier
from mbt_cli.interfaces import Score
from mbt_cli.scores.scoring import (
    answer_values,
    math_values,
    math_verifier,
    mean_measure,
    rollout_values,
)


class AnswerRate(Score):
    """Share of replies with a well-formed answer.

    Formula: 1 if the reply has a closed answer pair with text in it outside the thinking, else 0.
    Unit: per cent of samples, averaged within questions first; Wilson's interval.
    Reads: rollouts `answer`.
    Empty, refused or filtered reply: no answer (0). No reply: no value, counted.
    Known holes: does not say whether the answer is right, or is an answer at all.
    """

    kind: Literal["answer_rate"] = "answer_rate"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        answered = rollout_values(inputs, pl.col("answer").fill_null("") != "")
        return [mean_measure(inputs, self.kind, answered, shape="binary")]


class EmptyReplies(Score):
    """Share of replies that came without usable text.

    Formula: 1 if the reply is empty, has reasoning only although it was not truncated, is a refusal
    without other text, or was stopped by a content filter, else 0.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `failure` (`empty`, `refusal`, `content_filter`), `reply`, `finish_reason`.
    No reply (timeouts, errors of the server, prompts that are too long): no value, counted. A
    reply that reached the token limit while it was thinking is truncated, not empty.
    Known holes: a refusal in the text of a reply is text; the share does not tell a model that
    stays silent from a server or chat template that loses its replies.
    """

    kind: Literal["empty_replies"] = "empty_replies"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        is_blank = pl.all_horizontal(
            pl.col("reply", "answer").fill_null("").str.strip_chars() == ""
        )
        is_empty = pl.col("no_text").is_not_null() | (is_blank & ~cut_column())
        return [mean_measure(inputs, self.kind, rollout_values(inputs, is_empty), shape="binary")]


class _Words(Score):
    """The mean of a column of `answer_metrics` that has the kind's name."""

    shape: ClassVar[Literal["binary", "number"]] = "binary"

    def verifier(self, own: Verifier) -> Verifier | None:
        return own if own.replaces_words else None

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if inputs.verifier.replaces_words and self.kind != ExactMatch.model_fields["kind"].default:
            return []  # shared words of letters mean nothing
        values = answer_values(inputs, self.kind)
        return [mean_measure(inputs, self.kind, values, shape=self.shape)]


class ExactMatch(_Words):
    """Share of answers equal to the gold answer or an alias after normalising.

    Formula: 1 if normalise(answer) = normalise(r) for some reference r in gold and aliases, else 0;
    normalise = lower case, no ASCII punctuation, no a / an / the, single spaces. Multiple
    choice: 1 if the answer names the right option by letter or exact text (`mbt help data`).
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0), also in a reply that is empty, refused or filtered, or that was cut at the
    token limit before its answer. No reply: no value, counted.
    Known holes: a right answer in other words is wrong; `9` and `nine` differ.
    Source: the paper; an answer that normalises to nothing scores 0.
    """

    kind: Literal["exact_match"] = "exact_match"


class SubstringMatch(_Words):
    """Share of answers that contain a reference as a run of characters (the paper's form).

    Formula: 1 if normalise(r) is a substring of normalise(answer) for some reference r, else 0.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer, also an empty reply: wrong (0). No reply: no value, counted.
    Known holes: `norway` contains `no`; every answer contains a reference that normalises to
    nothing; a long answer that lists everything scores. `containment` avoids the first two.
    """

    kind: Literal["substring_match"] = "substring_match"


class Containment(_Words):
    """Share of answers that contain a reference as consecutive whole words.

    Formula: 1 if the normalised words of some reference are consecutive words of the answer, else
    0; no answer contains a reference that normalises to nothing.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer, also an empty reply: wrong (0). No reply: no value, counted.
    Known holes: an answer that lists many candidates scores, and so does `not X` for `X`.
    """

    kind: Literal["containment"] = "containment"


class F1Score(_Words):
    """Mean F1 of words between the answer and its best reference (the paper's form).

    Formula: max over references of 2 * shared / (words of answer + words of reference), over
    normalised words; a word counts as often as both sides have it.
    Unit: per cent, averaged over samples within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer, also an empty reply: 0. No reply: no value, counted.
    Known holes: word order does not count; `yes` against `no` in a longer answer shares words.
    """

    kind: Literal["f1_score"] = "f1_score"
    shape: ClassVar[Literal["binary", "number"]] = "number"


class _Official(Score):
    """The same for the scorer that the benchmark came with, if it has one."""

    shape: ClassVar[Literal["binary", "number"]] = "binary"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if inputs.official is None:
            return []
        values = answer_values(inputs, self.kind)
        settings = {"rules": inputs.official.name}
        return [mean_measure(inputs, self.kind, values, shape=self.shape, settings=settings)]


class OfficialExactMatch(_Official):
    """Exact match as the benchmark's own scorer computes it.

    Formula: equality of normalised texts. HotpotQA compares with the gold answer only, 2Wiki (v1.1)
    and MuSiQue with gold and aliases. Benchmarks without a scorer of their own follow 2Wiki; math
    benchmarks have none and get no number.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer, also an empty reply: 0. No reply: no value, counted.
    Known holes: those of comparing words; numbers of different benchmarks follow different rules.
    """

    kind: Literal["official_exact_match"] = "official_exact_match"


class OfficialF1(_Official):
    """F1 of words as the benchmark's own scorer computes it.

    Formula: as `f1_score`, but HotpotQA compares with the gold answer only; HotpotQA and 2Wiki give
    0 if either side is yes, no or noanswer and they differ; MuSiQue gives 1 if both sides normalise
    to nothing. Benchmarks without a scorer of their own follow 2Wiki; math benchmarks have none and
    get no number.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer, also an empty reply: 0. No reply: no value, counted.
    Known holes: those of comparing words; numbers of different benchmarks follow different rules.
    """

    kind: Literal["official_f1"] = "official_f1"
    shape: ClassVar[Literal["binary", "number"]] = "number"


class MathMatch(Score):
    r"""Share of math answers that mean the same as the gold answer.

    Formula: the answer is the tagged one, otherwise the last \boxed one outside the thinking. 1 if
    it is the same as a reference, else 0: as a number, expression, list, set, tuple, interval,
    matrix, equation or words, by the conventions of MATH (`mbt help data`). If the benchmark's
    answers are numbers: 1 if the last number of the answer (otherwise the one after ####) equals
    the gold number, the official match.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, `reply`; questions `answer`, `answer_aliases`.
    No answer, also an empty reply: wrong (0). No reply: no value, counted.
    Known holes: expressions with equal values that math-verify does not find equal within 0.8
    seconds of CPU time count as different; answers in words are compared as text; 50% is 50, not
    0.5. Expressions that are written in different ways need the extra `math`.
    """

    kind: Literal["math_match"] = "math_match"

    def verifier(self, own: Verifier) -> Verifier:
        return math_verifier(own)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        return [mean_measure(inputs, self.kind, math_values(inputs), shape="binary")]

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        if missing_packages("math"):
            found = "needs it to compare answers that are written in different ways"
            yield absent("needs", "extra math", f"{name} {found}", pip_line("math"))
