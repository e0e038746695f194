r"""How published evaluations of MATH find an answer and compare it, where that is not by meaning.

`minerva` is the exact match of lm-evaluation-harness 0.4.13's `minerva_math` tasks (Lewkowycz et
al., arXiv 2206.14858, appendix D, with the harness' corrections), `hendrycks` that of its
`hendrycks_math` tasks (arXiv 2103.03874). Both compare texts that are rewritten step by step; the
order of the steps decides, and their quirks are part of the published numbers.
"""

import re
from collections.abc import Callable
from functools import lru_cache

_STATES, _HOPES = "Final Answer: The final answer is", " I hope it is correct"
_SENTENCE_END = "I hope it is correct."

_MINERVA_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    (r"\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
)
_MINERVA_WORDS = (
    "square ways integers dollars mph inches ft hours km units",
    "sue points feet minutes digits cents degrees cm gm pounds meters meals edges students"
    " childrentickets multiples",
)
_MINERVA_REMOVED = (
    *_MINERVA_WORDS[0].split(),
    r"\ldots",
    *_MINERVA_WORDS[1].split(),
    r"\text{s}",
    r"\text{.}",
    "\\text{\ns}",
    r"\text{}^2",
    r"\text{}^3",
    "\\text{\n}",
    r"\text{}",
    r"\mathrm{th}",
    r"^\circ",
    r"^{\circ}",
    r"\;",
    r",\!",
    "{,}",
    '"',
    r"\dots",
)


def _inside(found: re.Match[str]) -> str:
    """What stands in braces, if they close."""
    return found[1] if found[2] else found[0]


def _inside_last(found: re.Match[str]) -> str:
    inside, brace, rest = found[1].rpartition("}")
    return inside + rest if brace else found[0]


def _braced_index(found: re.Match[str]) -> str:
    return f"sqrt{found[1]}{{{found[2]}}}" if found[2] else found[0]


# what may stay open is matched to its end all the same, so that no text is read twice
_MINERVA_UNWRAPPED: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"^[^$\n]*\$([^$\n]*)\$.*", re.MULTILINE), r"$\1$"),
    (re.compile(r"\\text\{([^}\n]*)(\}?)"), _inside),
    (re.compile(r"\\textbf\{([^}\n]*)(\}?)"), _inside),
    (re.compile(r"\\overline\{([^}\n]*)(\}?)"), _inside),
    (re.compile(r"\\boxed\{(.*)"), _inside_last),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt(\[[^\]]*\]?)(\w?)"), _braced_index),
    (re.compile(r"sqrt(?!\[)([^{])"), r"sqrt{\1}"),
)
_COMMAND = re.compile(r"(\\[a-zA-Z]+)")
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+")

