"""How a model is trained: a preset of presets/train/ with what a stage lays on it."""

from typing import Annotated, Literal

from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.model import RunOnly, Settings


class Launch(Settings):
    """How the training process is started; never counts for results."""

    python: str | None = None
    """Python of an environment with mbt and its extra `train`; left out, the one mbt runs in."""
    accelerate: str | None = None
    """Name of a file in presets/accelerate/; left out, one plain process."""
    processes: int | None = Field(default=None, ge=1)
    """Processes on all machines together; left out, what the accelerate preset says."""
    flags: dict[str, Json] = Field(default_factory=dict)
    """More flags of `accelerate launch`, laid on the preset's key by key."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for the training process."""


class Tracking(Settings):
    """Where curves go beside the log and the picture that every run leaves."""

    wandb: Literal["off", "offline", "online"] = "off"
    """`online` needs WANDB_API_KEY; WANDB_MODE=offline in the environment wins over it."""
    project: str = "mbt"
    """Project on Weights & Biases."""
    group: str | None = None
    """Group there; left out, the study."""
    tags: list[str] | None = None
    """Tags there; left out, the cell's axes."""
    tensorboard: bool = False
    """Write TensorBoard files too, into the cell's `logs/tensorboard/`; needs `tensorboard`."""


class Kernels(Settings):
    """Faster code for the same arithmetic: changes results by rounding alone."""

    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """`auto`: flash attention 2 where it is installed and the GPU can, otherwise SDPA."""
    liger: Literal["auto", "off"] = "auto"
    """`auto`: liger's layer kernels where the package is installed and there is a GPU."""


class Recipe(Settings):
    """Everything that decides what comes out of a training, the data and the model apart."""

    note: Annotated[str | None, RunOnly] = None
    """For people: where the settings come from, what was not run by us."""
    method: Literal["sft", "grpo"]
    """Supervised fine-tuning, or reinforcement by rewards."""
    tuning: Literal["full", "lora", "qlora"]
    """All weights; a low-rank adapter; an adapter on weights in four bits."""
    dtype: Literal["bfloat16", "float32"]
    """Number type of the weights while they are trained, and in the checkpoint."""
    float32_matmul: Literal["highest", "high", "medium"] | None = None
    """Precision inside products of float32 numbers, in PyTorch's words: `high` computes them by
    TF32 on GPUs that have it, `medium` by bfloat16 on processors that have it. Left out, what
    PyTorch and `trainer.tf32` say."""
    batch_size: int = Field(ge=1)
    """Examples (GRPO: completions) of one optimizer step on all devices together."""
    device_batch_size: Annotated[int, RunOnly] = Field(default=1, ge=1)
    """Examples that one device computes at once; accumulation makes up the rest of the batch."""
    max_length: int = Field(ge=2)
    """Tokens of prompt and completion together (GRPO: of the prompt). Longer rows are left out
    and counted, never cut."""
    trainer: dict[str, Json] = Field(default_factory=dict)
    """Fields of TRL's SFTConfig or GRPOConfig."""
    lora: dict[str, Json] = Field(default_factory=dict)
    """Fields of PEFT's LoraConfig, for `tuning` lora and qlora."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """GRPO: reward to its weight."""
    reward_words: int = Field(default=0, ge=0)
    """GRPO: words beyond which the reward `length` is 0."""
    save_every_steps: Annotated[int, RunOnly] = Field(default=50, ge=1)
    """Optimizer steps between two checkpoints to resume from."""
    kernels: Annotated[Kernels, RunOnly] = Field(default_factory=Kernels)
    """Attention and layer kernels."""
    tracking: Annotated[Tracking, RunOnly] = Field(default_factory=Tracking)
    """Weights & Biases, TensorBoard."""
    launch: Annotated[Launch, RunOnly] = Field(default_factory=Launch)
    """How the process is started."""


def accumulation(batch_size: int, device_batch_size: int, devices: int) -> int:
    """Batches that each device adds up before an optimizer step.

    Raises:
        ValueError: The batch does not divide; the message names sizes that do.

    Example:
        >>> accumulation(128, 2, 4)
        16
    """
    together = device_batch_size * devices
    if batch_size % together == 0:
        return batch_size // together
    fits = [n for n in range(1, batch_size + 1) if batch_size % (n * devices) == 0]
    shown = ", ".join(str(n) for n in fits) or f"none: {devices} devices do not divide {batch_size}"
    spread = "" if devices == 1 else f"{devices} devices x "
    raise ValueError(
        f"batch_size {batch_size} does not divide into {spread}device_batch_size "
        f"{device_batch_size}; device_batch_size may be: {shown}"
    )
