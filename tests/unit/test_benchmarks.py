"""How official records become questions: hand-written rows here, real samples where they are."""

import os
from pathlib import Path

import orjson
import pytest
from pydantic import TypeAdapter

from mbt_cli.benchmarks.apps import APPS
from mbt_cli.benchmarks.gsm8k import GSM8K
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.humaneval import HumanEval
from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.benchmarks.mbpp import MBPP
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.core.questions import Document
from mbt_cli.registry import AnyBenchmark
from tests.unit.split_reading import read_split

HERE = Path(__file__).parent / "data"
SHARED = Path(os.environ.get("MBT_SHARED", Path(__file__).parents[3] / "shared")) / "data"


def rows_of(name):
    text = (HERE / name).read_text(encoding="utf-8")
    return (
        orjson.loads(text)
        if name.endswith(".json")
        else [orjson.loads(x) for x in text.splitlines()]
    )


def test_a_hotpotqa_record_becomes_a_question():
    question = HotpotQA().question(rows_of("hotpotqa/dev.json")[1])

    assert (question.question_id, question.answer) == ("h2", "Tromsø")
    assert question.context[0] == Document("{Left} & <Right>", ("A play by Kari Lund.",))
    # the third fact names a sentence that is not there, as some official rows do; it is kept
    assert question.supporting == (("{Left} & <Right>", 0), ("Kari Lund", 0), ("Kari Lund", 7))
    assert (question.question_type, question.hops) == ("bridge", 2)
    assert question.difficulty == "hard"  # three supporting facts
    assert question.metadata == {"level": "hard"}


def test_the_hubs_layout_of_hotpotqa_gives_the_same_question():
    official = rows_of("hotpotqa/dev.json")[0]
    hub = {
        "id": official["_id"],
        "question": official["question"],
        "answer": official["answer"],
        "type": official["type"],
        "level": official["level"],
        "supporting_facts": {"title": ["Red Kite", "Blue Owl"], "sent_id": [0, 1]},
        "context": {
            "title": [title for title, _ in official["context"]],
            "sentences": [sentences for _, sentences in official["context"]],
        },
    }

    assert HotpotQA().question(hub) == HotpotQA().question(official)


def test_a_musique_record_keeps_aliases_shape_and_paragraphs_of_one_title():
    first, second = (MuSiQue().question(row) for row in rows_of("musique/dev.jsonl"))

    assert first.answer_aliases == ("A. Vik", "Governor Vik")
    assert [document.title for document in first.context] == ["Lund", "Dal", "Lund"]
    assert first.supporting == (("Lund", 0), ("Dal", 0))
    assert (first.question_type, first.hops, first.difficulty) == ("2hop", 2, "easy")
    assert (second.question_type, second.hops, second.difficulty) == ("4hop1", 4, "hard")


def test_a_2wiki_record_keeps_its_evidence():
    first, second = (TwoWikiMultihopQA().question(r) for r in rows_of("2wikimultihopqa/dev.json"))

    assert (first.hops, first.difficulty) == (4, "hard")
    assert (second.hops, second.difficulty) == (2, "medium")
    assert second.metadata["evidences"][1] == ["Ola", "place of birth", "Voss"]
    assert second.metadata["answer_id"] == "Q3"


def test_a_gsm8k_answer_is_the_number_after_the_mark_without_commas():
    record = {"question": "How many?", "answer": "Forty times 25 is 1,000.\n#### 1,000"}

    question = GSM8K().question(record)

    assert (question.answer, question.answer_aliases) == ("1000", ("1,000",))
    assert question.metadata["solution"] == "Forty times 25 is 1,000."
    assert question.context == ()
    assert question.question_id == GSM8K().question(record).question_id


def test_a_gsm8k_answer_without_the_mark_is_refused():
    with pytest.raises(ValueError, match="####"):
        GSM8K().question({"question": "How many?", "answer": "40"})


@pytest.mark.parametrize(
    ("record", "question_id"),
    [
        ({"unique_id": "test/algebra/1.json"}, "test/algebra/1.json"),
        ({"id": "math500_0001"}, "math500_0001"),
    ],
)
def test_a_math500_record_keeps_its_id_level_and_subject(record, question_id):
    rest = {"problem": "1+1?", "solution": "2", "answer": "2", "level": 4, "subject": "Algebra"}

    question = MATH500().question(rest | record)

    assert question.question_id == question_id
    assert (question.question_type, question.difficulty) == ("Algebra", "hard")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_id": None}, "`_id` is missing"),
        ({"question": " "}, "`question` is empty"),
        ({"answer": 3}, "`answer` should be a string, not a number"),
        ({"context": None}, "`context` should be a list, not null"),
        ({"context": [["a", ["b"], "c"]]}, "not a pair"),
        ({"context": [["a", [1]]]}, "`context` should contain strings, not a number"),
        ({"supporting_facts": [["a", "0"]]}, "should contain numbers"),
        ({"context": {"title": ["a"], "sentences": []}}, "1 title for 0"),
    ],
)
def test_a_malformed_hotpotqa_record_says_what_is_wrong(change, message):
    record = rows_of("hotpotqa/dev.json")[0] | change

    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        HotpotQA().question(record)


