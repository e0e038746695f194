"""Forecasts on a server: beliefs read from replies or stated by the same model, and scored."""

import csv
import json
import math

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.cli.logprob_server import LogprobServer

MARKETS = [
    {
        "id": f"m{n}",
        "source": "manifold",
        "question": f"Will event {n} happen?",
        "background": "",
        "resolution_criteria": "",
        "freeze_datetime": "2025-10-16",
        "freeze_datetime_value": "0.4",
        "resolution_date": "2025-11-01",
        "resolved_to": float(n % 2),
    }
    for n in range(6)
]
STUDY = """
[study]
name = "markets"
seed = 1
max_failed_share = 0

[models.policy]
backend = {{ kind = "openai", base_url = "{url}" }}
sampling = {{ temperature = 0.5, max_tokens = 64 }}

[benchmarks.markets]
kind = "forecasting"
files = {{ test = "markets.json" }}
shuffle_options = true

[judges.in_reply]
kind = "belief"
elicit = "pattern"
of = "steps"

[judges.before_and_after]
kind = "belief"
of = "ends"

[[stage]]
kind = "rollout"
name = "replies"
matrix = {{ benchmark = "markets", split = "test", model = "policy", prompt = ["belief_steps", "belief_opinion"] }}

[[stage]]
kind = "judge"
name = "read"
rollouts = "replies"
matrix = {{ judge = "in_reply" }}

[[stage]]
kind = "judge"
name = "asked"
rollouts = "replies"
matrix = {{ judge = "before_and_after" }}
judge_model = "self"
votes = 2

[[stage]]
kind = "score"
name = "forecasts"
rollouts = "replies"
verdicts = "read"
baseline = {{ prompt = "belief_steps" }}
metrics = ["brier", "log_loss", "belief_accuracy", "calibration", "sycophancy"]

[[stage]]
kind = "score"
name = "moves"
rollouts = "replies"
verdicts = "asked"
metrics = ["martingale"]

[[stage]]
kind = "report"
name = "tables"
scores = "forecasts"
tables = [{{ kind = "main_results", metrics = ["brier", "calibration_ece"] }}]
"""  # noqa: E501  TOML keeps an inline table on one line


class Forecaster(ChatServer):
    """Believes in Yes with 0.8 for odd events and 0.3 for others; an opinion moves it by 0.1."""

    def reply_to(self, body):
        asked = body["messages"][-1]["content"]
        if "Will event " not in asked:
            return "Hm."
        number = int(asked.split("Will event ")[1].split()[0])
        yes = "A" if "A. Yes" in asked else "B"
        no = "BA"["AB".index(yes)]
        p = 0.8 if number % 2 else 0.3
        if "Reasoning so far" in asked:
            p = 0.5 if "(none yet)" in asked else p
            return json.dumps({yes: p, no: round(1 - p, 6)})
        if "I am sure that the answer is: " in asked:
            stated = asked.split("I am sure that the answer is: ")[1].split()[0]
            p += 0.1 if stated == "Yes" else -0.1
        first = f"\\finalBeliefProb{{{yes}: 0.5, {no}: 0.5}}"
        last = f"\\finalBeliefProb{{{yes}: {p:.2f}, {no}: {1 - p:.2f}}}"
        return f"At first {first}\n\nOn reflection {last}\n\n<answer>{yes}</answer>"


@pytest.fixture
def markets(workplace):
    """The study on a server that forecasts."""
    (workplace / "markets.json").write_text(json.dumps(MARKETS))
    with Forecaster() as server:
        (workplace / "study.toml").write_text(STUDY.format(url=server.base_url))
        yield workplace, server


def by_metric(folder, stage):
    """Rows of the summaries by prompt and metric."""
    found = {}
    for path in (folder / f"runs/markets/{stage}").rglob("summary.parquet"):
        prompt = next(part for part in path.parts if part.startswith("prompt="))
        for row in pl.read_parquet(path, hive_partitioning=False).iter_rows(named=True):
            found[prompt.removeprefix("prompt="), row["metric"]] = row
    return found


def test_a_study_of_forecasts_from_inference_to_tables(mbt, markets):
    folder, server = markets

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    found = by_metric(folder, "forecasts")
    brier = found["belief_steps", "brier"]
    assert brier["value"] == pytest.approx((0.2**2 + 0.3**2) / 2)
    assert (brier["n"], brier["failed"]) == (6, 0)
    assert found["belief_steps", "belief_accuracy"]["value"] == 1
    assert found["belief_steps", "brier_unread"]["value"] == 0
    assert found["belief_opinion", "sycophancy_shift"]["value"] == pytest.approx(0.1)
    assert ("belief_opinion", "calibration_ece") in found
    (read,) = (folder / "runs/markets/read").rglob("prompt=belief_steps/**/rows.parquet")
    rows = pl.read_parquet(read, hive_partitioning=False).sort("question_id", "step")
    assert rows.filter(question_id="m1")["step"].to_list() == [1, 2]
    assert not rows["asked"].any()
    (asked,) = (folder / "runs/markets/asked").rglob("prompt=belief_steps/**/rows.parquet")
    stated = pl.read_parquet(asked, hive_partitioning=False)
    # 6 questions, before and after, 2 votes
    assert stated.height == 24
    assert set(stated["step"]) == {0, 3}
    moves = by_metric(folder, "moves")
    # a first belief that is always 0.5 has no variance, and so no slope
    assert moves["belief_steps", "martingale_change"]["value"] == pytest.approx(0.25)
    # replies to 2 prompts; 2 votes before a reasoning, once for both prompts; 2 after each
    assert len(server.bodies) == 12 + 6 * 2 + 12 * 2
    # votes and steps have seeds of their own, prompts share theirs
    assert len({body["seed"] for body in server.bodies}) == 6 + 6 * 2 * 2
    table = folder / "runs/markets/tables/files/main_results.csv"
    lines = {line["prompt"]: line for line in csv.DictReader(table.read_text().splitlines())}
    assert lines["belief_steps"]["brier"] == "0.0650"
    cells = [f"runs/markets/forecasts/**/prompt={prompt}" for prompt in lines]
    compared = mbt("compare", *cells)
    assert compared.code == 0, compared.err
    again = mbt("run", "study.toml")
    assert "0 model calls" in again.out + again.err
    traces = mbt("show", str(read.parent))
    assert traces.code == 0, traces.err


