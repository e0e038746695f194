# ruff: noqa: E501
"""The embedded model itself: trained a dozen steps, killed, resumed, served by llama.cpp again."""

import signal

import pytest

pytest.importorskip("xllamacpp")

STUDY = """
[study]
name = "loop"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 24

[models.teacher]
backend = { kind = "canned", replies = ["We look it up.\\n\\n<answer>Oslo</answer>"] }
sampling = "plain"

[models.smollm2]
preset = "smollm2-135m"
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = { train = 24, validation = 4 }

[[stage]]
kind = "rollout"
name = "data"
matrix = { benchmark = ["tiny"], split = ["train"], model = ["teacher"] }
prompt = "short.md"
samples = 1

[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = ["smollm2"] }
data = { stage = "data", where = { model = "teacher" } }
target = "reply"
prompt = "short.md"
trainer = { learning_rate = 5e-4, gradient_checkpointing = false, lr_scheduler_type = "constant", bf16 = false }

[stage.recipe]
dtype = "float32"
batch_size = 2
device_batch_size = 1
max_length = 256
save_every_steps = 5

[stage.variants.full]

[stage.variants.lora]
recipe = { tuning = "lora" }
lora = { r = 8, lora_alpha = 16 }

[[stage]]
kind = "rollout"
name = "trained"
checkpoints = "sft"
matrix = { benchmark = ["tiny"], split = ["validation"] }
prompt = "short.md"
samples = 1
"""


@pytest.mark.long
@pytest.mark.parametrize("variant", ["full", "lora"])
def test_the_embedded_model_learns_a_format_and_serves_it(fresh, variant):
    place = fresh(STUDY)
    address = f"sft/model=smollm2/variant={variant}"
    served = f"trained/benchmark=tiny/split=validation/model=smollm2/variant={variant}"
    assert place.run("run", "study.toml", "--only", "data").code == 0

    killed = place.run_until_step(6, signal.SIGKILL, "train", "study.toml", "--only", address)
    resumed = place.run("train", "study.toml", "--only", address)
    rolled_out = place.run("rollout", "study.toml", "--only", served)

    assert killed.code == -signal.SIGKILL
    assert resumed.code == 0, resumed.out
    assert rolled_out.code == 0, rolled_out.out
    losses = place.rows(address)["loss"]
    assert losses.len() == 12
    assert losses[-1] < 0.5 * losses[0]
    assert place.rows(served)["failure"].null_count() == 4
    if variant == "full":  # a dozen steps of an adapter teach the format only in part
        assert "<answer>Oslo</answer>" in place.rows(served)["reply"].to_list()[0]
