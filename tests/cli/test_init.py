"""A first manifest: right as it is written, for each place where a model can run."""

import json

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.cli.terminal import OnTerminal

FLAGS = {
    "embedded": (),
    "gpu": ("--model", "qwen3-4b", "--benchmark", "musique"),
    "cluster": (),
    "api": ("--model", "some-model", "--base-url", "https://example.org/v1"),
}
KEY = "sk-mine-0123456789abcdef"


def write_questions(folder, name="mine.jsonl", **more) -> str:
    records = [
        {"question": "Which river runs through Cairo?", "answer": ["Nile", "the Nile"], **more},
        {"question": "What is the capital of Norway?", "answer": "Oslo", **more},
    ]
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return name


@pytest.mark.parametrize("kind", FLAGS)
def test_each_kind_passes_the_check_exactly_as_written(mbt, workplace, kind):
    made = mbt("init", "first.toml", "--kind", kind, *FLAGS[kind], "--yes")
    checked = mbt("check", "first.toml")

    assert made.code == 0, made.err
    assert checked.code == 0, checked.err
    assert "study first, no problems" in checked.out
    text = (workplace / "first.toml").read_text()
    assert text.startswith("#:schema ./manifest.schema.json\n")
    assert (workplace / "manifest.schema.json").is_file()
    said = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(said) <= 26
    assert text.count("#") > 10
    assert "mbt doctor first.toml" in made.out


@pytest.mark.parametrize("benchmark", ["2wikimultihopqa", "gsm8k", "math500", "tinyhop"])
def test_other_benchmarks_pass_it_too(mbt, benchmark):
    assert mbt("init", "x.toml", "--kind", "gpu", "--benchmark", benchmark, "--yes").code == 0

    assert mbt("check", "x.toml").code == 0


def test_the_next_commands_are_those_of_the_place(mbt):
    cluster = mbt("init", "c.toml", "--kind", "cluster", "--yes").out
    hosted = mbt("init", "h.toml", "--kind", "api", "--model", "m", "--yes", OPENAI_API_KEY="").out

    assert "mbt plan c.toml | mbt submit --slurm --preset one-gpu" in cluster
    assert "export OPENAI_API_KEY=..." in hosted
    assert "mbt run h.toml" in hosted


def test_check_tells_of_a_key_that_is_not_set_and_of_an_address_without_a_path(mbt):
    mbt("init", "h.toml", "--kind", "api", "--model", "m", "--yes")

    bare = mbt(
        "check",
        "h.toml",
        "--set",
        "models.m.backend.base_url=https://example.org",
        OPENAI_API_KEY="",
    )
    right = mbt("check", "h.toml", OPENAI_API_KEY=KEY)

    assert (bare.code, right.code) == (0, 0)
    assert "`OPENAI_API_KEY` is not set: model m needs it" in bare.out
    assert "most servers answer at `https://example.org/v1`" in bare.out
    assert "not set" not in right.out
    assert KEY not in right.out


def test_a_file_that_is_there_is_never_written_over(mbt, workplace):
    before = (workplace / "study.toml").read_text()

    ran = mbt("init", "study.toml", "--yes")

    assert ran.code == 2
    assert "`study.toml` already exists" in ran.err
    assert (workplace / "study.toml").read_text() == before


def test_own_questions_and_an_endpoint_come_to_a_table(mbt, workplace):
    questions = write_questions(workplace)
    with ChatServer(reply="It is <answer>the Nile</answer>") as server:
        made = mbt(
            *("init", "own.toml", "--kind", "api", "--model", "org/model:free"),
            *("--base-url", server.base_url, "--api-key-env", "MY_KEY", "--questions", questions),
        )
        ran = mbt("run", "own.toml", MY_KEY=KEY, timeout=300)

    assert made.code == 0, made.err
    # the judge gets the same reply and cannot read it as a grade: that is said, not scored
    assert ran.code == 1, ran.err
    assert "unreadable_verdict" in ran.err
    scored = mbt("run", "own.toml", "--set", "study.max_failed_share=1", MY_KEY=KEY)
    assert scored.code == 0, scored.err
    table = pl.read_parquet(workplace / "runs/own/report/files/main_results.parquet")
    assert table.height == 1
    # one of two questions, by its second spelling
    assert "50.0" in scored.out
    assert server.keys == {f"Bearer {KEY}"}
    assert {body["model"] for body in server.bodies} == {"org/model:free"}


