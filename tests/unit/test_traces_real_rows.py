"""Real rows of three benchmarks through solution, mbt_s and mbt_r: counts, keys and lineage.

The teacher is canned: it names each question's gold answer, except for every fifth question.
"""

import json

import polars as pl
import pytest

from mbt_cli.core.progress import Silent
from mbt_cli.engine.runner import Runner, RunOptions
from mbt_cli.settings import Machine
from mbt_cli.store.lineage import read_lineage

COUNT = 30
FILES = {
    "hotpotqa": "hotpotqa/hotpot_dev_distractor_v1.sample100.json",
    "musique": "musique/musique_ans_v1.0_dev.sample100.jsonl",
    "2wikimultihopqa": "2wikimultihopqa/dev.sample82.json",
}
STUDY = """
[study]
name = "real"
seed = 1
max_failed_share = 0
[sampling.plain]
temperature = 0
max_tokens = 32
[models.student]
backend = {{ kind = "canned", replies = ["Perhaps this. <answer>Oslo</answer>"] }}
sampling = "plain"
[models.teacher.backend]
kind = "canned"
replies = ["x"]
by_question = {{ {replies} }}
[models.teacher]
sampling = "plain"
[benchmarks.{kind}]
kind = "{kind}"
files = {{ validation = {file} }}
limit = {count}
[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = ["{kind}"], split = ["validation"], model = ["student"] }}
prompt = "answer"
samples = 2
[[stage]]
kind = "synthesize"
name = "solutions"
matrix = {{ benchmark = ["{kind}"], split = ["validation"] }}
make = "solution"
teacher = "teacher"
[[stage]]
kind = "synthesize"
name = "mbt-s"
matrix = {{ benchmark = ["{kind}"], split = ["validation"] }}
make = "mbt_s"
teacher = "teacher"
gates = {{ phases = "off" }}
[[stage]]
kind = "rewrite"
name = "mbt-r"
make = "mbt_r"
rollouts = "base"
solutions = "solutions"
teacher = "teacher"
traces_per_rollout = 2
gates = {{ max_overlap = 1.0, phases = "off" }}
"""


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def told(answer, number):
    way = "We look for the document that names it, read it slowly, and check it once more. "
    return f"{way * 2}So we are sure of it. " + (f"The answer is {answer}." if number % 5 else "")


def rows(folder):
    return pl.read_parquet(folder / "rows.parquet", hive_partitioning=False)


@pytest.fixture(params=FILES)
def chain(request, load, tmp_path, monkeypatch, shared):
    """Every cell's folder, and the teacher's reply to each question in their order."""
    monkeypatch.chdir(tmp_path)
    machine = Machine(runs=tmp_path / "runs")
    kind = request.param
    fields = {"kind": kind, "file": quoted(str(shared / "data" / FILES[kind])), "count": COUNT}

    def run(replies, only=""):
        manifest = load(STUDY.format(replies=replies, **fields))
        addresses = [a for a in manifest.cells if a.startswith(only)]
        Runner(manifest, machine, RunOptions()).run(addresses, Silent())
        return {a.partition("/")[0]: machine.runs / manifest.study / a for a in addresses}

    answers = rows(run("", "questions")["questions"]).select("question_id", "answer").rows()
    replies = {q: told(answer, number) for number, (q, answer) in enumerate(answers)}
    return run(", ".join(f"{quoted(q)} = {quoted(r)}" for q, r in replies.items())), replies


def test_real_rows_go_through_the_chain_with_every_count_told(chain):
    folders, replies = chain

    solutions, traces = rows(folders["solutions"]), rows(folders["mbt-r"])

    failed = solutions.filter(pl.col("failure").is_not_null())
    assert failed["question_id"].to_list() == list(replies)[::5]
    assert set(failed["failure"]) == {"gate_no_answer: the text never names the gold answer"}
    # 6 of 30 questions have no solution, with 2 rollouts each; the rest has 2 traces a rollout,
    # of which the first of the question passes and the others say the same
    lineage = read_lineage(folders["mbt-r"])
    assert lineage.failures == {"solution_failed": 12, "gate_near_duplicate": 24 * 2 * 2 - 24}
    assert traces.height == 12 + 24 * 2 * 2
    assert {a.partition("/")[0] for a in lineage.inputs} == {"questions", "base", "solutions"}
    assert lineage.notes["funnel"]["with a solution"] == 48
    assert lineage.notes["funnel"]["passed"] == 24


def test_every_trace_is_about_its_own_question(chain):
    folders, replies = chain
    questions, traces = rows(folders["questions"]), rows(folders["mbt-r"])

    passed = traces.filter(pl.col("failure").is_null())

    good = {q: r.strip() for n, (q, r) in enumerate(replies.items()) if n % 5}
    assert dict(passed.select("question_id", "trace").rows()) == good
    asked = dict(questions.select("question_id", "question").rows())
    for row in passed.iter_rows(named=True):
        first, second, third = (turn["content"] for turn in row["messages"])
        assert asked[row["question_id"]] in first
        assert second == good[row["question_id"]]
        assert "Perhaps this." in third
