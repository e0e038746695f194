"""What each backend makes of its settings."""

import json

import pytest

from mbt_cli.backends.canned import CannedBackend, RecordedBackend
from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.weights import folder_sha256
from mbt_cli.core.chat import Endpoint, Request
from mbt_cli.errors import UsageError
from mbt_cli.inference.ask import ask
from mbt_cli.inference.client import Client, Inflow, proxy_for
from mbt_cli.inference.queue import PendingRequest
from tests.inference.conftest import replies

REQUEST = Request("k" * 64, "q1", 0, ({"role": "user", "content": "Who?"},), 7, {"top_p": 0.9})


def endpoint(**options) -> Endpoint:
    return Endpoint(base_url="http://127.0.0.1:1/v1", model="m", **options)


@pytest.mark.parametrize(
    ("settings", "options", "fields"),
    [
        ({}, {}, {"max_tokens": 5, "seed": 7}),
        ({"max_tokens": "rest"}, {}, {"seed": 7}),
        ({"max_tokens": "rest"}, {"rest_limit": 900}, {"max_tokens": 900, "seed": 7}),
        (
            {},
            {"token_limit_field": "max_completion_tokens"},
            {"max_completion_tokens": 5, "seed": 7},
        ),
        ({"sends_seed": False}, {}, {"max_tokens": 5}),
        ({}, {"sends_seed": False}, {"max_tokens": 5}),
        (
            {},
            {"extra_body": {"top_k": 0, "top_p": 1}},
            {"max_tokens": 5, "seed": 7, "top_k": 0},
        ),
    ],
    ids=["limit", "rest", "rest-by-us", "new-name", "not-seedable", "no-seed", "extra"],
)
def test_a_body_holds_what_the_endpoint_understands(batch_of, settings, options, fields):
    batch = batch_of("http://127.0.0.1:1/v1", [], **{"max_tokens": 5, **settings})

    body = Client(endpoint(**options), batch, post=None, inflow=Inflow(batch.run)).body(
        PendingRequest(REQUEST, 0)
    )

    messages = ({"role": "user", "content": "Who?"},)
    assert body == {"top_p": 0.9, "model": "m", "messages": messages, **fields}


def test_a_content_retry_has_its_own_seed_and_limit(batch_of):
    batch = batch_of("http://127.0.0.1:1/v1", [], max_tokens=5, retry_max_tokens=50)

    body = Client(endpoint(), batch, post=None, inflow=Inflow(batch.run)).body(
        PendingRequest(REQUEST, 1)
    )

    assert body["max_tokens"] == 50
    assert body["seed"] != 7


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        ("http://127.0.0.1:8000/v1", "http://localhost:9/v1", True),
        ("https://api.example.com/v1", "https://API.example.com/v1/", True),
        ("https://api.example.com/v1", "https://other.example.com/v1", False),
    ],
)
def test_an_address_counts_unless_it_is_on_this_machine(first, second, are_equal):
    identities = [OpenAIBackend(base_url=url, id="m").identity() for url in (first, second)]

    assert (identities[0] == identities[1]) is are_equal


def test_a_key_comes_from_the_environment_and_a_missing_one_names_its_variable(place):
    backend = OpenAIBackend(
        base_url="https://api.example.com/v1", id="m", api_key_env="NO_KEY_HERE"
    )

    with pytest.raises(UsageError, match="`NO_KEY_HERE` is not set"):
        backend.open(place).__enter__()


def test_a_key_of_two_lines_never_becomes_a_header(place):
    backend = OpenAIBackend(base_url="https://api.example.com/v1", id="m", api_key_env="TWO_LINES")
    place.environment["TWO_LINES"] = "sk-1\nX-Other: yes"

    with pytest.raises(UsageError, match="`TWO_LINES` contains a line break"):
        backend.open(place).__enter__()


@pytest.mark.parametrize("address", ["api.example.com/v1", "ftp://x/v1", "https://u:p@x.com/v1"])
def test_a_wrong_url_is_refused(address):
    with pytest.raises(ValueError, match=r"URL|user, password"):
        OpenAIBackend(base_url=address, id="m")


@pytest.mark.parametrize(
    "address",
    [
        *(f"http://127.0.0.1:{port}/v1" for port in ("99999", "x", "-1", "0")),
        *("http://..../v1", f"http://{'a' * 70}/v1", "http://x/\u00fc", "http://x/v 1"),
        *("http://x/v1\r\nX-Evil: 1", "http://x\u202e.com/v1"),
    ],
)
def test_an_address_that_no_request_can_have_is_refused(address):
    with pytest.raises(ValueError, match=r"needs a port|not a host name|not ASCII"):
        OpenAIBackend(base_url=address, id="m")


