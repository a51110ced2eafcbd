"""Receivers of a story: attached to whoever is the master, they are done, put off, or refuse.

What becomes of a message is a function of it alone, so that it is the same at each try. That a
receiver is about to say DONE or REFUSED counts as the arrival of the message.
"""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from zlib import crc32

import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY, decode_item
from delay_protocol.receivers.attaching import Attached
from delay_protocol.receivers.delivering import (
    Delivered,
    Settled,
    Verdict,
    decode_settle_reply,
    encode_settle,
)
from tests.receiver_peer import ReceiverPeer, later_item
from tests.simulation.network import NodeNetwork

RECEIVERS: Final = "r"
"""Their name."""
_LATER_MS: Final = (500, 4_000, 20_000)
_TIMES_MAX: Final = 2
_WORK_S: Final = (0.0, 0.02, 0.5)
_FLOW_S: Final = 5.0
_ENDS: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, AssertionError)


def verdict_of(message_id: str, times: int) -> Verdict:
    """Return what receivers say of a message that was put off so often."""
    kind = crc32(message_id.encode()) % 10
    if kind == 0:
        return Verdict.REFUSED
    return Verdict.LATER if kind < 4 and times < _TIMES_MAX else Verdict.DONE


class StoryReceiver:
    """One of them; `run` until cancelled."""

    def __init__(
        self,
        network: NodeNetwork,
        *,
        instance: bytes,
        address: Callable[[], str | None],
        now_ms: Callable[[], int],
        on_received: Callable[[str, int, int], None],
        on_arrived: Callable[[str, int, int], None],
        on_done: Callable[[str, int], None],
    ) -> None:
        """Take over the parts.

        What came and what arrived is told as id, due ms, and wall ms; and what a server has
        confirmed that this is done with as id and due ms.
        """
        self._network = network
        self._instance = instance
        self._address = address
        self._now_ms = now_ms
        self._on_received = on_received
        self._on_arrived = on_arrived
        self._on_done = on_done

    async def run(self) -> None:
        """Attach to the master again and again."""
        while True:
            address = self._address()
            if address is not None:
                with contextlib.suppress(*_ENDS):
                    await self._attend(address)
            await trio.sleep(0.2)

    async def _attend(self, address: str) -> None:
        """Be attached to a server, until it closes or is the master no longer."""
        host, _, port = address.rpartition(":")
        stream: trio.abc.Stream | None = None
        with trio.move_on_after(2):
            stream = await self._network.connect(host, int(port))
        if stream is None:
            return
        peer = ReceiverPeer(stream, self._now_ms)
        try:
            async with trio.open_nursery() as nursery:
                peer.on_delivered = lambda one: nursery.start_soon(self._settle, peer, one)
                nursery.start_soon(peer.run)
                nursery.start_soon(self._leave, peer, address, nursery.cancel_scope)
                reply = await self._bounded(
                    partial(peer.attach, RECEIVERS, instance=self._instance)
                )
                while isinstance(reply, Attached):
                    await self._bounded(partial(peer.flow, 50))
                    await trio.sleep(_FLOW_S)
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(stream)

    async def _bounded(self, ask: Callable[[], Awaitable[object]]) -> object:
        """Return an answer; None if there is none for a while, or never."""
        with contextlib.suppress(*_ENDS), trio.move_on_after(3):
            return await ask()
        return None

    async def _leave(self, peer: ReceiverPeer, address: str, scope: trio.CancelScope) -> None:
        while not peer.is_closed and self._address() == address:  # noqa: ASYNC110 (nobody can tell)
            await trio.sleep(0.1)
        scope.cancel()

    async def _settle(self, peer: ReceiverPeer, one: Delivered) -> None:
        """Note a message, work at it for a while, and say what becomes of it."""
        item, wall_ms = decode_item(one.item), self._now_ms()
        self._on_received(item.message_id, item.due_ms, wall_ms)
        times = int(item.attributes.get("qmq_times", "0"))
        verdict, kind = verdict_of(item.message_id, times), crc32(one.item)
        await trio.sleep(_WORK_S[kind % 3])
        rest = b"poison" if verdict is Verdict.REFUSED else b""
        if verdict is Verdict.LATER:
            due_ms = self._now_ms() + _LATER_MS[kind % 3]
            rest = later_item(one.item, due_ms, flag=item.flag | FLAG_DELAY)
        else:
            self._on_arrived(item.message_id, item.due_ms, wall_ms)
        body = encode_settle([Settled(one.sequence, verdict, rest)])
        with contextlib.suppress(*_ENDS):
            # What may not be done now is said again.
            while (  # noqa: ASYNC110
                reply := await peer.ask(CommandCode.SETTLE, body)
            ).code == ResponseCode.BROKER_ERROR:
                await trio.sleep(1)
            if verdict is Verdict.DONE and not decode_settle_reply(reply.body)[0]:
                self._on_done(item.message_id, item.due_ms)
