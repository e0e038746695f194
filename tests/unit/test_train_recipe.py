"""Recipes: presets, the settings that a stage merges into them, and the messages for mistakes."""

import pytest

from mbt_cli.core.recipe import accumulation
from mbt_cli.engine.states import States
from mbt_cli.errors import ManifestError

STUDY = """
[study]
name = "loop"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.teacher]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>"] }
sampling = "plain"

[models.tiny]
backend = { kind = "transformers", model = "org/tiny", context = 2048 }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 4

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["train"], model = ["teacher"] }
prompt = "answer"
samples = 2

[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = ["tiny"] }
data = { stage = "base", where = { model = "teacher" } }
target = "reply"
"""
CELL = "sft/model=tiny"


def recipe(manifest):
    return manifest.cells[CELL].resolution.recipe


def trainer(manifest):
    return manifest.cells[CELL].resolution.trainer


def fingerprint(manifest, tmp_path):
    return States(manifest, tmp_path / "runs")[CELL].fingerprint


def test_the_shipped_preset_holds_the_published_settings(load):
    found = recipe(load(STUDY))

    assert (found.method, found.tuning, found.batch_size) == ("sft", "full", 128)
    assert found.max_length == 32768
    assert found.trainer["learning_rate"] == 1e-4
    assert found.trainer["max_grad_norm"] == 0.3
    assert found.lora == {
        "r": 64,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "target_modules": "all-linear",
    }


def test_a_stage_overrides_single_keys_of_its_preset(load):
    text = (
        STUDY + 'trainer = { learning_rate = 3e-4 }\nrecipe = { batch_size = 8, tuning = "lora" }\n'
    )

    found = recipe(load(text + "lora = { r = 8 }\n"))

    assert found.trainer["learning_rate"] == 3e-4
    assert found.trainer["lr_scheduler_type"] == "cosine"
    assert (found.batch_size, found.tuning, found.lora["r"]) == (8, "lora", 8)
    assert found.lora["lora_alpha"] == 32


def test_a_training_reads_the_questions_of_its_data(load):
    inputs = load(STUDY).cells[CELL].resolution.inputs

    assert inputs["data"] == ("base/benchmark=tiny/split=train/model=teacher",)
    assert inputs["questions"] == ("questions/benchmark=tiny/split=train",)


def test_the_content_of_a_preset_counts_not_its_name(load, tmp_path):
    by_name = fingerprint(load(STUDY), tmp_path)
    same = fingerprint(load(STUDY + "trainer = { learning_rate = 1e-4 }\n"), tmp_path)
    other = fingerprint(load(STUDY + "trainer = { learning_rate = 2e-4 }\n"), tmp_path)

    assert by_name == same
    assert by_name != other


def test_a_method_enters_the_fingerprint_by_its_settings_and_by_later_versions(load, monkeypatch):
    cell = load(STUDY).cells[CELL]
    settings = set(cell.spec["recipe"])

    # the keys that finished cells have in their lineage
    assert settings == {
        *("method", "tuning", "dtype", "float32_matmul", "batch_size", "max_length"),
        *("trainer", "lora", "rewards", "reward_words"),
    }
    monkeypatch.setattr(type(cell.resolution.trainer), "version", 2)
    changed = load(STUDY + "recipe = { batch_size = 64 }\n").cells[CELL]
    assert set(changed.spec["recipe"]) == {*settings, "version"}


