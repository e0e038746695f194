"""The sentences and questions of tinyhop; the splits share none.

`{s}` is the subject of a fact and `{o}` its object. ` | ` separates alternatives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

COMPANIES = ("publisher", "studio", "company")


@dataclass(frozen=True, slots=True)
class Wording:
    """One relation in the words of one split.

    Args:
        statements: A fact as a sentence of a document.
        phrases: Noun phrases for the object, to be nested in questions.
        asks: Questions for the object.
    """

    statements: tuple[str, ...]
    phrases: tuple[str, ...]
    asks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact: the kinds of things that it connects, and its wording in each split."""

    name: str
    subjects: tuple[str, ...]
    object: str
    wordings: Mapping[str, Wording]


def _relation(
    name: str,
    subjects: str | tuple[str, ...],
    object: str,
    *,
    train: tuple[str, str, str],
    validation: tuple[str, str, str],
) -> Relation:
    wordings = {"train": _wording(*train), "validation": _wording(*validation)}
    return Relation(name, _kinds(subjects), object, wordings)


def _wording(statements: str, phrases: str, asks: str) -> Wording:
    return Wording(_ways(statements), _ways(phrases), _ways(asks))


def _ways(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | ")) if text else ()


def _kinds(subjects: str | tuple[str, ...]) -> tuple[str, ...]:
    return (subjects,) if isinstance(subjects, str) else subjects


_RELATIONS = (
    _relation(
        "author",
        "novel",
        "person",
        train=(
            "{s} is a novel by {o}. | The novel {s} was written by {o}.",
            "the author of {s}",
            "Who is the author of {s}?",
        ),
        validation=(
            "{o} wrote the novel {s}. | The author of the novel {s} is {o}.",
            "the writer of {s}",
            "Which person wrote {s}?",
        ),
    ),
    _relation(
        "director",
        "film",
        "person",
        train=(
            "{s} is a film by {o}. | The film {s} was directed by {o}.",
            "the director of {s}",
            "Who directed {s}?",
        ),
        validation=(
            "{o} directed the film {s}. | The director of the film {s} is {o}.",
            "the person who directed {s}",
            "Who was the director of {s}?",
        ),
    ),
    _relation(
        "publisher",
        "novel",
        "publisher",
        train=("{s} was published by {o}.", "the publisher of {s}", "Which company published {s}?"),
        validation=(
            "The publisher of {s} is {o}.",
            "the company that published {s}",
            "What is the publisher of {s} called?",
        ),
    ),
    _relation(
        "producer",
        "film",
        "studio",
        train=(
            "{s} was produced by {o}.",
            "the studio that produced {s}",
            "Which studio produced {s}?",
        ),
        validation=(
            "The studio behind {s} is {o}.",
            "the studio behind {s}",
            "What is the studio behind {s} called?",
        ),
    ),
    _relation(
        "birthplace",
        "person",
        "town",
        train=(
            "{s} was born in {o}. | {s} was born in the town of {o}.",
            "the town where {s} was born",
            "In which town was {s} born? | Where was {s} born?",
        ),
        validation=(
            "The birthplace of {s} is {o}. | {s} is a native of {o}.",
            "the birthplace of {s}",
            "What is the birthplace of {s}?",
        ),
    ),
    _relation(
        "teacher",
        "person",
        "person",
        train=(
            "{s} studied under {o}. | {s} was taught by {o}.",
            "the teacher of {s}",
            "Who taught {s}? | Who was the teacher of {s}?",
        ),
        validation=(
            "{o} was the teacher of {s}. | {s} was a student of {o}.",
            "the person who taught {s}",
            "Under whom did {s} study?",
        ),
    ),
    _relation(
        "employer",
        "person",
        "company",
        train=(
            "{s} works for {o}. | {s} is employed by {o}.",
            "the company that {s} works for",
            "Which company does {s} work for?",
        ),
        validation=(
            "{s} has a job at {o}. | The employer of {s} is {o}.",
            "the employer of {s}",
            "Who is the employer of {s}?",
        ),
    ),
    _relation(
        "founder",
        COMPANIES,
        "person",
        train=(
            "{s} was founded by {o}. | {s} is a company founded by {o}.",
            "the founder of {s}",
            "Who founded {s}?",
        ),
        validation=(
            "{o} founded {s}. | The founder of {s} is {o}.",
            "the person who founded {s}",
            "Who is the founder of {s}?",
        ),
    ),
    _relation(
        "seat",
        COMPANIES,
        "town",
        train=(
            "{s} is based in {o}. | {s} has its head office in {o}.",
            "the town where {s} is based",
            "In which town is {s} based?",
        ),
        validation=(
            "The head office of {s} is in {o}. | {s} is a company from {o}.",
            "the town with the head office of {s}",
            "Where is the head office of {s}?",
        ),
    ),
    _relation(
        "region",
        "town",
        "region",
        train=(
            "{s} is a town in {o}. | {s} lies in the region of {o}.",
            "the region where {s} lies",
            "In which region does {s} lie?",
        ),
        validation=(
            "The town of {s} belongs to {o}. | {s} is part of the region {o}.",
            "the region that {s} belongs to",
            "Which region does {s} belong to?",
        ),
    ),
    _relation(
        "river",
        "town",
        "river",
        train=(
            "{s} stands on the {o}. | The town of {s} lies on the {o}.",
            "the river on which {s} stands",
            "On which river does {s} stand?",
        ),
        validation=(
            "The {o} flows through {s}. | The river of {s} is the {o}.",
            "the river that flows through {s}",
            "Which river flows through {s}?",
        ),
    ),
    _relation(
        "mayor",
        "town",
        "person",
        train=("The mayor of {s} is {o}.", "the mayor of {s}", "Who is the mayor of {s}?"),
        validation=(
            "{o} is the head of the town council of {s}.",
            "the head of the town council of {s}",
            "Who is the head of the town council of {s}?",
        ),
    ),
    _relation(
        "capital",
        "region",
        "town",
        train=("The capital of {s} is {o}.", "the capital of {s}", "What is the capital of {s}?"),
        validation=(
            "{o} is the capital of {s}.",
            "the capital town of {s}",
            "Which town is the capital of {s}?",
        ),
    ),
    _relation(
        "governor",
        "region",
        "person",
        train=("The governor of {s} is {o}.", "the governor of {s}", "Who governs {s}?"),
        validation=(
            "{o} governs {s}. | The person who governs {s} is {o}.",
            "the person who governs {s}",
            "Who is the governor of {s}?",
        ),
    ),
    _relation(
        "birth_year",
        "person",
        "year",
        train=(
            "{s} was born in {o}. | {s} was born in the year {o}.",
            "",
            "In which year was {s} born?",
        ),
        validation=("The birth year of {s} is {o}.", "", "What is the birth year of {s}?"),
    ),
    _relation(
        "founding_year",
        COMPANIES,
        "year",
        train=("{s} was founded in {o}.", "", "In which year was {s} founded?"),
        validation=("The founding year of {s} is {o}.", "", "What is the founding year of {s}?"),
    ),
    _relation(
        "novel_year",
        "novel",
        "year",
        train=("{s} came out in {o}.", "", "In which year did {s} come out?"),
        validation=(
            "The first edition of {s} is from {o}.",
            "",
            "What is the year of the first edition of {s}?",
        ),
    ),
    _relation(
        "film_year",
        "film",
        "year",
        train=("{s} was released in {o}.", "", "In which year was {s} released?"),
        validation=(
            "The first showing of {s} was in {o}.",
            "",
            "In what year was the first showing of {s}?",
        ),
    ),
)
RELATIONS: Mapping[str, Relation] = {relation.name: relation for relation in _RELATIONS}


@dataclass(frozen=True, slots=True)
class PairQuestion:
    """A question about two things of one kind, decided by the same relation of each.

    Args:
        asks: Split to its questions, with `{a}` and `{b}` for the two things. Of two questions
            about years, the first asks for the earlier year and the second for the later.
    """

    subjects: tuple[str, ...]
    relation: str
    asks: Mapping[str, tuple[str, ...]]


def _pair(
    subjects: str | tuple[str, ...], relation: str, *, train: str, validation: str
) -> PairQuestion:
    asks = {"train": _ways(train), "validation": _ways(validation)}
    return PairQuestion(_kinds(subjects), relation, asks)


EARLIER_OR_LATER = (
    _pair(
        "person",
        "birth_year",
        train="Who was born earlier, {a} or {b}? | Who was born later, {a} or {b}?",
        validation="Of {a} and {b}, who is older? | Of {a} and {b}, who is younger?",
    ),
    _pair(
        COMPANIES,
        "founding_year",
        train="Which company was founded earlier, {a} or {b}?"
        " | Which company was founded later, {a} or {b}?",
        validation="Of {a} and {b}, which company is older?"
        " | Of {a} and {b}, which company is younger?",
    ),
    _pair(
        "novel",
        "novel_year",
        train="Which novel came out earlier, {a} or {b}? | Which novel came out later, {a} or {b}?",
        validation="Of {a} and {b}, which had the older first edition?"
        " | Of {a} and {b}, which had the younger first edition?",
    ),
    _pair(
        "film",
        "film_year",
        train="Which film was released earlier, {a} or {b}?"
        " | Which film was released later, {a} or {b}?",
        validation="Of {a} and {b}, which was shown first? | Of {a} and {b}, which was shown last?",
    ),
)
SAME_OR_NOT = (
    _pair(
        "person",
        "birthplace",
        train="Were {a} and {b} born in the same town?",
        validation="Do {a} and {b} have the same birthplace?",
    ),
    _pair(
        "person",
        "employer",
        train="Do {a} and {b} work for the same company?",
        validation="Do {a} and {b} have the same employer?",
    ),
    _pair(
        COMPANIES,
        "seat",
        train="Are {a} and {b} based in the same town?",
        validation="Are the head offices of {a} and {b} in one town?",
    ),
    _pair(
        "town",
        "region",
        train="Do {a} and {b} lie in the same region?",
        validation="Do {a} and {b} belong to one region?",
    ),
)
