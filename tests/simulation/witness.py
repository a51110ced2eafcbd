"""What producers and brokers of one simulated run saw: all that the checkers know besides the disk.

Nothing here comes from the server's memory. Times are virtual seconds (`_s`) or wall ms.
"""

import bisect
import math
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from delay_server.accepting.duplicates import DuplicatesConfig
from tests.simulation import independent_reader as reader
from tests.simulation.changing import Fates
from tests.simulation.clock import SimClock
from tests.simulation.operator import Poison

_MINUTE_MS = 60_000
_UNDER_WAY_S = 2.0


@dataclass(slots=True)
class Receipt:
    """One item, as a broker got it."""

    message_id: bytes
    item: bytes
    at_s: float
    wall_ms: int
    """The latest time that the server's clock has shown when it may have sent this."""
    broker: str
    sure: bool = False
    """The server was told at once that it was taken, and must have heard it if it lived."""
    durable_s: float | None = None
    """When the server said that it knows this for good; brokers are never told so."""


@dataclass(slots=True)
class Witness:
    """Sent, acknowledged and received."""

    clock: SimClock
    poison: Poison = field(default_factory=Poison)
    items: dict[bytes, bytes] = field(default_factory=dict)
    """By message id: every item that should be accepted, of whatever request."""
    due_ms: dict[bytes, int] = field(default_factory=dict)
    """By message id, of the same; 0 for an item without a due time."""
    attempts: Counter[bytes] = field(default_factory=Counter)
    """Requests in which an id was sent."""
    turned_away: Counter[bytes] = field(default_factory=Counter)
    """Of those requests the ones of which a producer was told that nothing was kept."""
    later: dict[bytes, int] = field(default_factory=dict)
    """Items that receivers have put in the place of others, with their due times."""
    moved_s: dict[bytes, float] = field(default_factory=dict)
    """By message id: when a receiver last wanted a record in its place, by LATER or REFUSED."""
    receivers: tuple[str, ...] = ()
    """Names of the groups of receivers; all other groups are of brokers."""
    log_was_unreadable: bool = False
    """True once a file of the message_log could not be read."""
    duplicates: DuplicatesConfig = field(default_factory=DuplicatesConfig)
    """The window of duplicates of all lives of the server."""
    deadly_one_in: int = 0
    """One of so many ids ends each receiver that handles it; 0 for none."""
    may_die: set[bytes] = field(default_factory=set)
    """Messages that so many receivers left with, in one life, that they may be dead letters."""
    fates: Fates = field(init=False)
    """The judge of who cancels and moves."""
    rows_least: Counter[bytes] = field(default_factory=Counter)
    """Rows that the message_log must have of an item, byte for byte, where it is known."""
    varied: set[bytes] = field(default_factory=set)
    """Ids that were sent again with another body or due time."""
    acknowledged: dict[bytes, float] = field(default_factory=dict)
    """By message id: when a producer first heard that it was taken."""
    refused: dict[bytes, int] = field(default_factory=dict)
    """Flawed items, by the code they have to get."""
    receipts: list[Receipt] = field(default_factory=list)
    receipts_of: dict[bytes, list[Receipt]] = field(default_factory=dict)
    """The same by message id."""
    received: set[bytes] = field(default_factory=set)
    sightings: dict[bytes, list[tuple[float, str]]] = field(default_factory=dict)
    """By message id: when it came to which broker, whatever that made of it."""
    deaths_s: list[float] = field(default_factory=list)
    """When the server died."""
    lost: set[bytes] = field(default_factory=set)
    """Messages whose durable bytes were damaged: the server may lose these, and no others."""
    doubled: set[bytes] = field(default_factory=set)
    """Messages of which a durable fact was damaged: the server may send these again."""
    damage: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, position and true value of each damaged byte."""
    incarnation: int = 0
    """The latest that was durable when a life ended."""
    acknowledged_in_this_life: int = 0
    complaints: list[str] = field(default_factory=list)
    """Broken promises that a peer saw at once."""
    unconfirmed_ms: float = 0.0
    """Of the present wall time, what the server must not believe: it is ahead, and nothing says
    that it is right."""
    under_way_s: float = _UNDER_WAY_S
    """The longest a request may be under way to a broker that reads: longer, once the link to one
    was silent for a while."""
    fact_s: float = 10.0
    """Virtual seconds after an answer in which its fact becomes durable, however slow the disk."""
    clock_heed_s: float = 7300.0
    """For so long after the wall clock was set things may happen late, or early as it is then."""
    space_short_until_s: float = 0.0
    """Until then what is given up may find no room on the disk."""
    rules_changed_s: float = 0.0
    """When an operator may have changed last what subjects and groups may get."""
    next_outage: trio.Event = field(default_factory=trio.Event)
    """Set when a broker goes away."""
    _clock_set: list[tuple[float, int]] = field(default_factory=list)
    _lives: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each life of the server; the end of a present one is infinite."""
    _troubles: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By broker: from when to when it did not do its work."""
    _ills: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By broker: from when to when it answered, but was not to be counted on."""
    _closed: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By broker group: from when to when an operator may have held back what goes there."""
    _excuses: list[tuple[float, float]] = field(default_factory=list)
    _facts_late: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to judge."""
        self.fates = Fates(
            complain=self.complain,
            may_be_dead=lambda one: self.poison.is_poison(one.encode()),
            put_off=lambda one: one.encode() in self.moved_s or self.poison.is_poison(one.encode()),
            lost=lambda one: bool(self.damage) or one.encode() in self.lost | self.doubled,
        )

    def due_of(self, message_id: bytes, item: bytes) -> int | None:
        """Return when an item is due, 0 for one without a due time; None if nobody has sent it."""
        if self.items.get(message_id) == item:
            return self.due_ms[message_id]
        found = self.later.get(item)
        if found is None and message_id in self.items and self.is_moved(message_id, item):
            return reader.read_item(item).due_ms
        return found

    def is_moved(self, message_id: bytes, item: bytes) -> bool:
        """Return True if an item is one that was sent, at a time to which it was to be moved."""
        try:
            due_ms = reader.read_item(item).due_ms
        except reader.MismatchError:
            return False
        if due_ms not in self.fates.times_of(message_id.decode()):
            return False
        as_before = (item[8], item[9:17], item[25:])
        return any(
            as_before == (one[8] | reader.DELAY_FLAG, one[9:17], one[25:])
            for one in (self.items[message_id], *self.later)
        )

    def attempt(self, message_ids: Iterable[bytes]) -> None:
        """Note that messages are about to be sent in one request."""
        for message_id in message_ids:
            self.attempts[message_id] += 1
            self.fates.sent(message_id.decode())

    def came(self, message_id: bytes, item: bytes, name: str) -> None:
        """Note that a message has come to a broker or receiver, whatever that makes of it."""
        now_s = trio.current_time()
        self.sightings.setdefault(message_id, []).append((now_s, name))
        begun_s = now_s - self.under_way_s
        place = bisect.bisect_left(self.deaths_s, begun_s)
        since_s = self.deaths_s[place] if place < len(self.deaths_s) else now_s
        if self.under_way_s > _UNDER_WAY_S:
            # It may come out of a link that was silent, whose other end was given up.
            since_s = begun_s
        self.fates.came(message_id.decode(), reader.read_item(item).due_ms, since_s=since_s)

    def acknowledge(self, message_id: bytes) -> None:
        """Note that a producer was told that a message is kept."""
        self.acknowledged.setdefault(message_id, trio.current_time())
        self.fates.acknowledged(message_id.decode(), 0.0)
        self.acknowledged_in_this_life += 1

    def clock_set(self, from_ms: int) -> None:
        """Note that the wall clock is about to be set."""
        self._clock_set.append((trio.current_time(), from_ms))

    def latest_wall_ms(self) -> int:
        """Return the latest wall time at which something that arrives now may have been sent."""
        now_s = trio.current_time()
        shown = [from_ms for at_s, from_ms in self._clock_set if now_s - at_s <= self.under_way_s]
        return max([self.clock.now_ms() - round(self.unconfirmed_ms), *shown])

    def floor_ms(self, at_s: float) -> int:
        """Return the wall time before which nothing need leave that arrived by then.

        A server that has believed in a clock that was ahead files by the minute it was told; what
        arrives when the clock is right again waits for that minute.
        """
        shown = [from_ms for set_s, from_ms in self._clock_set if set_s <= at_s]
        return max(shown, default=-_MINUTE_MS) + _MINUTE_MS

    def server_started(self) -> None:
        """Note that a life of the server begins."""
        self._lives.append((trio.current_time(), math.inf))
        self.acknowledged_in_this_life = 0

    def server_ended(self) -> None:
        """Note that it ended, in whatever way."""
        began_s, _ = self._lives.pop()
        self._lives.append((began_s, trio.current_time()))

    def broker_trouble(self, name: str) -> None:
        """Note that a broker misbehaves at this moment."""
        now_s = trio.current_time()
        self._troubles.setdefault(name, []).append((now_s, now_s))

    def broker_down(self, name: str) -> None:
        """Note that a broker misbehaves from now on."""
        self._troubles.setdefault(name, []).append((trio.current_time(), math.inf))
        self.next_outage.set()
        self.next_outage = trio.Event()

    def broker_down_until(self, name: str, until_s: float) -> None:
        """Note that a broker or receiver misbehaves from now until then."""
        self._troubles.setdefault(name, []).append((trio.current_time(), until_s))

    def broker_ill(self, name: str) -> None:
        """Note that a broker answers from now on, but all too late, or takes nothing.

        It is not away: the server may well trust it, and queue for it.
        """
        self._ills.setdefault(name, []).append((trio.current_time(), math.inf))

    def broker_up(self, name: str) -> None:
        """Note that a broker works again."""
        now_s = trio.current_time()
        for times in (self._troubles, self._ills):
            times[name] = [(from_s, min(until_s, now_s)) for from_s, until_s in times.get(name, [])]

    def group_closed(self, name: str) -> None:
        """Note that an operator may have closed or narrowed a group from now on."""
        self._closed.setdefault(name, []).append((trio.current_time(), math.inf))

    def group_opened(self, name: str) -> None:
        """Note that he has opened it again."""
        now_s = trio.current_time()
        self._closed[name] = [
            (from_s, min(until_s, now_s)) for from_s, until_s in self._closed.get(name, [])
        ]

    def excuse_lateness(self, until_s: float) -> None:
        """Note that from now until then nobody need be on time."""
        self._excuses.append((trio.current_time(), until_s))

    def space_short(self, until_s: float) -> None:
        """Note that until then the disk may have no room for what is given up."""
        self.space_short_until_s = until_s

    def facts_late(self, until_s: float) -> None:
        """Note that from now until then facts may not become durable: the disk is full."""
        self._facts_late.append((trio.current_time(), until_s))

    def clock_was_set_between(self, from_s: float, until_s: float) -> bool:
        """Say whether the wall clock was set in this time, or so recently that it still matters."""
        return any(from_s - self.clock_heed_s <= at_s <= until_s for at_s, _ in self._clock_set)

    def served_from(self, at_s: float) -> float:
        """Return when the life of the server at this time began; infinity if there was none."""
        for began_s, ended_s in self._lives:
            if at_s < ended_s:
                return max(began_s, at_s)
        return math.inf

    def life_began(self, at_s: float) -> float:
        """Return when the life began of which something was still heard at this time."""
        return max((began_s for began_s, _ in self._lives if began_s <= at_s), default=0.0)

    def all_was_well(self, from_s: float, until_s: float) -> bool:
        """Say whether the server lived through this time and nothing excuses its lateness."""
        lived = any(began_s <= from_s and until_s < ended_s for began_s, ended_s in self._lives)
        return lived and not _touches(self._excuses, from_s, until_s)

    def some_broker_was_calm(self, names: Iterable[str], from_s: float, until_s: float) -> bool:
        """Say whether one of the brokers did its work all this time."""
        return any(
            not any(
                _touches(times.get(name, []), from_s, until_s)
                for times in (self._troubles, self._ills, self._closed)
            )
            for name in names
        )

    def is_down_since(self, name: str, from_s: float) -> bool:
        """Say whether a broker has been away all the time since then, and still is."""
        troubles = self._troubles.get(name, ())
        return any(begin_s <= from_s and end_s == math.inf for begin_s, end_s in troubles)

    def known_brokers(self) -> list[str]:
        """Return the names of all brokers that ever got something, or failed to."""
        return sorted(
            {receipt.broker for receipt in self.receipts} | set(self._troubles) | set(self._ills)
        )

    def lived_through(self, from_s: float, until_s: float) -> bool:
        """Say whether one life of the server lasted all this time."""
        return any(began_s <= from_s and until_s < ended_s for began_s, ended_s in self._lives)

    def any_trouble(self, from_s: float, until_s: float) -> bool:
        """Say whether a broker misbehaved in this time, or the server did not live through it."""
        lived = any(began_s <= from_s and until_s < ended_s for began_s, ended_s in self._lives)
        return not lived or any(
            _touches(times, from_s, until_s)
            for times in (*self._troubles.values(), *self._ills.values())
        )

    def server_died(self) -> None:
        """Note a crash."""
        self.deaths_s.append(trio.current_time())

    def died_within(self, at_s: float, seconds: float) -> bool:
        """Say whether the server died so soon after what arrived then, or since it was sent."""
        place = bisect.bisect_left(self.deaths_s, at_s - self.under_way_s)
        until_s = at_s + seconds
        for from_s, late_until_s in self._facts_late:
            if from_s <= until_s and late_until_s >= at_s:
                until_s = max(until_s, late_until_s + seconds)
        return place < len(self.deaths_s) and self.deaths_s[place] <= until_s

    def is_settled(self, receipt: Receipt) -> bool:
        """Say whether the fact of a delivery must have become durable."""
        if receipt.durable_s is not None:
            return True
        return receipt.sure and not self.died_within(receipt.at_s, self.fact_s)

    def is_settled_before(self, message_id: bytes, before_s: float) -> bool:
        """Say whether the fact of a delivery before then must be durable by now."""
        if _touches(self._facts_late, before_s, trio.current_time()):
            return False
        return any(
            (receipt.durable_s or receipt.at_s) < before_s and self.is_settled(receipt)
            for receipt in self.receipts_of.get(message_id, ())
        )

    def is_deadly(self, message_id: bytes) -> bool:
        """Return True if a message ends its receivers."""
        return bool(self.deadly_one_in) and not zlib.crc32(message_id) % self.deadly_one_in

    def take(self, receipts: Iterable[Receipt]) -> None:
        """Note what a broker took, or a receiver was done with."""
        for receipt in receipts:
            self.receipts.append(receipt)
            self.received.add(receipt.message_id)
            self.receipts_of.setdefault(receipt.message_id, []).append(receipt)

    def missing(self) -> list[bytes]:
        """Return what was acknowledged and has not been received."""
        return [
            message
            for message in self.acknowledged
            if message not in self.received
            and message not in self.lost
            and message not in self.may_die
            and not self.is_deadly(message)
            and not self.fates.may_stay(message.decode())
            and not self.poison.may_stay(message)
        ]

    async def nothing_missing(self) -> None:
        """Return when everything acknowledged was received."""
        for _ in iter(self.missing, []):
            await trio.sleep(10)

    def receipts_by_id(self) -> dict[bytes, list[Receipt]]:
        """Return all receipts, by message, oldest first."""
        found: dict[bytes, list[Receipt]] = {}
        for receipt in self.receipts:
            found.setdefault(receipt.message_id, []).append(receipt)
        return found

    def complain(self, text: str) -> None:
        """Note a broken promise; a few are enough."""
        if len(self.complaints) < 20:
            self.complaints.append(text)


def _touches(times: list[tuple[float, float]], from_s: float, until_s: float) -> bool:
    return any(begin_s <= until_s and end_s >= from_s for begin_s, end_s in times)
