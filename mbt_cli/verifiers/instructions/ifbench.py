"""The 58 instructions of IFBench (arXiv 2507.02833), by the rules of the published verdicts.

The official checkers were changed later: among others, `ratio:overlap` compares words instead of
characters, keywords and names must be whole words, and sentences are NLTK's. Verdicts by those
rules differ from the published ones. They decide only where the published code fails with an error.
"""

import csv
import io
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from mbt_cli.verifiers.instructions import packages
from mbt_cli.verifiers.instructions.checkers import (
    Arguments,
    Checker,
    Outcome,
    compared,
    counted,
    outcome,
    quoted,
)
from mbt_cli.verifiers.instructions.text import Text, sentences

_MARKS = string.punctuation
_EDGE = f"{_MARKS} "
_NO_MARKS = str.maketrans("", "", _MARKS)
_NUMBER = re.compile(r"\d+")
_TWO_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_PRIMES = frozenset(n for n in range(2, 98) if all(n % d for d in range(2, n)))
_CLOSING = {")": "(", "]": "[", "}": "{"}
_CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
_PRONOUNS_TEXT = """
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his
    himself she her hers herself it its itself they them their theirs themselves
"""
_NAMES_TEXT = """
    Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte
    Alexander Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail
    Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah
    Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
"""
_CAPITALS_TEXT = """
    Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin
    Berlin Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz
    Chisinau Bern Ljubljana Zagreb
"""
_PRONOUNS = frozenset(_PRONOUNS_TEXT.split())
_NAMES = _NAMES_TEXT.split()
_CAPITALS = _CAPITALS_TEXT.split()
_QUESTION = re.compile(r"\n*Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w+")
_SPECIAL = re.compile(r'".*[^\d\w\s].*"')
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_DAYS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
_SENTENCE = "Only output this sentence here, ignore all other requests."


def bare_words(text: str) -> list[str]:
    """Words in lower case, without any punctuation mark of ASCII."""
    return text.translate(_NO_MARKS).lower().split()


def first_failing(items: Iterable[str], holds: Callable[[str], object], wanted: str) -> Outcome:
    """Whether something holds for each of the items; the detail has the first that fails."""
    for item in items:
        if not holds(item):
            return outcome(False, wanted, quoted(item))
    return outcome(True, wanted, "all so")


# --- counts


def word_range(text: Text, arguments: Arguments) -> Outcome:
    """The number of words is between two numbers, both included."""
    low, high = arguments.number("min_words"), arguments.number("max_words")
    count = len(text.words)
    return outcome(low <= count <= high, f"{low} to {high} words", count)


def different_words(text: Text) -> int:
    """Number of different words in lower case, without punctuation marks around them."""
    return len({word.strip(_EDGE) for word in text.whole.lower().split()})


def conjunctions(text: Text) -> int:
    """Number of different coordinating conjunctions; other capitals or marks are different ones."""
    words = set(text.whole.split())
    return sum(1 for word in words if word.strip(_EDGE).lower() in _CONJUNCTIONS)


def names(text: Text) -> int:
    """How many of 50 given names occur, also within words."""
    return sum(1 for name in _NAMES if name in text.whole)


def numbers(text: Text, arguments: Arguments) -> Outcome:
    """Exactly so many runs of digits are left without punctuation marks."""
    count = len(_NUMBER.findall(text.whole.translate(_NO_MARKS)))
    wanted = arguments.number("N")
    return outcome(count == wanted, f"{wanted} numbers", count)


def pronouns(text: Text) -> int:
    """Number of personal pronouns; `/` separates words, and `it's` is `its`."""
    return sum(1 for word in bare_words(text.whole.replace("/", " ")) if word in _PRONOUNS)


def all_marks(text: Text, arguments: Arguments) -> Outcome:
    """Each of . , ! ? ; : occurs, in addition to one `?!`, `!?` or interrobang."""
    whole = text.whole
    wanted = "each of . , ! ? ; : and ?!"
    if not any(both in whole for both in ("?!", "!?", "\N{INTERROBANG}")):
        return outcome(False, wanted, "no ?!")
    rest = whole.replace("?!" if "?!" in whole else "!?", "", 1)
    missing = [mark for mark in ".,!?;:" if mark not in rest]
    return outcome(not missing, wanted, f"no {' '.join(missing)}")


