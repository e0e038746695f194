"""What was sent to a model for one question, and what came back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from mbt_cli.errors import UsageError
from mbt_cli.store.reading import read_rows, require_lineage

_SHOWN_IDS = 3


def prompt_view(folder: Path, question_id: str) -> RenderableType:
    """Every conversation of a cell about one question.

    Raises:
        UsageError: The cell asked no model, or holds no such question; names some that it holds.
    """
    rows = read_rows(folder)
    if "messages" not in rows.collect_schema():
        raise UsageError(
            f"`{folder}` asked no model, so it has no prompts",
            hint=f"`mbt show {folder}` names what it was made from",
        )
    found = rows.filter(pl.col("question_id") == question_id).collect()
    if found.is_empty():
        ids = rows.select("question_id").unique(maintain_order=True).head(_SHOWN_IDS).collect()
        some = ", ".join(f"`{i}`" for i in ids["question_id"])
        raise UsageError(f"`{folder}` has no question `{question_id}`", hint=f"it has {some}, ...")
    address = Text(require_lineage(folder).address, style="bold underline")
    parts = (part for row in found.iter_rows(named=True) for part in _parts(row))
    return Group(address, *parts)


def _parts(row: dict[str, Any]) -> Iterator[Text]:
    yield Text(f"question {row['question_id']}, sample {row['sample']}", style="bold")
    for message in row["messages"] or ():
        yield Text(f"--- {message['role']}", style="cyan")
        yield Text(message["content"])
    if row["reasoning"]:
        yield Text("--- reasoning", style="green")
        yield Text(row["reasoning"])
    yield Text(
        f"--- reply ({row['finish_reason']}, {row['completion_tokens']} tokens)", style="green"
    )
    yield Text(row["reply"] or "")
    if row["failure"]:
        yield Text(f"--- failure: {row['failure']}", style="red")
