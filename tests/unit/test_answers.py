"""Answers one at a time: normalising, extraction, and the measures of one prediction."""

import pytest

from mbt_cli.core.traces import answering_text
from mbt_cli.verifiers.text import (
    containment,
    exact_match,
    extract_answer,
    f1_score,
    normalise,
)
from tests.unit.published import Official, extract_answer_published, official, substring_match


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Quick, brown fox!", "quick brown fox"),
        ("a.m.", "am"),  # punctuation goes before articles, so this `a` stays
        ("A a an THE the", ""),
        ("theatre and another", "theatre and another"),
        ("New-York_5", "newyork5"),
        ("caf\u00e9 \u3000 \u00bd\u2026", "caf\u00e9 \u00bd\u2026"),
        ("\t\n", ""),
        ("l'a\u2013the b", "la\u2013 b"),  # a dash is no word character, so `the` is a word
    ],
)
def test_normalising_lowers_drops_punctuation_then_articles_then_squeezes(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("reply", "published", "better"),
    [
        ("<answer> Paris </answer>", "Paris", "Paris"),
        ("<answer>x</answer> no: <answer>y</answer>", "y", "y"),
        ("<answer>x</answer> <answer>y", "", "x"),
        ("<answer>a<answer>b</answer>", "b", "b"),
        ("<ANSWER>Paris</Answer>", "", "Paris"),
        ("<think><answer>x</answer></think> done", "x", ""),
        ("<think><answer>x</answer></think>\n", "x", "x"),
        ("<think><answer>x</answer></think><answer>y</answer>", "y", "y"),
        ("<answer>y</answer><think><answer>x</answer></think>", "x", "y"),
        ("the template opened it <answer>x</answer></think> so <answer>y</answer>", "y", "y"),
        ("thinking <answer>x</answer></think> I cannot say", "x", ""),
        ("<think> never closed <answer>x</answer>", "x", "x"),
        ("<answer>two\nlines</answer>", "two\nlines", "two\nlines"),
        ("<answer></answer>", "", ""),
        ("<answer>x</answer> <answer> </answer>", "", "x"),
        ("<thinking><answer>x</answer></thinking><answer>y</answer>", "y", "y"),
        ("<answer>y</answer> [THINK]or <answer>x</answer>[/THINK]", "x", "y"),
        ("or <answer>x</answer>[/THINK] I cannot say", "x", ""),
        ("Paris", "", ""),
        ("", "", ""),
        ("</answer>x<answer>", "", ""),
    ],
)
def test_extraction_has_a_published_and_a_better_form(reply, published, better):
    assert extract_answer_published(reply) == published
    assert extract_answer(reply) == better


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<think>so <answer>x</answer> or", ""),
        ("[THINK]so <answer>x</answer> or", ""),
        ("<thinking>so <answer>x</answer></thinking>", ""),
        ("<think>so</think><answer>x</answer> and so on", "x"),
        ("the template opened it</think><answer>x</answer> and so on", "x"),
        ("<think>so</think><answer>x", ""),
        ("<think>a</think><answer>x</answer><think>or <answer>y</answer>", "x"),
        ("<answer>x</answer> and so on", "x"),
        ("so <answer>x</answer> or", "x"),  # nothing shows that a template opened thinking
    ],
)
def test_a_cut_reply_has_an_answer_only_outside_its_thinking(reply, answer):
    assert extract_answer(answering_text(reply, "length")) == answer
    assert answering_text(reply, "stop") == answering_text(reply, None) == reply


def test_a_reply_of_nothing_but_tags_is_read_in_linear_time():
    reply = "<think><answer>" * 20_000

    assert extract_answer(reply) == ""


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "substring", "whole_words"),
    [
        ("The Beatles", ["Beatles"], 1, 1, 1),
        ("Fab Four", ["Beatles", "the fab four!"], 1, 1, 1),
        ("Norway", ["no"], 0, 1, 0),
        ("no", ["no"], 1, 1, 1),
        ("It is New York, surely", ["new york"], 0, 1, 1),
        ("New big York", ["New York"], 0, 0, 0),
        ("anything", ["the"], 0, 1, 0),  # `the` normalises to nothing
        ("the", ["the"], 0, 0, 0),  # so does this prediction
        ("", ["Paris"], 0, 0, 0),
        ("Paris", [], 0, 0, 0),
    ],
)
def test_exact_substring_and_whole_word_matches(
    prediction, references, exact, substring, whole_words
):
    assert exact_match(prediction, references) == exact
    assert substring_match(prediction, references) == substring
    assert containment(prediction, references) == whole_words


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        ("new york city", ["York"], 0.5),  # 2 * 1 / (3 + 1)
        ("b b c", ["b b d"], 4 / 6),  # both b count
        ("b b b", ["b"], 0.5),  # 2 * 1 / (3 + 1)
        ("x", ["y", "x z"], 2 / 3),
        ("", ["x"], 0.0),
        ("the", ["the"], 0.0),
    ],
)
def test_f1_counts_repeated_words_and_takes_the_best_reference(prediction, references, expected):
    assert f1_score(prediction, references) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rules", "prediction", "gold", "aliases", "expected"),
    [
        ("hotpotqa", "Fab Four", "Beatles", ["Fab Four"], Official(0.0, 0.0)),
        ("2wikimultihopqa", "Fab Four", "Beatles", ["Fab Four"], Official(1.0, 1.0)),
        ("musique", "Fab Four", "Beatles", ["Fab Four"], Official(1.0, 1.0)),
        ("hotpotqa", "yes indeed", "yes", [], Official(0.0, 0.0)),
        ("2wikimultihopqa", "no", "yes no", [], Official(0.0, 0.0)),
        ("musique", "yes indeed", "yes", [], Official(0.0, 2 / 3)),
        ("hotpotqa", "the", "the", [], Official(1.0, 0.0)),
        ("musique", "the", "an", [], Official(1.0, 1.0)),
        ("musique", "the", "Oslo", [], Official(0.0, 0.0)),
    ],
)
def test_official_scorers_differ_in_references_closed_words_and_empty_texts(
    rules, prediction, gold, aliases, expected
):
    found = official(rules, prediction, gold, aliases)

    assert found.exact_match == expected.exact_match
    assert found.f1 == pytest.approx(expected.f1)
