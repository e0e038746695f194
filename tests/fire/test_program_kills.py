"""A program of 16 steps over 200 rollouts that is killed again and again pays for no step twice.

A kill is SIGKILL at a random moment of the real command, which asks a stub server whose replies
depend on the request alone. `MBT_FIRE_KILLS` is the number of kills; every fifth is done otherwise.
"""

import random
import time

import polars as pl

from tests.fire.conftest import KILLS
from tests.fire.killing import Place, check_artifacts, what_is_left
from tests.inference.conftest import fault_server

ROLLOUTS = 200
STEPS = 16
IN_FLIGHT = 8
FEWEST = 5
"""Kills of a small share of the tests."""

PROGRAM = '''
from typing import Literal

from mbt_cli.core.chat import Message
from mbt_cli.core.programs import Ask
from mbt_cli.interfaces import Program


def _prompt(*parts):
    return (Message(role="user", content=" / ".join(map(str, parts))),)


class Sixteen(Program):
    """5 drafts, 2 reviews of each one after the other, and 1 final request."""

    kind: Literal["sixteen"] = "sixteen"
    roles = {"reviewer": "reviews drafts"}

    def run(self, problem):
        question = problem.question["question_id"]
        drafts = yield [Ask("draft", _prompt("draft", question, n)) for n in range(5)]
        reviews = yield [self.reviewed(draft) for draft in drafts]
        best = problem.draw("pick").pick(sorted(review.seed for review in reviews))
        (final,) = yield [Ask("final", _prompt("final", question, best), built_on=reviews)]
        return final

    def reviewed(self, draft):
        one = Ask("review", _prompt("review", draft.seed), role="reviewer", built_on=[draft])
        (first,) = yield [one]
        (second,) = yield [Ask("again", _prompt("again", first.seed), built_on=[first])]
        return second
'''

STUDY = """
[study]
name = "small"
seed = 1
max_failed_share = 0
plugins = ["sixteen.py"]

[run]
concurrency = IN_FLIGHT

[models.student]
backend = { kind = "openai", base_url = "OWN", id = "student" }
sampling = { temperature = 0.6, max_tokens = 64 }

[models.reviewer]
backend = { kind = "openai", base_url = "OTHER", id = "reviewer" }
sampling = { temperature = 0, max_tokens = 64 }

[benchmarks.tiny]
kind = "tinyhop"
limit = 50

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "tiny", split = "validation", model = "student", program = "sixteen" }
prompt = "answer"
roles = { reviewer = "reviewer" }
samples = 4
"""


def placed(folder, own, other):
    folder.mkdir()
    study = STUDY.replace("OWN", own.base_url).replace("OTHER", other.base_url)
    (folder / "study.toml").write_text(study.replace("IN_FLIGHT", str(IN_FLIGHT)))
    (folder / "sixteen.py").write_text(PROGRAM)
    return Place(folder, folder / "no_shim")


def served(*servers):
    return sum(server.stats()["served"] for server in servers)


def test_killed_programs_pay_for_no_step_twice_and_end_as_an_unbroken_run(tmp_path):
    draw, kills = random.Random(26), max(FEWEST, KILLS // 5 if KILLS < 100 else KILLS)
    with fault_server("--latency", "0.02") as own, fault_server("--latency", "0.02") as other:
        killed = placed(tmp_path / "killed", own, other)
        each = ROLLOUTS * STEPS // (kills + 1)
        for _ in range(kills):
            process = killed.start("run study.toml")
            until = served(own, other) + draw.randrange(1, 2 * each)
            while process.poll() is None and served(own, other) < until:
                time.sleep(0.005)
            process.kill()
            process.communicate(timeout=60)
        killed.run("run study.toml")
        counted = [server.stats() for server in (own, other)]
        unbroken = placed(tmp_path / "unbroken", own, other)
        unbroken.run("run study.toml")

    assert sum(stats["distinct"] for stats in counted) == ROLLOUTS * STEPS
    repeated = sum(stats["repeated"] for stats in counted)
    assert repeated <= kills * 2 * IN_FLIGHT, f"{repeated} repeated in {kills} kills"
    assert what_is_left(killed.folder / "runs") == what_is_left(unbroken.folder / "runs")
    check_artifacts(killed.folder / "runs")
    (path,) = killed.folder.glob("runs/**/files/steps.parquet")
    steps = pl.read_parquet(path, hive_partitioning=False)
    assert steps.height == ROLLOUTS * STEPS
    # in the order of the questions, and the samples of one are neighbours
    order = steps.select("question_id", "sample").unique(maintain_order=True)
    assert order["sample"].to_list() == [0, 1, 2, 3] * 50
    assert order["question_id"].to_list() == [
        name for name in order["question_id"].unique(maintain_order=True) for _ in range(4)
    ]
