"""Form: tags and control tokens, markdown, refusals, and endings that repeat themselves."""

import re
from itertools import pairwise

from mbt_cli.gates.words import folded

_SHOWN_CHARACTERS = 60
_TAGS = re.compile(r"</?(?:think|thinking|answer|reasoning)\b[^>]*>", re.IGNORECASE)
_CONTROL = re.compile(
    r"\[/?THINK\]|\[/?INST\]|<\|[A-Za-z0-9_]{1,40}\|>|<\uff5c[^<>\uff5c]{1,40}\uff5c>|</?s>"
    r"|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn|end_of_text|begin_of_text)>|<<SYS>>"
    r"|\bassistant(?:final|analysis|commentary)|\A(?:analysis|commentary)(?=[A-Z])"
)
_NUMBERED = re.compile(r"(?m)^[^\S\n]*+(\d{1,2})([.)])[^\S\n]+\S")
_PHASE_NAMES = (
    r"understanding(?: (?:and|&) filtering)?|filtering|planning|execution(?: (?:and|&) monitoring)?"
    r"|monitoring|self[- ]correction|verification"
)
_MARKDOWN: dict[str, re.Pattern[str]] = {
    "heading": re.compile(r"(?m)^[^\S\n]{0,3}#{1,6}\s"),
    "bold": re.compile(
        r"(?<![\w*])\*\*(?=\S)[^*\n]+(?<=\S)\*\*(?![\w*])|(?<!\w)__(?=\S)[^_\n]+(?<=\S)__(?!\w)"
    ),
    "list": re.compile(r"(?m)^[^\S\n]*+(?:[*\u2022]\s+\S|-\s+[^\W\d])"),
    "code fence": re.compile(r"(?m)^[^\S\n]*+```"),
    "table": re.compile(r"(?m)^[^\S\n]*+\|.*\|[^\S\n]*$"),
    "rule": re.compile(r"(?m)^[^\S\n]*+(?:-{3,}|\*{3,}|_{3,})[^\S\n]*$"),
    "label": re.compile(
        rf"(?mi)^[^\S\n]*+\(?(?:(?:{_PHASE_NAMES})(?: phase)?[^\S\n]*+(?:[:.)]|-\s|$)"
        r"|(?:phase|step|stage) (?:[1-9]|one|two|three|four|five)\b[^\S\n]*+(?:[:.)]|-\s|$)"
        r"|phase (?:[1-5]|one|two|three|four|five)\b(?= we\b))"
    ),
}
_NEEDLES = {"bold": ("**", "__"), "code fence": ("```",), "table": ("|",), "heading": ("#",)}
_REFUSAL = re.compile(
    r"\b(?:I|we)(?:'m| am|'re| are)? (?:very |so )?(?:sorry|afraid),? (?:but )?(?:that )?"
    r"(?:I|we) (?:can't|cannot|can not|won't|am unable|'m unable)\b"
    r"|\bsorry, (?:but )?I (?:can't|cannot|can not|won't|am unable)\b"
    r"|\bI (?:can't|cannot|can not|won't(?: be able to)?|am unable to|'m unable to|am not able to"
    r"|must decline to)(?: help| assist| comply| fulfil| continue| provide (?:that|this)"
    r"| (?:do|answer|discuss) (?:that|this request)| generate| engage)"
    r"|\bI'm (?:unable|not able) to (?:help|assist|comply|fulfil|continue|provide|do|answer"
    r"|generate|discuss)"
    r"|\bas an AI\b|\bas a (?:large )?language model\b"
    r"|\b(?:I|we) (?:can't|cannot) help with (?:that|this)",
    re.IGNORECASE,
)
_LOOP_WINDOW, _LOOP_UNIT, _LOOP_REPEATS = 600, 30, 4


def tag_problem(text: str) -> str | None:
    """A think or answer tag, or a control token of a chat format."""
    tags = (_TAGS.search(text, 0, text.rfind(">") + 1), _CONTROL.search(text))
    found = min((tag for tag in tags if tag), key=lambda tag: tag.start(), default=None)
    return f"tags: {found[0][:_SHOWN_CHARACTERS]}" if found else None


def markdown_problem(text: str) -> str | None:
    """Markdown, or a label before a paragraph such as `Planning:`.

    A numbered line is a list only if the next number follows, since names begin with numbers too:
    `1. FC Nuremberg`.
    """
    for name, pattern in _MARKDOWN.items():
        if any(needle in text for needle in _NEEDLES.get(name, ("",))) and (
            found := pattern.search(text)
        ):
            return f"markdown: {name} ({' '.join(found[0].split())[:_SHOWN_CHARACTERS]})"
    numbers = [(int(m[1]), m[2]) for m in _NUMBERED.finditer(text)]
    for (number, mark), (following, next_mark) in pairwise(numbers):
        if following == number + 1 and mark == next_mark:
            return f"markdown: list ({number}{mark} and {following}{mark})"
    return None


def refusal_problem(text: str) -> str | None:
    """A refusal, or a model that speaks of itself as one."""
    found = _REFUSAL.search(folded(text))
    return f"refusal: {' '.join(found[0].split())}" if found else None


def loop_problem(text: str) -> str | None:
    """A text that ends in the same words again and again."""
    tail = " ".join(text[-2 * _LOOP_WINDOW :].split())[-_LOOP_WINDOW:]
    if len(tail) < _LOOP_UNIT * _LOOP_REPEATS:
        return None
    count = tail.count(tail[-_LOOP_UNIT:])
    return f"tail_loop: the same words {count} times" if count >= _LOOP_REPEATS else None
