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
import pyarrow as pa

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
_END = "\0"
"""Between texts that are worked on as one."""
_SHORT = 50  # bytes, on average
_SPACE, _FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x20, 0x7E
_LONGEST_ARTICLE = 3
_LOWER = bytes.maketrans(string.ascii_uppercase.encode(), string.ascii_lowercase.encode())
# white space, as Python's `split` sees it, that is not a single space
_LOOSE_SPACE = r"[\s\x1c-\x1f]{2,}|[\t-\r\x1c-\x1f\x85\xa0\p{Zl}\p{Zp}]|[^ \P{Zs}]"
_ARTICLES = r" (?:(?:a|an|the) )+"  # in a text with a space at both ends
# for Python's \b letters and numbers are parts of words, combining marks and dashes are not
_ARTICLES_ANY = r"(^|[^\p{L}\p{N}])(?:a|an|the)([^\p{L}\p{N}]|$)"
_NOT_PLAIN = r"[^ 0-9a-z]"
_CLOSED_WORDS = ["yes", "no", "noanswer"]
_ROWS_AT_ONCE = 1 << 17

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
    """`normalise` of every text; null stays null.

    Short texts are worked on as one run of bytes, which takes half of the time, then those with a
    character that is not printable ASCII by themselves.
    """
    if texts.null_count() or texts.str.len_bytes().sum() > _SHORT * len(texts):
        return _normalised_texts(texts)
    joined = texts.str.join(_END).item().encode()
    data = np.frombuffer(joined, np.uint8)
    special = np.flatnonzero(data - _FIRST_PRINTABLE > _LAST_PRINTABLE - _FIRST_PRINTABLE)
    is_end = data[special] == 0
    if int(is_end.sum()) != len(texts) - 1:  # a text holds the character, or there are no texts
        return _normalised_texts(texts)
    found = _texts(_words(joined))
    others = np.unique(np.cumsum(is_end)[~is_end])
    if len(others):
        found = found.scatter(others, _normalised_texts(texts.gather(others)))
    return found.alias(texts.name)


def _words(joined: bytes) -> npt.NDArray[np.uint8]:
    """Words of texts of printable ASCII that are joined by `_END`, as bytes.

    0 before and after each text, a space after each word but for the last one of some texts.
    """
    kept = joined.translate(_LOWER, string.punctuation.encode())
    data = np.frombuffer(b"\0" + kept + bytes(_LONGEST_ARTICLE + 1), np.uint8).copy()
    last = len(data) - _LONGEST_ARTICLE
    is_gap = data <= _SPACE
    for article in (b"a", b"an", b"the"):
        found = is_gap[: last - 1] & is_gap[1 + len(article) : last + len(article)]
        for place, letter in enumerate(article, start=1):
            found &= data[place : last - 1 + place] == letter
        at = np.flatnonzero(found)
        for place in range(1, len(article) + 1):
            data[at + place] = _SPACE
    data = data[:last]
    is_kept = data != _SPACE
    is_kept[1:] |= data[:-1] > _SPACE
    words: npt.NDArray[np.uint8] = data[is_kept]
    return words


def _texts(words: npt.NDArray[np.uint8]) -> pl.Series:
    """Texts from their words: a single space between two, none at the ends."""
    ends = np.flatnonzero(words == 0)
    is_trailing = words[ends[1:] - 1] == _SPACE
    is_kept = words != 0
    is_kept[ends[1:][is_trailing] - 1] = False
    offsets = np.zeros(len(ends), np.int64)
    np.cumsum(np.diff(ends) - 1 - is_trailing, out=offsets[1:])
    buffers = (pa.py_buffer(part) for part in (offsets, words[is_kept]))
    return pl.Series(pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers))


def _normalised_texts(texts: pl.Series) -> pl.Series:
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
    columns = {
        name: np.where(unscored, np.nan, found[name].to_numpy() * has_answer)
        if name in found.columns
        else np.full(len(answers), np.nan)
        for name in METRICS
    }
    values = pl.DataFrame(columns, nan_to_null=True)
    return values.select(found["normalised"], pl.all())


@dataclass(frozen=True, slots=True)
class _References:
    """Normalised references of all questions."""

    gold: pl.Series  # of each question; empty if there is none
    known: Flags  # whether it has one
    aliases: pl.Series  # of all questions, in order
    starts: Numbers  # index of each question's first alias
    counts: Numbers  # number of its aliases


