"""MathMatch: is the math answer right, whatever form it is written in?"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import polars as pl

from mbt_cli.core.findings import Finding, absent, missing_packages, pip_line
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.interfaces import Score
from mbt_cli.scores.scoring import answer_values, math_values, mean_measure, rollout_values


class AnswerRate(Score):
    """Share of replies that hold a well-formed answer.

    Formula: 1 if an answer was read from the reply (for words, a closed answer pair with text in
    it outside the thinking), else 0.
    Unit: per cent of samples, averaged within questions first; the interval is Wilson's where
    each question has one sample.
    Reads: rollouts `answer`.
    Failed rollout: no value, counted.
    Known holes: says nothing about whether the answer is right, or an answer at all.
    """

    kind: Literal["answer_rate"] = "answer_rate"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        answered = rollout_values(inputs, pl.col("answer").fill_null("") != "")
        return [mean_measure(inputs, self.kind, answered, shape="share")]


class ExactMatch(Score):
    """Share of answers equal to the gold answer or an alias after normalising.

    Formula: 1 if normalise(answer) = normalise(r) for some reference r in gold and aliases, else 0;
    normalise = lower case, no ASCII punctuation, no a / an / the, white space squeezed.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0), a reply cut at the token limit too. Failed rollout: no value, counted.
    Known holes: a right answer in other words is wrong; `9` and `nine` differ.
    Source: the paper; an answer of which normalising leaves nothing scores 0.
    """

    kind: Literal["exact_match"] = "exact_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "exact_match")
        return [mean_measure(inputs, self.kind, values, shape="binary")]


class SubstringMatch(Score):
    """Share of answers that hold a reference as a run of characters (the paper's form).

    Formula: 1 if normalise(r) is a substring of normalise(answer) for some reference r, else 0.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: `no` is found in `norway`; a reference that normalises to nothing is found in
    every answer; a long answer that lists everything scores. `containment` mends the first two.
    """

    kind: Literal["substring_match"] = "substring_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "substring_match")
        return [mean_measure(inputs, self.kind, values, shape="binary")]


class Containment(Score):
    """Share of answers that hold a reference as whole words, side by side and in order.

    Formula: 1 if the normalised words of some reference stand consecutively in those of the
    answer, else 0; a reference that normalises to nothing is in no answer.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: an answer that lists many candidates scores, and so does `not X` for `X`.
    """

    kind: Literal["containment"] = "containment"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "containment")
        return [mean_measure(inputs, self.kind, values, shape="binary")]


class F1Score(Score):
    """Mean F1 of words between the answer and its best reference (the paper's form).

    Formula: max over references of 2 * shared / (words of answer + words of reference), words of
    the normalised texts, each as often as it stands in both.
    Unit: per cent, averaged over samples within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: 0. Failed rollout: no value, counted.
    Known holes: word order does not count; `yes` against `no` in a longer answer shares words.
    """

    kind: Literal["f1_score"] = "f1_score"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "f1_score")
        return [mean_measure(inputs, self.kind, values)]


class OfficialExactMatch(Score):
    """Exact match as the benchmark's own scorer computes it.

    Formula: equality of normalised texts; HotpotQA knows the gold answer only, 2Wiki (v1.1) and
    MuSiQue take gold and aliases. Benchmarks without a scorer of their own follow 2Wiki; math
    sets have none, so no number is given for them.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: 0. Failed rollout: no value, counted.
    Known holes: those of comparing words; numbers of different benchmarks follow different rules.
    """

    kind: Literal["official_exact_match"] = "official_exact_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if inputs.official is None:
            return []
        values = answer_values(inputs, "official_exact_match")
        return [
            mean_measure(
                inputs,
                self.kind,
                values,
                shape="binary",
                settings={"rules": inputs.official.name},
            )
        ]


class OfficialF1(Score):
    """F1 of words as the benchmark's own scorer computes it.

    Formula: as `f1_score`, but HotpotQA looks at the gold answer only; HotpotQA and 2Wiki give 0
    when either side is yes, no or noanswer and they differ; MuSiQue gives 1 when both sides
    normalise to nothing. Benchmarks without a scorer of their own follow 2Wiki; math sets have
    none, so no number is given for them.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: 0. Failed rollout: no value, counted.
    Known holes: those of comparing words; numbers of different benchmarks follow different rules.
    """

    kind: Literal["official_f1"] = "official_f1"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if inputs.official is None:
            return []
        values = answer_values(inputs, "official_f1")
        return [
            mean_measure(
                inputs,
                self.kind,
                values,
                settings={"rules": inputs.official.name},
            )
        ]


class MathMatch(Score):
    r"""Share of math answers that mean the same as the gold answer.

    Formula: the answer is the tagged one, else the last \boxed one outside the thinking. For
    `gsm8k` its last number (else the one after ####) equals the gold number, commas and trailing
    .00 apart: the official match. Otherwise 1 if the LaTeX is equal but for spaces and brackets'
    sizes, or if math-verify finds both equal.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, `reply`; questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: a comparison that takes math-verify longer than 5 seconds counts as different;
    answers in words are compared as text. Needs the extra `math` where plain forms differ.
    """

    kind: Literal["math_match"] = "math_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = math_values(inputs)
        return [mean_measure(inputs, self.kind, values, shape="binary")]

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        if missing_packages("math"):
            found = "compares answers in different forms only with it"
            yield absent("needs", "extra math", f"{name} {found}", pip_line("math"))
