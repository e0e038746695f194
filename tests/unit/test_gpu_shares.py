"""Servers of several models that run at once divide the GPUs."""

from pathlib import Path

import pytest

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import StageError
from mbt_cli.stages.gpu_shares import with_own_gpus


def served(model, gpus, **environment):
    place = {"tensor_parallel_size": gpus, "environment": environment}
    return VLLMBackend(model=model, place=place)


def place(visible):
    return ServerPlace(Path("log"), Path("cache"), {"CUDA_VISIBLE_DEVICES": visible})


def share(visible, backend, beside):
    return with_own_gpus(place(visible), backend, beside).environment["CUDA_VISIBLE_DEVICES"]


def test_each_server_has_gpus_of_its_own_and_none_is_left():
    own, verifier = served("a/own", 1), served("b/verifier", 2)

    assert share("3,4,5,6", own, [own, verifier]) == "3,4"
    assert share("3,4,5,6", verifier, [own, verifier]) == "5,6"


def test_a_server_alone_or_beside_hosted_models_keeps_all():
    own, hosted = served("a/own", 1), OpenAIBackend(base_url="http://x/v1", id="m")

    assert share("0,1", own, [own]) == "0,1"
    assert share("0,1", own, [own, hosted]) == "0,1"
    assert share("0,1", own, [own, own]) == "0,1"


def test_models_that_name_their_gpus_may_share_one():
    own = served("a/own", 1, CUDA_VISIBLE_DEVICES="0")
    other = served("b/other", 1, CUDA_VISIBLE_DEVICES="0")

    assert share("0", own, [own, other]) == "0"


def test_too_few_gpus_are_said_with_both_numbers():
    own, verifier = served("a/own", 1), served("b/verifier", 2)

    with pytest.raises(StageError, match="need 3 GPUs; there are 2"):
        share("0,1", own, [own, verifier])
