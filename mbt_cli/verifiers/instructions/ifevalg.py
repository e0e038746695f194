"""The instructions of IF-RLVR, for training (arXiv 2507.02833): those of IFEval and 33 others.

The rules are those of open-instruct's IFEvalG. It names 54 instructions; data sets use those. Four
more have checkers there without a name in its list, and have the names that its comments give them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

from mbt_cli.verifiers.instructions.checkers import (
    Arguments,
    Checker,
    Outcome,
    compared,
    outcome,
    quoted,
    without,
)
from mbt_cli.verifiers.instructions.ifbench import keyword_at_place
from mbt_cli.verifiers.instructions.ifeval import (
    IFEVAL,
    filled_parts,
    keyword_count,
    letter_count,
    two_divided_paragraphs,
)
from mbt_cli.verifiers.instructions.text import Text, pattern, sentences

_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_LOWER_WORD = re.compile(r"\b[a-z]+\b")
_LETTER = re.compile(r"[a-zA-Z]")
_MARK = re.compile(r"[^\w\s]")
_CHANGE = re.compile(r"\*.*\*")
_SIZELESS = re.compile(r"[\\\[\](){}*+?|^$]")  # of expressions that match texts of several lengths


# --- copying


def varied_phrase(text: Text, arguments: Arguments) -> Outcome:
    """The phrase occurs exactly so many times, within a line, with at most one word changed.

    Occurrences are found by its first and last word; in the last of them, one word must differ.
    """
    words, wanted = arguments.text("phrase").split(), arguments.number("small_n")
    found = [one.split() for one in _between(words[0], words[-1], text.whole)] if words else []
    changes = [
        sum(map(str.__ne__, one, words)) if len(one) == len(words) else len(one) for one in found
    ]
    followed = len(found) == wanted and max(changes, default=0) <= 1 and changes[-1:] == [1]
    return outcome(followed, f"{quoted(' '.join(words))} {wanted} times, varied", len(found))


def _between(first: str, last: str, text: str) -> list[str]:
    """What reaches from one word to another, both included, within a line."""
    if not _SIZELESS.search(first + last):
        start, end = re.compile(f"{first} "), re.compile(f" {last}")
        return [one for line in text.split("\n") for one in _spans(line, start, end)]
    try:
        found: list[str] = re.findall(rf"{first} .*? {last}", text)
    except (re.error, OverflowError):
        found = re.findall(rf"{re.escape(first)} .*? {re.escape(last)}", text)
    return found


def _spans(line: str, start: re.Pattern[str], end: re.Pattern[str]) -> Iterator[str]:
    """What one expression with `.*?` in between finds, in a time that is linear."""
    place = 0
    while (first := start.search(line, place)) and (last := end.search(line, first.end())):
        yield line[first.start() : last.end()]
        place = last.end()


def copies_prompt(text: Text, arguments: Arguments) -> Outcome:
    """The text is the prompt, in any case."""
    prompt = arguments.text("prompt_to_repeat").strip()
    return outcome(text.whole.strip().lower() == prompt.lower(), quoted(prompt), quoted(text.whole))


def copies_prompt_often(text: Text, arguments: Arguments) -> Outcome:
    """The text is the prompt so many times, in any case, with `******` in between."""
    prompt = arguments.text("prompt_to_repeat").strip().lower()
    parts = [part.strip().lower() for part in text.whole.split("******")]
    wanted = arguments.number("N")
    return outcome(parts == [prompt] * wanted, f"the prompt {wanted} times", f"{len(parts)} parts")


def copies_span(text: Text, arguments: Arguments) -> Outcome:
    """The text is the prompt's characters from one index up to another, in any case."""
    prompt = arguments.text("prompt_to_repeat")
    span = prompt[arguments.number("n_start") : arguments.number("n_end")].strip()
    return outcome(text.whole.strip().lower() == span.lower(), quoted(span), quoted(text.whole))


# --- formats


def hyphened_sentences(text: Text, arguments: Arguments) -> Outcome:
    """What is between hyphens are the sentences of the text, without spaces around them."""
    parts = text.whole.split("-")
    wanted = sentences(text.whole.replace("-", " "))
    for part, sentence in zip(parts, wanted, strict=False):
        if part != sentence:
            return outcome(False, "sentences joined by hyphens", quoted(part))
    return outcome(True, "sentences joined by hyphens", "them")


def bracketed_words(text: Text, arguments: Arguments) -> Outcome:
    """Each word is in square brackets."""
    for word in text.whole.split():
        if not (word.startswith("[") and word.endswith("]")):
            return outcome(False, "each word in [ ]", quoted(word))
    return outcome(True, "each word in [ ]", "it")


