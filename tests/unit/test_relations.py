"""Relations between metrics against scipy and statsmodels, and the tables and figures of them."""

import json

import numpy as np
import polars as pl
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.tools import add_constant

from mbt_cli.core import rows
from mbt_cli.core.tables import ReportInputs
from mbt_cli.report.belief_figures import BeliefPaths, PoliciesFigure, Reliability
from mbt_cli.report.relations import Policies, RegressionTable, Relations
from mbt_cli.report.setups import Setups
from mbt_cli.scores.relations import (
    clustered_correlation,
    clustered_mean,
    least_squares,
    ranks,
    spearman,
)

AXES = ("benchmark", "model", "program")


def test_the_rank_correlation_is_scipys():
    draws = np.random.default_rng(0)
    x = draws.integers(0, 8, 60).astype(float)
    y = x + draws.normal(0, 4, 60)

    found = spearman(x, y)

    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert found.interval.low < found.value < found.interval.high
    assert spearman(x, np.ones(60)) is None
    assert spearman(np.arange(3.0), np.arange(3.0)).interval is None


def test_the_intervals_of_rank_correlations_cover():
    # of normal pairs with the correlation 0.5, Spearman's is 6 / pi asin(0.25)
    truth = 6 / np.pi * np.arcsin(0.25)
    draws = np.random.default_rng(1)
    covered = clustered = 0
    for _ in range(100):
        shared, own = draws.normal(size=(2, 40)), draws.normal(size=(2, 40, 3))
        x = shared[0][:, None] + 0.5 * own[0]
        y = 0.5 * shared[0][:, None] + np.sqrt(0.75) * shared[1][:, None] + 0.5 * own[1]
        one = spearman(x[:, 0] - 0.5 * own[0][:, 0], y[:, 0] - 0.5 * own[1][:, 0]).interval
        covered += one.low <= truth <= one.high
        # 3 noisy copies of each pair: as independent pairs, far too few intervals would cover
        groups = np.repeat(np.arange(40), 3)
        many = clustered_correlation(ranks(x.ravel()), ranks(y.ravel()), groups).interval
        noisy = 6 / np.pi * np.arcsin(0.5 / 1.25 / 2)
        clustered += many.low <= noisy <= many.high
    assert 89 <= covered <= 99
    assert 88 <= clustered <= 99


@pytest.mark.parametrize("fixed", [False, True])
def test_coefficients_and_clustered_errors_are_those_of_statsmodels(fixed):
    draws = np.random.default_rng(2)
    cells, clusters = np.repeat(np.arange(4), 50), np.tile(np.arange(50), 4)
    x = draws.normal(size=(200, 2)) * [1, 300] + draws.normal(size=(50, 1))[clusters]
    y = x @ [0.5, 0.001] + cells + draws.normal(size=50)[clusters] + draws.normal(size=200)
    more = np.eye(4)[cells] if fixed else np.ones((200, 1))
    design = np.column_stack([x, more]) if fixed else add_constant(x, prepend=False)
    fit = OLS(y, design).fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)

    found = least_squares(y, x, clusters, cells if fixed else None)

    assert found.coefficients == pytest.approx(fit.params[:2], abs=1e-9)
    assert found.errors == pytest.approx(fit.bse[:2], abs=1e-9)
    assert found.p == pytest.approx(fit.pvalues[:2], abs=1e-9)
    low = found.coefficients - found.width * found.errors
    assert low == pytest.approx(fit.conf_int()[:2, 0], abs=1e-9)
    assert (found.rows, found.clusters) == (200, 50)
    if not fixed:
        assert found.r_squared == pytest.approx(fit.rsquared, abs=1e-9)


def test_a_regression_that_is_not_defined_has_no_numbers():
    y, groups = np.arange(6.0), np.arange(6)

    assert least_squares(y, np.ones((6, 1)), groups) is None
    assert least_squares(y, np.column_stack([y, 2 * y]), groups) is None
    assert least_squares(y, y[:, None] ** 2, np.zeros(6, np.int64)) is None


MODELS = ("small", "middle", "large")
CURVE = [[0.2, 0.1, 0.5], [0.8, 0.9, 0.5]]
PATH = [[0.0, 0.0, 0.5], [0.5, 0.1, 0.6], [1.0, 0.2, 0.7]]


