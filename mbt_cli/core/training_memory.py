"""Estimate of the memory that a training takes on each GPU, from the model's config.json.

With P parameters, T of them trained, E of these in embeddings and head, in GPU memory:

    weights       full: w P; lora: d P + w T; qlora: 0.52 (P - E) + 2 E + w T bytes
    gradients     w T
    optimizer     m T
    copies        2 P, for full tuning in float32 that computes in bfloat16
    DDP buckets   w T, with several processes that shard nothing
    gathered      of FSDP: two layers, embeddings and head, with their gradients if trained
    reference     d P, for reinforcement learning of all weights with `beta`; w P for pairs of
                  replies (DPO) and all weights, without `precompute_ref_log_probs`
    activations   per row of n tokens (two rows a pair), d n h for each layer (its input) and twice
                  one layer whole with gradient checkpointing, else every layer whole
    logits        8 V for each of at most 1,024 tokens: TRL's loss is computed in pieces
    sampling      vLLM's share of the GPU; or the keys and values of the replies of a round
    reserve       1.5 GiB for CUDA and its libraries

w are the bytes of `Recipe.trained_dtype`, d those of `dtype`, m those of the optimizer's moments.
One layer of a token takes d (4 h + 3 A + 3 K + 4 F) + 16 h bytes: h is the hidden size, A the width
of queries, K that of keys, F the width of the layer's MLP (of the experts that a token takes); the
last part is the norms' float32. FSDP and ZeRO divide what they shard by the processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mbt_cli.core.flops import TokenCost
from mbt_cli.core.recipe import Recipe

_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
_FOUR_BITS = 0.52
"""Bytes of a weight in NF4 with its quantized scales."""
_LOGIT_TOKENS = 1024
_LOGIT_BYTES = 8
RESERVE = 3 << 29
"""Bytes that CUDA and its libraries take on a GPU."""
_PARTITIONED: Mapping[str, int] = {"optimizer": 1, "gradients": 2, "weights": 3}
"""What DeepSpeed divides by the processes, and from which `zero_stage` on."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only model.

    Args:
        parameters: All of them.
        embeddings: Those of embeddings and head.
        layers: Number of layers.
        hidden: Hidden size (h).
        queries: Heads times their size (A).
        keys: Heads of the keys times their size (K).
        mlp: Width of the MLP that a token takes (F).
        vocabulary: Number of tokens (V).
        active: Parameters that a token passes, without the input embeddings.
    """

    parameters: int
    embeddings: int
    layers: int
    hidden: int
    queries: int
    keys: int
    mlp: int
    vocabulary: int
    active: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], parameters: int | None = None) -> "ModelShape":
        """The shape by a config.json.

        Args:
            config: The parsed file.
            parameters: Their number, if it is known exactly.

        Raises:
            KeyError, TypeError, ValueError: The config lacks a size.
        """
        text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
        hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
        heads, vocabulary = int(text["num_attention_heads"]), int(text["vocab_size"])
        size = int(text.get("head_dim") or hidden // heads)
        queries, keys = heads * size, int(text.get("num_key_value_heads") or heads) * size
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        experts = next((int(text[name]) for name in names if text.get(name)), 0)
        width = int(text.get("moe_intermediate_size") or 0) if experts else 0
        width = width or int(text["intermediate_size"])
        shared = int(text.get("shared_expert_intermediate_size") or 0)
        shared += int(text.get("n_shared_experts") or 0) * width
        taken = int(text.get("num_experts_per_tok") or 1) if experts else 1
        attention = hidden * (2 * queries + 2 * keys)
        router = hidden * experts
        layer = attention + router + 3 * hidden * (max(experts, 1) * width + shared) + 2 * hidden
        passed = attention + router + 3 * hidden * (taken * width + shared) + 2 * hidden
        matrices = 1 if text.get("tie_word_embeddings", True) else 2
        embeddings = matrices * vocabulary * hidden
        counted = layers * layer + hidden + embeddings
        return cls(
            parameters=parameters or counted,
            embeddings=embeddings,
            layers=layers,
            hidden=hidden,
            queries=queries,
            keys=keys,
            mlp=taken * width + shared,
            vocabulary=vocabulary,
            active=layers * passed + hidden + vocabulary * hidden,
        )

    @property
    def block(self) -> float:
        """Parameters of one layer."""
        return (self.parameters - self.embeddings) / self.layers

    def trained(self, recipe: Recipe) -> int:
        """Parameters that a recipe trains; adapters of experts are not counted."""
        if recipe.tuning == "full":
            return self.parameters
        rank = recipe.lora.get("r", 8)
        sides = {
            "q_proj": self.hidden + self.queries,
            "k_proj": self.hidden + self.keys,
            "v_proj": self.hidden + self.keys,
            "o_proj": self.queries + self.hidden,
            **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.hidden + self.mlp),
        }
        wanted = recipe.lora.get("target_modules")
        chosen = [n for name, n in sides.items() if not isinstance(wanted, list) or name in wanted]
        return int(rank if isinstance(rank, int) else 8) * sum(chosen) * self.layers

    def cost(self, recipe: Recipe) -> TokenCost:
        """What one token costs to train."""
        trained = self.active if recipe.tuning == "full" else self.trained(recipe)
        return TokenCost(self.active, trained, ((self.queries, None),) * self.layers)


def memory_parts(
    shape: ModelShape,
    recipe: Recipe,
    *,
    processes: int,
    length: int,
    gpu: int | None,
    samples: bool = False,
    pairs: bool = False,
) -> dict[str, float]:
    """Bytes of each part on one GPU, or in one process without GPUs; see the top of this file.

    Args:
        shape: The model.
        recipe: How it is trained.
        processes: Number of processes, one for each GPU.
        length: Tokens of a row, with the reply that reinforcement learning samples.
        gpu: Bytes of the GPU; None without one.
        samples: Whether it samples the replies that it trains on.
        pairs: Whether a row is a pair of replies, each with the prompt.
    """
    parameters, trained = shape.parameters, shape.trained(recipe)
    kept, computed = _BYTES[recipe.trained_dtype()], _BYTES[recipe.dtype]
    divisors = _divisors(recipe, processes)
    is_full, is_fsdp = recipe.tuning == "full", bool(recipe.launch.flags.get("use_fsdp"))
    if is_full:
        weights = float(kept * parameters)
    elif recipe.tuning == "lora":
        weights = computed * parameters + kept * trained
    else:
        dense = shape.embeddings
        weights = _FOUR_BITS * (parameters - dense) + 2 * dense + kept * trained
    parts = {
        "weights": weights / divisors["weights"],
        "gradients": kept * trained / divisors["gradients"],
        "optimizer": _moments(recipe, kept) * trained / divisors["optimizer"],
    }
    if is_full and kept > computed:
        parts["copies"] = 0.0 if is_fsdp else computed * parameters / divisors["weights"]
    if processes > 1 and max(divisors.values()) == 1:
        parts["DDP buckets"] = kept * trained
    if is_fsdp:
        gathered = 2 * shape.block + shape.embeddings
        parts["gathered"] = (computed + (kept if is_full else 0)) * gathered
    settings = recipe.trainer
    if samples and is_full and settings.get("beta"):
        parts["reference"] = computed * parameters / divisors["weights"]
    if pairs and is_full and not settings.get("precompute_ref_log_probs"):
        parts["reference"] = kept * parameters / divisors["weights"]
    rows = recipe.device_batch_size * (2 if pairs else 1)
    parts["activations"] = rows * _activations(shape, recipe, length, computed)
    tokens = min(rows * length, _LOGIT_TOKENS)
    parts["logits"] = tokens * shape.vocabulary * _LOGIT_BYTES
    if samples:
        parts["sampling"] = _sampling(shape, recipe, processes, length, computed, gpu)
    if gpu is not None:
        parts["reserve"] = RESERVE
    return {name: size for name, size in parts.items() if size}


def _divisors(recipe: Recipe, processes: int) -> dict[str, int]:
    """By how many processes weights, gradients and optimizer are divided."""
    flags = recipe.launch.flags
    if flags.get("use_fsdp"):
        return dict.fromkeys(_PARTITIONED, processes // recipe.launch.parallelism("dp_replicate"))
    stage = flags.get("zero_stage", 2) if flags.get("use_deepspeed") else 0
    stage = stage if isinstance(stage, int) else 2
    return {name: processes if stage >= least else 1 for name, least in _PARTITIONED.items()}


def _moments(recipe: Recipe, kept: int) -> float:
    """Bytes of the optimizer's state for each trained parameter."""
    name = str(recipe.trainer.get("optim", "adamw"))
    if "8bit" in name:
        return 2.0
    if name == "sgd" or name.startswith("adafactor"):
        return 0.0
    return kept if name.startswith(("lion", "rmsprop", "adagrad")) else 2 * kept


