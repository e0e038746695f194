"""Checkers of instructions: each follows its rule, and every reply gets a verdict."""

import json
import sys

import polars as pl
import pytest

from mbt_cli.benchmarks.if_multi_constraints import IFMultiConstraints
from mbt_cli.benchmarks.ifbench import IFBench
from mbt_cli.benchmarks.ifeval import IFEval
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import plugin_from, plugin_reference
from mbt_cli.errors import StageError, UsageError, VerificationError
from mbt_cli.verifiers.instructions import packages
from mbt_cli.verifiers.instructions.text import sentences
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier, loose_forms
from tests.unit.instruction_replies import ENGLISH, GERMAN, IFBENCH, IFEVAL, IFEVALG
from tests.unit.split_reading import read_split

SETS = {"ifeval": IFEVAL, "ifbench": IFBENCH, "ifevalg": {**IFEVAL, **IFEVALG}}
"""Set to the instructions with replies of our own."""
EACH = [(of, name) for of, cases in SETS.items() for name in cases]
TAGGED = "words:start_verb"
"""The instruction that needs NLTK's tagger, which is not beside a clone."""
HOSTILE = {
    "nothing": "",
    "white space": " \n\t \N{NO-BREAK SPACE}",
    "no letters": "1 2 3 ... !!! \N{SNOWMAN}",
    "other scripts": "İßé 水 नमस्ते 😀\N{ZERO WIDTH JOINER}\N{COMBINING ACUTE ACCENT} " * 50,
    "control characters": "a\x00b\r\n\x0b\x1c\ue000\ue001\N{REPLACEMENT CHARACTER}",
    "a line that never ends": "word " * 10_000,
    "empty lines": "\n" * 30_000 + "-",
    "open brackets": "[" * 30_000,
    "open titles": "<<" * 15_000,
    "quotes": "\"'" * 15_000,
    "dividers": "***\n" * 5_000,
    "periods": "p.s." * 5_000,
}


@pytest.fixture(autouse=True)
def _nltk_data(shared):
    """NLTK's data are beside the samples."""
    packages.require((), (packages.PUNKT, packages.STOPWORDS))


@pytest.fixture
def nltk_path(monkeypatch):
    """The folders in which NLTK looks for its data, to be changed for one test."""
    import nltk.data

    caches = (packages.package, packages.languages, packages.sentence_splitter, packages.tagger)
    for one in caches:
        one.cache_clear()
    yield lambda *folders: monkeypatch.setattr(nltk.data, "path", list(map(str, folders)))
    for one in caches:
        one.cache_clear()


def check(of, reply, *instructions, **settings):
    """A check of one reply: each instruction is an id, or an id with its arguments."""
    pairs = [one if isinstance(one, tuple) else (one, None) for one in instructions]
    names, kwargs = map(list, zip(*pairs, strict=True))
    metadata = {"instruction_id_list": names, "kwargs": kwargs}
    verifier = InstructionsVerifier(checkers=of, **settings)
    return verifier.check(reply, Question("q", "", "", metadata=metadata))


def part(of, name, reply):
    """The part of an instruction with the arguments of its case; skips without the tagger."""
    if name == TAGGED and reply.strip() and packages.data_path(packages.TAGGER) is None:
        pytest.skip("NLTK's tagger is not on this machine")
    return check(of, reply, (name, SETS[of][name][0])).parts[0]


def test_every_instruction_has_replies_of_our_own():
    known = {of: InstructionsVerifier(checkers=of).instructions() for of in SETS}

    assert {of: set(cases) for of, cases in SETS.items()} == known
    # IFEvalG names 54; four more have a checker without a name, and two share one
    assert {of: len(found) for of, found in known.items()} == {
        "ifeval": 25,
        "ifbench": 58,
        "ifevalg": 25 + 29 + 4,
    }


@pytest.mark.parametrize(("of", "name"), EACH)
def test_a_reply_that_follows_passes(of, name):
    found = part(of, name, SETS[of][name][1])

    assert (found.passed, found.passed_loose, found.detail) == (True, True, "")


