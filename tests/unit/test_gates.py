"""Quality gates: every defect is stopped with its own reason; good texts pass."""

import pytest

from mbt_cli.core.chat import Reply
from mbt_cli.stages.gates import Asked, GateResults, Gates
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.number import NumberVerifier
from mbt_cli.verifiers.text import TextVerifier

GOOD = (
    "We are asked where the author of The Blue Door was born, so the answer is a town. The novel "
    "is by Tom Hale.\n\nThe document on Tom Hale says that he was born in Dover. Could it be "
    "another Hale? No, there is only one. So the answer is Dover."
)


FRENCH = "Nous cherchons la ville où il est né, et le document nous dit que c'est Dover."


def reason(results, reply, *, answers=("Dover",), question_id="q1"):
    """Name of the gate that stops the reply; None if it passes."""
    failure = results.check(Asked(question_id, answers), reply)["failure"]
    return failure and failure.removeprefix("gate_").partition(":")[0]


def problem(text, *, finish="stop", reasoning=None, answers=("Dover",), **settings):
    return reason(GateResults(Gates(**settings)), Reply(text, reasoning, finish), answers=answers)


def test_without_gates_every_text_but_an_empty_one_passes():
    assert problem("**Calais**", finish="length", enabled=False) is None
    assert problem(" ", enabled=False) == "empty"


def test_a_good_trace_passes_every_gate():
    assert problem(GOOD) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("  \n ", "empty"),
        (f"<think>{GOOD}</think> {GOOD}", "tags"),
        (f"{GOOD} <answer>Dover</answer>", "tags"),
        (f"[THINK]{GOOD}[/THINK]", "tags"),
        (f"## Understanding\n\n{GOOD}", "markdown"),
        (f"{GOOD}\n\n**Dover** it is.", "markdown"),
        (f"{GOOD}\n\n- first this\n- then that", "markdown"),
        (f"1. We look.\n2. We find.\n\n{GOOD}", "markdown"),
        (f"```\n{GOOD}\n```", "markdown"),
        (f"{GOOD}\n\n| a | b |\n", "markdown"),
        (f"As the draft says, it is Dover. {GOOD}", "leak"),
        (f"The original draft was wrong. {GOOD}", "leak"),
        (f"The student's reasoning stops here. {GOOD}", "leak"),
        (f"{GOOD} The provided answer is Dover.", "leak"),
        (f"{GOOD} This agrees with the gold answer.", "leak"),
        (f"{GOOD} The answer was given.", "leak"),
        (f"According to the solution, it is Dover. {GOOD}", "leak"),
        (f"As instructed, we go on. {GOOD}", "leak"),
        (f"We follow the five phases. {GOOD}", "leak"),
        (f"Phase 1: we look.\n\n{GOOD}", "markdown"),
        (f"Here is the rewritten thinking. {GOOD}", "leak"),
        ("So it is Dover.", "too_short"),
        (GOOD.replace("Dover", "Calais"), "no_answer"),
        (GOOD + " So the answer is Dover, that is to say it." * 12, "tail_loop"),
        (f"{FRENCH}\n\n{GOOD}", "language"),
        (f"{GOOD} I cannot assist with this request.", "refusal"),
        (f"{GOOD} <|im_end|>", "tags"),
        (GOOD.replace("So the answer is Dover.", "So the answer is Calais."), "conclusion"),
        (f"Planning:\n{GOOD}", "markdown"),
    ],
)
def test_a_defect_is_stopped_by_its_own_gate(text, expected):
    assert problem(text) == expected


@pytest.mark.parametrize("finish", ["length", "content_filter", None])
def test_a_truncated_reply_is_not_training_data(finish):
    assert problem(GOOD, finish=finish) == "not_finished"


def test_reasoning_without_a_reply_is_stopped():
    assert problem("", reasoning=GOOD) == "reasoning_only"


def test_reasoning_copied_into_the_reply_is_stopped():
    assert problem(f"{GOOD} Done.", reasoning=GOOD) == "reasoning_in_text"


def test_separate_reasoning_passes():
    assert problem(GOOD, reasoning="I should write this with care." * 20) is None


@pytest.mark.parametrize(
    "sentence",
    [
        "He was picked twelfth in the draft of 2003.",
        "Ann was a student of Tom.",
        "The student newspaper was founded in 1920.",
        "The prompt arrival surprised all.",
        "Two to the fifth is 2**5 and 2**6 is twice that.",
        "Phase 2 of the trial began in 1999, as the document says.",
        "1914 was the year. It is a given that he was there.",
    ],
)
def test_plain_words_that_look_like_leaks_pass(sentence):
    assert problem(f"{GOOD} {sentence}") is None


def test_an_alias_counts_as_the_answer():
    assert problem(GOOD, answers=("Port of Kent", "dover")) is None


def test_an_answer_must_occur_as_a_whole_word():
    text = GOOD.replace("Dover", "Norway").replace(" No,", " Surely not,")

    assert problem(text, answers=("no",)) == "no_answer"


