"""tinyhop: same seed, same bytes; the answer follows from the documents; splits share nothing."""

import hashlib
import re
from dataclasses import asdict
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbt_cli.benchmarks.tinyhop.benchmark import (
    SPLITS,
    Series,
    TinyHop,
    make_question,
    question_from_id,
)
from mbt_cli.benchmarks.tinyhop.names import PARTS
from mbt_cli.benchmarks.tinyhop.wording import EARLIER_OR_LATER, RELATIONS, SAME_OR_NOT
from mbt_cli.errors import UsageError
from mbt_cli.verifiers.text import containment

ALL_HOPS = (2, 3, 4)


def many(split="train", count=300, **changes):
    settings = {"seed": 0, "split": split, "hops": ALL_HOPS, "documents": 9} | changes
    return [make_question(Series(**settings), index) for index in range(count)]


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        ("train", "3ca3da9680b07a602776c2395539ba3e83035b30932a557d0b55a8c86846be29"),
        ("validation", "29f5932336795a1ad5768e1ce6037dc672a4f4ba1ec1c7efea4729b18cc16b32"),
    ],
)
def test_the_questions_are_the_same_on_every_platform_and_in_every_version(split, digest):
    made = [asdict(question) for question in TinyHop(seed=3, size=200).generate(split)]
    for question in made:  # came later, and are empty here
        assert (question.pop("options"), question.pop("resolution")) == ((), ())

    # another digest needs another `version` of the benchmark
    assert hashlib.sha256(orjson.dumps(made)).hexdigest() == digest


def test_a_larger_size_adds_questions_and_changes_none():
    small, large = (list(TinyHop(size=size).generate("train")) for size in (5, 12))

    assert large[:5] == small


def test_another_seed_makes_other_questions():
    first, second = (many(count=20, seed=seed) for seed in (0, 1))

    assert not {q.question for q in first} & {q.question for q in second}


@given(
    st.integers(0, 10**9),
    st.sampled_from(SPLITS),
    st.sampled_from([(2,), (2, 3), (2, 3, 4), (4,)]),
    st.integers(4, 40),
    st.integers(0, 10**6),
)
def test_a_question_can_be_made_again_from_its_id(seed, split, hops, documents, index):
    question = make_question(Series(seed, split, hops, documents), index)

    assert question_from_id(question.question_id) == question
    assert question.hops in hops
    assert len(question.context) == documents


@pytest.mark.parametrize(
    "bad", ["", "tinyhop-0-test-h2-d9-1", "5a7f6fd7", "tinyhop-0-train-h5-d9-1"]
)
def test_another_id_is_refused(bad):
    with pytest.raises(ValueError, match="tinyhop"):
        question_from_id(bad)


@pytest.mark.parametrize("split", SPLITS)
def test_every_fact_of_the_chain_stands_in_the_sentence_that_supports_it(split):
    for question in many(split):
        documents = {document.title: document.sentences for document in question.context}
        assert len(documents) == 9  # titles differ
        for link, (title, number) in zip(
            question.metadata["chain"], question.supporting, strict=True
        ):
            sentence = documents[title][number]
            assert (link["title"], link["sentence"]) == (title, number)
            assert link["subject"] == title
            assert link["subject"] in sentence
            assert link["object"] in sentence


@pytest.mark.parametrize("split", SPLITS)
def test_a_bridge_leads_from_fact_to_fact_to_the_answer_which_the_question_does_not_name(split):
    bridges = [q for q in many(split) if q.question_type == "bridge"]

    assert len(bridges) > 100
    for question in bridges:
        chain = question.metadata["chain"]
        for link, following in pairwise(chain):
            assert link["object"] == following["subject"]
        assert chain[-1]["object"] == question.answer
        assert chain[0]["subject"] in question.question
        assert not containment(question.question, [question.answer, *question.answer_aliases])


@pytest.mark.parametrize("split", SPLITS)
def test_a_comparison_is_decided_by_the_two_years(split):
    compared = [q for q in many(split) if q.question_type == "comparison"]

    assert len(compared) > 30
    for question in compared:
        years = {
            link["subject"]: int(link["object"])
            for link in question.metadata["chain"]
            if link["object"].isdigit()
        }
        choose = min if question.metadata["pick"] == "earlier" else max
        assert len(years) == 2
        assert question.answer == choose(years, key=years.__getitem__)


@pytest.mark.parametrize("split", SPLITS)
def test_yes_and_no_are_decided_by_the_ends_of_both_sides_and_about_even(split):
    asked = [q for q in many(split, 600) if q.question_type == "yes_no"]

    for question in asked:
        sides = {link["side"]: link["object"] for link in question.metadata["chain"]}
        assert question.answer == ("yes" if sides[0] == sides[1] else "no")
    share = sum(q.answer == "yes" for q in asked) / len(asked)
    assert 0.35 < share < 0.65


def test_no_fact_is_told_twice_so_only_one_answer_can_be_right():
    for question in many(count=200):
        told = [sentence for document in question.context for sentence in document.sentences]
        assert len(set(told)) == len(told)


def test_an_older_name_of_a_place_is_an_alias_that_its_document_tells():
    named = [
        q
        for q in many(count=600)
        if any("once called" in s for d in q.context for s in d.sentences)
    ]

    assert named
    for question in named:
        text = " ".join(s for d in question.context for s in d.sentences)
        found = re.search(r"(\w+) \(once called (\w+)\)", text)
        assert found is not None
        assert (question.answer, question.answer_aliases) == (found[1], (found[2],))


def test_splits_share_no_part_of_a_name():
    train, validation = (
        {
            word
            for words in (getattr(PARTS[split], f) for f in PARTS[split].__slots__)
            for word in words
        }
        for split in SPLITS
    )

    # tails such as `by` and `bury` join with heads that differ, so heads alone decide
    tails = {
        w
        for s in SPLITS
        for f in ("surname_tails", "town_tails", "region_tails")
        for w in getattr(PARTS[s], f)
    }
    assert not (train & validation) - tails


def test_splits_share_no_name_and_no_wording():
    names = []
    for split in SPLITS:
        found = {
            link[end]
            for q in many(split)
            for link in q.metadata["chain"]
            for end in ("subject", "object")
        }
        names.append({name for name in found if not name.isdigit()})
    assert not names[0] & names[1]

    for relation in RELATIONS.values():
        train, validation = (relation.wordings[split] for split in SPLITS)
        assert not set(train.statements) & set(validation.statements), relation.name
        assert not set(train.phrases) & set(validation.phrases), relation.name
        assert not set(train.asks) & set(validation.asks), relation.name
    for comparison in (*EARLIER_OR_LATER, *SAME_OR_NOT):
        assert not set(comparison.asks["train"]) & set(comparison.asks["validation"])


def test_an_unknown_split_says_which_there_are():
    with pytest.raises(UsageError, match="train, validation"):
        TinyHop().generate("test")


def test_hops_are_sorted_so_that_their_order_does_not_change_the_questions():
    assert TinyHop(hops=(4, 2, 2)).hops == (2, 4)
