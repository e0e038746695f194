"""The settings that every training method shares: a file of presets/train/ plus a stage's own."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.flops import gpu_memory
from mbt_cli.core.plugin import AbsentByDefault, RunOnly, Settings, Variable

_SHARED = ("tp", "cp", "sp")
"""Tensor, context and sequence parallelism: their processes share the rows of a batch."""
_DIMENSIONS = ("dp_replicate", "dp_shard", *_SHARED)
"""All dimensions of accelerate's ParallelismConfig."""
_OTHERS: Mapping[str, str] = {"use_deepspeed": "DeepSpeed", "use_megatron_lm": "Megatron-LM"}
"""Flags of launchers that compute with roundings of their own."""
_DECIDED: Mapping[str, str] = {
    "gradient_accumulation_steps": "`recipe.batch_size`",
    "gradient_clipping": "`trainer.max_grad_norm`",
}
"""Flags for DeepSpeed that the recipe decides."""
HUB_KERNEL = r"^kernels-community/[\w.-]+(@[\w.-]+)?(:[\w.-]+)?$"
"""Kernels of the hub's own organization; others run code that nobody has reviewed."""
_HUB_PACKAGE = "kernels"
_ATTENTION_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "flash_attention_2": ("flash-attn", _HUB_PACKAGE),
    "flash_attention_3": (_HUB_PACKAGE, "flash-attn-3"),
    "flash_attention_4": ("flash-attn-4", _HUB_PACKAGE),
}
"""Attention to the packages of which it needs one, the easiest to install first; transformers takes
the hub's kernel where its own package is missing."""
_OPTIMIZER_PACKAGES: Mapping[str, str] = {
    r"galore_": "galore-torch",
    r"apollo_": "apollo-torch",
    r"schedule_free_": "schedulefree",
    r"(ada)?lomo$": "lomo-optim",
    r"grokadamw$": "grokadamw",
    r"stable_adamw$": "torch-optimi",
    r"adamw_torch_[48]bit$": "torchao",
    r"adamw_anyprecision$": "torchdistx",
    r"adamw_torch_xla$": "torch-xla",
    r"adamw_torch_npu_fused$": "torch-npu",
    r"adamw_(bnb_)?8bit$|paged_|ademamix|lion_|rmsprop_bnb": "bitsandbytes",
}
"""Beginnings of `trainer.optim` to the package of the optimizer (transformers 5.19); all others are
part of PyTorch and transformers."""


class Launch(Settings):
    """How the training process is started; changes results by rounding only.

    What does more than that enters the fingerprint: see `arithmetic`.
    """

    python: str | None = None
    """Python of an environment with `mbt-cli[train]`; by default the one that runs mbt."""
    accelerate: str | None = None
    """Name of a file in presets/accelerate/; by default one plain process."""
    processes: int | None = Field(default=None, ge=1)
    """Number of processes on all machines; by default that of the accelerate preset."""
    flags: dict[str, Json] = Field(default_factory=dict)
    """Flags of `accelerate launch`, merged into the preset's key by key."""
    gpu: str | None = None
    """The GPUs, such as `H100`, `A100 40GB` or `24 GB`: for the estimate of `mbt plan` alone. By
    default those of the machine that plans, or H100 if it has none."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Environment variables of the training process; secrets are refused: set them in the shell."""

    def parallelism(self, kind: str) -> int:
        """Size of a dimension of accelerate's ParallelismConfig, such as `cp`; 1 if unknown."""
        if not self.flags.get("use_parallelism_config"):
            return 1
        size = self.flags.get(f"parallelism_config_{kind}_size", 1)
        return size if isinstance(size, int) and size > 0 else 1

    def processes_per_batch(self) -> int:
        """Processes that compute the same rows together."""
        return math.prod(self.parallelism(kind) for kind in _SHARED)

    def grid(self) -> int:
        """Processes that accelerate's ParallelismConfig arranges; 1 if it leaves it to others."""
        return math.prod(self.parallelism(kind) for kind in _DIMENSIONS)

    def known_processes(self) -> int | None:
        """Number of processes; None if only the job knows it, as with `$MBT_PROCESSES`."""
        if self.accelerate is None:
            return 1
        processes = self.processes or self.flags.get("num_processes", 1)
        return processes if isinstance(processes, int) and processes > 0 else None

    def arithmetic(self) -> list[str]:
        """What changes results by more than rounding, for fingerprints; mostly nothing.

        DeepSpeed adds up and reduces gradients in bfloat16.
        """
        return [flag for flag in _OTHERS if self.flags.get(flag)]