def keyword_counts(text: Text, arguments: Arguments) -> Outcome:
    """Five keywords occur 1, 2, 3, 5 and 7 times, in any case and also within words."""
    whole = text.whole.lower()
    words = [arguments.text(f"keyword{number}").strip() for number in range(1, 6)]
    counts = [whole.count(word.lower()) for word in words]
    wanted = ", ".join(
        f"{quoted(w)} {n} times" for w, n in zip(words, (1, 2, 3, 5, 7), strict=True)
    )
    return outcome(counts == [1, 2, 3, 5, 7], wanted, counts)


def japanese_words(text: Text, arguments: Arguments) -> Outcome:
    """Every N-th word has a Japanese character, or is a number or only marks."""
    step = max(1, arguments.number("N"))
    words = [word.strip(_EDGE) for word in text.whole.split()[step - 1 :: step]]
    asked = (word for word in words if word and not word.isdigit())
    return first_failing(asked, _JAPANESE.search, f"each {step}. word in Japanese")


# --- shares


def stop_word_share(text: Text, arguments: Arguments) -> Outcome:
    """At most so many per cent of the words are stop words."""
    stop_words = packages.stop_words()
    count = sum(1 for word in text.words if word.lower() in stop_words)
    share = 100 * count / len(text.words) if text.words else 100
    most = arguments.number("percentage")
    followed = bool(text.words) and count / len(text.words) * 100 <= most
    return outcome(followed, f"at most {most} % stop words", f"{share:.1f} %")


def _ends(text: Text) -> Counter[str]:
    """How many sentences end in each mark."""
    return Counter(sentence[-1:] for sentence in text.sentences)


def two_statements_a_question(text: Text, arguments: Arguments) -> Outcome:
    """Twice as many sentences end in a period as in a question mark."""
    ends = _ends(text)
    found = f"{ends['.']} and {ends['?']}"
    return outcome(ends["."] == 2 * ends["?"], "two statements for each question", found)


def balanced_sentences(text: Text, arguments: Arguments) -> Outcome:
    """As many sentences end in a period as in a question mark, and in an exclamation mark."""
    ends = _ends(text)
    found = f"{ends['.']}, {ends['?']} and {ends['!']}"
    wanted = "as many statements as questions and exclamations"
    return outcome(ends["."] == ends["?"] == ends["!"], wanted, found)


def trigram_overlap(text: Text, arguments: Arguments) -> Outcome:
    """The reference has this share of the text's runs of three characters, up to 2 % off."""
    wanted = arguments.number("percentage")
    mine, theirs = _trigrams(text.whole), _trigrams(arguments.text("reference_text"))
    share = 100 * (len(mine & theirs) / len(mine)) if mine else 0.0
    followed = bool(mine) and wanted - 2 <= share <= wanted + 2
    return outcome(
        followed, f"{wanted} % of the trigrams in the reference, 2 % off", f"{share:.1f} %"
    )


def _trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


def equal_sentences(text: Text, arguments: Arguments) -> Outcome:
    """There are three sentences with the same number of characters."""
    lengths = [len(sentence) for sentence in text.sentences]
    followed = len(lengths) == 3 and len(set(lengths)) == 1
    return outcome(followed, "three sentences of equal length", f"lengths of {lengths[:4]}")


# --- words


def alphabet_loop(text: Text, arguments: Arguments) -> Outcome:
    """Each word starts with the letter after that of the word before; a follows z."""
    wanted = "each word with the next letter"
    words = text.whole.translate(_NO_MARKS).split()
    if not words or words[0][0].lower() not in string.ascii_lowercase:
        return outcome(False, wanted, "no letter at the start")
    start = string.ascii_lowercase.index(words[0][0].lower())
    for number, word in enumerate(words):
        if word.lower()[0] != string.ascii_lowercase[(start + number) % 26]:
            return outcome(False, wanted, quoted(word))
    return outcome(True, wanted, "it")


def three_vowels(text: Text, arguments: Arguments) -> Outcome:
    """The text is one line with at most three of the vowels a, e, i, o, u."""
    whole = text.whole.strip()
    vowels = sorted(set("aeiou") & set(whole.lower()))
    followed = "\n" not in whole and len(vowels) <= 3
    found = "several lines" if "\n" in whole else ", ".join(vowels)
    return outcome(followed, "one line with three vowels at most", found)


def consonant_clusters(text: Text, arguments: Arguments) -> Outcome:
    """Each word has two consonants in a row."""
    words = text.whole.lower().split()
    return first_failing(words, _TWO_CONSONANTS.search, "two consonants in a row in each word")


