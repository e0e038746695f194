"""Answers as text: extracted from replies, normalised, compared with the references.

`TextVerifier` is the default rule of a benchmark. `answer_metrics` computes all measures of words
for a whole frame, a million rows in seconds.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.traces import outside_thinking
from mbt_cli.core.verifier import OfficialScorer, Verifier

_ANSWER_PAIR = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


class TextVerifier(Verifier):
    """Right if the tagged answer equals the gold answer or an alias, both normalised."""

    reads_reply: ClassVar[bool] = False

    kind: Literal["text"] = "text"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return (extract_answer(reply) if tagged is None else tagged) or None

    def same(self, given: str, wanted: str) -> bool:
        return exact_match(given, [wanted]) == 1

    def values(self, rollouts: pl.DataFrame) -> pl.Series:
        return answer_metrics(rollouts, None)["exact_match"]

    def votes(self, rollouts: pl.DataFrame, words: pl.Series) -> pl.Series:
        return words


def extract_answer(reply: str) -> str:
    """Text of the last complete answer pair outside the thinking; empty if there is none.

    Tags are matched in any case. If the last tag never closes, the last complete pair counts, and
    a pair without text leaves the answer before it. A think block is skipped if text follows it,
    even if its opening tag is part of the chat template and not of the reply.

    Example:
        >>> extract_answer("<think><answer>Rome</answer></think><ANSWER> Paris </ANSWER><answer>")
        'Paris'
    """
    pairs = _ANSWER_PAIR.findall(outside_thinking(reply))
    return next((text.strip() for text in reversed(pairs) if text.strip()), "")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and the words a, an, the, with single spaces.

    Punctuation is removed first, so `a.m.` becomes `am` and keeps its `a`.
    Source: the SQuAD evaluation script, which all scorers below share.

    Example:
        >>> normalise("  The Theatre, a.m. of AN end! ")
        'theatre am of end'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction equals a reference, both normalised; 0 if it normalises to nothing.

    Example:
        >>> exact_match("the Beatles!", ["Beatles", "Fab Four"])
        1.0
    """
    given = normalise(prediction)
    return float(bool(given) and any(given == normalise(r) for r in references))


def containment(prediction: str, references: Sequence[str]) -> float:
    """1 if the words of a reference are consecutive words of the prediction, both normalised.

    Example:
        >>> containment("Norway", ["no"]), containment("It is New York.", ["new york"])
        (0.0, 1.0)
    """
    given = f" {normalise(prediction)} "
    wanted = (normalise(r) for r in references)
    return float(any(bool(w) and f" {w} " in given for w in wanted))


def f1_score(prediction: str, references: Sequence[str]) -> float:
    """Best F1 over the references of normalised words, as bags of words.

    Example:
        >>> f1_score("New York City", ["York"])
        0.5
    """
    given = normalise(prediction).split()
    return max((_words_f1(given, normalise(r).split()) for r in references), default=0.0)


def _words_f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


_PUNCTUATION = list(string.punctuation)
# white space, as Python's `split` sees it, that is not a single space
_LOOSE_SPACE = r"[\s\x1c-\x1f]{2,}|[\t-\r\x1c-\x1f\x85\xa0\p{Zl}\p{Zp}]|[^ \P{Zs}]"
_ARTICLES = r" (?:(?:a|an|the) )+"  # in a text with a space at both ends
# for Python's \b letters and numbers are parts of words, combining marks and dashes are not
_ARTICLES_ANY = r"(^|[^\p{L}\p{N}])(?:a|an|the)([^\p{L}\p{N}]|$)"
_NOT_PLAIN = r"[^ 0-9a-z]"
_CLOSED_WORDS = ["yes", "no", "noanswer"]
_ROWS_AT_ONCE = 1 << 16

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

METRICS = (
    "exact_match",
    "substring_match",
    "f1_score",
    "containment",
    "official_exact_match",
    "official_f1",
)
"""Columns of `answer_metrics`, besides `normalised`."""


