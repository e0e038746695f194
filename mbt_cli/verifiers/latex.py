r"""Final answers to math questions: read as numbers, lists, intervals or words, and compared.

What two answers may differ in and still be the same follows the conventions of MATH: units, a
degree sign, a percent sign (50\% is 50, and is not 0.5), a dollar sign, thousands separators, the
look of LaTeX, and the name before an equals sign. `1\frac{1}{2}` and `1 1/2` are mixed numbers.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mbt_cli.verifiers import expressions
from mbt_cli.verifiers.expressions import Expression, MalformedError, UnknownError
from mbt_cli.verifiers.text import normalise

_READ = 16_384
_MOST_ITEMS = 64
_MOST_DEPTH = 8
_MOST_QUESTIONS = 24
"""How many times a comparison of two answers may ask about expressions."""

_UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{INFINITY}": r"\infty ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{GREEK SMALL LETTER THETA}": r"\theta ",
        "\N{SQUARE ROOT}": r"\sqrt ",
        "\N{LESS-THAN OR EQUAL TO}": r"\leq ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\geq ",
        "\N{NOT EQUAL TO}": r"\neq ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{DEGREE SIGN}": r"\degree ",
        "\N{UNION}": r"\cup ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{SUPERSCRIPT TWO}": "^{2}",
        "\N{SUPERSCRIPT THREE}": "^{3}",
        "\N{FULLWIDTH PERCENT SIGN}": "%",
        "\N{FULLWIDTH COMMA}": ",",
        **dict.fromkeys("\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}", r"\$"),
    }
)
_LOOKS = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?|middle)(?![a-zA-Z])\s*\.?"), ""),
    (re.compile(r"\s*\{\s*,\s*\}\s*|,\s*\\!\s*"), ","),
    (re.compile(r"(?<!\\)\\!\s*"), ""),
    (
        re.compile(
            r"(?<!\\)\\[,;: ]|~|\\(?:quad|qquad|thinspace|displaystyle|limits|,)(?![a-zA-Z])"
        ),
        " ",
    ),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(
            r"\\(?:mathrm|textrm|textbf|textit|mbox|textnormal|mathbf|mathit|mathsf|operatorname"
            r"|hbox|bf|rm)(?![a-zA-Z])"
        ),
        r"\\text",
    ),
    (re.compile(r"\\text\s*\{\s*([ei])\s*\}"), r"\1 "),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])"), r"\\degree "),
    (re.compile(r"\\(?:circ|degrees?)(?![a-zA-Z])"), r"\\degree "),
    (re.compile(r"\\(?:leqslant|le)(?![a-zA-Z])|<=|=<"), r"\\leq "),
    (re.compile(r"\\(?:geqslant|ge)(?![a-zA-Z])|>="), r"\\geq "),
    (re.compile(r"\\ne(?![a-zA-Z])|!=(?!=)"), r"\\neq "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:cdot|times|ast)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])"), "|"),
    (re.compile(r"\\(?:lbrace)(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\(?:langle|lparen)(?![a-zA-Z])"), "("),
    (re.compile(r"\\(?:rangle|rparen)(?![a-zA-Z])"), ")"),
    (re.compile(r"\\(?:varnothing)(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\(?:simeq|cong)(?![a-zA-Z])"), r"\\approx "),
    (re.compile(r"(?<!\\)\$|(?<!\\)\\[()\[\]]|\*\*(?=\D|$)|^\*\*"), " "),
    (re.compile(r"\s+"), " "),
)
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_IDLE_SPACE = re.compile(r"(?<![\w.,]) | (?![\w.\\])|(?<=\d) (?=[a-zA-Z\\])")
_LEAD = re.compile(r"^(?:the )?(?:final )?answer(?: is)?\s*[:=]?\s*(?=\S)", re.IGNORECASE)
_BOXED = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_ONE_TEXT = re.compile(r"\(?\s*\\text\s*\{([^{}]*)\}\s*\)?$")
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*\)?$")
_THOUSANDS = re.compile(r"(?<![\d.,\w])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"^([+-]?[1-9]\d{0,2}(?: \d{3})+)(\.\d+)?$")
_SEPARATOR = re.compile(
    r"[,;]?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))"
    r"|[,;]"
)
_RELATION = re.compile(r"\\(leq|geq|neq)(?![a-zA-Z])|([<>=])")
_MEMBER = re.compile(r"^([A-Za-z])\s*\\in(?![a-zA-Z])")
_MATRIX = re.compile(r"^\\begin\s*\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\s*\{\1\}$", re.S)
_NAME = re.compile(
    r"(?:\\text\s*\{[^{}]*\}|\\?[A-Za-z]+'*(?:_(?:\{\w+\}|\w))?|(?:m\s*)?\\angle\s*\{?\w+\}?"
    r"|\\overline\s*\{\w+\}|\|\w+\|)\s*(?:\(([^()=<>]*)\))?$"
)
_VARIABLE = re.compile(r"(?:[A-Za-z]|\\(?:theta|alpha|beta|lambda|phi))(?:_(?:\{\w+\}|\w))?$")
_BASED = re.compile(r"([0-9A-Fa-f]+)_\s*(?:\{\s*(\d+)\s*\}|(\d+))$")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_BARE_WORD = re.compile(r"[A-Za-z]{2,}")
_POWER = re.compile(r"\s*\^\s*(?:\{\s*(\d)\s*\}|(\d))$")
_TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_TWO_NUMBERS = re.compile(r"\d\s+[\d.]|[\d.]\s+\d")

_SYNONYMS = {
    "cm": "centimeter centimeters centimetre centimetres cms",
    "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres mtr",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "g": "gram grams gm gms",
    "kg": "kilogram kilograms",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "s": "sec secs second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "mph": "miles per hour",
    "dollar": "dollars usd bucks",
    "cent": "cents",
    "degree": "degrees deg",
    "percent": "percentage pct %",
    "unit": "units",
    "radian": "radians rad",
    "liter": "liters litre litres",
    "ml": "milliliter milliliters",
    "gallon": "gallons gal",
}
_UNITS = {name: unit for unit, names in _SYNONYMS.items() for name in (unit, *names.split())}
_NOT_BARE = frozenset({"m", "s", "g", "h", "in", "min", "sec", "gal"})
"""Units that may be variables or functions where they are not in `\\text`."""
_COUNTED = expressions.words_of(
    "apple student people person coin way integer point digit pie tile toy soldier ticket "
    "child children edge square triangle ball book card page marble boy girl men women man "
    "woman car solution number value vote game team member cookie candy egg block step term "
    "time"
)
"""What may be counted after a bare number."""
_CHANGES = expressions.words_of(
    "thousand million billion trillion hundred dozen score gross half halves third quarter "
    "fourth fifth sixth seventh eighth ninth tenth time squared cubed factorial pi base mod "
    "modulo less more than plus minus point root infinity infinite least most about times "
    "other either"
)
"""Words after a number that change it."""
_SHAPES = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_LONGEST_UNIT = 3

Asked = Callable[[str, str], bool]
"""Whether two expressions or relations in LaTeX are equal."""


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or one that cannot be read."""

    text: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number or an expression, with a unit if it has one.

    Args:
        text: As it was written.
        unit: Name and power of the unit.
        form: What an `algebra` worker reads: the form of the expression, or LaTeX without one.
        expression: None if its notation is not known.
    """

    text: str
    form: str
    unit: tuple[str, int] | None = None
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class Several:
    """Answers that belong together.

    Args:
        kind: `list` without brackets, `set`, `tuple` (an interval too), `matrix` (its rows), or
            `union`.
        brackets: The opening and closing one of a tuple.
    """

    kind: str
    items: tuple["Answer", ...]
    brackets: str = ""


@dataclass(frozen=True, slots=True)
class Equation:
    """Sides with equals signs between them.

    Args:
        name: What it says the value of, such as `x`; empty if it names nothing.
        value: The value; None if the equation gives none, or contradicts itself.
        sides: All sides, as they were written.
    """

    name: str
    value: "Answer | None"
    sides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """Sides with signs such as < between them, or a variable and the set that it is in."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]
    variable: str = ""
    values: "Answer | None" = None