def bracketed_pairs(text: Text, arguments: Arguments) -> Outcome:
    """Each pair of words is in double angle brackets; a last single word is not looked at."""
    words = text.whole.split()
    for first, second in zip(words[::2], words[1::2], strict=False):
        if not (first.startswith("<<") and second.endswith(">>")):
            return outcome(False, "each pair of words in << >>", quoted(f"{first} {second}"))
    return outcome(True, "each pair of words in << >>", "it")


def two_paragraphs(text: Text, arguments: Arguments) -> Outcome:
    """There are two paragraphs with an empty line between them."""
    count = filled_parts(text.whole.split("\n\n"))
    return outcome(count == 2, "two paragraphs", "an empty one" if count is None else count)


# --- keywords and words


def no_neighbours(text: Text, arguments: Arguments) -> Outcome:
    """No word starts with the letter that follows, in the alphabet, that of the word before."""
    starts = [word[0].lower() for word in text.whole.split()]
    for one, other in pairwise(starts):
        # a capital may become two characters in lower case
        if len(one) != 1 or len(other) != 1 or ord(other) - ord(one) == 1:
            found = f"{one}, {other}"
            return outcome(False, "no words in a row that start with letters in a row", found)
    return outcome(True, "no words in a row that start with letters in a row", "none")


def keyword_once(text: Text, arguments: Arguments) -> Outcome:
    """The keyword occurs once, in any case, also within a word."""
    word = arguments.text("keyword").strip()
    count = len(pattern(word).findall(text.whole))
    return outcome(count == 1, f"{quoted(word)} once", f"{count} times")


def keywords_once_and_twice(text: Text, arguments: Arguments) -> Outcome:
    """One keyword occurs once and another one twice, in any case, also within words."""
    words = [arguments.text(name).strip() for name in ("keyword1", "keyword2")]
    counts = [len(pattern(word).findall(text.whole)) for word in words]
    wanted = f"{quoted(words[0])} once and {quoted(words[1])} twice"
    return outcome(counts == [1, 2], wanted, f"{counts[0]} and {counts[1]} times")


def no_keyword(text: Text, arguments: Arguments) -> Outcome:
    """The keyword does not occur between two spaces; its case counts."""
    word = arguments.text("keyword").strip()
    return outcome(f" {word} " not in text.whole, f"no {quoted(word)}", "it")


def has_palindrome(text: Text, arguments: Arguments) -> Outcome:
    """A word reads the same from both ends; one letter is enough."""
    followed = any(word == word[::-1] for word in text.whole.split())
    return outcome(followed, "a palindrome", "none")


def same_start_and_end(text: Text, arguments: Arguments) -> Outcome:
    """The first and the last token are the same, in any case."""
    tokens = text.tokens
    followed = len(tokens) > 1 and tokens[0].lower() == tokens[-1].lower()
    found = " and ".join(map(quoted, (*tokens[:1], *tokens[-1:])))
    return outcome(followed, "the same word first and last", found)


def first_words(text: Text, arguments: Arguments) -> Outcome:
    """Each sentence starts with the word, in any case; a mark after it belongs to it."""
    return _each_sentence(text, arguments.text("first_word").strip(), 0)


def last_words(text: Text, arguments: Arguments) -> Outcome:
    """Each sentence ends with the word, in any case and without marks."""
    return _each_sentence(text, arguments.text("last_word").strip(), -1)


def _each_sentence(text: Text, word: str, place: int) -> Outcome:
    wanted = f"{quoted(word)} {'first' if place == 0 else 'last'} in each sentence"
    for sentence in text.sentences:
        found = _word_at(sentence, place)
        if found.lower() != word.lower() or not sentence:
            return outcome(False, wanted, quoted(found))
    return outcome(True, wanted, "it")


def _word_at(text: str, place: int) -> str:
    """The first word, or the last one without marks; empty if there is none."""
    words = text.split()
    word = words[place] if words else ""
    return word if place == 0 else _MARK.sub("", word)


def first_word(text: Text, arguments: Arguments) -> Outcome:
    """The text starts with the word, in any case; a mark after it belongs to it."""
    return _word_of_text(text, arguments.text("first_word").strip(), 0)


def last_word(text: Text, arguments: Arguments) -> Outcome:
    """The text ends with the word, in any case and without marks."""
    return _word_of_text(text, arguments.text("last_word").strip(), -1)


def _word_of_text(text: Text, word: str, place: int) -> Outcome:
    found = _word_at(text.whole, place)
    wanted = f"{quoted(word)} {'first' if place == 0 else 'last'}"
    return outcome(found.lower() == word.lower(), wanted, quoted(found))


# --- counts


def few_lower_case(text: Text, arguments: Arguments) -> Outcome:
    """At most so many words are in lower case."""
    count, most = len(_LOWER_WORD.findall(text.whole)), arguments.number("N")
    return outcome(count <= most, f"at most {most} words in lower case", count)


