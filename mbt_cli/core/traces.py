"""Reasoning traces: extraction from a reply, paragraphs, and truncated replies."""

import re

import polars as pl

_LAST_ANSWER = re.compile(r"(.*)<answer>", re.IGNORECASE | re.DOTALL)
_LAST_END = re.compile(r"(.*)</answer>", re.IGNORECASE | re.DOTALL)
_LAST_PAIR_RUST = r"(?si)^(.*)<answer>.*?</answer>"
_BLANK_LINES = re.compile(r"\n\s*\n")
_FINISHED = ("stop", "tool_calls", "function_call")
_OPENING = re.compile(r"\s*(?:<think(?:ing)?>|\[THINK\])", re.IGNORECASE)
_CLOSING = re.compile(r"</think(?:ing)?>|\[/THINK\]", re.IGNORECASE)
THINKING_TAG = re.compile(r"</?think(?:ing)?>|\[/?THINK\]", re.IGNORECASE)
"""What opens or closes a think block in text."""


def think_block(text: str) -> tuple[str, str] | None:
    """The content of the think block that opens `text`, and the rest; None if there is no block.

    A block that never closes is all content. A closing tag without an opening one means that the
    chat template has opened the block.

    Example:
        >>> think_block("<think>Hm.</think>Yes"), think_block("Hm.</think>Yes")
        (('Hm.', 'Yes'), ('Hm.', 'Yes'))
        >>> think_block("<think>Hm, what"), think_block("Yes")
        (('Hm, what', ''), None)
    """
    if "think" not in text and "THINK" not in text:
        return None
    opening = _OPENING.match(text)
    closing = _CLOSING.search(text)
    if opening is None and closing is None:
        return None
    start = opening.end() if opening else 0
    end, rest = (closing.start(), closing.end()) if closing else (len(text), len(text))
    return text[start:end].strip(), text[rest:]


def trace_of(reasoning: str | None, reply: str | None) -> str:
    """The trace of a rollout: its reasoning, or without one the reply before its last answer pair.

    Example:
        >>> trace_of(None, "Oslo is in Norway. <answer>Norway</answer>")
        'Oslo is in Norway.'
    """
    if reasoning and reasoning.strip():
        return reasoning.strip()
    text = reply or ""
    last = _LAST_END.match(text)
    head = last and _LAST_ANSWER.match(text, 0, last.end(1))
    return (head[1] if head else text).strip()


def trace_column() -> pl.Expr:
    """`trace_of` over a frame with `reasoning` and `reply`: a column `trace`, never null."""
    reasoning = pl.col("reasoning").fill_null("").str.strip_chars()
    reply = pl.col("reply").fill_null("")
    head = pl.coalesce(reply.str.extract(_LAST_PAIR_RUST, 1), reply).str.strip_chars()
    return pl.when(reasoning != "").then(reasoning).otherwise(head).alias("trace")


def is_cut(finish_reason: str | None) -> bool:
    """Whether a reply is truncated: it ended neither by the model's own stop nor by a call.

    Example:
        >>> is_cut("length"), is_cut("stop"), is_cut(None)
        (True, False, False)
    """
    return finish_reason is not None and finish_reason not in _FINISHED


def cut_column() -> pl.Expr:
    """`is_cut` over a frame with `finish_reason`: a Boolean column, never null."""
    return ~pl.col("finish_reason").fill_null("stop").is_in(_FINISHED)


def paragraphs(trace: str) -> list[str]:
    r"""Texts between blank lines, stripped; white space only has none.

    Example:
        >>> paragraphs("One.\n\nTwo.\n  \nThree.")
        ['One.', 'Two.', 'Three.']
    """
    return [part.strip() for part in _BLANK_LINES.split(trace) if part.strip()]
