"""The 25 instructions of IFEval (arXiv 2311.07911).

The rules are those of google-research's instruction_following_eval, which lm-eval shares. A letter
that is not one of a to z counts as itself, where the official checker counts a random letter; an
argument that is missing gives no verdict, where the official checker draws one.
"""

import json
import re
from collections.abc import Mapping

from mbt_cli.verifiers.instructions import packages
from mbt_cli.verifiers.instructions.checkers import (
    Arguments,
    Checker,
    Outcome,
    compared,
    counted,
    outcome,
    quoted,
    without,
)
from mbt_cli.verifiers.instructions.text import Text, pattern

_BLANK_LINES = re.compile(r"\n\s*\n")
_STAR = re.compile(r"^\s*\*[^*].*$", re.MULTILINE)
_DASH = re.compile(r"^\s*-.*$", re.MULTILINE)
_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_EMPHASIS = re.compile(r"\*[^\n*]*\*")
_STRONG = re.compile(r"\*\*[^\n*]*\*\*")
_FENCES = ("```json", "```Json", "```JSON", "```")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def has_keywords(text: Text, arguments: Arguments) -> Outcome:
    """Every keyword occurs, in any case and also within a word; keywords are expressions."""
    words = arguments.texts("keywords")
    missing = [word for word in words if not pattern(word).search(text.whole)]
    return outcome(not missing, ", ".join(map(quoted, missing)), "none of it")


def keyword_count(text: Text, arguments: Arguments) -> Outcome:
    """The keyword occurs less than, or at least, so many times, also within words."""
    word = arguments.text("keyword").strip()
    count = len(pattern(word).findall(text.whole))
    wanted = arguments.number("frequency")
    return compared(count, arguments.text("relation"), wanted, f"times {quoted(word)}")


def no_forbidden_words(text: Text, arguments: Arguments) -> Outcome:
    """None of the words occurs as a whole word, in any case."""
    words = arguments.texts("forbidden_words")
    found = [word for word in words if pattern(word, r"\b{}\b").search(text.whole)]
    return outcome(not found, "none of the forbidden words", ", ".join(map(quoted, found)))


def letter_count(text: Text, arguments: Arguments) -> Outcome:
    """The letter occurs less than, or at least, so many times, in any case."""
    letter = arguments.text("letter").strip().lower()
    count = text.whole.lower().count(letter)
    wanted = arguments.number("let_frequency")
    return compared(count, arguments.text("let_relation"), wanted, f"times {quoted(letter)}")


def in_language(text: Text, arguments: Arguments) -> Outcome:
    """The language is this one, as langdetect finds; a text without letters follows."""
    wanted = arguments.text("language")
    return outcome(text.language in (wanted, None), f"the language {wanted}", text.language)


def divided_paragraphs(text: Text, arguments: Arguments) -> Outcome:
    """There are exactly so many paragraphs between dividers `***`, none of them empty."""
    return _divided(text.whole, arguments.number("num_paragraphs"))


def two_divided_paragraphs(text: Text, arguments: Arguments) -> Outcome:
    """There are two paragraphs with a divider `***` between them."""
    return _divided(text.whole, 2)


def _divided(text: str, wanted: int) -> Outcome:
    count = filled_parts(_DIVIDER.split(text))
    found = "an empty one" if count is None else count
    return outcome(count == wanted, f"{wanted} paragraphs divided by ***", found)


def filled_parts(parts: list[str]) -> int | None:
    """How many parts have text; the first and the last may be empty. None if another one is.

    Example:
        >>> filled_parts(["", "a", "b", ""]), filled_parts(["a", "", "b"])
        (2, None)
    """
    if not all(part.strip() for part in parts[1:-1]):
        return None
    return sum(1 for part in parts if part.strip())


def nth_paragraph_start(text: Text, arguments: Arguments) -> Outcome:
    r"""Of exactly so many paragraphs, separated by an empty line, one starts with a given word.

    Empty paragraphs are not counted, but have a number. The word is compared in lower case, without
    quotes before it, up to the first punctuation mark.
    """
    paragraphs = text.whole.split("\n\n")
    count = sum(1 for paragraph in paragraphs if paragraph.strip())
    wanted, number = arguments.number("num_paragraphs"), arguments.number("nth_paragraph")
    word = arguments.text("first_word").lower()
    inside = paragraphs[number - 1].split() if 1 <= number <= count else []
    start = re.split(r"[.,?!'\"]", inside[0].lstrip("'").lstrip('"'))[0].lower() if inside else ""
    return outcome(
        count == wanted and bool(inside) and start == word,
        f"{wanted} paragraphs, the {number}. starting with {quoted(word)}",
        f"{count}, starting with {quoted(start)}",
    )


def placeholders(text: Text) -> int:
    """Number of texts in square brackets, within a line.

    Example:
        >>> placeholders(Text("[name] and [[street]] and [city"))
        2
    """
    count = 0
    for line in text.whole.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
            start = line.find("[", end)
    return count


def has_postscript(text: Text, arguments: Arguments) -> Outcome:
    """The marker occurs, in any case; P.S. and P.P.S may have spaces."""
    marker = arguments.text("postscript_marker").strip()
    expression = pattern(_POSTSCRIPTS.get(marker, marker.lower()))
    return outcome(bool(expression.search(text.whole.lower())), quoted(marker), "none")


def bullet_points(text: Text, arguments: Arguments) -> Outcome:
    """Exactly so many lines start with `-`, or with `*` and another character."""
    # of several empty lines one is enough; searching in each would take a quadratic time
    whole = _BLANK_LINES.sub("\n\n", text.whole)
    count = len(_STAR.findall(whole)) + len(_DASH.findall(whole))
    wanted = arguments.number("num_bullets")
    return outcome(count == wanted, f"{wanted} bullet points", count)


