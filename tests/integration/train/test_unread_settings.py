"""Settings of TRL that a training does not read: finished trainings stay done, and keep their bits.

If a new version of TRL gives one of them a meaning, this test fails.
"""

import hashlib
import shutil
import signal

import pytest

from tests.integration.train.conftest import STUDY

LOGS = """
logging_steps = 3
logging_first_step = true
logging_nan_inf_filter = true
log_level = "error"
log_level_replica = "error"
log_on_each_node = false
include_num_input_tokens_seen = true
disable_tqdm = true
eval_steps = 2
eval_delay = 1
per_device_eval_batch_size = 3
prediction_loss_only = true
save_total_limit = 5
dataloader_num_workers = 2
dataloader_pin_memory = false
dataloader_prefetch_factor = 4
torch_empty_cache_steps = 2
ddp_timeout = 99
"""
COMPLETIONS = """
log_completions = true
log_unique_prompts = true
num_completions_to_print = 2
"""
# dropout draws random numbers at every step: a setting that draws more of them changes the weights
DROPOUT = "lora = { r = 4, lora_alpha = 8, lora_dropout = 0.3 }"
STUDENT = "[sampling.student]\ntemperature = 0\nmax_tokens = 16\n\n[models.tiny]"


def replaced(text, *pairs):
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


BEFORE = replaced(
    STUDY,
    ("lora = { r = 4, lora_alpha = 8 }", DROPOUT),
    ("max_steps = 12\n", "max_steps = 4\n"),
    ("[models.tiny]", STUDENT),
    ('context = 2048 }\nsampling = "plain"', 'context = 2048 }\nsampling = "student"'),
)
AFTER = replaced(
    BEFORE,
    ("num_train_epochs = 2 }", f"num_train_epochs = 2, {', '.join(LOGS.split(chr(10))[1:-1])} }}"),
    ("max_steps = 4\n", f"max_steps = 4\n{LOGS}{COMPLETIONS}"),
    ("[stage.variants.full]", "[stage.variants.full]\nlora = { r = 2 }"),
    (STUDENT, STUDENT.replace("temperature = 0", "temperature = 0.5")),
    ("context = 2048", "context = 1024"),
)
TRAININGS = ("sft/model=tiny/variant=full", "sft/model=tiny/variant=lora", "rl/model=tiny")
ONLY = ("--only", "sft", "--only", "rl")


def weights(place):
    files = {one: place.cell(one) / "files/checkpoint/model.safetensors" for one in TRAININGS}
    return {one: hashlib.sha256(path.read_bytes()).hexdigest() for one, path in files.items()}


@pytest.mark.long
def test_settings_that_are_not_read_change_no_bit_of_the_weights(fresh):
    place = fresh(BEFORE)
    assert place.run("run", "study.toml", "--only", "base").code == 0
    ran = place.run("train", "study.toml", *ONLY)
    assert ran.code == 0, ran.out
    trained = weights(place)
    (place.folder / "study.toml").write_text(AFTER)

    again = place.run("train", "study.toml", *ONLY)
    assert again.code == 0, again.out
    assert all(place.lineage(one)["spec"]["recipe"]["trainer"].get("ddp_timeout") is None
               for one in TRAININGS), again.out  # fmt: skip
    for stage in ("sft", "rl"):
        shutil.rmtree(place.cell(stage))
    made = place.run("train", "study.toml", *ONLY)

    assert made.code == 0, made.out
    assert all(place.lineage(one)["spec"]["recipe"]["trainer"]["ddp_timeout"] == 99
               for one in TRAININGS)  # fmt: skip
    assert place.rows(TRAININGS[0])["step"].to_list() == [1, 3, 6, 9, 12]
    assert weights(place) == trained


@pytest.mark.long
def test_a_stopped_training_goes_on_with_other_logs_and_sampling(fresh):
    place = fresh(BEFORE)
    assert place.run("run", "study.toml", "--only", "base").code == 0
    stopped = place.run_until_step(5, signal.SIGTERM, "train", "study.toml", "--only", TRAININGS[0])
    assert stopped.code == 75, stopped.out
    (place.folder / "study.toml").write_text(AFTER)

    resumed = place.run("train", "study.toml", "--only", TRAININGS[0])

    assert resumed.code == 0, resumed.out
    log = "".join(path.read_text() for path in place.cell(TRAININGS[0]).glob("logs/*.train.log"))
    assert "resuming from step" in log
