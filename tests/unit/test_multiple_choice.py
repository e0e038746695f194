"""Multiple choice: options in the forms of published data, and which answers name an option."""

import pytest

from mbt_cli.benchmarks.multiple_choice import MultipleChoice
from mbt_cli.core.benchmark_files import BenchmarkFiles
from mbt_cli.core.column_maps import mapped_record
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.questions import Question
from mbt_cli.store.questions import hub_request
from mbt_cli.verifiers.option import OptionVerifier, option_letter

CITIES = ["Lima", "Oslo", "Rome"]
TEXT = "Capital of Norway?\n\nA. Lima\nB. Oslo\nC. Rome"
GPQA = {
    "Question": "Which?",
    "Correct Answer": "right",
    "Incorrect Answer 1": "one",
    "Incorrect Answer 2": "two",
    "Incorrect Answer 3": "three",
    "Record ID": "rec1",
}
GPQA_COLUMNS = {
    "id": "Record ID",
    "question": "Question",
    "answer": "Correct Answer",
    "options": ["Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))],
}


@pytest.mark.parametrize(
    "fields",
    [
        {"options": CITIES, "answer_index": 1},
        {"options": CITIES, "answer_index": "1"},
        {"options": CITIES, "answer": "B"},
        {"options": CITIES, "answer": "Oslo"},
        {"options": {"text": CITIES, "label": ["1", "2", "3"]}, "answer": "2"},
        {"options": {"A": "Lima", "B": "Oslo", "C": "Rome"}, "answer": "b"},
        {"options": [*CITIES, None, ""], "answer": "B"},
    ],
    ids=["number", "text-of-csv", "letter", "exact-text", "labels", "object", "empty-options"],
)
def test_options_are_lists_or_objects(fields):
    made = MultipleChoice().question({"question": "Capital of Norway?", **fields})

    assert made.question == TEXT
    assert (made.answer, made.answer_aliases) == ("B", ("Oslo",))
    assert made.metadata["options"] == CITIES


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"options": CITIES}, "`answer` is missing"),
        ({"options": CITIES, "answer": "Paris"}, "no option"),
        ({"options": ["B", "A"], "answer": "A"}, "several options"),
        ({"options": CITIES, "answer": 1}, "answer_index"),
        ({"options": CITIES, "answer_index": 3}, "the options are 0 to 2"),
        ({"options": CITIES, "answer_index": True}, "not a whole number"),
        ({"options": ["one"], "answer": "A"}, "`options` has 1 texts"),
        ({"options": ["one", "two", ""], "answer": "C"}, "the right option has no text"),
        ({"options": {"text": ["a"], "label": []}, "answer": "A"}, "0 labels for 1 texts"),
        ({"answer": "A"}, "`options` is missing"),
    ],
)
def test_a_record_that_says_no_option_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        MultipleChoice().question({"question": "Capital?", **fields})


def test_shuffled_options_depend_on_seed_and_id_only():
    def shuffled(seed: int, **more: str) -> Question:
        record = mapped_record({**GPQA, **more}, GPQA_COLUMNS)
        return MultipleChoice(shuffle=True, shuffle_seed=seed).question(record)

    orders = {tuple(shuffled(seed).metadata["options"]) for seed in range(30)}
    first = shuffled(0)

    assert first == shuffled(0)
    assert len(orders) > 5
    for seed in range(30):
        made = shuffled(seed)
        assert made.metadata["options"]["ABCD".index(made.answer)] == "right"
    assert spec_of(MultipleChoice(shuffle=True)) != spec_of(MultipleChoice())
    letters = {shuffled(0, **{"Record ID": f"rec{n}"}).answer for n in range(30)}
    assert letters == set("ABCD")


def test_a_text_that_reads_as_a_letter_or_stands_twice_is_no_alias():
    def aliases(*options: str) -> tuple[str, ...]:
        record = {"question": "Q?", "options": list(options), "answer_index": 1}
        return MultipleChoice().question(record).answer_aliases

    assert aliases("B", "A") == ()
    assert aliases("x", "E. coli") == ()
    assert aliases("same", "Same.") == ()
    assert aliases("both", "A cat") == ("A cat",)


@pytest.mark.parametrize(
    "reply", ["B", "b", "(B)", "B.", "B)", "B) Oslo", "(B) Oslo", "**B**", "Option B", "B: Oslo",
              r"\\boxed{B}", r"$\\text{B}$", "The answer is B.", "Oslo", "oslo.", " OSLO "],
)  # fmt: skip
def test_a_letter_or_the_exact_text_names_the_option(reply):
    question = Question("q", TEXT, "B", ("Oslo",))
    reply = reply.replace("\\\\", "\\")

    assert OptionVerifier().check(f"Hm. <answer>{reply}</answer>", question).passed


@pytest.mark.parametrize(
    "reply", ["A", "A or B", "B or C", "A, B", "B, C", "A) Lima or B) Oslo", "(B) or (C)", "B/C",
              "B and C", "BC", "", "Oslo, Norway", "Be", "B & C", "not B"],
)  # fmt: skip
def test_two_letters_another_letter_or_other_words_are_wrong(reply):
    question = Question("q", TEXT, "B", ("Oslo",))

    assert not OptionVerifier().check(f"Hm. <answer>{reply}</answer>", question).passed


def test_articles_are_no_letters():
    assert option_letter("A") == "A"
    assert option_letter("A cat") is None
    assert not OptionVerifier().check("B is right", Question("q", TEXT, "B")).passed


def test_columns_and_filter_are_absent_from_older_fingerprints():
    assert not {"columns", "filter", "pattern"} & spec_of(BenchmarkFiles()).keys()
    assert {"columns", "filter"} <= spec_of(
        BenchmarkFiles(columns={"question": "q"}, filter={"subject": "law"})
    ).keys()


def test_any_repository_of_the_hub_has_a_path_for_its_files():
    def patterns(**fields: str) -> tuple[str, ...]:
        made = MultipleChoice(source="hub", repo="cais/mmlu", revision="abc", **fields)
        return hub_request(made, "test").patterns

    assert patterns() == ("data/test-*.parquet",)
    assert patterns(config="all") == ("all/test-*.parquet",)
    assert patterns(pattern="gpqa_{split}.csv") == ("gpqa_test.csv",)
