"""Imports: a `source` gives the artifact that running the stage would make."""

from pathlib import Path

import orjson
import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.progress import Silent
from mbt_cli.engine.dry_run import dry_run
from mbt_cli.engine.runner import Runner, RunOptions
from mbt_cli.engine.states import States
from mbt_cli.errors import ManifestError, StageError, UsageError
from mbt_cli.settings import Machine
from mbt_cli.store.lineage import read_lineage

HEAD = """
[study]
name = "sourced"
seed = 1
max_failed_share = 0

[benchmarks.tiny]
kind = "tinyhop"
limit = 3

[[stage]]
"""
ROLLOUTS = (
    HEAD
    + """
kind = "rollout"
name = "theirs"
matrix = {{ benchmark = ["tiny"], split = ["validation"], model = ["their-model"] }}
samples = {samples}
source = {source}
"""
)
SCORED = """
[[stage]]
kind = "score"
name = "scores"
rollouts = { stage = "theirs", where = { model = "their-model" } }
metrics = ["exact_match"]
"""
TRACES = (
    HEAD
    + """
kind = "rewrite"
name = "mbt-r"
matrix = {{ benchmark = ["tiny"], split = ["validation"], model = ["qwen3-0.6b"] }}
make = "mbt_r"
traces_per_rollout = 2
source = {source}
{more}
"""
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Machine(runs=tmp_path / "runs")


@pytest.fixture
def make(load, machine):
    """Make every cell of a manifest; returns a reader of a stage's rows and lineage."""

    def made(text):
        manifest = load(text)
        Runner(manifest, machine, RunOptions()).run(list(manifest.cells), Silent())

        def read(stage):
            (address,) = (a for a in manifest.cells if a.startswith(f"{stage}/"))
            folder = machine.runs / manifest.study / address
            frame = pl.read_parquet(folder / "rows.parquet", hive_partitioning=False)
            return frame, read_lineage(folder)

        return read

    return made


@pytest.fixture
def questions(make):
    """The three questions."""
    text = ROLLOUTS.format(samples=1, source='"empty.jsonl"')
    write_lines("empty.jsonl", [{"question_id": "other", "reply": "x"}])
    with pytest.raises(StageError, match="is about a question of"):
        make(text)
    return pl.read_parquet("runs/sourced/questions/**/rows.parquet").to_dicts()


def write_lines(path, records):
    Path(path).write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))


def prediction(question, answer=None, **more):
    answer = answer or question["answer"]
    return {"id": question["question_id"], "text": f"So <answer>{answer}</answer>", **more}


def test_a_file_of_predictions_becomes_rollouts_and_a_score(make, questions):
    first, second, third = questions
    others = [prediction({"question_id": "tinyhop-unknown", "answer": "x"})]
    write_lines(
        "theirs.jsonl",
        [prediction(third), prediction(first), prediction(second, "Nowhere"), *others],
    )
    source = '{ from = "theirs.jsonl", columns = { question_id = "id", reply = "text" } }'

    read = make(ROLLOUTS.format(samples=1, source=source) + SCORED)

    rollouts, lineage = read("theirs")
    assert rollouts.schema == rows.ROLLOUTS
    assert rollouts["question_id"].to_list() == [q["question_id"] for q in questions]
    assert rollouts["answer"].to_list() == [first["answer"], "Nowhere", third["answer"]]
    assert lineage.notes["source"]["rows"] == 4
    assert set(lineage.notes["source"]["files"]) == {"theirs.jsonl"}
    assert lineage.notes["funnel"] == {
        "in the source": 4,
        "about these questions": 3,
        "taken": 3,
    }
    assert sum(read("scores")[0]["value"]) == 2


def test_missing_rows_are_failed_rows_and_surplus_rows_are_left_out(make, questions):
    first, second, _ = questions
    pl.DataFrame(
        [
            {"qid": first["question_id"], "answer": "a", "run": 1},
            {"qid": first["question_id"], "answer": "b", "run": 3},
            {"qid": second["question_id"], "answer": "c", "run": 2},
        ]
    ).write_parquet("theirs.parquet")
    source = (
        '{ from = "theirs.parquet", numbers_from = 1, '
        'columns = { question_id = "qid", sample = "run", answer = "answer" } }'
    )

    rollouts, _ = make(ROLLOUTS.format(samples=2, source=source))("theirs")

    ids = [q["question_id"] for q in questions]
    found = {(q, s): (a, f) for q, s, a, f in _keys(rollouts)}
    assert found == {
        (ids[0], 0): ("a", None),
        (ids[0], 1): (None, "not_in_source"),
        (ids[1], 0): (None, "not_in_source"),
        (ids[1], 1): ("c", None),
        (ids[2], 0): (None, "not_in_source"),
        (ids[2], 1): (None, "not_in_source"),
    }


def _keys(frame):
    return frame.select("question_id", "sample", "answer", "failure").rows()


def trace(question, number=0, **more):
    words = "We look at the documents one after the other and find what the step asks for. " * 2
    told = f"{words}{number}{number} The answer is {question['answer']}."
    return {"question_id": question["question_id"], "trace_id": number, "trace": told, **more}


