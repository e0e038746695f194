"""How the number of requests in flight adapts to the server."""

import asyncio

from mbt_cli.inference.queue import AdaptiveConcurrency


def test_refusals_lower_the_limit_to_one_and_successes_raise_it_again():
    concurrency = AdaptiveConcurrency(8)

    for _ in range(20):
        concurrency.refused(now=0.0, wait_seconds=0.0)
    lowest = concurrency.limit
    for _ in range(56):  # eight successes give one back: 1 + 7
        concurrency.succeeded()

    assert (lowest, concurrency.limit) == (1, 8)


def test_a_few_stray_refusals_among_many_successes_leave_the_limit_high():
    concurrency = AdaptiveConcurrency(512)

    for number in range(4_000):
        if number % 20:
            concurrency.succeeded()
        else:
            concurrency.refused(now=0.0, wait_seconds=1.0)

    assert concurrency.limit >= 510


def test_no_more_than_the_limit_are_in_flight_at_once():
    async def crowd() -> int:
        concurrency, inside, most = AdaptiveConcurrency(5), 0, 0

        async def one() -> None:
            nonlocal inside, most
            await concurrency.enter()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            concurrency.leave()

        await asyncio.gather(*(one() for _ in range(200)))
        return most

    assert asyncio.run(crowd()) == 5


def test_refusals_in_a_row_pause_sending_for_as_long_as_the_server_asked():
    async def wait() -> float:
        concurrency, clock = AdaptiveConcurrency(5), asyncio.get_running_loop().time
        started = clock()
        for _ in range(3):
            concurrency.refused(now=started, wait_seconds=0.2)
        await concurrency.enter()
        return clock() - started

    assert asyncio.run(wait()) >= 0.2
