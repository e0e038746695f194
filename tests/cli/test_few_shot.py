"""Worked examples, plain-text prompts and stop texts: what a base model is asked."""

import json

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer

STUDY = """
[study]
name = "shots"

[models.m]
backend = {{ kind = "openai", base_url = "{url}", client = "{client}" }}
id = "base-model"
sampling = {{ temperature = 0, max_tokens = 64, stop = ["Question:", "</s>"] }}

[benchmarks.sums]
kind = "gsm8k"
files = {{ train = "train.jsonl", test = "test.jsonl" }}
shots = {{ split = "train", count = 2 }}

[[stage]]
kind = "rollout"
matrix = {{ benchmark = "sums", split = "test", model = "m", prompt = ["{prompt}"] }}
"""


def write_study(folder, url="http://127.0.0.1:9/v1", client="own", prompt="gsm8k_shots"):
    def lines(name, numbers):
        records = [
            {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}.\n#### {n + 1}"}
            for n in numbers
        ]
        (folder / name).write_text("".join(json.dumps(one) + "\n" for one in records))

    lines("train.jsonl", range(10, 18))
    lines("test.jsonl", range(3))
    (folder / "shots.toml").write_text(STUDY.format(url=url, client=client, prompt=prompt))


@pytest.mark.parametrize("client", ["own", "sdk"])
def test_a_plain_text_is_continued_with_the_same_examples_for_every_question(
    mbt, workplace, client
):
    with ChatServer(reply="1 + 1 = 2.\n#### 2") as server:
        write_study(workplace, server.base_url, client)
        ran = mbt("run", "shots.toml")

    assert ran.code == 0, ran.err
    prompts = [body["prompt"] for body in server.bodies]
    assert len(prompts) == 3
    assert all("messages" not in body for body in server.bodies)
    assert all(body["stop"] == ["Question:", "</s>"] for body in server.bodies)
    heads = {prompt.rpartition("Question:")[0] for prompt in prompts}
    (head,) = heads
    assert head.count("Question: What is 1") == 2
    first = head.split("\n\n")[0].splitlines()
    number = int(first[0].split()[3])
    assert first[1:] == [f"Answer: {number} + 1 = {number + 1}.", f"#### {number + 1}"]
    assert {prompt.rpartition("\n\n")[2] for prompt in prompts} == {
        f"Question: What is {n} + 1?\nAnswer:" for n in range(3)
    }
    rows = pl.read_parquet(
        next((workplace / "runs/shots/rollout").rglob("rows.parquet")), hive_partitioning=False
    )
    assert rows["reply"].to_list() == [" 1 + 1 = 2.\n#### 2"] * 3
    assert rows["messages"][0][0]["role"] == "text"


def test_a_question_is_never_its_own_example(mbt, workplace):
    with ChatServer(reply="#### 2") as server:
        write_study(workplace, server.base_url)
        text = (workplace / "shots.toml").read_text().replace('split = "train"', 'split = "test"')
        (workplace / "shots.toml").write_text(text)
        ran = mbt("run", "shots.toml")

    assert ran.code == 0, ran.err
    for body in server.bodies:
        *examples, own = body["prompt"].split("\n\n")
        assert len(examples) == 2
        assert not any(own.splitlines()[0] == one.splitlines()[0] for one in examples)


def test_another_draw_is_another_prompt_and_an_unused_one_changes_nothing(mbt, workplace):
    with ChatServer(reply="#### 2") as server:
        write_study(workplace, server.base_url)
        assert mbt("run", "shots.toml").code == 0
        changed = mbt("run", "shots.toml", "--set", "benchmarks.sums.shots.seed=5")
        write_study(workplace, server.base_url, prompt="math")
        assert mbt("run", "shots.toml").code == 0
        unused = mbt("run", "shots.toml", "--set", "benchmarks.sums.shots.seed=5")

    assert changed.code == 1
    assert "shots.seed" in changed.err
    assert unused.code == 0, unused.err


