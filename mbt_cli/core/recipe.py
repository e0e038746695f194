"""The settings that every training method shares: a file of presets/train/ plus a stage's own."""

from typing import Annotated, Literal

from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import RunOnly, Settings, Variable


class Launch(Settings):
    """How the training process is started; never changes results."""

    python: str | None = None
    """Python of an environment with `mbt-cli[train]`; by default the one that runs mbt."""
    accelerate: str | None = None
    """Name of a file in presets/accelerate/; by default one plain process."""
    processes: int | None = Field(default=None, ge=1)
    """Number of processes on all machines; by default that of the accelerate preset."""
    flags: dict[str, Json] = Field(default_factory=dict)
    """Flags of `accelerate launch`, merged into the preset's key by key."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Environment variables of the training process; secrets are refused: set them in the shell."""


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

    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """`auto`: flash attention 2 if it is installed and the GPU supports it, else SDPA."""
    liger: Literal["auto", "off"] = "auto"
    """`auto`: liger's layer kernels if the package is installed and there is a GPU."""


class Recipe(Settings):
    """Everything that decides the result of a training, apart from the data and the model."""

    note: Annotated[str | None, RunOnly] = None
    """Comment for readers: the source of the settings, what has not been run."""
    method: str
    """Training method; some have settings of their own."""
    tuning: Literal["full", "lora", "qlora"]
    """All weights; a low-rank adapter; an adapter on weights in four bits."""
    dtype: Literal["bfloat16", "float32"]
    """Number type of the weights during training and in the checkpoint."""
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
    save_every_steps: Annotated[int, RunOnly] = Field(default=50, ge=1)
    """Optimizer steps between two checkpoints to resume from."""
    kernels: Annotated[Kernels, RunOnly] = Field(default_factory=Kernels)
    """Attention and layer kernels."""
    tracking: Annotated[Tracking, RunOnly] = Field(default_factory=Tracking)
    """Weights & Biases and TensorBoard."""
    launch: Annotated[Launch, RunOnly] = Field(default_factory=Launch)
    """How the process is started."""


def accumulation(batch_size: int, device_batch_size: int, devices: int) -> int:
    """Batches that each device accumulates before an optimizer step.

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
