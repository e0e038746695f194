"""Synthesize: what the gates stop is a failed row with its reason; the rest becomes traces."""

import pytest

from mbt_cli.inference.journal import import_rows
from mbt_cli.stages.gates import Gates
from mbt_cli.stages.synthesize import SynthesizeStage
from tests.unit.teaching import GOOD, canned, questions, rows_of, work_of


def stage(**fields):
    fields = {"make": "mbt_s", "teacher": "t", **fields}
    return SynthesizeStage(name="mbt-s", **fields)


def made_by(tmp_path, backend, **fields):
    work = work_of(stage(**fields), tmp_path, {"questions": questions(1)}, backend)
    return rows_of(stage(**fields), work), work


STOPPED = {
    "cut at the limit": (GOOD.format(n=0), {"finish_reason": "length"}, "gate_not_finished"),
    "empty": ("", {}, "gate_empty"),
    "reasoning without a reply": ("", {"reasoning": "City0, surely."}, "gate_reasoning_only"),
    "bold": ("**Plan** " + GOOD.format(n=0), {}, "gate_markdown"),
    "wrong answer": (GOOD.format(n=1), {}, "gate_no_answer"),
}


@pytest.mark.parametrize(("reply", "sent", "reason"), STOPPED.values(), ids=STOPPED)
def test_a_stopped_reply_is_a_failed_row_with_the_name_of_its_gate(tmp_path, reply, sent, reason):
    made, work = made_by(tmp_path, canned(reply, **sent))

    (failure,) = made["failure"]
    assert failure.partition(":")[0] == reason
    assert made["trace"].to_list() == [None]
    # the reply itself is kept
    assert made["reply"].to_list() == [reply]
    stopped = {name: n for name, n in work.result.notes["gates"].items() if n}
    assert stopped == {reason.removeprefix("gate_"): 1}


def test_only_the_final_text_becomes_the_trace(tmp_path):
    good = f"\n{GOOD.format(n=0)}\n"
    made, _ = made_by(tmp_path, canned(good, reasoning="They want City0; I was told so."))

    assert made["failure"].to_list() == [None]
    assert made["trace"].to_list() == [good.strip()]


def test_an_alias_counts_as_the_answer(tmp_path):
    made, _ = made_by(tmp_path, canned(GOOD.format(n=0).replace("City0", "Town0")))

    assert made["failure"].to_list() == [None]


def test_a_gate_can_be_switched_off_for_a_stage(tmp_path):
    reply = "**Plan** " + GOOD.format(n=0)
    made, _ = made_by(tmp_path, canned(reply), gates=Gates(no_markdown=False))

    assert made["trace"].to_list() == [reply]


def test_a_repeated_text_is_dropped_and_other_questions_are_not_affected(tmp_path):
    work = work_of(
        stage(traces_per_question=3),
        tmp_path,
        {"questions": questions(2)},
        canned("x", by_question={f"q{n}": GOOD.format(n=n) for n in range(2)}),
    )

    made = rows_of(stage(traces_per_question=3), work)

    reasons = [f and f.partition(":")[0] for f in made["failure"]]
    assert reasons == [None, "gate_near_duplicate", "gate_near_duplicate"] * 2


def test_changed_gates_are_applied_to_saved_replies_without_new_requests(tmp_path):
    reply = "**Plan** " + GOOD.format(n=0)
    first, _ = made_by(tmp_path, canned(reply))
    first.write_parquet(tmp_path / "rows.parquet")
    again = tmp_path / "again"
    import_rows(tmp_path / "rows.parquet", again / "journal")

    made, work = made_by(again, canned(reply), gates=Gates(no_markdown=False))

    assert made["trace"].to_list() == [reply]
    assert (work.result.asked.sent, work.result.asked.reused) == (0, 1)


def test_a_failure_of_the_server_keeps_its_own_reason(tmp_path):
    made, work = made_by(tmp_path, canned("x", finish_reason="content_filter"))

    assert made["failure"].to_list() == ["content_filter"]
    assert work.result.notes["funnel"]["replied"] == 0
    assert not any(work.result.notes["gates"].values())
