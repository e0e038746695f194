"""The doctor on GPUs: what nvidia-smi says."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mbt_cli.machine.asking import answer_of
from mbt_cli.machine.findings import Finding, absent, ok

_FIELDS = "index,name,memory.total,memory.used,driver_version"
_SECONDS = 20
_WITHOUT = "nothing to do: hosted and embedded models need no GPU"


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU; memory in MiB, null where the driver does not tell."""

    index: str
    name: str
    memory: int | None
    used: int | None
    driver: str


def gpu_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Each GPU, or why there is none."""
    if shutil.which("nvidia-smi", path=environment.get("PATH")) is None:
        yield absent("GPU", "driver", "no `nvidia-smi`", _WITHOUT)
        return
    command = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
    done = answer_of(command, environment, seconds=_SECONDS)
    if done is None:
        yield absent("GPU", "driver", "`nvidia-smi` does not answer", "nvidia-smi")
        return
    gpus = gpus_of(done.stdout)
    if done.returncode or not gpus:
        words = (done.stdout + done.stderr).strip().splitlines()
        yield absent("GPU", "driver", words[-1] if words else "shows no GPU", "nvidia-smi")
        return
    yield from (_finding(gpu) for gpu in gpus)
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        yield ok("GPU", "CUDA_VISIBLE_DEVICES", visible or "empty: no GPU is used")


def gpus_of(text: str) -> Sequence[GPU]:
    """What `nvidia-smi --query-gpu` printed, a GPU a line.

    Example:
        >>> gpus_of("0, NVIDIA H200, 143771, 4, 570.86.15")[0].memory
        143771
    """
    fields = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [
        GPU(index, name, _number(memory), _number(used), driver)
        for index, name, memory, used, driver in (row for row in fields if len(row) == 5)
    ]


def _finding(gpu: GPU) -> Finding:
    found = f"{gpu.name}, driver {gpu.driver}"
    if gpu.memory is not None and gpu.used is not None:
        free = (gpu.memory - gpu.used) / 1024
        found = f"{gpu.name}, {free:.0f} of {gpu.memory / 1024:.0f} GiB free, driver {gpu.driver}"
    return ok("GPU", gpu.index, found)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
