"""The qualitative judge on a server: sides in requests of their own, and its own best grades."""

import re

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer

STUDY = """
[study]
name = "open"
seed = 1
max_failed_share = 0

[models.policy]
backend = {{ kind = "openai", base_url = "{url}" }}
sampling = {{ temperature = 0.5, max_tokens = 64 }}

[benchmarks.minds]
kind = "conceptual"
files = {{ test = "minds.json" }}

[judges.plain]
kind = "qualitative"

[judges.apart]
kind = "qualitative"
separate = true
order = "per_vote"
graded_examples = 2

[[stage]]
kind = "rollout"
name = "replies"
matrix = {{ benchmark = "minds", split = "test", model = "policy", prompt = "question" }}

[[stage]]
kind = "judge"
name = "judged"
rollouts = "replies"
matrix = {{ judge = "plain" }}
judge_model = "policy"
constrained = false

[[stage]]
kind = "judge"
name = "again"
rollouts = "replies"
graded = {{ stage = "judged", where = {{ judge = "plain" }} }}
matrix = {{ judge = "apart" }}
judge_model = "policy"
votes = 2
constrained = false

[[stage]]
kind = "score"
name = "scores"
rollouts = "replies"
verdicts = "again"
metrics = ["points"]
"""


class Panel(ChatServer):
    """Thinks "insight n" about question n; worth n points alone, and one less after a critic."""

    def reply_to(self, body):
        asked = body["messages"][-1]["content"]
        mind = re.findall(r"What is mind (\d)", asked)[-1]
        if "strongest honest case" in asked:
            return f"It is thin ({mind})."
        if "A critic says" in asked:
            return f"It is deep ({mind})."
        if "Answer this question yourself" in asked:
            return f"Nobody knows ({mind})."
        if "Reasoning to judge" in asked:
            heard = "A critic:" in asked
            return f"Weighed. <points>{int(mind) - heard} out of 10</points>"
        return f"insight {mind}"


@pytest.fixture
def study(workplace):
    minds = ", ".join(f'{{"id": "m{n}", "question": "What is mind {n}?"}}' for n in range(1, 5))
    (workplace / "minds.json").write_text(f"[{minds}]")
    with Panel() as server:
        (workplace / "study.toml").write_text(STUDY.format(url=server.base_url))
        yield workplace, server


def test_sides_are_requests_of_their_own_before_one_that_settles(mbt, study):
    folder, _ = study

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    (path,) = (folder / "runs/open/again").rglob("rows.parquet")
    rows = pl.read_parquet(path, hive_partitioning=False).sort("question_id", "vote")
    assert rows["points"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert rows["steps"].to_list() == [4] * 8
    steps = pl.read_parquet(path.parent / "files/steps.parquet")
    (first,) = steps.filter(question_id="m1").partition_by("sample")[:1]
    assert first["name"].to_list() == ["answer", "red", "blue", "qualitative"]
    assert first["parents"].to_list() == [[], [], [1], [0, 1, 2]]
    messages = dict(zip(first["name"], first["messages"], strict=True))
    assert "insight 1" not in messages["answer"][-1]["content"]
    assert "It is thin (1)." in messages["blue"][-1]["content"]
    last = messages["qualitative"][-1]["content"]
    for said in ("Nobody knows (1).", "It is thin (1).", "It is deep (1)."):
        assert last.count(said) == 1
    again = mbt("run", "study.toml")
    assert "0 model calls" in again.out + again.err


def test_its_best_grades_of_other_questions_are_examples(mbt, study):
    _, server = study

    ran = mbt("run", "study.toml", "--set", "stage.again.votes=6")

    assert ran.code == 0, ran.err
    shown = {n: set() for n in range(1, 5)}
    for body in server.bodies:
        asked = body["messages"][-1]["content"]
        if "A critic:" in asked:
            before, _, own = asked.partition("Reasoning to judge:")
            mind = int(re.findall(r"insight (\d)", own)[0])
            points = re.findall(r"insight (\d)\n\n<points>(\d) out of 10", before)
            shown[mind].add(tuple(points))
    both = {(("4", "4"), ("3", "3")), (("3", "3"), ("4", "4"))}
    # the two best of the other questions, in both orders over six votes
    assert shown[1] == shown[2] == both
    assert shown[3] == {tuple(reversed(one)) for one in shown[3]}
    assert {frozenset(one) for one in shown[3]} == {frozenset({("4", "4"), ("2", "2")})}
    assert {frozenset(one) for one in shown[4]} == {frozenset({("3", "3"), ("2", "2")})}


def test_a_critic_without_a_text_is_a_failure_and_no_points(mbt, study):
    folder, server = study
    whole, server.reply_to = (
        server.reply_to,
        lambda body: "<think>Hm" if "strongest" in body["messages"][-1]["content"] else whole(body),
    )

    mbt("run", "study.toml", "--set", "study.max_failed_share=1")

    (path,) = (folder / "runs/open/again").rglob("rows.parquet")
    rows = pl.read_parquet(path, hive_partitioning=False)
    assert rows["points"].null_count() == 8
    assert set(rows["failure"]) == {"unreadable_verdict: the request `red` had no text"}


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("judges.apart.graded_examples=0", "shows no graded rollouts with these settings"),
        ("judges.plain.graded_examples=1", "name the judge stage of them"),
        ('judges.plain.red_prompt="qualitative_red"', "`red_prompt` is for a request"),
        ('judges.apart.blue_prompt="nope"', "nope"),
    ],
    ids=["unused", "missing", "not_separate", "no_template"],
)
def test_settings_that_do_nothing_are_refused_by_check(mbt, study, setting, what):
    checked = mbt("check", "study.toml", "--set", setting)

    assert checked.code == 2
    assert what in checked.err
