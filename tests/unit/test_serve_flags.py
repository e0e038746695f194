"""A serve table to the flags of `vllm serve`."""

import re

import pytest

from mbt_cli.backends.flags import flags_of, unknown_flags
from mbt_cli.backends.vllm import VLLMBackend, compiled_caches, known_flags
from mbt_cli.cli.doctor_study import notes
from mbt_cli.core.serving import ServerPlace

KINDS = {
    "max_model_len": "value",
    "enforce_eager": "boolean",
    "headless": "switch",
    "allowed_origins": "json",
    "lora_modules": "list",
    "speculative_config": "value",
}


@pytest.mark.parametrize(
    ("key", "value", "flags"),
    [
        ("max_model_len", 4096, ("--max-model-len", "4096")),
        ("max-model-len", 4096, ("--max-model-len", "4096")),
        ("enforce_eager", True, ("--enforce-eager",)),
        ("enforce_eager", False, ("--no-enforce-eager",)),
        ("headless", True, ("--headless",)),
        ("headless", False, ()),
        ("allowed_origins", ["*"], ("--allowed-origins", '["*"]')),
        ("lora_modules", ["a=b", "c=d"], ("--lora-modules", "a=b", "c=d")),
        ("speculative_config", {"n": 2}, ("--speculative-config", '{"n":2}')),
        ("unheard_of", ["a", "b"], ("--unheard-of", "a", "b")),
    ],
)
def test_each_value_becomes_the_flag_that_vllm_wants(key, value, flags):
    assert flags_of({key: value}, KINDS) == flags


def test_an_unknown_key_comes_with_its_nearest_name():
    assert unknown_flags({"max_model_length": 1, "enforce-eager": True}, KINDS) == [
        ("max_model_length", "max_model_len")
    ]


def test_the_shipped_list_knows_the_flags_that_presets_rest_on():
    kinds = known_flags()

    assert kinds["max_model_len"] == "value"
    assert kinds["trust_remote_code"] == "boolean"
    assert kinds["served_model_name"] == "list"


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (
            {"tensor_parallel_size": 2},
            "set `place.tensor_parallel_size` instead of `tensor_parallel_size`",
        ),
        ({"trust-remote-code": True}, r"set `backend\.trust_remote_code` instead"),
    ],
)
def test_a_serve_table_refuses_what_it_cannot_hold(serve, words):
    with pytest.raises(ValueError, match=words):
        VLLMBackend(model="org/model", serve=serve)


def test_a_flag_that_the_checked_version_lacks_is_passed_on_with_a_warning():
    own = VLLMBackend(
        model="org/model",
        serve={"max_model_length": 1},
        place={"flags": {"max-num-seqs": 8, "quite_new": True}},
    )

    first, second = own.warnings()
    assert re.fullmatch(
        r"vLLM \d+\.\d+\.\d+ has no flag `max_model_length`, another version may; "
        "did you mean `max_model_len`\\?",
        first,
    )
    assert "no flag `quite_new`" in second
    assert {"--max-model-length", "--quite-new"} <= set(own.flags())


def test_the_models_own_generation_config_is_left_out_unless_the_manifest_wants_it():
    plain = VLLMBackend(model="org/model")
    wanted = VLLMBackend(model="org/model", serve={"generation_config": "auto"})

    assert plain.flags()[:2] == ("--generation-config", "vllm")
    assert wanted.flags()[:2] == ("--generation-config", "auto")


def test_where_it_is_served_never_enters_the_identity_and_how_it_is_served_does():
    narrow = VLLMBackend(model="org/model", serve={"dtype": "bfloat16"})
    wide = VLLMBackend(
        model="org/model", serve={"dtype": "bfloat16"}, place={"tensor_parallel_size": 4}
    )
    other = VLLMBackend(model="org/model", serve={"dtype": "float16"})

    assert narrow.identity() == wide.identity()
    assert narrow.identity() != other.identity()


def test_the_content_of_a_template_file_enters_the_identity_and_the_fingerprint(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    backend = VLLMBackend(model="org/model", serve={"chat_template": str(file)})
    before = backend.identity(), backend.spec()

    file.write_text("{{ messages }}!")

    assert all(
        now != then for now, then in zip((backend.identity(), backend.spec()), before, strict=True)
    )
    inline = VLLMBackend(model="org/model", serve={"chat_template": "{{ messages }}" * 1000})
    assert "chat_template_sha256" not in inline.identity()


EVALUATION = """
[study]
name = "s"
seed = 1
max_failed_share = 0
[models.m]
backend = { kind = "vllm", model = "org/base" }
sampling = { temperature = 0, max_tokens = 64 }
PLACE
[benchmarks.sums]
kind = "gsm8k"
files = { test = "FILE" }
[benchmarks.words]
kind = "question_answer"
files = { test = "FILE" }
[[stage]]
kind = "rollout"
matrix = { benchmark = ["BENCHMARK"], split = "test", model = "m", prompt = "question" }
"""


@pytest.mark.parametrize(
    ("place", "benchmark", "is_warned"),
    [
        ("place = { tensor_parallel_size = 8 }", "sums", True),
        ("place = { tensor_parallel_size = 1 }", "sums", False),
        ("place = { flags = { data_parallel_size = 8 } }", "sums", False),
        ("", "sums", False),
        ("place = { tensor_parallel_size = 8 }", "words", False),
        (
            "place = { tensor_parallel_size = 8 }\n"
            "size = { weights_gb = 140, attention_heads = 64 }",
            "sums",
            False,
        ),
    ],
)
def test_layers_that_gpus_share_are_warned_of_where_answers_are_verified(
    load, tmp_path, place, benchmark, is_warned
):
    (tmp_path / "q.jsonl").write_text('{"question": "?", "answer": "#### 1"}')
    study = EVALUATION.replace("PLACE", place).replace("FILE", str(tmp_path / "q.jsonl"))

    found = notes(load(study.replace("BENCHMARK", benchmark)), {})

    warned = [line for line in found if "tensor_parallel_size" in line]
    assert bool(warned) is is_warned
    if is_warned:
        assert warned[0].startswith(
            "model m: `place.tensor_parallel_size = 8` in rollouts of sums."
        )
        assert "flags = { data_parallel_size = 8 }" in warned[0]


def test_a_container_without_the_temporary_folder_of_its_job_serves_too(tmp_path):
    def caches(environment):
        return compiled_caches(ServerPlace(tmp_path / "log", tmp_path, environment))

    assert caches({"TMPDIR": str(tmp_path / "gone")}) == caches({})
