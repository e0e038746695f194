"""Questions about one document are one cluster of a score stage."""

import json

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.errors import UsageError
from mbt_cli.stages.inputs import question_clusters

STUDY = """
[study]
name = "documents"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.a]
backend = { kind = "canned", replies = ["<answer>Oslo</answer>"] }
sampling = "plain"

[models.b]
backend = { kind = "canned", replies = ["<answer>Oslo</answer>", "<answer>Rome</answer>"] }
sampling = "plain"

[benchmarks.mine]
kind = "question_answer"
files = { validation = "mine.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["mine"], split = ["validation"], model = ["a", "b"] }
prompt = "answer"
samples = 1

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match", "tokens"]
baseline = { model = "a" }
CLUSTER

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results", "paired_differences"]
"""


@pytest.fixture
def study(workplace):
    """Write a study of 24 questions in 6 documents with a `cluster`."""

    def write(cluster="", *, document=lambda n: n // 4):
        lines = [
            {"id": f"q{n}", "question": f"Question {n}?", "answer": "Oslo" if n % 8 < 4 else "Rome"}
            | {"info": {"source": document(n)}}
            for n in range(24)
        ]
        (workplace / "mine.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        (workplace / "documents.toml").write_text(STUDY.replace("CLUSTER", cluster))
        return workplace / "runs/documents"

    return write


CLUSTER = 'cluster = "metadata.info.source"'
NOTE = "Questions with the same metadata.info.source are one cluster: 24 questions in 6 clusters."


def summary(runs):
    (cell,) = runs.glob("scores/**/model=a")
    return pl.read_parquet(cell / "files/summary.parquet").row(0, named=True)


def test_a_cluster_column_widens_intervals_and_is_told(mbt, study):
    runs = study()
    assert mbt("run", "documents.toml", "-q").code == 0
    alone = summary(runs)
    study(CLUSTER)
    ran = mbt("run", "documents.toml", "-q", "--replace")

    assert ran.code == 0, ran.err
    found = summary(runs)
    assert found["value"] == alone["value"] == 0.5
    assert found["high"] - found["low"] > 1.5 * (alone["high"] - alone["low"])
    for table in ("main_results", "paired_differences"):
        assert NOTE in (runs / f"tables/files/{table}.md").read_text()
    assert NOTE in " ".join(mbt("report", "documents.toml").out.split())
    first, second = (str(next(runs.glob(f"scores/**/model={name}"))) for name in "ab")
    compared = mbt("compare", first, second)
    assert "24 questions in 6 clusters, the unit of intervals and tests" in compared.out


def test_a_cluster_that_holds_most_questions_is_told(mbt, study):
    runs = study(CLUSTER, document=lambda n: max(n - 11, 0))
    assert mbt("run", "documents.toml", "-q").code == 0

    note = "The largest cluster holds 50% of the questions; where one holds over 20%"
    assert note in (runs / "tables/files/main_results.md").read_text()


def test_clusters_may_be_named_for_one_benchmark(mbt, study):
    runs = study('cluster = { mine = "metadata.info.source" }')
    assert mbt("run", "documents.toml", "-q").code == 0

    assert json.loads(summary(runs)["settings"])["clusters"] == 6


def test_scores_without_clusters_keep_their_fingerprint(mbt, study):
    runs = study()
    assert mbt("run", "documents.toml", "-q").code == 0
    (cell,) = runs.glob("scores/**/model=a")

    assert "cluster" not in json.loads((cell / "lineage.json").read_text())["spec"]
    assert pl.read_parquet(cell / "rows.parquet").columns == [
        "question_id", "metric", "value", "n", "failed"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "place", "words"),
    [
        ('cluster = "documnt"', "stage.scores.cluster", "no column `documnt` of questions"),
        (
            'cluster = { mine = "hop" }',
            "stage.scores.cluster.mine",
            "no column `hop` of questions; did you mean `hops`?",
        ),
        (
            'cluster = { mines = "hops" }',
            "stage.scores.cluster",
            "no benchmark `mines`; did you mean `mine`?",
        ),
    ],
)
def test_check_names_a_wrong_column(mbt, study, cluster, place, words):
    study(cluster)

    told = mbt("check", "documents.toml")

    assert told.code == 2
    assert f"`{place}`" in told.err
    assert words in told.err


def test_a_column_that_no_question_has_is_named_with_the_nearest(mbt, study):
    study('cluster = "metadata.info.sourc"')

    told = mbt("run", "documents.toml", "-q")

    assert told.code == 2
    assert "no question of `questions/benchmark=mine/split=validation` has" in told.err
    assert "`metadata.info.sourc`; did you mean `metadata.info.source`?" in told.err


def test_questions_without_a_cluster_are_counted_and_one_is_named(mbt, study):
    study(CLUSTER, document=lambda n: None if n in (7, 9) else n // 4)

    told = mbt("run", "documents.toml", "-q")

    assert told.code == 2
    assert "2 of 24 questions" in told.err
    assert "have no `metadata.info.source`, such as `q7`" in told.err


def about(**documents):
    """Questions by id, each about documents with these titles."""
    found = [
        {"question_id": name, "context": [{"title": t, "sentences": [t]} for t in titles]}
        for name, titles in documents.items()
    ]
    return rows.frame_of_rows(found, rows.QUESTIONS).lazy()


def test_questions_with_the_same_documents_in_any_order_are_one_cluster():
    ids = pl.Series(["a", "b", "c"])

    found = question_clusters(about(a="xy", b="yx", c="x"), "context", ids, "mine").names

    a, b, c = found.sort("question_id")["cluster"]
    assert a == b != c
    with pytest.raises(UsageError, match="1 of 3 questions of `mine` have no `context`"):
        question_clusters(about(a="xy", b="", c="x"), "context", ids, "mine")
