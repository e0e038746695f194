"""A teacher's bad habits: each is a failed row under its own reason, and never a trace."""

import pytest

from mbt_cli.inference.journal import import_rows
from mbt_cli.stages.gates import Gates
from mbt_cli.stages.synthesize import SynthesizeStage
from tests.unit.teaching import GOOD, canned, questions, rows_of, work_of

FILL = " We read on and weigh each word of it with care." * 6


def stage(**fields):
    fields = {"make": "mbt_s", "teacher": "t", **fields}
    return SynthesizeStage(name="mbt-s", **fields)


def made_by(tmp_path, backend, **fields):
    work = work_of(stage(**fields), tmp_path, {"questions": questions(1)}, backend)
    return rows_of(stage(**fields), work), work


HABITS = {
    "cut at the limit": (GOOD.format(n=0), {"finish_reason": "length"}, "gate_not_finished"),
    "empty": ("", {}, "gate_empty"),
    "white space": (" \n ", {}, "gate_empty"),
    "thinks and says nothing": ("", {"reasoning": "City0, surely."}, "gate_reasoning_only"),
    "pastes its thinking": (FILL + GOOD.format(n=0), {"reasoning": FILL}, "gate_reasoning_in_text"),
    "heading": ("# Understanding\n" + GOOD.format(n=0), {}, "gate_markdown"),
    "bold": ("**Plan** " + GOOD.format(n=0), {}, "gate_markdown"),
    "draft": ("As the draft says, so be it. " + GOOD.format(n=0), {}, "gate_leak"),
    "given answer": ("The given answer is City0. " + GOOD.format(n=0), {}, "gate_leak"),
    "instructions": ("As instructed we begin. " + GOOD.format(n=0), {}, "gate_leak"),
    "nested think": ("So. <think>City0?</think> " + GOOD.format(n=0), {}, "gate_tags"),
    "inline think": ("<think>City0?</think> " + GOOD.format(n=0), {}, "gate_tags"),
    "answer tags": (GOOD.format(n=0) + " <answer>City0</answer>", {}, "gate_tags"),
    "wrong answer": (GOOD.format(n=1), {}, "gate_no_answer"),
    "one word": ("City0", {}, "gate_too_short"),
    "loops": (GOOD.format(n=0) + " and we look again at it all" * 40, {}, "gate_tail_loop"),
}


@pytest.mark.parametrize(("reply", "sent", "reason"), HABITS.values(), ids=HABITS)
def test_a_bad_habit_is_a_failure_of_its_own_name(tmp_path, reply, sent, reason):
    made, work = made_by(tmp_path, canned(reply, **sent))

    (failure,) = made["failure"]
    assert failure.partition(":")[0] == reason
    assert made["trace"].to_list() == [None]
    # the reply itself is kept as it came
    assert made["reply"].to_list() == [reply]
    stopped = {name: n for name, n in work.outcome.notes["gates"].items() if n}
    assert stopped == {reason.removeprefix("gate_"): 1}


def test_the_final_text_alone_becomes_the_trace(tmp_path):
    good = f"\n{GOOD.format(n=0)}\n"
    made, _ = made_by(tmp_path, canned(good, reasoning="They want City0; I was told so."))

    assert made["failure"].to_list() == [None]
    assert made["trace"].to_list() == [good.strip()]


def test_an_alias_is_the_answer_too(tmp_path):
    made, _ = made_by(tmp_path, canned(GOOD.format(n=0).replace("City0", "Town0")))

    assert made["failure"].to_list() == [None]


def test_a_gate_can_be_switched_off_for_a_stage(tmp_path):
    reply = "**Plan** " + GOOD.format(n=0)
    made, _ = made_by(tmp_path, canned(reply), gates=Gates(no_markdown=False))

    assert made["trace"].to_list() == [reply]


def test_the_same_text_again_is_dropped_and_another_question_is_not(tmp_path):
    work = work_of(
        stage(traces_per_question=3),
        tmp_path,
        {"questions": questions(2)},
        canned("x", by_question={f"q{n}": GOOD.format(n=n) for n in range(2)}),
    )

    made = rows_of(stage(traces_per_question=3), work)

    reasons = [f and f.partition(":")[0] for f in made["failure"]]
    assert reasons == [None, "gate_near_duplicate", "gate_near_duplicate"] * 2


def test_gates_changed_later_look_again_at_replies_that_were_paid_for(tmp_path):
    reply = "**Plan** " + GOOD.format(n=0)
    first, _ = made_by(tmp_path, canned(reply))
    first.write_parquet(tmp_path / "rows.parquet")
    again = tmp_path / "again"
    import_rows(tmp_path / "rows.parquet", again / "journal")

    made, work = made_by(again, canned(reply), gates=Gates(no_markdown=False))

    assert made["trace"].to_list() == [reply]
    assert (work.outcome.asked.sent, work.outcome.asked.reused) == (0, 1)


def test_what_a_server_fails_at_keeps_its_own_reason(tmp_path):
    made, work = made_by(tmp_path, canned("x", finish_reason="content_filter"))

    assert made["failure"].to_list() == ["content_filter"]
    assert work.outcome.notes["funnel"]["replied"] == 0
    assert not any(work.outcome.notes["gates"].values())
