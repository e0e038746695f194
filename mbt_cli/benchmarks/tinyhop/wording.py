"""How tinyhop says things: each split has its own sentences and its own questions.

`{s}` is the subject of a fact, `{o}` its object.
Ways to say the same thing are separated by ` | `.
"""

from collections.abc import Mapping
from dataclasses import dataclass

COMPANIES = ("publisher", "studio", "company")


@dataclass(frozen=True, slots=True)
class Wording:
    """One relation in the words of one split.

    Args:
        statements: A fact as a sentence of a document.
        phrases: The object by way of its subject, to be nested in questions.
        asks: The question for the object.
    """

    statements: tuple[str, ...]
    phrases: tuple[str, ...]
    asks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact: between which kinds of things it holds, and how each split says it."""

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
    return Relation(name, kinds(subjects), object, wordings)


def _wording(statements: str, phrases: str, asks: str) -> Wording:
    return Wording(ways(statements), ways(phrases), ways(asks))


def ways(text: str) -> tuple[str, ...]:
    """The ways of saying something that ` | ` separates."""
    return tuple(text.split(" | ")) if text else ()


def kinds(subjects: str | tuple[str, ...]) -> tuple[str, ...]:
    """One kind or several, as several."""
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
