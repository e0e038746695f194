"""What a tinyhop question is about: its facts, its words and its answer, before any document.

A `bridge` follows a chain of relations from one thing to another. A `comparison` asks which of two
things came earlier or later, `yes_no` whether two things share something; with three or four hops,
one or both of the two are described by way of a third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mbt_cli.core.draws import Draws
from mbt_cli.core.tinyhop_comparisons import EARLIER_OR_LATER, SAME_OR_NOT, Comparison
from mbt_cli.core.tinyhop_names import OLD_NAME_KINDS, Entity, Namer
from mbt_cli.core.tinyhop_wording import RELATIONS, Relation

Form = Literal["bridge", "comparison", "yes_no"]

# of ten questions, six are bridges
_FORMS: Sequence[Form] = ("bridge",) * 6 + ("comparison",) * 2 + ("yes_no",) * 2
_CALLED = {"novel": "the novel {}", "film": "the film {}"}


@dataclass(frozen=True, slots=True)
class Fact:
    """One step of the reasoning; `side` tells the two things of a comparison apart."""

    subject: Entity
    relation: str
    object: Entity
    side: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A question without its documents.

    Args:
        pick: What decides a comparison: `earlier`, `later` or `same`; None for bridges.
    """

    form: Form
    question: str
    answer: Entity
    facts: tuple[Fact, ...]
    pick: str | None = None


def plan_question(namer: Namer, hops: int) -> Plan:
    """A question of so many hops, by the namer's split and draws."""
    match namer.draws.pick(_FORMS):
        case "bridge":
            return _bridge(namer, hops)
        case "comparison":
            return _earlier_or_later(namer, hops)
    return _same_or_not(namer, hops)


def _bridge(namer: Namer, hops: int) -> Plan:
    path = namer.draws.pick(_paths(hops))
    subject = namer.entity(namer.draws.pick(path[0].subjects))
    phrase, facts = _called(subject), list[Fact]()
    for step, relation in enumerate(path):
        is_last = step == len(path) - 1
        wording = relation.wordings[namer.split]
        phrase = namer.draws.pick(wording.asks if is_last else wording.phrases).format(s=phrase)
        found = _object(namer, relation, may_have_old_name=is_last)
        facts.append(Fact(subject, relation.name, found))
        subject = found
    return Plan("bridge", phrase, subject, tuple(facts))


def _earlier_or_later(namer: Namer, hops: int) -> Plan:
    comparison, kind = _comparable(namer.draws, EARLIER_OR_LATER, hops)
    sides = [_side(namer, kind, is_described) for is_described in _described(namer.draws, hops)]
    wants_later = namer.draws.chance(1, 2)
    ask = comparison.asks[namer.split][int(wants_later)]
    facts, years = list[Fact](), []
    for number, (path, thing, _) in enumerate(sides):
        year = namer.year()
        years.append(int(year.name))
        last = Fact(thing, comparison.relation, year, number)
        facts += [*_on_side(path, number), last]
    winner = int((years[1] > years[0]) == wants_later)
    return Plan(
        "comparison",
        ask.format(a=sides[0][2], b=sides[1][2]),
        sides[winner][1],
        tuple(facts),
        "later" if wants_later else "earlier",
    )


def _same_or_not(namer: Namer, hops: int) -> Plan:
    comparison, kind = _comparable(namer.draws, SAME_OR_NOT, hops)
    sides = [_side(namer, kind, is_described) for is_described in _described(namer.draws, hops)]
    relation = RELATIONS[comparison.relation]
    first = _object(namer, relation)
    is_same = namer.draws.chance(1, 2)
    found = (first, first if is_same else _object(namer, relation))
    facts = [
        fact
        for number, (path, thing, _) in enumerate(sides)
        for fact in (
            *_on_side(path, number),
            Fact(thing, relation.name, found[number], number),
        )
    ]
    ask = namer.draws.pick(comparison.asks[namer.split])
    return Plan(
        "yes_no",
        ask.format(a=sides[0][2], b=sides[1][2]),
        Entity("truth", "yes" if is_same else "no"),
        tuple(facts),
        "same",
    )


def _side(namer: Namer, kind: str, is_described: bool) -> tuple[list[Fact], Entity, str]:
    """One side of a comparison: the fact that leads to it, the thing, and what it is called."""
    if not is_described:
        thing = namer.entity(kind)
        return [], thing, thing.name
    relation = namer.draws.pick(_leading_to(kind))
    start, thing = namer.entity(namer.draws.pick(relation.subjects)), namer.entity(kind)
    phrase = namer.draws.pick(relation.wordings[namer.split].phrases).format(s=_called(start))
    return [Fact(start, relation.name, thing)], thing, phrase


def _on_side(facts: list[Fact], side: int) -> list[Fact]:
    return [Fact(fact.subject, fact.relation, fact.object, side) for fact in facts]


def _described(draws: Draws, hops: int) -> tuple[bool, bool]:
    """Which of the two sides are reached by way of a third thing."""
    if hops == 3:
        first = draws.chance(1, 2)
        return first, not first
    return hops > 3, hops > 3


def _comparable(
    draws: Draws, comparisons: Sequence[Comparison], hops: int
) -> tuple[Comparison, str]:
    """A comparison and a kind of thing that can be described where that is needed."""
    choices = [
        (comparison, kind)
        for comparison in comparisons
        for kind in comparison.subjects
        if hops == 2 or _leading_to(kind)
    ]
    return draws.pick(choices)


def _object(namer: Namer, relation: Relation, *, may_have_old_name: bool = False) -> Entity:
    """What a fact leads to; now and then a place with an older name that its document tells."""
    if relation.object == "year":
        return namer.year()
    found = namer.entity(relation.object)
    if may_have_old_name and found.kind in OLD_NAME_KINDS and namer.draws.chance(1, 3):
        return Entity(found.kind, found.name, (namer.entity(found.kind).name,))
    return found


def _called(entity: Entity) -> str:
    return _CALLED.get(entity.kind, "{}").format(entity.name)


@lru_cache(maxsize=8)
def _paths(hops: int) -> tuple[tuple[Relation, ...], ...]:
    """Every chain of so many relations that fit, none of them twice."""
    paths: list[tuple[Relation, ...]] = [(relation,) for relation in RELATIONS.values()]
    for _ in range(hops - 1):
        paths = [
            (*path, relation)
            for path in paths
            for relation in RELATIONS.values()
            if path[-1].object in relation.subjects and relation not in path
        ]
    return tuple(paths)


@lru_cache(maxsize=16)
def _leading_to(kind: str) -> tuple[Relation, ...]:
    return tuple(relation for relation in RELATIONS.values() if relation.object == kind)
