"""Whether the answers to math questions are right, whatever form they are written in."""

import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from mbt_cli.core.math_answers import math_answer, same_form, same_number
from mbt_cli.errors import UsageError

_SECONDS = 5  # for one comparison, in math-verify's own way
_KEYS = ("answer", "reply", "gold_answer", "gold_aliases")


def math_right(rollouts: pl.DataFrame, benchmark: str) -> pl.Series:
    """1 where the answer means the same as the gold answer or an alias, else 0; one a rollout.

    Equal rollouts are compared once.

    Args:
        rollouts: `answer`, `reply`, `gold_answer`, `gold_aliases`.
        benchmark: `gsm8k` goes by its official number match, any other by LaTeX and math-verify.

    Raises:
        UsageError: Two answers are written in different ways, and math-verify is not installed.
    """
    rows = rollouts.select(_KEYS).unique(maintain_order=True)
    same = same_number if benchmark == "gsm8k" else _same_math
    right = [is_right(row, same) for row in rows.iter_rows(named=True)]
    return rollouts.select(_KEYS).join(
        rows.with_columns(right=pl.Series(right, dtype=pl.Float64)),
        on=_KEYS,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["right"]


def is_right(row: Mapping[str, Any], same: Callable[[str, str, str], bool]) -> float:
    """1 where the answer of a row is the same as its gold answer or an alias, by one rule."""
    tagged, reply = row["answer"] or "", row["reply"] or ""
    golds = [row["gold_answer"] or "", *(row["gold_aliases"] or [])]
    return float(any(same(tagged, reply, gold) for gold in golds if gold))


def _same_math(tagged: str, reply: str, gold: str) -> bool:
    if same_form(tagged, reply, gold):
        return True
    answer = math_answer(reply, tagged=tagged)
    return answer is not None and _verified(answer, gold)


def _verified(answer: str, gold: str) -> bool:
    library = _math_verify()
    # its clock is a signal, which only the main thread may set
    limit = _SECONDS if threading.current_thread() is threading.main_thread() else None
    parsed = [library.parse(f"${text}$", parsing_timeout=limit) for text in (gold, answer)]
    return bool(library.verify(*parsed, timeout_seconds=limit))


def _math_verify() -> Any:
    try:
        library = importlib.import_module("math_verify")
    except ModuleNotFoundError:
        raise UsageError(
            "`math_match` needs math-verify to compare answers written in different ways",
            hint='run `pip install "mbt-cli[math]"`',
        ) from None
    # it logs every answer that it cannot parse, with a traceback
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return library
