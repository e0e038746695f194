"""`mbt preset`: a preset of a model from its own files."""

from datetime import UTC, datetime
from pathlib import Path

import typer

from mbt_cli.errors import UsageError
from mbt_cli.registry import BACKENDS
from mbt_cli.settings import read_machine


def preset(model: str, revision: str | None, to: Path | None, *, force: bool) -> None:
    """Print the preset of a model, or write it into a new file."""
    machine = read_machine()
    makers = [kind for kind in BACKENDS.kinds().values() if kind.writes_presets]
    text = makers[0].preset_text(
        model, revision, machine.environment, today=f"{datetime.now(UTC):%Y-%m-%d}"
    )
    if to is None:
        typer.echo(text, nl=False)
        return
    if to.exists() and not force:
        raise UsageError(f"`{to}` exists", hint="name another file, or add --force")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{to}`: {error.strerror}") from error
    typer.echo(f"written: {to}", err=True)
