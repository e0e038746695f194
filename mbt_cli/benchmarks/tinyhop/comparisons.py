"""How tinyhop asks about two things at once; each split has its own questions.

`{a}` and `{b}` are the two sides.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mbt_cli.benchmarks.tinyhop.wording import COMPANIES, kinds, ways


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question about two things of one kind, by what one relation says about each.

    Args:
        asks: Split to its questions; for years the first asks for the earlier one, the second for
            the later.
    """

    subjects: tuple[str, ...]
    relation: str
    asks: Mapping[str, tuple[str, ...]]


def _comparison(
    subjects: str | tuple[str, ...], relation: str, *, train: str, validation: str
) -> Comparison:
    asks = {"train": ways(train), "validation": ways(validation)}
    return Comparison(kinds(subjects), relation, asks)


EARLIER_OR_LATER = (
    _comparison(
        "person",
        "birth_year",
        train="Who was born earlier, {a} or {b}? | Who was born later, {a} or {b}?",
        validation="Of {a} and {b}, who is older? | Of {a} and {b}, who is younger?",
    ),
    _comparison(
        COMPANIES,
        "founding_year",
        train="Which company was founded earlier, {a} or {b}?"
        " | Which company was founded later, {a} or {b}?",
        validation="Of {a} and {b}, which company is older?"
        " | Of {a} and {b}, which company is younger?",
    ),
    _comparison(
        "novel",
        "novel_year",
        train="Which novel came out earlier, {a} or {b}? | Which novel came out later, {a} or {b}?",
        validation="Of {a} and {b}, which had the older first edition?"
        " | Of {a} and {b}, which had the younger first edition?",
    ),
    _comparison(
        "film",
        "film_year",
        train="Which film was released earlier, {a} or {b}?"
        " | Which film was released later, {a} or {b}?",
        validation="Of {a} and {b}, which was shown first? | Of {a} and {b}, which was shown last?",
    ),
)
SAME_OR_NOT = (
    _comparison(
        "person",
        "birthplace",
        train="Were {a} and {b} born in the same town?",
        validation="Do {a} and {b} have the same birthplace?",
    ),
    _comparison(
        "person",
        "employer",
        train="Do {a} and {b} work for the same company?",
        validation="Do {a} and {b} have the same employer?",
    ),
    _comparison(
        COMPANIES,
        "seat",
        train="Are {a} and {b} based in the same town?",
        validation="Are the head offices of {a} and {b} in one town?",
    ),
    _comparison(
        "town",
        "region",
        train="Do {a} and {b} lie in the same region?",
        validation="Do {a} and {b} belong to one region?",
    ),
)