def letters(text: Text, arguments: Arguments) -> Outcome:
    """There are less than, or at least, so many letters of the English alphabet."""
    count = len(_LETTER.findall(text.whole))
    return compared(count, arguments.text("relation"), arguments.number("N"), "letters")


def composed_paragraphs(text: Text, arguments: Arguments) -> Outcome:
    """Three paragraphs between dividers `***` have so many sentences of so many tokens each."""
    count, size = arguments.number("n_sent"), arguments.number("n_words")
    wanted = f"3 paragraphs of {count} sentences with {size} words"
    parts = _DIVIDER.split(text.whole)
    for part in parts:
        lengths = [len(Text(sentence).tokens) for sentence in sentences(part)]
        if lengths != [size] * count or not part.strip():
            return outcome(False, wanted, f"sentences with {lengths[:10]} words")
    return outcome(len(parts) == 3, wanted, f"{len(parts)} paragraphs")


def unique_tokens(text: Text, arguments: Arguments) -> Outcome:
    """No token occurs twice, punctuation marks included; capitals make another one."""
    tokens = text.tokens
    twice = len(tokens) - len(set(tokens))
    return outcome(not twice, "no word twice", f"{twice} repeated")


# --- checkers without a name in the official list


def some_sentences(text: Text, arguments: Arguments) -> Outcome:
    """Exactly so many of the given sentences are sentences of the text."""
    given, wanted = arguments.texts("key_sentences"), arguments.number("num_sentences")
    count = sum(1 for sentence in given if sentence in text.sentences)
    return outcome(count == wanted, f"{wanted} of the given sentences", count)


def starts_a_line(text: Text, arguments: Arguments) -> Outcome:
    """A line starts with the phrase, after spaces; its case counts."""
    phrase = arguments.text("starter").strip()
    found = pattern(phrase, r"(?m-i:^[^\S\n]*{})").search(text.whole)
    return outcome(bool(found), f"a line that starts with {quoted(phrase)}", "none")


def rephrased(text: Text, arguments: Arguments) -> Outcome:
    """The text is the message but for what stands between asterisks, in a line."""
    message = arguments.text("original_message")
    same = _CHANGE.sub("", text.whole) == _CHANGE.sub("", message)
    followed = same and bool(_CHANGE.search(text.whole))
    return outcome(followed, "changes between asterisks only", quoted(text.whole))


def shared_words(text: Text, arguments: Arguments) -> Outcome:
    """The text shares from `low` to `high` words with the paragraph, each as often as in both."""
    low, high = arguments.number("low"), arguments.number("high")
    mine = Counter(Text(text.whole.lower()).words)
    theirs = Counter(Text(arguments.text("original_paragraph").lower()).words)
    count = (mine & theirs).total()
    return outcome(low <= count <= high, f"{low} to {high} shared words", count)


IFEVALG: Mapping[str, Checker] = {
    **IFEVAL,
    "copy:copy": copies_prompt,
    "copy:copying_multiple": copies_prompt_often,
    "copy:copying_simple": copies_prompt,
    "copy:repeat_phrase": varied_phrase,
    "count:count_increment_word": keywords_once_and_twice,
    "count:count_unique": unique_tokens,
    "count:counting_composition": composed_paragraphs,
    "count:lowercase_counting": few_lower_case,
    "detectable_content:rephrase_paragraph": shared_words,
    "detectable_format:bigram_wrapping": bracketed_pairs,
    "detectable_format:rephrase": rephrased,
    "detectable_format:sentence_hyphens": hyphened_sentences,
    "detectable_format:square_brackets": bracketed_words,
    "first_word:first_word_answer": first_word,
    "first_word:first_word_sent": first_words,
    "keywords:exclude_word_harder": no_keyword,
    "keywords:key_sentences": some_sentences,
    "keywords:keyword_specific_position": keyword_at_place,
    "keywords:no_adjacent_consecutive": no_neighbours,
    "keywords:palindrome": has_palindrome,
    "keywords:start_end": same_start_and_end,
    "keywords:word_count_different_numbers": keyword_count,
    "keywords:word_once": keyword_once,
    "last_word:last_word_answer": last_word,
    "last_word:last_word_sent": last_words,
    "letters:letter_counting": letters,
    "letters:letter_counting2": letter_count,
    "multi-turn:constrained_start": starts_a_line,
    "new:copy_span_idx": copies_span,
    "paragraphs:paragraphs": two_divided_paragraphs,
    "paragraphs:paragraphs2": two_paragraphs,
    "punctuation:punctuation_dot": without(".", "period"),
    "punctuation:punctuation_exclamation": without("!", "exclamation mark"),
}
"""Every instruction by its id."""
