"""The † of tables: rows that are not significantly different from the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from mbt_cli.core.measures import CLUSTER, mean_of_value
from mbt_cli.core.number_text import number_text
from mbt_cli.core.tables import Column, TableData
from mbt_cli.report.formats import formatted_rows
from mbt_cli.report.notes import ADDRESS
from mbt_cli.report.seeds import SEED, clusters_of, seed_values
from mbt_cli.scores.comparison import SIGNIFICANT
from mbt_cli.scores.over_benchmarks import stratified, weighted
from mbt_cli.scores.seeds import Estimate, difference
from mbt_cli.scores.statistics import (
    Clusters,
    Floats,
    Quantity,
    is_binary,
    not_worse_than_best,
    paired_p,
    smallest_difference,
)

_PATTERNS = 4_000
_LEAST_SHARED = 0.5
"""Least share of a row's questions that all rows have, for a test on these questions."""
_TIES_NOTE = (
    f"†: not significantly different from the best at {SIGNIFICANT:.0%} for all pairs of rows "
    "together"
)
_TEST = "max-t, and exact McNemar or a permutation test against the best"
_SEEDS_TEST = "Student's t over seeds and questions, Bonferroni"
_FEW_SHARED_TEST = "rows share few questions: Student's t on those of each pair, Bonferroni"
_SMALLEST_NOTE = (
    "Smallest difference from the best that these questions can show (paired test of two rows at "
    f"{SIGNIFICANT:.0%}, 80 % power)"
)

_Scores = Mapping[str, pl.DataFrame]
"""Address to the questions with a value of one metric, for each seed."""


STRATUM = "stratum"
"""Column of scores with the benchmark of a question, for rows that are means over benchmarks."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What was marked in a table.

    Args:
        table: With METRIC_tied for rows that are not significantly different from the best.
        tests: The tests behind these marks.
        smallest: For each column, the smallest differences that its questions can show.
    """

    table: TableData
    tests: Sequence[str] = ()
    smallest: Sequence[str] = ()


def marked(table: TableData, scores: pl.DataFrame) -> Marks:
    """Mark the rows that are not significantly different from the best.

    Only metrics that are means over questions have scores per question to test. A breakdown has no
    marks, because a cell has several rows in it.

    Args:
        table: Its rows have an `address`.
        scores: `notes.question_scores`; for rows that are means over benchmarks also STRATUM.
    """
    if table.rows[ADDRESS].is_duplicated().any():
        return Marks(table)
    columns = [c for c in table.columns if c.kind == "number" and c.best != "none"]
    rows, tests, shown = table.rows, dict[str, None](), []
    values = _values(scores)
    for column in columns:
        found = _against_best(table, column, values.get(column.key, {}))
        tests |= dict.fromkeys(found.tests if any(found.tied) else ())
        rows = rows.with_columns(pl.Series(f"{column.key}_tied", found.tied, dtype=pl.Boolean))
        if found.smallest:
            shown.append(_range_text(column, found.smallest))
    return Marks(replace(table, rows=rows), list(tests), shown)


def mark_notes(cells: Marks, means: Marks | None = None) -> list[str]:
    """Notes on the marks of a table, and on those of its means over benchmarks."""
    tests = dict.fromkeys([*cells.tests, *(means.tests if means else ())])
    shown = [*cells.smallest]
    if means and means.smallest:
        shown.append(f"of the mean over benchmarks: {', '.join(means.smallest)}")
    return [
        *([f"{_TIES_NOTE} ({'; '.join(tests)})."] if tests else []),
        *([f"{_SMALLEST_NOTE}: {'; '.join(shown)}."] if shown else []),
    ]


def _range_text(column: Column, found: Sequence[float]) -> str:
    ends = [number_text(f(found), unit=column.unit, decimals=column.decimals) for f in (min, max)]
    unit = " points" if column.unit == "percent" else ""
    return f"{column.title} {' to '.join(dict.fromkeys(ends))}{unit}"


