"""How the window of requests in flight moves."""

import asyncio

from mbt_cli.inference.dispatcher import Window


def test_refusals_narrow_it_to_one_and_successes_widen_it_again():
    window = Window(8)

    for _ in range(20):
        window.refused(now=0.0, wait_seconds=0.0)
    narrow = window.width
    for _ in range(56):  # eight successes give one place back: 1 + 7
        window.succeeded()

    assert (narrow, window.width) == (1, 8)


def test_a_few_stray_refusals_among_many_successes_leave_it_wide():
    window = Window(512)

    for number in range(4_000):
        if number % 20:
            window.succeeded()
        else:
            window.refused(now=0.0, wait_seconds=1.0)

    assert window.width >= 510


def test_no_more_than_its_width_are_inside_at_once():
    async def crowd() -> int:
        window, inside, most = Window(5), 0, 0

        async def one() -> None:
            nonlocal inside, most
            await window.enter()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            window.leave()

        await asyncio.gather(*(one() for _ in range(200)))
        return most

    assert asyncio.run(crowd()) == 5


def test_refusals_in_a_row_keep_it_quiet_for_as_long_as_the_server_asked():
    async def wait() -> float:
        window, clock = Window(5), asyncio.get_running_loop().time
        started = clock()
        for _ in range(3):
            window.refused(now=started, wait_seconds=0.2)
        await window.enter()
        return clock() - started

    assert asyncio.run(wait()) >= 0.2