def test_openai_itself_gets_the_new_name_of_the_token_limit(place):
    with OpenAIBackend(base_url="https://api.openai.com/v1", id="m").open(place) as found:
        assert found.token_limit_field == "max_completion_tokens"


@pytest.mark.parametrize(
    ("address", "environment", "proxy"),
    [
        ("https://api.example.com/v1", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        (
            "https://api.example.com/v1",
            {"https_proxy": "http://p:1", "no_proxy": ".example.com"},
            None,
        ),
        ("http://127.0.0.1:8000/v1", {"http_proxy": "http://p:1"}, None),
        ("https://api.example.com/v1", {}, None),
    ],
    ids=["proxy", "no-proxy", "loopback", "none"],
)
def test_a_proxy_is_used_where_the_environment_names_one(address, environment, proxy):
    assert proxy_for(address, environment) == proxy


def test_canned_replies_are_the_same_for_the_same_question_and_sample(batch_of, progress, tmp_path):
    backend = CannedBackend(replies=["one", "two", "three"], by_question={"3": "mine"})
    plan = batch_of("", [f"question {n}" for n in range(50)], backend=backend)

    ask(plan, tmp_path / "first", progress)
    ask(plan, tmp_path / "second", progress)

    first = [reply.text for _, reply in replies(plan, tmp_path / "first")]
    assert first == [reply.text for _, reply in replies(plan, tmp_path / "second")]
    assert first[3] == "mine"
    assert set(first) == {"one", "two", "three", "mine"}


def test_a_script_answers_its_questions_and_fails_the_others(batch_of, progress, tmp_path):
    script = tmp_path / "script.jsonl"
    lines = [{"question_id": "0", "reply": "Oslo", "reasoning": "Hm."}]
    script.write_text("\n".join(json.dumps(line) for line in lines))
    plan = batch_of("", ["one", "two"], backend=RecordedBackend(file=str(script)))

    ask(plan, tmp_path / "journal", progress)

    (_, known), (_, unknown) = replies(plan, tmp_path / "journal")
    assert (known.text, known.reasoning) == ("Oslo", "Hm.")
    assert unknown.failure == f"no_reply: `{script}` has no reply to `1`"


def test_a_script_with_a_bad_line_names_it(place, tmp_path):
    script = tmp_path / "script.jsonl"
    script.write_text('{"question_id": "0", "reply": "Oslo"}\n{"question": "1"}\n')

    with pytest.raises(UsageError, match="line 2"):
        RecordedBackend(file=str(script)).open(place).__enter__()


def test_a_folder_is_known_by_its_config_and_weights_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = folder_sha256(tmp_path)

    (tmp_path / "README.md").write_text("read me")
    assert folder_sha256(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert folder_sha256(tmp_path) != before


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="not a model folder"):
        folder_sha256(tmp_path)


def test_transformers_gets_its_sampling_as_a_generation_config():
    backend = TransformersBackend(model="org/model", context=2048)
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 300}], "seed": 1}

    drawn = backend._shape({**body, "temperature": 0.6, "top_p": 0.95, "max_tokens": 9})
    greedy = backend._shape({**body, "temperature": 0})

    assert json.loads(drawn["generation_config"]) == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 0,
        "do_sample": True,
        "max_new_tokens": 9,
    }
    # 300 bytes are at most 100 tokens, the template some 64 more: 2048 - 164
    assert json.loads(greedy["generation_config"]) == {"do_sample": False, "max_new_tokens": 1884}
    assert set(greedy) == {"model", "messages", "seed", "max_tokens", "generation_config"}
    penalized = backend._shape({**body, "temperature": 0, "repetition_penalty": 1.1, "min_p": 0.1})
    assert json.loads(penalized["generation_config"]) == {
        "repetition_penalty": 1.1,
        "do_sample": False,
        "max_new_tokens": 1884,
    }


def test_llama_cpp_gets_its_own_name_of_a_penalty_and_looks_back_the_whole_context():
    backend = LlamaCppBackend(context=2048)

    penalized = backend._shape({"min_p": 0.1, "repetition_penalty": 1.1})

    assert penalized == {"min_p": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 2048}
    assert backend._shape({"presence_penalty": 1.5})["repeat_last_n"] == 2048
    assert backend._shape({"temperature": 0.6}) == {"temperature": 0.6}
