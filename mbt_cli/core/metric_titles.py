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
    "tokens_per_correct": Shown("tokens per correct", "tokens", 0, "low"),
    "aes": Shown("AES", "index", 3),
    "answer_hit": Shown("answer hit"),
    "answer_hit_substring": Shown("gold in trace (substring)"),
    "answer_hit_words": Shown("gold in trace (words)"),
    "answer_inclusive_errors": Shown("answer-inclusive errors", best="low"),
    "answer_inclusive_errors_of_errors": Shown("of all errors", best="low"),
    "answer_inclusive_errors_substring": Shown("by substring", best="low"),
    "answer_inclusive_errors_words": Shown("by whole words", best="low"),
    "rrp_arrival": Shown("arrival", "share", 3, "low"),
    "rrp_redundancy": Shown("redundancy", "share", 3, "low"),
    "rrp_regulation": Shown("regulation", "index", 3),
    "rrp_regulation_of_means": Shown("regulation of means", "index", 3),
    "rrp_arrival_length_aware": Shown("arrival, length-aware", "share", 3, "low"),
    "rrp_redundancy_length_aware": Shown("redundancy, length-aware", "share", 3, "low"),
    "rrp_regulation_length_aware": Shown("regulation, length-aware", "index", 3),
    "rrp_sentences": Shown("sentences", "sentences", 1, "none"),
    "rrp_one_paragraph": Shown("one paragraph", best="none"),
    "rrp_never_reached": Shown("never reached", best="low"),
    "rrp_not_judged": Shown("not judged", best="none"),
    "rrp_unread": Shown("unread (redundancy)", best="low"),
    "mqi": Shown("MQI", "index", 3),
    "mqi_of_means": Shown("MQI of means", "index", 3),
    "mqi_level": Shown("level", "level", 2),
    "mqi_phase_1": Shown("understanding"),
    "mqi_phase_2": Shown("planning"),
    "mqi_phase_3": Shown("monitoring"),
    "mqi_phase_4": Shown("self-correction"),
    "mqi_phase_5": Shown("verification"),
    "mqi_gamma": Shown("gamma", "gamma", 3),
    "mqi_not_judged": Shown("not judged", best="none"),
    "mqi_unread": Shown("unread (phases)", best="low"),
    "judge_unread": Shown("unread (answers)", best="low"),
    "answer_hit_unread": Shown("unread (answer hit)", best="low"),
    "judge_accuracy_if_unread_wrong": Shown("if unread were wrong", best="none"),
    "judge_accuracy_if_unread_right": Shown("if unread were right", best="none"),
    "judge_vote_agreement": Shown("votes agree", best="none"),
}
PHASES = tuple(f"mqi_phase_{number}" for number in range(1, 6))
"""Metrics of the five phases, in order."""


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
