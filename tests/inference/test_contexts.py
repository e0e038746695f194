"""Prompts that exceed the context: not sent where that is certain, and no fault of a teacher."""

import polars as pl
import pytest

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.core.progress import Silent
from mbt_cli.engine.runner import Runner, RunOptions
from mbt_cli.errors import StageError
from mbt_cli.inference.ask import ask
from mbt_cli.settings import Machine
from tests.inference.conftest import replies

LONG = "word " * 500
STUDY = """
[study]
name = "s"
seed = 1
max_failed_share = 0
[sampling.plain]
temperature = 0
max_tokens = 32
[models.m]
backend = { kind = "openai", base_url = "BASE", id = "m" }
sampling = "plain"
[benchmarks.questions]
kind = "question_answer"
files = { train = "questions.jsonl" }
[[stage]]
matrix = { benchmark = ["questions"], split = ["train"]STAGE
"""
SYNTHESIZE = """ }
kind = "synthesize"
name = "made"
make = "solution"
teacher = "m"
"""
ROLLOUT = """, model = ["m"] }
kind = "rollout"
name = "made"
prompt = "question"
samples = 1
"""


@pytest.mark.parametrize("told", ["by the backend", "by the server"])
def test_a_prompt_with_more_words_than_the_context_has_tokens_is_not_sent(
    serve, batch_of, progress, tmp_path, told
):
    prompts = [LONG if n == 17 else f"question {n}" for n in range(64)]
    options = ("--context", "400") if told == "by the server" else ()

    with serve(*options) as server:
        context = 400 if told == "by the backend" else None
        backend = OpenAIBackend(base_url=server.base_url, id="m", context=context)
        plan = batch_of("", prompts, backend=backend, origin=backend.origin())
        asked = ask(plan, tmp_path / "journal", progress)
        received = server.stats()["received"]

    failures = [reply.failure for _, reply in replies(plan, tmp_path / "journal")]
    assert failures[17].startswith("prompt_too_long: 500 words")
    assert failures.count(None) == 63
    assert (asked.sent, asked.failed, received) == (63, 1, 63)


def test_a_prompt_is_sent_where_it_may_fit_or_the_context_is_unknown(
    serve, batch_of, progress, tmp_path
):
    with serve() as server:
        for number, context in enumerate((None, 501)):
            backend = OpenAIBackend(base_url=server.base_url, id="m", context=context)
            asked = ask(batch_of("", [LONG], backend=backend), tmp_path / f"{number}", progress)
            assert (asked.sent, asked.failed) == (1, 0)


def test_too_long_prompts_fail_no_cell_of_a_teacher_but_one_of_a_student(
    serve, load, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lines = [{"question": f"Who? {LONG if n == 1 else n}", "answer": "Oslo"} for n in range(8)]
    pl.DataFrame(lines).write_ndjson(tmp_path / "questions.jsonl")
    machine = Machine(runs=tmp_path / "runs")

    def run(stage):
        with serve("--context", "450") as server:
            manifest = load(STUDY.replace("BASE", server.base_url).replace("STAGE", stage))
            Runner(manifest, machine, RunOptions()).run(list(manifest.cells), Silent())

    run(SYNTHESIZE)
    (rows,) = (tmp_path / "runs").rglob("made/**/rows.parquet")
    failures = pl.read_parquet(rows, hive_partitioning=False)["failure"].to_list()
    assert failures[1].startswith("prompt_too_long")
    with pytest.raises(StageError, match="prompt_too_long"):
        run(ROLLOUT.replace("made", "asked"))


def rows_of(runs):
    (path,) = runs.rglob("made/**/rows.parquet")
    return pl.read_parquet(path, hive_partitioning=False)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("300", "prompt_too_long: 5"),  # not sent: it has more words
        ('"rest"', "prompt_too_long"),  # the context of 450 tokens is too small
    ],
)
def test_a_limit_leaves_longer_prompts_out_counts_them_and_fails_no_cell(
    serve, load, tmp_path, monkeypatch, limit, words
):
    monkeypatch.chdir(tmp_path)
    lines = [{"question": f"Who? {LONG if n == 1 else n}", "answer": "Oslo"} for n in range(8)]
    pl.DataFrame(lines).write_ndjson(tmp_path / "questions.jsonl")
    stage = ROLLOUT.replace("samples = 1", f"samples = 3\nmax_prompt_tokens = {limit}")

    with serve("--context", "450") as server:
        manifest = load(STUDY.replace("BASE", server.base_url).replace("STAGE", stage))
        Runner(manifest, Machine(runs=tmp_path / "runs"), RunOptions()).run(
            list(manifest.cells), Silent()
        )
        received = server.stats()["received"]

    made = rows_of(tmp_path / "runs")
    failed = made.filter(pl.col("failure").is_not_null())
    assert (made.height, failed.height, received) == (24, 3, 21)
    assert failed["question_id"].n_unique() == 1
    assert sorted(failed["sample"]) == [0, 1, 2]
    assert failed["failure"].str.starts_with(words).all()
    (cell,) = (cell for cell in manifest.cells.values() if cell.kind == "rollout")
    assert cell.spec["max_prompt_tokens"] == (300 if limit == "300" else "rest")


@pytest.mark.parametrize(("limit", "failed"), [(9, 4), (10, 0)])
def test_a_prompt_over_the_limit_by_the_tokens_of_its_reply_has_none(
    serve, load, tmp_path, monkeypatch, limit, failed
):
    monkeypatch.chdir(tmp_path)
    lines = [{"question": f"Who? {n}", "answer": "Oslo"} for n in range(4)]
    pl.DataFrame(lines).write_ndjson(tmp_path / "questions.jsonl")
    stage = ROLLOUT.replace('"question"', '"as_is"') + f"max_prompt_tokens = {limit}\n"

    with serve() as server:  # says that each prompt has 10 tokens
        manifest = load(STUDY.replace("BASE", server.base_url).replace("STAGE", stage))
        Runner(manifest, Machine(runs=tmp_path / "runs"), RunOptions()).run(
            list(manifest.cells), Silent()
        )

    made = rows_of(tmp_path / "runs")
    left_out = made.filter(
        pl.col("failure") == "prompt_too_long: 10 tokens, `max_prompt_tokens` is 9"
    )
    assert left_out.height == failed
    assert left_out["reply"].null_count() == failed
    assert made["reply"].null_count() == failed


def test_the_order_by_seed_changes_neither_replies_nor_fingerprints(
    serve, load, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"q{n}", "question": f"Who? {n}", "answer": "Oslo"} for n in range(20)]
    pl.DataFrame(lines).write_ndjson(tmp_path / "questions.jsonl")
    found = {}
    with serve() as server:
        for more in ("", "shuffle_seed = 7\n"):
            study = STUDY.replace("BASE", server.base_url).replace("STAGE", ROLLOUT + more)
            manifest = load(study)
            runs = tmp_path / f"runs{len(more)}"
            Runner(manifest, Machine(runs=runs), RunOptions()).run(list(manifest.cells), Silent())
            (cell,) = (cell for cell in manifest.cells.values() if cell.kind == "rollout")
            found[more] = (rows_of(runs), cell.spec)

    (plain, spec), (other, shuffled_spec) = found.values()
    assert spec == shuffled_spec
    assert other["question_id"].to_list() != plain["question_id"].to_list()
    same = ["question_id", "sample", "request_key", "seed", "reply"]
    assert other.select(same).sort("question_id").equals(plain.select(same).sort("question_id"))
