"""What judges are shown of a rollout and its question, and what they share of their replies."""

from collections.abc import Mapping
from typing import Any

from mbt_cli.core.chat import Json

CONFIDENCE_SCHEMA: Json = {"type": "number", "enum": [step / 20 for step in range(21)]}
"""From 0 to 1 in steps of 0.05: a number without end lets a small model write digits until it is
cut."""


def gold_answers_text(row: Mapping[str, Any]) -> str:
    """The gold answer and its aliases for a prompt, one a line."""
    aliases = [alias for alias in row["gold_aliases"] or [] if alias != row["gold_answer"]]
    return "\n".join(f"- {text}" for text in (row["gold_answer"], *aliases))