@pytest.mark.parametrize(("of", "name"), EACH)
def test_a_reply_that_does_not_follow_fails_and_says_why(of, name):
    found = part(of, name, SETS[of][name][2])

    assert not found.passed
    assert found.detail.startswith("wanted ")


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("of", SETS)
def test_whatever_a_reply_is_each_instruction_gets_a_verdict(of, kind):
    cases = {name: case[0] for name, case in SETS[of].items() if name != TAGGED}

    found = check(of, HOSTILE[kind], *cases.items())

    assert [one.name for one in found.parts] == list(cases)
    if not HOSTILE[kind].strip():
        assert not any(one.passed or one.passed_loose for one in found.parts)


# --- strict and loose, all and a share


def test_a_phrase_that_never_ends_is_searched_once():
    phrase = {"phrase": "the owl sat.", "small_n": 1}
    # searching again from each first word would take hours
    assert not check("ifevalg", "the owl " * 125_000, ("copy:repeat_phrase", phrase)).passed


@pytest.mark.parametrize(
    ("reply", "followed"),
    [
        ("the owl sits. the", False),
        ("the cow sat.", True),
        ("the owl sat. the cow sat.", True),
        ("the\nowl sat. the cow sat.", False),
        ("the cow sat! the", True),
    ],
)
def test_a_phrase_occurs_within_a_line_and_its_marks_are_expressions(reply, followed):
    words = {"phrase": "the owl sat.", "small_n": reply.count("sat")}
    if reply == "the cow sat! the":
        words["phrase"] = "the owl sat!"
    assert check("ifevalg", reply, ("copy:repeat_phrase", words)).passed is followed


def test_the_eight_forms_of_a_reply():
    reply = "Sure:\n*one*\n* two\nBye"

    forms = [reply, *loose_forms(reply)]

    assert forms == [
        reply,
        "Sure:\none\n two\nBye",
        "*one*\n* two\nBye",
        "Sure:\n*one*\n* two",
        "*one*\n* two",
        "one\n two\nBye",
        "Sure:\none\n two",
        "one\n two",
    ]


def test_one_line_has_two_forms():
    assert loose_forms("**Yes**") == ["Yes"]
    assert loose_forms("Yes") == []


@pytest.mark.parametrize(
    ("reply", "strict", "loose"),
    [
        ("all good", True, True),
        ("Sure, here it is:\nall good", False, True),
        ("all good\nAny, or all?", False, True),
        ("Sure, ok:\nall good\nBye, now", False, True),
        ("all, good", False, False),
        ("Sure, ok:\nall, good\nBye, now", False, False),
    ],
)
def test_loose_forgives_the_first_and_the_last_line(reply, strict, loose):
    found = check("ifeval", reply, "punctuation:no_comma")

    assert (found.passed, found.passed_loose) == (strict, loose)


def test_loose_forgives_asterisks():
    ending = ("startend:end_checker", {"end_phrase": "the end"})

    found = check("ifeval", "**It is the end**", ending)

    assert (found.passed, found.passed_loose) == (False, True)


def test_each_part_may_follow_in_another_form():
    """The first instruction needs the last line left out, the second one keeps it."""
    reply = "one two\nthree, four"
    words = ("length_constraints:number_words", {"relation": "at least", "num_words": 4})

    found = check("ifeval", reply, "punctuation:no_comma", words)

    assert [one.passed for one in found.parts] == [False, True]
    assert (found.passed, found.passed_loose) == (False, True)


@pytest.mark.parametrize(("value", "expected"), [("all", 0.0), ("share", 2 / 3)])
def test_the_value_is_all_or_a_share(value, expected):
    rules = ["punctuation:no_comma", "detectable_format:title", "startend:quotation"]

    found = check("ifeval", '"<<A>> song"', *rules[:2], "change_case:english_capital", value=value)

    assert found.value == expected
    assert not found.passed


# --- details


def test_a_detail_has_what_was_wanted_and_what_was_found():
    words = ("length_constraints:number_words", {"relation": "at least", "num_words": 300})

    found = check("ifeval", "one two three", words)

    assert found.parts[0].detail == "wanted at least 300 words, found 3"


def test_a_long_reply_is_cut_in_a_detail():
    found = check(
        "ifeval", f"{'so ' * 500}", ("combination:repeat_prompt", {"prompt_to_repeat": "a"})
    )

    assert len(found.parts[0].detail) < 200


