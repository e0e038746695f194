# ruff: noqa: E501
"""Prompts of a training against those of a real server: llama.cpp with the same chat template."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("xllamacpp")

from mbt_cli.backends.llamacpp import FILE, LlamaCppBackend
from mbt_cli.core.training_job import Weights
from mbt_cli.settings import Machine
from mbt_cli.training.mask import IGNORED, ChatFormat
from mbt_cli.training.tokenizer import ModelTokenizer, load_tokenizer
from tests.integration.train.test_masks import (
    FAMILIES,
    OFF,
    QUESTION,
    TEXT,
    THINKING,
    WITH_SYSTEM,
)

SERVER = """
import json, sys, urllib.request, xllamacpp
told = json.loads(sys.argv[1])
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.warmup = told["path"], 512, False
if told["template"]:
    parameters.chat_template = told["template"]
server = xllamacpp.Server(parameters)
def ask(path, **body):
    content = json.dumps(body).encode()
    request = urllib.request.Request(server.listening_address + path, content, {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request).read())
prompts = [
    ask("/apply-template", messages=messages, **told["request"])["prompt"]
    for messages in told["conversations"]
]
tokens = [ask("/tokenize", content=text, parse_special=True)["tokens"] for text in prompts + told["texts"]]
print("\\n" + json.dumps([prompts, tokens]), flush=True)
"""
CASES = [
    ("qwen3", OFF),
    ("qwen3.5-2b", {}),
    ("gpt-oss", {"reasoning_effort": "high"}),
    ("gemma-4", {}),
]


@pytest.fixture(scope="module")
def weights():
    path = Machine().cache / "weights" / FILE
    if not path.is_file():
        pytest.skip("the embedded model is not in the cache")
    return Weights(model=str(path))


@pytest.fixture(scope="module")
def tokenizer(weights):
    return load_tokenizer(weights)


def served(weights, template, arguments, texts=()):
    told = {
        "path": weights.model,
        "template": template,
        "request": {"chat_template_kwargs": arguments} if arguments else {},
        "conversations": [QUESTION, WITH_SYSTEM],
        "texts": list(texts),
    }
    command = [sys.executable, "-c", SERVER, json.dumps(told)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(ran.stdout.splitlines()[-1])


def test_smollm2_is_trained_on_the_tokens_that_llamacpp_reads(weights, tokenizer):
    own = ModelTokenizer(tokenizer, {})
    examples = [
        ChatFormat(own).example(asked, THINKING, TEXT, max_length=500)
        for asked in (QUESTION, WITH_SYSTEM)
    ]

    prompts, tokens = served(weights, None, {}, [example.completion for example in examples])

    assert [example.prompt for example in examples] == prompts
    trained = [[n for n in example.labels if n != IGNORED] for example in examples]
    before = [e.input_ids[: -len(t)] for e, t in zip(examples, trained, strict=True)]
    assert before + trained == tokens


@pytest.mark.parametrize(("family", "arguments"), CASES)
def test_a_prompt_is_rendered_as_llamacpp_renders_it(
    weights, tokenizer, family, arguments, monkeypatch
):
    monkeypatch.setattr(tokenizer, "chat_template", FAMILIES[family].text())
    own = ModelTokenizer(tokenizer, {**LlamaCppBackend.template_defaults, **arguments})

    prompts, _ = served(weights, tokenizer.chat_template, arguments)

    assert [own.render(asked, opens_reply=True) for asked in (QUESTION, WITH_SYSTEM)] == prompts
