"""Findings of `mbt doctor`: what a check of this machine or of a study found."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

State = Literal["ok", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        group: What the check is about, such as `Python` or `disk`.
        what: What was checked.
        found: The result, never a secret.
        state: `ok`; `absent` if only some studies need it; `broken` if no study, or not the given
            one, can run without it.
        do: What to type or change; empty if nothing.
    """

    group: str
    what: str
    found: str
    state: State = "ok"
    do: str = ""


def ok(group: str, what: str, found: str) -> Finding:
    """A check that passed."""
    return Finding(group, what, found)


def absent(group: str, what: str, found: str, do: str) -> Finding:
    """Something is missing that only some studies need."""
    return Finding(group, what, found, "absent", do)


def broken(group: str, what: str, found: str, do: str) -> Finding:
    """Something is missing that the study needs."""
    return Finding(group, what, found, "broken", do)


def answer_of(
    command: Sequence[str], environment: Mapping[str, str], *, seconds: float
) -> subprocess.CompletedProcess[str] | None:
    """The finished command; None if it cannot be run or times out."""
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part of mbt.

    Args:
        packages: The packages that it installs, as in pyproject.toml.
        purpose: What they are for.
    """

    packages: tuple[str, ...]
    purpose: str


TRAINING = ("torch", "transformers", "trl", "accelerate", "datasets")
"""Packages without which no training of mbt's own starts."""

EXTRAS: Mapping[str, Extra] = {
    "embedded": Extra(("xllamacpp",), "the embedded model and GGUF files"),
    "math": Extra(("math-verify",), "comparing math answers in other forms"),
    "instructions": Extra(
        ("emoji", "langdetect", "nltk", "regex", "syllapy"), "checking instructions"
    ),
    "train": Extra((*TRAINING, "peft", "gguf", "matplotlib", "wandb"), "training"),
    "vllm": Extra(("vllm",), "serving models on GPUs"),
    "ray": Extra(("ray",), "vLLM over several nodes through Ray, for versions without --nnodes"),
    "s3": Extra(("obstore",), "files and mirrors on S3"),
    "sky": Extra(("skypilot",), "clouds and Kubernetes"),
    "sagemaker": Extra(("boto3", "obstore"), "training jobs of SageMaker"),
    "qlora": Extra(("bitsandbytes",), "training in four bits, 8-bit optimizers"),
    "kernels": Extra(("kernels",), "attention and layer kernels of the Hugging Face hub"),
    "gpu": Extra(("flash-attn", "liger-kernel"), "faster training on GPUs"),
}


def pip_line(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "mbt-cli[{extra}]"'


def installed(package: str) -> str | None:
    """The version of a package in this Python; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_LIST_MISSING = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        version(name)
    except PackageNotFoundError:
        print(name)
"""
_LIST_SECONDS = 30.0


def not_installed(packages: Collection[str], python: str) -> list[str]:
    """Those of the packages that a Python does not have; none if it cannot be asked.

    Args:
        packages: Names on the package index.
        python: Path of the Python.
    """
    if python == sys.executable:
        return [name for name in packages if installed(name) is None]
    command = [python, "-c", _LIST_MISSING, *packages]
    answer = answer_of(command, os.environ, seconds=_LIST_SECONDS)
    return answer.stdout.split() if answer is not None and answer.returncode == 0 else []


def install_line(package: str, python: str) -> str:
    """The command that installs a package into a Python, by the extra that has it if one does."""
    extras = [name for name, extra in EXTRAS.items() if package in extra.packages]
    wanted = f'"mbt-cli[{extras[0]}]"' if extras else package
    pip = "pip" if python == sys.executable else f"{shlex.quote(python)} -m pip"
    return f"{pip} install {wanted}"


def missing_packages(extra: str) -> list[str]:
    """Packages of an extra that this Python does not have."""
    return [name for name in EXTRAS[extra].packages if installed(name) is None]


def find_command(command: str, environment: Mapping[str, str]) -> str | None:
    """Path of a command on the search path or next to this Python; None if there is none."""
    if found := shutil.which(command, path=environment.get("PATH")):
        return found
    neighbour = Path(sys.executable).parent / command
    return str(neighbour) if neighbour.is_file() else None