Answer = Words | Quantity | Several | Equation | Relation


def cleaned(text: str) -> str:
    r"""An answer without its delimiters, box, sentence and the look of its LaTeX.

    Example:
        >>> cleaned(r"\[ \boxed{\dfrac{1}{2}}. \]"), cleaned(r"$10,\!080$"), cleaned("2  3")
        ('\\frac{1}{2}', '10,080', '2 3')
    """
    text = text.translate(_UNICODE)
    if r"\begin" not in text:  # where two backslashes end a row
        text = _DOUBLED.sub(r"\\", text)
    for pattern, replacement in _LOOKS:
        text = pattern.sub(replacement, text)
    text = _bare(text)
    while boxed := _BOXED.match(text):
        inside = _closed(text, boxed.end() - 1)
        if inside != len(text) - 1:
            break
        text = _bare(text[boxed.end() : inside])
    return _LEAD.sub("", text)


def _bare(text: str) -> str:
    """Without spaces and a sentence's sign at the end."""
    text = text.strip()
    if text.endswith(("...", r"\ldots", r"\dots")):
        return text
    return text.rstrip(" .,;:") if not text.endswith("\\,") else text


def plain(text: str) -> str:
    r"""A cleaned text without the spaces that never change a meaning.

    Example:
        >>> plain("( x, 4 )"), plain("2 3"), plain("32, 349")
        ('(x, 4)', '2 3', '32, 349')
    """
    return _IDLE_SPACE.sub("", text)


