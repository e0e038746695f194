"""Arithmetic and algebra, in LaTeX or as people type it: parsed and evaluated.

Values are exact fractions, or floating-point numbers with a bound of their error, at three choices
of the variables. So two expressions whose values differ do differ; that equal values mean equal
expressions is for others to show.
"""

import cmath
import json
import math
import re
import zlib
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

_POINTS = 3
_DEEPEST = 40
_MOST_BITS = 20_000  # of an exact power
_MOST_EXPONENT = 512
_LARGEST_FACTORIAL = 3_000
_ROUNDING = 4 * 2.0**-52
_DIGITS_OF_APPROXIMATION = 6
_PARSED = 16_384

_TOKEN = re.compile(r"(\d+(?:\.\d+)?|\.\d+)|(\\[a-zA-Z]+)|([a-zA-Z]+)|(\*\*|\S)|$")
_SPACE = re.compile(r"\s*")
_MIXED = re.compile(
    r"\s*\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))"
    r"|\s+(\d+)\s*/\s*(\d+)(?![\d.])"
)
_SUBSCRIPT = re.compile(r"\s*_\s*(?:\{\s*(\w{1,8})\s*\}|(\w))")


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_GREEK = words_of(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu "
    "nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi "
    "Sigma Upsilon Phi Psi Omega infty ell"
)
_FUNCTIONS = words_of("sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan ln exp")
_TYPED = _FUNCTIONS | {"sqrt", "pi"}
_LONGEST_PRODUCT = 3  # letters that may be a product of variables
WORDS = words_of("not no nor non and or is are the yes if to of by for but than one two six")
"""Short words that are not products of variables."""
_OPEN = {"(": ")", "[": "]", "{": "}"}

Tree = tuple[Any, ...]


class MalformedError(ValueError):
    """It is not an expression."""


class UnknownError(ValueError):
    """It may be an expression, with notation that is not known here."""


class _NoValueError(ArithmeticError):
    """It has no value, or none that can be computed with a known error."""


@dataclass(frozen=True, slots=True)
class Ball:
    """A complex number and a bound of its error."""

    value: complex
    error: float


