"""A training that needs a package says so, with the line to type, before it takes a GPU."""

import sys

import pytest

from mbt_cli.core.findings import not_installed

STUDY = """
[study]
name = "packages"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.teacher]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>"] }
sampling = "plain"

[models.tiny]
backend = { kind = "transformers", model = "./tiny", context = 2048 }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 2

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "tiny", split = "train", model = "teacher" }
prompt = "answer"
samples = 1

[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = "tiny" }
data = { stage = "base", where = { model = "teacher" } }
target = "reply"
"""


@pytest.fixture
def study(workplace):
    """The name of a study with this line in its train stage."""

    def written(line):
        (workplace / "packages.toml").write_text(f"{STUDY}{line}\n")
        return "packages.toml"

    return written


@pytest.mark.parametrize(
    ("line", "setting", "package", "typed"),
    [
        ('recipe = { tuning = "qlora" }', "recipe.tuning", "bitsandbytes", '"mbt-cli[qlora]"'),
        (
            'trainer = { optim = "paged_adamw_8bit" }',
            "trainer.optim",
            "bitsandbytes",
            '"mbt-cli[qlora]"',
        ),
        ('trainer = { optim = "galore_adamw" }', "trainer.optim", "galore-torch", "galore-torch"),
        (
            'recipe = { master_weights = "float32" }\n'
            'launch = { accelerate = "multi_gpu", flags = { use_deepspeed = true } }',
            "launch",
            "deepspeed",
            "deepspeed",
        ),
        (
            'recipe = { kernels = { attention = "kernels-community/flash-attn3" } }',
            "recipe.kernels.attention",
            "kernels",
            '"mbt-cli[kernels]"',
        ),
        (
            'recipe = { kernels = { attention = "flash_attention_3", liger = "hub" } }',
            "recipe.kernels.liger",
            "kernels",
            '"mbt-cli[kernels]"',
        ),
    ],
)
def test_check_and_plan_name_a_missing_package(mbt, study, line, setting, package, typed):
    name = study(line)

    checked, planned = mbt("check", name), mbt("plan", name)

    for ran, out in ((checked, checked.out), (planned, planned.err)):
        assert ran.code == 0, ran.err
        text = " ".join(out.split())
        assert f"stage sft: `{setting}` needs `{package}`, which {sys.executable} lacks" in text
        assert f"pip install {typed}" in text


def test_what_is_part_of_pytorch_needs_nothing(mbt, study):
    ran = mbt("check", study('trainer = { optim = "adafactor" }'))

    assert ran.code == 0, ran.err
    assert "needs `" not in ran.out


def test_a_training_stops_before_it_loads_anything(mbt, study):
    name = study('recipe = { tuning = "qlora" }')

    ran = mbt("run", name)

    assert ran.code == 2
    assert "needs the package `bitsandbytes`" in " ".join(ran.err.split())
    assert 'pip install "mbt-cli[qlora]"' in " ".join(ran.err.split())


def test_without_the_packages_of_trainings_no_request_is_sent(mbt, study, workplace):
    if not not_installed(("trl",), sys.executable):
        pytest.skip("the packages of trainings are installed")

    ran = mbt("run", study(""))

    assert ran.code == 2
    said = " ".join(ran.err.split())
    assert "the Python that trains has no package" in said
    assert 'pip install "mbt-cli[train]", or name the Python of another environment' in said
    assert not (workplace / "runs" / "packages" / "base").exists()


def test_a_kernel_of_anybody_is_refused(mbt, study):
    ran = mbt("check", study('recipe = { kernels = { attention = "somebody/kernel" } }'))

    assert ran.code == 2
    assert "recipe.kernels.attention" in ran.err
