"""Tokenizing and loading: mbt's shards beside TRL's own preparation of the same rows.

    python -m tests.bench.tokenizing FOLDER [--rows 200000] [--processes 4] [--model MODEL]
        [--prompt-words 1400] [--completion-words 700] [--traces 1]

To be started from the repository's root, in the training environment. Rows are made of words with
the frequencies of natural text (Zipf's law). Each command is measured from its start until a
trainer stands ready with the rows; memory is that of its largest process, sampled.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mbt_cli.core import rows
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import ROWS_PER_SHARD, TrainingJob, Weights
from tests.integration.train.tiny_models import CHATML

_WORDS = 60_000
_VOCABULARY = 32_000
_MAX_LENGTH = 32_768
_SAMPLE_SECONDS = 0.1
_SYLLABLES = [
    a + b for a in ("", *"bcdfghklmnprstvw") for b in ("a", "e", "i", "o", "u", "an", "er")
]

MBT = """
import sys
from pathlib import Path
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training.sft_rows import SftRows
from mbt_cli.training.shards import write_rows
if __name__ == "__main__":
    job = TrainingJob.model_validate_json(Path(sys.argv[1]).read_bytes())
    write_rows(job, SftRows, processes=int(sys.argv[2]))
"""
READY = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training.row_files import open_rows
job = TrainingJob.model_validate_json(Path(sys.argv[1]).read_bytes())
settings = SFTConfig(
    output_dir=job.folder, use_cpu=True, bf16=False, report_to="none", max_length=None,
    dataset_kwargs={"skip_prepare_dataset": True},
)
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained(job.weights.model), settings,
    train_dataset=open_rows(job),
    processing_class=AutoTokenizer.from_pretrained(job.weights.model),
)
"""
TRL = """
import sys
from pathlib import Path
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
folder, processes, longest = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
settings = SFTConfig(
    output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", max_length=longest,
    dataset_num_proc=processes,
)
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained(sys.argv[4]), settings,
    train_dataset=Dataset.from_parquet(
        str(folder / "trl.parquet"), cache_dir=str(folder / "cache")
    ),
    processing_class=AutoTokenizer.from_pretrained(sys.argv[4]),
)
"""
BATCHES = """
for number, batch in enumerate(trainer.get_train_dataloader()):
    if number == 50:
        break
"""


@dataclass(frozen=True)
class Measured:
    """One command: wall time, processor time, and the largest process in bytes."""

    seconds: float
    cpu_seconds: float
    resident: int
    own: int


def words() -> tuple[list[str], list[float]]:
    """Made words and their cumulated frequencies."""
    draw = random.Random(1)
    made = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(_WORDS)]
    return made, list(accumulate(1 / (rank + 3) for rank in range(_WORDS)))


def write_model(folder: Path, text: list[str]) -> None:
    """A tokenizer trained on the words, and a model of two layers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.chat_template = CHATML
    made.save_pretrained(folder)


def examples(told: argparse.Namespace) -> Iterator[pl.DataFrame]:
    """Rows of `rows.EXAMPLES`, one frame a shard."""
    made, weights = words()
    draw = random.Random(2)

    def text(count: int) -> str:
        return " ".join(draw.choices(made, cum_weights=weights, k=count))

    messages: list[dict[str, str]] = []
    for start in range(0, told.rows, ROWS_PER_SHARD):
        batch: list[dict[str, Any]] = []
        for number in range(start, min(start + ROWS_PER_SHARD, told.rows)):
            question, trace = divmod(number, told.traces)
            if trace == 0:
                messages = [{"role": "user", "content": text(told.prompt_words)}]
            batch.append(
                {
                    "source": "made",
                    "question_id": f"{question:08}",
                    "sample": 0,
                    "trace_id": trace,
                    "messages": messages,
                    "thinking": text(told.completion_words),
                    "completion": "<answer>x</answer>",
                    "references": ["x"],
                }
            )
        yield rows.frame_of_rows(batch, rows.EXAMPLES)


def write_rows(folder: Path, told: argparse.Namespace) -> None:
    """The same rows for mbt and for TRL."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    for number, frame in enumerate(examples(told)):
        frame.write_parquet(parts / f"{number:06}.parquet")
    scanned = pl.scan_parquet(parts)
    scanned.sink_parquet(folder / "examples.parquet", row_group_size=ROWS_PER_SHARD)
    text = pl.format("<think>\n{}\n</think>\n\n{}", "thinking", "completion")
    reply = pl.struct(role=pl.lit("assistant"), content=text)
    scanned.select(prompt="messages", completion=pl.concat_list(reply)).sink_parquet(
        folder / "trl.parquet", row_group_size=ROWS_PER_SHARD
    )
    shutil.rmtree(parts)


