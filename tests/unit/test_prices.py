"""What tokens cost, and the records that processes share."""

import os
import subprocess
import sys
import textwrap

import pytest
from pydantic import ValidationError

from mbt_cli.core.chat import Message, Reply, Request
from mbt_cli.core.prices import PICOS, Price, Used, money_text, picos_of
from mbt_cli.errors import ArtifactError, BudgetError
from mbt_cli.inference.journal import JournalIndex, JournalWriter
from mbt_cli.inference.meter import Meter
from mbt_cli.inference.queue import PendingRequest
from mbt_cli.inference.replies import Sending, SendResult, failed, result_of
from mbt_cli.store.spending import (
    RecordedPrices,
    SpendingReader,
    SpendingRecord,
    StudyBudget,
    read_prices,
    record_prices,
)

PRICE = Price(input=2.0, output=10.0, cached=0.5)
ONE = 1_000_000


def test_tokens_are_paid_by_the_million_and_cached_ones_by_their_own_price():
    used = Used(requests=3, input=3 * ONE, cached=ONE, output=2 * ONE)

    # 2 million at 2, 1 million cached at 0.5, 2 million of replies at 10
    assert PRICE.of(used) == picos_of(4 + 0.5 + 20)


def test_a_price_that_does_not_say_cached_takes_that_of_the_input():
    price = Price(input=2.0, output=10.0)

    assert price.of(Used(1, ONE, ONE, 0)) == picos_of(2)


def test_more_cached_tokens_than_prompt_tokens_never_earn_money():
    assert PRICE.of(Used(1, 10, 1_000, 0)) == PRICE.of(Used(1, 10, 10, 0))


def test_sums_of_many_small_amounts_are_exact():
    price = Price(input=0.1, output=0.3)

    # 0.1 millionths a token, ten million times, is exactly 1
    assert sum(price.of(Used(1, 1, 0, 0)) for _ in range(10_000)) == price.of(Used(1, 10_000, 0, 0))
    assert price.of(Used(1, 10 * ONE, 0, 0)) == picos_of(1)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00 USD"),
        (50, "50.00 USD"),
        (0.5, "0.50 USD"),
        (0.0042, "0.0042 USD"),
        (1234.567, "1234.57 USD"),
        (0.0000001, "0.000001 USD"),
    ],
)
def test_money_shows_at_least_two_digits(amount, text):
    assert money_text(picos_of(amount), "USD") == text


@pytest.mark.parametrize(
    "table",
    [
        {"input": -1, "output": 1},
        {"input": 1},
        {"input": float("nan"), "output": 1},
        {"input": 1, "output": float("inf")},
        {"input": "2", "output": 1},
        {"input": 1, "output": 1, "cache": 1},
        {"input": True, "output": 1},
        {"input": 1, "output": 1, "cached": -0.1},
    ],
)
def test_a_wrong_price_is_refused(table):
    with pytest.raises(ValidationError):
        Price.model_validate(table)


# Cached tokens


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 7}}, 7),
        ({"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 4}, 6),
        ({"cached_tokens": 5}, 5),
        ({"cache_read_input_tokens": 4}, 4),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": -3}}, None),
        ({"prompt_tokens_details": {"cached_tokens": "many"}}, None),
        ({}, None),
    ],
)
def test_cached_tokens_are_read_under_the_names_of_servers(usage, cached):
    body = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 10, **usage}}

    assert result_of(body, Sending()).reply.cached_tokens == cached


def test_cached_tokens_survive_in_the_journal_beside_records_without_them(tmp_path):
    first, second = "a" * 64, "b" * 64
    with JournalWriter(tmp_path, "0") as writer:
        writer.append(first, Reply(text="x", finish_reason="stop", cached_tokens=9), 0)
        writer.append(second, Reply(text="y", finish_reason="stop"), 0)

    with JournalIndex(tmp_path) as index:
        assert index.reply(first).cached_tokens == 9
        assert index.reply(second).cached_tokens is None


# Reservations


class Allows:
    """An allowance of a fixed amount."""

    def __init__(self, limit):
        self.limit = picos_of(limit)

    def raised(self, held, need):
        return held + need <= self.limit

    def can_change(self):
        return False

    def error(self, need):
        return BudgetError(f"{need / PICOS:g}")


def pending(text="word", body=None):
    messages = (Message(role="user", content=text),)
    return PendingRequest(Request("a" * 64, "q", 0, messages, 1, body or {}), 0)


def answered(prompt, output, cached=None):
    return SendResult(
        Reply("x", prompt_tokens=prompt, completion_tokens=output, cached_tokens=cached)
    )


def metered(tmp_path, price=PRICE, limit=None):
    record = SpendingRecord(tmp_path, "base/model=m", "m")
    allowance = None if limit is None else lambda _: Allows(limit)
    return Meter(price, lambda: record, allowance)


def only(tmp_path):
    (one,) = SpendingReader(tmp_path).read()
    return one


