# ruff: noqa: E501
"""A study on a model of two layers, run by the real `mbt` of the training environment."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

from tests.integration.train.tiny_models import tiny_model

STUDY = """
[study]
name = "loop"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.teacher]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>", "It is <answer>Rome</answer>"] }
sampling = "plain"

[models.tiny]
backend = { kind = "transformers", model = "tiny", context = 2048 }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 12

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["train"], model = ["teacher"] }
prompt = "short.md"
samples = 2

[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = ["tiny"] }
data = { stage = "base", where = { model = "teacher" } }
target = "reply"
prompt = "short.md"
trainer = { bf16 = false, gradient_checkpointing = false, learning_rate = 1e-2, optim = "adamw_torch", num_train_epochs = 2 }

[stage.recipe]
batch_size = 4
device_batch_size = 2
max_length = 512
dtype = "float32"
save_every_steps = 4

[stage.variants.full]

[stage.variants.lora]
recipe = { tuning = "lora" }
lora = { r = 4, lora_alpha = 8 }

[[stage]]
kind = "rollout"
name = "trained"
checkpoints = "sft"
matrix = { benchmark = ["tiny"], split = ["validation"] }
prompt = "short.md"
samples = 1

[[stage]]
kind = "train"
name = "rl"
preset = "grpo"
matrix = { model = ["tiny"] }
questions = { benchmark = "tiny", split = "train" }
prompt = "short.md"
reward = { length = 1.0 }
recipe = { tuning = "full", batch_size = 32, device_batch_size = 32, max_length = 512, dtype = "float32", reward_words = 12 }

[stage.trainer]
use_vllm = false
bf16 = false
gradient_checkpointing = false
learning_rate = 2e-2
lr_scheduler_type = "constant"
optim = "adamw_torch"
num_generations = 8
generation_batch_size = 32
max_completion_length = 16
max_steps = 12
"""


@dataclass
class Ran:
    code: int
    out: str


class Place:
    """A folder with the study, and ways to run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "mbt_cli", *arguments],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, timeout: float = 600) -> Ran:
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=timeout)
        return Ran(process.returncode, out)

    def run_until_step(self, step: int, number: signal.Signals, *arguments: str) -> Ran:
        """Start, and send a signal once the log has this step."""
        process = self.start(*arguments)
        while process.poll() is None and self.last_step() < step:
            time.sleep(0.05)
        process.send_signal(number)
        out, _ = process.communicate(timeout=300)
        return Ran(process.returncode, out)

    def last_step(self) -> int:
        """Last step that a running training has logged."""
        steps = [0]
        for log in self.folder.glob("runs/**/journal/training/*/log.jsonl"):
            whole = log.read_bytes().rpartition(b"\n")[0].splitlines()
            steps += [json.loads(line)["step"] for line in whole]
        return max(steps)

    def cell(self, address: str) -> Path:
        return self.folder / "runs" / "loop" / address

    def rows(self, address: str) -> pl.DataFrame:
        return pl.read_parquet(self.cell(address) / "rows.parquet")

    def lineage(self, address: str) -> dict:
        return json.loads((self.cell(address) / "lineage.json").read_bytes())


def make_place(folder: Path, text: str = STUDY) -> Place:
    tiny_model(folder / "tiny")
    (folder / "short.md").write_text("=== user ===\n{{ question }}\n")
    (folder / "study.toml").write_text(text)
    return Place(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One folder for a module: rollouts are made once."""
    made = make_place(tmp_path_factory.mktemp("study"))
    ran = made.run("run", "study.toml", "--only", "base")
    assert ran.code == 0, ran.out
    return made


@pytest.fixture
def fresh(tmp_path):
    """A folder of a test's own."""
    return lambda text=STUDY: make_place(tmp_path, text)
