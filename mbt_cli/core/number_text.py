"""The one rounding rule: every number that mbt shows goes through this module."""

import math
from decimal import ROUND_HALF_UP, Decimal

ABSENT = "—"
"""Shown in place of a missing number."""


def rounded(value: float | None, *, unit: str = "", decimals: int = 1) -> Decimal | None:
    """A number as it is shown; halves of its decimal representation round away from zero.

    Args:
        value: The number; None, NaN and infinity give None.
        unit: `percent` values are multiplied by 100.
        decimals: Digits after the decimal point.

    Example:
        >>> rounded(0.285, unit="percent", decimals=0)  # 28.499999999999996 as a float product
        Decimal('29')
        >>> rounded(-0.04)
        Decimal('0.0')
    """
    if value is None or not math.isfinite(value):
        return None
    exact = Decimal(repr(float(value))) * (100 if unit == "percent" else 1)
    result = exact.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP)
    return abs(result) if result == 0 else result


def number_text(value: float | None, *, unit: str = "", decimals: int = 1) -> str:
    """`rounded` as text, a dash for a missing number.

    Example:
        >>> number_text(0.41666, unit="percent"), number_text(None)
        ('41.7', '—')
    """
    number = rounded(value, unit=unit, decimals=decimals)
    return ABSENT if number is None else f"{number:f}"


def significant_decimals(value: float, digits: int) -> int:
    """Decimals that show a number with this many significant digits, at least 0.

    Example:
        >>> significant_decimals(0.0123, 3), significant_decimals(272.3, 4)
        (4, 1)
    """
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def p_text(p: float | None) -> str:
    """A p value with three decimals, never 0.

    Example:
        >>> p_text(0.0499), p_text(0.00001)
        ('0.050', '<0.001')
    """
    number = rounded(p, decimals=3)
    if number is None:
        return ABSENT
    return "<0.001" if number == 0 else f"{number:f}"


def counted(count: int, thing: str) -> str:
    """A count with its noun.

    Example:
        >>> counted(1, "job"), counted(2, "server boot")
        ('1 job', '2 server boots')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
