"""Answer measures over whole frames: the rules of `core/answers.py`, a million rows in seconds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.answers import OfficialRules, official_rules

_PUNCTUATION = r"[!-/:-@\[-`{-~]"
_ARTICLES_ASCII = r"\b(?:a|an|the)\b"
# what Python's \b sees as a word: letters and numbers, but not combining marks
_ARTICLES_ANY = r"(^|[^\p{L}\p{N}])(?:a|an|the)([^\p{L}\p{N}]|$)"
_WHITE_SPACE = r"[\s\x1c-\x1f]+"
_CLOSED_WORDS = ["yes", "no", "noanswer"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

METRICS = (
    "exact_match",
    "substring_match",
    "f1_score",
    "containment",
    "official_exact_match",
    "official_f1",
)
"""Columns of `answer_metrics` beside `normalised`."""


def normalised(text: pl.Expr) -> pl.Expr:
    """`answers.normalise` of a text column."""
    words = text.str.to_lowercase().str.replace_all(_PUNCTUATION, "")
    is_ascii = words.str.len_bytes() == words.str.len_chars()
    # twice, since two articles in a row share the character between them
    other = words.str.replace_all(_ARTICLES_ANY, "$1 $2").str.replace_all(_ARTICLES_ANY, "$1 $2")
    without = pl.when(is_ascii).then(words.str.replace_all(_ARTICLES_ASCII, " ")).otherwise(other)
    return without.str.replace_all(_WHITE_SPACE, " ").str.strip_chars(" ")


def answer_metrics(rollouts: pl.DataFrame, benchmark: str) -> pl.DataFrame:
    """Every answer measure of every rollout, rows in the order of the input.

    Args:
        rollouts: `question_id`, `answer`, `failure`, `gold_answer` and `gold_aliases`; the gold
            columns of a question are taken from its first row.
        benchmark: Kind of the benchmark; decides whose official scorer is followed.

    Returns:
        `normalised` (the prediction, empty where there is none) and the columns `METRICS`, each
        in [0, 1]: 0 where the reply had no answer, null where the rollout failed, where the
        question has no gold answer, and in the official columns where no official scorer fits.
    """
    rules = official_rules(benchmark)
    answer = pl.col("answer").fill_null("")
    rows = rollouts.select(
        "question_id", answered=answer != "", normalised=normalised(answer), failure="failure"
    )
    references = _references(rollouts)
    best = _best_over_references(rows, references, rules)
    answered = rows["answered"].to_numpy()
    scored = rows["failure"].is_null().to_numpy() & references.known[references.question]
    columns = {
        name: pl.Series(name, np.where(scored, values * answered, np.nan)).fill_nan(None)
        for name, values in best.items()
    }
    return pl.DataFrame({"normalised": rows["normalised"], **columns})


@dataclass(frozen=True, slots=True)
class _References:
    """Normalised references of all questions in one list, gold first within each question."""

    question: npt.NDArray[np.int64]  # question number of each rollout
    starts: npt.NDArray[np.int64]  # where a question's references begin
    counts: npt.NDArray[np.int64]  # how many it has, at least 1
    known: Flags  # whether it has a gold answer
    texts: pl.Series


def _references(rollouts: pl.DataFrame) -> _References:
    questions = (
        rollouts.unique("question_id", keep="first", maintain_order=True)
        .select(
            "question_id",
            known=pl.col("gold_answer").is_not_null(),
            reference=pl.concat_list(
                pl.col("gold_answer").fill_null(""),
                pl.col("gold_aliases").fill_null(pl.lit([], dtype=pl.List(pl.String))),
            ).list.drop_nulls(),
        )
        .with_row_index("question")
    )
    numbers = rollouts.select("question_id").join(
        questions.select("question_id", "question"),
        on="question_id",
        how="left",
        maintain_order="left",
    )
    counts = questions["reference"].list.len().to_numpy().astype(np.int64)
    return _References(
        question=numbers["question"].to_numpy().astype(np.int64),
        starts=np.cumsum(counts) - counts,
        counts=counts,
        known=questions["known"].to_numpy(),
        texts=questions.select(normalised(pl.col("reference").explode()))["reference"],
    )


def _best_over_references(
    rows: pl.DataFrame, references: _References, rules: OfficialRules | None
) -> dict[str, Floats]:
    """The best value over references of each rollout, for every measure."""
    counts = references.counts[references.question]
    first = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    reference = np.arange(counts.sum()) - np.repeat(first, counts)
    reference += references.starts[references.question][row]
    pairs = _pair_scores(rows["normalised"].gather(row), references.texts.gather(reference), rules)
    gold_only = rules == "hotpotqa"
    return {
        name: values[first]
        if gold_only and name.startswith("official")
        else np.maximum.reduceat(values, first)
        if len(first)
        else values
        for name, values in pairs.items()
    }


def _pair_scores(
    given: pl.Series, wanted: pl.Series, rules: OfficialRules | None
) -> dict[str, Floats]:
    """Every measure of (prediction, reference) pairs of normalised texts."""
    pair = pl.DataFrame({"given": given, "wanted": wanted})
    has, wants = pl.col("given") != "", pl.col("wanted") != ""
    padded = " " + pl.col("given") + " "
    flags = pair.select(
        equal=pl.col("given") == pl.col("wanted"),
        has=has,
        wants=wants,
        substring=pl.col("given").str.contains(pl.col("wanted"), literal=True),
        contained=wants & padded.str.contains(" " + pl.col("wanted") + " ", literal=True),
        closed=pl.any_horizontal(pl.col("given", "wanted").is_in(_CLOSED_WORDS)),
    )
    flag = {name: flags[name].to_numpy() for name in flags.columns}
    f1 = _words_f1(pair)
    exact = flag["equal"].astype(np.float64)
    scores = {
        "exact_match": exact * flag["has"],
        "substring_match": (flag["substring"] & flag["has"]).astype(np.float64),
        "f1_score": f1,
        "containment": flag["contained"].astype(np.float64),
    }
    if rules is None:
        nothing = np.full(len(f1), np.nan)
        return {**scores, "official_exact_match": nothing, "official_f1": nothing}
    if rules == "musique":
        official_f1 = np.where(flag["has"] & flag["wants"], f1, exact)
    else:
        official_f1 = np.where(flag["closed"] & ~flag["equal"], 0.0, f1)
    return {**scores, "official_exact_match": exact, "official_f1": official_f1}


def _words_f1(pair: pl.DataFrame) -> Floats:
    """F1 of words counted with repeats; 0 where either side has none."""
    words = pair.select(pl.all().str.split(" "))
    # splitting an empty text gives one empty word
    sizes = [(words[c].list.len() * (pair[c] != "")).to_numpy().astype(float) for c in pair.columns]
    shared = words.select(pl.col("given").list.set_intersection("wanted").list.len()).to_series()
    common = np.where((sizes[0] > 0) & (sizes[1] > 0), shared.to_numpy(), 0).astype(np.float64)
    # a set is enough unless a word repeats on both sides
    repeats = words.select(
        (pl.col(c).list.n_unique() < pl.col(c).list.len()) for c in words.columns
    )
    both = (repeats["given"] & repeats["wanted"]).arg_true()
    if len(both):
        common[both.to_numpy()] = _shared_with_repeats(words[both])
    total = sizes[0] + sizes[1]
    f1: Floats = np.divide(2 * common, total, out=np.zeros_like(common), where=common > 0)
    return f1


def _shared_with_repeats(words: pl.DataFrame) -> Floats:
    """How many words two lists share, each as often as it stands in both."""
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