# --- thinking


@pytest.mark.parametrize(
    "reply",
    [
        "<think>Well, let me see, hm</think>\n\nall good",
        "Well, let me see, hm</think>all good\n",
        "[THINK]Well, hm[/THINK]all good",
    ],
)
def test_thinking_is_left_out(reply):
    found = check("ifeval", reply, "punctuation:no_comma", "detectable_format:json_format")

    assert [one.passed for one in found.parts] == [True, False]
    assert InstructionsVerifier(checkers="ifeval").answer(reply) == "all good"


@pytest.mark.parametrize(
    "reply", ["<think>all good</think>", "<think>all good", "<think></think> \n"]
)
def test_thinking_alone_follows_nothing(reply):
    found = check("ifeval", reply, "punctuation:no_comma")

    assert (found.passed, found.passed_loose) == (False, False)
    assert InstructionsVerifier(checkers="ifeval").answer(reply) is None


def test_a_reply_without_thinking_is_checked_as_it_is():
    """Its last line break is its own: without the last line it would be empty."""
    found = check("ifbench", "no\n", "format:no_whitespace")

    assert (found.passed, found.passed_loose) == (False, True)


# --- no verdict


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (("length_constraints:number_words", {"relation": "at least"}), "no `num_words`"),
        (("length_constraints:number_words", None), "no `num_words`"),
        (
            ("length_constraints:number_words", {"num_words": 3, "relation": "about"}),
            "the relation is `about`",
        ),
        (
            ("length_constraints:number_words", {"num_words": 2.5, "relation": "at least"}),
            "`num_words` is `2.5`, not a whole number",
        ),
        (
            ("length_constraints:number_words", {"num_words": 1e400, "relation": "at least"}),
            "`num_words` is `inf`, not a whole number",
        ),
        (
            ("length_constraints:number_words", {"num_words": 10**30, "relation": "at least"}),
            "which is too large",
        ),
        (("keywords:existence", {"keywords": []}), "`keywords` has no text"),
        (("startend:end_checker", {"end_phrase": ""}), "`end_phrase` is an empty text"),
        (("keywords:existence", {"keywords": "sun"}), "`keywords` is `sun`, not a list of texts"),
        (("keywords:frequency", {"keyword": 3}), "`keyword` is `3`, not a text"),
        (("count:pronouns", {"N": 3}), "`count:pronouns` is not an instruction of `ifeval`"),
    ],
)
def test_what_cannot_be_checked_has_no_verdict(instruction, message):
    with pytest.raises(VerificationError, match=message):
        check("ifeval", "one two", instruction)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"instruction_id_list": []},
        {"instruction_id_list": ["punctuation:no_comma"]},
        {"instruction_id_list": [["punctuation:no_comma"]], "kwargs": [{}]},
        {"instruction_id_list": 5, "kwargs": 5},
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["{}"]},
    ],
)
def test_a_question_without_instructions_has_no_verdict(metadata):
    verifier = InstructionsVerifier(checkers="ifeval")

    with pytest.raises(VerificationError):
        verifier.check("yes", Question("q", "", "", metadata=metadata))


def test_without_the_tagger_the_row_fails_and_is_never_wrong(nltk_path, shared):
    nltk_path(shared / "data/nltk_data")

    with pytest.raises(VerificationError, match=r"words:start_verb: .*tagger") as caught:
        check("ifbench", "Run home.", "format:no_whitespace", "words:start_verb")

    assert "mbt data fetch" in caught.value.hint


def test_with_the_tagger_the_first_word_decides(nltk_path, tmp_path, shared):
    """A tagger that knows two words, in the layout of NLTK's own."""
    folder = tmp_path / "taggers" / packages.TAGGER
    folder.mkdir(parents=True)
    for name, value in {
        "weights": {},
        "tagdict": {"Run": "VB", "Homes": "NNS", "home": "NN", ".": "."},
        "classes": ["NN", "NNS", "VB", "."],
    }.items():
        path = folder / f"{packages.TAGGER}.{name}.json"
        path.write_text(json.dumps(value))
    nltk_path(tmp_path, shared / "data/nltk_data")

    followed = [check("ifbench", r, "words:start_verb") for r in ("Run home.", "Homes home.")]

    assert [one.passed for one in followed] == [True, False]
    assert followed[1].parts[0].detail == "wanted a verb first, found `Homes` NNS"


