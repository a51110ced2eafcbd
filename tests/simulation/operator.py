"""Somebody who looks after dead letters: cures, requeues and drops at any moment.

Some message ids are *poison*: every broker refuses them for good until they are cured. What is
ordered in a life of the server that ends meanwhile may have been done or not; what was confirmed
has to hold.
"""

import contextlib
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import trio

from delay_protocol.basics.codes import ItemCode
from delay_protocol.messages.items import item_message_ids
from delay_server.server import DelayServer
from storage.schedule.dead_index import DeadRow

_PATIENCE_S = 30.0


@dataclass(slots=True)
class Poison:
    """Which messages brokers refuse for good, and what was ordered about them."""

    one_in: int = 0
    """One of so many ids; 0 for none."""
    cured: set[bytes] = field(default_factory=set)
    is_over: bool = False
    """Whether all are cured, and requeued unless they were dropped."""
    requeued: set[bytes] = field(default_factory=set)
    """Cured ones of which a requeue was confirmed."""
    dropped: set[bytes] = field(default_factory=set)
    """Those of which a drop was ordered."""
    under_way: int = 0
    """Orders about dead letters that are not confirmed: they may be counted nowhere meanwhile."""

    @contextlib.contextmanager
    def ordering(self) -> Iterator[None]:
        """Note that an order about dead letters is under way."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def is_poison(self, message_id: bytes) -> bool:
        """Say whether a message was ever one of these."""
        return bool(self.one_in) and not zlib.crc32(message_id) % self.one_in

    def code(self, message_id: bytes) -> int:
        """Return the item code that a broker answers, 0 if it takes the message."""
        if not self.is_poison(message_id) or message_id in self.cured or self.is_over:
            return 0
        blocked = zlib.crc32(message_id) & (1 << 20)
        return ItemCode.BLOCK if blocked else ItemCode.SUBJECT_NOT_ASSIGNED

    def may_stay(self, message_id: bytes) -> bool:
        """Say whether a message need not arrive."""
        if not self.is_poison(message_id) or message_id in self.requeued:
            return False
        return message_id in self.dropped or not self.is_over


class SimOperator:
    """Works in each life of the server."""

    def __init__(
        self,
        chance: random.Random,
        poison: Poison,
        faults: Counter[str],
        *,
        length_s: float,
    ) -> None:
        """Look after dead letters some times in `length_s`."""
        self._chance = chance
        self._poison = poison
        self._faults = faults
        self._pause_s = length_s / chance.choice((5, 25, 80))
        self._requeues_all = chance.random() < 0.5
        self._last_round = trio.Event()
        self.is_done = trio.Event()
        """Set once it has no more to do."""

    def finish(self) -> None:
        """Do what is to be done at the end, in the present life."""
        self._last_round.set()

    async def work(self, server: DelayServer) -> None:
        """Work until everything is done, or the life ends."""
        await server.ready.wait()
        while not self._last_round.is_set():
            with trio.move_on_after(self._chance.expovariate(1 / self._pause_s)):
                await self._last_round.wait()
            if not self._last_round.is_set():
                with self._poison.ordering():
                    await self._act(server)
        if self._requeues_all:
            self._poison.is_over = True
        await self._see_all_settled(server)
        self.is_done.set()

    async def _act(self, server: DelayServer) -> None:
        """Do something about one dead letter, or about several."""
        letters = server.master.dead_letters
        chance = self._chance
        rows = letters.listed()[: chance.choice((1, 3, 50))]
        if not rows:
            return
        row = chance.choice(rows)
        [item] = await letters.read([row], lambda _, found: found.item)
        if item is None:
            return
        message_id = item_message_ids(item, [len(item)])[0]
        kind = chance.random()
        if kind < 0.45:
            await self._requeue(server, row, message_id, cured=chance.random() < 0.6)
        elif kind < 0.7:
            self._poison.dropped.add(message_id)
            change = await letters.drop([row])
            self._faults["operator: dropped"] += change.done
        elif kind < 0.85:
            await self._requeue_subject(server, row)
        else:
            # Two who want different things of the same one.
            self._poison.dropped.add(message_id)
            async with trio.open_nursery() as nursery:
                for change_it in (letters.drop, letters.requeue):
                    nursery.start_soon(change_it, [row])
            self._faults["operator: drop against requeue"] += 1

    async def _requeue(
        self, server: DelayServer, row: DeadRow, message_id: bytes, *, cured: bool
    ) -> None:
        if cured:
            self._poison.cured.add(message_id)
        change = await server.master.dead_letters.requeue([row])
        self._faults["operator: requeued"] += change.done
        if cured and change.done:
            self._poison.requeued.add(message_id)

    async def _requeue_subject(self, server: DelayServer, row: DeadRow) -> None:
        letters = server.master.dead_letters
        change = await letters.requeue(letters.listed(subject=row.subject.decode()))
        self._faults["operator: requeued by subject"] += change.done

    async def _see_all_settled(self, server: DelayServer) -> None:
        """Wait until every message was sent or given up; requeue what was, if that is the plan."""
        letters = server.master.dead_letters
        while True:
            if self._requeues_all:
                with self._poison.ordering():
                    await letters.requeue(letters.listed())
            left = server.node.store.schedule.pending + server.master.dead_recorder.count
            if not left and not (self._requeues_all and letters.pending):
                return
            await trio.sleep(_PATIENCE_S)
