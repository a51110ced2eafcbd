"""gateway.webhooks.pace: how many requests an endpoint gets, and when."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.webhooks.pace import Pace


def play(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(main())


async def has_turn(pace: Pace) -> bool:
    async with pace.turn() as is_given:
        return is_given


def now() -> float:
    return asyncio.get_running_loop().time()


def test_no_more_at_a_time_than_there_may_be() -> None:
    async def test() -> None:
        pace, busy, most = Pace(3, None), 0, 0

        async def one() -> None:
            nonlocal busy, most
            async with pace.turn() as is_given:
                assert is_given
                busy += 1
                most = max(most, busy)
                await asyncio.sleep(0.001)
                busy -= 1

        await asyncio.gather(*(one() for _ in range(30)))
        assert most == 3

    play(test)


def test_no_more_in_a_second_than_there_may_be() -> None:
    async def test() -> None:
        pace, began = Pace(10, 100.0), now()
        for _ in range(20):
            assert await has_turn(pace)
        assert 0.15 < now() - began < 1

    play(test)


def test_it_is_halved_once_for_all_that_was_under_way_and_grows_back() -> None:
    async def test() -> None:
        pace, began = Pace(8, None), now()
        assert [pace.slow_down(began, 0.0) for _ in range(5)] == [0.0] * 5
        assert pace.limit == 4
        pace.slow_down(now(), 0.0)
        assert pace.limit == 2
        for _ in range(100):
            pace.go_on()
        assert pace.limit == 8

    play(test)


def test_one_at_a_time_that_is_too_many_has_pauses_that_grow() -> None:
    async def test() -> None:
        pace = Pace(1, None)
        assert [pace.slow_down(now(), 0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
        pace.go_on()
        assert pace.slow_down(now(), 0.0) == 1

    play(test)


def test_an_endpoint_says_itself_how_long() -> None:
    async def test() -> None:
        pace = Pace(8, None)
        assert pace.slow_down(now(), 7.0) == 7.0
        assert pace.limit == 8

    play(test)


def test_who_waits_gets_no_turn_in_a_pause() -> None:
    async def test() -> None:
        pace = Pace(1, None)
        async with pace.turn() as is_given:
            assert is_given
            waiting = [asyncio.create_task(has_turn(pace)) for _ in range(3)]
            given_up = asyncio.create_task(has_turn(pace))
            await asyncio.sleep(0)
            given_up.cancel()
            pace.pause()
            assert await asyncio.gather(*waiting) == [False] * 3
            assert not await asyncio.create_task(has_turn(pace))
        pace.resume()
        async with pace.turn() as is_given:
            assert is_given
            waiter = asyncio.create_task(has_turn(pace))
            await asyncio.sleep(0.01)
            assert not waiter.done()
        assert await waiter

    play(test)


def test_one_that_is_slowed_down_gets_fewer_at_a_time() -> None:
    async def test() -> None:
        pace = Pace(2, None)
        pace.slow_down(now(), 0.0)
        async with pace.turn():
            waiter = asyncio.create_task(has_turn(pace))
            await asyncio.sleep(0.01)
            assert not waiter.done()
            pace.go_on()
            assert await waiter

    play(test)