# --- packages and data


def test_a_package_that_is_missing_names_the_command(monkeypatch, nltk_path):
    monkeypatch.setitem(sys.modules, "langdetect.detector_factory", None)

    with pytest.raises(UsageError, match="`langdetect` is needed") as caught:
        check("ifeval", GERMAN, ("language:response_language", {"language": "de"}))

    assert 'pip install "mbt-cli[instructions]"' in caught.value.hint


SENTENCE = ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 1})


@pytest.mark.parametrize(
    "act",
    [
        lambda: InstructionsVerifier(checkers="ifeval").prepare(),
        lambda: check("ifeval", "We go.", SENTENCE),
    ],
    ids=["prepare", "check"],
)
def test_data_that_are_missing_name_the_command(act, nltk_path):
    nltk_path()

    with pytest.raises(UsageError, match="`punkt_tab`") as caught:
        act()

    assert "mbt data fetch" in caught.value.hint


def test_the_same_text_always_has_the_same_language():
    """Short texts that langdetect is unsure about: its draws start from one seed."""
    words = ("language:response_language", {"language": "no"})

    found = {tuple(p.passed for p in check("ifeval", "det er", words).parts) for _ in range(20)}

    assert len(found) == 1


# --- as a verifier


def test_values_read_the_metadata_and_have_none_without_a_verdict():
    rows = [
        ("q1", "all good", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}),
        ("q1", "all, good", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}),
        ("q2", "all good", {"instruction_id_list": ["no:such"], "kwargs": [{}]}),
    ]
    frame = pl.DataFrame(
        {
            "question_id": [row[0] for row in rows],
            "reply": [row[1] for row in rows],
            "answer": ["", "", ""],
            "failure": [None, None, None],
            "gold_answer": ["", "", ""],
            "gold_aliases": [[], [], []],
            "metadata": [json.dumps(row[2]) for row in rows],
        },
        schema_overrides={"failure": pl.String, "gold_aliases": pl.List(pl.String)},
    )

    values = InstructionsVerifier(checkers="ifeval").values(frame)

    assert values.to_list() == [1.0, 0.0, None]


def test_a_training_gets_the_same_verifier():
    verifier = InstructionsVerifier(checkers="ifevalg", value="share")

    assert plugin_from(plugin_reference(verifier)) == verifier


def test_equal_replies_are_one_vote():
    verifier = InstructionsVerifier(checkers="ifeval")

    assert verifier.same("a b", "a b")
    assert not verifier.same("a b", "A b")


