"""Outcomes are given on in the requests' order while others are in flight."""

import pytest

from mbt_cli.core.chat import Reply
from mbt_cli.errors import BackendError
from mbt_cli.inference.ask import ask, replies
from mbt_cli.inference.journal import JournalWriter


class Taken(list):
    """What was given on, and how many rows the progress had when the first of them came."""

    def __init__(self, progress):
        self._progress = progress
        self.done_at_first = None

    def __call__(self, request, reply):
        if self.done_at_first is None:
            self.done_at_first = self._progress.counts["done"]
        self.append((request, reply))

    @property
    def ids(self):
        return [request.question_id for request, _ in self]


@pytest.fixture
def taken(progress):
    return Taken(progress)


def test_outcomes_come_in_the_requests_order_before_all_are_there(
    asking, serve, progress, taken, tmp_path
):
    with serve("--latency", "0.05", "--fail", "0.2", "--drop", "0.1") as server:
        plan = asking(server.base_url, [f"question {n}" for n in range(80)], concurrency=8)
        ask(plan, tmp_path / "journal", progress, take=taken)

    assert taken == list(replies(plan, tmp_path / "journal"))
    assert taken.ids == [str(n) for n in range(80)]
    assert {reply.failure for _, reply in taken} == {None}
    assert taken.done_at_first < 80


def test_one_that_is_asked_again_holds_up_those_behind_it(asking, serve, progress, taken, tmp_path):
    prompts = ["BROKEN", *(f"question {n}" for n in range(20))]
    with serve() as server:
        plan = asking(server.base_url, prompts, concurrency=4, max_attempts=2)
        ask(plan, tmp_path / "journal", progress, take=taken)

    assert taken.done_at_first == 21
    assert taken.ids == [str(n) for n in range(21)]
    assert taken[0][1].failure.startswith("http_500")


def test_an_earlier_run_s_failure_is_not_given_on_before_its_new_outcome(
    asking, serve, progress, taken, tmp_path
):
    with serve("--latency", "0.05") as server:
        plan = asking(server.base_url, [f"question {n}" for n in range(12)], concurrency=2)
        known = list(plan.requests())
        with JournalWriter(tmp_path / "journal", "0") as writer:
            for request in known[::2]:
                writer.append(request.key, Reply(failure="timeout: 60 s"), 0)
            for request in known[1::2]:
                writer.append(request.key, Reply(text="kept", finish_reason="stop"), 0)
        asked = ask(plan, tmp_path / "journal", progress, take=taken)

    assert (asked.sent, asked.reused) == (6, 6)
    assert [request for request, _ in taken] == known
    assert {reply.failure for _, reply in taken} == {None}
    assert [reply.text == "kept" for _, reply in taken] == [False, True] * 6


def test_of_several_tries_for_the_content_the_last_is_given_on(
    asking, serve, progress, taken, tmp_path
):
    with serve() as server:
        plan = asking(
            server.base_url,
            [f"CUT-ONCE {n}" for n in range(30)],
            retry_on=("length",),
            content_attempts=8,
        )
        ask(plan, tmp_path / "journal", progress, take=taken)

    assert {reply.finish_reason for _, reply in taken} == {"stop"}
    assert taken == list(replies(plan, tmp_path / "journal"))


def test_equal_requests_are_given_on_each(asking, serve, progress, taken, tmp_path):
    with serve() as server:
        plan = asking(server.base_url, ["same"] * 6, ids=["0"] * 6, concurrency=2)
        asked = ask(plan, tmp_path / "journal", progress, take=taken)

    assert (asked.sent, len(taken)) == (1, 6)
    assert len({reply.text for _, reply in taken}) == 1


def test_nothing_is_sent_and_all_is_given_on_when_all_is_there(
    asking, serve, progress, taken, tmp_path
):
    with serve() as server:
        plan = asking(server.base_url, [f"question {n}" for n in range(10)])
        ask(plan, tmp_path / "journal", progress)
    asked = ask(plan, tmp_path / "journal", progress, take=taken)

    assert (asked.sent, asked.reused, len(taken)) == (0, 10, 10)


def test_what_cannot_be_taken_stops_the_asking_and_keeps_every_reply(
    asking, serve, progress, tmp_path
):
    def refuse(request, reply):
        raise BackendError("the disk is full")

    with serve("--latency", "0.02") as server:
        plan = asking(server.base_url, [f"question {n}" for n in range(400)], concurrency=4)
        with pytest.raises(BackendError, match="the disk is full"):
            ask(plan, tmp_path / "journal", progress, take=refuse)
        answered = server.stats()["served"]

    kept = [r for _, r in replies(plan, tmp_path / "journal") if r.failure is None]
    assert 0 < len(kept) <= answered < 400
