"""What judges are shown of a rollout and its question."""

from collections.abc import Mapping
from typing import Any


def gold_answers_text(row: Mapping[str, Any]) -> str:
    """The gold answer and its aliases for a prompt, one a line."""
    aliases = [alias for alias in row["gold_aliases"] or [] if alias != row["gold_answer"]]
    return "\n".join(f"- {text}" for text in (row["gold_answer"], *aliases))