@pytest.fixture
def inputs():
    """Three models x two programs on one benchmark; `brier` falls and `tokens` rise with size."""
    draws = np.random.default_rng(3)
    found, values = [], []
    for size, model in enumerate(MODELS):
        for turn, program in enumerate(("single", "debate")):
            axes = {"benchmark": "markets", "model": model, "program": program}
            address = "/".join(["scores", *(f"{axis}={name}" for axis, name in axes.items())])
            tokens = 100 * (1 + size) + 30 * turn
            numbers = {
                "brier": (0.3 - 0.05 * size - 0.01 * turn, {}),
                "tokens": (tokens, {}),
                "calibration_ece": (0.1 + 0.01 * size, {"curve": CURVE}),
                "martingale_change": (0.2, {"path": PATH}),
            }
            for metric, (value, settings) in numbers.items():
                row = {"address": address, **axes, "metric": metric, "value": value}
                ends = {"low": 0.9 * value, "high": 1.1 * value, "n": 30, "failed": 0}
                own = {"settings": json.dumps(settings), "unit": "index"}
                found.append({**dict.fromkeys(rows.SUMMARY), **row, **ends, **own})
            # within a cell, long replies are the worse ones: the other way round
            lengths = tokens + draws.normal(0, 10, 30)
            errors = 0.3 - 0.05 * size + 0.002 * (lengths - tokens) + draws.normal(0, 0.01, 30)
            for metric, numbers_of in (("tokens", lengths), ("brier", errors)):
                values += [
                    {"address": address, "metric": metric, "question_id": f"q{q}", "value": one}
                    for q, one in enumerate(numbers_of.tolist())
                ]
    texts = dict.fromkeys(("address", *AXES), pl.String())
    return ReportInputs(
        summary=pl.DataFrame(found, schema={**rows.SUMMARY, **texts}),
        scores=pl.LazyFrame(values),
        axes=AXES,
    )


def test_cells_and_questions_may_be_related_in_opposite_ways(inputs):
    over_cells = Relations(metrics=("brier", "tokens")).build(inputs).rows
    over_questions = Relations(metrics=("brier", "tokens"), over="questions").build(inputs).rows

    assert over_cells["tokens"].to_list() == [pytest.approx(-1), None]
    assert over_cells["brier"].to_list() == [None, pytest.approx(-1)]
    assert over_cells["tokens_n"][0] == 6
    assert over_questions["tokens"][0] > 0.7
    assert over_questions["tokens_low"][0] > 0.5
    assert over_questions["tokens_n"][0] == 30


def test_a_regression_within_cells_finds_what_holds_within_cells(inputs):
    within = RegressionTable(metric="brier", on=("tokens",)).build(inputs)
    across = RegressionTable(metric="brier", on=("tokens",), within=False).build(inputs)

    assert within.rows["effect"][0] == pytest.approx(0.002, abs=2e-4)
    assert within.rows["effect_low"][0] < 0.002 < within.rows["effect_high"][0]
    assert across.rows["effect"][0] < 0
    assert "180 rows, 30 questions" in within.notes[0]
    missing = RegressionTable(metric="brier", on=("mqi",)).build(inputs)
    assert missing.rows.is_empty()
    assert missing.notes[0] == "No question has a value of mqi."


def test_policies_stand_beside_published_numbers(inputs):
    sizes = {"small": 1.0, "large": 70.0, "middle": 8.0, "other": 3.0}

    table = Policies(metrics=("brier", "tokens"), published=sizes).build(inputs)
    plain = Policies(metrics=("brier",)).build(inputs)

    assert table.rows["model"].to_list() == ["large", "middle", "small"]
    assert table.rows["tokens"].to_list() == [315, 215, 115]
    assert "rank correlation -1.00 over 3 models" in table.notes[1]
    assert [column.key for column in plain.columns] == ["model", "brier", "cells"]