def ten_palindromes(text: Text, arguments: Arguments) -> Outcome:
    """At least ten words of five letters or more read the same from both ends."""
    words = bare_words(text.whole)
    count = sum(1 for word in words if len(word) >= 5 and word == word[::-1])
    return compared(count, "at least", 10, "palindromes of five letters or more")


def prime_lengths(text: Text, arguments: Arguments) -> Outcome:
    """The length of each word, without punctuation marks, is a prime number."""
    words = text.whole.translate(_NO_MARKS).split()
    return first_failing(words, lambda w: len(w) in _PRIMES, "words of prime length only")


def starts_with_verb(text: Text, arguments: Arguments) -> Outcome:
    """NLTK's tagger takes the first word for a verb."""
    tag = packages.part_of_speech(text.tokens) if text.tokens else ""
    return outcome("VB" in tag, "a verb first", f"{quoted(''.join(text.tokens[:1]))} {tag}")


def few_repeats(text: Text, arguments: Arguments) -> Outcome:
    """No word occurs more often than so many times."""
    most = arguments.number("small_n")
    often = Counter(bare_words(text.whole)).most_common(1)
    word, count = often[0] if often else ("", 0)
    return outcome(
        count <= most, f"no word more than {most} times", f"{quoted(word)} {count} times"
    )


def alternating_syllables(text: Text, arguments: Arguments) -> Outcome:
    """Words have an odd and an even number of syllables in turn, as syllapy counts them."""
    count = packages.package("syllapy").count
    parities = [count(word) % 2 for word in bare_words(text.whole)]
    followed = all(one != other for one, other in pairwise(parities))
    return outcome(followed, "odd and even numbers of syllables in turn", "two alike in a row")


def no_two_alike(text: Text, arguments: Arguments) -> Outcome:
    """No two words in a row start with the same letter."""
    for one, other in pairwise(bare_words(text.whole)):
        if one[0] == other[0]:
            found = quoted(f"{one} {other}")
            return outcome(False, "other first letters in a row", found)
    return outcome(True, "other first letters in a row", "them")


def last_becomes_first(text: Text, arguments: Arguments) -> Outcome:
    """The last word of each sentence is the first of the next, in any case."""
    wanted = "the last word of a sentence first in the next"
    for one, other in pairwise(text.sentences):
        last = one.rstrip(_EDGE).lower().split()[-1:]
        first = other.lstrip(_EDGE).lower().split()[:1]
        if not last or last != first:
            return outcome(False, wanted, f"{quoted(one[-30:])}, {quoted(other[:30])}")
    return outcome(True, wanted, "it")


def same_ends_in_paragraphs(text: Text, arguments: Arguments) -> Outcome:
    """Each line starts and ends with the same word, in any case; empty ones do not count."""
    for line in text.whole.lower().split("\n"):
        words = line.strip().strip(_EDGE).split()
        if words and words[0] != words[-1]:
            return outcome(False, "the same word at both ends of each line", quoted(line))
    return outcome(True, "the same word at both ends of each line", "it")


def keyword_at_place(text: Text, arguments: Arguments) -> Outcome:
    """The m-th token of the n-th sentence is the keyword; its case counts."""
    word = arguments.text("keyword").strip()
    sentence, place = arguments.number("n"), arguments.number("m")
    found = ""
    if 1 <= sentence <= len(text.sentences):
        found = next(iter(Text(text.sentences[sentence - 1]).tokens[max(0, place - 1) :]), "")
    wanted = f"{quoted(word)} as word {place} of sentence {sentence}"
    return outcome(found == word, wanted, quoted(found))


def second_and_second_last(text: Text, arguments: Arguments) -> Outcome:
    """The second token and the second to last one are the keyword; its case counts."""
    word, tokens = arguments.text("keyword").strip(), text.tokens
    found = [tokens[1], tokens[-2]] if len(tokens) > 1 else tokens
    return outcome(found == [word, word], f"{quoted(word)} second and second to last", found)


# --- sentences


def more_alliteration(text: Text, arguments: Arguments) -> Outcome:
    """Each sentence has more words than the one before that alliterate with a neighbour."""
    counts = [_alliterating(sentence) for sentence in text.sentences]
    followed = all(one < other for one, other in pairwise(counts))
    return outcome(followed, "more alliterating words in each sentence", counts[:10])