def _values(scores: pl.DataFrame) -> Mapping[str, _Scores]:
    """The values of each metric and address."""
    found: dict[str, dict[str, pl.DataFrame]] = {}
    stratum = pl.col(STRATUM) if STRATUM in scores.columns else pl.lit(None, pl.String)
    known = scores.filter(pl.col("value").is_not_null()).select(
        "metric", ADDRESS, SEED, "question_id", "value", CLUSTER, stratum.alias(STRATUM)
    )
    parts = known.partition_by("metric", ADDRESS, as_dict=True, include_key=False)
    for (metric, address), part in parts.items():
        found.setdefault(str(metric), {})[str(address)] = part
    return found


@dataclass(frozen=True, slots=True)
class _AgainstBest:
    """Each row of a column against the best of its group.

    Args:
        tied: Whether the row has the †.
        smallest: For each row but the best, the smallest difference that can be found.
        tests: The tests that were used.
    """

    tied: list[bool]
    smallest: list[float]
    tests: list[str]


def _against_best(table: TableData, column: Column, scores: _Scores) -> _AgainstBest:
    place = list(table.columns).index(column)
    ranks = [row[place].rank for row in formatted_rows(table)]
    addresses = table.rows[ADDRESS].to_list()
    found = _AgainstBest([False] * len(ranks), [], [])
    for group in table.compared_groups():
        rows = [row for row in group["row"] if addresses[row] in scores]
        best = [row for row in rows if ranks[row] == "best"]
        if not best or len(rows) < 2:
            continue
        parts = {row: scores[addresses[row]] for row in rows}
        others = [row for row in rows if row not in best]
        pairs = {row: Pair.of(parts[best[0]], parts[row]) for row in others}
        found.smallest.extend(d for pair in pairs.values() if (d := pair.smallest_difference()))
        has_seeds = any(part[SEED].n_unique() > 1 for part in parts.values())
        if has_seeds or not _share_most(list(parts.values())):
            # all pairs count, since the best row is not known before
            times = len(rows) * (len(rows) - 1) / 2
            p_values = {row: pair.p_by_t(times) for row, pair in pairs.items()}
            found.tests.append(_SEEDS_TEST if has_seeds else _FEW_SHARED_TEST)
        else:
            values, strata, clusters = _common(list(parts.values()))
            values = values if strata is None else stratified(values, strata)
            can_be_best = not_worse_than_best(
                -values if column.best == "low" else values,
                resamples=_PATTERNS,
                seed=0,
                clusters=clusters,
            )
            # what `mbt compare` of the two cells says counts as well
            p_values = {
                row: None if is_tied else pairs[row].p()
                for row, is_tied in zip(rows, can_be_best, strict=True)
                if row in pairs
            }
            found.tests.append(_TEST)
        for row, p in p_values.items():
            ahead = pairs[row].difference() * (-1 if column.best == "low" else 1)
            # on the questions of the pair, the row may be the better one
            found.tied[row] = p is None or p >= SIGNIFICANT or ahead < 0
    return found


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows on the questions that both have.

    Args:
        first: Shape (seeds, questions).
        second: Shape (other seeds, questions).
        clusters: The cluster of each question; None if questions are independent.
        strata: The benchmark of each question of rows that are means over benchmarks, else None.
        drawn: For each side, whether it is of trainings, whose seeds stand for others.
    """

    first: Floats
    second: Floats
    clusters: Clusters | None
    strata: Clusters | None
    drawn: tuple[bool, bool]

    @classmethod
    def of(cls, first: pl.DataFrame, second: pl.DataFrame) -> "Pair":
        wide = [seed_values(part) for part in (first, second)]
        both = wide[0].select("question_id").join(wide[1], on="question_id", how="semi")
        both = both.sort("question_id") if _in_all_strata(both, first) else both.clear()
        values = [
            both.join(frame, on="question_id", how="left", maintain_order="left")
            .drop("question_id")
            .to_numpy()
            .T
            for frame in wide
        ]
        drawn = (first[SEED].null_count() == 0, second[SEED].null_count() == 0)
        clusters = clusters_of(both["question_id"], [first, second])
        return cls(values[0], values[1], clusters, strata_of(both["question_id"], first), drawn)

    @property
    def units(self) -> int:
        """Number of clusters, else of questions."""
        return self.first.shape[1] if self.clusters is None else int(self.clusters.max()) + 1

    def difference(self) -> float:
        """The mean of the first minus that of the second; NaN without common questions."""
        if not self.first.size:
            return math.nan
        first, second = self._weighted()
        return float(first.mean() - second.mean())

    def _weighted(self) -> tuple[Floats, Floats]:
        """Both sides, with values whose mean is that over benchmarks.

        These are not deviations from a mean: exchanging the sides of a question exchanges them.
        """
        if self.strata is None:
            return self.first, self.second
        return weighted(self.first, self.strata), weighted(self.second, self.strata)

    def estimate(self) -> Estimate:
        """The difference and its standard error."""
        first, second = (
            own if self.strata is None else stratified(own, self.strata)
            for own in (self.first, self.second)
        )
        return difference(first, second, self.clusters, drawn=self.drawn)

    def p(self) -> float | None:
        """P value of rows with one seed, the one of `mbt compare`."""
        if self.units < 2:
            return None
        first, second = (_mean_of(own[0], self.clusters) for own in self._weighted())
        return paired_p(first, second, seed=0)[0]

    def p_by_t(self, times: float) -> float | None:
        """P value by Student's t over seeds and questions, times the number of tests."""
        p = self.estimate().p() if self.units > 1 else None
        return None if p is None else p * times

    def smallest_difference(self) -> float | None:
        """The true difference that the pair's own test finds with 80 % power; None below 2."""
        if self.units < 2:
            return None
        sides = (self.first, self.second)
        is_single = self.clusters is None and self.strata is None
        is_mcnemar = is_single and all(len(s) == 1 and is_binary(s) for s in sides)
        found = self.estimate()
        degrees = found.degrees if found.error > 0 else self.units - 1
        pairs = self.units if is_mcnemar else None
        return smallest_difference(found.error, degrees, pairs=pairs)


