"""A real-time broker of the simulation: takes items, writes down what it got, and often fails.

It is outside the server's crash domain. What it does with a request is drawn: it takes it and
answers, or refuses it or some of its items, answers late, twice, in part, not at all or what nobody
asked, resets or hangs up. For longer times it may be down, mute (it takes and never answers), deaf
(it reads nothing), slow (it answers just before the time-out) or rejecting (it takes no item). What
it took and could not tell the server at once is in doubt: the server has to send it again.
"""

import contextlib
import enum
import random
from collections import Counter
from typing import Protocol

import msgspec
import trio

from bridges.broker_end import Refusal, Request
from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_transport.seams.runtime import Address
from tests.kit.broker_end import BrokerEnd
from tests.simulation.network import SimNetwork, SimStream
from tests.simulation.witness import Receipt, Witness

_SURE_WITHIN_S = 1.0
"""An answer later than this may be too late for a server that waits 5 s from its sending."""
_STALE_S = 10.0
"""What comes so soon after an outage may have been sent during it, and given up meanwhile."""
_UNHEARD_S = 3.0
"""An answer may have been on its way this long when its connection broke."""
_FAILURES = (
    "refuse",
    "busy",
    "late",
    "never",
    "ignore",
    "cut",
    "twice",
    "take and fail",
    "reset",
    "stray",
    "strange item",
)
_STRAY_OPAQUE = 2**31 - 1
_SLOW_S = 4.9
"""Just below the time-out of a request. With the way there and back it may be above."""
_REJECTIONS = (ItemCode.BROKER_READ_ONLY, ItemCode.STORE_ERROR, ItemCode.BROKER_BUSY)
"""How all items may be refused for a while; none of these makes a dead letter."""


class Outage(enum.Enum):
    """What may be wrong with a broker for a while."""

    DOWN = "down"
    """It closes its connections and refuses new ones."""
    MUTE = "mute"
    """It accepts, reads, takes what it gets, and never answers, but for HELLOs every other time."""
    DEAF = "deaf"
    """It accepts and reads nothing."""
    SLOW = "slow"
    """It takes what it gets, and answers each request after 4.9 s."""
    REJECTING = "rejecting"
    """It answers at once, and takes no item."""


AWAY = (Outage.DOWN, Outage.MUTE, Outage.DEAF)
"""Those in which it tells nobody that it has taken anything."""


_ENDS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class OnRequest(Protocol):
    """Hears of every SEND_MESSAGE, before its answer is sent and after."""

    def __call__(self, *, answered: bool) -> None: ...


class _Connection:
    """One connection: its stream, and the receipts whose answer went out on it."""

    def __init__(self, stream: SimStream) -> None:
        self.stream = stream
        self.told: list[tuple[float, list[Receipt]]] = []
        self._lock = trio.Lock()

    async def send(self, data: bytes) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            await self.stream.send_all(data)
        finally:
            self._lock.release()

    def doubt(self) -> None:
        """Be sure no more of what the server may not have heard: the connection broke."""
        since_s = trio.current_time() - _UNHEARD_S
        for at_s, receipts in self.told:
            if at_s >= since_s:
                for receipt in receipts:
                    receipt.sure = False