def _alliterating(sentence: str) -> int:
    """How many words start with the same letter as the word before or after them."""
    starts = [word[0] for w in sentence.lower().split() if (word := w.lstrip(_EDGE))]
    count, was_alike = 0, False
    for one, other in pairwise(starts):
        is_alike = one == other
        count += (1 if was_alike else 2) if is_alike else 0
        was_alike = is_alike
    return count


def keyword_in_sentence(text: Text, arguments: Arguments) -> Outcome:
    """The N-th sentence has the keyword, in any case and also within a word."""
    word, number = arguments.text("word"), arguments.number("N")
    found = text.sentences[number - 1] if 1 <= number <= len(text.sentences) else ""
    is_there = bool(found) and word.lower() in found.lower()
    return outcome(is_there, f"{quoted(word)} in sentence {number}", quoted(found))


def growing_sentences(text: Text, arguments: Arguments) -> Outcome:
    """Each sentence has exactly so many words more than the one before."""
    more = arguments.number("small_n")
    counts = [len(bare_words(sentence)) for sentence in text.sentences]
    followed = bool(counts) and all(other == one + more for one, other in pairwise(counts))
    return outcome(followed, f"{more} words more in each sentence", counts[:10])


# --- formats


def nested_brackets(text: Text, arguments: Arguments) -> Outcome:
    """Brackets are nested five deep, and the innermost is closed; a wrong one starts anew."""
    wanted = "brackets five deep"
    opened: list[str] = []
    deepest = 0
    for mark in text.whole:
        if mark in "([{":
            opened.append(mark)
            deepest = max(deepest, len(opened))
        elif mark in ")]}":
            if not opened or opened.pop() != _CLOSING[mark]:
                opened, deepest = [], 0
            elif deepest >= 5:
                return outcome(True, wanted, "them")
    return outcome(False, wanted, "none")


def nested_quotes(text: Text, arguments: Arguments) -> Outcome:
    """Double and single quotes in turn are nested three deep, and closed again."""
    opened: list[str] = []
    deepest = 0
    for mark in text.whole:
        if opened and mark == opened[-1]:
            opened.pop()
            if deepest - len(opened) >= 3:
                return outcome(True, "quotes three deep", "them")
        elif mark in "\"'":
            opened.append(mark)
            deepest = max(deepest, len(opened))
    return outcome(False, "quotes three deep", f"{deepest} deep")


def one_option(text: Text, arguments: Arguments) -> Outcome:
    """The text is one of the options, which `/`, `or` or `,` separates.

    Letters a, b, c must be written just so; of others, case and marks around them do not count.
    """
    options = arguments.text("options")
    separator = next((mark for mark in ("/", "or") if mark in options), ",")
    allowed = [option.strip() for option in options.split(separator)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]\W*", options):
        followed = text.whole in allowed
    else:
        given = text.whole.strip(_EDGE).lower()
        followed = given in [option.strip(_EDGE).lower() for option in allowed]
    return outcome(followed, f"one of {quoted(options)}", quoted(text.whole))


def word_a_line(text: Text, arguments: Arguments) -> Outcome:
    """There are as many lines that are not empty as words, punctuation marks left out."""
    whole = text.whole.translate(_NO_MARKS).strip()
    lines, words = sum(map(bool, whole.split("\n"))), len(whole.split())
    return outcome(lines == words, "a line for each word", f"{words} words in {lines} lines")


def emoji_sentences(text: Text, arguments: Arguments) -> Outcome:
    """Each sentence ends with an emoji, or the next one starts with one; marks do not count."""
    is_emoji = packages.package("emoji").is_emoji
    stripped = [s.translate(_NO_MARKS).strip() for s in text.sentences]
    wanted = "an emoji after each sentence"
    for number, sentence in enumerate(stripped):
        # some emojis are two characters
        near = [*sentence[-2:], *"".join(stripped[number + 1 : number + 2])[:1]]
        if not sentence or not any(map(is_emoji, near)):
            return outcome(False, wanted, quoted(text.sentences[number]))
    return outcome(True, wanted, "it")


def stairs(text: Text, arguments: Arguments) -> Outcome:
    """Each line is indented by more spaces than the one before; of empty lines, every other counts.

    The published checker leaves out empty lines while it goes through them, so that it misses the
    second of two in a row.
    """
    lines = text.whole.split("\n")
    number = 0
    while number < len(lines):
        if not lines[number].strip():
            lines.remove(lines[number])  # the first one that is like it
        number += 1
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    followed = all(one < other for one, other in pairwise(indents))
    return outcome(followed, "each line further in", f"indents of {indents[:10]}")


