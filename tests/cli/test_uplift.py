"""The world in the loop: tasks from claims, findings, and how well a reasoning foretells them."""

import json
import math
import re

import polars as pl
import pytest

from tests.cli.logprob_server import LogprobServer

STUDY = """
[study]
name = "world"
seed = 1
max_failed_share = 0

[models.policy]
backend = {{ kind = "openai", base_url = "{url}" }}
sampling = {{ temperature = 0.5, max_tokens = 64 }}

[models.investigator]
backend = {{ kind = "openai", base_url = "{url}", id = "i" }}
sampling = {{ temperature = 0, max_tokens = 64 }}

[models.forecaster]
backend = {{ kind = "openai", base_url = "{url}", id = "p", gives_likelihoods = true }}
sampling = {{ temperature = 0, max_tokens = 8 }}

[benchmarks.ports]
kind = "conceptual"
files = {{ test = "ports.json" }}

[judges.look]
kind = "investigation"
count = 2

[judges.gain]
kind = "uplift"

[[stage]]
kind = "rollout"
name = "replies"
matrix = {{ benchmark = "ports", split = "test", model = "policy", prompt = "question" }}

[[stage]]
kind = "judge"
name = "investigated"
rollouts = "replies"
matrix = {{ judge = "look" }}
judge_model = "investigator"
constrained = false

[[stage]]
kind = "judge"
name = "foretold"
rollouts = "replies"
investigations = "investigated"
matrix = {{ judge = "gain" }}
judge_model = "forecaster"

[[stage]]
kind = "score"
name = "scores"
rollouts = "replies"
verdicts = "foretold"
metrics = ["uplift"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = [{{ kind = "main_results", metrics = ["uplift", "uplift_raised", "uplift_unread"] }}]
"""


class World(LogprobServer):
    """Whatever is asked about port n, it is right about the boats of ports 1 and 2."""

    def reply_to(self, body):
        asked = body["messages"][-1]["content"]
        port = int(re.findall(r"[Pp]ort (\d)", asked)[-1])
        if "Name the claims" in asked:
            tasks = [f"Look at the boats of port {port}.", f"Look at the trade of port {port}."]
            return "Here:\n```json\n" + json.dumps({"tasks": tasks}) + "\n```"
        if "Say the same in neutral words" in asked:
            return "again " + re.findall(r"<finding>\n(.*)\n</finding>", asked)[0]
        if "Do the task" in asked:
            said = re.findall(r"<report>\n(.*)\n</report>", asked)
            return f"{said[0] if said else 'Eleven'} vessels anchor"
        return "I think: Eleven vessels anchor" if port < 3 else "I cannot tell."


def write_study(folder, server):
    ports = [
        {"id": f"p{n}", "question": f"What is at port {n}?", "seen": f"Twenty{n}"}
        for n in range(1, 5)
    ]
    (folder / "ports.json").write_text(json.dumps(ports))
    (folder / "study.toml").write_text(STUDY.format(url=server.base_url))


@pytest.fixture
def study(workplace):
    with World(model={"id": "p"}) as server:
        write_study(workplace, server)
        yield workplace, server


def rows_of(folder, stage):
    (path,) = (folder / f"runs/world/{stage}").rglob("rows.parquet")
    return pl.read_parquet(path, hive_partitioning=False)


