"""Reinforcement learning with TRL's GRPOTrainer: python -m mbt_cli.training.grpo JOB."""

import sys
from importlib.metadata import version
from typing import Any

import torch
from transformers import set_seed
from trl import GRPOConfig

from mbt_cli.core.recipe import Recipe, Round, generation_round
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training import models
from mbt_cli.training.evaluation import Asked
from mbt_cli.training.grading import Grader, KeptReplies
from mbt_cli.training.loop import arguments, finish, process_state, train
from mbt_cli.training.mask import ChatFormat
from mbt_cli.training.problems import TrainingError, exit_code_of
from mbt_cli.training.processors import keep_freed_memory
from mbt_cli.training.rounds import RoundTrainer, sampling_seed
from mbt_cli.training.row_files import open_rows, ordered
from mbt_cli.training.tokenizer import ModelTokenizer, is_gguf, load_tokenizer


def reinforce(job: TrainingJob) -> None:
    """Train on rewards of the model's own replies and save the result."""
    recipe = job.recipe
    if not torch.cuda.is_available():
        keep_freed_memory()
        if recipe.trainer.get("use_vllm"):
            raise TrainingError(
                "`trainer.use_vllm` needs a GPU, and this process sees none",
                "run it where there is a GPU, or set `trainer.use_vllm = false`",
            )
    tokenizer = load_tokenizer(job.weights)
    tokenizer.padding_side = "left"
    if is_gguf(job.weights) and recipe.tuning == "full" and recipe.trainer.get("beta"):
        raise TrainingError(
            "`trainer.beta` needs a second copy of the model, which TRL cannot load from GGUF",
            'set `trainer.beta` to 0, or `recipe.tuning = "lora"`',
        )
    sampled = _round_of(recipe)
    questions = ordered(open_rows(job), job)
    _check_number(questions.num_rows, sampled)
    adapted = ModelTokenizer(tokenizer, job.template)
    end_token = ChatFormat(adapted).turn(questions[0]["prompt"]).end_tokens[-1]
    grader = Grader.of(job, tokenizer)
    settings = arguments(job, GRPOConfig, _own_settings(job, sampled, end_token))
    set_seed(job.seed)
    model = models.load_model(job.weights, recipe, to_train=True)
    # a reply ends where a turn of the chat template ends, as it will when the result is served
    model.generation_config.eos_token_id = models.ends_with(model, end_token)
    trainer = RoundTrainer(
        model=model,
        reward_funcs=[grader.function(name) for name in grader.weights],
        args=settings,
        train_dataset=questions,
        # held-out questions are answered by `asked`, but the trainer wants a set to evaluate
        eval_dataset=questions.select([0]) if job.validation else None,
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    if settings.use_vllm and settings.vllm_mode == "colocate":
        # vLLM has set this process's random state to a seed of its own, equal for every training
        process = process_state(recipe).process_index
        set_seed(sampling_seed(job.seed, process, settings.vllm_tensor_parallel_size))
    trainer.has_loss = False
    trainer.sources = job.sources
    if recipe.evaluation.score is not None:
        trainer.asked = Asked(job, tokenizer, adapted, end_token)
    grader.ends = frozenset({*trainer.eos_token_ids, tokenizer.pad_token_id})
    kept = KeptReplies(job, grader, sampled.steps)
    if process_state(recipe).is_main_process:
        trainer.after_round = kept.add
    trained = train(trainer, job, end_token=end_token)
    if process_state(recipe).is_main_process:
        kept.write()
    means = [e["reward"] for e in trainer.state.log_history if "reward" in e]
    facts = {
        "rows": questions.num_rows,
        "last_reward": means[-1] if means else None,
        "replies_per_round": sampled.replies,
        "vllm": version("vllm") if settings.use_vllm else None,
    }
    finish(trainer, job, trained, end_token=end_token, facts=facts)


def _round_of(recipe: Recipe) -> Round:
    try:
        return generation_round(recipe, int(process_state(recipe).num_processes))
    except ValueError as error:
        raise TrainingError(
            str(error), "change `recipe.device_batch_size` or `trainer.generation_batch_size`"
        ) from error


def _own_settings(job: TrainingJob, sampled: Round, end_token: int) -> dict[str, Any]:
    """What mbt decides of TRL's configuration."""
    recipe, trainer = job.recipe, job.recipe.trainer
    every = -(-recipe.save_every_steps // sampled.steps) * sampled.steps
    if every != recipe.save_every_steps and process_state(recipe).is_main_process:
        print(  # noqa: T201 - the training's log
            f"a checkpoint every {every} steps, not {recipe.save_every_steps}: a round of replies "
            f"lasts {sampled.steps} steps",
            flush=True,
        )
    own: dict[str, Any] = {
        "reward_weights": list(job.method["rewards"].values()),
        "chat_template_kwargs": dict(job.template) or None,
        "remove_unused_columns": False,
        "save_steps": every,
        "per_device_eval_batch_size": trainer.get("num_generations", 8),
    }
    if job.order is not None:
        own["shuffle_dataset"] = False
    if trainer.get("use_vllm"):
        longest = recipe.max_length + int(trainer.get("max_completion_length", 512))
        own["vllm_max_model_length"] = trainer.get("vllm_max_model_length", longest)
        given = trainer.get("generation_kwargs", {})
        if isinstance(given, dict):  # TRL takes text too
            own["generation_kwargs"] = {"stop_token_ids": [end_token], **given}
    return own


def _check_number(questions: int, sampled: Round) -> None:
    """TRL leaves out the questions of an epoch that do not fill a round: all of them, if few."""
    if questions < sampled.questions:
        per_question = sampled.replies // sampled.questions
        raise TrainingError(
            f"{questions} questions are fewer than the {sampled.questions} of one generation batch "
            f"({sampled.replies} replies / {per_question} per question)",
            "lower `trainer.generation_batch_size`, or give it more questions",
        )


if __name__ == "__main__":
    sys.exit(exit_code_of(reinforce, sys.argv[1]))
