"""Settings of TRL, PEFT and accelerate, listed for the versions that mbt supports.

`known_keys.json` is written by `.ci/list_training_keys.py`, so that `mbt check` needs no torch.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.core.names import nearest

_TYPES: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "boolean": ("true or false", bool),
    "integer": ("a whole number", int),
    "number": ("a number", (int, float)),
    "string": ("text", str),
    "array": ("an array", list),
    "table": ("a table", dict),
}
"""Name of a type to its description and to the Python types that TOML gives."""
_ALSO = {
    "fsdp": "boolean",
    "scale_rewards": "boolean",
    "lora_alpha": "number",
    "loss_type": "string",
}
"""Fields that accept more than their annotation says."""
_POSITIVE = frozenset(
    {
        *("learning_rate", "num_train_epochs", "num_generations", "max_completion_length", "r"),
        *("generation_batch_size", "steps_per_generation", "num_iterations"),
        *("vllm_tensor_parallel_size", "ddp_timeout"),
    }
)
_SET_BY_MBT = {
    "output_dir": "the cell's folder",
    "logging_dir": "the cell's folder",
    "per_device_train_batch_size": "`recipe.device_batch_size`",
    "gradient_accumulation_steps": "`recipe.batch_size`",
    "max_length": "`recipe.max_length`",
    "report_to": "`tracking`",
    "run_name": "the cell's address",
    "save_steps": "`recipe.save_every_steps`",
    "save_strategy": "`recipe.save_every_steps`",
    "reward_weights": "`recipe.rewards`",
    "use_liger_kernel": "`recipe.kernels.liger`",
    "completion_only_loss": "the completion mask",
    "assistant_only_loss": "the completion mask",
    "chat_template_path": "the model's own chat template",
    "resume_from_checkpoint": "mbt, which resumes automatically",
    "push_to_hub": "`mbt export`",
    "hub_token": "HF_TOKEN in the environment",
    "task_type": "mbt, which trains causal language models",
    "greater_is_better": "`trainer.metric_for_best_model`: a lower loss, a higher score",
    "eval_packing": "mbt, which never packs held-out rows",
}
"""Fields of TRL and PEFT that mbt sets, with the setting that decides them."""

KEEPS_WEIGHTS = frozenset(
    {
        # what is logged, and where
        *("logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter"),
        *("log_level", "log_level_replica", "log_on_each_node", "include_num_input_tokens_seen"),
        *("log_completions", "log_completions_hub_repo", "log_multimodal", "log_unique_prompts"),
        *("num_completions_to_print", "skip_memory_metrics", "disable_tqdm", "project"),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        # evaluations and uploads, which mbt does itself
        *("eval_steps", "eval_delay", "eval_accumulation_steps", "eval_do_concat_batches"),
        *("per_device_eval_batch_size", "prediction_loss_only", "include_for_metrics"),
        *("batch_eval_metrics", "save_total_limit", "save_on_each_node", "hub_model_id"),
        *("hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"),
        # how this machine does the same work
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
        *("torch_empty_cache_steps", "ddp_timeout"),
        *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"),
        "vllm_group_port",
    }
)
"""Fields of TRL's configurations that never change the trained weights."""


@cache
def known_keys() -> Mapping[str, Any]:
    """The whole list.

    `trainer` maps a method to the fields of its TRL configuration, `lora` and `launch` are the
    fields of PEFT and the flags of accelerate, each with its types; `choices` holds the values of
    fields with a fixed set; `packages` the versions.
    """
    text = (resources.files("mbt_cli") / "trainers" / "known_keys.json").read_bytes()
    keys: Mapping[str, Any] = orjson.loads(text)
    return keys


_OTHER_NAMES = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "warmup": "warmup_steps",
    "scheduler": "lr_scheduler_type",
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
}
"""What other programs call a setting."""
_OF_ASYNC_GRPO = frozenset(
    {"max_staleness", "max_inflight_tasks", "queue_maxsize", "weight_sync_steps", "token_budget"}
)


def wrong_setting(table: str, key: str, value: Json, known: Mapping[str, str]) -> str | None:
    """The problem of one setting of a train stage; None if it is valid.

    Args:
        table: `trainer`, `lora` or `launch.flags`.
        key: The setting.
        value: Its value in the manifest.
        known: Every setting of the table, with its types.

    Example:
        >>> wrong_setting("trainer", "learning_rate", "high", {"learning_rate": "number"})
        '`high`: should be a number'
        >>> wrong_setting("lora", "r", [8, 16], {"r": "integer"})
        '`[8, 16]`: should be a whole number; for one training each: `matrix = { lora.r = [...] }`'
        >>> wrong_setting("trainer", "learning_rate", 1, {"learning_rate": "number"})
    """
    if key in _SET_BY_MBT:
        return f"is set by {_SET_BY_MBT[key]}"
    if key not in known:
        package = {"trainer": "trl", "lora": "peft"}.get(table, "accelerate")
        version = known_keys()["packages"][package]
        if key in _OF_ASYNC_GRPO:
            what = "is of TRL's experimental AsyncGRPOTrainer, which mbt does not run"
            return f"{what}: `mbt help training`"
        meant = _OTHER_NAMES.get(key)
        near = f"did you mean `{meant}`?" if meant in known else nearest(key, known)
        return f"{package} {version} has no such field; {near}"
    if table.startswith("launch"):
        return None
    problem = _wrong_value(key, known[key], value)
    if (
        problem
        and isinstance(value, list)
        and not any(_wrong_value(key, known[key], v) for v in value)
    ):
        problem += f"; for one training each: `matrix = {{ {table}.{key} = [...] }}`"
    return problem


def _wrong_value(field: str, types: str, value: Json) -> str | None:
    wanted = [*types.split("|"), *_ALSO.get(field, "").split()]
    if "any" in wanted:
        return None
    if not any(_is_of(name, value) for name in wanted):
        words = " or ".join(_TYPES[name][0] for name in wanted)
        return f"`{value}`: should be {words}"
    if field in _POSITIVE and isinstance(value, int | float) and value <= 0:
        return f"`{value}`: should be above 0"
    choices = known_keys()["choices"].get(field)
    if choices is None or value in choices:
        return None
    return f"`{value}` is not a valid value; {nearest(str(value), choices)}"


def _is_of(name: str, value: Json) -> bool:
    if isinstance(value, bool):  # a bool is an int in Python
        return name == "boolean"
    return isinstance(value, _TYPES[name][1])
