"""tinyhop: multi-hop questions over fictional documents, made by rule.

Each question has its own small world. Its id says all that made it, so a question can be made
again from the id alone, and question i is the same however many are made.

    Q: Where was the author of the novel The Silent Orchard born?   A: Fernbridge
"""

import re
from dataclasses import dataclass

from mbt_cli.core.difficulty import known_tier
from mbt_cli.core.draws import Draws
from mbt_cli.core.questions import Document, Question
from mbt_cli.core.tinyhop_names import OLD_NAME_KINDS, Entity, Namer
from mbt_cli.core.tinyhop_plan import Fact, Plan, plan_question
from mbt_cli.core.tinyhop_wording import RELATIONS, Relation

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