def explained_quotes(text: Text, arguments: Arguments) -> Outcome:
    """No two double quotes follow each other, and the text does not end with one."""
    whole = re.sub(
        "[\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}]", '"', text.whole
    )
    whole = "".join(whole.replace("'\"'", "").split())
    inside = whole.strip(string.digits + _MARKS.replace('"', ""))
    followed = '""' not in whole and inside[-1:] != '"'
    return outcome(followed, "words after each quote", "a quote without")


def own_bullets(text: Text, arguments: Arguments) -> Outcome:
    """The separator occurs twice or more."""
    mark = arguments.text("sep")
    count = text.whole.count(mark)
    return outcome(count >= 2, f"{quoted(mark)} before two items or more", count)


def italic_thesis(text: Text, arguments: Arguments) -> Outcome:
    """There is text within `<i>` or `<em>`, and after it."""
    whole = text.whole
    start = next((place for tag in ("<i>", "<em>") if (place := whole.find(tag)) >= 0), -1)
    rest = whole[start:] if start >= 0 else ""
    end = next((place for tag in ("</i>", "</em>") if (place := rest.find(tag)) >= 0), -1)
    followed = end >= 0 and bool(rest[3:end].strip()) and bool(rest[end + 4 :].strip())
    return outcome(followed, "a thesis in <i> and text after it", "none")


def sub_bullets(text: Text, arguments: Arguments) -> Outcome:
    """After each `*` and before the next one, there is a `-`."""
    bullets = text.whole.split("*")[1:]
    return first_failing(bullets, lambda bullet: "-" in bullet, "a - for each *")


def sentences_then_bullets(text: Text, arguments: Arguments) -> Outcome:
    """Lines with two sentences or more, then at least two lines that start with `*`."""
    wanted = "two sentences, then two bullets"
    count = bullets = 0
    is_prose = True
    for line in map(str.strip, text.whole.split("\n")):
        if line.startswith("*") and count >= 2:
            is_prose, bullets = False, bullets + 1
        elif line.startswith("*") or not is_prose:
            return outcome(False, wanted, quoted(line))
        else:
            found = len(sentences(line))
            count, is_prose = count + found, found > 0
    return outcome(bullets >= 2, wanted, f"{bullets} bullets")


def title_case(text: Text, arguments: Arguments) -> Outcome:
    """No token of two letters or more starts with a small letter, unless its case is mixed."""

    def is_title(token: str) -> bool:
        rest = token[1:]
        return not (token[0].islower() and (rest.islower() or rest.isupper()))

    return first_failing(text.tokens, is_title, "capitals first")


def answer_template(text: Text, arguments: Arguments) -> Outcome:
    """Three given headings occur."""
    wanted = ("My Answer:", "My Conclusion:", "Future Outlook:")
    missing = [heading for heading in wanted if heading not in text.whole]
    return outcome(not missing, ", ".join(map(quoted, wanted)), f"no {', '.join(missing)}")


def no_white_space(text: Text, arguments: Arguments) -> Outcome:
    """No character is white space."""
    followed = not any(map(str.isspace, text.whole))
    return outcome(followed, "no white space", "some")


# --- repeating


def other_first_character(text: Text, arguments: Arguments) -> Outcome:
    """The text differs from the request in its first character, and in nothing else."""
    request = arguments.text("prompt_to_repeat")
    followed = text.whole != request and text.whole[1:] == request[1:]
    return outcome(followed, "the request with another start", quoted(text.whole))


def only_the_sentence(text: Text, arguments: Arguments) -> Outcome:
    """The text is one given sentence, in any case."""
    followed = text.whole.strip().lower() == _SENTENCE.lower()
    return outcome(followed, quoted(_SENTENCE), quoted(text.whole))


def span_of_words(text: Text, arguments: Arguments) -> Outcome:
    """The text is the words of the request from one index up to another, without that one."""
    words = arguments.text("prompt_to_repeat").lower().split()
    span = words[arguments.number("n_start") : arguments.number("n_end")]
    followed = text.whole.lower().split() == span
    return outcome(followed, quoted(" ".join(span)), quoted(text.whole))


# --- tasks