@pytest.mark.parametrize(
    ("kind", "record", "expected"),
    [
        ("hotpotqa", {"level": "easy", "supporting_facts": [["a", 0]] * 4}, "easy"),
        ("hotpotqa", {"level": "medium", "type": "comparison"}, "medium"),
        ("hotpotqa", {"level": "hard", "supporting_facts": [["a", 0]] * 3}, "hard"),
        ("hotpotqa", {"level": "hard", "supporting_facts": {"title": ["a"] * 3}}, "hard"),
        ("hotpotqa", {"level": "hard", "type": "comparison", "supporting_facts": []}, "easy"),
        ("hotpotqa", {"level": None, "type": "bridge"}, "medium"),
        ("musique", {"id": "2hop__1_2", "answerable": False}, "hard"),
        ("musique", {"id": "3hop2__1_2_3", "answerable": True}, "medium"),
        ("2wikimultihopqa", {"type": "inference"}, "medium"),
        ("2wikimultihopqa", {"type": "comparison"}, "easy"),
        ("math500", {"level": "Level 5"}, "hard"),
        ("math500", {"level": 2}, "easy"),
        ("math500", {"level": "3"}, "medium"),
        ("gsm8k", {}, None),
        ("apps", {"difficulty": "introductory"}, "easy"),
        ("apps", {"difficulty": "competition"}, "hard"),
        ("apps", {"difficulty": "other"}, None),
        ("mbpp", {}, None),
    ],
)
def test_tiers_follow_each_data_sets_own_labels(kind, record, expected):
    benchmark = TypeAdapter(AnyBenchmark).validate_python({"kind": kind})

    assert benchmark.tier(record) == expected


def test_a_record_without_labels_has_no_tier():
    assert TwoWikiMultihopQA().tier({"type": "new"}) is None


@pytest.mark.parametrize(
    ("benchmark", "name", "count", "answer"),
    [
        (HotpotQA, "hotpotqa/hotpot_dev_distractor_v1.sample100.json", 100, "Rush"),
        (HotpotQA, "hotpotqa/hub_layout_validation.sample100.parquet", 100, "Rush"),
        (MuSiQue, "musique/musique_ans_v1.0_dev.sample100.jsonl", 100, "Stanley"),
        (TwoWikiMultihopQA, "2wikimultihopqa/dev.sample82.json", 82, "Free Guy"),
        (GSM8K, "gsm8k/test.jsonl", 1319, "18"),
        (MATH500, "math500/math500.jsonl", 500, r"\left( 3, \frac{\pi}{2} \right)"),
        (HumanEval, "humaneval/HumanEval.jsonl.gz", 164, None),
        (MBPP, "mbpp/mbpp.jsonl", 974, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_real_samples_are_read_whole(benchmark, name, count, answer):
    if not (SHARED / name).exists():
        pytest.skip(f"real samples are not at {SHARED}")
    made = benchmark(files={"validation": str(SHARED / name)})

    read = read_split(made)

    assert read.frame.height == count
    assert answer in (None, read.frame["answer"][0])
    assert read.bad_rows == ()


def test_the_official_file_of_mbpp_gives_each_split_its_own_tasks():
    file = str(Path(__file__).with_name("data") / "code/mbpp.jsonl")
    files = dict.fromkeys(("prompt", "test", "validation", "train"), file)

    whole = {
        name: read_split(MBPP(files=files, whole_file=True), name).frame
        for name in ("prompt", "test", "validation")
    }
    every = read_split(MBPP(files=files), "test").frame

    assert {name: frame["question_id"].to_list() for name, frame in whole.items()} == {
        "prompt": ["mbpp-2"],
        "test": ["mbpp-11", "mbpp-12"],
        "validation": ["mbpp-511"],
    }
    assert every.height == 4


def test_the_prompt_of_humaneval_keeps_its_last_line_break():
    record = {
        "task_id": "a/1",
        "prompt": 'def f():\n    """ One. """\n',
        "entry_point": "f",
        "canonical_solution": "    return 1\n",
        "test": "def check(c): assert c() == 1",
    }

    question = HumanEval().question(record)

    assert question.question == record["prompt"]
    assert question.metadata["prompt"] == record["prompt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_output": "{"}, "`input_output` is not JSON"),
        ({"input_output": "[]"}, None),
        ({"input_output": "[1]"}, "should be an object"),
        ({"question": " "}, "`question` is empty"),
        ({"solutions": ""}, None),
    ],
)
def test_a_malformed_apps_record_says_what_is_wrong(change, message):
    record = {"id": 3, "question": "Add.", "solutions": '["x"]', "input_output": "{}", **change}

    if message is None:
        assert APPS().question(record).question_id == "apps-3"
    else:
        with pytest.raises(ValueError, match=message):
            APPS().question(record)
