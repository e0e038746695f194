"""The manifest of truth-seeking on a server that debates and forecasts, from data to figures."""

import json
import re
import shutil

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.conftest import REPOSITORY

MANIFEST = REPOSITORY / "manifests/truth.toml"
SETS = REPOSITORY / "tests/unit/data/truth"


class Thinker(ChatServer):
    """Believes more and more in option A the longer a reasoning is; states it as it is asked."""

    def reply_to(self, body):
        asked = body["messages"][-1]["content"]
        if "Reasoning so far" in asked:
            turns = len(re.findall(r"^\[\d+\. ", asked, re.MULTILINE))
            p = 0.5 if "(none yet)" in asked else min(0.9, 0.55 + 0.1 * turns)
            return json.dumps({"A": p, "B": round(1 - p, 6)})
        if "Reasoning to judge" in asked:
            return "It follows the obvious. <points>4 out of 10</points>"
        return "I weigh it.\n\n\\finalBeliefProb{A: 0.7, B: 0.3}\n\n<answer>A</answer>"


@pytest.fixture
def truth(workplace):
    """A folder with two of the domains, a server, and the arguments that make it the policy."""
    (workplace / "truth").mkdir()
    for name in ("forecasts.json", "conceptual.json"):
        shutil.copy(SETS / name, workplace / "truth")
    with Thinker() as server:
        backend = f'{{ kind = "openai", base_url = "{server.base_url}" }}'
        changes = [
            f'models.policy={{ backend = {backend}, sampling = "policy" }}',
            'groups.programs=["single", "debate"]',
            'groups.system_prompts=["truth"]',
            'groups.prompts=["belief_steps", "belief_opinion"]',
            "benchmarks.forecasting.limit=3",
            "programs.debate.turns=2",
            "benchmarks.conceptual.limit=2",
        ]
        yield workplace, server, [word for change in changes for word in ("--set", change)]


def test_the_study_of_truth_runs_on_the_domains_that_are_there(mbt, truth):
    folder, server, changes = truth

    checked = mbt("check", str(MANIFEST), *changes)
    ran = mbt("run", str(MANIFEST), *changes, timeout=600)

    assert checked.code == 0, checked.err
    assert ran.code == 0, ran.err
    runs = folder / "runs/truth"
    found = {path.name for path in (runs / "questions").iterdir()}
    assert found == {"benchmark=forecasting", "benchmark=conceptual"}
    # beliefs before a debate, and after each of its turns: two arguments and the conclusion
    (debated,) = runs.glob("asked/**/program=debate/system_prompt=truth/rows.parquet")
    (alone,) = runs.glob("asked/**/program=single/system_prompt=truth/rows.parquet")
    by_step = (
        pl.read_parquet(debated, hive_partitioning=False)
        .group_by("step")
        .agg(pl.col("belief").first())
    )
    assert dict(by_step.iter_rows()) == pytest.approx({0: 0.5, 1: 0.65, 2: 0.75, 3: 0.85})
    steps = pl.read_parquet(alone, hive_partitioning=False)["step"]
    assert set(steps) == {0, 1}
    system = [body for body in server.bodies if body["messages"][0]["role"] == "system"]
    assert any(body["messages"][0]["content"].startswith("You care about") for body in system)
    files = {path.name for path in runs.glob("*tables/files/*")}
    assert {"reliability.svg", "belief_paths_truth.svg", "belief_paths_moved.svg"} <= files
    assert {"relations.csv", "regression_brier.csv", "policies.csv"} <= files
    assert list(runs.glob("tables/files/**/index.html"))
    (judged,) = runs.glob("open-scores/**/summary.parquet")
    points = pl.read_parquet(judged, hive_partitioning=False).filter(metric="points")
    assert points.select("value", "n").rows() == [(4.0, 2)]
    cells = [f"runs/truth/scores/**/program={program}" for program in ("single", "debate")]
    compared = mbt("compare", *cells)
    assert compared.code == 0, compared.err