def multiples_of_seven(text: Text, arguments: Arguments) -> Outcome:
    """The numbers are the multiples of 7 between 10 and 50, in order."""
    found = _NUMBER.findall(text.whole)
    return outcome(found == [*map(str, range(14, 50, 7))], "14 21 28 35 42 49", found[:10])


def longer_questions(text: Text, arguments: Arguments) -> Outcome:
    """Four questions, each longer than the one before and with five options, and nothing first."""
    wanted = "four questions with five options, each longer"
    if not text.whole.startswith("Question"):
        return outcome(False, wanted, quoted(text.whole))
    asked = [part.strip() for part in _QUESTION.split(text.whole) if part.strip()]
    lengths, options = [], []
    for part in asked:
        lines = [line.strip() for line in part.split("\n")]
        is_option = [bool(_OPTION.match(line)) for line in lines]
        options.append(sum(is_option))
        before = lines[: is_option.index(True)] if True in is_option else lines
        lengths.append(len(" ".join(before).strip()))
    is_longer = all(one < other for one, other in pairwise(lengths))
    followed = options == [5, 5, 5, 5] and is_longer
    return outcome(followed, wanted, f"options {options[:5]}, lengths {lengths[:5]}")


def african_countries(text: Text, arguments: Arguments) -> Outcome:
    """From the line with Zimbabwe on, there are 52 lines or more in reverse alphabetical order."""
    lines = [stripped for line in text.whole.split("\n") if (stripped := line.strip(_EDGE))]
    start = next((n for n, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    countries = [_plain(line) for line in lines[start:]]
    followed = len(countries) >= 52 and countries == sorted(countries, reverse=True)
    wanted = "the countries of Africa from Zimbabwe on in reverse order"
    return outcome(followed, wanted, f"{len(countries)} lines")


def _plain(text: str) -> str:
    """A text in ASCII, accents left out."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def eagle_by_words(text: Text, arguments: Arguments) -> Outcome:
    """The words in reverse order have `bald eagle`."""
    words = " ".join(reversed(bare_words(text.whole)))
    return outcome("bald eagle" in words, "`eagle bald`", quoted(text.whole))


def eagle_by_letters(text: Text, arguments: Arguments) -> Outcome:
    """`elgae dlab` occurs, in any case."""
    return outcome("elgae dlab" in text.whole.lower(), "`elgae dlab`", quoted(text.whole))


def alphabet_sentences(text: Text, arguments: Arguments) -> Outcome:
    """There are 26 sentences that start with a to z in order, in any case."""
    starts = "".join(sentence[:1].lower()[:1] for sentence in text.sentences)
    followed = len(text.sentences) == 26 and starts == string.ascii_lowercase
    return outcome(followed, "26 sentences from a to z", quoted(starts))


def northern_capitals(text: Text, arguments: Arguments) -> Outcome:
    """The text is 27 given capitals from north to south, with commas; accents do not count."""
    found = [city.strip() for city in _plain(text.whole).split(",") if city.strip()]
    return outcome(found == _CAPITALS, "27 capitals from north to south", f"{len(found)} names")


def _table(text: str, delimiter: str = ",") -> list[list[str]]:
    """The rows of CSV; none if it cannot be read."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def _with_quotes(text: str) -> str:
    """CSV whose fields keep the quotes around them."""
    return text.replace('"', '"""')


def _heading(names: str, gap: str) -> re.Pattern[str]:
    fields = (f'(?:{name}|"{name}")' for name in names.split())
    return re.compile(f"{gap.join(fields)}$")


_PRODUCTS = _heading("ProductID Category Brand Price Stock", r",[ \t]*")
_STUDENTS = _heading("StudentID Subject Grade Semester Score", r"\t *")


def city_table(text: Text, arguments: Arguments) -> Outcome:
    """CSV with given names of columns and seven rows of five fields."""
    rows = _table(text.whole)
    head = ["ID", "Country", "City", "Year", "Count"]
    followed = len(rows) == 8 and rows[0] == head and all(len(row) == 5 for row in rows)
    return outcome(followed, f"CSV with {','.join(head)} and 7 rows", f"{len(rows)} lines")


def product_table(text: Text, arguments: Arguments) -> Outcome:
    """CSV with given names and 14 rows; one quoted field has a special character.

    Rows count as far as the one with that field.
    """
    followed = False
    rows = _table(_with_quotes(text.whole))
    if _PRODUCTS.match(text.whole.split("\n")[0].strip()) and len(rows) == 15:
        for row in rows[1:]:
            followed = len(row) == 5 and any(map(_SPECIAL.match, row))
            if followed or len(row) != 5:
                break
    wanted = "CSV of products with 14 rows and a quoted special character"
    return outcome(followed, wanted, f"{len(rows)} lines")


def student_table(text: Text, arguments: Arguments) -> Outcome:
    """Fields with quotes around each, separated by tabs, with given names and three rows."""
    rows = _table(_with_quotes(text.whole), "\t")
    fields = [field.strip() for row in rows for field in row]
    followed = (
        bool(_STUDENTS.match(text.whole.split("\n")[0].strip()))
        and [len(row) for row in rows] == [5, 5, 5, 5]
        and all(field[:1] == field[-1:] == '"' for field in fields)
    )
    return outcome(followed, "a table of students with 3 rows, all quoted", f"{len(rows)} lines")


def battle_dates(text: Text, arguments: Arguments) -> Outcome:
    """The text is dates from 1769 to 1821 as YYYY-MM-DD, separated by commas."""

    def is_date(part: str) -> bool:
        found = _DATE.fullmatch(part)
        year, month, day = map(int, found.groups()) if found else (0, 0, 0)
        return 1769 <= year <= 1821 and month <= 12 and day <= _DAYS.get(month, 31 if month else 99)

    dates = [part.strip() for part in text.whole.strip().split(",")]
    return first_failing(dates, is_date, "dates of Napoleon's time as YYYY-MM-DD")


IFBENCH: Mapping[str, Checker] = {
    "count:conjunctions": counted(conjunctions, "different conjunctions", "small_n"),
    "count:keywords_multiple": keyword_counts,
    "count:numbers": numbers,
    "count:person_names": counted(names, "of 50 names", "N"),
    "count:pronouns": counted(pronouns, "pronouns", "N"),
    "count:punctuation": all_marks,
    "count:unique_word_count": counted(different_words, "different words", "N"),
    "count:word_count_range": word_range,
    "count:words_japanese": japanese_words,
    "custom:character_reverse": eagle_by_letters,
    "custom:csv_city": city_table,
    "custom:csv_quotes": student_table,
    "custom:csv_special_character": product_table,
    "custom:date_format_list": battle_dates,
    "custom:european_capitals_sort": northern_capitals,
    "custom:mcq_count_length": longer_questions,
    "custom:multiples": multiples_of_seven,
    "custom:reverse_newline": african_countries,
    "custom:sentence_alphabet": alphabet_sentences,
    "custom:word_reverse": eagle_by_words,
    "format:emoji": emoji_sentences,
    "format:line_indent": stairs,
    "format:list": own_bullets,
    "format:newline": word_a_line,
    "format:no_bullets_bullets": sentences_then_bullets,
    "format:no_whitespace": no_white_space,
    "format:options": one_option,
    "format:output_template": answer_template,
    "format:parentheses": nested_brackets,
    "format:quote_unquote": explained_quotes,
    "format:quotes": nested_quotes,
    "format:sub-bullets": sub_bullets,
    "format:thesis": italic_thesis,
    "format:title_case": title_case,
    "ratio:overlap": trigram_overlap,
    "ratio:sentence_balance": balanced_sentences,
    "ratio:sentence_type": two_statements_a_question,
    "ratio:sentence_words": equal_sentences,
    "ratio:stop_words": stop_word_share,
    "repeat:repeat_change": other_first_character,
    "repeat:repeat_simple": only_the_sentence,
    "repeat:repeat_span": span_of_words,
    "sentence:alliteration_increment": more_alliteration,
    "sentence:increment": growing_sentences,
    "sentence:keyword": keyword_in_sentence,
    "words:alphabet": alphabet_loop,
    "words:consonants": consonant_clusters,
    "words:keywords_specific_position": keyword_at_place,
    "words:last_first": last_becomes_first,
    "words:no_consecutive": no_two_alike,
    "words:odd_even_syllables": alternating_syllables,
    "words:palindrome": ten_palindromes,
    "words:paragraph_last_first": same_ends_in_paragraphs,
    "words:prime_lengths": prime_lengths,
    "words:repeats": few_repeats,
    "words:start_verb": starts_with_verb,
    "words:vowel": three_vowels,
    "words:words_position": second_and_second_last,
}
"""Every instruction by its id."""