def of_setups(stages, by_judge=()):
    """Scores of two benchmarks under stages or judges: values of q0 .. q7 of each cell."""
    lines, cells = [], []
    for stage, shift in stages:
        for number, benchmark in enumerate(("markets", "papers")):
            address = f"{stage}/benchmark={benchmark}/model=small"
            axes = {"address": address, "benchmark": benchmark, "model": "small"}
            cells.append({**dict.fromkeys(rows.SUMMARY), **axes, "metric": "brier"})
            for name, more in (("brier", 0.0), *by_judge):
                for q in range(8):
                    value = 0.1 * number + 0.05 * q + shift + more
                    one = {"metric": name, "question_id": f"q{q}", "value": value}
                    lines.append({"address": address, **one})
    texts = dict.fromkeys(("address", "benchmark", "model"), pl.String())
    summary = pl.DataFrame(cells, schema={**rows.SUMMARY, **texts})
    scores = pl.LazyFrame([*lines, {**lines[0], "metric": "tokens", "value": 9.0}])
    return ReportInputs(summary=summary, scores=scores, axes=("benchmark", "model"))


def test_setups_are_compared_on_the_same_questions_of_the_same_cells():
    table = Setups(metrics=("brier",)).build(of_setups([("asked", 0.0), ("read", 0.25)]))

    (line,) = table.rows.iter_rows(named=True)
    assert (line["metric"], line["one"], line["other"]) == ("Brier", "asked", "read")
    # the second is 0.25 higher everywhere: the same order, and no spread around that
    assert line["rank"] == pytest.approx(1)
    assert line["difference"] == pytest.approx(0.25)
    assert (line["difference_low"], line["difference_high"]) == (
        pytest.approx(0.25),
        pytest.approx(0.25),
    )
    assert (line["distance"], line["questions"]) == (pytest.approx(0.25), 16)
    assert (line["cells"], line["cell_count"]) == (None, 2)


def test_judge_models_of_one_stage_and_values_of_an_axis_are_setups_too():
    by_judge = (("brier:big", 0.1), ("brier:small", 0.3))
    judges = Setups(metrics=("brier",)).build(of_setups([("asked", 0.0)], by_judge))
    axis = Setups(metrics=("brier",), axis="benchmark").build(of_setups([("asked", 0.0)]))
    unknown = Setups(metrics=("brier",), axis="prompt").build(of_setups([("asked", 0.0)]))

    pairs = {(row["one"], row["other"]): row["difference"] for row in judges.rows.to_dicts()}
    assert pairs["asked by big", "asked by small"] == pytest.approx(0.2)
    assert axis.rows["questions"].to_list() == []  # questions of two benchmarks are not the same
    assert "no axis `prompt`" in unknown.notes[0]
    assert unknown.rows.is_empty()


def test_the_interval_of_a_clustered_mean_is_that_of_statsmodels():
    draws = np.random.default_rng(4)
    clusters = np.repeat(np.arange(20), 3)
    values = draws.normal(size=60) + draws.normal(size=20)[clusters]
    fit = OLS(values, np.ones(60)).fit(
        cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True
    )

    found = clustered_mean(values, clusters)

    # its factor (N - 1) / (N - K) is 1 with an intercept alone
    assert found.value == pytest.approx(fit.params[0], abs=1e-12)
    assert found.interval.low == pytest.approx(fit.conf_int()[0, 0], abs=1e-9)
    assert clustered_mean(values, np.zeros(60, np.int64)).interval is None


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        (Reliability(), "reliability"),
        (BeliefPaths(), "belief_paths_truth"),
        (BeliefPaths(show="moved"), "belief_paths_moved"),
        (PoliciesFigure(published={"small": 1, "large": 70}, scale="log"), "policies_brier"),
    ],
)
def test_a_figure_is_drawn_or_leaves_no_file(figure, name, inputs, tmp_path):
    drawn = figure.draw(inputs, tmp_path / "drawn")
    empty = ReportInputs(summary=inputs.summary.clear(), scores=inputs.scores.clear(), axes=AXES)

    assert [path.name for path in drawn] == [f"{name}{end}" for end in (".svg", ".pdf", ".png")]
    assert list(figure.draw(empty, tmp_path / "empty")) == []
    without = inputs.summary.with_columns(settings=pl.lit("{}"))
    plain = ReportInputs(summary=without, scores=inputs.scores, axes=AXES)
    assert bool(figure.draw(plain, tmp_path / "plain")) == isinstance(figure, PoliciesFigure)