def one_of_three_answers(text: Text, arguments: Arguments) -> Outcome:
    """One of three given answers occurs: My answer is yes, no or maybe."""
    found = any(answer in text.whole for answer in _ANSWERS)
    return outcome(found, "`My answer is yes.`, `... no.` or `... maybe.`", "none of them")


def highlights(text: Text) -> int:
    """Number of texts between asterisks; one between two and two counts once more."""
    one = sum(1 for found in _EMPHASIS.findall(text.whole) if found.strip("*").strip())
    return one + sum(1 for found in _STRONG.findall(text.whole) if found[2:-2].strip())


def sections(text: Text, arguments: Arguments) -> Outcome:
    """At least so many headings, a given word and a number, occur."""
    word = arguments.text("section_spliter").strip()
    count = len(pattern(word, r"(?-i:\s?{}\s?\d+\s?)").split(text.whole)) - 1
    return compared(count, "at least", arguments.number("num_sections"), f"{word} headings")


def is_json(text: Text, arguments: Arguments) -> Outcome:
    """The whole text is JSON, in a fence or not."""
    inside = text.whole.strip()
    for fence in _FENCES:
        inside = inside.removeprefix(fence)
    try:
        json.loads(inside.removesuffix("```").strip())
    except (ValueError, RecursionError) as error:
        return outcome(False, "JSON only", f"other text ({quoted(str(error))})")
    return outcome(True, "JSON only", "JSON")


def has_title(text: Text, arguments: Arguments) -> Outcome:
    """A line has text between `<<` and `>>`."""
    for line in text.whole.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start <= end - 3 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return outcome(True, "a title in << >>", "one")
    return outcome(False, "a title in << >>", "none")


def two_responses(text: Text, arguments: Arguments) -> Outcome:
    """There are two different responses with `******` between them."""
    parts = text.whole.split("******")
    filled = [part.strip() for part in parts if part.strip()]
    is_right = filled_parts(parts) == 2 and filled[0] != filled[1]
    return outcome(is_right, "two different responses divided by ******", len(filled))


def repeats_prompt(text: Text, arguments: Arguments) -> Outcome:
    """The text starts with the prompt, in any case."""
    prompt = arguments.text("prompt_to_repeat").strip().lower()
    start = text.whole.strip()
    return outcome(start.lower().startswith(prompt), "the prompt first", quoted(start))


def ends_with(text: Text, arguments: Arguments) -> Outcome:
    """The text ends with the phrase, in any case; quotes around the text do not count."""
    phrase = arguments.text("end_phrase").strip()
    end = text.whole.strip().strip('"')
    is_right = end.lower().endswith(phrase.lower())
    return outcome(is_right, f"{quoted(phrase)} at the end", quoted(end[-len(phrase) :]))


def capital_words(text: Text) -> int:
    """Number of tokens in capital letters."""
    # only what has a capital letter can be one, and periods at its end change nothing
    chunks = [chunk for chunk in text.whole.split() if chunk != chunk.lower()]
    tokens = packages.word_splitter().tokenize(" ".join(chunks))
    return sum(1 for token in tokens if token.isupper())


def english_capitals(text: Text, arguments: Arguments) -> Outcome:
    """All letters are capitals, and langdetect finds English; texts without words follow."""
    is_right = text.whole.isupper() and text.language in ("en", None)
    return outcome(is_right, "English in capital letters", _case(text))


def english_lower_case(text: Text, arguments: Arguments) -> Outcome:
    """No letter is a capital, and langdetect finds English; texts without words follow."""
    is_right = text.whole.islower() and text.language in ("en", None)
    return outcome(is_right, "English in lower case", _case(text))


def _case(text: Text) -> str:
    if text.whole.isupper() or text.whole.islower():
        return f"the language {text.language}"
    return "small letters and capitals"


def in_quotes(text: Text, arguments: Arguments) -> Outcome:
    """The text starts and ends with a double quote."""
    inside = text.whole.strip()
    is_right = len(inside) > 1 and inside[0] == inside[-1] == '"'
    return outcome(is_right, "double quotes around the text", quoted(inside[:1] + inside[-1:]))


IFEVAL: Mapping[str, Checker] = {
    "change_case:capital_word_frequency": counted(
        capital_words, "words in capital letters", "capital_frequency", "capital_relation"
    ),
    "change_case:english_capital": english_capitals,
    "change_case:english_lowercase": english_lower_case,
    "combination:repeat_prompt": repeats_prompt,
    "combination:two_responses": two_responses,
    "detectable_content:number_placeholders": counted(
        placeholders, "placeholders in [ ]", "num_placeholders"
    ),
    "detectable_content:postscript": has_postscript,
    "detectable_format:constrained_response": one_of_three_answers,
    "detectable_format:json_format": is_json,
    "detectable_format:multiple_sections": sections,
    "detectable_format:number_bullet_lists": bullet_points,
    "detectable_format:number_highlighted_sections": counted(
        highlights, "highlights in * *", "num_highlights"
    ),
    "detectable_format:title": has_title,
    "keywords:existence": has_keywords,
    "keywords:forbidden_words": no_forbidden_words,
    "keywords:frequency": keyword_count,
    "keywords:letter_frequency": letter_count,
    "language:response_language": in_language,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_start,
    "length_constraints:number_paragraphs": divided_paragraphs,
    "length_constraints:number_sentences": counted(
        lambda text: len(text.punkt_sentences), "sentences", "num_sentences", "relation"
    ),
    "length_constraints:number_words": counted(
        lambda text: len(text.words), "words", "num_words", "relation"
    ),
    "punctuation:no_comma": without(",", "comma"),
    "startend:end_checker": ends_with,
    "startend:quotation": in_quotes,
}
"""Every instruction by its id."""