class SimBroker:
    """A broker group with one broker."""

    def __init__(
        self,
        name: str,
        address: Address,
        *,
        network: SimNetwork,
        chance: random.Random,
        witness: Witness,
        on_request: OnRequest,
        faults: Counter[str],
    ) -> None:
        self.name = name
        self.address = address
        """Where it listens, from the next time on that it is up."""
        self._network = network
        self._chance = chance
        self._witness = witness
        self._on_request = on_request
        self._faults = faults
        self.failing = chance.choice((0.0, 0.03, 0.15))
        self._knows_hello = chance.random() < 0.5
        self._knows_duplicates = chance.random() < 0.5
        self._seen: set[bytes] = set()
        self._up = trio.Event()
        self._up.set()
        self._hears = trio.Event()
        self._hears.set()
        self._mute = False
        self._ill: Outage | None = None
        """Slow or rejecting, if it is: it answers, and is not to be counted on."""
        self._outages = 0
        self._serving = trio.CancelScope()
        self._healed = False
        self._recovered_s = -_STALE_S

    def fail(self, outage: Outage) -> None:
        """Begin an outage, unless there is one or it is healed for good."""
        is_out = self._mute or self._ill or not (self._up.is_set() and self._hears.is_set())
        if self._healed or is_out:
            return
        self._faults[f"broker {outage.value}"] += 1
        self._outages += 1
        if outage not in AWAY:
            self._ill = outage
            self._witness.broker_ill(self.name)
            return
        self._witness.broker_down(self.name)
        if outage is Outage.DOWN:
            self._up = trio.Event()
            self._serving.cancel()
        elif outage is Outage.MUTE:
            self._mute = True
        else:
            self._hears = trio.Event()

    def recover(self) -> None:
        """End the outage. What it has not read or answered it never will: it hangs up.

        One that was slow still gives the answers that it owes, each when it has to.
        """
        self._ill = None
        if self._mute or not self._hears.is_set():
            self._mute = False
            self._serving.cancel()
        self._hears.set()
        self._up.set()
        self._recovered_s = trio.current_time()
        self._witness.broker_up(self.name)

    def heal(self) -> None:
        """Fail no more."""
        self._healed = True
        self.failing = 0.0
        self.recover()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, until cancelled."""
        network = self._network.node(self.name)
        while True:
            await self._up.wait()
            listener = await network.listen(*self.address)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            with trio.CancelScope() as self._serving:
                async with trio.open_nursery() as nursery:
                    while True:
                        nursery.start_soon(self._serve, await listener.accept())
            await listener.aclose()

    async def _serve(self, stream: SimStream) -> None:
        connection = _Connection(stream)
        end = BrokerEnd()
        orderly = False
        try:
            async with trio.open_nursery() as nursery:
                while data := await stream.receive_some():
                    await self._hears.wait()
                    for request in end.receive(data):
                        await self._take(connection, request, nursery)
                orderly = True
                nursery.cancel_scope.cancel()
        except* _ENDS:
            pass
        finally:
            if not orderly:
                connection.doubt()
                self._witness.broker_trouble(self.name)
            await trio.aclose_forcefully(stream)

    async def _take(self, connection: _Connection, request: Request, nursery: trio.Nursery) -> None:
        if request.has_items:
            self._on_request(answered=False)
            await self._take_items(connection, request, nursery)
            return
        is_hello = request.frame.code == CommandCode.HELLO
        if self._mute and not (is_hello and self._outages % 2):
            return
        is_known = self._knows_hello or not is_hello
        code = ResponseCode.SUCCESS if is_known else ResponseCode.UNKNOWN_CODE
        await connection.send(request.answer(code=code))

    async def _take_items(
        self, connection: _Connection, request: Request, nursery: trio.Nursery
    ) -> None:
        """Draw what becomes of a request, and do it."""
        chance = self._chance
        items = list(zip(request.ids, request.items, strict=True))
        if not all(request.scan.crc_ok):
            self._witness.complain(f"whole: {self.name} got an item whose CRC is wrong")
        what = "never" if self._mute else "" if self._ill is None else self._ill.value
        if not what and chance.random() < self.failing:
            what = chance.choice(_FAILURES)
            self._faults[f"broker: {what}"] += 1
            self._witness.broker_trouble(self.name)
        failures: list[Refusal] = []
        for message_id, item in items:
            self._witness.came(message_id, item, self.name)
        if what in {"refuse", "ignore"} or (what == "reset" and chance.random() < 0.5):
            items = []
        elif what == "rejecting":
            code = _REJECTIONS[self._outages % len(_REJECTIONS)]
            failures += [(message_id, code, "rejected") for message_id, _ in items]
            items = []
        elif what == "busy":
            busy = [item for item in items if chance.random() < 0.5]
            failures += [(message_id, ItemCode.BROKER_BUSY, "busy") for message_id, _ in busy]
            items = [item for item in items if item not in busy]
        if what not in {"refuse", "ignore", "reset"}:
            items, poisonous = self._without_poison(items)
            failures += poisonous
        if what != "busy" and self._knows_duplicates:
            failures += [
                (message_id, ItemCode.MESSAGE_DUPLICATE, "known")
                for message_id, _ in items
                if message_id in self._seen
            ]
        if what == "strange item":
            # It says that it did not take one that nobody sent: nobody knows what it took.
            failures.append((b"nobody's", ItemCode.BROKER_BUSY, "busy"))
        receipts = self._receive(items)
        sick = what in ("refuse", "take and fail")
        outcome = ResponseCode.BROKER_ERROR if sick else ResponseCode.SUCCESS
        answer = request.answer(() if sick else failures, code=outcome)
        delay_s = chance.uniform(0, 0.3) if chance.random() < 0.1 else 0.0
        if what == "late":
            delay_s = chance.uniform(1, 9)
        if what == "slow":
            delay_s = _SLOW_S
        if what == "reset":
            self._network.reset(connection.stream)
        elif what == "cut":
            nursery.start_soon(self._cut, connection, answer)
        elif what not in {"never", "ignore"}:
            told = receipts if what in {"", "twice", "busy", "stray"} else []
            if what == "twice":
                answer *= 2
            elif what == "stray":
                stray = Request(msgspec.structs.replace(request.frame, opaque=_STRAY_OPAQUE))
                answer = stray.answer(code=ResponseCode.BROKER_ERROR) + answer
            if delay_s:
                nursery.start_soon(self._answer, connection, answer, delay_s, told)
            else:
                await self._answer(connection, answer, 0.0, told)

    def _without_poison(
        self, items: list[tuple[bytes, bytes]]
    ) -> tuple[list[tuple[bytes, bytes]], list[Refusal]]:
        """Return the items that it takes, and how it refuses the others for good."""
        poison = self._witness.poison
        codes = [poison.code(message_id) for message_id, _ in items]
        refused = [
            (message_id, code, "poison")
            for (message_id, _), code in zip(items, codes, strict=True)
            if code
        ]
        self._faults["broker: refused for good"] += len(refused)
        return [item for item, code in zip(items, codes, strict=True) if not code], refused

    def _receive(self, items: list[tuple[bytes, bytes]]) -> list[Receipt]:
        witness = self._witness
        now_s, wall_ms = trio.current_time(), witness.latest_wall_ms()
        receipts = [
            Receipt(message_id, item, now_s, wall_ms, self.name) for message_id, item in items
        ]
        witness.take(receipts)
        self._seen.update(message_id for message_id, _ in items)
        return receipts

    async def _answer(
        self,
        connection: _Connection,
        answer: bytes,
        delay_s: float,
        told: list[Receipt],
    ) -> None:
        began_s = trio.current_time()
        if delay_s:
            await trio.sleep(delay_s)
        await connection.send(answer)
        now_s = trio.current_time()
        is_stale = began_s - self._recovered_s < _STALE_S
        if now_s - began_s <= _SURE_WITHIN_S and not is_stale:
            connection.told.append((now_s, told))
            for receipt in told:
                receipt.sure = True
        self._on_request(answered=True)

    async def _cut(self, connection: _Connection, answer: bytes) -> None:
        with contextlib.suppress(*_ENDS):
            await connection.send(answer[: self._chance.randrange(len(answer))])
        raise trio.BrokenResourceError("the broker hangs up")
