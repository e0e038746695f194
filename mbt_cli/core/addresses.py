"""Addresses of cells, and the patterns of `--only` that they match."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

STEP = "step"
"""The axis of the checkpoints of a training, and of what is measured on them."""


def axes_of(address: str) -> dict[str, str]:
    """Axis to value of an address.

    Example:
        >>> axes_of("base/benchmark=tiny/model=a=b")
        {'benchmark': 'tiny', 'model': 'a=b'}
    """
    pairs = (part.partition("=") for part in address.split("/")[1:])
    return {axis: value for axis, _, value in pairs}


def short_names(addresses: Sequence[str]) -> list[str]:
    """Short, distinct names of addresses: the stage if it differs, and the axis values that differ.

    Example:
        >>> short_names(["sft/model=a/variant=x", "sft/model=a/variant=y"])
        ['x', 'y']
        >>> short_names(["sft/model=a"])
        ['sft']
    """
    parts = [{"": a.partition("/")[0], **axes_of(a)} for a in addresses]
    keys = dict.fromkeys(key for part in parts for key in part)
    differing = [key for key in keys if len({part.get(key) for part in parts}) > 1] or [""]
    return [" ".join(part[key] for key in differing if key in part) for part in parts]


def matches(pattern: str, address: str) -> bool:
    """Whether an address matches: axes in any order; missing axes and a bare `*` match all.

    Example:
        >>> matches("*/*/model=qwen*", "base/benchmark=b/model=qwen3")
        True
        >>> matches("base/model=qwen*", "base/benchmark=b/model=qwen3")
        True
        >>> matches("base/model=qwen", "base/benchmark=b/model=qwen3")
        False
    """
    stage, *parts = pattern.strip("/").split("/")
    if not fnmatchcase(address.partition("/")[0], stage):
        return False
    axes = axes_of(address)
    for part in (part for part in parts if part.strip("*")):
        axis, _, glob = part.partition("=")
        if axis not in axes or not fnmatchcase(axes[axis], glob):
            return False
    return True