Value = Fraction | Ball


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Args:
        form: The parsed tree as JSON; equal for expressions that are written alike.
        variables: Names of its variables.
        values: One for each choice of the variables; None where it has none.
        digits: Significant digits, if it is a decimal number; else 0.
        last_place: The value of one in the last place of a decimal number.
    """

    form: str
    variables: frozenset[str]
    values: tuple[Value | None, ...]
    digits: int = 0
    last_place: Fraction = Fraction(0)

    @property
    def exact(self) -> Fraction | None:
        """Its value, if it is known to be a fraction."""
        value = self.values[0]
        return value if isinstance(value, Fraction) else None


def differ(one: Expression, other: Expression) -> bool:
    """Whether the values of two expressions show that they differ."""
    return any(
        left is not None and right is not None and _apart(left, right)
        for left, right in zip(one.values, other.values, strict=True)
    )


def is_rounded(one: Expression, other: Expression) -> bool:
    """Whether one is a decimal number of 6 significant digits or more, to which the other rounds.

    Example:
        >>> is_rounded(parsed("0.333333"), parsed("1/3")), is_rounded(parsed("0.33"), parsed("1/3"))
        (True, False)
    """
    return _rounds(one, other) or _rounds(other, one)


def _rounds(decimal: Expression, other: Expression) -> bool:
    if decimal.digits < _DIGITS_OF_APPROXIMATION or other.variables or other.values[0] is None:
        return False
    if other.digits and other.last_place >= decimal.last_place:
        return False
    assert decimal.exact is not None
    value = other.values[0]
    if isinstance(value, Fraction):
        return abs(value - decimal.exact) <= decimal.last_place / 2
    if value.value.imag:
        return False
    away = abs(Fraction(value.value.real) - decimal.exact)
    return away <= decimal.last_place / 2 + Fraction(value.error)


def _apart(left: Value, right: Value) -> bool:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left != right
    try:
        one, other = _ball(left), _ball(right)
    except _NoValueError:
        return False
    return abs(one.value - other.value) > 4 * (one.error + other.error)


@lru_cache(maxsize=_PARSED)
def parsed(text: str) -> Expression:
    r"""An expression of numbers, letters, fractions, roots, powers and functions.

    A letter before a bracket is a factor. `1\frac{4}{5}` and `1 4/5` are mixed numbers.

    Args:
        text: LaTeX without commands that only change its look.

    Raises:
        MalformedError: It is not an expression, such as `2 3`.
        UnknownError: It has notation that is not known here, such as an integral.

    Example:
        >>> parsed(r"1\frac{4}{5}").exact, parsed("2(3+4)").exact
        (Fraction(9, 5), Fraction(14, 1))
    """
    parser = _Parser(text)
    tree = parser.sum()
    if parser.peek():
        raise MalformedError(text)
    variables = frozenset(_variables(tree))
    values: list[Value | None] = []
    for point in range(_POINTS if variables else 1):
        try:
            values.append(_value(tree, point))
        except (ArithmeticError, ValueError):  # an overflow, or a pole
            values.append(None)
    if not variables:
        values *= _POINTS
    digits, place = _decimal(text.strip().lstrip("+-"))
    return Expression(json.dumps(_form(tree)), variables, tuple(values), digits, place)


def _decimal(text: str) -> tuple[int, Fraction]:
    whole, dot, decimals = text.partition(".")
    if not dot or not (whole + decimals).isdecimal() or not (whole + decimals).isascii():
        return 0, Fraction(0)
    return len((whole + decimals).lstrip("0")), Fraction(1, 10 ** len(decimals))


class _Parser:
    """Recursive descent over a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._in_bars = False

    def peek(self) -> str:
        """The next token; empty at the end."""
        self._at = _end(_SPACE, self._text, self._at)
        found = _TOKEN.match(self._text, self._at)
        return found[0] if found else ""

    def _take(self) -> str:
        token = self.peek()
        self._at += len(token)
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise MalformedError(self._text)

    def sum(self) -> Tree:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise MalformedError(self._text)
        tree = self._signed()
        while (sign := self.peek()) in ("+", "-"):
            self._take()
            right = self._signed()
            tree = ("add", tree, right if sign == "+" else ("neg", right))
        self._depth -= 1
        return tree

    def _signed(self) -> Tree:
        minus = False
        while self.peek() in ("+", "-"):
            minus ^= self._take() == "-"
        tree = self._product()
        return ("neg", tree) if minus else tree

    def _product(self) -> Tree:
        tree = self._power()
        divides = False
        while token := self.peek():
            if token in ("*", "/"):
                self._take()
                divides = token == "/"
                right = self._negated() if self.peek() == "-" else self._power()
                tree = ("div" if divides else "mul", tree, right)
            elif self._begins(token):
                if divides or token[0].isdigit() or token[0] == ".":
                    # in 1/2x it is not clear what the x belongs to
                    raise (UnknownError if divides else MalformedError)(self._text)
                tree = ("mul", tree, self._power())
            else:
                break
        return tree

    def _negated(self) -> Tree:
        self._take()
        return ("neg", self._power())

    def _begins(self, token: str) -> bool:
        """Whether a token begins a factor."""
        if token == "|":
            return not self._in_bars
        return token[0].isalnum() or token[0] in ".\\([{"

    def _power(self) -> Tree:
        tree = self._atom()
        while token := self.peek():
            if token in ("^", "**"):
                self._take()
                return ("pow", tree, self._exponent())
            if token == "!":
                self._take()
                tree = ("fact", tree)
            elif token == "\\degree":
                self._take()
                tree = ("mul", tree, ("div", ("pi",), ("num", Fraction(180))))
            else:
                break
        return tree

    def _exponent(self) -> Tree:
        if self.peek() == "-":
            return self._negated()
        if self.peek().isalpha() and len(self.peek()) > 1 and self.peek() not in _TYPED:
            return self._letter()  # x^ab is (x^a)b
        return self._power()

    def _atom(self) -> Tree:
        token = self.peek()
        if not token:
            raise MalformedError(self._text)
        if token[0].isdecimal() or (token[0] == "." and len(token) > 1):
            return self._number()
        if token[0] == "\\":
            return self._command()
        if token[0].isalpha() and token.isascii():
            return self._word(token)
        if token in _OPEN:
            self._take()
            return self._bracket(_OPEN[token])
        if token == "|" and not self._in_bars:
            self._take()
            self._in_bars = True
            tree = self.sum()
            self._in_bars = False
            self._expect("|")
            return ("abs", tree)
        raise MalformedError(self._text)

    def _bracket(self, close: str) -> Tree:
        bars, self._in_bars = self._in_bars, False
        tree = self.sum()
        self._expect(close)
        self._in_bars = bars
        return tree

    def _number(self) -> Tree:
        token = self._take()
        if not token.isascii():
            raise MalformedError(self._text)
        number = Fraction(token if token[0] != "." else f"0{token}")
        mixed = _MIXED.match(self._text, self._at)
        if mixed is None or "." in token:
            return ("num", number)
        above, below = (int(found) for found in mixed.groups() if found)
        if not 0 < above < below:
            raise UnknownError(self._text)
        self._at = mixed.end()
        return ("num", number + Fraction(above, below))

    def _word(self, token: str) -> Tree:
        if token in _TYPED:
            self._take()
            return self._named(token)
        if len(token) > _LONGEST_PRODUCT or token.lower() in WORDS:
            raise MalformedError(self._text)
        return self._letter()

    def _letter(self) -> Tree:
        letter = self._text[self._at]
        self._at += 1
        if name := self._subscripted(letter):
            return ("var", name)
        return (letter,) if letter in "ei" else ("var", letter)

    def _subscripted(self, name: str) -> str | None:
        found = _SUBSCRIPT.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return f"{name}_{{{found[1] or found[2]}}}"

    def _command(self) -> Tree:
        name = self._take()[1:]
        if name in ("frac", "sqrt", "pi") or name in _FUNCTIONS:
            return self._named(name)
        if name in _GREEK:
            return ("var", self._subscripted(f"\\{name}") or f"\\{name}")
        if name == "log" and self.peek() == "_":
            self._take()
            base = self._argument()
            return ("div", ("fn", "ln", self._function_argument()), ("fn", "ln", base))
        raise UnknownError(self._text)

    def _named(self, name: str) -> Tree:
        if name == "pi":
            return ("pi",)
        if name == "frac":
            above = self._argument()
            return ("div", above, self._argument())
        if name == "sqrt":
            order: Tree = ("num", Fraction(2))
            if self.peek() == "[":
                self._take()
                order = self._bracket("]")
            return ("root", order, self._argument())
        power = None
        if self.peek() == "^":
            self._take()
            power = self._argument()
            if power == ("neg", ("num", Fraction(1))):
                raise UnknownError(self._text)  # the inverse function
        tree = ("fn", name, self._function_argument())
        return tree if power is None else ("pow", tree, power)

    def _argument(self) -> Tree:
        """A group in brackets, or one digit, letter or command."""
        token = self.peek()
        if token in _OPEN and token != "[":
            self._take()
            return self._bracket(_OPEN[token])
        if token[:1].isdecimal() and token.isascii():
            self._at += 1
            return ("num", Fraction(token[0]))
        if token[:1].isalpha() and token.isascii():
            return self._letter()
        if token[:1] == "\\":
            return self._command()
        raise MalformedError(self._text)

    def _function_argument(self) -> Tree:
        """A group in brackets, or the product that follows."""
        if self.peek() in ("(", "{"):
            return self._power()
        tree = self._power()
        while (token := self.peek()) and self._begins(token):
            if token.lstrip("\\") in _FUNCTIONS or token[0] in "([{" or token[0].isdecimal():
                break
            tree = ("mul", tree, self._power())
        return tree


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def _variables(tree: Tree) -> set[str]:
    if tree[0] == "var":
        return {tree[1]}
    return {name for part in tree[1:] if isinstance(part, tuple) for name in _variables(part)}