class Tracking(Settings):
    """Experiment trackers, in addition to the log and the plot that every run writes."""

    wandb: Literal["off", "offline", "online"] = "off"
    """`online` needs WANDB_API_KEY; WANDB_MODE=offline in the environment overrides it."""
    project: str = "mbt"
    """Project on Weights & Biases."""
    group: str | None = None
    """Group on Weights & Biases; by default the study."""
    tags: list[str] | None = None
    """Tags on Weights & Biases; by default the cell's axes."""
    tensorboard: bool = False
    """Write TensorBoard files into the cell's `logs/tensorboard/`; needs `tensorboard`."""


class Kernels(Settings):
    """Faster implementations of the same arithmetic; results differ by rounding only."""

    attention: (
        Literal[
            "auto",
            "flash_attention_4",
            "flash_attention_3",
            "flash_attention_2",
            "flex_attention",
            "sdpa",
            "eager",
        ]
        | Annotated[str, Field(pattern=HUB_KERNEL)]
    ) = "auto"
    """`auto`: the fastest that is installed where the training runs and that the GPU and the model
    support: flash attention 3 on Hopper, 4 on later GPUs, 2 on Ampere and Ada, else SDPA. A name
    such as `kernels-community/flash-attn3` is a kernel of the Hugging Face hub."""
    liger: Literal["auto", "hub", "off"] = "auto"
    """`auto`: liger's layer kernels if the package is installed and there is a GPU. `hub`: those
    that the Hugging Face hub has for the model; needs `kernels`."""

    def packages(self) -> dict[str, tuple[str, ...]]:
        """Setting to the packages of which it needs one."""
        needed: dict[str, tuple[str, ...]] = {}
        if "/" in self.attention:
            needed["recipe.kernels.attention"] = (_HUB_PACKAGE,)
        elif self.attention in _ATTENTION_PACKAGES:
            needed["recipe.kernels.attention"] = _ATTENTION_PACKAGES[self.attention]
        if self.liger == "hub":
            needed["recipe.kernels.liger"] = (_HUB_PACKAGE,)
        return needed


ANY_BENCHMARK = "train"
"""In `validation.from`: questions of every benchmark of the data."""


class HeldOut(Settings):
    """`{ from = "train", share = 0.05 }`: some questions of the data are not trained on.

    They are drawn by the study's seed, and all their rows with them.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    source: str = Field(default=ANY_BENCHMARK, alias="from")
    """`train`: all that would be trained on; or the benchmark whose questions alone are held
    out."""
    share: float = Field(gt=0, lt=1)
    """Fraction of these questions."""
    limit: int | None = Field(default=500, ge=1)
    """Maximum number of questions; the others are trained on."""


class GeneratedScore(Settings):
    """The model answers held-out questions, and the benchmark's verifier scores the answers."""

    questions: int = Field(default=64, ge=1)
    """Number of held-out questions, drawn by the seed; all if there are fewer."""
    max_tokens: int = Field(default=512, ge=1)
    """Tokens of a reply; a longer one is cut and scores 0."""
    batch_size: Annotated[int, RunOnly] = Field(default=16, ge=1)
    """Questions that one device answers at once."""


class Evaluation(Settings):
    """What happens at each evaluation on held-out questions, in addition to their loss."""

    score: GeneratedScore | None = None
    """Score greedy answers to held-out questions; `score = {}` for the defaults."""
    patience: int | None = Field(default=None, ge=1)
    """Early stopping: the training ends after this many evaluations in a row without a better
    `trainer.metric_for_best_model`. By default it takes all its steps."""


