"""A receiver of the simulation: attaches, takes messages, and settles them as it is drawn.

It is outside the server's crash domain, and one of several of its name. It is there around the
minutes in which most is due, for some minutes each time, and leaves in good order or not. Of what
comes it draws a verdict and a time: at once, late, or not while it is attached. Meanwhile it takes
less than before, or nothing; says nothing for a lease and goes on; settles twice, and what it never
got, and what another connection has. What brokers refuse for good (operator.py) it refuses.

Where some messages are deadly it does nothing of this but end when it handles one, and it is
started again.
"""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import FLAG_DELAY, decode_item
from delay_protocol.receivers.attaching import CREDIT_BYTES_MIN, Attached
from delay_protocol.receivers.delivering import (
    Delivered,
    Settled,
    Verdict,
    decode_settle_reply,
    encode_settle,
)
from delay_transport.seams.runtime import Address
from tests.receiver_peer import ReceiverPeer, later_item
from tests.simulation.broker import OnRequest
from tests.simulation.network import SimNetwork, SimStream
from tests.simulation.receiving import Held, Line, Receiving

_ENDS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
_NEVER_S = 1e9
_TIMES_MAX = 3
"""A message is put off so often at the most."""
_LATER_S = (5.0, 60.0, 600.0, 2400.0)
_CREDITS = (1, 3, 20, 1000)
_STRANGERS_MAX = 5
_NOBODYS = 10**12
"""A sequence that no message has."""
_SILENT_LINK_S = 100.0
"""What was sent into a silent link may arrive when it speaks again, which takes less than this."""


