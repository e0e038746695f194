"""OpenReview: papers, and whether they were accepted.

Records of `{title, abstract, authors, reviews, references, decision}`; each may be OpenReview's
`{value: ...}`. Reviews are texts, or objects of named texts and numbers. A decision begins with
Accept or Reject; a paper without one, or a withdrawn one, has no outcome.

    Q: Will this paper be accepted?   A. Accept   B. Reject
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.benchmarks.beliefs import BeliefBenchmark, one_hot
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question

_ID = ("id", "forum")
_PARTS = ("authors", "reviews", "references")
_TAKEN = (*_ID, "title", "abstract", "decision", *_PARTS)
_OPTIONS = ("Accept", "Reject")


class OpenReview(BeliefBenchmark):
    """Papers of OpenReview and the decision on them."""

    kind: Literal["openreview"] = "openreview"
    """Names the benchmark in a manifest."""
    hide: tuple[Literal["authors", "reviews", "references"], ...] = ("authors", "reviews")
    """Parts of a record that are not shown."""

    layout: ClassVar[frozenset[str]] = frozenset({"title", "abstract", "decision"})
    reads: ClassVar[frozenset[str]] = frozenset(_TAKEN)

    def question(self, record: Mapping[str, Json]) -> Question:
        plain = {name: _value(record.get(name)) for name in record}
        title = records.text(plain, "title")
        parts = [f"Title: {title}", f"Abstract: {records.text(plain, 'abstract')}"]
        for name in _PARTS:
            shown = [] if name in self.hide else _texts(plain.get(name), name)
            if shown:
                between = ", " if name == "authors" else "\n"
                parts.append(f"{name.capitalize()}: {between.join(shown)}")
        decision = (records.optional_text(plain, "decision") or "").casefold()
        right = next((n for n, o in enumerate(_OPTIONS) if decision.startswith(o.casefold())), None)
        return self.with_options(
            records.own_id(plain, *_ID) or records.hashed_id(title),
            [*parts, "Will this paper be accepted?"],
            _OPTIONS,
            one_hot(right, len(_OPTIONS)),
            records.rest(plain, *_TAKEN),
        )


def _value(field: Json) -> Json:
    """What a field holds, in the form of either version of OpenReview."""
    return field["value"] if isinstance(field, Mapping) and set(field) == {"value"} else field


def _texts(items: Json, name: str) -> Sequence[str]:
    """The texts of a list.

    Example:
        >>> _texts([{"rating": {"value": 6}, "summary": "Fine."}, "Good."], "reviews")
        ['rating: 6; summary: Fine.', 'Good.']
    """
    if items is None:
        return []
    if not isinstance(items, list | tuple):
        raise ValueError(f"`{name}` should be a list")
    return [
        "; ".join(f"{key}: {_value(value)}" for key, value in item.items())
        if isinstance(item, Mapping)
        else str(item)
        for item in items
    ]
