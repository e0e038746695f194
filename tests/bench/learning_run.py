"""A model that learns sums from a verifier alone, on two cores: the run behind `mbt help training`.

    python -m tests.bench.learning_run FOLDER
    cd FOLDER
    mbt run sums.toml
    mbt compare 'runs/sums/scores/**/variant=before' 'runs/sums/scores/**/step=16'

Writes the questions, worked examples, prompt and manifest of a study of SmolLM2-135M: SFT on 32
worked sums, then GRPO on 130 questions, with every checkpoint asked about 60 others. Questions are
pairs of numbers from 2 to 20; each pair is in one split, whatever its order. `mbt run` needs the
extra `train`.
"""

import argparse
import json
import random
from pathlib import Path

TEST, WORKED = 60, 32
PROMPT = """\
=== system ===
Add the numbers. Reply with the sum between answer tags: <answer>sum</answer>
=== user ===
{{ question }}
"""
MANIFEST = """\
[study]
name = "sums"
seed = 42
max_failed_share = 0.01

[sampling.drawn]
temperature = 1.0
max_tokens = 16

[models]
smollm2-135m = { preset = "smollm2-135m", sampling = "drawn" }

[benchmarks.sums]
kind = "question_answer"
files = { worked = "sums/worked.jsonl", train = "sums/train.jsonl", test = "sums/test.jsonl" }

[[stage]]
kind = "rollout"
name = "worked"
matrix = { benchmark = "sums", split = "worked", model = "written" }
source = "sums/worked-replies.jsonl"
prompt = "sums/prompt.md"

[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = "smollm2-135m" }
data = { stage = "worked", where = { model = "written" } }
target = "reply"
prompt = "sums/prompt.md"
trainer = { learning_rate = 1e-4, gradient_checkpointing = false, bf16 = false, optim = "adamw_torch", num_train_epochs = 2 }
recipe = { dtype = "float32", float32_matmul = "medium", batch_size = 8, device_batch_size = 8, max_length = 256, kernels = { attention = "eager" } }

[[stage]]
kind = "rollout"
name = "before"
checkpoints = "sft"
matrix = { benchmark = "sums", split = "test" }
prompt = "sums/prompt.md"
samples = 8

[[stage]]
kind = "train"
name = "grpo"
preset = "grpo"
matrix = { model = "smollm2-135m" }
start = "sft"
questions = { benchmark = "sums", split = "train" }
prompt = "sums/prompt.md"
reward = { verified = 1, format = 0.1 }
recipe = { tuning = "full", dtype = "float32", float32_matmul = "medium", batch_size = 64, device_batch_size = 16, max_length = 128, save_every_steps = 4, kernels = { attention = "eager" } }

[stage.trainer]
max_steps = 16
learning_rate = 1e-5
lr_scheduler_type = "constant"
beta = 0.0
num_generations = 8
generation_batch_size = 64
max_completion_length = 16
use_vllm = false
bf16 = false
gradient_checkpointing = false
optim = "adamw_torch"

[[stage]]
kind = "rollout"
name = "curve"
checkpoints = { stage = "grpo", where = { step = "all" } }
matrix = { benchmark = "sums", split = "test" }
prompt = "sums/prompt.md"
samples = 8

[[stage]]
kind = "judge"
name = "checked"
rollouts = ["before", "curve"]
matrix = { judge = "verifier" }

[[stage]]
kind = "score"
name = "scores"
rollouts = ["before", "curve"]
verdicts = "checked"
metrics = ["verified", "answer_rate", "tokens"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results", "training_runs"]
figures = [{ kind = "score_curves", metric = "verified" }, { kind = "training_curves", metric = ["reward", "entropy"] }]
"""  # noqa: E501


def question(pair, draw):
    first, second = reversed(pair) if draw.random() < 0.5 else pair
    text = {"id": f"{first}+{second}", "question": f"{first} + {second}"}
    return {**text, "answer": str(first + second)}


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    folder = arguments.parse_args().folder
    draw = random.Random(7)
    pairs = [(first, second) for first in range(2, 21) for second in range(first, 21)]
    draw.shuffle(pairs)
    test = [question(pair, draw) for pair in pairs[:TEST]]
    train = [question(pair, draw) for pair in pairs[TEST:]]
    worked = train[:WORKED]
    replies = [
        {"question_id": one["id"], "sample": 0, "reply": f"<answer>{one['answer']}</answer>"}
        for one in worked
    ]
    (folder / "sums").mkdir(parents=True, exist_ok=True)
    for name, lines in (("test", test), ("train", train), ("worked", worked)):
        write(folder / "sums" / f"{name}.jsonl", lines)
    write(folder / "sums" / "worked-replies.jsonl", replies)
    (folder / "sums" / "prompt.md").write_text(PROMPT)
    (folder / "sums.toml").write_text(MANIFEST)


if __name__ == "__main__":
    main()