def test_a_request_reserves_every_byte_of_its_prompt_and_the_whole_limit_of_its_reply(tmp_path):
    meter, asked = metered(tmp_path), pending("ü" * 100)

    assert meter.reserve(asked, 500)

    # 200 bytes, 32 tokens around the message and 512 around the conversation
    assert asked.reserved == (744, 500, PRICE.at_most(744, 500))
    assert only(tmp_path).in_flight == Used(1, 744, 0, 500)


def test_a_schema_counts_as_part_of_the_prompt(tmp_path):
    meter, plain, strict = metered(tmp_path), pending(), pending(body={"response_format": {"a": 1}})

    meter.reserve(plain, 1)
    meter.reserve(strict, 1)

    assert strict.reserved[0] - plain.reserved[0] == len('{"a":1}')


def test_a_reply_replaces_its_reservation_by_what_it_used(tmp_path):
    meter, asked = metered(tmp_path), pending()
    meter.reserve(asked, 500)

    meter.settle(asked, answered(20, 30, cached=5))

    assert only(tmp_path).used == Used(1, 20, 5, 30)
    assert only(tmp_path).in_flight == Used()
    assert only(tmp_path).known({"m": PRICE}) == PRICE.of(Used(1, 20, 5, 30))


@pytest.mark.parametrize("reason", ["timeout", "malformed_reply", "connection", "reply_too_large"])
def test_a_request_whose_end_is_not_known_stays_reserved(tmp_path, reason):
    meter, asked = metered(tmp_path), pending()
    meter.reserve(asked, 500)
    prompt = asked.reserved[0]

    meter.settle(asked, failed(reason, "", Sending(), can_retry=True))

    assert only(tmp_path).unsure == Used(1, prompt, 0, 500)
    assert only(tmp_path).used == Used()


def test_a_request_that_was_refused_or_never_sent_costs_nothing(tmp_path):
    meter = metered(tmp_path)
    for result in (
        failed("http_429", "", Sending(), can_retry=True),
        failed("prompt_too_long", "", Sending(), can_retry=False),
        failed("connection", "", Sending(), can_retry=True, was_sent=False),
    ):
        asked = pending()
        meter.reserve(asked, 500)
        meter.settle(asked, result)

    assert only(tmp_path).cost({"m": PRICE}) == 0
    assert only(tmp_path).in_flight == Used()


def test_a_reply_without_usage_counts_at_its_most(tmp_path):
    meter, asked = metered(tmp_path), pending()
    meter.reserve(asked, 500)

    meter.settle(asked, SendResult(Reply("a reply")))

    assert only(tmp_path).unsure.output == 500


def test_requests_are_reserved_up_to_the_allowance_and_not_beyond(tmp_path):
    # 548 tokens of prompt at 2 and 1,000 of reply at 10 a million: 0.011096 each
    meter = metered(tmp_path, limit=0.0335)
    sent = [asked for asked in (pending() for _ in range(9)) if meter.reserve(asked, 1_000)]

    assert len(sent) == 3
    meter.settle(sent[0], answered(10, 10))  # 0.00012
    assert meter.reserve(pending(), 1_000)
    assert not meter.reserve(pending(), 1_000)


def test_a_provider_that_counts_more_than_the_bytes_has_more_reserved_next_time(tmp_path):
    meter, first, second = metered(tmp_path), pending(), pending()
    meter.reserve(first, 10)
    most = first.reserved[0]

    meter.settle(first, answered(most + 100, 1))
    meter.reserve(second, 10)

    assert second.reserved[0] == most + 100


def test_a_model_without_a_price_counts_tokens_and_needs_no_allowance(tmp_path):
    meter, asked = metered(tmp_path, price=None, limit=0.01), pending()

    assert meter.reserve(asked, 10**9)
    meter.settle(asked, answered(1, 2))

    assert only(tmp_path).used == Used(1, 1, 0, 2)


# Records


def test_what_was_in_flight_at_the_end_may_have_been_billed(tmp_path):
    meter = metered(tmp_path)
    meter.reserve(pending(), 500)

    meter.close()

    assert only(tmp_path).unsure.output == 500
    assert only(tmp_path).cap is None


