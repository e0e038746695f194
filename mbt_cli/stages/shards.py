"""One shard of a cell: asks its share of the requests and leaves the replies in the journal."""

from dataclasses import replace

from mbt_cli.core.shards import Shard
from mbt_cli.errors import UsageError
from mbt_cli.inference.asking import Asked, ask
from mbt_cli.stages.asking import AsksModel
from mbt_cli.stages.base import Stage
from mbt_cli.stages.work import Work


def ask_shard(stage: Stage, work: Work, shard: Shard) -> Asked:
    """Send what the journal does not hold of this shard's share.

    Raises:
        UsageError: The stage asks no model, so there is nothing to share.
    """
    address = work.resolution.address
    if not isinstance(stage, AsksModel) or work.resolution.source is not None:
        raise UsageError(f"`{address}` asks no model, so it has no shards")
    asking = stage.ask_plan(work).asking(work)
    total = None if asking.total is None else -(-(asking.total - shard.number + 1) // shard.of)
    share = replace(asking, requests=lambda: shard.share(asking.requests()), total=total)
    work.progress.start(f"{address} shard {shard}", total)
    return ask(share, work.journal, work.progress, writer=f"{shard.number}-of-{shard.of}")
