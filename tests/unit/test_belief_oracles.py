"""Scores of beliefs against scikit-learn and statsmodels, on resolved markets and on made beliefs.

scikit-learn's numbers stand in data/beliefs_sklearn.json, beside the script that wrote them.
MBT_GOLDENS_DIR may have other files in the layout of the shared markets.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import orjson
import pytest
from statsmodels.regression.linear_model import OLS
from statsmodels.sandbox.regression.gmm import IV2SLS
from statsmodels.tools import add_constant

from mbt_cli.benchmarks.forecasting import Forecasting
from mbt_cli.scores.beliefs import Brier, Calibration, LogLoss
from mbt_cli.scores.martingale import Martingale
from tests.unit.data.beliefs_sklearn import made
from tests.unit.test_beliefs import binary, cell, numbers, walk
from tests.unit.test_benchmarks import SHARED

SKLEARN = orjson.loads((Path(__file__).parent / "data/beliefs_sklearn.json").read_bytes())
FILES = [
    *sorted((SHARED / "forecasting").glob("*_resolved_markets.json")),
    *sorted(Path(os.environ.get("MBT_GOLDENS_DIR", "/nonexistent")).glob("*markets*.json")),
]


@pytest.fixture(params=FILES or [None], ids=lambda path: path and path.name)
def markets(request):
    """A file's hash, its records, and belief of the crowd and outcome, shapes (markets,)."""
    if request.param is None:
        pytest.skip(f"no resolved markets at {SHARED} or in MBT_GOLDENS_DIR")
    content = request.param.read_bytes()
    records = orjson.loads(content)
    p = np.array([float(record["freeze_datetime_value"]) for record in records])
    o = np.array([float(record["resolved_to"]) for record in records])
    return hashlib.sha256(content).hexdigest(), records, p, o


def of_sklearn(cells, expected):
    """Compare every number of a cell."""
    found = numbers(Brier(), cells) | numbers(LogLoss(), cells)
    for name in ("brier", "log_loss"):
        assert found[name]["value"] == pytest.approx(expected[name], abs=1e-9), name
    for bins, parts in expected.get("parts", {}).items():
        own = numbers(Calibration(bins=int(bins)), cells)
        for name, value in parts.items():
            assert own[name]["value"] == pytest.approx(value, abs=1e-9), (bins, name)


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_the_crowds_forecasts_of_resolved_markets(markets, is_shuffled):
    sha256, records, p, o = markets
    benchmark = Forecasting(shuffle_options=is_shuffled)
    questions = [benchmark.question(record) for record in records]
    cells = cell(
        [
            (q.question_id, 0, q.options, q.resolution, [(0, 0, q.metadata["crowd"])])
            for q in questions
        ]
    )

    found = numbers(Brier(), cells)["brier"]

    assert found["n"] == len(records)
    assert found["value"] == pytest.approx(((p - o) ** 2).mean(), abs=1e-12)
    q = np.clip(p, np.finfo(float).eps, 1 - np.finfo(float).eps)
    expected = -(o * np.log(q) + (1 - o) * np.log(1 - q)).mean()
    assert numbers(LogLoss(), cells)["log_loss"]["value"] == pytest.approx(expected, abs=1e-9)
    if sha256 == SKLEARN["file"]:
        assert (len(records), round(found["value"], 4)) == (112, 0.0435)
        of_sklearn(cells, SKLEARN["crowd"])


def test_made_beliefs_score_as_in_scikit_learn():
    p, o = made(1, 2)
    of_sklearn(binary(p[:, 0], o[:, 0]), SKLEARN["made of 2"])

    p, o = made(2, 4)
    rows = [
        (f"q{n:03}", 0, ("s", "u", "v", "w"), tuple(o[n]), [(0, 0, p[n].tolist())])
        for n in range(len(p))
    ]
    of_sklearn(cell(rows), SKLEARN["made of 4"])


def slope(b, d):
    """The least-squares slope of d on b by statsmodels."""
    return OLS(d, add_constant(b)).fit().params[1]


def test_the_crowds_slope_is_that_of_statsmodels(markets):
    # from the price of a market to what came true: whether prices foretold their own correction
    _, _, p, o = markets

    found = numbers(Martingale(), walk(p[:, None], o[:, None]))["martingale"]

    assert found["value"] == pytest.approx(slope(p, o - p), abs=1e-9)


def test_slope_and_instrument_are_those_of_statsmodels():
    draws = np.random.default_rng(11)
    truth = draws.uniform(0.2, 0.8, (150, 1))
    b = truth + draws.normal(0, 0.05, (150, 2))
    e = truth + 0.1 * (truth - 0.5) + draws.normal(0, 0.05, (150, 2))

    found = numbers(Martingale(), walk(b, e))

    plain = slope(b.mean(1), (e - b).mean(1))
    assert found["martingale"]["value"] == pytest.approx(plain, abs=1e-9)
    own, other = b.T.ravel(), b[:, ::-1].T.ravel()
    two_stage = IV2SLS((e - b).T.ravel(), add_constant(own), add_constant(other)).fit()
    assert found["martingale_instrument"]["value"] == pytest.approx(two_stage.params[1], abs=1e-9)