def normalised(texts: pl.Series) -> pl.Series:
    """`normalise` of every text; null stays null."""
    text = pl.col("text")
    nothing = [""] * len(_PUNCTUATION)
    words = text.str.to_lowercase().str.replace_many(_PUNCTUATION, nothing)
    words = words.str.replace_all(_LOOSE_SPACE, " ").str.strip_chars(" ")
    frame = texts.alias("text").to_frame().select(words)
    padded = pl.concat_str(pl.lit(" "), text, pl.lit(" "))
    without = padded.str.replace_all(_ARTICLES, " ").str.strip_chars(" ")
    plain = frame.select(without).to_series()
    odd = frame["text"].str.contains(_NOT_PLAIN).arg_true()
    if not len(odd):
        return plain
    # twice, because two articles in a row share the character between them
    rare = text.str.replace_all(_ARTICLES_ANY, "$1 $2").str.replace_all(_ARTICLES_ANY, "$1 $2")
    rare = rare.str.replace_all(r" {2,}", " ").str.strip_chars(" ")
    return plain.scatter(odd, frame[odd].select(rare).to_series())


def answer_metrics(
    rollouts: pl.DataFrame, official: OfficialScorer | None, *, question: Numbers | None = None
) -> pl.DataFrame:
    """All measures of words of every rollout, in the order of the rollouts.

    Args:
        rollouts: `question_id`, `answer`, `failure`, `gold_answer` and `gold_aliases`; the gold
            columns of a question are read from one of its rows.
        official: How the benchmark's own scorer compares words; None: no official values.
        question: Number of each row's question; None: compute it.

    Returns:
        `normalised` (the answer, empty without one) and the columns `METRICS`, each in [0, 1]: 0
        without an answer; null if the rollout failed, if the question has no gold answer, and in
        the official columns if there is no official scorer.
    """
    if question is None:
        question = question_numbers(rollouts["question_id"])[1]
    references = _references(rollouts, question)
    answers = rollouts["answer"].fill_null("")

    def score(start: int) -> pl.DataFrame:
        piece = slice(start, start + _ROWS_AT_ONCE)
        given = normalised(answers[piece])
        best = _best_over_references(given, question[piece], references, official)
        return pl.DataFrame({"normalised": given, **best})

    # each of these polars calls uses one core and releases the GIL
    with ThreadPoolExecutor(pl.thread_pool_size()) as threads:
        pieces = list(threads.map(score, range(0, max(1, len(answers)), _ROWS_AT_ONCE)))
    found = pl.concat(pieces)
    has_answer = (answers != "").to_numpy()
    unscored = rollouts["failure"].is_not_null().to_numpy() | ~references.known[question]
    columns = {name: found[name].to_numpy() * has_answer for name in METRICS}
    return pl.DataFrame(
        {
            "normalised": found["normalised"],
            **{n: pl.Series(np.where(unscored, np.nan, v)) for n, v in columns.items()},
        }
    ).with_columns(pl.col(METRICS).fill_nan(None))


@dataclass(frozen=True, slots=True)
class _References:
    """Normalised references of all questions in one list, the gold answer of each first."""

    starts: Numbers  # index of each question's first reference
    counts: Numbers  # number of its references, at least 1
    known: Flags  # whether it has a gold answer
    texts: pl.Series


def _references(rollouts: pl.DataFrame, question: Numbers) -> _References:
    row = np.zeros(question.max(initial=-1) + 1, np.int64)
    row[question] = np.arange(len(question))
    no_aliases = pl.lit([], dtype=pl.List(pl.String))
    gold = rollouts.select("gold_answer", "gold_aliases")[row].select(
        known=pl.col("gold_answer").is_not_null(),
        reference=pl.concat_list(
            pl.col("gold_answer").fill_null(""), pl.col("gold_aliases").fill_null(no_aliases)
        ).list.drop_nulls(),
    )
    counts = gold["reference"].list.len().to_numpy().astype(np.int64)
    return _References(
        starts=np.cumsum(counts) - counts,
        counts=counts,
        known=gold["known"].to_numpy(),
        texts=normalised(gold["reference"].explode()),
    )


