"""What the checkers read of a reply: words, tokens, sentences and its language."""

import re
from collections.abc import Callable
from functools import cached_property, lru_cache

from mbt_cli.core.traces import THINKING_TAG, answering_text
from mbt_cli.verifiers.instructions import packages


class Text:
    """A reply, or what is left of it; each reading is made once, when a checker first needs it.

    Args:
        whole: The text.
    """

    def __init__(self, whole: str) -> None:
        self.whole = whole

    @cached_property
    def words(self) -> list[str]:
        """Runs of letters with their marks, digits and underscores, as NLTK finds them."""
        found: list[str] = packages.word_pattern().findall(self.whole)
        return found

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences by the rules that IFEval came with, stripped; see `sentences`."""
        return sentences(self.whole)

    @cached_property
    def punkt_sentences(self) -> list[str]:
        """The sentences by NLTK's Punkt."""
        found: list[str] = packages.sentence_splitter().tokenize(self.whole)
        return found

    @cached_property
    def tokens(self) -> list[str]:
        """Words and punctuation marks, as NLTK's `word_tokenize` separates them."""
        split = packages.word_splitter().tokenize
        return [token for sentence in self.punkt_sentences for token in split(sentence)]

    @cached_property
    def language(self) -> str | None:
        """Code of the language by langdetect, such as `en`; None without letters."""
        detector = packages.languages().create()
        detector.append(self.whole)
        try:
            return str(detector.detect())
        except packages.package("langdetect").LangDetectException:
            return None


def without_thinking(reply: str) -> str:
    """A reply as it is, or what is outside its thinking; empty if that is all there is."""
    return answering_text(reply, "length") if THINKING_TAG.search(reply) else reply


@lru_cache(maxsize=4_096)
def pattern(text: str, form: str = "{}") -> re.Pattern[str]:
    r"""A keyword as a regular expression that ignores case, as the checkers search for it.

    A keyword that is not a valid expression, such as `C++`, stands for itself.

    Args:
        text: The keyword.
        form: What stands around it, such as `\b{}\b` for a whole word.

    Example:
        >>> bool(pattern("colou?r").search("Color")), bool(pattern("C++").search("in c++"))
        (True, True)
    """
    try:
        return re.compile(form.format(text), re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):
        return re.compile(form.format(re.escape(text)), re.IGNORECASE)


# --- sentences

_KEPT = "\ue000"  # a period that ends no sentence
_END = "\ue001"  # the end of a sentence
_STARTERS = (
    r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s"
    r"|That\s|This\s|Wherever)"
)
_COMPANY = r"(Inc|Ltd|Jr|Sr|Co)"
_PERIODS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(expression), becomes)
    for expression, becomes in (
        (r"(Mr|St|Mrs|Ms|Dr)\.", rf"\1{_KEPT}"),
        (r"\.(com|net|org|io|gov|edu|me)", rf"{_KEPT}\1"),
        (r"([0-9])\.([0-9])", rf"\1{_KEPT}\2"),
        (r"\.{2,}", lambda dots: _KEPT * len(dots[0]) + _END),
        (r"Ph\.D\.", f"Ph{_KEPT}D{_KEPT}"),
        (r"\s([A-Za-z])\. ", rf" \1{_KEPT} "),
        (rf"([A-Z]\.[A-Z]\.(?:[A-Z]\.)?) {_STARTERS}", rf"\1{_END} \2"),
        (r"([A-Za-z])\.([A-Za-z])\.([A-Za-z])\.", rf"\1{_KEPT}\2{_KEPT}\3{_KEPT}"),
        (r"([A-Za-z])\.([A-Za-z])\.", rf"\1{_KEPT}\2{_KEPT}"),
        (rf" {_COMPANY}\. {_STARTERS}", rf" \1{_END} \2"),
        (rf" {_COMPANY}\.", rf" \1{_KEPT}"),
        (r" ([A-Za-z])\.", rf" \1{_KEPT}"),
    )
)


def sentences(text: str) -> list[str]:
    """The sentences of a text by the rules that IFEval came with, stripped.

    A sentence ends at a period, question mark or exclamation mark, and after several periods. The
    periods of titles, companies, initials, acronyms, web addresses and numbers end none. A mark
    before a closing quote ends the sentence after the quote. Line breaks count as spaces.

    Example:
        >>> sentences('Dr. Lee paid 3.50. "Why?" asked Bob')
        ['Dr. Lee paid 3.50.', '"Why"?', 'asked Bob']
    """
    text = f" {text}  ".replace("\n", " ")
    for expression, becomes in _PERIODS:
        text = expression.sub(becomes, text)
    for mark, quote in (
        (".", "\N{RIGHT DOUBLE QUOTATION MARK}"),
        (".", '"'),
        ("!", '"'),
        ("?", '"'),
    ):
        text = text.replace(f"{mark}{quote}", f"{quote}{mark}")
    for mark in ".?!":
        text = text.replace(mark, f"{mark}{_END}")
    found = [sentence.strip() for sentence in text.replace(_KEPT, ".").split(_END)]
    return found if found[-1] else found[:-1]
