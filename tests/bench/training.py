"""The preset `sft` (the paper's) and the preset `fast`, side by side: tokens a second and MFU.

    python -m tests.bench.training FOLDER [--shape qwen3-0.6b] [--examples 1024] [--documents 20]
        [--steps 6] [--rounds 2] [--set stage.fast.recipe.kernels.attention=sdpa]

To be started from the repository's root, in the training environment. The weights are random, the
rows are five-phase traces by the scripted teacher over generated questions, and the trainings take
turns. Numbers are medians over the rounds; tokens are those of examples, never padding.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import orjson
from transformers import AutoModelForCausalLM, Qwen3Config, set_seed

from tests.integration.train.tiny_models import tokenizer_of

SHAPES = {
    "qwen3-0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
    "small": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 40_960,
    },
}
PRESETS = {"paper": "sft", "fast": "fast"}
"""Stage of the study to its preset."""
MANIFEST = """
[study]
name = "bench"
seed = 1
max_failed_share = 0

[sampling.scripted]
temperature = 0.6
max_tokens = "rest"

[models.shaped]
backend = {{ kind = "transformers", model = "model", context = 32768 }}
sampling = "scripted"

[models.scripted]
backend = {{ kind = "scripted" }}
sampling = "scripted"

[benchmarks.made]
kind = "tinyhop"
documents = {documents}
limit = {{ train = {examples} }}

[[stage]]
kind = "synthesize"
name = "traces"
matrix = {{ benchmark = ["made"], split = ["train"] }}
make = "mbt_s"
teacher = "scripted"
"""
STAGE = """
[[stage]]
kind = "train"
name = "{name}"
preset = "{preset}"
matrix = {{ model = ["shaped"] }}
data = "traces"
target = "trace"
prompt = "answer"
trainer = {{ max_steps = {steps} }}
"""


def write_model(folder: Path, shape: str) -> None:
    """Random weights of a shape, with a tokenizer and a chat template, in hub layout."""
    tokenizer = tokenizer_of("qwen3")
    tokens = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
    set_seed(1)
    config = Qwen3Config(**SHAPES[shape], **tokens, tie_word_embeddings=True, dtype="bfloat16")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def mbt(folder: Path, *words: str) -> None:
    """Run the study, or a part of it; ends this process where mbt does."""
    command = [sys.executable, "-m", "mbt_cli", "run", "bench.toml", "-q", *words]
    if code := subprocess.run(command, cwd=folder, check=False).returncode:
        sys.exit(code)


def measured(folder: Path, stage: str, overrides: list[str]) -> dict[str, float | None]:
    """Train once, anew; what the lineage tells of its pace."""
    words = [word for override in overrides for word in ("--set", override)]
    cell = folder / "runs/bench" / stage / "model=shaped"
    shutil.rmtree(cell, ignore_errors=True)
    mbt(folder, "--only", stage, *words)
    told = orjson.loads((cell / "lineage.json").read_bytes())["notes"]["training"]
    sys.stdout.write(f"{stage}: {told['device']}, {told['attention']} attention, ")
    sys.stdout.write(f"{told['row_tokens'] / told['rows']:,.0f} tokens an example, ")
    sys.stdout.write(f"{told['tokens_per_second'] or 0:,.0f} tokens/s\n")
    return {name: told[name] for name in ("tokens_per_second", "mfu")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--steps", type=int, default=6, help="two at least: the first warms up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    told = parser.parse_args()
    if told.steps < 2:
        parser.error("--steps: two at least, since the first warms up")
    folder = told.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model", told.shape)
    stages = [STAGE.format(name=n, preset=p, steps=told.steps) for n, p in PRESETS.items()]
    study = MANIFEST.format(documents=told.documents, examples=told.examples)
    (folder / "bench.toml").write_text(study + "".join(stages))
    mbt(folder, "--only", "traces")
    rounds = [{n: measured(folder, n, told.overrides) for n in PRESETS} for _ in range(told.rounds)]
    paces = {n: statistics.median(r[n]["tokens_per_second"] or 0 for r in rounds) for n in PRESETS}
    for name, pace in paces.items():
        mfu = [used for r in rounds if (used := r[name]["mfu"]) is not None]
        share = f"{statistics.median(mfu):.1%}" if mfu else "unknown for this device"
        sys.stdout.write(f"{name}: {pace:,.0f} tokens/s, MFU {share}\n")
    sys.stdout.write(f"fast is {paces['fast'] / paces['paper']:.2f} times paper\n")


if __name__ == "__main__":
    main()