def _best_over_references(
    given: pl.Series, question: Numbers, references: _References, official: OfficialScorer | None
) -> Mapping[str, Floats]:
    """Each measure's best value over the references of each prediction."""
    counts = references.counts[question]
    first = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    reference = np.arange(len(row)) + np.repeat(references.starts[question] - first, counts)
    pairs = _pair_scores(given.gather(row), references.texts.gather(reference), official)
    if not len(first):
        return pairs
    return {
        name: values[first]
        if official and not official.aliases and name.startswith("official")
        else np.maximum.reduceat(values, first)
        for name, values in pairs.items()
    }


def _pair_scores(
    given: pl.Series, wanted: pl.Series, official: OfficialScorer | None
) -> dict[str, Floats]:
    """All measures of (prediction, reference) pairs of normalised texts."""
    pair = pl.DataFrame({"given": given, "wanted": wanted})
    exact = (given == wanted).to_numpy()
    has, wants = (given != "").to_numpy(), (wanted != "").to_numpy()
    inside = _contains(pair, pl.col("given"), pl.col("wanted")) & has
    f1 = (exact & has).astype(np.float64)
    other = np.flatnonzero(~exact & has & wants)
    f1[other] = _frame_f1(pair[other])
    contained = exact & has
    maybe = np.flatnonzero(inside & ~exact & wants)
    padded = [pl.concat_str(pl.lit(" "), name, pl.lit(" ")) for name in pair.columns]
    contained[maybe] = _contains(pair[maybe], *padded)
    scores = {
        "exact_match": (exact & has).astype(np.float64),
        "substring_match": inside.astype(np.float64),
        "f1_score": f1,
        "containment": contained.astype(np.float64),
    }
    if official is None:
        nothing = np.full(len(f1), np.nan)
        return {**scores, "official_exact_match": nothing, "official_f1": nothing}
    official_f1 = f1.copy()
    if official.empty_equal:
        official_f1[~has & ~wants] = 1.0
    if official.strict_closed:
        closed = (given.is_in(_CLOSED_WORDS) | wanted.is_in(_CLOSED_WORDS)).to_numpy()
        official_f1[closed & ~exact] = 0.0
    return {
        **scores,
        "official_exact_match": exact.astype(np.float64),
        "official_f1": official_f1,
    }


def _contains(pair: pl.DataFrame, given: pl.Expr, wanted: pl.Expr) -> Flags:
    found: Flags = pair.select(given.str.contains(wanted, literal=True)).to_series().to_numpy()
    return found


def _frame_f1(pair: pl.DataFrame) -> Floats:
    """F1 of bags of words, of pairs in which both sides have words."""
    words = pair.select(pl.all().str.split(" "))
    total = words.select(pl.sum_horizontal(pl.all().list.len())).to_series().to_numpy()
    shared = words.select(pl.col("given").list.set_intersection("wanted").list.len()).to_series()
    common = shared.to_numpy().astype(np.float64)
    # sets are enough unless both sides repeat words
    some = np.flatnonzero(common > 0)
    repeats = words[some].select(pl.all().list.n_unique() < pl.all().list.len())
    both = some[(repeats["given"] & repeats["wanted"]).to_numpy()]
    if len(both):
        common[both] = _shared_with_repeats(words[both])
    f1: Floats = 2 * common / total
    return f1


def _shared_with_repeats(words: pl.DataFrame) -> Floats:
    """Size of the intersection of two bags of words."""
    counts = [
        words.lazy()
        .select(row=pl.int_range(pl.len()), word=side)
        .explode("word")
        .group_by("row", "word")
        .len()
        for side in words.columns
    ]
    least = pl.min_horizontal("len", "len_right").sum()
    both = counts[0].join(counts[1], on=["row", "word"]).group_by("row").agg(least)
    common = np.zeros(len(words))
    found = both.collect()
    common[found["row"].to_numpy()] = found["len"].to_numpy()
    return common


def question_numbers(question_ids: pl.Series) -> tuple[pl.Series, Numbers]:
    """The distinct ids, sorted, and the number of each row's id among them, shape (rows,)."""
    ids = question_ids.unique().sort()
    number = pl.DataFrame({"question_id": ids, "number": np.arange(len(ids))})
    rows = question_ids.alias("question_id").to_frame()
    joined = rows.join(number, on="question_id", how="left", maintain_order="left")
    return ids, joined["number"].to_numpy()