class Recipe(Settings):
    """Everything that decides the result of a training, apart from the data and the model."""

    note: Annotated[str | None, RunOnly] = None
    """Comment for readers: the source of the settings, what has not been run."""
    method: str
    """Training method; some have settings of their own."""
    tuning: Literal["full", "lora", "qlora"]
    """All weights; a low-rank adapter; an adapter on weights in four bits."""
    dtype: Literal["bfloat16", "float32"]
    """Number type of the computation and of the checkpoint."""
    master_weights: Literal["float32", "bfloat16"] | None = None
    """Number type in which trained weights, their gradients and the optimizer's state are kept,
    under every launch. By default `dtype` for `tuning` full, float32 for lora and bfloat16 for
    qlora. float32 needs 16 bytes per trained parameter with AdamW, bfloat16 8; updates smaller
    than 1/512 of a weight are lost in bfloat16."""
    float32_matmul: Literal["highest", "high", "medium"] | None = None
    """Precision of products of float32 numbers, as PyTorch names it: `high` computes them in TF32
    on GPUs that support it, `medium` in bfloat16 on CPUs that support it. By default, PyTorch
    and `trainer.tf32` decide."""
    batch_size: int = Field(ge=1)
    """Examples, or completions of reinforcement learning, per optimizer step on all devices."""
    device_batch_size: Annotated[int, RunOnly] = Field(default=1, ge=1)
    """Examples that one device computes at once; gradient accumulation does the rest."""
    max_length: int = Field(ge=2)
    """Tokens of prompt and completion; of the prompt alone for reinforcement learning. Longer rows
    are dropped and counted, never cut."""
    trainer: dict[str, Json] = Field(default_factory=dict)
    """Fields of TRL's configuration of the method, such as SFTConfig."""
    lora: dict[str, Json] = Field(default_factory=dict)
    """Fields of PEFT's LoraConfig, for `tuning` lora and qlora."""
    validation: Annotated[HeldOut | None, AbsentByDefault] = None
    """Set by the stage's `validation`, if that is a share of the data."""
    evaluation: Annotated[Evaluation, AbsentByDefault] = Field(default_factory=Evaluation)
    """Generated score and early stopping; when to evaluate is `trainer.eval_strategy` and
    `trainer.eval_steps`, by default ten times in a training that has a `validation`."""
    save_every_steps: Annotated[int, RunOnly] = Field(default=50, ge=1)
    """Optimizer steps between two checkpoints to resume from."""
    kernels: Annotated[Kernels, RunOnly] = Field(default_factory=Kernels)
    """Attention and layer kernels."""
    tracking: Annotated[Tracking, RunOnly] = Field(default_factory=Tracking)
    """Weights & Biases and TensorBoard."""
    launch: Annotated[Launch, RunOnly] = Field(default_factory=Launch)
    """How the process is started."""

    @property
    def keeps_best(self) -> bool:
        """Whether the best of the evaluated models is kept, in place of the last one."""
        return bool(self.trainer.get("load_best_model_at_end"))

    @property
    def best_metric(self) -> str:
        """By which evaluations are compared: `loss` or `score`."""
        return str(self.trainer.get("metric_for_best_model") or "loss").removeprefix("eval_")

    @property
    def evaluation_counts(self) -> bool:
        """Whether evaluations decide the weights: which are kept, or how they are trained."""
        return bool(self.evaluation_uses())

    def evaluation_uses(self) -> list[str]:
        """Key paths of the settings by which evaluations decide the weights."""
        follows = self.trainer.get("lr_scheduler_type") == "reduce_lr_on_plateau"
        uses = {
            "trainer.load_best_model_at_end": self.keeps_best,
            "recipe.evaluation.patience": self.evaluation.patience is not None,
            "trainer.lr_scheduler_type": follows,
        }
        return [key for key, is_used in uses.items() if is_used]

    def trained_dtype(self) -> str:
        """Number type of the trained weights, their gradients and the optimizer's state."""
        return self.master_weights or self._default_trained_dtype()

    def _default_trained_dtype(self) -> str:
        # what TRL and PEFT do on one device, and what fingerprints without the field stand for
        return {"full": self.dtype, "lora": "float32", "qlora": "bfloat16"}[self.tuning]

    def spec(self) -> dict[str, Json]:
        """The settings for fingerprints, without those that fingerprints did not have before."""
        settings = dict(spec_of(self))
        settings.pop("master_weights")
        if self.trained_dtype() != self._default_trained_dtype():
            settings["master_weights"] = self.trained_dtype()
        if arithmetic := self.launch.arithmetic():
            settings["launch"] = list[Json](arithmetic)
        return settings

    def packages(self) -> dict[str, tuple[str, ...]]:
        """Setting to packages beyond those of the extra `train`, of which it needs one.

        The first is the easiest to install.
        """
        needed = self.kernels.packages()
        if self.tuning == "qlora":
            needed["recipe.tuning"] = ("bitsandbytes",)
        optimizer = str(self.trainer.get("optim", ""))
        for pattern, package in _OPTIMIZER_PACKAGES.items():
            if re.match(pattern, optimizer):
                needed["trainer.optim"] = (package,)
        if self.trainer.get("deepspeed"):
            needed["trainer.deepspeed"] = ("deepspeed",)
        if self.launch.flags.get("use_deepspeed"):
            needed["launch"] = ("deepspeed",)
        return needed

    def precision_problems(self) -> Iterator[tuple[str, str]]:
        """Number types that contradict each other: key path below the stage, and message."""
        key, trained = "recipe.master_weights", self.trained_dtype()
        if self.master_weights == "bfloat16" and self.dtype == "float32" and self.tuning != "qlora":
            yield key, 'is less precise than `dtype = "float32"`; set `dtype = "bfloat16"` too'
        is_mixed = self.tuning == "full" and (trained, self.dtype) == ("float32", "bfloat16")
        for name, wrong in (("bf16", False), ("fp16", True)):
            if is_mixed and self.trainer.get(name) is wrong:
                yield (
                    f"trainer.{name}",
                    f"`{str(wrong).lower()}`: float32 master weights compute in bfloat16 only with "
                    '`bf16 = true`; remove it, or set `recipe.dtype = "float32"`',
                )
        found = [name for flag, name in _OTHERS.items() if self.launch.flags.get(flag)]
        found += ["DeepSpeed"] if self.trainer.get("deepspeed") else []
        if found and trained == "bfloat16":
            yield key, f'{found[0]} keeps float32 master weights: set `master_weights = "float32"`'

    def launch_problems(self) -> Iterator[tuple[str, str]]:
        """Flags that cannot work, or that would change results: key path, and message."""
        flags, launch, where = self.launch.flags, self.launch, "launch.flags"
        if launch.gpu is not None and gpu_memory(launch.gpu) is None:
            yield "launch.gpu", f"`{launch.gpu}`: memory unknown; write it too, such as `H100 80GB`"
        for flag, owner in _DECIDED.items():
            if flag in flags:
                yield f"{where}.{flag}", f"is decided by {owner}; remove it"
        if flags.get("use_fsdp") and str(flags.get("fsdp_version", 1)) == "1":
            what = "FSDP 1 keeps weights in other number types than the recipe says; set it to 2"
            yield f"{where}.fsdp_version", what
        if flags.get("zero_stage") == 3 and flags.get("zero3_save_16bit_model") != "true":
            what = 'must be "true", or the trained weights of ZeRO stage 3 cannot be saved'
            yield f"{where}.zero3_save_16bit_model", what
        wanted = "fp16" if self.trainer.get("fp16") else "bf16"
        wanted = "no" if wanted == "bf16" and self.trainer.get("bf16") is False else wanted
        precision = flags.get("mixed_precision")
        if precision not in (None, "no", wanted):
            what = f"`{precision}`, and the recipe says `{wanted}`; remove it: the recipe decides"
            yield f"{where}.mixed_precision", what
        for name, wrong in (
            ("average_tokens_across_devices", False),
            ("dataloader_drop_last", True),
        ):
            if self.trainer.get(name) is wrong:
                what = f"`{str(wrong).lower()}`: the result would depend on the number of devices"
                yield f"trainer.{name}", what
        if "parallelism_config" in self.trainer:
            yield "trainer.parallelism_config", "is set by `launch.flags`"
        yield from self._parallelism_problems(where)
        processes, grid = launch.known_processes(), launch.grid()
        if processes is not None and grid not in (1, processes):
            what = f"{processes}, and the `parallelism_config` sizes multiply to {grid}"
            yield "launch.processes", what

    def _parallelism_problems(self, where: str) -> Iterator[tuple[str, str]]:
        flags, place = self.launch.flags, f"{where}.parallelism_config"
        sizes = [name for name in flags if name.startswith("parallelism_config_")]
        if not flags.get("use_parallelism_config"):
            if sizes:
                yield f"{where}.{min(sizes)}", "needs `use_parallelism_config = true`"
            return
        if not flags.get("use_fsdp"):
            yield f"{where}.use_parallelism_config", "needs `use_fsdp = true`"
        if self.launch.parallelism("tp") > 1:
            what = "is not supported, since models are loaded whole; use `dp_shard` and `cp`"
            yield f"{place}_tp_size", what
        if self.launch.parallelism("sp") > 1:
            what = "cannot be started, since it needs DeepSpeed, which accelerate's launcher does "
            yield f"{place}_sp_size", f"{what}not combine with this; use `cp`"
        if self.launch.parallelism("cp") > 1:
            yield from self._context_problems(f"{place}_cp_size")

    def _context_problems(self, where: str) -> Iterator[tuple[str, str]]:
        if self.trainer.get("packing"):
            yield where, "context parallelism cannot keep packed rows apart; set `packing = false`"
        if self.kernels.attention not in ("auto", "sdpa"):
            what = 'context parallelism computes attention with SDPA; set `attention = "auto"`'
            yield "recipe.kernels.attention", what


