"""How much of a GPU's arithmetic a training uses."""

# operations a parameter and token; attention itself is left out
_THROUGH = 4  # forward 2, and 2 to pass the gradient back
_TRAINED = 2  # for the gradient of a parameter that is trained
_PEAK_BFLOAT16: tuple[tuple[str, float], ...] = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("A10", 125e12),
    ("RTX 4090", 165e12),
)
"""Dense bfloat16 operations a second, from the makers' data sheets."""


def peak_flops(device: str | None) -> float | None:
    """Most operations a second that a GPU can do, None for an unknown one.

    Example:
        >>> peak_flops("NVIDIA H100 80GB HBM3")
        989000000000000.0
    """
    return next((peak for name, peak in _PEAK_BFLOAT16 if device and name in device), None)


def model_flops_utilization(
    tokens_per_second: float | None,
    parameters: int,
    trained_parameters: int,
    peak: float | None,
    devices: int,
) -> float | None:
    """Share of the peak that training needs: 6 operations a token for each trained parameter.

    A parameter that is frozen, as all are below an adapter, needs 4: it has no gradient itself.

    Example:
        >>> model_flops_utilization(1e4, 10**9, 10**9, 1e15, 1)
        0.06
        >>> model_flops_utilization(1e4, 10**9, 0, 1e15, 1)
        0.04
    """
    if tokens_per_second is None or peak is None:
        return None
    operations = _THROUGH * parameters + _TRAINED * trained_parameters
    return operations * tokens_per_second / (peak * devices)
