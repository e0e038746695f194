"""Model FLOPs utilization (MFU): the share of the GPUs' peak that the training's arithmetic uses.

The count follows PaLM (Chowdhery et al. 2022, appendix B). One token of a row with n tokens costs

    forward     2 N + 2 n A      N: parameters that the token passes, A: width of the attention
    backward    2 N + 4 n A      to propagate the gradient
                2 T              for the gradients of the T trained parameters among them

operations; the attention is causal, so a token attends to n / 2 others on average. N omits the
input embeddings, which are looked up, and counts only as many experts of a mixture as a token
takes. Recomputation (gradient checkpointing), padding and dropped work do not count. Reinforcement
learning generates each token once before it trains on it, and scores it with the reference model
if `beta` is not 0: one forward pass each.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

_PEAK_BFLOAT16: tuple[tuple[str, float], ...] = (
    ("GB200", 2500e12),
    ("B200", 2250e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("RTX 5090", 209e12),
    ("RTX 4090", 165e12),
)
"""Dense bfloat16 operations per second, from the vendors' data sheets; the first name that the
device's name contains."""


def peak_flops(device: str | None) -> float | None:
    """Peak operations per second of a GPU; None for an unknown one.

    Example:
        >>> peak_flops("NVIDIA H100 80GB HBM3")
        989000000000000.0
        >>> peak_flops("NVIDIA H100 NVL")
        835000000000000.0
    """
    return next((peak for name, peak in _PEAK_BFLOAT16 if device and name in device), None)


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What a model computes per token.

    Args:
        active: Parameters that a token passes (N).
        trained: Those of them that are trained (T).
        attention: For each layer with attention, its heads times their size, and its window in
            tokens if it has one. The widths add up to A.
    """

    active: float
    trained: float
    attention: tuple[tuple[int, int | None], ...]

    def operations(self, length: float, *, more_passes: int = 0) -> float:
        """Operations to train on one token of a row with `length` tokens.

        Args:
            length: Tokens of the row.
            more_passes: Forward passes besides that of the training step.

        Example:
            >>> TokenCost(1e9, 1e9, ((2048, None),) * 16).operations(0)
            6000000000.0
            >>> TokenCost(1e9, 1e9, ((2048, None),) * 16).operations(10_000)
            7966080000.0
        """
        seen = sum(width * min(length, window or length) for width, window in self.attention)
        forward = 2 * self.active + 2 * seen
        return (1 + more_passes) * forward + 2 * self.active + 4 * seen + 2 * self.trained


def token_cost(model: Any) -> TokenCost:
    """The cost per token of a causal language model that is not yet sharded."""
    config = model.config.get_text_config()
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    taken = getattr(config, "num_experts_per_tok", None)
    share = taken / experts if experts and taken else 1.0
    looked_up = model.get_input_embeddings()
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is looked_up.weight
    embeddings = set() if is_tied else {id(looked_up.weight)}
    active = trained = 0.0
    for name, parameter in model.named_parameters():
        if id(parameter) in embeddings:
            continue
        number = _size(parameter) * (share if ".experts." in name else 1.0)
        active += number
        trained += number if parameter.requires_grad else 0.0
    return TokenCost(active, trained, tuple(_attention_layers(config)))


def _size(parameter: nn.Parameter) -> int:
    """Numbers in a parameter; those in four bits are packed in pairs."""
    packed = getattr(parameter, "quant_state", None)
    return int(packed.shape.numel()) if packed is not None else parameter.numel()


def _attention_layers(config: Any) -> list[tuple[int, int | None]]:
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    window = getattr(config, "sliding_window", None)
    return [
        (width, window if kind == "sliding_attention" else None)
        for kind in kinds
        if kind in ("full_attention", "sliding_attention")
    ]


def model_flops_utilization(
    tokens_per_second: float | None, operations: float, peak: float | None, devices: int
) -> float | None:
    """Share of the peak; None where speed or peak is unknown.

    Args:
        tokens_per_second: On all devices together.
        operations: Operations per token.
        peak: Peak operations per second of one device.
        devices: Their number.

    Example:
        >>> model_flops_utilization(1e4, 6e9, 1e15, 1)
        0.06
    """
    if tokens_per_second is None or peak is None:
        return None
    return operations * tokens_per_second / (peak * devices)
