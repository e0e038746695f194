"""tinyhop: multi-hop questions over fictional documents, made by rule.

Each question has its own small world. Its id says all that made it, so a question can be made
again from the id alone, and question i is the same however many are made.

    Q: Where was the author of the novel The Silent Orchard born?   A: Fernbridge
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mbt_cli.benchmarks.tinyhop.comparisons import EARLIER_OR_LATER, SAME_OR_NOT, Comparison
from mbt_cli.benchmarks.tinyhop.names import OLD_NAME_KINDS, Entity, Namer
from mbt_cli.benchmarks.tinyhop.wording import RELATIONS, Relation
from mbt_cli.core.difficulty import known_tier
from mbt_cli.core.draws import Draws
from mbt_cli.core.questions import Document, Question

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


SPLITS = ("train", "validation")
_ID = re.compile(
    r"tinyhop-(?P<seed>\d+)-(?P<split>[a-z]+)-h(?P<hops>[234]+)-d(?P<documents>\d+)-(?P<index>\d+)"
)

Told = tuple[str, list[Fact], Document]
"""Title, the fact of each sentence, and the text of a document."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the questions of a split.

    Args:
        hops: Numbers of hops that occur, each equally often.
        documents: Documents in each question, those that hold the answer among them.
    """

    seed: int
    split: str
    hops: tuple[int, ...]
    documents: int


def make_question(settings: Settings, index: int) -> Question:
    """Question number `index`; it does not depend on how many others are made.

    Raises:
        ValueError: The split is not one of `SPLITS`.

    Example:
        >>> made = make_question(Settings(0, "train", (2,), 4), 0)
        >>> made == question_from_id(made.question_id)
        True
    """
    if settings.split not in SPLITS:
        raise ValueError(f"tinyhop has the splits {', '.join(SPLITS)}, not `{settings.split}`")
    shape = "".join(str(hops) for hops in settings.hops)
    name = f"tinyhop-{settings.seed}-{settings.split}-h{shape}-d{settings.documents}-{index}"
    draws = Draws(name)
    namer = Namer(settings.split, draws)
    plan = plan_question(namer, draws.pick(settings.hops))
    return _question(name, plan, _documents(plan, namer, settings.documents))


def question_from_id(question_id: str) -> Question:
    """The question that an id names.

    Raises:
        ValueError: It is no id of a tinyhop question.
    """
    found = _ID.fullmatch(question_id)
    if found is None:
        raise ValueError(f"`{question_id}` is no tinyhop question")
    hops = tuple(int(digit) for digit in found["hops"])
    settings = Settings(int(found["seed"]), found["split"], hops, int(found["documents"]))
    return make_question(settings, int(found["index"]))


def _question(question_id: str, plan: Plan, documents: list[Told]) -> Question:
    """The plan and its documents as a question; `metadata` holds the chain of reasoning."""
    places = {
        fact: (title, number) for title, facts, _ in documents for number, fact in enumerate(facts)
    }
    chain = [
        {
            "subject": fact.subject.name,
            "relation": fact.relation,
            "object": fact.object.name,
            "title": places[fact][0],
            "sentence": places[fact][1],
            "side": fact.side,
        }
        for fact in plan.facts
    ]
    hops = len(plan.facts)
    return Question(
        question_id=question_id,
        question=plan.question,
        answer=plan.answer.name,
        answer_aliases=plan.answer.aliases,
        context=tuple(document for _, _, document in documents),
        supporting=tuple(places[fact] for fact in plan.facts),
        question_type=plan.form,
        hops=hops,
        difficulty=known_tier("tinyhop", {"hops": hops}),
        metadata={"chain": chain, "pick": plan.pick},
    )


def _documents(plan: Plan, namer: Namer, count: int) -> list[Told]:
    """Title, facts and text of each document, in any order."""
    told = {fact.subject.name: [fact] for fact in plan.facts}
    while len(told) < count:
        for fact in _look_alikes(plan, namer)[: count - len(told)]:
            told[fact.subject.name] = [fact]
    made = []
    for title, facts in told.items():
        both = namer.draws.shuffled([*facts, _chatter(facts[0], namer)])
        sentences = tuple(_sentence(fact, namer) for fact in both)
        made.append((title, both, Document(title, sentences)))
    return namer.draws.shuffled(made)


def _look_alikes(plan: Plan, namer: Namer) -> list[Fact]:
    """Facts of the plan's relations about other things, chained as those of the plan are."""
    facts, subject = list[Fact](), None
    for fact in plan.facts:
        if subject is None or subject.kind != fact.subject.kind:
            subject = namer.entity(fact.subject.kind)
        found = _thing(RELATIONS[fact.relation], namer)
        facts.append(Fact(subject, fact.relation, found))
        subject = found
    return facts


def _chatter(told: Fact, namer: Namer) -> Fact:
    """Something else about the subject of a fact."""
    others = [
        relation
        for relation in RELATIONS.values()
        if told.subject.kind in relation.subjects and relation.name != told.relation
    ]
    relation = namer.draws.pick(others)
    return Fact(told.subject, relation.name, _thing(relation, namer))


def _thing(relation: Relation, namer: Namer) -> Entity:
    return namer.year() if relation.object == "year" else namer.entity(relation.object)


def _sentence(fact: Fact, namer: Namer) -> str:
    statement = namer.draws.pick(RELATIONS[fact.relation].wordings[namer.split].statements)
    found = fact.object.name
    if fact.object.kind in OLD_NAME_KINDS and fact.object.aliases:
        found += f" (once called {fact.object.aliases[0]})"
    return statement.format(s=fact.subject.name, o=found)
