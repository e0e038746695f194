"""What the cards of data sets and of models have in common."""

from collections.abc import Mapping

_SHOWN_HASH = 16


def bullets(title: str, items: Mapping[str, str]) -> str:
    r"""A section with one line an item, hashes cut short; nothing where there is no item.

    Example:
        >>> bullets("Models", {"base": "qwen3-4b"})
        '## Models\n\n- base: qwen3-4b'
    """
    if not items:
        return ""
    lines = [f"- {key}: {_short(value)}" for key, value in items.items()]
    return "\n".join([f"## {title}", "", *lines])


def _short(value: str) -> str:
    is_hash = len(value) == 64 and all(c in "0123456789abcdef" for c in value)
    return value[:_SHOWN_HASH] if is_hash else value