def test_a_killed_process_leaves_every_count_and_its_reservations(tmp_path):
    code = f"""
        import os, signal, sys
        from pathlib import Path
        from mbt_cli.store.spending import SpendingRecord
        record = SpendingRecord(Path({str(tmp_path)!r}), "base/model=m", "m")
        record.set_cap(10**12)
        for n in range(1000):
            record.hold(10, 20)
            record.replied((7, 2, 3), 10, 20)
        record.hold(10, 20)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)

    assert done.returncode == -9
    found = only(tmp_path)
    assert found.used == Used(1000, 7000, 2000, 3000)
    assert found.unsure == Used(1, 10, 0, 20)
    assert found.cap is None  # its process has ended: what it might still spend is free


def test_a_damaged_record_is_named(tmp_path):
    SpendingRecord(tmp_path, "base/model=m", "m").close()
    (path,) = (tmp_path / ".spending").glob("*.spent")
    path.write_bytes(path.read_bytes()[:-9])

    with pytest.raises(ArtifactError, match="damaged"):
        SpendingReader(tmp_path).read()


def test_prices_of_models_that_left_the_manifest_are_kept(tmp_path):
    record_prices(tmp_path, RecordedPrices(prices={"old": PRICE}))
    record_prices(tmp_path, RecordedPrices(budget=5.0, prices={"new": PRICE}))

    assert set(read_prices(tmp_path).prices) == {"old", "new"}
    assert read_prices(tmp_path).budget == 5.0


# Budgets


def budget(folder, limit, **more):
    recorded = RecordedPrices(budget=limit, prices={"m": PRICE})
    return StudyBudget(folder, SpendingReader(folder), recorded, limit=picos_of(limit), **more)


def test_the_caps_of_all_records_stay_within_the_budget(tmp_path):
    records = [SpendingRecord(tmp_path, f"base/model=m{n}", "m") for n in range(4)]
    allowances = [budget(tmp_path, 1.0).allowance(record) for record in records]
    need = picos_of(0.01)

    held = [0] * 4
    grants = 0
    for _ in range(200):
        for n, allowance in enumerate(allowances):
            if held[n] + need <= allowance.limit or allowance.raised(held[n], need):
                held[n] += need
                grants += 1
            assert sum(one.limit for one in allowances) <= picos_of(1.0)

    assert grants == 100  # the whole budget, and no more


def test_what_a_process_has_not_used_is_free_when_it_ends(tmp_path):
    first, second = (SpendingRecord(tmp_path, f"base/n={n}", "m") for n in range(2))
    greedy, other = (budget(tmp_path, 1.0).allowance(record) for record in (first, second))
    assert greedy.raised(0, picos_of(0.9))
    assert not other.raised(0, picos_of(0.5))
    assert other.can_change()

    first.close()

    assert other.raised(0, picos_of(0.5))


def test_earlier_cells_without_a_record_count(tmp_path):
    record = SpendingRecord(tmp_path, "base/model=m", "m")
    allowance = budget(tmp_path, 1.0, earlier=picos_of(0.95)).allowance(record)

    assert not allowance.raised(0, picos_of(0.1))
    assert allowance.raised(0, picos_of(0.04))


def test_the_error_says_what_is_spent_reserved_and_what_to_type(tmp_path):
    record = SpendingRecord(tmp_path, "base/model=m", "m")
    record.hold(0, ONE // 50 + 1)
    record.replied((ONE // 10, 0, ONE // 100), 0, 1)
    record.lost(0, ONE // 50)
    error = budget(tmp_path, 1.0, go_on="mbt run s.toml --set study.budget=").error(picos_of(0.6))

    assert error.exit_code == 77
    # 0.1 million at 2 and 0.01 million at 10; 0.02 million at 10
    assert "budget of 1.00 USD" in error.message
    assert "0.30 USD are spent" in error.message
    assert "0.20 USD at most are reserved" in error.message
    assert "--set study.budget=1.5`" in error.hint


def test_new_prices_apply_to_what_was_spent_earlier(tmp_path):
    record = SpendingRecord(tmp_path, "base/model=m", "m")
    record.hold(0, 1)
    record.replied((ONE, 0, 0), 0, 1)

    assert only(tmp_path).known({"m": PRICE}) == picos_of(2)
    assert only(tmp_path).known({"m": Price(input=3.0, output=1.0)}) == picos_of(3)


def test_a_file_system_without_shared_memory_counts_as_well(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(19, os.strerror(19))

    monkeypatch.setattr("mbt_cli.store.spending.mmap.mmap", refuses)
    meter, asked = metered(tmp_path), pending()
    meter.reserve(asked, 500)
    assert only(tmp_path).in_flight.output == 500

    meter.settle(asked, answered(20, 30))
    meter.close()

    assert only(tmp_path).used == Used(1, 20, 0, 30)


def test_a_record_of_another_machine_counts_as_alive_while_its_file_is_touched(tmp_path):
    SpendingRecord(tmp_path, "base/model=m", "m").set_cap(picos_of(1.0))
    (path,) = (tmp_path / ".spending").glob("*.spent")
    content = path.read_bytes()
    own = content.split(b'"space":"')[1].split(b'"')[0]
    path.write_bytes(content.replace(own, b"x" * len(own)))
    (tmp_path / ".spending" / "guard").touch()
    gone = []

    def caps(seconds_ago, is_gone):
        os.utime(path, times=(path.stat().st_atime, guard - seconds_ago))
        (one,) = SpendingReader(tmp_path, is_gone).read()
        return one.cap

    guard = (tmp_path / ".spending" / "guard").stat().st_mtime
    assert caps(5, gone.append) == picos_of(1.0)
    assert caps(300, lambda _: False) == picos_of(1.0)
    assert caps(700, lambda _: False) is None
    assert not gone  # no queue is asked about a process that lives