def _closed(text: str, start: int) -> int:
    """Place of the bracket that closes the one at a place; -1 without one."""
    depth = 0
    for place in range(start, len(text)):
        if place and text[place - 1] == "\\" and text[place] in "{}":
            continue
        if text[place] in "([{":
            depth += 1
        elif text[place] in ")]}":
            depth -= 1
            if not depth:
                return place
    return -1


@lru_cache(maxsize=_READ)
def read(text: str) -> Answer:
    """An answer that `cleaned` has returned."""
    return _read(_joined(text), 0)


def _joined(text: str) -> str:
    """Without the commas between thousands, outside brackets."""
    depths = _depths(text)
    return _THOUSANDS.sub(
        lambda found: found[0] if depths[found.start()] else found[0].replace(",", ""), text
    )


def _read(text: str, depth: int) -> Answer:
    text = text.strip()
    if not text or depth > _MOST_DEPTH:
        return Words(text)
    if letter := _LETTER.match(text):
        return _quantity(letter[1])
    if words := _ONE_TEXT.match(text):
        return _in_words(words[1].strip(), depth)
    found = _member_of(text, depth) or _united(text, depth) or _listed(text, depth)
    found = found or _related(text, depth) or _bracketed(text, depth)
    return found or _quantity(text)


def _in_words(text: str, depth: int) -> Answer:
    r"""What stands in `\text{}`: a number, a letter, letters with commas, or words."""
    if re.search(r"\d", text) or not _BARE_WORD.search(text):
        return _read(text, depth + 1)
    return Words(text)


def _member_of(text: str, depth: int) -> Answer | None:
    found = _MEMBER.match(text)
    if found is None:
        return None
    values = _read(text[found.end() :], depth + 1)
    return Relation((text,), (), found[1], values)


def _united(text: str, depth: int) -> Answer | None:
    parts = [part.strip() for part in _split(text, re.compile(r"\\cup(?![a-zA-Z])"))]
    if len(parts) < 2:
        return None
    return Several("union", tuple(_read(part, depth + 1) for part in parts))


def _listed(text: str, depth: int) -> Answer | None:
    parts = [part.strip() for part in _split(text, _SEPARATOR)]
    if len(parts) < 2:
        return None
    if len(parts) > _MOST_ITEMS or not all(parts):
        return Words(text)
    return Several("list", tuple(_items(parts, depth)))