def with_file(folder, count=", count = 2"):
    """The study with examples from a file of three, in an order that no draw gives."""
    records = [{"question": f"Q{n}?", "answer": f"R{n}.\n#### {n}"} for n in (9, 1, 5)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    text = (folder / "shots.toml").read_text()
    (folder / "shots.toml").write_text(
        text.replace(
            'shots = { split = "train", count = 2', f'shots = {{ file = "mine.jsonl"{count}'
        )
    )


@pytest.mark.parametrize(("count", "shown"), [(", count = 2", [9, 1]), ("", [9, 1, 5])])
def test_examples_of_a_file_are_its_first_ones_in_its_order(mbt, workplace, count, shown):
    with ChatServer(reply="#### 2") as server:
        write_study(workplace, server.base_url)
        with_file(workplace, count)
        ran = mbt("run", "shots.toml")

    assert ran.code == 0, ran.err
    heads = {body["prompt"].rpartition("\n\nQuestion:")[0] for body in server.bodies}
    assert heads == {"\n\n".join(f"Question: Q{n}?\nAnswer: R{n}.\n#### {n}" for n in shown)}


def test_a_file_of_examples_counts_by_its_content(mbt, workplace):
    with ChatServer(reply="#### 2") as server:
        write_study(workplace, server.base_url)
        with_file(workplace)
        assert mbt("run", "shots.toml").code == 0
        (workplace / "mine.jsonl").rename(workplace / "other.jsonl")
        moved = mbt("run", "shots.toml", "--set", "benchmarks.sums.shots.file=other.jsonl")
        with (workplace / "other.jsonl").open("a") as file:
            file.write('{"question": "Q7?", "answer": "R7.\\n#### 7"}\n')
        changed = mbt("run", "shots.toml", "--set", "benchmarks.sums.shots.file=other.jsonl")

    assert moved.code == 0, moved.err
    assert len(server.bodies) == 3
    assert changed.code == 1
    assert "shots.file" in changed.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("shots = { split", "#", "add `shots = "),
        ('split = "train", count = 2', "count = 2", "needs either `split` or `file`"),
        (", count = 2", "", "needs `count`"),
        (
            '{ split = "train"',
            '{ split = "train", file = "test.jsonl"',
            "needs either `split` or `file`",
        ),
        ('split = "train"', 'file = "none.jsonl"', "benchmarks.sums.shots.file"),
        ('split = "train", count = 2', 'file = "test.jsonl", count = 9', "has 3 questions for 9"),
        ("count = 2", "count = 0", "must be"),
        ("count = 2", "count = 9", "has 8 questions for 9 examples"),
        ("max_tokens = 64", 'max_tokens = "rest"', "give m a number"),
        ('split = "train"', 'split = "trian"', "trian"),
    ],
)
def test_what_cannot_be_asked_is_said(mbt, workplace, old, new, words):
    write_study(workplace)
    text = (workplace / "shots.toml").read_text()
    assert old in text
    (workplace / "shots.toml").write_text(text.replace(old, new))

    ran = mbt("run", "shots.toml")

    assert ran.code != 0
    assert words in ran.err


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("=== text ===\n{{ examples }} {{ question }}", "no `=== example ===`"),
        ("=== text ===\n{{ question }}\n=== user ===\nHi", "beside other turns"),
        ("=== example ===\n{{ gold }}\n=== text ===\n{{ question }}", "{{ gold }}"),
        ("=== example ===\n{{ question }}", "no prompt after its example"),
    ],
)
def test_a_wrong_template_names_what_is_wrong(mbt, workplace, prompt, words):
    write_study(workplace, prompt="mine.md")
    (workplace / "mine.md").write_text(prompt)

    ran = mbt("check", "shots.toml")

    assert ran.code == 2
    assert words in ran.err


def test_a_training_refuses_a_plain_text(mbt, workplace):
    write_study(workplace)
    with (workplace / "shots.toml").open("a") as file:
        file.write("""
[[stage]]
kind = "train"
preset = "sft"
matrix = { model = "m" }
data = "rollout"
target = "reply"
prompt = "plain.md"
""")
    (workplace / "plain.md").write_text("=== text ===\n{{ question }}")

    ran = mbt("check", "shots.toml")

    assert ran.code == 2
    assert "is plain text, which only a rollout sends" in ran.err


MBPP = """
[study]
name = "mbpp"

[models.m]
backend = {{ kind = "openai", base_url = "{url}" }}
id = "base-model"
sampling = {{ temperature = 0, max_tokens = 64, stop = ["[DONE]"] }}

[benchmarks.mbpp]
kind = "mbpp"
files = {{ prompt = "{file}", test = "{file}" }}
whole_file = true
shots = {{ split = "prompt", count = 3, seed = 17 }}
limit = {{ test = 4 }}

[[stage]]
kind = "rollout"
matrix = {{ benchmark = "mbpp", split = "test", model = "m", prompt = "mbpp_shots" }}
"""


def test_the_prompt_of_mbpp_is_that_of_lm_eval(mbt, workplace, shared):
    """`doc_to_text`, three examples with `code` and `[DONE]`, an empty line between."""
    file = shared / "data/mbpp/mbpp.jsonl"
    with file.open() as lines:
        records = {one["task_id"]: one for one in map(json.loads, lines)}

    def asked(task):
        tests = "\n".join(task["test_list"])
        return (
            f"You are an expert Python programmer, and here is your task: {task['text']} "
            f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
        )

    shots = "".join(f"{asked(records[n])}{records[n]['code']}\n[DONE]\n\n" for n in (2, 3, 4))
    with ChatServer(reply="def f(): ...") as server:
        (workplace / "mbpp.toml").write_text(MBPP.format(url=server.base_url, file=file))
        ran = mbt("run", "mbpp.toml")

    assert ran.code == 0, ran.err
    assert {body["prompt"] for body in server.bodies} == {
        shots + asked(records[n]) for n in range(11, 15)
    }
    assert all(body["stop"] == ["[DONE]"] for body in server.bodies)