def accumulation(batch_size: int, device_batch_size: int, devices: int) -> int:
    """Batches that each device accumulates before an optimizer step.

    Args:
        batch_size: Rows of an optimizer step.
        device_batch_size: Rows that one device computes at once.
        devices: Devices with rows of their own; those that share rows count as one.

    Raises:
        ValueError: The batch does not divide; the message lists sizes that do.

    Example:
        >>> accumulation(128, 2, 4)
        16
    """
    at_once = device_batch_size * devices
    if batch_size % at_once == 0:
        return batch_size // at_once
    fitting = [n for n in range(1, batch_size + 1) if batch_size % (n * devices) == 0]
    sizes = ", ".join(str(n) for n in fitting)
    sizes = sizes or f"none, since {devices} devices do not divide {batch_size}"
    spread = "" if devices == 1 else f"{devices} devices x "
    raise ValueError(
        f"batch_size {batch_size} does not divide into {spread}device_batch_size "
        f"{device_batch_size}; valid device_batch_size: {sizes}"
    )


@dataclass(frozen=True, slots=True)
class Round:
    """The replies that reinforcement learning samples at once, and then trains on.

    Args:
        replies: On all devices.
        questions: Each has `num_generations` replies, a group.
        steps: Optimizer steps until a round ends; 1 if every step ends one.
    """

    replies: int
    questions: int
    steps: int


