"""The scripted teacher: its texts are right, pass the gates, and vary with the seed."""

import hashlib
from pathlib import Path

import pytest

from mbt_cli.benchmarks.tinyhop.benchmark import Series, make_question
from mbt_cli.benchmarks.tinyhop.teacher import ScriptedBackend, guess_in, lesson_of
from mbt_cli.core.chat import Reply, Request
from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.templates import parse_template
from mbt_cli.stages.gates import Asked, GateResults, Gates
from mbt_cli.verifiers.text import exact_match, extract_answer

PROMPTS = Path(__file__).parents[2] / "mbt_cli" / "prompts"
PLACE = ServerPlace(log=Path("unused.log"), cache=Path("unused"), environment={})


def questions(count=60, split="train"):
    return [make_question(Series(3, split, (2, 3, 4), 9), index) for index in range(count)]


def ask(question, purpose, *, seed=1, trace="We do not know."):
    source = (PROMPTS / "mbt_r.md").read_text(encoding="utf-8")
    names = ("question", "documents", "answer", "solution", "trace")
    template = parse_template("mbt_r", source, known=frozenset(names))
    messages = template.fill(dict.fromkeys(names, "...") | {"trace": trace})
    request = Request("key", question.question_id, 0, messages, seed, {}, purpose=purpose)
    with ScriptedBackend().open(PLACE) as responder:
        return responder.respond(request)["choices"][0]


def text(question, purpose, **more):
    return ask(question, purpose, **more)["message"]["content"]


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("purpose", ["solution", "mbt_s", "mbt_r", "plain"])
def test_what_it_writes_passes_every_gate(purpose, split):
    results = GateResults(Gates(), make=purpose)
    for question in questions(split=split):
        choice = ask(question, f"synthesize:{purpose}")
        answers = (question.answer, *question.answer_aliases)
        reply = Reply(choice["message"]["content"], None, choice["finish_reason"])
        documents = "\n".join(" ".join(document.sentences) for document in question.context)
        asked = Asked(question.question_id, answers, question.question, documents)
        assert results.check(asked, reply)["failure"] is None


@pytest.mark.parametrize("purpose", ["mbt_s", "mbt_r"])
def test_a_trace_has_five_paragraphs_and_the_control_does_not(purpose):
    for question in questions(20):
        assert len(text(question, purpose).split("\n\n")) == 5
        assert len(text(question, "plain").split("\n\n")) < 5


@pytest.mark.parametrize("purpose", ["solution", "mbt_s", "mbt_r", "plain"])
def test_the_last_sentence_states_the_answer(purpose):
    for question in questions(20):
        assert text(question, purpose).endswith(f" {question.answer}.")


def test_another_seed_words_it_otherwise_and_the_same_seed_alike():
    question = questions(1)[0]

    assert text(question, "mbt_s", seed=1) == text(question, "mbt_s", seed=1)
    assert len({text(question, "mbt_s", seed=seed) for seed in range(8)}) == 8


def test_a_wrong_student_is_corrected_by_name():
    question = next(q for q in questions() if q.question_type == "bridge" and q.hops == 3)
    early = question.metadata["chain"][1]["object"]

    made = text(question, "mbt_r", trace=f"It must be {early}.")

    assert f"It was tempting to say {early}." in made
    assert "only a step on the way" in made


def test_a_right_student_is_not_corrected_and_keeps_what_was_found():
    question = next(q for q in questions() if q.question_type == "bridge" and q.hops == 2)
    middle = question.metadata["chain"][0]["object"]

    made = text(question, "mbt_r", trace=f"First {middle}, then {question.answer}.")

    assert "tempting" not in made
    assert f"A first look already brings up {middle} and {question.answer}." in made


def test_a_student_who_names_nothing_is_corrected_too():
    question = next(q for q in questions() if q.question_type == "bridge")

    assert "a guess that no document carries" in text(question, "mbt_r", trace="Hm.")


def test_the_guess_is_the_last_name_and_an_alias_is_the_answer():
    question = next(q for q in questions() if q.answer_aliases and q.question_type == "bridge")
    lesson = lesson_of(question)
    title = next(d.title for d in question.context if d.title != question.answer)

    assert guess_in(f"{question.answer}? No: {title}.", lesson) == title
    assert guess_in(f"{title}? No: {question.answer_aliases[-1]}.", lesson) == question.answer


def test_as_a_student_it_answers_right_in_the_answer_format():
    for question in questions(20):
        choice = ask(question, "rollout")
        answer = extract_answer(choice["message"]["content"])
        assert exact_match(answer, [question.answer]) == 1.0
        assert choice["message"]["reasoning"]


def test_other_questions_and_other_purposes_are_failed_rows_not_crashes():
    question = questions(1)[0]
    with pytest.raises(LookupError, match="does not do `judge:answer_match`"):
        ask(question, "judge:answer_match")

    with (
        ScriptedBackend().open(PLACE) as responder,
        pytest.raises(LookupError, match="tinyhop"),
    ):
        responder.respond(Request("key", "5a7f6fd7", 0, (), 1, {}, purpose="solution"))


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        ("train", "cba39282f117a32f33354e2e5b4bc09385ffa0c931d70253ea2762cf006ed5bb"),
        ("validation", "fea52e21f0ee6831169446b118f86c4f861457e7118f6f3b253a3b9811b389c9"),
    ],
)
def test_its_texts_are_the_same_on_every_platform_and_in_every_version(split, digest):
    texts = [
        text(
            question, purpose, seed=seed, trace=f"It is {question.metadata['chain'][0]['object']}."
        )
        for seed, question in enumerate(questions(split=split))
        for purpose in ("solution", "mbt_s", "mbt_r", "plain")
    ]

    # another digest needs another `version` of the backend
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest() == digest