def test_imported_traces_pass_the_same_gates(make, questions):
    first, second, third = questions
    write_lines(
        "traces.jsonl",
        [
            trace(second, 0, finish_reason="length"),
            trace(first, 0),
            trace(first, 1, trace="**We** see " + trace(first)["trace"]),
            trace(first, 7),
        ],
    )

    made, lineage = make(TRACES.format(source='"traces.jsonl"', more=""))("mbt-r")

    assert made.schema == rows.TRACES
    reasons = {
        (q, t): f and f.partition(":")[0]
        for q, t, f in made.select("question_id", "trace_id", "failure").rows()
    }
    assert reasons == {
        (first["question_id"], 0): None,
        (first["question_id"], 1): "gate_markdown",
        (second["question_id"], 0): "gate_not_finished",
        (third["question_id"], 0): "not_in_source",
    }
    assert lineage.notes["funnel"]["passed"] == 1
    assert made.filter(pl.col("failure").is_not_null())["trace"].is_null().all()


def test_a_published_data_set_is_read_by_its_preset(make, questions):
    folder = "metacognitive/mbt-r-hotpotqa/Qwen3-0.6B"
    Path(folder).mkdir(parents=True)
    pl.DataFrame(
        [
            {
                "metadata": {"id": q["question_id"]},
                "rollout_id": 1,
                "trace_id": 1,
                "valid": True,
                "refined_trace": trace(q)["trace"],
            }
            for q in questions
        ]
    ).write_parquet(f"{folder}/validation-00000-of-00001.parquet")

    made, lineage = make(TRACES.format(source='"hub:metacognitive/mbt-r-hotpotqa"', more=""))(
        "mbt-r"
    )

    assert made.select("sample", "trace_id", "rollout_sample").unique().rows() == [(0, 0, 0)]
    assert made["failure"].to_list() == [None] * 3
    assert lineage.model == {"name": "qwen3-0.6b", "role": "source", "backend": {"kind": "source"}}


def test_an_imported_cell_reads_only_questions_and_sends_no_requests(load, machine, questions):
    write_lines("traces.jsonl", [trace(questions[0])])
    inputs = 'rollouts = "theirs"\nsolutions = "solutions"\nteacher = "their-model"'
    manifest = load(TRACES.format(source='"traces.jsonl"', more=""))
    address = "mbt-r/benchmark=tiny/split=validation/model=qwen3-0.6b"

    cell = manifest.cells[address]

    assert cell.needs == ("questions/benchmark=tiny/split=validation",)
    assert cell.spec["models"] == {}
    (found,) = dry_run(manifest, machine, [address])
    assert found.requests is None
    with pytest.raises(ManifestError, match="no stage `theirs`"):
        load(TRACES.format(source='"traces.jsonl"', more=inputs))


def test_a_changed_source_makes_the_cell_stale(make, load, machine, questions):
    text = TRACES.format(source='"traces.jsonl"', more="")
    write_lines("traces.jsonl", [trace(q) for q in questions])
    make(text)
    address = "mbt-r/benchmark=tiny/split=validation/model=qwen3-0.6b"
    assert States(load(text), machine.runs)[address].status == "done"

    write_lines("traces.jsonl", [trace(q) for q in questions[:2]])

    assert States(load(text), machine.runs)[address].status == "stale"


@pytest.mark.parametrize(
    ("source", "more", "words"),
    [
        ('"gone.jsonl"', "", "no file `gone.jsonl`"),
        ('"hub:who/knows"', "", "needs `columns`: there is no preset for `who/knows`"),
        ('"hub:a/mbt-s-gpt-oss-120b"', "", "holds mbt_s; this stage makes mbt_r"),
        ('{ from = "empty.jsonl", colums = {} }', "", "did you mean `columns`?"),
    ],
    ids=["no file", "unknown set", "another kind", "a typo"],
)
def test_a_wrong_source_is_refused_before_anything_runs(load, questions, source, more, words):
    with pytest.raises(ManifestError, match=words):
        load(TRACES.format(source=source, more=more))


def test_without_a_source_the_fields_that_it_replaces_are_required(load):
    text = TRACES.format(source='"x"', more="").replace('source = "x"', "")
    model = '[models."qwen3-0.6b"]\nbackend = { kind = "canned", replies = ["x"] }\n[[stage]]'

    with pytest.raises(ManifestError) as raised:
        load(text.replace("[[stage]]", model))

    assert "`stage.mbt-r.teacher`: is required" in str(raised.value)
    assert "`stage.mbt-r.rollouts`: is required" in str(raised.value)


def test_an_incomplete_column_map_names_the_missing_column(make, questions):
    write_lines("odd.jsonl", [{"question_id": questions[0]["question_id"], "output": "x"}])

    with pytest.raises(UsageError, match="neither a `reply` nor an `answer`"):
        make(ROLLOUTS.format(samples=1, source='"odd.jsonl"'))
