"""The doctor on software: Python, mbt itself, its extras, vLLM, Slurm."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mbt_cli.machine.asking import answer_of
from mbt_cli.machine.findings import Finding, absent, broken, ok

_OLDEST = (3, 11)
_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part of mbt.

    Args:
        packages: What it installs, as pyproject.toml has it.
        purpose: Who wants it.
    """

    packages: tuple[str, ...]
    purpose: str


EXTRAS: Mapping[str, Extra] = {
    "embedded": Extra(("xllamacpp",), "the embedded model and GGUF files"),
    "math": Extra(("math-verify",), "comparing math answers in other forms"),
    "train": Extra(
        (
            *("torch", "transformers", "trl", "peft", "accelerate", "datasets", "gguf"),
            *("matplotlib", "wandb"),
        ),
        "training",
    ),
    "vllm": Extra(("vllm",), "serving models on GPUs"),
    "gpu": Extra(("flash-attn", "liger-kernel"), "faster training on GPUs"),
}


def pip_line(extra: str) -> str:
    """How an extra is installed."""
    return f'pip install "mbt-cli[{extra}]"'


def installed(package: str) -> str | None:
    """The version of a package in this Python; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def python_findings() -> Iterator[Finding]:
    """This Python, and mbt in it."""
    running = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < _OLDEST:
        yield broken("Python", "version", running, "install Python 3.11 or newer")
    else:
        yield ok("Python", "version", f"{running} at {sys.executable}")
    own = installed("mbt-cli")
    if own is None:
        yield absent("Python", "mbt-cli", "runs without being installed", "pip install mbt-cli")
    else:
        yield ok("Python", "mbt-cli", own)


def missing_packages(extra: str) -> list[str]:
    """Packages of an extra that this Python does not have."""
    return [name for name in EXTRAS[extra].packages if installed(name) is None]


def extra_findings() -> Iterator[Finding]:
    """Each extra, with the line that installs it."""
    for name, extra in EXTRAS.items():
        missing = missing_packages(name)
        here = [f"{p} {installed(p)}" for p in extra.packages if p not in missing]
        if not missing:
            yield ok("extras", name, f"{', '.join(here)}: for {extra.purpose}")
            continue
        what = "not installed" if not here else f"lacks {', '.join(missing)}"
        yield absent("extras", name, f"{what}: for {extra.purpose}", pip_line(name))


def vllm_finding(environment: Mapping[str, str]) -> Finding:
    """The command `vllm`, here or in another environment."""
    path = shutil.which("vllm", path=environment.get("PATH"))
    beside = Path(sys.executable).parent / "vllm"
    if path is None and beside.is_file():
        path = str(beside)
    if path is None:
        what = "no command `vllm`"
        do = f"{pip_line('vllm')}, or name another environment's by `place.executable`"
        return absent("serving", "vLLM", what, do)
    own = installed("vllm")
    return ok("serving", "vLLM", f"{own} at {path}" if own else path)


def slurm_finding(environment: Mapping[str, str]) -> Finding:
    """Slurm's commands, and whether its controller answers."""
    if shutil.which("sbatch", path=environment.get("PATH")) is None:
        return absent("Slurm", "sbatch", "not here", "run `mbt submit --slurm` on a login node")
    command = ("sinfo", "--noheader", "--format=%P")
    answer = answer_of(command, environment, seconds=_SECONDS)
    if answer is None:
        return absent("Slurm", "controller", "`sinfo` does not answer", "ask who runs the cluster")
    if answer.returncode:
        words = (answer.stderr.strip().splitlines() or ["`sinfo` fails"])[-1]
        return absent("Slurm", "controller", words, "start it, or submit from a login node")
    return ok("Slurm", "partitions", ", ".join(answer.stdout.split()) or "none")