def _activations(shape: ModelShape, recipe: Recipe, length: int, computed: int) -> float:
    """Bytes of one row."""
    widths = 4 * shape.hidden + 3 * shape.queries + 3 * shape.keys + 4 * shape.mlp
    layer = computed * widths + 16 * shape.hidden
    tokens = length / recipe.launch.processes_per_batch()
    if recipe.trainer.get("gradient_checkpointing", True):  # TRL's default
        return tokens * (shape.layers * computed * shape.hidden + 2 * layer)
    return float(tokens * shape.layers * layer)


def _sampling(
    shape: ModelShape, recipe: Recipe, processes: int, length: int, computed: int, gpu: int | None
) -> float:
    settings = recipe.trainer
    if settings.get("use_vllm"):
        share = settings.get("vllm_gpu_memory_utilization", 0.3)
        is_elsewhere = settings.get("vllm_mode") == "server" or gpu is None
        return 0.0 if is_elsewhere or not isinstance(share, int | float) else share * (gpu or 0)
    round_size = settings.get("generation_batch_size")
    replies = round_size if isinstance(round_size, int) else recipe.batch_size
    return replies / processes * length * shape.layers * 2 * shape.keys * computed


def longest_row(
    shape: ModelShape,
    recipe: Recipe,
    *,
    processes: int,
    gpu: int,
    usable: float,
    most: int,
    samples: bool = False,
    pairs: bool = False,
) -> int:
    """Tokens of the longest row that fits, at most `most`; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        parts = memory_parts(
            *(shape, recipe),
            processes=processes,
            length=middle,
            gpu=gpu,
            samples=samples,
            pairs=pairs,
        )
        low, high = (middle, high) if sum(parts.values()) <= usable * gpu else (low, middle - 1)
    return low