class SimReceiver:
    """One of the receivers of a name, with one connection at a time."""

    def __init__(
        self,
        name: str,
        group: str,
        server: Address,
        *,
        network: SimNetwork,
        chance: random.Random,
        judge: Receiving,
        on_request: OnRequest,
        faults: Counter[str],
        minutes_ms: Sequence[int],
        length_s: float,
    ) -> None:
        self.name = name
        self.group = group
        self._server = server
        self._network = network
        self._node = network.node(name)
        self._chance = chance
        self._judge = judge
        self._witness = judge.witness
        self._on_request = on_request
        self._faults = faults
        self._minutes_ms = sorted(minutes_ms)
        self._length_s = length_s
        self._instance = chance.randbytes(16)
        self._weight = chance.choice((1, 100, 100, 1000))
        self._credit = chance.choice(_CREDITS)
        self._slow_s = chance.choice((0.01, 0.5, 20.0, 60.0))
        self._unruly = chance.choice((0.0, 0.2, 0.5))
        """Share of messages that are not simply done, and of FLOWs that are something else."""
        self._loses_link = chance.random() < 0.1
        self._is_mortal = bool(self._witness.deadly_one_in)
        if self._is_mortal:
            self._slow_s, self._unruly, self._loses_link = 0.5, 0.0, False
        self._left: list[int] = []
        """What the connection before had not settled."""
        self._healed = False
        self._session = trio.CancelScope()
        self._more = trio.Event()

    def heal(self) -> None:
        """Be well from now on; the present connection ends."""
        self._healed = True
        self._slow_s, self._unruly, self._loses_link = 0.01, 0.0, False
        self._session.cancel()

    async def run(self) -> None:
        """Attach again and again, until cancelled."""
        while True:
            await trio.sleep(self._pause_s())
            try:
                with trio.CancelScope() as self._session:
                    with trio.move_on_after(self._chance.uniform(20, 400)):
                        await self._attend()
            except* _ENDS:
                self._faults["receiver: connection lost"] += 1

    def _pause_s(self) -> float:
        """Return when to be there again: shortly before a time at which much is due, mostly."""
        chance, now_ms = self._chance, self._witness.clock.now_ms()
        if self._is_mortal:
            return chance.uniform(0.5, 5)
        if chance.random() < 0.3:
            return chance.choice((0.1, chance.uniform(0, 30), chance.uniform(0, 600)))
        ahead = [minute for minute in self._minutes_ms if minute > now_ms]
        if not ahead:
            return chance.uniform(60, self._length_s / 4)
        return max((chance.choice(ahead[:2]) - now_ms) / 1000 - chance.uniform(0, 120), 0.1)

    async def _attend(self) -> None:
        """Be attached, until the connection ends or this is cancelled."""
        stream = await self._node.connect(*self._server)
        peer = ReceiverPeer(stream, self._witness.clock.now_ms)
        line: Line | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.run)
                reply = await peer.attach(self.group, instance=self._instance, weight=self._weight)
                if not isinstance(reply, Attached):
                    self._faults["receiver: refused"] += 1
                    nursery.cancel_scope.cancel()
                    return
                line = self._judge.attached(self.group)
                self._faults["receiver attached"] += 1
                peer.on_delivered = partial(self._take, line)
                if self._chance.random() < self._unruly:
                    # Before its first FLOW: so nothing of this can come to it meanwhile.
                    await self._settle_strangers(peer, line)
                if self._loses_link:
                    nursery.start_soon(self._lose_link)
                nursery.start_soon(self._say_flow, peer, line)
                nursery.start_soon(self._settle_all, peer, line, nursery)
                while not peer.is_closed:  # noqa: ASYNC110 (it has no event for that)
                    await trio.sleep(1)
                nursery.cancel_scope.cancel()
        finally:
            if line is not None:
                self._left = list(line.open)
                self._judge.ended(line)
            self._leave(stream)

    def _leave(self, stream: SimStream) -> None:
        if self._chance.random() < self._unruly:
            self._network.reset(stream)
        stream.close_now()

    async def _lose_link(self) -> None:
        """Let receiver and server hear nothing of each other for a while, without a word."""
        await trio.sleep(self._chance.uniform(0, 200))
        self._faults["receiver: link silent"] += 1
        silent_s = self._chance.uniform(1, 90)
        self._witness.under_way_s = _SILENT_LINK_S
        self._witness.broker_down_until(self.group, trio.current_time() + silent_s + 30)
        ways = ((self.name, "server"), ("server", self.name))
        for way in ways:
            self._network.block(*way)
        try:
            await trio.sleep(silent_s)
        finally:
            for way in ways:
                self._network.unblock(*way)

    # -- FLOW --------------------------------------------------------------------------------

    async def _say_flow(self, peer: ReceiverPeer, line: Line) -> None:
        chance = self._chance
        while True:
            kind = chance.random() if chance.random() < self._unruly else 1.0
            if kind < 0.2:
                self._faults["receiver: silent"] += 1
                await trio.sleep(chance.uniform(15, 90))
            elif kind < 0.5:
                self._faults["receiver: no credit"] += 1
                for _ in range(chance.choice((1, 1, 5))):
                    await self._flow(peer, line, 0)
                    await trio.sleep(chance.uniform(1, 10))
            await self._flow(peer, line, 1000 if self._healed else self._credit)
            await trio.sleep(chance.uniform(5, 10))

    async def _flow(self, peer: ReceiverPeer, line: Line, items: int) -> None:
        line.flows.append((trio.current_time(), items, CREDIT_BYTES_MIN))
        await peer.flow(items, reason="" if items else "its database is away")

    # -- messages ----------------------------------------------------------------------------

    def _take(self, line: Line, one: Delivered) -> None:
        """Draw what becomes of a message, and when."""
        if line.has_ended:
            return
        self._on_request(answered=False)
        receipt = self._judge.delivered(line, one)
        if receipt is None:
            return
        chance, now_s = self._chance, trio.current_time()
        held = Held(one.sequence, one.item, receipt, Verdict.DONE, now_s)
        held.ready_s += chance.uniform(0, self._slow_s) if chance.random() < 0.9 else 0.0
        kind = chance.random() if chance.random() < self._unruly else 1.0
        if self._witness.poison.code(receipt.message_id):
            held.verdict = Verdict.REFUSED
        elif kind < 0.3:
            held.verdict = Verdict.RELEASE
        elif kind < 0.7:
            self._put_off(held)
        elif kind < 0.9:
            held.ready_s = now_s + chance.uniform(25, 120)
        elif kind < 0.98:
            held.ready_s = _NEVER_S
        line.open[one.sequence] = held
        self._judge.check_credit(line)
        self._more.set()

    def _put_off(self, held: Held) -> None:
        before = decode_item(held.item)
        if int(before.attributes.get("qmq_times", "0")) >= _TIMES_MAX:
            return
        wait_ms = round(self._chance.uniform(0, self._chance.choice(_LATER_S)) * 1000)
        due_ms = self._witness.clock.now_ms() + wait_ms
        held.verdict = Verdict.LATER
        held.instead = later_item(held.item, due_ms, flag=before.flag | FLAG_DELAY)
        self._witness.later[held.instead] = due_ms

    async def _settle_all(self, peer: ReceiverPeer, line: Line, nursery: trio.Nursery) -> None:
        """Settle what is ready, in requests that do not wait for each other's answers."""
        while True:
            now_s = trio.current_time()
            ready = [held for held in line.open.values() if held.ready_s <= now_s]
            # Without an end for them a world with what has been found would take for ever.
            deadly = any(self._witness.is_deadly(held.receipt.message_id) for held in ready)
            if deadly and not self._witness.complaints:
                self._faults["receiver: ended by a message"] += 1
                nursery.cancel_scope.cancel()
                return
            if ready:
                await self._settle(peer, line, ready, nursery)
                continue
            self._more = trio.Event()
            with trio.move_on_at(
                min((held.ready_s for held in line.open.values()), default=_NEVER_S)
            ):
                await self._more.wait()

    async def _settle(
        self, peer: ReceiverPeer, line: Line, ready: list[Held], nursery: trio.Nursery
    ) -> None:
        # In some requests LATER is beside the others, in others alone.
        if self._chance.random() < 0.5:
            ready = [one for one in ready if one.verdict is ready[0].verdict]
        for held in ready:
            self._judge.settling(line, held)
        nursery.start_soon(self._ask, peer, line, ready)
        await trio.lowlevel.checkpoint()

    async def _ask(self, peer: ReceiverPeer, line: Line, chosen: list[Held]) -> None:
        settled = [_settled(one) for one in chosen]
        strangers, again = [], []
        if self._chance.random() < self._unruly:
            self._faults["receiver: settles twice, or nobody's"] += 1
            strangers = [Settled(_NOBODYS, Verdict.DONE)]
            again = [one for one in settled if one.verdict == Verdict.DONE]
        asked_s = trio.current_time()
        frame = await peer.ask(CommandCode.SETTLE, encode_settle(settled + strangers))
        if frame.code == ResponseCode.SUCCESS:
            unknown, _ = decode_settle_reply(frame.body)
            self._judge.answered(line, chosen, len(strangers), unknown, asked_s)
            self._on_request(answered=True)
            if again:
                frame = await peer.ask(CommandCode.SETTLE, encode_settle(again))
                is_known = frame.code == 0 and decode_settle_reply(frame.body)[0] < len(again)
                if is_known or frame.code not in {0, ResponseCode.BROKER_ERROR}:
                    self._witness.complain(f"settled: twice, {frame.code} {frame.body!r}")
        elif frame.code == ResponseCode.BROKER_ERROR:
            # It is done in part or not at all: so it is said again.
            self._faults["receiver: not settled"] += 1
            for held in chosen:
                held.is_doubtful = True
                held.ready_s = trio.current_time() + self._chance.uniform(0.5, 5)
                line.open.setdefault(held.sequence, held)
            self._more.set()
        else:
            self._witness.complain(f"serves: a SETTLE was answered {frame.code} {frame.body!r}")

    async def _settle_strangers(self, peer: ReceiverPeer, line: Line) -> None:
        """Settle what another connection has, and what the one before had."""
        found = list(dict.fromkeys(self._judge.others(line) + self._left))
        found = [*self._chance.sample(found, min(len(found), _STRANGERS_MAX)), _NOBODYS]
        verdict = self._chance.choice((Verdict.DONE, Verdict.RELEASE, Verdict.REFUSED))
        self._faults["receiver: settles what others have"] += len(found) > 1
        body = encode_settle([Settled(one, verdict) for one in found])
        frame = await peer.ask(CommandCode.SETTLE, body)
        self._judge.answered(
            line, [], len(found), decode_settle_reply(frame.body)[0], trio.current_time()
        )


def _settled(held: Held) -> Settled:
    rest = held.instead if held.verdict is Verdict.LATER else b""
    return Settled(
        held.sequence, held.verdict, b"poison" if held.verdict is Verdict.REFUSED else rest
    )