def measured(folder: Path, script: str, *words: object) -> Measured:
    """Run Python code in a process of its own; ends this one if it fails."""
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    started = time.monotonic()
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path), *map(str, words)]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    peaks, done = {"VmHWM": 0, "RssAnon": 0}, threading.Event()
    sampler = threading.Thread(target=sample, args=(process.pid, peaks, done))
    sampler.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    done.set()
    sampler.join()
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, peaks["VmHWM"], peaks["RssAnon"])


def sample(session: int, peaks: dict[str, int], done: threading.Event) -> None:
    """Note the largest process of a session until it ends."""
    while not done.wait(_SAMPLE_SECONDS):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[3]) != session:
                    continue
                lines = (stat.parent / "status").read_text().splitlines()
            except (OSError, ValueError, IndexError):
                continue
            for line in lines:
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) << 10)


def told_of(name: str, found: Measured, count: int) -> None:
    """Print one line."""
    sys.stdout.write(
        f"{name}: {found.seconds:,.1f} s, {count / found.seconds:,.0f} rows/s, "
        f"{1000 * found.cpu_seconds / count:.2f} ms of processor time a row, "
        f"{found.resident / 2**20:,.0f} MiB resident, {found.own / 2**20:,.0f} MiB its own\n"
    )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--prompt-words", type=int, default=1_100)
    parser.add_argument("--completion-words", type=int, default=550)
    parser.add_argument("--traces", type=int, default=1, help="rows with the same prompt")
    parser.add_argument("--model", type=Path, help="folder of a tokenizer; by default one is made")
    parser.add_argument("--only", choices=("mbt", "trl"))
    told = parser.parse_args()
    folder = told.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model"
    if told.model is None:
        made, weights = words()
        write_model(model, random.Random(3).choices(made, cum_weights=weights, k=2_000_000))
    else:
        shutil.copytree(told.model, model, dirs_exist_ok=True)
    config = LlamaConfig(vocab_size=200_000, hidden_size=16, intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(model)
    if not (folder / "trl.parquet").is_file():
        write_rows(folder, told)
    (folder / "files").mkdir(exist_ok=True)
    recipe = Recipe(
        method="sft", tuning="full", dtype="float32", batch_size=8, max_length=_MAX_LENGTH
    )
    job = TrainingJob(
        address="sft",
        study="bench",
        weights=Weights(model=str(model)),
        template={},
        recipe=recipe,
        method={},
        seed=1,
        examples=str(folder / "examples.parquet"),
        folder=str(folder),
        files=str(folder / "files"),
    )
    job_file = folder / "job.json"
    job_file.write_text(job.model_dump_json())
    if told.only != "trl":
        shutil.rmtree(folder / "tokens", ignore_errors=True)
        told_of("mbt, tokenizing", measured(folder, MBT, job_file, told.processes), told.rows)
        told_of("mbt, a rank", measured(folder, READY, job_file), told.rows)
        told_of("mbt, a rank that reads", measured(folder, READY + BATCHES, job_file), told.rows)
    if told.only != "mbt":
        shutil.rmtree(folder / "cache", ignore_errors=True)
        found = measured(folder, TRL, folder, told.processes, _MAX_LENGTH, model)
        told_of("TRL", found, told.rows)


if __name__ == "__main__":
    main()