def _form(tree: Tree) -> list[Any]:
    if tree[0] == "num":
        return ["num", str(tree[1].numerator), str(tree[1].denominator)]
    return [_form(part) if isinstance(part, tuple) else part for part in tree]


def _value(tree: Tree, point: int) -> Value:
    match tree:
        case ("num", number):
            return Fraction(number)
        case ("var", name):
            # between 0.5 and 2.5
            return Ball(0.5 + zlib.crc32(f"{point}{name}".encode()) / 2**31, 0.0)
        case ("pi",):
            return Ball(math.pi, 1e-16)
        case ("e",):
            return Ball(math.e, 1e-16)
        case ("i",):
            return Ball(1j, 0.0)
        case ("neg", inner):
            return _times(Fraction(-1), _value(inner, point))
        case ("add", left, right):
            return _plus(_value(left, point), _value(right, point))
        case ("mul", left, right):
            return _times(_value(left, point), _value(right, point))
        case ("div", left, right):
            return _times(_value(left, point), _inverse(_value(right, point)))
        case ("pow", left, right):
            return _to_power(_value(left, point), _value(right, point))
        case ("root", order, inner):
            return _root(_value(order, point), _value(inner, point))
        case ("fn", name, inner):
            return _function(name, _ball(_value(inner, point)))
        case ("abs", inner):
            value = _value(inner, point)
            if isinstance(value, Fraction):
                return abs(value)
            return Ball(abs(value.value), value.error + _ROUNDING * abs(value.value))
        case ("fact", inner):
            value = _value(inner, point)
            if (
                isinstance(value, Fraction)
                and value.denominator == 1
                and 0 <= value <= _LARGEST_FACTORIAL
            ):
                return Fraction(math.factorial(int(value)))
    raise _NoValueError


