"""Writes beliefs_sklearn.json: scores of forecasts by scikit-learn, which no other test needs.

    python beliefs_sklearn.py forecastbench_2025-10-26_resolved_markets.json > beliefs_sklearn.json

Made with scikit-learn 1.9.1 and numpy 2.5; the draws are those of `made` in test_belief_oracles.py.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

try:
    import sklearn
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import brier_score_loss, log_loss
except ModuleNotFoundError:  # tests take `made` alone
    sklearn = None


def made(seed, options):
    """Beliefs and outcomes, shapes (300, options); stated to 0.05, so that many lie on edges."""
    draws = np.random.default_rng(seed)
    parts = draws.multinomial(20, draws.dirichlet(np.full(options, 0.6), 300))
    return parts / 20, np.eye(options)[draws.integers(0, options, 300)]


def parts(p, o, bins):
    """ECE, and Murphy's parts of Brier, from scikit-learn's calibration curve."""
    true, mean = calibration_curve(o, p, n_bins=bins)
    numbers = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)
    share = np.unique(numbers, return_counts=True)[1] / len(p)
    rate = o.mean()
    return {
        "calibration_ece": (share * abs(true - mean)).sum(),
        "calibration_reliability": (share * (true - mean) ** 2).sum(),
        "calibration_resolution": (share * (true - rate) ** 2).sum(),
        "calibration_uncertainty": rate * (1 - rate),
    }


def of_two(p, o):
    """Scores of beliefs in the event alone."""
    return {
        "brier": brier_score_loss(o, p),
        "log_loss": log_loss(o, p),
        "parts": {str(bins): parts(p, o, bins) for bins in (1, 7, 10)},
    }


def main():
    content = Path(sys.argv[1]).read_bytes()
    records = json.loads(content)
    crowd = np.array([float(record["freeze_datetime_value"]) for record in records])
    outcome = np.array([float(record["resolved_to"]) for record in records])
    found = {"scikit-learn": sklearn.__version__, "file": hashlib.sha256(content).hexdigest()}
    found["crowd"] = of_two(crowd, outcome)
    p, o = made(1, 2)
    found["made of 2"] = of_two(p[:, 0], o[:, 0])
    p, o = made(2, 4)
    found["made of 4"] = {
        "brier": brier_score_loss(o.argmax(1), p, scale_by_half=True),
        "log_loss": log_loss(o.argmax(1), p),
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
