"""Which tokens are trained, over templates as plain functions and a tokenizer of characters."""

import re

import pytest

from mbt_cli.training.mask import IGNORED, ChatTemplateError, UntrainableError, example_of, turn_of

SPECIAL = re.compile(r"(<\|[a-z]+\|>)")
HELLO = [{"role": "user", "content": "hello"}]


class Characters:
    """A token a character, and one for each `<|name|>`; the template is a function."""

    end_of_text = "<|eos|>"
    special_tokens = frozenset({1_000_000, 1_000_001, 1_000_002})
    names = ("<|end|>", "<|eos|>", "<|user|>")

    def __init__(self, template):
        self.render = template

    def encode(self, text):
        tokens = []
        for part in SPECIAL.split(text):
            if part in self.names:
                tokens.append(1_000_000 + self.names.index(part))
            else:
                tokens += [ord(letter) for letter in part]
        return tokens

    def decode(self, tokens):
        return "".join(self.names[t - 1_000_000] if t >= 1_000_000 else chr(t) for t in tokens)


def chat(messages, *, opens_reply):
    text = "".join(f"[{m['role']}]{m['content']}<|end|>\n" for m in messages)
    return text + ("[assistant]" if opens_reply else "")


def test_the_reply_and_its_end_are_trained_without_the_newline_behind_it():
    example = example_of(Characters(chat), HELLO, "ok", max_length=100)

    assert example.prompt == "[user]hello<|end|>\n[assistant]"
    assert example.completion == "ok<|end|>"
    # "[user]hello" 11, end 1, newline 1, "[assistant]" 11; then o, k, end
    assert example.labels == [IGNORED] * 24 + [ord("o"), ord("k"), 1_000_000]
    assert example.trained == 3


def test_a_template_that_rewrites_the_last_reply_does_not_touch_the_target():
    def strips(messages, *, opens_reply):
        plain = [
            {**m, "content": "<think></think>" + m["content"]} if m["role"] == "assistant" else m
            for m in messages
        ]
        return chat(plain, opens_reply=opens_reply)

    example = example_of(Characters(strips), HELLO, "<think>why</think>ok", max_length=100)

    assert example.completion == "<think>why</think>ok<|end|>"


def test_a_template_that_opens_the_thinking_itself_does_not_open_it_twice():
    def opens(messages, *, opens_reply):
        return chat(messages, opens_reply=opens_reply) + ("<think>\n" if opens_reply else "")

    example = example_of(Characters(opens), HELLO, "<think>\nwhy\n</think>\nok", max_length=100)

    assert example.prompt.endswith("[assistant]<think>\n")
    assert example.completion == "why\n</think>\nok<|end|>"


def test_white_space_that_the_template_puts_before_a_reply_is_trained():
    def spaced_stand_in(messages, *, opens_reply):
        text = chat(messages, opens_reply=opens_reply)
        return text if opens_reply else text.replace("[assistant]", "[assistant] ")

    example = example_of(Characters(spaced_stand_in), HELLO, "ok", max_length=100)

    assert example.completion == " ok<|end|>"


def test_a_template_whose_prompt_changes_with_the_reply_is_refused_with_the_difference():
    def counts(messages, *, opens_reply):
        return f"{len(messages)} turns " + chat(messages, opens_reply=opens_reply)

    with pytest.raises(ChatTemplateError, match=r"from character 0: '1 turns .*'2 turns "):
        turn_of(Characters(counts), HELLO)


def test_a_template_that_omits_the_reply_is_refused():
    def forgets(messages, *, opens_reply):
        return chat([m for m in messages if m["role"] == "user"], opens_reply=opens_reply)

    with pytest.raises(ChatTemplateError, match="omits an assistant's reply"):
        turn_of(Characters(forgets), HELLO)


def test_a_turn_without_an_end_token_ends_with_the_end_of_text():
    def open_ended(messages, *, opens_reply):
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + (
            "[assistant]" if opens_reply else ""
        )

    assert example_of(Characters(open_ended), HELLO, "ok", max_length=100).completion == (
        "ok<|eos|>"
    )


def test_a_turn_that_ends_in_plain_text_is_refused():
    def plain(messages, *, opens_reply):
        return chat(messages, opens_reply=opens_reply).replace("<|end|>", "END")

    with pytest.raises(ChatTemplateError, match="no special token"):
        turn_of(Characters(plain), HELLO)


@pytest.mark.parametrize(
    ("completion", "max_length", "reason"),
    [
        pytest.param("ok", 26, "over_long: 27 tokens", id="one token too long"),
        pytest.param(" \n", 100, "empty_completion", id="white space alone"),
        pytest.param("a<|end|>b", 100, "end_of_turn_inside", id="ends its own turn"),
    ],
)
def test_rows_that_cannot_be_trained_are_dropped_never_cut(completion, max_length, reason):
    with pytest.raises(UntrainableError, match=f"^{reason}$"):
        example_of(Characters(chat), HELLO, completion, max_length=max_length)


def test_a_row_that_just_fits_stays():
    assert len(example_of(Characters(chat), HELLO, "ok", max_length=27).input_ids) == 27
