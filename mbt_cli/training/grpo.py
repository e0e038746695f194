"""Reinforcement learning with TRL's GRPOTrainer: python -m mbt_cli.training.grpo JOB."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import torch
from datasets import Dataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from mbt_cli.core import rows
from mbt_cli.core.questions import Question
from mbt_cli.core.training_job import TRAINING_SET, TrainingJob
from mbt_cli.core.verifier import Verifier, verifier_from
from mbt_cli.training import models
from mbt_cli.training.loop import arguments, finish, train
from mbt_cli.training.mask import turn_of
from mbt_cli.training.problems import TrainingError, exit_code_of
from mbt_cli.training.processors import keep_freed_memory
from mbt_cli.verifiers.rewards import REWARDS, VERIFIED_REWARDS

RewardFunction = Callable[..., list[float]]


def reinforce(job: TrainingJob) -> None:
    """Train on rewards of the model's own replies and save the result."""
    recipe, rewards = job.recipe, job.method["rewards"]
    if not torch.cuda.is_available():
        keep_freed_memory()
    tokenizer = models.load_tokenizer(job.weights)
    tokenizer.padding_side = "left"
    adapted = models.ModelTokenizer(tokenizer, job.template)
    if models.is_gguf(job.weights) and recipe.tuning == "full" and recipe.trainer.get("beta"):
        raise TrainingError(
            "`trainer.beta` needs a second copy of the model, which TRL cannot load from GGUF",
            'set `trainer.beta` to 0, or `recipe.tuning = "lora"`',
        )
    verifiers = {source: verifier_from(found) for source, found in job.verifiers.items()}
    if VERIFIED_REWARDS & rewards.keys():
        for verifier in verifiers.values():
            verifier.prepare()
    questions, end_token = _questions(job, adapted)
    settings = arguments(
        job,
        GRPOConfig,
        {
            "reward_weights": list(rewards.values()),
            "chat_template_kwargs": dict(job.template) or None,
            "use_vllm": recipe.trainer.get("use_vllm", _can_vllm()),
            "remove_unused_columns": False,
        },
    )
    set_seed(job.seed)
    trainer = GRPOTrainer(
        model=models.load_model(job.weights, recipe, quantized=recipe.tuning == "qlora"),
        reward_funcs=[
            reward_function(name, job.method["reward_words"], verifiers) for name in rewards
        ],
        args=settings,
        train_dataset=questions,
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    trained = train(trainer, job)
    means = [e["reward"] for e in trainer.state.log_history if "reward" in e]
    facts = {"rows": questions.num_rows, "last_reward": means[-1] if means else None}
    finish(trainer, job, trained, end_token=end_token, facts=facts)


def reward_function(name: str, words: int, verifiers: Mapping[str, Verifier]) -> RewardFunction:
    """A reward as TRL calls it, from a batch of completions to a list of numbers.

    Args:
        name: One of `REWARDS`.
        words: Words beyond which the reward `length` is 0.
        verifiers: Source of a question to its verifier.
    """
    reward = REWARDS[name]

    def rewarded(
        completions: Sequence[Any],
        references: Sequence[Sequence[str]],
        source: Sequence[str],
        **_: Any,
    ) -> list[float]:
        values = []
        for completion, (gold, *aliases), cell in zip(completions, references, source, strict=True):
            text = completion if isinstance(completion, str) else completion[-1]["content"]
            question = Question("", "", gold, tuple(aliases))
            values.append(reward(text, question, verifier=verifiers[cell], words=words))
        return values

    rewarded.__name__ = name
    return rewarded


def _questions(job: TrainingJob, tokenizer: models.ModelTokenizer) -> tuple[Any, int]:
    """The questions whose prompts are short enough, and the token that ends a turn."""
    kept, texts = [], []
    end_token = -1
    for row in pl.read_parquet(job.examples).iter_rows(named=True):
        turn = turn_of(tokenizer, row["messages"])
        end_token = turn.end_token
        length = len(tokenizer.encode(turn.prompt))
        is_long = length > job.recipe.max_length
        if not is_long:
            kept.append(
                {"prompt": row["messages"]} | {name: row[name] for name in ("references", "source")}
            )
        own = {name: row[name] for name in ("source", "question_id", "sample", "trace_id")}
        dropped = f"over_long: {length} tokens" if is_long else None
        own |= {"prompt": turn.prompt, "tokens": length, "dropped": dropped}
        texts.append({**dict.fromkeys(rows.TRAINING_SET), **own})
    frame = pl.DataFrame(texts, schema=rows.TRAINING_SET)
    frame.write_parquet(Path(job.files) / TRAINING_SET)
    if not kept:
        raise TrainingError(
            f"all {len(texts)} prompts are longer than {job.recipe.max_length} tokens",
            "raise `recipe.max_length`",
        )
    return Dataset.from_list(kept), end_token


def _can_vllm() -> bool:
    can = find_spec("vllm") is not None and torch.cuda.is_available()
    if not can:
        print("replies are sampled with transformers: vLLM or a GPU is missing", flush=True)  # noqa: T201
    return can


if __name__ == "__main__":
    sys.exit(exit_code_of(reinforce, sys.argv[1]))
