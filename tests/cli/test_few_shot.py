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


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("shots = { split", "#", "add `shots = "),
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
