"""Promise: what only the fake cluster does: its clock, what it shows, and how long it waits."""

import time
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from delay_client import (
    Client,
    DelayTooLong,
    OutgoingMessage,
    ReceivedMessage,
    Receiver,
    RetryLater,
    RetryPolicy,
    Unavailable,
)
from delay_client.testing import FakeCluster
from delay_client.testing.pytest_fixture import delaywheel_cluster
from tests.delay_client.conftest import Run

__all__ = ["delaywheel_cluster"]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_three_hours_pass_at_once(run: Run, delaywheel_cluster: FakeCluster) -> None:
    cluster = delaywheel_cluster

    async def main() -> None:
        subjects = ["reminder.*"]
        async with cluster.client() as client, cluster.receiver("r", subjects=subjects) as receiver:
            assert isinstance(client, Client)
            assert isinstance(receiver, Receiver)
            receipt = await client.send("reminder.tea", "oolong", delay=timedelta(hours=3))
            assert receipt.due_at == cluster.now + timedelta(hours=3)
            await cluster.advance(hours=2, minutes=59, seconds=59, milliseconds=999)
            assert not cluster.done
            await cluster.advance(milliseconds=1)
            async for message in receiver:
                async with message:
                    assert (message.body, message.lateness) == ("oolong", 0)
                    assert cluster.pending("reminder.tea")[0].id == message.id == receipt.message_id
                    receiver.stop()
            assert not cluster.pending()
        [done] = cluster.done
        [sent] = cluster.sent
        assert (done.subject, done.body, done.attempts) == ("reminder.tea", "oolong", 1)
        assert sent is done

    began = time.monotonic()
    run(main)
    assert time.monotonic() - began < 10


def test_all_retries_come_within_one_advance(run: Run) -> None:
    cluster = FakeCluster(NOON)
    seen: list[tuple[datetime, int]] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append((cluster.now, message.attempt))
        await anyio.sleep(0.001)
        if message.attempt < 4:
            raise ValueError("not yet")

    def in_thread(message: ReceivedMessage) -> None:
        seen.append((cluster.now, message.attempt))
        if message.put_offs < 2:
            raise RetryLater(timedelta(days=1))

    async def main() -> None:
        retry = RetryPolicy(base_s=60, factor=10, jitter=0)
        async with (
            cluster.client() as client,
            cluster.receiver("a", subjects=["a"]) as first,
            cluster.receiver("b", subjects=["b"]) as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: first.run(handler, retry=retry))
            tasks.start_soon(second.run, in_thread)
            await client.send("a", delay=0)
            await client.send("b", at=NOON + timedelta(days=1))
            await cluster.advance(days=4)
            assert [message.attempts for message in cluster.done] == [4, 1]
            assert cluster.now == NOON + timedelta(days=4)
            first.stop()
            second.stop()

    run(main)
    minutes = [(at - NOON) / timedelta(minutes=1) for at, _ in seen]
    assert minutes == [0, 1, 11, 71, 1440, 2880, 4320]


def test_a_handler_that_waits_is_waited_for_but_not_for_ever(run: Run) -> None:
    cluster = FakeCluster(patience_s=0.1)

    async def main() -> None:
        may_end = anyio.Event()

        async def handler(_: ReceivedMessage) -> None:
            await may_end.wait()

        async with (
            cluster.client() as client,
            cluster.receiver("a", subjects=["a"]) as receiver,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(receiver.run, handler)
            await client.send_many(OutgoingMessage("a", "", number) for number in range(9))
            began = time.monotonic()
            await cluster.advance(seconds=0)
            assert time.monotonic() - began >= 0.09
            assert not cluster.done
            assert len(cluster.pending()) == 9
            may_end.set()
            await cluster.advance(seconds=8)
            assert len(cluster.done) == 9
            receiver.stop()

    run(main)


def test_in_an_outage_nothing_is_taken_or_delivered(run: Run) -> None:
    cluster = FakeCluster()

    async def main() -> None:
        async with cluster.client() as client, cluster.receiver("a", subjects=["a"]) as receiver:
            await client.send("a", "before", delay=1)
            with cluster.outage("no disk"):
                with pytest.raises(Unavailable, match="no disk") as found:
                    await client.send("a", delay=1, message_id="mine")
                assert found.value.message_id == "mine"
                await cluster.advance(seconds=2)
                assert receiver.counts.received == 0
            await cluster.advance()
            assert receiver.counts.received == 1

    run(main)


def test_what_is_beyond_the_horizon_is_refused_and_given_up(run: Run) -> None:
    cluster = FakeCluster(horizon=timedelta(days=10))

    async def main() -> None:
        async with cluster.client() as client, cluster.receiver("a", subjects=["a"]) as receiver:
            with pytest.raises(DelayTooLong, match=r"due in 11\.0 days, limit 10\.0"):
                await client.send("a", delay=timedelta(days=11))
            await client.send("a", delay=0)
            async for message in receiver:
                await message.later(timedelta(days=11))
                receiver.stop()
        [refused] = cluster.refused
        assert refused.reason.startswith("given up, since it could not come again: due in 11.0")

    run(main)


def test_an_operator_gives_names_their_subjects(run: Run) -> None:
    cluster = FakeCluster()

    async def main() -> None:
        async with (
            cluster.client() as client,
            cluster.receiver("a", subjects=["x.*"]) as first,
            cluster.receiver("b", subjects=["x.1", "y"]) as second,
            cluster.receiver("c") as third,
        ):
            cluster.subscribe("a", "x.2")
            for subject in ("x.1", "x.2", "y", "z"):
                await client.send(subject, delay=0)
            await cluster.advance()
            assert (first.counts.received, second.counts.received) == (1, 2)
            cluster.subscribe("a", "*")
            await cluster.advance()
            assert first.counts.received == 1, "it takes what its own patterns take"
            cluster.subscribe("a")
            cluster.subscribe("c", "*")
            await cluster.advance()
            assert third.counts.received == 1

    run(main)


def test_time_does_not_go_back(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="does not go back"):
            await FakeCluster().advance(hours=-1)

    run(main)


def test_two_clusters_with_the_same_seed_make_the_same_ids(run: Run) -> None:
    async def main() -> list[str]:
        cluster = FakeCluster(NOON, seed=7)
        async with cluster.client() as client, cluster.client() as other:
            return [(await one.send("a", delay=0)).message_id for one in (client, other, client)]

    ids = run(main)
    assert ids == run(main)
    assert len(set(ids)) == 3