def test_an_answer_of_punctuation_is_found_verbatim():
    text = f"{GOOD} The sign is +."

    assert problem(text, answers=("+",)) is None
    assert problem(GOOD, answers=("+",)) is not None


def test_the_second_of_two_equal_traces_is_dropped_and_other_questions_are_not_affected():
    results = GateResults(Gates(conclusion=False))
    same = Reply(GOOD, None, "stop")
    # the same words without a common run of five
    other = Reply(" ".join(reversed(GOOD.split())), None, "stop")

    assert reason(results, same) is None
    assert reason(results, same) == "near_duplicate"
    assert reason(results, other) is None
    assert reason(results, same, question_id="q2") is None


def test_a_failed_trace_does_not_count_as_an_earlier_one():
    results = GateResults(Gates())

    assert reason(results, Reply(GOOD, None, "length")) == "not_finished"
    assert reason(results, Reply(GOOD, None, "stop")) is None


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"no_tags": False}, f"{GOOD} <answer>Dover</answer>"),
        ({"no_markdown": False}, f"{GOOD}\n\n**Dover** it is."),
        ({"no_leaks": False}, f"{GOOD} The provided answer is Dover."),
        ({"min_words": 0}, "So it is Dover."),
        ({"names_answer": False, "conclusion": False}, GOOD.replace("Dover", "Calais")),
        ({"conclusion": False}, GOOD.replace("So the answer is Dover.", "The answer is Calais.")),
        ({"no_refusals": False}, f"{GOOD} I'm sorry, but I can't help with that."),
        ({"language": "any"}, f"{FRENCH}\n\n{GOOD}"),
        ({"no_tail_loop": False}, GOOD + " So the answer is Dover, that is to say it." * 12),
    ],
)
def test_each_gate_can_be_switched_off(setting, text):
    assert problem(text) is not None
    assert problem(text, **setting) is None


def test_users_can_add_leak_patterns():
    assert problem(GOOD, leak_patterns=("another hale",)) == "leak"


def test_a_copy_of_the_documents_is_stopped_and_a_short_quotation_is_not():
    documents = " ".join(f"Hale wrote novel number {n} in the year {1900 + n}." for n in range(40))
    asked = Asked("q1", ("Dover",), "Where was the author of The Blue Door born?", documents)
    quoting = f'{GOOD} The text says: "Hale wrote novel number 3 in the year 1903." It is Dover.'
    copy = f"{documents} The answer is Dover."

    assert GateResults(Gates()).check(asked, Reply(quoting, None, "stop"))["failure"] is None
    failure = GateResults(Gates()).check(asked, Reply(copy, None, "stop"))["failure"]
    assert failure.startswith("gate_copied: 0.9")
    tuned = GateResults(Gates(max_copied=1))
    assert tuned.check(asked, Reply(copy, None, "stop"))["failure"] is None


def test_phases_are_asked_of_five_phase_traces_that_a_teacher_writes():
    one_paragraph = Reply(GOOD.replace("\n\n", " "), None, "stop")
    asked = Asked("q1", ("Dover",))

    def failure(make, **settings):
        return GateResults(Gates(**settings), make=make).check(asked, one_paragraph)["failure"]

    assert failure("mbt_s") == failure("mbt_r") == "gate_phases: 1 paragraphs for 5 phases"
    assert failure("solution") is failure("plain") is failure(None) is None
    assert failure("mbt_s", phases="off") is None
    assert failure("plain", phases="order") == "gate_phases: 1 paragraphs for 5 phases"


@pytest.mark.parametrize(
    ("verifier", "gold", "end", "passes"),
    [
        (NumberVerifier(), "1080", "So she pays 2 * 540 = $1,080.00 in 3 weeks.", True),
        (NumberVerifier(), "540", "So she pays 2 * 540 = $1,080.00 in 3 weeks.", False),
        (NumberVerifier(), "72", "The answer is 72, which is 48 + 24.", True),
        (NumberVerifier(), "48", "The answer is 72 and not 48.", False),
        (MathVerifier(), "\\frac{3}{4}", "The answer is $\\frac{3}{4}$.", True),
        (MathVerifier(), "\\frac{3}{4}", "Thus we get \\boxed{\\frac{3}{4}}.", True),
        (MathVerifier(), "\\frac{3}{4}", "Thus we get \\boxed{\\frac{1}{4}}.", False),
        (TextVerifier(), "Abdul Kalam", "The person is A. P. J. Abdul Kalam.", True),
        (TextVerifier(), "Lyons' death", "The event was Lyons\u2019 death.", True),
        (TextVerifier(), "X-ray", "So the answer is the X\u2011ray.", True),
        (TextVerifier(), "yes", "There is no doubt left, so the answer is yes.", True),
        (TextVerifier(), "no", "There is no doubt left, so the answer is yes.", False),
    ],
)
def test_the_conclusion_is_compared_by_the_rule_of_the_benchmark(verifier, gold, end, passes):
    found = GateResults(Gates(min_words=0, names_answer=False), verifier).check(
        Asked("q1", (gold,)), Reply(f"We work it out step by step. {end}", None, "stop")
    )

    assert (found["failure"] is None) == passes, found
