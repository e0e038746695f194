"""Jobs: what a launcher runs, what it reports about them, and the shards of a cell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class JobContext:
    """Where a job of a submission runs.

    Args:
        study: Name of the study.
        workdir: Working directory of the command.
        record: Folder of the submission; holds `scripts/`, `logs/` and `events/`.
        cache: Writable folder on a file system that allows execution, for compiled kernels.
        folders: Folders of the job's cells, where progress shows.
        environment: Variables to export, such as HF_HOME; never a secret.
        label: Marks all jobs of one study in one runs folder.
        mbt: The command that runs `mbt` here.
        mirror: Folder of objects by which inputs and results of the study travel, for launchers
            whose jobs do not see the runs folder.
    """

    study: str
    workdir: Path
    record: Path
    cache: Path
    folders: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    mbt: Sequence[str] = ("mbt",)
    mirror: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one script.

    Args:
        id: Name of the job within its plan.
        argv: The command, one string per argument; the launcher quotes it. An array task adds
            `--shard N/OF`.
        cells: Addresses of the cells it makes.
        context: Where it runs.
        needs: Ids, within the plan, of the jobs that must succeed first.
        gpus: GPUs of its server or training, on all its nodes.
        nodes: Nodes among which it divides them; None lets the launcher choose.
        fills: Whether it uses every GPU that the launcher's preset gives, however many.
        shards: Number of array tasks; 1 for a job that is not an array.
        part: Those of the tasks that this job has, if a queue does not take all at once.
        trains: Whether it trains a model instead of serving one.
        limit_seconds: Time after which a task may be stopped, to continue in the queue; None
            leaves the limit to the launcher.
    """

    id: str
    argv: Sequence[str]
    cells: Sequence[str]
    context: JobContext
    needs: Sequence[str] = ()
    gpus: int = 0
    nodes: int | None = None
    fills: bool = False
    shards: int = 1
    trains: bool = False
    limit_seconds: int | None = None
    part: range | None = None

    @property
    def tasks(self) -> range:
        """The numbers of its shards."""
        return self.part or range(1, self.shards + 1)

    @property
    def name(self) -> str:
        """Its id, for a part with the number of its first shard; names its script and its logs."""
        return self.id if self.part is None else f"{self.id}-from-{self.part.start}"


@dataclass(frozen=True, slots=True)
class JobId:
    """A submitted job: the kind of its launcher, and the launcher's id of it."""

    launcher: str
    id: str


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits or runs.

    Args:
        id: The launcher's id of the job.
        is_running: Whether it runs.
        reason: Why it waits, in the launcher's words.
        task: The id by which the job knows itself (`Launcher.job_id_variable`), if it is another
            one, as in a task of an array.
        is_stuck: Whether it waits until a person does something.
        script: Path of the script that was submitted, if the launcher knows it.
    """

    id: str
    is_running: bool
    reason: str = ""
    task: str = ""
    is_stuck: bool = False
    script: str = ""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a job ended.

    Args:
        outcome: What that means for its cells.
        state: The launcher's word for it, such as `OUT_OF_MEMORY`.
    """

    outcome: Literal["completed", "failed", "cancelled"]
    state: str


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `number`, from 1, of `of`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def block(self, groups: Iterable[object], total: int) -> range:
        """Places of the items that are its own: neighbours, and never fewer than one.

        Items of one group stay together, since requests about one question begin with the same
        prompt, which the server then computes once. Only a group that is longer than a shard is
        divided.

        Args:
            groups: The group of each item, in order; read up to the end of the block.
            total: Number of items, not fewer than there are shards.

        Example:
            >>> [list(Shard(n, 3).block("aaabbbbccc", 10)) for n in (1, 2, 3)]
            [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]
        """
        longest = max(1, total // self.of)
        start = stop = 0
        for _, group in groupby(groups):
            left = sum(1 for _ in group)
            while left:
                part = min(left, longest)
                owner = (2 * stop + part) * self.of // (2 * total)  # that has its middle
                if owner >= self.number:
                    return range(start, stop)
                stop, left = stop + part, left - part
                if owner < self.number - 1:
                    start = stop
        return range(start, stop)


def parse_shard(text: str) -> Shard:
    """Parse `3/8`, the third of eight shards.

    Raises:
        ValueError: The text is not `NUMBER/OF` with 1 <= NUMBER <= OF.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isascii() and number.isdigit() and of.isascii() and of.isdigit()):
        raise ValueError(f"`{text}` is not a shard: write `3/8` for the third of eight")
    shard = Shard(int(number), int(of))
    if not 1 <= shard.number <= shard.of:
        raise ValueError(f"`{text}` is not a shard: the first number must be 1 to {shard.of}")
    return shard
