"""Before shards are merged: is every reply there?"""

from collections.abc import Sequence

from mbt_cli.engine.dry_run import rehearse
from mbt_cli.errors import StageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine


def refuse_unasked(manifest: Manifest, machine: Machine, addresses: Sequence[str]) -> None:
    """Stop when a request was never answered: merging asks nothing.

    Raises:
        StageError: Replies are missing; says of which cell and how many.
    """
    for rehearsal in rehearse(manifest, machine, addresses):
        new, known = rehearsal.requests or (0, 0)
        if rehearsal.status != "done" and new:
            raise StageError(
                f"`{rehearsal.address}`: {new} of {new + known} requests have no reply yet",
                hint="run its missing shards again: "
                f"mbt run {manifest.path} --only {rehearsal.address} --shard N/OF",
            )