def _mean_of(values: Floats, clusters: Clusters | None) -> Quantity:
    return Quantity({"value": values}, mean_of_value, clusters)


def _share_most(parts: Sequence[pl.DataFrame]) -> bool:
    """Whether the questions that all rows have are enough to test them on these alone."""
    rows = pl.concat([part.select("question_id") for part in parts]).group_by("question_id").len()
    shared = rows.filter(pl.col("len") == len(parts))
    enough = max(2, _LEAST_SHARED * max(part.height for part in parts))
    return shared.height >= enough and _in_all_strata(shared, parts[0])


def _in_all_strata(questions: pl.DataFrame, scores: pl.DataFrame) -> bool:
    """Whether each benchmark of a row has some of these questions."""
    there = scores.join(questions, on="question_id", how="semi")
    return there[STRATUM].n_unique() == scores[STRATUM].n_unique() or questions.is_empty()


def _common(
    parts: Sequence[pl.DataFrame],
) -> tuple[Floats, Clusters | None, Clusters | None]:
    """Values of each row on the questions that all have, shape (rows, questions).

    Returns:
        The values, the strata of the questions (None without), and their clusters.
    """
    both = parts[0].select("question_id", pl.col("value").alias("0"))
    for number, part in enumerate(parts[1:], start=1):
        own = part.select("question_id", pl.col("value").alias(str(number)))
        both = both.join(own, on="question_id")
    both = both.sort("question_id")
    ids = both["question_id"]
    values = both.drop("question_id").to_numpy().T
    return values, strata_of(ids, parts[0]), clusters_of(ids, parts)


def strata_of(ids: pl.Series, scores: pl.DataFrame) -> Clusters | None:
    """The stratum of each of these questions, numbered from 0; None if they have none."""
    known = scores.select("question_id", STRATUM).unique("question_id")
    names = ids.to_frame().join(known, on="question_id", how="left", maintain_order="left")[STRATUM]
    if names.null_count():
        return None
    return names.rank("dense").to_numpy().astype(np.int64) - 1
