"""A chat completion to a reply: reasoning from wherever it stands, failures by name."""

import orjson
import pytest

from mbt_cli.inference.replies import (
    Sending,
    inline_reasoning,
    result_of,
    result_of_body,
    result_of_status,
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
    reply = result_of(completion(message), Sending()).reply

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
    reply = result_of(completion({"content": text}), Sending()).reply

    assert (reply.reasoning, reply.text) == (reasoning, text)
    assert inline_reasoning(text) == reasoning


def test_typed_parts_are_joined_and_thinking_parts_are_reasoning():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Os"},
        {"type": "text", "text": "lo"},
    ]

    reply = result_of(completion({"content": parts}), Sending()).reply

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
    assert result_of(completion(message, finish_reason), Sending()).reply.failure == failure


@pytest.mark.parametrize("finish_reason", ["abort", "error"])
def test_an_empty_reply_that_the_server_gave_up_never_came(finish_reason):
    result = result_of(completion({"content": ""}, finish_reason), Sending())

    assert result.reply.failure == f"malformed_reply: the server ended the reply: {finish_reason}"
    assert result.can_retry
    assert result_of(completion({"content": "Os"}, finish_reason), Sending()).reply.failure is None


def test_token_counts_are_taken_where_they_are_given():
    details = {"completion_tokens_details": {"reasoning_tokens": 7}}
    usage = {"prompt_tokens": 3, "completion_tokens": 9, **details}

    full = result_of(completion({"content": "x"}, usage=usage), Sending()).reply
    none = result_of(completion({"content": "x"}, usage=None), Sending()).reply

    assert (full.prompt_tokens, full.completion_tokens, full.reasoning_tokens) == (3, 9, 7)
    assert (none.prompt_tokens, none.completion_tokens, none.reasoning_tokens) == (None,) * 3


@pytest.mark.parametrize(
    "number", ["-1", str(2**63), str(10**30), "1e400", "1.5", '"7"', "true", "NaN", "[]", "{}"]
)
@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": %s}',
        '{"completion_tokens": %s}',
        '{"reasoning_tokens": %s}',
        '{"completion_tokens_details": {"reasoning_tokens": %s}}',
    ],
)
def test_an_unusable_number_is_null_and_named(usage, number):
    body = '{"choices": [{"message": {"content": "Oslo"}}], "usage": %s}' % (usage % number)

    result = result_of_body(body.encode(), Sending())

    counts = ("prompt_tokens", "completion_tokens", "reasoning_tokens")
    assert [getattr(result.reply, name) for name in counts] == [None] * 3
    assert (result.reply.text, result.reply.failure) == ("Oslo", None)
    (named,) = result.unusable
    assert any(f"usage.{name} (stored as null)" == named for name in counts)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (completion({"content": "Oslo"}, finish_reason=7), ["finish_reason (stored as null)"]),
        (completion({"content": "Oslo"}, "x" * 9999), ["finish_reason (stored as null)"]),
        (completion({"content": "Oslo"}, usage=[3]), ["usage (stored as null)"]),
        (completion({"content": "Oslo", "reasoning": 5}), ["reasoning (stored as null)"]),
        (completion({"content": "Oslo", "refusal": ["no"]}), ["refusal (stored as null)"]),
        (
            completion(
                {"content": [{"type": "text", "text": "Oslo"}, {"type": "text", "text": 5}]}
            ),
            ["content (stored as null)"],
        ),
        (
            completion({"content": [{"type": "text", "text": "Oslo"}, "stray"]}),
            ["content (stored as null)"],
        ),
    ],
)
def test_a_value_of_another_type_is_null_and_named(body, named):
    result = result_of(body, Sending())

    assert result.reply.text == "Oslo"
    assert list(result.unusable) == named


def test_half_a_character_is_stored_as_its_replacement():
    message = rb'{"content": "\u00d8 \ud83d", "reasoning": "\udc00 Hm."}'
    body = b'{"choices": [{"message": %s}]}' % message

    result = result_of_body(body, Sending())

    assert (result.reply.text, result.reply.reasoning) == ("\u00d8 \ufffd", "\ufffd Hm.")
    assert [name.split()[0] for name in result.unusable] == ["content", "reasoning"]


@pytest.mark.parametrize("depth", [1_000, 1_015, 200_000])
def test_deeply_nested_json_is_a_failure_of_its_row(depth):
    body = b'{"error": %s%s}' % (b"[" * depth, b"]" * depth)

    result = result_of_body(body, Sending())
    refused = result_of_status(400, {}, body, Sending(), address="http://127.0.0.1/v1")

    assert result.reply.failure.startswith("malformed_reply")
    assert refused.reply.failure.startswith("http_400")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "not a JSON object"),
        ({"choices": []}, "no choices"),
        ({"error": {"message": "over capacity"}}, "over capacity"),
        ({"choices": [{"delta": "x"}]}, "no message"),
        ({"choices": [{"message": {"content": 5}}]}, "content is a int"),
    ],
)
def test_a_body_that_is_no_completion_says_why(body, words):
    failure = result_of(body, Sending()).reply.failure

    assert failure.startswith("malformed_reply: ")
    assert words in failure


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


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "This model's maximum context length is 4096 tokens.", "prompt_too_long"),
        (400, "the request exceeds the available context size", "prompt_too_long"),
        (400, "The decoder prompt is longer than the maximum model length", "prompt_too_long"),
        (413, "prompt is too long: 210000 tokens > 200000", "prompt_too_long"),
        (422, "`inputs` must have less than 4096 tokens", "prompt_too_long"),
        (400, "temperature exceeds the maximum of 2", "http_400"),
        (400, "Unknown parameter `context`", "http_400"),
        (500, "maximum context length", "http_500"),
    ],
)
def test_a_prompt_that_exceeds_the_context_has_its_own_failure(status, words, kind):
    body = orjson.dumps({"error": {"message": words}})

    refused = result_of_status(status, {}, body, Sending(), address="http://127.0.0.1/v1")

    assert refused.reply.failure == f"{kind}: {words}"


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "7"}, 7),
        (429, {"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
        (
            429,
            {
                "X-Ratelimit-Remaining-Requests": "0",
                "X-Ratelimit-Reset-Requests": "20s",
                "X-Ratelimit-Remaining-Tokens": "900",
                "X-Ratelimit-Reset-Tokens": "6m0s",
            },
            20,
        ),
        (429, {"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "6m0s"}, 360),
        (429, {"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "12ms"}, 1),
        (429, {"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "1.2.3s"}, None),
        (429, {"X-Ratelimit-Remaining-Tokens": "0"}, None),
        (503, {"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "9s"}, None),
    ],
)
def test_a_refused_request_waits_as_long_as_the_headers_ask(status, headers, seconds):
    result = result_of_status(status, headers, b"{}", Sending(), address="http://127.0.0.1/v1")

    assert result.wait_seconds == seconds
    assert result.can_retry
