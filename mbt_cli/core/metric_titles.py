"""How each metric is headed, rounded and compared in tables and figures."""

from dataclasses import dataclass
from typing import Literal

from mbt_cli.core.tables import Column


@dataclass(frozen=True, slots=True)
class Shown:
    """How one metric is shown: heading, unit, digits, and which end is better."""

    title: str
    unit: str = "percent"
    decimals: int = 1
    best: Literal["high", "low", "none"] = "high"


_SHOWN = {
    "exact_match": Shown("exact match"),
    "substring_match": Shown("substring match"),
    "f1_score": Shown("F1"),
    "official_exact_match": Shown("official EM"),
    "official_f1": Shown("official F1"),
    "containment": Shown("whole-word match"),
    "math_match": Shown("math match"),
    "judge_accuracy": Shown("judge accuracy"),
    "answer_rate": Shown("answer rate"),
    "tokens": Shown("mean tokens", "tokens", 0, "low"),
    "degeneration": Shown("cut at the limit", best="low"),
    "degeneration_loops": Shown("ends in a loop", best="low"),
    "aes": Shown("AES", "index", 3),
}


def shown(metric: str, unit: str = "percent") -> Shown:
    """How a metric is shown; one that is not listed goes by its own name and unit.

    Example:
        >>> shown("pass@4").title
        'pass@4'
    """
    if metric in _SHOWN:
        return _SHOWN[metric]
    decimals = {"percent": 1, "tokens": 0}.get(unit, 3)
    return Shown(metric.replace("_", " "), unit, decimals, "none")


def column(metric: str, unit: str = "percent", *, title: str | None = None) -> Column:
    """The column of a table that shows a metric."""
    one = shown(metric, unit)
    return Column(metric, title or one.title, unit=one.unit, decimals=one.decimals, best=one.best)
