"""A job: what a launcher hands to a machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mbt_cli.core.chat import Json


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a job of a submission runs.

    Args:
        study: Name of the study.
        workdir: Folder that the command runs in, whatever the job's own folder is.
        record: The submission's folder: `logs/` and `events/` are in it.
        cache: Folder that can be written and executed from, for compiled kernels.
        folders: Folders of the job's cells, in which progress shows.
        environment: Variables that are passed on, such as HF_HOME; never a secret.
        label: What all jobs of a study bear, so that they are found again in a queue.
        mbt: How `mbt` is called here.
    """

    study: str
    workdir: Path
    record: Path
    cache: Path
    folders: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    mbt: Sequence[str] = ("mbt",)


@dataclass(frozen=True, slots=True)
class Job:
    """One script's worth of work.

    Args:
        id: Name of the job within its plan.
        argv: The command, one string an argument; quoting is the launcher's. An array task adds
            `--shard N/OF`.
        cells: Addresses of the cells it makes.
        needs: Ids of the jobs that must have succeeded.
        resources: What it asks of the machine: `gpus`, `nodes`.
        shards: Number of array tasks; 1 is no array.
        around: Where it runs; null while it is only planned.
        trains: Whether it trains a model instead of serving one.
    """

    id: str
    argv: Sequence[str]
    cells: Sequence[str]
    needs: Sequence[str] = ()
    resources: Mapping[str, Json] = field(default_factory=dict)
    shards: int = 1
    around: Surroundings | None = None
    trains: bool = False

    @property
    def gpus(self) -> int:
        """GPUs that the command wants on each node."""
        wanted = self.resources.get("gpus", 0)
        return wanted if isinstance(wanted, int) else 0


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `number`, from 1, of `of` shards."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def share(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """This shard's items: every `of`-th one, so that shards are equally long.

        Example:
            >>> list(Shard(2, 3).share("abcdefgh"))
            ['b', 'e', 'h']
        """
        return islice(items, self.number - 1, None, self.of)


def parse_shard(text: str) -> Shard:
    """`3/8`: the third of eight.

    Raises:
        ValueError: It is not `NUMBER/OF` with 1 <= NUMBER <= OF.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isascii() and number.isdigit() and of.isascii() and of.isdigit()):
        raise ValueError(f"`{text}` is no shard: write `3/8` for the third of eight")
    shard = Shard(int(number), int(of))
    if not 1 <= shard.number <= shard.of:
        raise ValueError(f"`{text}` is no shard: the first number is 1 to {shard.of}")
    return shard
