"""Has the server state why messages were not delivered, and judges that by what peers saw.

At some moments of each life the server gives its full account: how many messages wait, by reason
(`delay_server.admin.explain.counts`), and of some of them which one is theirs (`find`). Nothing
else of the server is looked at. What a reason has to fit:

    said of a message       fits if
    waiting                 it is not due by the wall clock, nor is there a minute to wait for
    clock_held              the clock was set
    paused                  the operator has paused its subject (gating.py), or a group; and nothing
                            else is said of one whose subject is paused and that is due, but of what
                            was under way
    rate_limited            he has limited a group
    group_down              no group has done its work for a while, and been given some; if none did
                            for a while, nothing is said to be queued or to be loaded
    in_flight               a broker got it, or could not be reached, at about that time
    retrying                a broker got it before, or could not be reached
    dead                    brokers refuse it for good, or its receivers ended
    no_route                there is a meta server that tells routes
    damaged                 a bit flipped, or the disk fails to read
    any but these           it is due
    none: it is delivered   a broker took it

The counts by place have to add up to what was acknowledged and not received, but for what is under
way, and those of places that nothing gives rise to are 0; no more is counted as due on disk than is
due. Complaints begin with `stated`.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import trio

from delay_protocol.messages.items import decode_item
from delay_server.admin.explain import Explained, counts, find
from delay_server.admin.reasons import Reason
from delay_server.server import DelayServer
from tests.simulation.gating import GateJudge, Standing
from tests.simulation.witness import Witness

_LOOKS_MAX = 4
"""In a life of the server, at counts and single messages."""
_GLANCES_MAX = 16
"""In a life of the server, at the counts alone, just after something has left or was answered."""
_EXPLAINED = 2
"""Messages for which is asked at a time: of those that are due, of those that are not, …"""
_IN_FLIGHT_S = 8.0
"""A request is answered within 5 s, or sent again."""
_FAILED_S = 60.0
"""What a group failed to do so long ago nothing waits for any more: no backoff is longer."""
_DOWN_S = 30.0
"""A group that was away for so long is known to be."""
_CALM_S = 60.0
"""A group that did its work for so long is connected and trusted."""
_HEARD_S = 3.0
"""After that time an answer was heard."""
_NOW_MS = 5_000
"""Between the time at which something is due and that at which it has left, if it can."""
_FILED_S = 120.0
"""After that time what was acknowledged is filed, though each fsync may take ten seconds."""
_SETTLED_S = 20.0
"""After that time an answer that was heard is known to be a durable fact."""

_WHILE_PAUSED = {Reason.IN_FLIGHT, Reason.RETRYING, Reason.CLOCK_HELD, Reason.WAITING}
"""What may be said of a message whose subject is paused, but that it is."""
_WHY_THERE = {
    "set_back": Reason.CLOCK_HELD,
    "damaged": Reason.DAMAGED,
    "being_recorded": Reason.DEAD,
    "dead": Reason.DEAD,
}
"""By place: what has to be so that there is anything."""
_TO_A_GROUP = {Reason.QUEUED, Reason.LOADING}
"""Said only where some group would take it."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """What was said to be in flight, and when."""

    message_id: bytes
    at_s: float
    group: str | None


@dataclass(slots=True)
class Stating:
    """Asks and judges, in one world."""

    chance: random.Random
    witness: Witness
    length_s: float
    gating: GateJudge | None
    is_routed: bool
    """Whether a meta server says which groups take which subjects."""
    reads_fail: Callable[[], bool]
    """Whether the disk of this life fails to read."""
    excuse_reads: Callable[[], None]
    """Have the witness told of what could not be read until now."""
    asked: Counter[str] = field(default_factory=Counter)
    """How often each reason was stated of a message."""
    looks: int = 0
    """How often the counts were judged."""
    _backlog: trio.Event = field(default_factory=trio.Event)
    _moved: trio.Event = field(default_factory=trio.Event)
    _in_flight: list[_InFlight] = field(default_factory=list)

    async def run(self, server: DelayServer) -> None:
        """Ask now and then in one life of the server, until cancelled."""
        await server.ready.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._glance, server)
            nursery.start_soon(self._watch_outages, server)
            await self._look(server)

    async def _glance(self, server: DelayServer) -> None:
        """Judge the counts while messages are on their way, and while nothing moves at all."""
        chance = self.chance
        for _ in range(_GLANCES_MAX):
            self._moved = trio.Event()
            with trio.move_on_after(self.length_s / _GLANCES_MAX):
                await self._moved.wait()
                await trio.sleep(chance.choice((0.0, 0.001, 0.01, 0.1)))
            self._judge_counts(server)
            await trio.sleep(chance.uniform(0, 5))

    async def _watch_outages(self, server: DelayServer) -> None:
        """Judge the counts while no group does its work."""
        glances = 0
        while glances < _GLANCES_MAX:
            if not self._all_were_down(server, trio.current_time()):
                await self.witness.next_outage.wait()
                continue
            await trio.sleep(self.chance.uniform(0, 10))
            if self._all_were_down(server, trio.current_time() - _DOWN_S):
                self._judge_counts(server)
                glances += 1

    async def _look(self, server: DelayServer) -> None:
        chance = self.chance
        for _ in range(_LOOKS_MAX):
            # Half of the moments are drawn, the others are close to one at which something leaves.
            with trio.move_on_after(chance.uniform(1, self.length_s / 4)):
                if chance.random() < 0.5:
                    self._backlog = trio.Event()
                    await self._backlog.wait()
                    await trio.sleep(chance.choice((0.0, 0.02, 1.0, 15.0)))
                else:
                    await trio.sleep_forever()
            self._judge_counts(server)
            for message_id in self._drawn(server):
                await self._explain(server, message_id)

    def something_leaves(self) -> None:
        """Hear that a request has come to a broker."""
        self._backlog.set()
        self._moved.set()

    # -- what is true ------------------------------------------------------------------------

    @property
    def _is_clock_sure(self) -> bool:
        """Whether everybody goes by the wall clock as it is, and long has."""
        now_s, clock = trio.current_time(), self.witness.clock
        was_set = self.witness.clock_was_set_between(now_s, now_s)
        # What had left when it was set back by minutes waits until it says so again.
        is_behind = self.witness.floor_ms(now_s) > clock.now_ms()
        return clock.is_synchronised and not (was_set or is_behind)

    def _standing(self, server: DelayServer) -> Standing | None:
        """Return the operator's rules; None while nobody knows."""
        return Standing() if self.gating is None else self.gating.standing(server)

    def _undelivered(self) -> list[bytes]:
        """Return what must be said to be undelivered: dead letters are."""
        witness = self.witness
        return [
            message_id
            for message_id in witness.acknowledged
            if message_id not in witness.received
            and message_id not in witness.lost
            and message_id not in witness.poison.dropped
            and not witness.fates.is_touched(message_id.decode())
        ]

    def _copies_left(self, message_id: bytes) -> int:
        """Return how many rows of a message may be undelivered at the most."""
        witness = self.witness
        sent = witness.attempts[message_id] - witness.turned_away[message_id]
        if message_id in witness.received and message_id not in witness.doubled:
            before_s = trio.current_time() - _SETTLED_S - witness.fact_s
            sent -= witness.is_settled_before(message_id, before_s)
        came_s = witness.acknowledged.get(message_id, math.inf)
        came_s = max(came_s, witness.moved_s.get(message_id, 0.0))
        is_young = came_s > trio.current_time() - _FILED_S
        # What is being filed may be counted both as on disk and as on its way there.
        is_young = is_young or witness.fates.is_touched(message_id.decode())
        return sent * 2 if is_young else sent

    def _surplus_facts(self) -> int:
        """Return how many facts may be counted that cross nothing off."""
        witness = self.witness
        return len(witness.doubled) + len(witness.lost & witness.received)

    def _groups(self, server: DelayServer) -> list[str]:
        return [name for name in server.config.brokers if name not in self.witness.receivers]

    def _some_group_was_calm(self, server: DelayServer, seconds: float) -> bool:
        """Say whether a group did its work, and could be given any, for so long."""
        now_s = trio.current_time()
        since_s = now_s - seconds
        witness = self.witness
        return witness.all_was_well(since_s, now_s) and witness.some_broker_was_calm(
            self._groups(server), since_s, now_s
        )

    def _some_circuit_is_closed(self, server: DelayServer) -> bool:
        """Say whether a group did its work for long, and the server must have heard that it did.

        A circuit is half-open until the group takes something, however long it has been well.
        """
        if not self._some_group_was_calm(server, _CALM_S):
            return False
        witness, now_s = self.witness, trio.current_time()
        since_s = now_s - _CALM_S
        calm = {
            name
            for name in self._groups(server)
            if witness.some_broker_was_calm([name], since_s, now_s)
        }
        for receipt in reversed(witness.receipts):
            if receipt.at_s < since_s:
                break
            if receipt.at_s < now_s - _HEARD_S and receipt.broker in calm:
                return True
        return False

    def _all_were_down(self, server: DelayServer, from_s: float) -> bool:
        """Say whether every group was away all the time since then."""
        groups = self._groups(server)
        down = self.witness.is_down_since
        # Receivers may take something at any time.
        return (
            bool(groups) and not self.witness.receivers and all(down(one, from_s) for one in groups)
        )

    # -- the counts --------------------------------------------------------------------------

    def _judge_counts(self, server: DelayServer) -> None:
        """Hold the counts of this moment against what peers saw."""
        if not server.is_master:
            # It is about to end.
            return
        self.excuse_reads()
        found = counts(server.administered().parts())
        self.looks += 1
        witness = self.witness
        impossible = self._impossible(server)
        wrong = [place for place, why in _WHY_THERE.items() if why in impossible and found[place]]
        if wrong or min(found.values()) < 0:
            self._complain(f"counted are {wrong}, without cause: {found}")
        left = self._undelivered()
        possible = {message_id: self._copies_left(message_id) for message_id in witness.items}
        is_poison = witness.poison.is_poison
        is_ordered = witness.poison.under_way > 0
        least = sum(not (is_ordered and is_poison(message_id)) for message_id in left)
        # A fact that was damaged and is told again counts twice, and one counts that tells of a
        # row which is lost, until the segment is looked through.
        least -= self._surplus_facts()
        most = sum(possible.values())
        total = sum(found.values())
        if not least <= total <= most:
            self._complain(f"{total} are counted of {least} to {most}: {found}")
        # A row whose fact could not be read counts until its segment is looked through again.
        if self._is_clock_sure and not self.reads_fail():
            now_ms = witness.clock.now_ms()
            due = sum(count for one, count in possible.items() if self._may_be_due(one, now_ms))
            if found["on_disk_due"] > due:
                self._complain(f"{found['on_disk_due']} are counted as due on disk of {due}")

    def _may_be_due(self, message_id: bytes, now_ms: int) -> bool:
        is_touched = self.witness.fates.is_touched(message_id.decode())
        return self.witness.due_ms[message_id] <= now_ms or is_touched

    def _impossible(self, server: DelayServer) -> set[Reason]:
        """Return the reasons that nothing gives rise to."""
        witness = self.witness
        none: set[Reason] = set()
        standing = self._standing(server)
        if standing is not None:
            if not (standing.pauses_subjects or standing.pauses_groups):
                none.add(Reason.PAUSED)
            if not standing.limits_groups:
                none.add(Reason.RATE_LIMITED)
        if not self.is_routed:
            none.add(Reason.NO_ROUTE)
            if self._some_circuit_is_closed(server):
                none.add(Reason.GROUP_DOWN)
            now_s = trio.current_time()
            since_s = now_s - _DOWN_S
            if (
                witness.all_was_well(since_s, now_s)
                and self._all_were_down(server, since_s)
                # A group that is mute is known to be only by what it was sent.
                and any(
                    since_s <= at_s <= now_s - _IN_FLIGHT_S
                    for seen in witness.sightings.values()
                    for at_s, _ in seen
                )
            ):
                none.add(Reason.QUEUED)
        if not (witness.poison.one_in or witness.receivers):
            none.add(Reason.DEAD)
        if not (witness.damage or self.reads_fail()):
            none.add(Reason.DAMAGED)
        if self._is_clock_sure:
            none.add(Reason.CLOCK_HELD)
        return none

    # -- single messages ---------------------------------------------------------------------

    def _drawn(self, server: DelayServer) -> list[bytes]:
        """Draw some messages that are due, that are not, that are dead, and that are delivered."""
        del server
        witness = self.witness
        now_ms = witness.clock.now_ms()
        kinds: dict[str, list[bytes]] = {"due": [], "not due": [], "poison": []}
        for message_id in self._undelivered():
            if witness.poison.is_poison(message_id):
                kind = "poison"
            else:
                kind = "due" if witness.due_ms[message_id] <= now_ms else "not due"
            kinds[kind].append(message_id)
        # Most of what there is to say is about what is due.
        shares = (("due", _EXPLAINED), ("not due", 1), ("poison", 1))
        drawn = [
            message_id
            for kind, count in shares
            for message_id in self.chance.sample(kinds[kind], min(count, len(kinds[kind])))
        ]
        if witness.receipts:
            drawn.append(self.chance.choice(witness.receipts).message_id)
        return drawn

    async def _explain(self, server: DelayServer, message_id: bytes) -> None:
        """Ask for one message, and judge the answer."""
        witness = self.witness
        if not server.is_master:
            return
        was_left = self._copies_left(message_id)
        found, search = await find(server.administered().parts(), message_id=message_id)
        if not search.is_complete or message_id in witness.lost or witness.damage:
            return
        if message_id in witness.varied or witness.fates.is_touched(message_id.decode()):
            return
        open_ones = [one for one in found if one.reason is not None]
        if message_id in witness.received:
            # Where reads fail its fact may be one that cannot be read.
            if self.reads_fail():
                open_ones = [one for one in open_ones if one.reason is not Reason.DAMAGED]
            if not was_left and open_ones:
                self._complain(f"of {message_id!r}, which was delivered: {open_ones}")
            return
        if message_id in witness.poison.dropped:
            return
        if not open_ones:
            self._complain(f"nothing of {message_id!r}, which no broker has taken: {found}")
        for one in open_ones:
            assert one.reason is not None
            self.asked[one.reason.value] += 1
            wrong = self._why_not(server, message_id, one, one.reason)
            if wrong:
                self._complain(f"of {message_id!r}: {one.reason.value}, but {wrong}: {one}")

    def _why_not(
        self, server: DelayServer, message_id: bytes, one: Explained, reason: Reason
    ) -> str:
        """Return what speaks against a reason; nothing if nothing does."""
        if reason in self._impossible(server):
            return "nothing gives rise to it"
        if reason is Reason.DEAD:
            witness = self.witness
            is_deadly = witness.is_deadly(message_id) or message_id in witness.may_die
            is_due = witness.poison.is_poison(message_id) or is_deadly
            return "" if is_due else "brokers would take it"
        if reason is Reason.DAMAGED:
            return ""
        return (
            self._why_not_by_clock(message_id, reason)
            or self._why_not_by_rules(server, message_id, reason)
            or self._why_not_by_groups(server, message_id, one, reason)
        )

    def _why_not_by_groups(
        self, server: DelayServer, message_id: bytes, one: Explained, reason: Reason
    ) -> str:
        now_s = trio.current_time()
        if reason is Reason.IN_FLIGHT:
            self._in_flight.append(
                _InFlight(message_id, now_s, one.held.group if one.held else None)
            )
        elif reason is Reason.RETRYING:
            groups = self._groups(server) or self.witness.known_brokers()
            groups += self.witness.receivers
            if not self._was_tried(message_id, groups, now_s - _FAILED_S, now_s):
                return "it was not tried"
        elif reason in _TO_A_GROUP and self._nobody_takes(server, message_id):
            return "no group is there"
        return ""

    def _nobody_takes(self, server: DelayServer, message_id: bytes) -> bool:
        """Say whether no group could have taken a message since it was to leave, long ago."""
        if self.is_routed or self._is_new(message_id):
            return False
        return self._all_were_down(server, trio.current_time() - _DOWN_S)

    def _why_not_by_clock(self, message_id: bytes, reason: Reason) -> str:
        witness = self.witness
        if not self._is_clock_sure or message_id in witness.moved_s:
            return ""
        now_ms, now_s = witness.clock.now_ms(), trio.current_time()
        due_ms = witness.due_ms[message_id]
        if due_ms > now_ms and reason is not Reason.WAITING:
            return f"it is due in {due_ms - now_ms} ms"
        is_old = due_ms < now_ms - _NOW_MS and not self._is_new(message_id)
        if is_old and reason is Reason.WAITING and witness.floor_ms(now_s) <= now_ms:
            return f"it has been due for {now_ms - due_ms} ms"
        return ""

    def _why_not_by_rules(self, server: DelayServer, message_id: bytes, reason: Reason) -> str:
        standing = self._standing(server)
        if standing is None:
            return ""
        subject = decode_item(self.witness.items[message_id]).subject
        is_paused = standing.is_paused(subject)
        if reason is Reason.PAUSED:
            return "" if is_paused or standing.pauses_groups else "its subject is not paused"
        if reason is Reason.RATE_LIMITED:
            return "" if standing.limits_groups else "no group is limited"
        if is_paused and reason not in _WHILE_PAUSED:
            return "its subject is paused"
        return ""

    def _is_new(self, message_id: bytes) -> bool:
        """Say whether a message may have come, or become due, or been given up, just now."""
        witness = self.witness
        now_s = trio.current_time()
        due_s = now_s - (witness.clock.now_ms() - witness.due_ms[message_id]) / 1000
        since_s = max(due_s, witness.acknowledged.get(message_id, now_s), witness.life_began(now_s))
        return since_s > now_s - _DOWN_S or not witness.all_was_well(since_s, now_s)

    # -- what can be judged later ------------------------------------------------------------

    def _was_tried(
        self, message_id: bytes, groups: Collection[str], from_s: float, until_s: float
    ) -> bool:
        """Say whether a broker got a message in this time, or one may have failed to."""
        witness = self.witness
        got = witness.sightings.get(message_id, ())
        # With a receiver it may be for long.
        if any(at_s <= until_s and name in witness.receivers for at_s, name in got):
            return True
        return any(from_s <= at_s <= until_s and name in groups for at_s, name in got) or any(
            not witness.some_broker_was_calm([name], from_s, until_s) for name in groups
        )

    def check(self) -> list[str]:
        """Return what was said to be in flight, and no broker got, nor failed to, as violations."""
        witness = self.witness
        found = []
        for said in self._in_flight:
            groups = witness.known_brokers() if said.group is None else [said.group]
            from_s, until_s = said.at_s - _IN_FLIGHT_S, said.at_s + _IN_FLIGHT_S
            lived = witness.lived_through(said.at_s, until_s)
            if lived and not self._was_tried(said.message_id, groups, from_s, until_s):
                found.append(
                    f"stated: {said.message_id!r} in flight to {said.group} at {said.at_s:.3f}, "
                    "which got nothing"
                )
        return found[:5]

    def _complain(self, what: str) -> None:
        self.witness.complain(f"stated: {what} (at {trio.current_time():.3f})")