def test_what_has_no_options_is_refused_with_what_to_do(mbt, markets):
    folder, _ = markets
    (folder / "markets.json").write_text(json.dumps([{"id": "c", "question": "What is a mind?"}]))

    ran = mbt(
        "run",
        "study.toml",
        "--set",
        'benchmarks.markets={ kind = "conceptual", files = { test = "markets.json" } }',
        "--only",
        "replies/prompt=belief_steps",
        "--only",
        "read/prompt=belief_steps",
    )

    assert ran.code == 2
    assert "the questions of `markets` have none: judge another benchmark" in ran.err


def test_self_needs_a_model_axis_and_pattern_no_settings_of_a_model(mbt, markets):
    checked = mbt("check", "study.toml", "--set", 'judges.in_reply.standpoint="policy"')

    assert checked.code == 2
    assert "`pattern` asks no model" in checked.out + checked.err


BY_TOKENS = """
[study]
name = "tokens"
seed = 1
max_failed_share = 0

[models.policy]
backend = {{ kind = "openai", base_url = "{url}" }}
sampling = {{ temperature = 0.5, max_tokens = 64 }}
request = {{ chat_template_kwargs = {{ enable_thinking = false }} }}

[models.parrot]
backend = {{ kind = "canned", replies = ["A"] }}
sampling = {{ temperature = 0, max_tokens = 8 }}

[benchmarks.markets]
kind = "forecasting"
files = {{ test = "markets.json" }}
limit = {{ test = 3 }}

[judges.by_tokens]
kind = "belief"
elicit = "tokens"
of = "ends"

[[stage]]
kind = "rollout"
name = "replies"
matrix = {{ benchmark = "markets", split = "test", model = "policy", prompt = "question" }}

[[stage]]
kind = "judge"
name = "asked"
rollouts = "replies"
matrix = {{ judge = "by_tokens" }}
judge_model = "policy"

[[stage]]
kind = "score"
name = "forecasts"
rollouts = "replies"
verdicts = "asked"
metrics = ["brier"]
"""


@pytest.fixture
def by_tokens(workplace):
    """A study of beliefs by tokens, on a server that gives log-probabilities."""
    (workplace / "markets.json").write_text(json.dumps(MARKETS))
    with LogprobServer("First.\n\nLast.") as server:
        (workplace / "study.toml").write_text(BY_TOKENS.format(url=server.base_url))
        yield workplace, server


def test_beliefs_by_tokens_from_inference_to_scores(mbt, by_tokens):
    folder, server = by_tokens

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    (asked,) = (folder / "runs/tokens/asked").rglob("rows.parquet")
    rows = pl.read_parquet(asked, hive_partitioning=False)
    assert rows.height == 6
    assert set(rows["step"]) == {0, 2}
    assert rows["on_options"].to_list() == pytest.approx([0.8] * 6)
    for row in rows.iter_rows(named=True):
        # what the belief was computed from stands in the reply
        top = dict(json.loads(row["reply"])["top"])
        assert math.exp(top["A"]) / row["on_options"] == pytest.approx(row["belief"])
    bodies = [body for body in server.bodies if body.get("logprobs")]
    # one token each, whatever the sampling of the model says, and no JSON
    assert {(body["max_tokens"], body["top_logprobs"]) for body in bodies} == {(1, 20)}
    assert all("response_format" not in body and "seed" not in body for body in bodies)
    assert bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}
    sent = len(server.bodies)
    again = mbt("run", "study.toml")
    assert "0 model calls" in again.out + again.err
    assert len(server.bodies) == sent


def test_an_endpoint_without_logprobs_is_a_counted_failure_with_its_text(mbt, by_tokens):
    _, server = by_tokens
    server.is_mute = True

    ran = mbt("run", "study.toml", "--set", "run.stop_after_failures=0")

    assert ran.code == 1
    assert "no_logprobs: the response has no usable ones" in ran.out + ran.err


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ('stage.asked.judge_model="parrot"', "the backend `canned` of `parrot` gives no log-prob"),
        ("stage.asked.votes=2", "the same at every vote: leave it out"),
        ("models.policy.backend.gives_logprobs=false", "the backend `openai` of `policy` gives no"),
    ],
)
def test_models_without_logprobs_and_votes_are_refused_before_a_run(mbt, by_tokens, setting, what):
    checked = mbt("check", "study.toml", "--set", setting)

    assert checked.code == 2
    assert what in " ".join((checked.out + checked.err).split())
