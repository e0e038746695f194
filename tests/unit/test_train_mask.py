"""Which tokens are trained, over templates as plain functions and a tokenizer of characters."""

import re

import pytest

from mbt_cli.training.mask import IGNORED, ChatFormat, ChatTemplateError, UntrainableError

HELLO = [{"role": "user", "content": "hello"}]


class Characters:
    """A token a character, and one for each control token; the template is a function."""

    end_of_text = "<|eos|>"
    names = ("<|end|>", "<|eos|>", "<|user|>", "<|final|>")

    def __init__(self, template, names=names):
        self._template = template
        self.control_tokens = {1_000_000 + n: name for n, name in enumerate(names)}
        self._ids = {name: token for token, name in self.control_tokens.items()}
        self._parts = re.compile(f"({'|'.join(map(re.escape, names))})")

    def render(self, messages, *, opens_reply):
        try:
            return self._template(messages, opens_reply=opens_reply)
        except (AttributeError, TypeError) as error:
            raise ChatTemplateError(str(error)) from error

    def encode(self, text):
        tokens = []
        for part in self._parts.split(text):
            tokens += [self._ids[part]] if part in self._ids else [ord(letter) for letter in part]
        return tokens

    def decode_reply(self, tokens):
        return "".join(self.control_tokens.get(token) or chr(token) for token in tokens)

    encode_reply = encode


def chat(messages, *, opens_reply):
    text = "".join(f"[{m['role']}]{m['content']}<|end|>\n" for m in messages)
    return text + ("[assistant]" if opens_reply else "")


def example_of(template, messages, text, *, thinking="", max_length=200):
    return ChatFormat(Characters(template)).example(messages, thinking, text, max_length=max_length)


def test_the_reply_and_its_end_are_trained_without_the_newline_behind_it():
    example = example_of(chat, HELLO, "ok")

    assert example.prompt == "[user]hello<|end|>\n[assistant]"
    assert example.completion == "ok<|end|>"
    # "[user]hello" 11, end 1, newline 1, "[assistant]" 11; then o, k, end
    assert example.labels == [IGNORED] * 24 + [ord("o"), ord("k"), 1_000_000]
    assert example.trained == 3


def test_a_model_without_a_form_of_its_own_gets_tags():
    example = example_of(chat, HELLO, "ok", thinking=" why\n")

    assert example.completion == "<think>\nwhy\n</think>\n\nok<|end|>"


def test_a_template_with_a_field_for_thinking_writes_its_own_form():
    def channels(messages, *, opens_reply):
        *before, last = messages
        if last["role"] != "assistant":
            return chat(messages, opens_reply=opens_reply)
        thinking = f"(thinks){last['thinking']}<|end|>" if "thinking" in last else ""
        said = f"{thinking}<|final|>{last['content']}<|end|>"
        return f"{chat(before, opens_reply=True)}{said}"

    thought = example_of(channels, HELLO, "ok", thinking="why")
    plain = example_of(channels, HELLO, "ok")

    assert thought.completion == "(thinks)why<|end|><|final|>ok<|end|>"
    assert plain.completion == "<|final|>ok<|end|>"


def test_a_template_with_parts_for_thinking_writes_its_own_form():
    def parts(messages, *, opens_reply):
        def text(content):
            if isinstance(content, str):
                return content
            marks = {"thinking": "{%s}", "text": "%s"}
            return "".join(marks[part["type"]] % part[part["type"]] for part in content)

        written = [{**m, "content": text(m["content"])} for m in messages]
        return chat(written, opens_reply=opens_reply)

    assert example_of(parts, HELLO, "ok", thinking="why").completion == "{why}ok<|end|>"


@pytest.mark.parametrize("dump", [repr, lambda parts: str(parts).replace("'", '"')])
def test_a_template_that_prints_parts_as_they_are_gets_tags(dump):
    def prints(messages, *, opens_reply):
        written = [
            m if isinstance(m["content"], str) else {**m, "content": dump(m["content"])}
            for m in messages
        ]
        return chat(written, opens_reply=opens_reply)

    example = example_of(prints, HELLO, "ok", thinking="why")

    assert example.completion == "<think>\nwhy\n</think>\n\nok<|end|>"


def test_a_model_with_marks_that_its_template_does_not_write_gets_them():
    def completion(*marks):
        format = ChatFormat(Characters(chat, (*Characters.names, *marks)))
        return format.example(HELLO, "why", "ok", max_length=99).completion

    gemma, mistral = completion("<|channel>", "<channel|>"), completion("[THINK]", "[/THINK]")

    assert gemma == "<|channel>thought\nwhy\n<channel|>ok<|end|>"
    assert mistral == "[THINK]why[/THINK]ok<|end|>"


def test_a_template_that_adds_an_empty_block_to_a_plain_reply_has_it_trained():
    def adds(messages, *, opens_reply):
        written = [
            {
                **m,
                "content": m["content"] if "<think>" in m["content"] else f"<think/>{m['content']}",
            }
            if m["role"] == "assistant"
            else m
            for m in messages
        ]
        return chat(written, opens_reply=opens_reply)

    assert example_of(adds, HELLO, "ok").completion == "<think/>ok<|end|>"
    assert example_of(adds, HELLO, "ok", thinking="why").completion == (
        "<think>\nwhy\n</think>\n\nok<|end|>"
    )


def opens(messages, *, opens_reply):
    """Opens the think block of a reply, and strips it from history, as DeepSeek-R1's template."""
    written = [{**m, "content": m["content"].split("</think>")[-1]} for m in messages]
    return chat(written, opens_reply=opens_reply) + ("<think>\n" if opens_reply else "")


