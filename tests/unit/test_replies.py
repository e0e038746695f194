"""A chat completion to a reply: reasoning from wherever it stands, failures by name."""

import pytest

from mbt_cli.inference.replies import (
    MalformedReplyError,
    Sending,
    inline_reasoning,
    reply_of,
    server_words,
)


def completion(message, finish_reason="stop", **rest):
    return {"choices": [{"message": message, "finish_reason": finish_reason}], **rest}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "Oslo", "reasoning": "Hm."},
        {"content": "Oslo", "reasoning_content": "Hm."},
        {"content": "Oslo", "reasoning": None, "reasoning_content": "Hm."},
        {"content": "Oslo", "reasoning": "Hm.", "reasoning_content": "not this"},
    ],
    ids=["reasoning", "reasoning_content", "null-reasoning", "both"],
)
def test_reasoning_is_read_from_either_field(message):
    reply = reply_of(completion(message), Sending())

    assert (reply.reasoning, reply.text, reply.failure) == ("Hm.", "Oslo", None)


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        ("<think>\nHm.\n</think>\n\nOslo", "Hm."),
        ("  <think>Hm.</think>Oslo", "Hm."),
        ("<thinking>Hm.</thinking>Oslo", "Hm."),
        ("[THINK]Hm.[/THINK]Oslo", "Hm."),
        ("Hm.</think>Oslo", "Hm."),
        ("<think>Hm. And then", "Hm. And then"),
        ("<think>\n\n</think>\n\nOslo", None),
        ("Oslo is what I think", None),
        ("Oslo <think>too late", None),
    ],
)
def test_an_inline_block_is_reasoning_and_the_text_stays_as_it_was(text, reasoning):
    reply = reply_of(completion({"content": text}), Sending())

    assert (reply.reasoning, reply.text) == (reasoning, text)
    assert inline_reasoning(text) == reasoning


def test_typed_parts_are_joined_and_thinking_parts_are_reasoning():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Os"},
        {"type": "text", "text": "lo"},
    ]

    reply = reply_of(completion({"content": parts}), Sending())

    assert (reply.reasoning, reply.text) == ("Hm.", "Oslo")


@pytest.mark.parametrize(
    ("message", "finish_reason", "failure"),
    [
        ({"content": "half"}, "content_filter", "content_filter"),
        ({"content": ""}, "stop", "empty"),
        ({"content": " \n"}, "stop", "empty"),
        ({"content": None}, "stop", "empty"),
        ({"content": None, "refusal": "I will\nnot"}, "stop", "refusal: I will not"),
        ({"content": None, "reasoning": "Hm."}, "stop", None),
        ({"content": None}, "length", None),
        ({"content": "half"}, "length", None),
    ],
    ids=["filter", "empty", "blank", "null", "refusal", "only-reasoning", "cut-empty", "cut"],
)
def test_what_is_no_reply_has_a_named_failure(message, finish_reason, failure):
    assert reply_of(completion(message, finish_reason), Sending()).failure == failure


def test_token_counts_are_taken_where_they_are_given():
    details = {"completion_tokens_details": {"reasoning_tokens": 7}}
    usage = {"prompt_tokens": 3, "completion_tokens": 9, **details}

    full = reply_of(completion({"content": "x"}, usage=usage), Sending())
    none = reply_of(completion({"content": "x"}, usage=None), Sending())

    assert (full.prompt_tokens, full.completion_tokens, full.reasoning_tokens) == (3, 9, 7)
    assert (none.prompt_tokens, none.completion_tokens, none.reasoning_tokens) == (None,) * 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "not a JSON object"),
        ({"choices": []}, "no choices"),
        ({"error": {"message": "over capacity"}}, "over capacity"),
        ({"choices": [{"text": "x"}]}, "no message"),
        ({"choices": [{"message": {"content": 5}}]}, "content is a int"),
    ],
)
def test_a_body_that_is_no_completion_says_why(body, words):
    with pytest.raises(MalformedReplyError, match=words):
        reply_of(body, Sending())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "too\n long"}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"detail": [{"loc": ["a"], "msg": "field required"}]}, "field required"),
        ({"object": "error", "message": "too long"}, "too long"),
        ("<html>bad gateway</html>", "<html>bad gateway</html>"),
        ({"error": {"message": "x" * 600}}, "x" * 500 + " ..."),
    ],
)
def test_the_words_of_an_error_are_found_and_put_on_one_line(body, words):
    assert server_words(body) == words
