"""A user's own questions: as little as a question and its answer is enough."""

import hashlib

import pytest

from mbt_cli.benchmarks.question_answer import QuestionAnswer
from mbt_cli.core.questions import Document


def test_a_question_and_its_answer_are_enough():
    question = QuestionAnswer().question({"question": " Who? ", "answer": "Ann", "topic": "names"})

    # the id is made from the text, so that it stays when lines are added or moved
    assert question.question_id == f"question-{hashlib.sha256(b'Who?').hexdigest()[:16]}"
    assert (question.question, question.answer) == ("Who?", "Ann")
    assert (question.answer_aliases, question.context) == ((), ())
    assert question.metadata == {"topic": "names"}


@pytest.mark.parametrize(
    ("answer", "first", "aliases"),
    [
        (["New York", "NYC"], "New York", ("NYC",)),
        (7, "7", ()),
        (0.5, "0.5", ()),
        (False, "no", ()),
    ],
    ids=["list", "number", "fraction", "truth"],
)
def test_an_answer_may_be_a_list_a_number_or_a_truth(answer, first, aliases):
    question = QuestionAnswer().question({"id": 12, "question": "Which?", "answer": answer})

    assert (question.question_id, question.answer) == ("12", first)
    assert question.answer_aliases == aliases


@pytest.mark.parametrize(
    ("context", "documents"),
    [
        (None, ()),
        ("One text.", (Document("1", ("One text.",)),)),
        (["First.", "Second."], (Document("1", ("First.",)), Document("2", ("Second.",)))),
        ([["Oslo", ["A city.", " Old."]]], (Document("Oslo", ("A city.", " Old.")),)),
    ],
    ids=["none", "text", "texts", "titled"],
)
def test_a_context_may_be_texts_or_titled_documents(context, documents):
    record = {"question": "Which?", "answer": "Oslo", "context": context}

    assert QuestionAnswer().question(record).context == documents


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"answer": "Ann"}, "`question` is missing"),
        ({"question": "Who?"}, "`answer` is missing"),
        ({"question": "Who?", "answer": []}, "`answer` is an empty list"),
        ({"question": "Who?", "answer": "Ann", "context": [1]}, "`context`"),
    ],
)
def test_what_is_missing_is_said(record, words):
    with pytest.raises(ValueError, match=words):
        QuestionAnswer().question(record)
