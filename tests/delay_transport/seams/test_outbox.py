"""What is put is sent once, in order, in as few sends as may be."""

import pytest
import trio
import trio.testing

from delay_transport.seams.outbox import OutBox, Wakeup


class Wire(trio.abc.SendStream):
    """A stream that keeps each send and takes it when `open_` is set."""

    def __init__(self) -> None:
        self.sends: list[bytes] = []
        self.gate = trio.Event()
        self.gate.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sends.append(bytes(data))
        await self.gate.wait()

    async def wait_send_all_might_not_block(self) -> None:
        await self.gate.wait()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def outbox_on(wire: Wire, *, step_bytes: int = 1000) -> tuple[OutBox, list[float], list[int]]:
    began: list[float] = []
    sent: list[int] = []
    return (
        OutBox(wire, step_bytes=step_bytes, on_sending=began.append, on_sent=sent.append),
        began,
        sent,
    )


async def test_what_is_put_while_a_send_is_under_way_goes_out_in_the_next() -> None:
    wire = Wire()
    wire.gate = trio.Event()
    outbox, began, sent = outbox_on(wire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        outbox.put(b"a")
        await trio.testing.wait_all_tasks_blocked()
        assert outbox.sending_since == 0
        for part in (b"b", b"c", b"d"):
            outbox.put(part)
        await trio.sleep(3)
        assert outbox.unsent_bytes == 4
        wire.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sends == [b"a", b"bcd"]
        assert (began, sent) == ([0, 3], [1, 3])
        assert outbox.unsent_bytes == 0
        assert outbox.sending_since != 3
        nursery.cancel_scope.cancel()


async def test_much_is_sent_in_steps_so_that_progress_is_seen() -> None:
    wire = Wire()
    outbox, _, sent = outbox_on(wire, step_bytes=10)
    outbox.put(bytes(range(25)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert b"".join(wire.sends) == bytes(range(25))
    assert sent == [10, 10, 5]


async def test_a_broken_stream_is_the_callers_to_handle() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    outbox = OutBox(ours, step_bytes=10, on_sending=lambda _: None, on_sent=lambda _: None)
    await theirs.aclose()
    outbox.put(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await outbox.run()


async def test_a_wakeup_wakes_who_sleeps_and_remembers_nothing() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    with trio.move_on_after(1) as scope:
        await wakeup.sleep()
    assert scope.cancelled_caught
    wakeup.wake()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.sleep)
        await trio.testing.wait_all_tasks_blocked()
        wakeup.wake()
        wakeup.wake()
    assert trio.current_time() == 1