def test_a_reasoning_that_foretells_a_finding_raises_its_probability(mbt, study):
    folder, server = study

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    found = rows_of(folder, "investigated").sort("question_id")
    assert found["proposed"].to_list() == found["findings"].to_list() == [2] * 4
    assert found["tasks"][0][0] == {
        "task": "Look at the boats of port 1.",
        "finding": "Eleven vessels anchor",
    }
    assert found["steps"].to_list() == [3] * 4
    # who investigates sees the task and not the reasoning
    work = [body["messages"][-1]["content"] for body in server.bodies]
    work = [text for text in work if "Do the task" in text]
    assert work
    assert not any("I think" in text for text in work)
    scored = rows_of(folder, "foretold").sort("question_id", "step")
    assert scored["sign"].to_list()[:4] == [1, -1, 1, -1]
    assert scored["trial"].to_list()[:4] == [0, 0, 1, 1]
    gains = (
        scored.with_columns(u=pl.col("sign") * pl.col("logprob") / pl.col("tokens"))
        .group_by("question_id", "trial", maintain_order=True)
        .agg(pl.col("u").sum())
    )
    # each of the three words: 1/2 after the reasoning has said it, 1/8 before
    assert gains["u"].to_list() == pytest.approx([math.log(4)] * 4 + [0.0] * 4)
    (path,) = (folder / "runs/world/scores").rglob("summary.parquet")
    values = {one["metric"]: one["value"] for one in pl.read_parquet(path).iter_rows(named=True)}
    assert values["uplift"] == pytest.approx(math.log(4) / 2)
    assert values["uplift_total"] == pytest.approx(3 * math.log(4) / 2)
    assert values["uplift_raised"] == pytest.approx(0.5)
    assert values["uplift_unread"] == 0
    again = mbt("run", "study.toml")
    assert "0 model calls" in again.out + again.err


@pytest.mark.parametrize("forecast", ["plain", "rephrased", "tool_call"])
def test_the_forecaster_meets_the_finding_in_three_ways(mbt, study, forecast):
    folder, _ = study
    own = ["--set", f'judges.gain.forecast="{forecast}"', "--set", "judges.look.rephrase=true"]

    ran = mbt("run", "study.toml", *own)

    assert ran.code == 0, ran.err
    rows = rows_of(folder, "foretold").sort("question_id", "step")
    with_notes, without = rows["messages"][0], rows["messages"][1]
    assert with_notes[-1] == without[-1]
    assert with_notes[-1] == {"role": "assistant", "content": "again Eleven vessels anchor"}
    said = [" ".join(turn["content"] for turn in turns) for turns in (with_notes, without)]
    assert ["I think: Eleven" in text for text in said] == [True, False]
    assert ("editor" in said[0], "read_report" in said[0]) == (
        forecast == "rephrased",
        forecast == "tool_call",
    )


def test_a_report_of_the_question_is_what_is_investigated_in(mbt, study):
    folder, _ = study

    ran = mbt("run", "study.toml", "--set", 'judges.look.report="seen"')

    assert ran.code == 0, ran.err
    found = rows_of(folder, "investigated").sort("question_id")
    assert [one[0]["finding"] for one in found["tasks"].to_list()] == [
        f"Twenty{n} vessels anchor" for n in range(1, 5)
    ]
    none = mbt("run", "study.toml", "--replace", "--set", 'judges.look.report="lost"')
    assert none.code == 0, none.err
    assert rows_of(folder, "investigated")["findings"].to_list() == [0] * 4


def test_an_investigation_without_a_finding_fails_its_verdict(mbt, study):
    _, server = study
    whole, server.reply_to = (
        server.reply_to,
        lambda body: "" if "Do the task" in str(body["messages"]) else whole(body),
    )

    ran = mbt("run", "study.toml")

    assert ran.code == 1
    assert "none of 2 tasks has a finding" in " ".join((ran.out + ran.err).split())


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (("investigations =", "graded ="), "name the stage with the judge `investigation`"),
        (('judge = "look"', 'judge = "qualitative"'), "does not have the judge `investigation`"),
        (("gives_likelihoods = true", "gives_likelihoods = false"), "gives no log-probabilities"),
        (('judge = "gain"', 'judge = "qualitative"'), "reads no investigations: leave it out"),
    ],
)
def test_what_cannot_be_foretold_is_refused_before_a_run(mbt, study, edit, what):
    folder, _ = study
    text = (folder / "study.toml").read_text()
    assert edit[0] in text
    (folder / "study.toml").write_text(text.replace(*edit))

    checked = mbt("check", "study.toml")

    assert checked.code == 2
    assert what in " ".join((checked.out + checked.err).split())