@pytest.mark.parametrize(
    ("record", "layout"),
    [
        ({"id": "1", "question": "Q?", "answer": "A"}, "question_answer"),
        ({"question": "Q?", "answer": "2 + 2 = 4\n#### 4"}, "gsm8k"),
        ({"problem": "Q?", "answer": "4", "unique_id": "a"}, "math500"),
        ({"_id": "1", "question": "Q?", "answer": "A", "context": [["T", ["S."]]]}, "hotpotqa"),
        (
            {
                "_id": "1",
                "question": "Q?",
                "answer": "A",
                "context": [["T", ["S."]]],
                "evidences": [],
            },
            "2wikimultihopqa",
        ),
        (
            {
                "id": "2hop__1",
                "question": "Q?",
                "answer": "A",
                "paragraphs": [{"title": "T", "paragraph_text": "S."}],
            },
            "musique",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_layout_of_own_questions_is_found(mbt, workplace, record, layout):
    (workplace / "mine.jsonl").write_text(json.dumps(record) + "\n")

    made = mbt("init", "own.toml", "--kind", "embedded", "--questions", "mine.jsonl", "--yes")

    assert made.code == 0, made.err
    assert f'kind = "{layout}"' in (workplace / "own.toml").read_text()
    assert mbt("check", "own.toml").code == 0


def test_documents_beside_the_questions_are_put_into_the_prompt(mbt, workplace):
    write_questions(workplace, context="Cairo lies on the Nile. Oslo is the capital of Norway.")

    mbt("init", "own.toml", "--kind", "embedded", "--questions", "mine.jsonl", "--yes")
    shown = mbt("rollout", "own.toml", "--dry-run", "--set", "stage.rollout.matrix.prompt=answer")

    assert "Document [0] (Title: 1) Cairo lies on the Nile." in shown.out, shown.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "no kind of study given"),
        (("--kind", "laptop"), "no kind of study `laptop`"),
        (("--kind", "gpu", "--model", "qwen3-0.6"), "did you mean `qwen3-0.6b`?"),
        (("--kind", "gpu", "--model", "smollm2-135m"), "served by `llamacpp`"),
        (("--kind", "gpu", "--base-url", "http://localhost:1/v1"), "--kind api"),
        (("--kind", "embedded", "--benchmark", "hotpot"), "did you mean `hotpotqa`?"),
        (("--kind", "embedded", "--benchmark", "question_answer"), "--questions"),
        (("--kind", "embedded", "--questions", "none.jsonl"), "no file `none.jsonl`"),
        (("--kind", "embedded", "--name", "my study"), "is not a valid study name"),
        (("--kind", "api"), "no model given"),
        (
            ("--kind", "api", "--model", "m", "--base-url", "example.org"),
            "not an http or https URL",
        ),
    ],
)
def test_a_wrong_answer_is_said_with_what_to_type_and_writes_nothing(mbt, workplace, flags, words):
    ran = mbt("init", "new.toml", *flags)

    assert ran.code == 2
    assert words in ran.err
    assert "hint:" in ran.err
    assert "Traceback" not in ran.err
    assert not (workplace / "new.toml").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--api-key-env", KEY),
        ("--base-url", f"https://me:{KEY}@example.org/v1"),
        ("--base-url", f"https://example.org/v1?key={KEY}"),
    ],
)
def test_a_key_given_by_mistake_is_neither_written_nor_shown(mbt, workplace, flags):
    ran = mbt("init", "new.toml", "--kind", "api", "--model", "m", *flags)

    assert ran.code == 2
    assert KEY not in ran.out + ran.err
    assert not (workplace / "new.toml").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"question": "Q?"}\n', "mine.jsonl:1: `answer` is missing"),
        ('{"question": "Q?", "answer": "A"}\nnot json\n', "mine.jsonl:2 is not JSON"),
        ("", "`mine.jsonl` is empty"),
        ('{"id": "1", "question": "Q?", "answer": "A"}\n' * 2, "duplicate question id"),
    ],
    ids=["no-answer", "no-json", "empty", "twice"],
)
def test_a_file_of_questions_that_cannot_be_read_is_told_line_by_line(
    mbt, workplace, content, words
):
    (workplace / "mine.jsonl").write_text(content)

    ran = mbt("init", "new.toml", "--kind", "embedded", "--questions", "mine.jsonl")

    assert ran.code == 2
    assert words in ran.err


def test_on_a_terminal_it_asks_and_a_flag_is_not_asked_for(workplace):
    questions = write_questions(workplace)
    run = OnTerminal(workplace, "init", "asked.toml", "--base-url", "http://127.0.0.1:9/v1")

    run.wait_for("Kind (embedded")
    run.type("apo")
    run.wait_for("did you mean `api`?")
    run.type("api")
    run.wait_for("name for the model")
    run.type("my-model")
    run.wait_for("never the key")
    run.type("sk-1234")
    run.wait_for("the name of a variable")
    run.type("")
    run.wait_for("your own file")
    run.type("absent.jsonl")
    run.wait_for("no file `absent.jsonl`")
    run.type(questions)
    code = run.finish()

    assert code == 0, run.shown
    assert "Address of the endpoint" not in run.shown
    text = (workplace / "asked.toml").read_text()
    assert 'id = "my-model"' in text
    assert "api_key_env" not in text  # this machine's own servers want none
    assert 'files = { validation = "mine.jsonl" }' in text
