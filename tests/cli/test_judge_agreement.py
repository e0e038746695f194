"""Judges beside each other and beside human labels, from the manifest to the table."""

import csv
import json

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.conftest import SMALL_STUDY

ONE = 'matrix = { judge = ["answer_match"] }\njudge_model = "judge"'
TWO = 'matrix = { judge = ["answer_match"], judge_model = ["judge", "hard"] }\nvotes = 2'
HARD = """
[models.hard]
backend = { kind = "canned", replies = ['{"grade": "A"}', '{"grade": "B"}'] }
sampling = "plain"
"""
METRICS = '"tokens", "degeneration"]'
WITH = '"tokens", "degeneration", "judge_agreement"]\nhuman = "labels.csv"'
HEAD = "question_id,sample,prompt,label,comment"


def study(human=WITH):
    text = SMALL_STUDY.replace(ONE, TWO).replace(METRICS, human)
    if human != METRICS:
        text = text.replace('tables = ["main_results"]', 'tables = ["judge_agreement"]')
    assert TWO in text
    assert human in text
    return text + HARD


@pytest.fixture
def labelled(mbt, workplace):
    """A study with two judges, and labels for the rollouts with the prompt `answer`."""
    (workplace / "study.toml").write_text(study(METRICS))
    ran = mbt("rollout", "study.toml")
    assert ran.code == 0, ran.err
    rollouts = pl.read_parquet(
        next((workplace / "runs/small/base").rglob("prompt=answer/*.parquet"))
    )
    lines = [
        f"{row['question_id']},{row['sample']},answer,{'right' if row['answer'] else ''},fine"
        for row in rollouts.iter_rows(named=True)
    ]
    (workplace / "labels.csv").write_text("\n".join([HEAD, *lines, "gone,0,answer,wrong,"]))
    (workplace / "study.toml").write_text(study())
    return workplace


def test_a_study_with_labels_gets_a_table_of_agreement(labelled, mbt):
    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    folder = next((labelled / "runs/small/tables").rglob("judge_agreement.csv")).parent
    with (folder / "judge_agreement.csv").open() as file:
        rows = {(row["prompt"], row["judge"], row["against"]): row for row in csv.DictReader(file)}
    assert {key[1:] for key in rows if key[0] == "metacognitive"} == {
        ("judge", "hard"),
        ("judge", "own votes"),
        ("hard", "own votes"),
    }
    beside = rows["answer", "judge", "human"]
    answered = int(beside["pairs"])
    # humans call every answer right, and so does this judge
    assert 0 < answered < 12
    assert beside["both_right"] == str(answered)
    assert (beside["same"], beside["sensitivity"], beside["specificity"]) == ("100.0", "100.0", "")
    assert beside["kappa"] == ""
    text = (folder / "judge_agreement.md").read_text()
    assert "Kappa of judge beside human is a dash: all verdicts are the same value." in text
    assert f"1 of {answered + 1} labels are of no rollout of this cell" in text
    assert "drawn at random" in text
    for suffix in (".tex", ".html"):
        assert "corrected" in (folder / "judge_agreement").with_suffix(suffix).read_text()
    page = [path.read_text() for path in (folder / "report").rglob("*.js")]
    assert any("Agreement of judges" in text for text in page)
    # what the cell used is kept, and its lineage knows the content
    cell = next((labelled / "runs/small/scores").rglob("prompt=answer"))
    assert pl.read_parquet(cell / "files/labels.parquet").height == answered + 1
    assert len(json.loads((cell / "lineage.json").read_text())["spec"]["human"]["sha256"]) == 64


def test_other_labels_make_the_scores_stale(labelled, mbt):
    assert mbt("run", "study.toml").code == 0
    path = labelled / "labels.csv"
    moved = labelled / "elsewhere.csv"
    moved.write_text(path.read_text())

    same = mbt("status", "study.toml", "--set", "stage.scores.human=elsewhere.csv")
    path.write_text(path.read_text().replace("right", "wrong"))
    other = mbt("score", "study.toml")

    assert "stale" not in same.out, same.out
    assert other.code == 1
    assert "human.sha256" in other.err + other.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file `labels.csv`"),
        ("question_id,sample,prompt\na,0,answer", "`labels.csv` has no column `label`"),
        ("question_id,sample,label\na,0,1", "has no column `prompt`, in which the cells"),
        (f"{HEAD}\na,zero,answer,1,", "row 1: `sample` is `zero`, not a whole number"),
        (f"{HEAD}\na,0,answer,perhaps,", "the label `perhaps` is none of `A`, `B`, `C`, `1`"),
        (f"{HEAD}\na,0,answer,1,\na,0,answer,0,", "several labels for question_id `a`, sample `0`"),
        (f"{HEAD}\na,0,anwser,1,", "no label in `labels.csv` is for a cell of this stage"),
        (
            f"{HEAD}\na,0,answer,1,\nb,0,anwser,1,\nc,0,anwser,1,",
            "no prompt `anwser` in the study; did you mean `answer`? (2 labels)",
        ),
        (f"{HEAD}\na,0,answer,1,\nb,0,,1,", "no prompt `` in the study; there are `answer`"),
        (f"{HEAD}\na,0,answer,,", "the column `label` of `labels.csv` is empty"),
    ],
)
def test_wrong_label_files_are_named_by_check(mbt, workplace, content, message):
    (workplace / "study.toml").write_text(study())
    if content is not None:
        (workplace / "labels.csv").write_text(content)

    ran = mbt("check", "study.toml")

    assert ran.code == 2
    assert "`stage.scores.human`" in ran.err
    assert message in " ".join(ran.err.split())