def _items(parts: Sequence[str], depth: int) -> Iterator[Answer]:
    for part in parts:
        for one in _signs(part):
            yield _read(one, depth + 1)


def _signs(text: str) -> list[str]:
    """The two texts that a plus-minus sign stands for."""
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    up = re.sub(r"\\mp(?![a-zA-Z])", "-", re.sub(r"\\pm(?![a-zA-Z])", "+", text))
    down = re.sub(r"\\mp(?![a-zA-Z])", "+", re.sub(r"\\pm(?![a-zA-Z])", "-", text))
    return [up, down]


def _depths(text: str) -> list[int]:
    """How many brackets are open at each place."""
    depths, depth = [], 0
    for sign in text:
        depth -= sign in ")]}"
        depths.append(depth)
        depth += sign in "([{"
    return depths


def _split(text: str, pattern: re.Pattern[str]) -> list[str]:
    """The parts between matches that are in no bracket."""
    depths = _depths(text)
    parts, start = [], 0
    for found in pattern.finditer(text):
        if depths[found.start()] == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def _bracketed(text: str, depth: int) -> Answer | None:
    """A matrix, a set, a tuple, or what stands in brackets around all."""
    if text == r"\emptyset":
        return Several("set", ())
    if text[0] in "([" and _closed(text, 0) == len(text) - 1:
        inside = text[1:-1].strip()
        if matrix := _rows(inside, depth):
            return matrix
        parts = [part.strip() for part in _split(inside, re.compile(","))]
        if len(parts) > 1:
            if len(parts) > _MOST_ITEMS or not all(parts):
                return Words(text)
            items = tuple(_read(part, depth + 1) for part in parts)
            return Several("tuple", items, text[0] + text[-1])
        if text[0] + text[-1] == "()":
            return _read(inside, depth + 1)
    if text[0] in "([" and text[-1] in ")]" and text[0] + text[-1] in ("(]", "[)"):
        parts = [part.strip() for part in _split(text[1:-1], re.compile(","))]
        if len(parts) == 2 and all(parts):
            items = tuple(_read(part, depth + 1) for part in parts)
            return Several("tuple", items, text[0] + text[-1])
    if text[0] == "{" and _closed(text, 0) == len(text) - 1:
        return _read(text[1:-1], depth + 1)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inside = text[2:-2].strip()
        if not inside:
            return Several("set", ())
        parts = [part.strip() for part in _split(inside, re.compile("[,;]"))]
        if len(parts) > _MOST_ITEMS or not all(parts) or "|" in inside or ":" in inside:
            return Words(text)
        return Several("set", tuple(_items(parts, depth)))
    if len(_signs(text)) > 1:
        return Several("list", tuple(_items([text], depth)))
    return _rows(text, depth)


def _rows(text: str, depth: int) -> Several | None:
    found = _MATRIX.match(text)
    if found is None or r"\begin" in found[2]:
        return None
    rows = [row.strip() for row in re.split(r"\\\\(?:\[[^\]]*\])?", found[2])]
    rows = rows[:-1] if not rows[-1] else rows
    if len(rows) > _MOST_ITEMS or any(row.count("&") > _MOST_ITEMS for row in rows):
        return None
    return Several(
        "matrix",
        tuple(
            Several("row", tuple(_read(cell, depth + 1) for cell in row.split("&"))) for row in rows
        ),
    )


def _related(text: str, depth: int) -> Answer | None:
    """An equation or an inequality; None without its sign outside brackets."""
    first, *others = re.split(r"\\approx(?![a-zA-Z])", text)
    if others:  # an exact value goes before its approximation
        is_name = _NAME.match(first.strip()) is not None
        text = f"{first}={others[0]}" if is_name else first.strip() or others[0]
        return _read(text, depth + 1)
    signs = [found[1] or found[2] for found in _RELATION.finditer(text)]
    sides = tuple(side.strip() for side in _split(text, _RELATION))
    if len(sides) < 2:
        return None
    signs = signs if len(signs) == len(sides) - 1 else []
    if not all(sides) or not signs:
        return Words(text)
    if set(signs) == {"="}:
        return _equation(sides, depth)
    return _inequality(sides, tuple(signs), depth)


