"""Loops at the end of a text: the same words over and over until the reply stops."""

import polars as pl


def tail_loop_column(*, window: int, unit: int, repeats: int) -> pl.Expr:
    """Whether what was generated last ends in a loop: a Boolean column, never null.

    The last `unit` characters of the reply (of the reasoning where the reply is empty) stand at
    least `repeats` times, without overlap, in its last `window` characters. A loop is found
    wherever it was cut as long as its period is at most window / repeats; white space is squeezed
    first, and a text shorter than `unit` x `repeats` has no loop.

    Args:
        window: Characters looked at.
        unit: Characters that must come again.
        repeats: How often at least.
    """
    reply = pl.col("reply").fill_null("")
    text = pl.when(reply.str.strip_chars() != "").then(reply).otherwise(pl.col("reasoning"))
    # squeezing shortens, so a longer piece is cut out before it
    tail = text.fill_null("").str.tail(2 * window)
    tail = tail.str.replace_all(r"\s+", " ").str.strip_chars().str.tail(window)
    again = tail.str.count_matches(tail.str.tail(unit), literal=True)
    return (tail.str.len_chars() >= unit * repeats) & (again >= repeats)