@pytest.mark.parametrize(
    "line",
    [
        'launch = { accelerate = "multi_gpu" }',
        'tracking = { wandb = "offline" }',
        "recipe = { device_batch_size = 1 }",
        "recipe = { save_every_steps = 7 }",
        'recipe = { kernels = { attention = "sdpa" } }',
    ],
)
def test_run_only_settings_do_not_change_the_fingerprint(load, tmp_path, line):
    assert fingerprint(load(STUDY), tmp_path) == fingerprint(load(f"{STUDY}{line}\n"), tmp_path)


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        ("trainer = { learning_rat = 1 }", "trainer.learning_rat", "did you mean `learning_rate`?"),
        ("lora = { rank = 4 }", "lora.rank", "has no such field"),
        ("launch = { flags = { num_process = 4 } }", "launch.flags.num_process", "num_processes"),
        ("trainer = { save_steps = 4 }", "trainer.save_steps", "recipe.save_every_steps"),
        ("recipe = { batchsize = 4 }", "recipe.batchsize", "did you mean `batch_size`?"),
        ('recipe = { tuning = "half" }', "recipe.tuning", "half"),
        ('recipe = { float32_matmul = "low" }', "recipe.float32_matmul", "low"),
        ('keep = "right"', "keep", "right"),
        ("weights = { bases = 1 }", "weights.bases", "is not a stage of `data`"),
        ('launch = { accelerate = "tpu" }', "launch.accelerate", "no preset `tpu`"),
        ('trainer = { learning_rate = "1e-4" }', "trainer.learning_rate", "should be a number"),
        ("trainer = { max_steps = 1.5 }", "trainer.max_steps", "should be a whole number"),
        ("trainer = { max_steps = true }", "trainer.max_steps", "should be a whole number"),
        ("trainer = { packing = 1 }", "trainer.packing", "should be true or false"),
        ('trainer = { optim = "adam" }', "trainer.optim", "not a valid value"),
        ('trainer = { lr_scheduler_type = "cosin" }', "trainer.lr_scheduler_type", "`cosine`"),
        ("lora = { target_modules = 3 }", "lora.target_modules", "should be an array or text"),
        (
            "recipe = { device_batch_size = 3 }",
            "recipe.device_batch_size",
            "valid device_batch_size: 1, 2, 4, 8",
        ),
        ('lora = { bias = "some" }', "lora.bias", "not a valid value"),
        ("lora = { r = -8 }", "lora.r", "should be above 0"),
        ("trainer = { learning_rate = -1e-4 }", "trainer.learning_rate", "should be above 0"),
        ("batch_size = 4", "batch_size", "it belongs in `recipe`"),
        ("learning_rate = 1e-4", "learning_rate", "it belongs in `trainer`"),
        ("weights = { base = -1 }", "weights.base", "greater than 0"),
        ('reward = "f1_score"', "reward", "the method `sft` has no rewards"),
        ('questions = "tiny"', "questions", "must be a table"),
        (
            'launch = { accelerate = "multi_gpu", processes = 48 }',
            "recipe.device_batch_size",
            "none, since 48 devices do not divide 128",
        ),
        (
            'launch = { accelerate = "multi_gpu" }\nrecipe = { batch_size = 6 }',
            "recipe.device_batch_size",
            "does not divide into 4 devices",
        ),
    ],
)
def test_a_wrong_setting_is_reported_with_its_key_path_and_a_suggestion(load, line, where, what):
    with pytest.raises(ManifestError) as caught:
        load(f"{STUDY}{line}\n")

    found = {p.where: p.what for p in caught.value.problems}
    assert what in found[f"stage.sft.{where}"]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('target = "reply"', 'target = "trace"', "stage.sft.target"),
        ('target = "reply"', "", "stage.sft.target"),
        ('preset = "sft"', 'preset = "stf"', "stage.sft.preset"),
        ('data = { stage = "base", where = { model = "teacher" } }\n', "", "stage.sft.data"),
        ('preset = "sft"', 'preset = "grpo"', "stage.sft.questions"),
    ],
)
def test_target_preset_and_inputs_are_checked(load, old, new, where):
    with pytest.raises(ManifestError) as caught:
        load(STUDY.replace(old, new))

    assert where in {p.where for p in caught.value.problems}


def test_values_of_every_type_that_trl_accepts_pass(load):
    trainer = (
        "trainer = { learning_rate = 1, warmup_steps = 0.1, neftune_noise_alpha = 5, "
        'optim = "adamw_torch", tf32 = true, fsdp = true, debug = ["underflow_overflow"], '
        'lr_scheduler_kwargs = { min_lr = 1e-6 }, deepspeed = "zero.json" }'
    )
    lora = 'lora = { target_modules = ["q_proj"], init_lora_weights = "pissa", lora_alpha = 0.5 }'

    found = recipe(load(f"{STUDY}{trainer}\n{lora}\n"))

    assert found.trainer["neftune_noise_alpha"] == 5
    assert found.lora["lora_alpha"] == 0.5
    assert found.lora["init_lora_weights"] == "pissa"


def test_the_reward_of_the_stage_replaces_the_presets_and_unknown_ones_are_refused(load):
    grpo = STUDY[: STUDY.rindex("[[stage]]")] + (
        '[[stage]]\nkind = "train"\nname = "sft"\npreset = "grpo"\nmatrix = { model = ["tiny"] }\n'
        'questions = { benchmark = "tiny", split = "train" }\n'
    )

    assert trainer(load(grpo + 'reward = "exact_match"\n')).rewards == {"exact_match": 1.0}
    assert trainer(load(grpo)).rewards == {"f1_score": 1.0}
    with pytest.raises(ManifestError, match="no reward `f1`"):
        load(grpo + 'reward = "f1"\n')


@pytest.mark.parametrize(
    ("batch", "on_device", "devices", "steps"), [(128, 2, 4, 16), (128, 2, 1, 64), (8, 8, 1, 1)]
)
def test_accumulation_completes_the_batch(batch, on_device, devices, steps):
    assert accumulation(batch, on_device, devices) == steps


def test_a_batch_that_does_not_divide_is_refused_with_valid_sizes():
    # 12 = 2 devices x 1, 2, 3 or 6 examples x 6, 3, 2 or 1 steps
    with pytest.raises(ValueError, match=r"valid device_batch_size: 1, 2, 3, 6$"):
        accumulation(12, 4, 2)
