"""A job: what a launcher hands to a machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mbt_cli.core.chat import Json


@dataclass(frozen=True, slots=True)
class Job:
    """One script's worth of work.

    Args:
        id: Name of the job within its plan.
        argv: The command, one string an argument; quoting is the launcher's.
        cells: Addresses of the cells it makes.
        needs: Ids of the jobs that must have succeeded.
        resources: What it asks of the machine, by the launcher's own names.
        shards: Number of array tasks; 1 is no array.
    """

    id: str
    argv: Sequence[str]
    cells: Sequence[str]
    needs: Sequence[str] = ()
    resources: Mapping[str, Json] = field(default_factory=dict)
    shards: int = 1