def test_a_template_that_opens_the_thinking_itself_does_not_open_it_twice():
    example = example_of(opens, HELLO, "ok", thinking="why")

    assert example.prompt.endswith("[assistant]<think>\n")
    assert example.completion == "why\n</think>\n\nok<|end|>"


def test_a_reply_without_thinking_cannot_follow_an_opened_block():
    with pytest.raises(UntrainableError, match=r"^no_thinking$"):
        example_of(opens, HELLO, "ok")


def closes(messages, *, opens_reply):
    written = [
        {**m, "content": f"<think></think>{m['content']}"} if m["role"] == "assistant" else m
        for m in messages
    ]
    return chat(written, opens_reply=opens_reply) + ("<think></think>" if opens_reply else "")


def test_thinking_cannot_follow_a_closed_block():
    with pytest.raises(UntrainableError, match=r"^thinking_is_off$"):
        example_of(closes, HELLO, "ok", thinking="why")


def test_a_closed_block_belongs_to_the_prompt():
    example = example_of(closes, HELLO, "ok")

    assert example.prompt.endswith("[assistant]<think></think>")
    assert example.completion == "ok<|end|>"


def test_white_space_that_the_template_puts_before_a_reply_is_trained():
    def spaced(messages, *, opens_reply):
        text = chat(messages, opens_reply=opens_reply)
        return text if opens_reply else text.replace("[assistant]", "[assistant] ")

    assert example_of(spaced, HELLO, "ok").completion == " ok<|end|>"


def test_a_turn_that_ends_with_two_control_tokens_trains_both():
    def doubled(messages, *, opens_reply):
        return chat(messages, opens_reply=opens_reply).replace("<|end|>", "<|final|><|end|>")

    turn = ChatFormat(Characters(doubled)).turn(HELLO)

    assert turn.end == "<|final|><|end|>"
    assert turn.end_tokens == (1_000_003, 1_000_000)


def test_a_template_whose_prompt_changes_with_the_reply_is_refused_with_the_difference():
    def counts(messages, *, opens_reply):
        return f"{len(messages)} turns " + chat(messages, opens_reply=opens_reply)

    with pytest.raises(ChatTemplateError, match=r"from character 0: '1 turns .*'2 turns "):
        example_of(counts, HELLO, "ok")


def test_a_template_that_omits_the_reply_is_refused():
    def forgets(messages, *, opens_reply):
        return chat([m for m in messages if m["role"] == "user"], opens_reply=opens_reply)

    with pytest.raises(ChatTemplateError, match="omits an assistant's reply"):
        example_of(forgets, HELLO, "ok")


def test_a_turn_without_an_end_token_ends_with_the_end_of_text():
    def open_ended(messages, *, opens_reply):
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + (
            "[assistant]" if opens_reply else ""
        )

    assert example_of(open_ended, HELLO, "ok").completion == "ok<|eos|>"


def test_a_turn_that_ends_in_plain_text_is_refused():
    def plain(messages, *, opens_reply):
        return chat(messages, opens_reply=opens_reply).replace("<|end|>", "END")

    with pytest.raises(ChatTemplateError, match="no control token"):
        example_of(plain, HELLO, "ok")


def test_conversations_with_other_roles_have_their_own_form():
    def greets(messages, *, opens_reply):
        start = "" if messages[0]["role"] == "system" else "[system]be good<|end|>"
        return start + chat(messages, opens_reply=opens_reply)

    format = ChatFormat(Characters(greets))
    advised = [{"role": "system", "content": "be"}, *HELLO]

    assert format.turn(HELLO).controls == 2
    assert format.turn(advised).controls == 2
    assert format.prompt(advised)[0] == "[system]be<|end|>\n[user]hello<|end|>\n[assistant]"


@pytest.mark.parametrize(
    ("thinking", "text", "reason"),
    [
        pytest.param("", " \n", "empty_completion", id="white space alone"),
        pytest.param("why", "", "empty_completion", id="thinking without a reply"),
        pytest.param("", "a<|end|>b", "control_token_in_reply: <|end|>", id="ends its own turn"),
        pytest.param("a<|eos|>", "b", "control_token_in_reply: <|eos|>", id="in the thinking"),
        pytest.param("a</think>b", "c", "thinking_tag_inside", id="closes its own block"),
        pytest.param("a", "<think>b", "thinking_tag_inside", id="opens a second block"),
        pytest.param("", "a[/THINK]b", "thinking_tag_inside", id="as Mistral writes it"),
    ],
)
def test_rows_that_would_be_read_as_control_are_dropped(thinking, text, reason):
    with pytest.raises(UntrainableError, match=f"^{re.escape(reason)}$"):
        example_of(chat, HELLO, text, thinking=thinking)


def test_a_control_token_in_a_question_drops_the_row():
    format = ChatFormat(Characters(chat))
    asked = [{"role": "user", "content": "what is <|user|>?"}]

    with pytest.raises(UntrainableError, match=r"^control_token_in_prompt: <\|user\|>$"):
        format.example(asked, "", "ok", max_length=200)
    with pytest.raises(UntrainableError, match=r"^control_token_in_prompt"):
        format.prompt(asked)
    assert format.prompt(HELLO)[0] == "[user]hello<|end|>\n[assistant]"


def test_a_control_token_of_another_model_is_text():
    assert example_of(chat, HELLO, "a<|im_end|>").completion == "a<|im_end|><|end|>"


def test_a_row_that_is_one_token_too_long_is_dropped_never_cut():
    with pytest.raises(UntrainableError, match=r"^over_long: 27 tokens$"):
        example_of(chat, HELLO, "ok", max_length=26)
    assert len(example_of(chat, HELLO, "ok", max_length=27).input_ids) == 27
