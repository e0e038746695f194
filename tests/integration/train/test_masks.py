"""Trained text equals the completion exactly, for templates of every style that we meet."""

import pytest

pytest.importorskip("torch")

from mbt_cli.training.mask import IGNORED, UntrainableError, example_of, turn_of
from mbt_cli.training.models import ModelTokenizer
from tests.integration.train.tiny_models import STYLES, tokenizer_of

QUESTION = [
    {"role": "user", "content": "Where is Oslo?"},
]
COMPLETION = "<think>\nWe look at the documents.\n</think>\n\n<answer>Norway</answer>"


@pytest.fixture(params=STYLES)
def style(request):
    return request.param


@pytest.fixture
def tokenizer(style):
    return ModelTokenizer(tokenizer_of(style), {})


def trained_text(example, tokenizer):
    return tokenizer.decode([label for label in example.labels if label != IGNORED])


def test_the_completion_and_the_end_of_turn_are_trained_and_nothing_else(style, tokenizer):
    example = example_of(tokenizer, QUESTION, COMPLETION, max_length=500)

    end = STYLES[style][2]
    # the prompt of this style holds the opening tag already
    own = COMPLETION.removeprefix("<think>\n") if style == "qwen3-thinking" else COMPLETION
    assert trained_text(example, tokenizer) == own + end
    assert tokenizer.decode(example.input_ids) == example.prompt + own + end


def test_a_prompt_is_tokenized_as_when_it_is_served(style, tokenizer):
    example = example_of(tokenizer, QUESTION, COMPLETION, max_length=500)

    served = tokenizer.encode(tokenizer.render(QUESTION, opens_reply=True))
    assert example.input_ids[: len(served)] == served
    assert all(label == IGNORED for label in example.labels[: len(served)])
    assert all(label != IGNORED for label in example.labels[len(served) :])


def test_a_think_block_that_the_template_strips_from_history_stays_in_the_target():
    tokenizer = ModelTokenizer(tokenizer_of("qwen3"), {})
    asked = [*QUESTION, {"role": "assistant", "content": COMPLETION}, *QUESTION]

    example = example_of(tokenizer, asked, COMPLETION, max_length=500)

    assert "<think>" not in example.prompt
    assert trained_text(example, tokenizer) == COMPLETION + "<|im_end|>"


def test_white_space_and_non_english_text_survive(tokenizer):
    completion = "  Ærø liegt in Dänemark.\n\n\t「東京」\n"

    example = example_of(tokenizer, QUESTION, completion, max_length=500)

    assert completion in trained_text(example, tokenizer)


def test_an_end_of_turn_inside_a_completion_drops_the_row(style, tokenizer):
    with pytest.raises(UntrainableError, match="end_of_turn_inside"):
        example_of(tokenizer, QUESTION, f"a {STYLES[style][2]} b", max_length=500)


def test_the_turn_ends_with_the_token_that_serving_stops_at(style, tokenizer):
    assert turn_of(tokenizer, QUESTION).end == STYLES[style][2]