def test_one_verdict_per_question_cannot_be_about_several_prompts(mbt, workplace):
    (workplace / "study.toml").write_text(study(WITH.replace("labels.csv", "metadata.human")))

    ran = mbt("check", "study.toml")

    assert ran.code == 2
    assert "differ in `prompt`" in " ".join(ran.err.split())


def test_labels_that_no_metric_reads_are_refused(mbt, workplace):
    (workplace / "labels.csv").write_text(f"{HEAD}\na,0,answer,1,")
    (workplace / "study.toml").write_text(study(WITH.replace(', "judge_agreement"', "")))

    ran = mbt("check", "study.toml")

    assert ran.code == 2
    assert "no metric reads it: add `judge_agreement` to `metrics`" in " ".join(ran.err.split())


def test_verdicts_of_humans_are_read_from_the_metadata(mbt, workplace):
    lines = [
        {"id": f"q{k}", "question": f"{k}?", "answer": "Oslo", "human": k % 2 == 0}
        for k in range(6)
    ]
    (workplace / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = study(WITH.replace("labels.csv", "metadata.human"))
    text = text.replace('kind = "tinyhop"\nlimit = 6', DATA)
    text = text.replace('prompt = ["answer", "metacognitive"]', 'prompt = ["answer"]')
    text = text.replace("samples = 2", "samples = 1")
    (workplace / "study.toml").write_text(text)

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    summary = pl.read_parquet(next((workplace / "runs/small/scores").rglob("summary.parquet")))
    (row,) = summary.filter(pl.col("metric") == "human_kappa:judge").to_dicts()
    facts = json.loads(row["settings"])
    assert facts["pairs"] == 6
    assert facts["both_right"] + facts["human_only"] == 3


DATA = 'kind = "question_answer"\nfiles = { validation = "data.jsonl" }'


SERVED = """
[models.parrot]
backend = { kind = "openai", base_url = "http://127.0.0.1:9/v1" }
id = "Qwen/Qwen3-0.6B"
sampling = "plain"

[models.judge]
backend = { kind = "openai", base_url = "http://127.0.0.1:9/v1" }
id = "%s"
sampling = "plain"

[benchmarks"""


def served(judge):
    head, rest = SMALL_STUDY.split("[models.parrot]")[0], SMALL_STUDY.split("[benchmarks", 1)[1]
    return head + (SERVED % judge).lstrip() + rest


@pytest.mark.parametrize(
    ("judge", "relation"),
    [
        ("qwen2.5-72b-instruct", "the same family, qwen"),
        ("qwen/qwen3-0.6b", "the same model"),
        ("gpt-oss-20b", None),
    ],
)
def test_check_names_a_judge_of_replies_of_its_own_kind(mbt, workplace, judge, relation):
    (workplace / "study.toml").write_text(served(judge))

    told = mbt("check", "study.toml", "--json")
    shown = mbt("check", "study.toml")

    assert told.code == 0, told.err
    found = json.loads(told.out)["self_preference"]
    if relation is None:
        assert found == []
        assert "self-preference" not in shown.out
    else:
        # once, although the judge reads two cells of the model
        (line,) = found
        assert f"judge judges replies of parrot ({relation})" in line
        assert line in " ".join(shown.out.split())


def test_a_table_of_verdicts_notes_a_judge_of_its_own_kind(mbt, workplace):
    with ChatServer(reply='{"grade": "A"} <answer>Oslo</answer>') as server:
        text = served("qwen2.5-72b-instruct").replace("http://127.0.0.1:9/v1", server.base_url)
        (workplace / "study.toml").write_text(
            text.replace("max_failed_share = 0", "max_failed_share = 1")
            .replace(
                'tables = ["main_results"]', 'tables = ["main_results", "degeneration", PLAIN]'
            )
            .replace("PLAIN", '{ kind = "difficulty", metrics = ["exact_match"] }')
        )
        ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    notes = {
        path.stem: "self-preference: judge judges replies of parrot" in path.read_text()
        for path in (workplace / "runs/small/tables").rglob("*.md")
    }
    assert notes == {"main_results": True, "degeneration": True, "difficulty": False}
