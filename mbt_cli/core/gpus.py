"""The GPUs at hand: those of this machine that a server started here may use.

Asked are nvidia-smi, then amd-smi and rocm-smi. CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and
HIP_VISIBLE_DEVICES choose among them as the drivers do; where none is set, Slurm's allocation does.
The script of a job with several nodes says in MBT_NODES over how many of them a server can run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import orjson

from mbt_cli.core.findings import answer_of

_SECONDS = 20
_NVIDIA_FOLDER = Path("/proc/driver/nvidia/gpus")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class GPUs:
    """Equal GPUs on each of some nodes.

    Args:
        count: GPUs of a node; None if unknown.
        memory_gib: Memory of the smallest of them; None if unknown.
        nodes: Nodes over which a server can run.
        source: How they are known, such as `nvidia-smi`.
    """

    count: int | None
    memory_gib: float | None = None
    nodes: int = 1
    source: str = ""

    def __str__(self) -> str:
        """Their number and memory in words, such as `8 GPUs of 79.6 GiB`."""
        size = "unknown memory" if self.memory_gib is None else f"{self.memory_gib:.4g} GiB"
        if self.count is None:
            return f"GPUs of {size}"
        nodes = f"{self.nodes} nodes with " if self.nodes > 1 else ""
        return f"{nodes}{self.count} GPU{'' if self.count == 1 else 's'} of {size}"


_SHOWN_SHARE = 0.99


def stated_gpus(count: int, memory_gb: float | None, nodes: int = 1) -> GPUs | None:
    """The GPUs that a launcher's preset states; None if it states none.

    An 80 GB GPU shows a little less than 80 GiB.
    """
    if not count:
        return None
    memory = None if memory_gb is None else memory_gb * _SHOWN_SHARE
    return GPUs(count, memory, nodes, "the preset")


@dataclass(frozen=True, slots=True)
class _Device:
    """One GPU as a driver names it; memory in MiB, None if the driver does not say."""

    index: str
    uuid: str
    memory: float | None


def gpus_at_hand(environment: Mapping[str, str]) -> GPUs | None:
    """The GPUs that a server started in this environment can use; None without any."""
    return _gpus_at_hand(tuple(sorted(environment.items())))


def nodes_of(environment: Mapping[str, str]) -> int:
    """Number of nodes over which a server can run; 1 outside a job with several."""
    return int(_number(environment.get("MBT_NODES", "")) or 1)


@lru_cache(maxsize=16)  # a driver may take a second to answer, and is asked for every model
def _gpus_at_hand(variables: tuple[tuple[str, str], ...]) -> GPUs | None:
    environment = dict(variables)
    # HIP counts within what ROCR leaves, and reads CUDA's variable too
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
    for source, list_devices in (("nvidia-smi", _nvidia), ("amd-smi", _amd), ("rocm-smi", _rocm)):
        devices: Sequence[_Device] = list_devices(environment)
        if not devices:
            continue
        is_nvidia = source == "nvidia-smi"
        for variable in ("CUDA_VISIBLE_DEVICES",) if is_nvidia else ("ROCR_VISIBLE_DEVICES", hip):
            if (value := environment.get(variable)) is not None:
                devices = _chosen(devices, value)
        if not any(variable in environment for variable in _VISIBLE):
            given = _number(environment.get("SLURM_GPUS_ON_NODE", ""))
            devices = devices if given is None else devices[: int(given)]
        return _of(devices, environment, source)
    if (value := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return _of(_chosen((), value), environment, "CUDA_VISIBLE_DEVICES")
    found = [_Device(path.name, "", None) for path in _NVIDIA_FOLDER.glob("*")]
    return _of(found, environment, str(_NVIDIA_FOLDER))


def _of(devices: Sequence[_Device], environment: Mapping[str, str], source: str) -> GPUs | None:
    if not devices:
        return None
    sizes = [device.memory for device in devices if device.memory is not None]
    memory = min(sizes) / _MIB_PER_GIB if len(sizes) == len(devices) else None
    return GPUs(len(devices), memory, nodes_of(environment), source)


def _chosen(devices: Sequence[_Device], visible: str) -> Sequence[_Device]:
    """The devices that a variable names by index or UUID, up to the first that is not one.

    A name that the driver does not list counts as a GPU of unknown memory: a part of one (MIG), or
    an index of the whole node within a container that shows only its own.
    """
    found = []
    for name in (part.strip() for part in visible.split(",")):
        if name in ("", "-1"):
            break
        listed = (d for d in devices if name == d.index or (d.uuid and d.uuid.startswith(name)))
        sizes = {device.memory for device in devices}
        memory = sizes.pop() if len(sizes) == 1 and not name.startswith("MIG") else None
        found.append(next(listed, _Device(name, name, memory)))
    return found


def _nvidia(environment: Mapping[str, str]) -> Sequence[_Device]:
    query = ("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
    text = _answer(("nvidia-smi", *query), environment)
    rows = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return [_Device(row[0], row[1], _number(row[2])) for row in rows if len(row) == 3]


def _amd(environment: Mapping[str, str]) -> Sequence[_Device]:
    """`amd-smi` lists its GPUs, in newer versions below `gpu_data`."""
    found = _json(_answer(("amd-smi", "static", "--vram", "--json"), environment))
    rows = found.get("gpu_data") if isinstance(found, dict) else found
    devices = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and "gpu" in row:
            vram = row.get("vram")
            size = vram.get("size") if isinstance(vram, dict) else None
            value = size.get("value") if isinstance(size, dict) else size
            devices.append(_Device(str(row["gpu"]), str(row.get("uuid", "")), _number(str(value))))
    return devices


def _rocm(environment: Mapping[str, str]) -> Sequence[_Device]:
    found = _json(_answer(("rocm-smi", "--showmeminfo", "vram", "--json"), environment))
    devices = []
    for name, row in found.items() if isinstance(found, dict) else ():
        if name.startswith("card") and isinstance(row, dict):
            size = _number(str(row.get("VRAM Total Memory (B)", "")))
            devices.append(_Device(name[4:], "", None if size is None else size / 2**20))
    return devices


def _answer(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = answer_of(command, environment, seconds=_SECONDS)
    return "" if done is None or done.returncode else done.stdout


def _json(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _number(text: str) -> float | None:
    found = re.match(r"\s*(\d+(?:\.\d+)?)", text)
    return float(found[1]) if found else None