_HENDRYCKS_REPLACED = (
    ("\n", ""),
    (r"\!", ""),
    (r"\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"^{\circ}", ""),
    (r"^\circ", ""),
    (r"\$", ""),
)
_UNIT = r"\text{ "


def minerva_answer(reply: str) -> str | None:
    """What "Final Answer: The final answer is ... I hope it is correct." states; None without it.

    Example:
        >>> minerva_answer("Final Answer: The final answer is $5$. I hope it is correct.")
        '$5$'
        >>> minerva_answer("The final answer is $5$.")
    """
    for line in (reply + _SENTENCE_END).split("\n"):
        start = line.find(_STATES)
        # one character stands before the hope and one behind it, whatever they are
        end = line.find(_HOPES, start + len(_STATES) + 1)
        if start >= 0 and 0 <= end < len(line) - len(_HOPES):
            return line[start + len(_STATES) : end - 1].strip()
    return None


def minerva_same(given: str, wanted: str, equal: Callable[[str, str], bool]) -> bool:
    """Whether two answers are the same text in Minerva's form, or equal expressions.

    Args:
        given: An answer.
        wanted: Another one.
        equal: Whether the difference of two expressions in LaTeX is 0.
    """
    one, other = minerva_form(given), minerva_form(wanted)
    return bool(one) if one == other else equal(one, other)


@lru_cache(maxsize=4096)
def minerva_form(answer: str) -> str:
    r"""An answer as the exact match of Minerva compares it.

    Example:
        >>> minerva_form(r"x = $\frac12$ cm"), minerva_form(r"\text{1,000 dollars}")
        ('\\frac{1}{2}', '1000')
    """
    answer = answer.rpartition("=")[2]
    words = [text for text in _MINERVA_REMOVED if text.isalpha()]
    for word in words:
        answer = re.sub(rf"(?<!\\)\b{word}\b", "", answer)
    for old, new in _MINERVA_REPLACED:
        answer = answer.replace(old, new)
    for text in _MINERVA_REMOVED:
        answer = _without(answer, text) if text.isalpha() else answer.replace(text, "")
    for pattern, unwrapped in _MINERVA_UNWRAPPED:
        answer = pattern.sub(unwrapped, answer)
    answer = answer.replace("$", "")
    return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer


def _without(answer: str, word: str) -> str:
    r"""The answer without a word, which stays where it is part of a command, as in `\left`."""
    return "".join(
        part if _COMMAND.fullmatch(part) else part.replace(word, "")
        for part in _COMMAND.split(answer)
    )


def hendrycks_answer(reply: str) -> str:
    """The text between the first and the last dollar sign; all of it with fewer than two.

    Example:
        >>> hendrycks_answer("It is $3$ or $4$."), hendrycks_answer("4")
        ('3$ or $4', '4')
    """
    first, last = reply.find("$"), reply.rfind("$")
    return reply if first == last else reply[first + 1 : last]


def hendrycks_same(given: str, wanted: str) -> bool:
    """Whether two answers are the same text once each is in the form of Hendrycks et al.

    If one of them has no form, they are compared as they are.
    """
    try:
        return hendrycks_form(given) == hendrycks_form(wanted)
    except ValueError:
        return given == wanted


@lru_cache(maxsize=4096)
def hendrycks_form(answer: str) -> str:
    r"""An answer as the exact match of Hendrycks et al. compares it.

    Raises:
        ValueError: It has none, such as one with two units or a root of nothing.

    Example:
        >>> hendrycks_form(r"x = \dfrac12"), hendrycks_form(r"5 \text{ cm}"), hendrycks_form(".5")
        ('\\frac{1}{2}', '5', '\\frac{1}{2}')
    """
    for old, new in _HENDRYCKS_REPLACED:
        answer = answer.replace(old, new)
    answer, *units = answer.split(_UNIT)
    if len(units) > 1:
        raise ValueError("has several units")
    for _ in range(2):  # once leaves what becomes a per cent sign
        answer = answer.replace(r"\%", "")
    answer = answer.replace(" .", " 0.").replace("{.", "{0.")
    if not answer:
        return answer
    if answer.startswith("."):
        answer = f"0{answer}"
    name, *values = answer.split("=")
    if len(values) == 1 and len(name) <= 2:
        answer = values[0]
    answer = _braced_fractions(_braced_roots(answer).replace(" ", ""))
    return _as_fraction(r"\frac{1}{2}" if answer == "0.5" else answer)


def _braced_roots(answer: str) -> str:
    head, *parts = answer.split(r"\sqrt")
    if "" in parts:
        raise ValueError("has a root of nothing")
    braced = [part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}" for part in parts]
    return r"\sqrt".join([head, *braced])


def _braced_fractions(answer: str) -> str:
    r"""`\frac12` and `\frac1{2}` with braces; unchanged if a fraction has one character only."""
    head, *parts = answer.split(r"\frac")
    made = [head]
    for part in parts:
        if not part:
            raise ValueError("has a fraction of nothing")
        if part[0] != "{":
            if len(part) < 2:
                return answer
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            part = f"{{{part[0]}}}{below}"
        made.append(part)
    return r"\frac".join(made)


def _as_fraction(answer: str) -> str:
    r"""`1/2` as `\frac{1}{2}`; ValueError if a side of the only slash is not a whole number."""
    above, *below = answer.split("/")
    if len(below) != 1:
        return answer
    numbers = int(above), int(below[0])
    is_plain = answer == f"{numbers[0]}/{numbers[1]}"
    return rf"\frac{{{numbers[0]}}}{{{numbers[1]}}}" if is_plain else answer