def _equation(sides: tuple[str, ...], depth: int) -> Answer:
    left, last = sides[0], sides[-1]
    middle = sides[1:-1]
    if _is_name(last) and not _is_name(left) and not middle:
        left, last = last, left
    elif not _is_name(left):
        middle, left = (*sides[:-1],), ""
    values = _read(last, depth + 1)
    known = [_expression(side) for side in (*middle, last)]
    result = known[-1]
    for side in known[:-1]:
        if side is None or result is None:
            return Equation(left, None if not left else values, sides)
        if (not side.variables or result.variables) and expressions.differ(side, result):
            return Equation("", None, sides)
        if not left and side.variables:
            return Equation("", None, sides)
    return Equation(left, values, sides)


def _is_name(text: str) -> bool:
    found = _NAME.match(text)
    return found is not None and text not in (r"\pi", r"\infty", "e", "i", r"\emptyset")


def _expression(text: str) -> Expression | None:
    try:
        return expressions.parsed(_without_unit(text)[0])
    except (MalformedError, UnknownError):
        return None


_FLIPPED = {"<": ">", ">": "<", "leq": "geq", "geq": "leq"}


def _inequality(sides: tuple[str, ...], signs: tuple[str, ...], depth: int) -> Answer:
    """With one variable alone on a side: the interval that it is in."""
    whole = Relation(sides, signs)
    if signs[0] in (">", "geq") and all(sign in (">", "geq") for sign in signs):
        sides, signs = sides[::-1], tuple(_FLIPPED[sign] for sign in reversed(signs))
    if not all(sign in ("<", "leq") for sign in signs):
        return whole
    if len(sides) == 3 and _VARIABLE.match(sides[1]):
        low, variable, high = sides
        brackets = "[("[signs[0] == "<"] + "])"[signs[1] == "<"]
    elif len(sides) == 2 and _VARIABLE.match(sides[0]):
        variable, low, high = sides[0], r"-\infty", sides[1]
        brackets = "(" + "])"[signs[0] == "<"]
    elif len(sides) == 2 and _VARIABLE.match(sides[1]):
        low, variable, high = sides[0], sides[1], r"\infty"
        brackets = "[("[signs[0] == "<"] + ")"
    else:
        return whole
    ends = (_read(low, depth + 1), _read(high, depth + 1))
    if not all(isinstance(end, Quantity) for end in ends):
        return whole
    return Relation(whole.sides, whole.signs, variable, Several("tuple", ends, brackets))


def _quantity(text: str) -> Answer:
    if based := _BASED.match(text.replace(" ", "")):
        return Words(f"{based[1].upper()} in base {based[2] or based[3]}")
    bare, unit = _without_unit(text)
    bare = bare.replace(" ", "") if _SPACED_THOUSANDS.match(bare) else bare
    try:
        found = expressions.parsed(bare)
        return Quantity(text, found.form, unit, found)
    except MalformedError:
        return Words(text)
    except UnknownError:
        is_words = _TEXT.search(bare) or any(
            word not in ("lim", "max", "dx", "dt") for word in _bare_words(bare)
        )
        if is_words or _TWO_NUMBERS.search(bare) or not _is_closed(bare):
            return Words(text)
        return Quantity(text, f"({bare})".replace(r"\degree", r"\cdot\frac{\pi}{180}"), unit)


def _bare_words(text: str) -> list[str]:
    return _BARE_WORD.findall(_COMMAND.sub(" ", text))


