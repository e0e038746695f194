"""Answers one at a time: taken out of a reply, normalised, compared with the references.

`core/answer_frames.py` does the same over whole frames; a property test holds the two equal.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

OfficialRules = Literal["hotpotqa", "2wikimultihopqa", "musique"]
"""Whose official scorer: they differ in the references, in yes / no, and in empty texts."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_ANSWER_PAIR = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE)
_CLOSED_WORDS = ("yes", "no", "noanswer")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and the words a, an, the; white space squeezed.

    The order counts: punctuation goes first, so `a.m.` becomes `am` and keeps its `a`.
    Source: the SQuAD evaluation script, which every scorer below shares.

    Example:
        >>> normalise("  The Theatre, a.m. of AN end! ")
        'theatre am of end'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def extract_answer_published(reply: str) -> str:
    """Text between the last `<answer>` and the next `</answer>`; empty when either is missing.

    As the published code reads replies, kept for comparison: an unclosed last tag loses the
    answer, tags in capitals are not seen, and a pair inside a think block counts.

    Example:
        >>> extract_answer_published("<answer>Paris</answer> or <answer>")
        ''
    """
    start = reply.rfind("<answer>")
    if start < 0:
        return ""
    start += len("<answer>")
    end = reply.find("</answer>", start)
    return "" if end < 0 else reply[start:end].strip()


def extract_answer(reply: str) -> str:
    """Text of the last complete answer pair outside the thinking; empty when there is none.

    Tags count in any case. A last tag that never closes falls back to the last complete pair.
    A think block, also one whose opening tag the chat template kept to itself, is left out when
    text follows it.

    Example:
        >>> extract_answer("<think><answer>Rome</answer></think><ANSWER> Paris </ANSWER><answer>")
        'Paris'
    """
    pairs = _ANSWER_PAIR.findall(outside_thinking(reply))
    return pairs[-1].strip() if pairs else ""


def outside_thinking(reply: str) -> str:
    """The reply without its think blocks, or all of it when nothing else is there."""
    first, *rest = _THINK_TAG.split(reply)
    kept, thinking = [first], ""
    inside = False
    for slash, text in zip(rest[::2], rest[1::2], strict=True):
        if not slash:
            thinking, inside = (thinking if inside else "") + text, True
            continue
        if not inside:  # the opening tag was in the chat template: all before it was thinking
            kept.clear()
        kept.append(text)
        thinking, inside = "", False
    outside = "\n".join([*kept, thinking])
    return outside if outside.strip() else reply


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 when the prediction equals a reference, both normalised; 0 when nothing is left of it.

    Example:
        >>> exact_match("the Beatles!", ["Beatles", "Fab Four"])
        1.0
    """
    given = normalise(prediction)
    return float(bool(given) and any(given == normalise(r) for r in references))


def substring_match(prediction: str, references: Sequence[str]) -> float:
    """1 when a normalised reference stands anywhere among the prediction's characters.

    The paper's measure, with its holes: `no` is found in `norway`, and a reference of which
    normalising leaves nothing is found everywhere. `containment` has neither.

    Example:
        >>> substring_match("Norway", ["no"])
        1.0
    """
    given = normalise(prediction)
    return float(bool(given) and any(normalise(r) in given for r in references))


def containment(prediction: str, references: Sequence[str]) -> float:
    """1 when all words of a reference stand in the prediction, side by side and in order.

    Example:
        >>> containment("Norway", ["no"]), containment("It is New York.", ["new york"])
        (0.0, 1.0)
    """
    given = f" {normalise(prediction)} "
    wanted = (normalise(r) for r in references)
    return float(any(bool(w) and f" {w} " in given for w in wanted))


def f1_score(prediction: str, references: Sequence[str]) -> float:
    """Best F1 of normalised words (counted, order apart) over the references.

    Example:
        >>> f1_score("New York City", ["York"])
        0.5
    """
    given = normalise(prediction).split()
    return max((_words_f1(given, normalise(r).split()) for r in references), default=0.0)


@dataclass(frozen=True, slots=True)
class Official:
    """What an official scorer gives one prediction, each in [0, 1]."""

    exact_match: float
    f1: float


def official(
    rules: OfficialRules, prediction: str, gold: str, aliases: Sequence[str] = ()
) -> Official:
    """Exact match and F1 as the benchmark's own scorer computes them.

    HotpotQA knows the gold answer only. 2Wiki (v1.1) and MuSiQue take the best over gold and
    aliases, each measure for itself. HotpotQA and 2Wiki give F1 0 when either side is yes, no or
    noanswer and they differ. MuSiQue gives F1 1 when nothing is left of both sides.

    Example:
        >>> official("hotpotqa", "yes it is", "yes")
        Official(exact_match=0.0, f1=0.0)
        >>> official("musique", "yes it is", "yes")
        Official(exact_match=0.0, f1=0.5)
    """
    references = [gold] if rules == "hotpotqa" else [gold, *aliases]
    given = normalise(prediction)
    wanted = [normalise(r) for r in references]
    one_f1 = _musique_f1 if rules == "musique" else _closed_f1
    return Official(
        exact_match=float(given in wanted), f1=max(one_f1(given, reference) for reference in wanted)
    )


def official_rules(benchmark: str) -> OfficialRules | None:
    """The rules that fit a benchmark kind; None for math, where words are not compared.

    Benchmarks without a scorer of their own are scored as 2Wiki: gold and aliases, yes / no strict.
    """
    if benchmark in ("math500", "gsm8k"):
        return None
    if benchmark == "hotpotqa":
        return "hotpotqa"
    return "musique" if benchmark == "musique" else "2wikimultihopqa"


def _words_f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


def _closed_f1(given: str, wanted: str) -> float:
    if given != wanted and (given in _CLOSED_WORDS or wanted in _CLOSED_WORDS):
        return 0.0
    return _words_f1(given.split(), wanted.split())


def _musique_f1(given: str, wanted: str) -> float:
    if not given or not wanted:
        return float(given == wanted)
    return _words_f1(given.split(), wanted.split())