# --- sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("Dr. No met J. Bond Jr. in 3.5 hours.", ["Dr. No met J. Bond Jr. in 3.5 hours."]),
        ("See x.com. Go", ["See x.com.", "Go"]),
        ("Wait... what", ["Wait...", "what"]),
        ('He said "no." She left.', ['He said "no".', "She left."]),
        ("at 5 p.m. We ate", ["at 5 p.m. We ate"]),
        ("the U.S. It won", ["the U.S.", "It won"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences_by_the_rules_of_ifeval(text, expected):
    assert sentences(text) == expected


# --- benchmarks

RECORD = {
    "key": 7,
    "prompt": " Name a river. Use no comma. ",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{"relation": None}],
}
MULTI = {
    "key": "org/set_1",
    "messages": [{"role": "system", "content": "Hi"}, {"role": "user", "content": "Name a river."}],
    "ground_truth": "[{'instruction_id': ['copy:copy', 'keywords:word_once'], "
    "'kwargs': [{'prompt_to_repeat': \"It's\"}, {'keyword': 'blue'}]}]",
    "dataset": "ifeval",
    "constraint_type": "multi",
    "constraint": "Copy. Use blue once.",
}


def test_an_ifeval_record_becomes_a_question():
    question = IFEval().question(RECORD)

    assert (question.question_id, question.question) == ("7", "Name a river. Use no comma.")
    assert (question.answer, question.question_type) == ("", "punctuation:no_comma")
    assert question.metadata == {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


def test_an_ifbench_record_has_rules_of_its_own():
    record = {**RECORD, "instruction_id_list": ["format:no_whitespace"]}

    question = IFBench().question(record)

    assert IFBench.verifier.check("no", question).passed
    assert not IFBench.verifier.check("n o", question).passed


@pytest.mark.parametrize(
    "truth",
    [
        MULTI["ground_truth"],
        json.dumps(
            [
                {
                    "instruction_id": ["copy:copy", "keywords:word_once"],
                    "kwargs": [{"prompt_to_repeat": "It's", "N": None}, {"keyword": "blue"}],
                }
            ]
        ),
        [MULTI["ground_truth"]],
    ],
    ids=["python", "json", "list"],
)
def test_a_multi_constraints_record_becomes_a_question(truth):
    question = IFMultiConstraints().question({**MULTI, "ground_truth": truth})

    assert (question.question, question.question_type) == ("Name a river.", "several")
    assert question.metadata["kwargs"] == [{"prompt_to_repeat": "It's"}, {"keyword": "blue"}]
    assert question.metadata["key"] == "org/set_1"
    # the published reward: the share of the instructions that are followed
    assert IFMultiConstraints.verifier.check("it's", question).value == 0.5


def test_two_records_with_one_key_are_two_questions():
    other = {**MULTI, "messages": [{"role": "user", "content": "Name a sea."}]}

    assert len({IFMultiConstraints().question(one).question_id for one in (MULTI, other)}) == 2


@pytest.mark.parametrize(
    ("benchmark", "record", "message"),
    [
        (IFEval(), {**RECORD, "kwargs": []}, "1 instructions have 0 sets of arguments"),
        (IFEval(), {**RECORD, "instruction_id_list": ["format:list"]}, "not an instruction of"),
        (IFEval(), {**RECORD, "kwargs": ["x"]}, "should be an object"),
        (IFEval(), {"key": 1, "prompt": "Hi"}, "should be two lists"),
        (IFMultiConstraints(), {**MULTI, "ground_truth": "no"}, "neither JSON nor"),
        (IFMultiConstraints(), {**MULTI, "ground_truth": "[1, 2]"}, "should be one object"),
        (IFMultiConstraints(), {**MULTI, "messages": []}, "no message of the user"),
    ],
)
def test_a_malformed_record_says_what_is_wrong(benchmark, record, message):
    with pytest.raises(ValueError, match=message):
        benchmark.question(record)


def test_questions_without_answers_are_read_from_a_file_of_mbt(tmp_path):
    source = tmp_path / "input_data.jsonl"
    source.write_text(json.dumps(RECORD))
    first = read_split(IFEval(files={"test": str(source)}), "test").frame
    written = tmp_path / "questions.parquet"
    first.write_parquet(written)

    again = read_split(IFEval(files={"test": str(written)}), "test").frame

    assert again.equals(first)
    with pytest.raises(StageError, match="`answer` is empty"):
        read_split(_with_answers(written), "test")


def _with_answers(path):
    from mbt_cli.benchmarks.gsm8k import GSM8K

    return GSM8K(files={"test": str(path)})


@pytest.mark.parametrize(
    ("benchmark", "file", "count"),
    [
        (IFEval, "ifeval/input_data.jsonl", 541),
        (IFBench, "ifbench/IFBench_test.jsonl", 300),
    ],
)
def test_the_official_files_are_read_whole(benchmark, file, count, shared):
    found = read_split(benchmark(files={"test": str(shared / "data" / file)}), "test")

    assert found.frame.height == count
    assert not found.bad_rows
    assert found.frame["answer"].unique().to_list() == [""]


def test_the_official_splits_have_the_name_test_here():
    for benchmark in (IFEval, IFBench):
        assert benchmark(source="hub").official_size("test") is not None
        assert benchmark.hub.split_names == {"test": "train"}


def test_english_and_german_are_what_they_say():
    """The replies of our own stand for languages that langdetect knows."""
    for text, language in ((ENGLISH, "en"), (GERMAN, "de")):
        assert check("ifeval", text, ("language:response_language", {"language": language})).passed