def generation_round(recipe: Recipe, devices: int) -> Round:
    """One round of a recipe of reinforcement learning.

    Its size is `generation_batch_size`, or `steps_per_generation` batches of all devices, or the
    batch of one optimizer step.

    Raises:
        ValueError: Something does not divide; the message has the arithmetic.
    """
    settings = recipe.trainer
    group = int(settings.get("num_generations", 8))
    size, parts = settings.get("generation_batch_size"), settings.get("steps_per_generation")
    if size is not None and parts is not None:
        raise ValueError("`generation_batch_size` and `steps_per_generation` exclude each other")
    at_once = recipe.device_batch_size * devices
    accumulated = accumulation(recipe.batch_size, recipe.device_batch_size, devices)
    replies = at_once * int(accumulated if parts is None else parts) if size is None else int(size)
    spread = f"device_batch_size {recipe.device_batch_size}"
    if devices > 1:
        spread = f"{devices} devices x {spread} = {at_once}"
    whole = math.lcm(at_once, group)
    for part, what in ((at_once, spread), (group, f"num_generations {group}")):
        if replies % part:
            raise ValueError(
                f"a generation batch of {replies} replies does not divide by {what}: "
                f"{replies} / {part} = {replies / part:.2f}; "
                f"{max(1, round(replies / whole)) * whole} replies would"
            )
    batches = replies // at_once * int(settings.get("num_iterations", 1))
    return Round(replies, replies // group, batches // math.gcd(batches, accumulated))
