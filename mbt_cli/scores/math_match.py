"""MathMatch: is the math answer right, whatever form it is written in?"""

import importlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import polars as pl

from mbt_cli.core.math_answers import math_answer, same_form, same_number
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import live_only, mean_measure
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Score

_SECONDS = 5  # for one comparison, in math-verify's own way


class MathMatch(Score):
    r"""Share of math answers that mean the same as the gold answer.

    Formula: the answer is the tagged one, else the last \boxed one outside the thinking. For
    `gsm8k` its last number (else the one after ####) equals the gold number, commas and trailing
    .00 apart: the official match. Otherwise 1 if the LaTeX is equal but for spaces and brackets'
    sizes, or if math-verify finds both equal.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, `reply`; questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: a comparison that takes math-verify longer than 5 seconds counts as different;
    answers in words are compared as text. Needs the extra `math` where plain forms differ.
    """

    kind: Literal["math_match"] = "math_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        rows = inputs.rollouts.select("answer", "reply", "gold_answer", "gold_aliases").unique(
            maintain_order=True
        )
        same = same_number if inputs.benchmark == "gsm8k" else _same_math
        right = [_is_right(row, same) for row in rows.iter_rows(named=True)]
        keys = ["answer", "reply", "gold_answer", "gold_aliases"]
        found = inputs.rollouts.select(keys).join(
            rows.with_columns(right=pl.Series(right, dtype=pl.Float64)),
            on=keys,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        values = live_only(inputs, found["right"].to_numpy())
        return [mean_measure(inputs, self.kind, values, shape="binary")]


def _is_right(row: Mapping[str, Any], same: Callable[[str, str, str], bool]) -> float:
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
