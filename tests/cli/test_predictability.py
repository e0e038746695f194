"""Mutual predictability on a server that gives log-probabilities: asked once, resumed, scored."""

import json
import math
from collections import Counter

import polars as pl
import pytest

from tests.cli.logprob_server import LogprobServer

STUDY = """
[study]
name = "mutual"
seed = 1
max_failed_share = 0

[models.policy]
backend = {{ kind = "openai", base_url = "{url}" }}
sampling = {{ temperature = 0.5, max_tokens = 64 }}

[models.predictor]
backend = {{ kind = "openai", base_url = "{url}", id = "p", gives_likelihoods = true }}
sampling = {{ temperature = 0, max_tokens = 8 }}

[models.local]
backend = {{ kind = "llamacpp" }}
sampling = {{ temperature = 0, max_tokens = 8 }}

[benchmarks.minds]
kind = "conceptual"
files = {{ test = "minds.json" }}

[judges.mutual]
kind = "predictability"
trials = 2

[[stage]]
kind = "rollout"
name = "replies"
matrix = {{ benchmark = "minds", split = "test", model = "policy", prompt = "question" }}

[[stage]]
kind = "judge"
name = "predicted"
rollouts = "replies"
matrix = {{ judge = "mutual" }}
judge_model = "predictor"

[[stage]]
kind = "score"
name = "scores"
rollouts = "replies"
verdicts = "predicted"
metrics = ["mutual_predictability"]
"""


@pytest.fixture
def study(workplace):
    minds = [{"id": f"m{n}", "question": f"What is mind {n}?"} for n in range(4)]
    (workplace / "minds.json").write_text(json.dumps(minds))
    with LogprobServer("<answer>Oslo</answer>", model={"id": "p"}) as server:
        (workplace / "study.toml").write_text(STUDY.format(url=server.base_url))
        yield workplace, server


def test_a_context_raises_the_log_probability_by_what_the_model_says(mbt, study):
    folder, server = study
    mbt("run", "study.toml", "--only", "replies")
    server.answers = 5

    broken = mbt("run", "study.toml", "--set", "run.max_attempts=1")

    server.answers = float("inf")
    assert broken.code == 1
    begun = len(server.scored)
    ran = mbt("run", "study.toml")
    assert ran.code == 0, ran.err
    # 4 answers without context, which trials share, and 4 x 2 with three others in some order;
    # the run that failed has paid for some of them
    assert begun
    assert Counter(server.scored).most_common(1)[0][1] == 1
    assert 4 < len(server.scored) <= 12
    (path,) = (folder / "runs/mutual/predicted").rglob("rows.parquet")
    rows = pl.read_parquet(path, hive_partitioning=False)
    assert rows.height == 16
    # the reply holds what the verdict was computed from, the conversation what was scored
    first = rows.row(0, named=True)
    assert json.loads(first["reply"])["tokens"] == ["Oslo"]
    assert first["messages"][-1] == {"role": "assistant", "content": "Oslo"}
    (path,) = (folder / "runs/mutual/scores").rglob("summary.parquet")
    found = {row["metric"]: row for row in pl.read_parquet(path).iter_rows(named=True)}
    # 1/2 for a word that has been there, 1/8 for a new one
    assert found["mutual_predictability"]["value"] == pytest.approx(math.log(4))
    assert (found["mutual_predictability"]["n"], found["mutual_predictability"]["failed"]) == (4, 0)
    assert found["mutual_predictability_raised"]["value"] == 1
    assert found["mutual_predictability_unread"]["value"] == 0
    again = mbt("run", "study.toml")
    assert "0 model calls" in again.out + again.err


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        (
            'stage.predicted.judge_model="local"',
            "the backend `llamacpp` of `local` gives no log-probabilities of given texts",
        ),
        ("models.predictor.backend.gives_likelihoods=false", "gives no log-probabilities of given"),
        ('models.predictor.backend.client="sdk"', '`gives_likelihoods` needs `client = "own"`'),
        ('stage.predicted.judge_model="policy"', "gives no log-probabilities of given texts"),
        ('judges.mutual.predicted="random_any"', "needs `peers`: rollouts of other policies"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_a_run(mbt, study, setting, what):
    checked = mbt("check", "study.toml", "--set", setting)

    assert checked.code == 2
    assert what in " ".join((checked.out + checked.err).split())


def test_a_server_without_tokens_of_texts_is_named_with_what_to_do(mbt, workplace):
    class Hosted(LogprobServer):
        def add_routes(self, app):
            """It knows no `/tokenize`."""

    minds = [{"id": f"m{n}", "question": f"What is mind {n}?"} for n in range(4)]
    (workplace / "minds.json").write_text(json.dumps(minds))
    with Hosted("<answer>Oslo</answer>") as server:
        (workplace / "study.toml").write_text(STUDY.format(url=server.base_url))
        ran = mbt("run", "study.toml")

    assert ran.code == 1
    assert "has no `/tokenize`" in ran.out + ran.err
