"""Difficulty tiers, by each data set's own marks; looked up by record, never by position.

| data set | easy | medium | hard |
|---|---|---|---|
| HotpotQA | labelled easy | labelled medium | |
| HotpotQA, labelled hard or not at all | comparison | bridge | three supporting facts or more |
| MuSiQue | two hops | three hops | four hops, or not answerable |
| 2WikiMultihopQA | comparison | inference, compositional | bridge_comparison |
| MATH-500 | level 1, 2 | level 3 | level 4, 5 |
| tinyhop | two hops | three hops | four hops |
"""

import re
from collections.abc import Callable, Mapping, Sized

from mbt_cli.core.chat import Json

Record = Mapping[str, Json]

_BY_HOPS = {"2": "easy", "3": "medium", "4": "hard"}
_HOTPOTQA_LABELS = {"easy": "easy", "medium": "medium"}
_HOTPOTQA_TYPES = {"comparison": "easy", "bridge": "medium"}
_TWO_WIKI_TYPES = {
    "comparison": "easy",
    "inference": "medium",
    "compositional": "medium",
    "bridge_comparison": "hard",
}
_MATH_LEVELS = {"1": "easy", "2": "easy", "3": "medium", "4": "hard", "5": "hard"}
_HARD_FROM_FACTS = 3


def tier(kind: str, record: Record) -> str:
    """Tier of a record in the official or the hub layout; `medium` where nothing tells.

    Example:
        >>> tier("musique", {"id": "4hop1__1", "answerable": True})
        'hard'
        >>> tier("musique", {"id": "x", "answerable": True})
        'medium'
    """
    return known_tier(kind, record) or "medium"


def known_tier(kind: str, record: Record) -> str | None:
    """Tier of a record where the data set's own marks tell it, else None."""
    rule = _RULES.get(kind)
    return rule(record) if rule else None


def _hotpotqa(record: Record) -> str | None:
    label = _HOTPOTQA_LABELS.get(str(record.get("level")))
    if label:
        return label
    if _count_of_facts(record.get("supporting_facts")) >= _HARD_FROM_FACTS:
        return "hard"
    return _HOTPOTQA_TYPES.get(str(record.get("type")))


def _count_of_facts(facts: Json) -> int:
    """Facts in `[[title, sentence], ...]` or in `{title: [...], sent_id: [...]}`."""
    if isinstance(facts, Mapping):
        facts = facts.get("title")
    return len(facts) if isinstance(facts, Sized) else 0


def _musique(record: Record) -> str | None:
    if record.get("answerable") is False:
        return "hard"
    found = re.match(r"([234])hop", str(record.get("id")))
    return _BY_HOPS[found[1]] if found else None


def _two_wiki(record: Record) -> str | None:
    return _TWO_WIKI_TYPES.get(str(record.get("type")))


def _math(record: Record) -> str | None:
    """Levels come as 3, "3" or "Level 3"."""
    found = re.fullmatch(r"(?:Level )?([1-5])", str(record.get("level")))
    return _MATH_LEVELS[found[1]] if found else None


def _tinyhop(record: Record) -> str | None:
    return _BY_HOPS.get(str(record.get("hops")))


_RULES: Mapping[str, Callable[[Record], str | None]] = {
    "hotpotqa": _hotpotqa,
    "musique": _musique,
    "2wikimultihopqa": _two_wiki,
    "math500": _math,
    "tinyhop": _tinyhop,
}
