"""The shipped prompts: real questions stand in them unaltered, and texts that follow them pass."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.core.chat import Reply
from mbt_cli.core.questions import documents_text
from mbt_cli.core.templates import parse_template
from mbt_cli.stages.gates import Asked, GateResults, Gates
from tests.unit.split_reading import read_split

PROMPTS = Path(__file__).parents[2] / "mbt_cli" / "prompts"
ASKED = frozenset({"question", "documents"})
TAUGHT = ASKED | {"answer"}
REWRITTEN = TAUGHT | {"solution", "trace"}
PLACEHOLDERS = {
    "answer": ASKED,
    "code": frozenset({"question"}),
    "completion": frozenset({"question"}),
    "metacognitive": ASKED,
    "solution": TAUGHT,
    "mbt_s": TAUGHT,
    "mbt_r": REWRITTEN,
    "plain": REWRITTEN,
}
SAMPLES = [
    (HotpotQA, "hotpotqa/hotpot_dev_distractor_v1.sample100.json"),
    (MuSiQue, "musique/musique_ans_v1.0_dev.sample100.jsonl"),
    (TwoWikiMultihopQA, "2wikimultihopqa/dev.sample82.json"),
]
# what a template engine, a chat template or a shell would take for its own
HOSTILE = "{{ answer }} {% raw %} <|im_end|> </think> $HOME \\n 'x' `y` === user ==="
CONTEXT_TOKENS = 32_768
REPLY_TOKENS = 8_192
FEWEST_CHARACTERS_PER_TOKEN = 2.5


def source(name):
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8")


def template(name):
    return parse_template(name, source(name), known=PLACEHOLDERS[name])


def turns(name):
    return template(name).turns


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_a_prompt_has_every_placeholder_it_may_have(name):
    assert template(name).placeholders == PLACEHOLDERS[name]


@pytest.mark.parametrize(("benchmark", "file"), SAMPLES, ids=[b.__name__ for b, _ in SAMPLES])
def test_real_questions_stand_in_every_prompt_unaltered(benchmark, file, shared):
    questions = read_split(benchmark(files={"validation": str(shared / "data" / file)})).frame

    for question in questions.iter_rows(named=True):
        values = {
            "question": question["question"],
            "documents": documents_text(question["context"]),
            "answer": question["answer"],
            "solution": f"A solution with {HOSTILE}",
            "trace": f"A trace with {HOSTILE}",
        }
        for name, placeholders in PLACEHOLDERS.items():
            sent = "\n".join(turn["content"] for turn in template(name).fill(values))
            assert all(values[placeholder] in sent for placeholder in placeholders)
            for placeholder in placeholders:
                sent = sent.replace(values[placeholder], "")
            assert "{{" not in sent


@pytest.mark.parametrize(("benchmark", "file"), SAMPLES, ids=[b.__name__ for b, _ in SAMPLES])
def test_the_longest_real_question_leaves_room_for_the_reply(benchmark, file, shared):
    questions = read_split(benchmark(files={"validation": str(shared / "data" / file)})).frame
    documents = max(len(documents_text(row)) for row in questions["context"].to_list())

    own = max(sum(len(text) for _, text in turns(name)) for name in PLACEHOLDERS)
    tokens = (own + documents) / FEWEST_CHARACTERS_PER_TOKEN

    assert tokens + REPLY_TOKENS < CONTEXT_TOKENS


def test_the_five_phases_as_a_prompt_ask_the_same_question_as_the_plain_prompt():
    (plain,) = turns("answer")

    assert [role for role, _ in turns("metacognitive")] == ["system", "user"]
    assert turns("metacognitive")[1] == plain


@pytest.mark.parametrize("name", ["answer", "metacognitive"])
def test_an_answer_is_asked_for_without_a_word_about_how_long_to_reason(name):
    text = source(name).lower()

    assert "<answer> and </answer>" in text
    assert not re.search(r"step by step|stop as soon|short|brief|in circles", text)


@pytest.mark.parametrize("name", ["mbt_r", "plain"])
def test_a_rewrite_begins_with_the_conversation_that_made_the_solution(name):
    first, second, third = turns(name)

    assert (first,) == turns("solution")
    assert second == ("assistant", "{{ solution }}")
    assert third[0] == "user"


@pytest.mark.parametrize("name", ["solution", "mbt_s", "mbt_r", "plain"])
def test_a_teacher_is_neither_hurried_nor_given_words_that_betray_the_answer(name):
    text = source(name).lower()

    assert not re.search(r"shorten|concise|brief|as short as|moves on|repeats or wanders", text)
    assert not re.search(r"exactly the words|words given above|answer above", text)


PHASES = (
    "We are asked where the author of The Blue Door was born, so we look for a town.",
    "Our way: first we find who wrote the novel, then where that person was born.",
    "The document on the novel names Tom Hale, and the one on him says that he was born in Dover.",
    "There is an Ann Hale too, a painter, but our author is Tom.",
    "From the end: Dover is where Tom Hale was born, and he wrote the novel. So it is Dover.",
)


@pytest.mark.parametrize("name", ["mbt_s", "mbt_r"])
@pytest.mark.parametrize("phase", range(5))
def test_every_cue_of_doubt_that_a_prompt_suggests_passes_the_gates(name, phase):
    (sound,) = re.findall(r"^How it sounds: .*$", source(name), re.MULTILINE)
    cues = [cue for cue in re.findall(r'"([^"]+)"', sound) if not cue.endswith("...")]
    assert len(cues) >= 5

    for cue in cues:
        said = f"{cue[0].upper()}{cue[1:]}{'' if cue.endswith('?') else '.'}"
        paragraphs = [*PHASES[:phase], f"{said} {PHASES[phase]}", *PHASES[phase + 1 :]]
        reply = Reply("\n\n".join(paragraphs), None, "stop")
        results = GateResults(Gates(), make=name)
        assert results.check(Asked("q1", ("Dover",)), reply)["failure"] is None


PUBLISHED = {
    "gsm8k_cot": "22a3febf31e12e6fc96250bb7a0cae41e97e7b9e3507aa3c48f752dff8894a3a",
    "gsm8k_cot_4": "494532e6b6e7fe3979bff86e03c40d42ca6b541d079abcee10bc6643721d7966",
    "math_minerva": "d0b4c59e6cf045c6c96cebc4be8ca2073f2b10e5a6bd74e81fbe86ef92b0adfa",
    "math_qwen": "5ee5a0f0d299f6d2aec4346c3ff6199423b6b44f5ec20d29e5329539adc9f9f7",
}
"""Sha256 of prompts for one question. Those of lm-eval 0.4.13's gsm8k_cot with 8 and 4 shots and of
its minerva_math with 4 are equal to the byte; `math_qwen` is that of Qwen2.5-Math's 4 shots."""


def asked(name, question, **values):
    known = ASKED | {"examples"}
    (message,) = parse_template(name, source(name), known=known).fill(
        {"question": question, "documents": "", "examples": "", **values}
    )
    assert message["role"] == "text"
    return message["content"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_prompt_is_what_was_published(name):
    prompt = asked(name, "What is $1 + 1$?")

    assert sha256(prompt.encode()).hexdigest() == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        (
            "gsm8k_shots",
            "Question: A?\nAnswer: One.\n#### 1\n\nQuestion: B?\nAnswer: Two.\n#### 2"
            "\n\nQuestion: C?\nAnswer:",
        ),
        (
            "math_hendrycks",
            "Problem: A?\nAnswer: 1\n\nProblem: B?\nAnswer: 2\n\nProblem: C?\nAnswer:",
        ),
    ],
)
def test_drawn_examples_stand_as_in_the_harness(name, prompt):
    form = parse_template(name, source(name), known=ASKED | {"examples"})
    solved = [
        {"question": "A?", "documents": "", "answer": "1", "solution": "One."},
        {"question": "B?", "documents": "", "answer": "2", "solution": "Two."},
    ]

    assert asked(name, "C?", examples=form.examples(solved)) == prompt