def _references(rollouts: pl.DataFrame, question: Numbers) -> _References:
    row = np.zeros(question.max(initial=-1) + 1, np.int64)
    row[question] = np.arange(len(question))
    gold, aliases = (rollouts[name].gather(row) for name in ("gold_answer", "gold_aliases"))
    listed = pl.DataFrame({"question": np.arange(len(row)), "alias": aliases})
    listed = listed.explode("alias").drop_nulls().cast({"alias": pl.String})  # null if all empty
    counts = np.bincount(listed["question"].to_numpy(), minlength=len(row))
    return _References(
        gold=normalised(gold.fill_null("")),
        known=gold.is_not_null().to_numpy(),
        aliases=normalised(listed["alias"]),
        starts=np.cumsum(counts) - counts,
        counts=counts,
    )


def _best_over_references(
    given: pl.Series, question: Numbers, references: _References, official: OfficialScorer | None
) -> Mapping[str, Floats]:
    """Each measure's best value over the references of each prediction."""
    best = _pair_scores(given, references.gold.gather(question), official)
    counts = references.counts[question]
    row = np.repeat(np.arange(len(counts)), counts)
    shift = references.starts[question] - (np.cumsum(counts) - counts)
    alias = references.aliases.gather(np.arange(len(row)) + np.repeat(shift, counts))
    for name, values in _pair_scores(given.gather(row), alias, official).items():
        if official is None or not name.startswith("official") or official.aliases:
            np.maximum.at(best[name], row, values)
    return best


def _pair_scores(
    given: pl.Series, wanted: pl.Series, official: OfficialScorer | None
) -> dict[str, Floats]:
    """All measures of (prediction, reference) pairs of normalised texts."""
    pair = pl.DataFrame({"given": given, "wanted": wanted})
    equal = (given == wanted).to_numpy()
    has, wants = (given != "").to_numpy(), (wanted != "").to_numpy()
    exact = equal & has
    inside = _contains(pair, "given", "wanted") & has
    contained = exact.copy()
    maybe = np.flatnonzero(inside & ~exact & wants)
    contained[maybe] = _contains_words(pair[maybe], "given", "wanted")
    f1 = exact.astype(np.float64)
    other = np.flatnonzero(~equal & has & wants)
    f1[other] = _f1(pair[other], contained[other])
    scores = {
        "exact_match": exact.astype(np.float64),
        "substring_match": inside.astype(np.float64),
        "f1_score": f1,
        "containment": contained.astype(np.float64),
    }
    if official is None:
        return scores
    official_f1 = f1.copy()
    if official.empty_equal:
        official_f1[~has & ~wants] = 1.0
    if official.strict_closed:
        closed = (given.is_in(_CLOSED_WORDS) | wanted.is_in(_CLOSED_WORDS)).to_numpy()
        official_f1[closed & ~equal] = 0.0
    return {
        **scores,
        "official_exact_match": equal.astype(np.float64),
        "official_f1": official_f1,
    }


def _contains(pair: pl.DataFrame, text: str, part: str) -> Flags:
    found = pair.select(pl.col(text).str.contains(pl.col(part), literal=True))
    return found.to_series().to_numpy()


def _contains_words(pair: pl.DataFrame, text: str, part: str) -> Flags:
    spaced = (pl.format(" {} ", pl.col(name)).alias(name) for name in pair.columns)
    return _contains(pair.select(spaced), text, part)


def _f1(pair: pl.DataFrame, contained: Flags) -> Floats:
    """F1 of bags of words, of different texts that have words.

    `contained`: whether the words of `wanted` are consecutive words of `given`. A text of one word
    shares it or nothing; only pairs of longer texts are split into words.
    """
    f1 = np.zeros(len(pair))
    several = pair.select(pl.all().str.contains(" ", literal=True))
    given, wanted = (several[side].to_numpy() for side in ("given", "wanted"))
    turned = np.flatnonzero(~given & wanted)
    shares = contained & ~wanted
    shares[turned] = _contains_words(pair[turned], "wanted", "given")
    one = np.flatnonzero(shares)
    spaces = pair[one].select(pl.sum_horizontal(pl.all().str.count_matches(" ", literal=True)))
    f1[one] = 2.0 / (spaces.to_series().to_numpy() + 2)
    many = np.flatnonzero(given & wanted)
    f1[many] = _bags_f1(pair[many])
    return f1


def _bags_f1(pair: pl.DataFrame) -> Floats:
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
    run = question_ids.rle_id().to_numpy().astype(np.int64)  # number of equal neighbours
    heads = question_ids.gather(np.flatnonzero(np.diff(run, prepend=-1)))
    order = heads.arg_sort()
    ranked = heads.gather(order)
    is_first = (ranked != ranked.shift()).fill_null(value=True)  # the first one has none before it
    number = np.empty(len(heads), np.int64)
    number[order.to_numpy()] = np.cumsum(is_first.to_numpy()) - 1
    return ranked.filter(is_first), number[run]