def _is_closed(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return not depth


def _without_unit(text: str) -> tuple[str, tuple[str, int] | None]:
    r"""A quantity and the name and power of its unit.

    Example:
        >>> _without_unit(r"15\text{ cm}^2"), _without_unit("5 cubic feet"), _without_unit("5 x")
        (('15', ('cm', 2)), ('5', ('ft', 3)), ('5 x', None))
    """
    text = text.strip()
    for sign in ("-", "+", ""):
        if text.startswith(sign + r"\$"):
            return sign + text[len(sign) + 2 :].strip(), ("dollar", 1)
    if text.endswith(r"\$"):
        return text[:-2].strip(), ("dollar", 1)
    if text.endswith("%"):
        return text[:-1].rstrip("\\ "), ("percent", 1)
    if text.endswith(r"\degree"):
        bare = text.removesuffix(r"\degree").strip()
        return (text, None) if _TRIGONOMETRY.search(bare) else (bare, ("degree", 1))
    power = _POWER.search(text)
    head = text[: power.start()] if power else text
    exponent = int(power[1] or power[2]) if power else 1
    chunk = re.search(r"\\text\s*\{([^{}]*)\}$", head)
    words = re.search(r"((?<![A-Za-z\\])[A-Za-z]+(?: [A-Za-z]+){0,2})$", head)
    found = None
    if chunk and head[: chunk.start()].strip():
        found = _unit(chunk[1].strip(" .~"), exponent, is_text=True)
        head = head[: chunk.start()]
    elif words and re.search(r"[\d})]\s*$", head[: words.start()]):
        found = _unit(words[1], exponent, is_text=False)
        head = head[: words.start()]
    return (head.strip(), found) if found else (text, None)


def _unit(text: str, power: int, *, is_text: bool) -> tuple[str, int] | None:
    """The unit that some words name; None if they may be anything else."""
    whole = text.lower()
    if whole in ("miles per hour", "mile per hour"):
        return ("mph", power)
    words = re.sub(r"[^a-z% ]", "", whole).split()
    if not words or len(words) > _LONGEST_UNIT:
        return None
    for word in words:
        power = _SHAPES.get(word, power)
    words = [word for word in words if word not in _SHAPES]
    if not words:
        return None
    last = words[-1]
    if len(words) == 1 and last in _UNITS and (is_text or last not in _NOT_BARE):
        return (_UNITS[last], power)
    singular = [word.removesuffix("s") for word in words]
    if any(word in _CHANGES or word in expressions.WORDS for word in (*words, *singular)):
        return None
    if is_text or singular[-1] in _COUNTED:
        return (" ".join(singular), power)
    return None


class _Limit(Exception):
    """Too many questions in one comparison."""


def same(given: Answer, wanted: Answer, asked: Asked) -> bool:
    """Whether two answers are the same.

    Args:
        given: One.
        wanted: The other; their order does not matter.
        asked: Decides about expressions whose values do not show that they differ.
    """
    left = _MOST_QUESTIONS

    def limited(one: str, other: str) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Limit
        return asked(one, other)

    try:
        return _same(given, wanted, limited)
    except _Limit:
        return False


def _same(one: Answer, other: Answer, asked: Asked) -> bool:
    if isinstance(one, Equation) and isinstance(other, Equation):
        return _same_equations(one, other, asked)
    if isinstance(one, Equation):
        return one.value is not None and _same(one.value, other, asked)
    if isinstance(other, Equation):
        return _same(other, one, asked)
    if isinstance(one, Relation) and isinstance(other, Relation):
        return _same_relations(one, other, asked)
    if isinstance(one, Relation):
        return one.values is not None and _same(one.values, other, asked)
    if isinstance(other, Relation):
        return _same(other, one, asked)
    if isinstance(one, Words) or isinstance(other, Words):
        return _same_words(one, other)
    if isinstance(one, Quantity) and isinstance(other, Quantity):
        return _same_quantities(one, other, asked)
    if isinstance(one, Several) and isinstance(other, Several):
        return _same_several(one, other, asked)
    alone = one if isinstance(one, Several) else other
    return (
        isinstance(alone, Several)
        and alone.kind in ("list", "set")
        and len(alone.items) == 1
        and _same(alone.items[0], other if alone is one else one, asked)
    )


def _same_words(one: Answer, other: Answer) -> bool:
    texts = [_TEXT.sub(r"\1", a.text) for a in (one, other) if isinstance(a, Words | Quantity)]
    if len(texts) < 2:
        return False
    left, right = texts
    if re.search(r"[\d\\^_]", left + right):  # punctuation has a meaning
        return plain(left) == plain(right)
    return bool(normalise(left)) and normalise(left) == normalise(right)


def _same_quantities(one: Quantity, other: Quantity, asked: Asked) -> bool:
    if one.unit and other.unit and not _same_units(one.unit, other.unit):
        return False
    left, right = one.expression, other.expression
    if left is None or right is None:
        return one.form == other.form or asked(one.form, other.form)
    if left.exact is not None and left.exact == right.exact:
        return True
    if expressions.is_rounded(left, right):
        return True
    if expressions.differ(left, right):
        return False
    return left.form == right.form or asked(left.form, right.form)


def _same_units(one: tuple[str, int], other: tuple[str, int]) -> bool:
    if "unit" in (one[0], other[0]):
        return one[1] == other[1]
    return one == other


def _same_several(one: Several, other: Several, asked: Asked) -> bool:
    if one.kind in ("row", "matrix") or other.kind in ("row", "matrix"):
        return one.kind == other.kind and _in_order(one, other, asked)
    if "union" in (one.kind, other.kind):
        return one.kind == other.kind and _in_any_order(one, other, asked)
    if one.kind == other.kind == "tuple":
        return one.brackets == other.brackets and _in_order(one, other, asked)
    if "tuple" in (one.kind, other.kind):
        pair = one if one.kind == "tuple" else other
        is_bare = "list" in (one.kind, other.kind)
        return is_bare and pair.brackets == "()" and _in_order(one, other, asked)
    return _in_any_order(one, other, asked)


def _in_order(one: Several, other: Several, asked: Asked) -> bool:
    return len(one.items) == len(other.items) and all(
        _same(left, right, asked) for left, right in zip(one.items, other.items, strict=True)
    )


def _in_any_order(one: Several, other: Several, asked: Asked) -> bool:
    if len(one.items) != len(other.items) or not _one_name(one) or not _one_name(other):
        return _in_order(one, other, asked)
    rest = list(other.items)
    for item in one.items:
        found = next((n for n, left in enumerate(rest) if _same(item, left, asked)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _one_name(several: Several) -> bool:
    """Whether no two equations of a list give values of different names."""
    return len({item.name for item in several.items if isinstance(item, Equation)}) <= 1


def _same_equations(one: Equation, other: Equation, asked: Asked) -> bool:
    if one.value is not None and other.value is not None:
        names = {plain(one.name), plain(other.name)}
        if len(names) == 1 or "" in names or any("text" in name for name in names):
            return _same(one.value, other.value, asked)
    return _asked_about(one.sides, other.sides, "=", "=", asked)


def _same_relations(one: Relation, other: Relation, asked: Asked) -> bool:
    if one.values is not None and other.values is not None:
        return one.variable == other.variable and _same(one.values, other.values, asked)
    if len(one.signs) == len(other.signs) == 1:
        return _asked_about(one.sides, other.sides, one.signs[0], other.signs[0], asked)
    return list(map(plain, one.sides)) == list(map(plain, other.sides)) and one.signs == other.signs


def _asked_about(
    sides: Sequence[str], others: Sequence[str], sign: str, other_sign: str, asked: Asked
) -> bool:
    """Whether two relations of two sides each are equivalent."""
    known = [_expression(side) for side in (*sides, *others)]
    if len(sides) != 2 or len(others) != 2:
        return list(map(plain, sides)) == list(map(plain, others))
    if any(side is None for side in known):
        return False
    left, right, above, below = (side.form for side in known if side is not None)
    return asked(
        f'["relation", "{sign}", {left}, {right}]',
        f'["relation", "{other_sign}", {above}, {below}]',
    )
