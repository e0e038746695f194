"""`mbt doctor STUDY` says how a model writes traces, or why it cannot be trained on them."""

import pytest

pytest.importorskip("trl")

from mbt_cli.core.training_job import ChatQuestion, Weights
from mbt_cli.training.chat_check import answer_to
from tests.integration.train.conftest import STUDY
from tests.integration.train.test_masks import FAMILIES, QUESTION

TRACES = """
[[stage]]
kind = "synthesize"
name = "traces"
matrix = { benchmark = ["tiny"], split = ["train"] }
make = "mbt_s"
teacher = "teacher"

[[stage]]
kind = "train"
name = "traced"
preset = "sft"
matrix = { model = ["tiny"] }
data = "traces"
target = "trace"
prompt = "short.md"
"""


def asked(folder, family, arguments=None, messages=QUESTION):
    tokenizer = FAMILIES[family].tokenizer()
    tokenizer.save_pretrained(folder)
    return answer_to(
        ChatQuestion(
            weights=Weights(model=str(folder)),
            template=arguments or {},
            messages=messages,
        )
    )


def test_the_form_of_a_model_is_shown(tmp_path):
    answer = asked(tmp_path, "gemma-4")

    assert answer.reply == "<|channel>thought\nTRACE\n<channel|>ANSWER<turn|>"
    assert answer.problem is None


def test_a_model_that_closes_the_think_block_is_named_with_what_to_type(tmp_path):
    answer = asked(tmp_path, "qwen3.5-2b")

    assert (answer.reply, answer.problem) == (None, "thinking_is_off")
    assert "enable_thinking = true" in answer.hint
    assert asked(tmp_path, "qwen3.5-2b", {"enable_thinking": True}).problem is None


def test_a_template_that_refuses_the_turns_is_quoted(tmp_path):
    answer = asked(tmp_path, "gemma-3", messages=[*QUESTION, *QUESTION])

    assert "roles must alternate" in answer.problem


def test_a_model_that_is_not_here_has_no_answer(tmp_path):
    question = ChatQuestion(
        weights=Weights(model=str(tmp_path / "none")),
        template={},
        messages=QUESTION,
    )

    assert answer_to(question).model_dump(exclude_none=True) == {}


def test_doctor_names_a_model_that_cannot_be_trained_on_traces(fresh):
    place = fresh(f"{STUDY}{TRACES}")
    FAMILIES["qwen3.5-2b"].tokenizer().save_pretrained(place.folder / "tiny")

    off = place.run("doctor", "study.toml")
    on = place.run(
        "doctor",
        "study.toml",
        "--set",
        "models.tiny.request.chat_template_kwargs.enable_thinking=true",
    )

    assert off.code == 1
    assert "cannot be trained: thinking_is_off" in off.out
    assert on.code == 0
    assert "are written as" in on.out
