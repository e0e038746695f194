"""Model FLOPs utilization (MFU): the share of the GPUs' peak that the training's arithmetic uses.

The count follows PaLM (Chowdhery et al. 2022, appendix B). One token of a row with n tokens costs

    forward     2 N + 2 n A      N: parameters that the token passes, A: width of the attention
    backward    2 N + 4 n A      to propagate the gradient
                2 T              for the gradients of the T trained parameters among them

operations; the attention is causal, so a token attends to n / 2 others on average. N omits the
input embeddings, which are looked up, and counts only as many experts of a mixture as a token
takes. Recomputation (gradient checkpointing), padding and dropped work do not count. Reinforcement
learning generates each token once before it trains on it, and a reference model scores it if `beta`
is not 0, as in DPO: one forward pass each.
"""

import re
from dataclasses import dataclass

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


_GIBIBYTES: tuple[tuple[str, int], ...] = (
    ("GB200", 186),
    ("B200", 180),
    ("H200", 141),
    ("H100 NVL", 94),
    ("H100", 80),
    ("A100", 80),
    ("L40", 48),
    ("A10", 24),
    ("RTX 5090", 32),
    ("RTX 4090", 24),
)
"""Memory of GPUs whose name does not say it."""


def gpu_memory(device: str) -> int | None:
    """Bytes of memory of a GPU, by its name; None if unknown.

    Example:
        >>> [(gpu_memory(name) or 0) >> 30 for name in ("H100", "A100-SXM4-40GB", "24 GB", "T")]
        [80, 40, 24, 0]
    """
    written = re.search(r"(\d+) ?Gi?B", device)
    found = next((size for name, size in _GIBIBYTES if name in device), None)
    size = int(written[1]) if written else found
    return None if size is None else size << 30


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