def _ball(value: Value) -> Ball:
    if isinstance(value, Ball):
        return value
    number = float(value)  # OverflowError is an ArithmeticError
    return Ball(complex(number), _ROUNDING * abs(number))


def _checked(value: complex, error: float) -> Ball:
    """A ball with the error of one more rounding."""
    error += _ROUNDING * abs(value)
    if not (cmath.isfinite(value) and math.isfinite(error)):
        raise _NoValueError
    return Ball(value, error)


def _plus(left: Value, right: Value) -> Value:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right
    one, other = _ball(left), _ball(right)
    return _checked(one.value + other.value, one.error + other.error)


def _times(left: Value, right: Value) -> Value:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left * right
    one, other = _ball(left), _ball(right)
    error = abs(one.value) * other.error + abs(other.value) * one.error + one.error * other.error
    return _checked(one.value * other.value, error)


def _inverse(value: Value) -> Value:
    if isinstance(value, Fraction):
        return 1 / value
    size = abs(value.value)
    if size <= 2 * value.error:
        raise _NoValueError
    return _checked(1 / value.value, value.error / (size * (size - value.error)))


def _to_power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        power = int(exponent)
        if abs(power) > _MOST_EXPONENT:
            raise _NoValueError
        if isinstance(base, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if bits * abs(power) > _MOST_BITS:
                raise _NoValueError
            return base**power
        found: Value = Fraction(1)
        for _ in range(abs(power)):
            found = _times(found, base)
        return found if power >= 0 else _inverse(found)
    return _function("exp", _ball(_times(_function("ln", _ball(base)), exponent)))


def _root(order: Value, value: Value) -> Value:
    if not isinstance(order, Fraction) or order.denominator != 1 or order < 1:
        raise _NoValueError
    if isinstance(value, Fraction) and value < 0 and order % 2:
        return _times(Fraction(-1), _root(order, -value))  # real, as in school
    ball = _ball(value)
    if order == 2 and not ball.value.imag and abs(ball.value) > 2 * ball.error:
        found = cmath.sqrt(complex(ball.value.real, 0.0))
        return _checked(found, ball.error / abs(found))
    return _to_power(value, 1 / order)


def _function(name: str, value: Ball) -> Value:
    """A function at a ball; the error grows with the largest slope near its centre."""
    centre, error = value.value, value.error
    if name == "ln":
        if centre.imag or centre.real <= 2 * error:
            raise _NoValueError
        return _checked(cmath.log(centre), 2 * error / abs(centre))
    if error > 1e-3 or abs(centre) > 1e6:
        raise _NoValueError
    sine, cosine = cmath.sin(centre), cmath.cos(centre)
    slope = 2 + abs(sine) + abs(cosine)
    match name:
        case "exp":
            found = cmath.exp(centre)
            return _checked(found, 2 * abs(found) * error)
        case "sin":
            return _checked(sine, slope * error + _ROUNDING)
        case "cos":
            return _checked(cosine, slope * error + _ROUNDING)
        case "tan" | "sec" | "cot" | "csc":
            above = {"tan": sine, "cot": cosine}.get(name, complex(1))
            below = cosine if name in ("tan", "sec") else sine
            bound = slope * error + _ROUNDING
            return _times(_checked(above, bound), _inverse(_checked(below, bound)))
        case "arctan":
            if not centre.imag:
                return _checked(complex(math.atan(centre.real)), error)
    raise _NoValueError
