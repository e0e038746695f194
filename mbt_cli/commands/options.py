"""Options that mean the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_manifest, complete_only, complete_set

ManifestPath = Annotated[
    Path,
    typer.Argument(
        help="The study's manifest.", show_default=False, autocompletion=complete_manifest
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Cells to take: STAGE/axis=GLOB..., repeatable; a leading `!` leaves cells out.",
        metavar="CELLS",
        autocompletion=complete_only,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key, as in `stage.base.samples=8`.",
        metavar="KEY=VALUE",
        autocompletion=complete_set,
    ),
]
Presets = Annotated[Path | None, typer.Option(help="Folder with presets that win over all others.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show cells, requests and prompts; do nothing.")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Make stale cells again; the old ones move aside.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again for rows that failed.")
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="Ask this share of the requests alone; `mbt merge` makes the rows.",
        metavar="N/OF",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only errors and results.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Every detail.")]
