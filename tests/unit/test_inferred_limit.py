"""`max_tokens = "inferred"`: a number of tokens from the model's context."""

import json

import pytest

from mbt_cli.errors import UsageError
from tests.conftest import SMALL_STUDY

CANNED = SMALL_STUDY[SMALL_STUDY.index("backend = ") :].partition("\n")[0]
INFERRED = SMALL_STUDY.replace("max_tokens = 32", 'max_tokens = "inferred"')


def served(backend):
    """The small study with this model, judged as before by canned replies."""
    text = INFERRED.replace(CANNED, f"backend = {backend}", 1)
    head, judge, rest = text.partition("[models.judge]")
    own = "sampling = { temperature = 0, max_tokens = 8 }"
    return head + judge + rest.replace('sampling = "plain"', own, 1)


def limit_of(manifest):
    (spec, *_) = [c.spec["models"]["model"] for c in manifest.cells.values() if c.kind == "rollout"]
    return spec["sampling"]["max_tokens"]


@pytest.mark.parametrize(
    ("backend", "limit"),
    [
        ('{ kind = "vllm", model = "a/b", serve = { max_model_len = 40960 } }', 35_840),
        ('{ kind = "llamacpp", context = 2048 }', 256),
        ('{ kind = "openai", base_url = "http://127.0.0.1:9/v1", context = 262144 }', 229_376),
    ],
    ids=["vllm", "llamacpp", "openai"],
)
def test_the_limit_is_the_context_without_a_margin(load, backend, limit):
    inferred = load(served(backend))
    said = load(served(backend).replace('"inferred"', str(limit)))

    # the number counts, not how it was said
    assert limit_of(inferred) == limit
    assert [c.spec for c in inferred.cells.values()] == [c.spec for c in said.cells.values()]


@pytest.mark.parametrize(
    "backend",
    [
        '{ kind = "openai", base_url = "http://127.0.0.1:9/v1" }',
        '{ kind = "vllm", model = "nobody/has-this-model" }',
    ],
    ids=["openai", "vllm"],
)
def test_an_unknown_context_is_said(load, backend):
    with pytest.raises(UsageError, match="the context of this model is not known here"):
        load(served(backend))


def test_show_has_the_number(load, tmp_path, capfd):
    from tests.cli.wrong import typed  # the command itself

    load(served('{ kind = "llamacpp", context = 8192 }'))
    done = typed(["show", "study.toml", "--json"], tmp_path, {}, capfd)

    flags = json.loads(done.out)["parrot"]["flags"]
    assert flags["sampling.max_tokens"]["value"].startswith("4096 (inferred from a context")
