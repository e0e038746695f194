"""What `sbatch` is asked for, as a preset says it."""

import re
from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from mbt_cli.core.model import Settings

_WORD = re.compile(r"[A-Za-z0-9_.,:=@%/+*\[\]&|()-]+")
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
_GPUS = re.compile(r"gpu(?::[^:,]+)?:(\d+)")
_OWN_OPTIONS = (
    *("array", "comment", "dependency", "job-name", "nodes", "no-requeue", "ntasks"),
    *("ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal"),
)
"""What every script says already."""
_NAMED = ("partition", "qos", "account", "time", "constraint", "mem", "gres")
_KEYS = {
    **{name: name for name in _NAMED},
    "cpus-per-task": "cpus",
    "gpus-per-node": "gpus",
}
"""Options that have a key."""


def _one_word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError("no #SBATCH line can hold this: write one word without spaces or quotes")
    return value


def _time_limit(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise ValueError("is no time limit: write `HH:MM:SS` or `D-HH:MM:SS`")
    return value


def seconds_of(limit: str) -> int:
    """Seconds of a time limit as `sbatch` reads it.

    Example:
        >>> seconds_of("90"), seconds_of("1:30:00"), seconds_of("1-2")
        (5400, 5400, 93600)
    """
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # one number is minutes, two are minutes and seconds; after days it begins with hours
    parts = parts if days or len(parts) == 3 else [0, *parts]
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


Word = Annotated[str, AfterValidator(_one_word)]
"""A value of a directive: Slurm reads these lines itself, so nothing may need quoting."""
Time = Annotated[str, AfterValidator(_time_limit)]


class Request(Settings):
    """What `sbatch` is asked for; a key that is left out is left to the cluster."""

    partition: Word | None = None
    """Partition; left out, the cluster's default."""
    qos: Word | None = None
    """Quality of service."""
    account: Word | None = None
    """Account that is charged."""
    time: Time | None = None
    """Time limit, `[D-]HH:MM:SS`."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each node, asked for as `--gpus-per-node`."""
    gres: Word | None = None
    """Another way to say the GPUs, such as `gpu:h100:4`; `gpus` then says how many those are."""
    cpus: int | None = Field(default=None, ge=1)
    """Processors of the one task on each node."""
    mem: Word | None = None
    """Memory of each node, such as `480G`; `0` is all of it."""
    nodes: int = Field(default=1, ge=1)
    """Nodes."""
    constraint: Word | None = None
    """Features that nodes must have."""
    directives: list[Word] = Field(default_factory=list)
    """More options of `sbatch`, such as `--exclusive`."""

    @field_validator("directives")
    @classmethod
    def _are_options(cls, directives: list[str]) -> list[str]:
        for directive in directives:
            if not directive.startswith("--"):
                raise ValueError(f"`{directive}` is no option of sbatch: those begin with `--`")
            name = directive[2:].partition("=")[0]
            if name in _OWN_OPTIONS:
                raise ValueError(f"`--{name}` is what mbt sets itself, so leave it out")
            if name == "export":
                raise ValueError("keys reach a job through sbatch's usual export: leave it out")
            if key := _KEYS.get(name):
                raise ValueError(f"`--{name}` has a key of its own: `{key} = ...`")
        return directives

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        found = _GPUS.search(self.gres or "")
        if found and int(found[1]) != self.gpus:
            raise ValueError(
                f"`gres` asks for {found[1]} GPUs and `gpus` says {self.gpus}: "
                f"write `gpus = {found[1]}` too"
            )
        return self

    def lines(self) -> Iterator[str]:
        """Options in a fixed order."""
        for name in _NAMED[:-1]:
            if (value := getattr(self, name)) is not None:
                yield f"--{name}={value}"
        yield f"--nodes={self.nodes}"
        yield "--ntasks-per-node=1"
        if self.cpus is not None:
            yield f"--cpus-per-task={self.cpus}"
        if self.gres is not None:
            yield f"--gres={self.gres}"
        elif self.gpus:
            yield f"--gpus-per-node={self.gpus}"
        yield from self.directives
