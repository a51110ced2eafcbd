"""Batches: the items of one request, and whom to tell what became of them.

A batch is the unit of sending and of trying again, so nothing but lists of bytes is kept for a
single message of a send_many(). What became of an item goes to the batch's `Receiver` under the
item's position there:

    send_many()   Collection   one list of outcomes for the whole call
    send()        Gathering    one Waiter for each of the calls that share the request
"""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from delay_client.exchange.asking import Asking
from delay_client.exchange.links import Link
from delay_client.messages.config import ClientConfig
from delay_client.messages.due_times import due_at
from delay_client.messages.errors import DelaywheelError, FatalError, RetryableError
from delay_client.messages.item_encoder import DUE_MS_MAX, LEVEL_0_MS, EncodedItem
from delay_client.messages.message import Outcome, OutgoingItem, OutgoingMessage, Receipt
from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.levels import level_to_ms
from delay_protocol.messages.items import decode_item
from delay_protocol.messages.repeats import DELAY_KEY
from delay_protocol.messages.send_message import encode_send_request_body


class Receiver(Protocol):
    """Whom a batch's outcomes go to."""

    def settle(self, positions: Sequence[int], outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of these positions, in order. Called once for each position."""

    def wanted(self, positions: Sequence[int]) -> Sequence[int]:
        """Return those of the positions that somebody still waits for."""


class Collection:
    """The outcomes of one send_many(), in the order of its messages.

    Invariant: `unsettled` counts the messages that were handed over and have no outcome yet.
    """

    def __init__(self, on_progress: Callable[[], None]) -> None:
        """`on_progress` is called whenever outcomes have come in."""
        self._outcomes: list[Outcome | None] = []
        self._on_progress = on_progress
        self._was_answered = True
        self._answered_at = 0.0
        self.unsettled = 0
        self.abandoned = False
        """Set when the caller has gone: what was not sent yet need not be."""

    def expect(self, positions: Sequence[int]) -> Sequence[int]:
        """Note that messages at these positions, in ascending order, are handed over now.

        Returns the positions in the form that settles fastest.
        """
        first, last = positions[0], positions[-1]
        self._make_room(last + 1)
        self.unsettled += len(positions)
        is_one_run = last - first + 1 == len(positions)
        return range(first, last + 1) if is_one_run else positions

    def refuse(self, position: int, error: FatalError) -> None:
        """Take the error of a message that cannot be sent at all."""
        self._make_room(position + 1)
        self._outcomes[position] = error

    def deadline(self, now: float, timeout_s: float) -> float:
        """Return the deadline of a batch that is sent now.

        Each message may take `timeout_s`, but not the call as many times of it as it has batches:
        when no server has answered for so long, what follows is not waited for.
        """
        if self._was_answered:
            self._was_answered = False
            self._answered_at = now
        return now + timeout_s if now < self._answered_at + timeout_s else now

    def settle(self, positions: Sequence[int], outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of these positions."""
        if isinstance(positions, range):
            self._outcomes[positions.start : positions.stop] = outcomes
        else:
            for position, outcome in zip(positions, outcomes, strict=True):
                self._outcomes[position] = outcome
        self.unsettled -= len(positions)
        if not isinstance(self._outcomes[positions[0]], RetryableError):
            self._was_answered = True
        self._on_progress()

    def wanted(self, positions: Sequence[int]) -> Sequence[int]:
        """All of them, unless the caller has gone."""
        return () if self.abandoned else positions

    def _make_room(self, count: int) -> None:
        missing = count - len(self._outcomes)
        if missing > 0:
            self._outcomes += [None] * missing

    def outcomes(self) -> list[Outcome]:
        """Return what became of every message."""
        settled = [outcome for outcome in self._outcomes if outcome is not None]
        assert self.unsettled == 0
        assert len(settled) == len(self._outcomes)
        return settled


class Waiter:
    """One send() that waits for its outcome."""

    __slots__ = ("_on_settled", "abandoned", "outcome")

    def __init__(self, on_settled: Callable[[], None]) -> None:
        self._on_settled = on_settled
        self.outcome: Outcome | None = None
        self.abandoned = False
        """Set when the caller was cancelled."""

    def settle(self, outcome: Outcome) -> None:
        """Take the outcome and wake the caller."""
        self.outcome = outcome
        self._on_settled()

    def receipt(self) -> Receipt:
        """Return the outcome, or raise it."""
        assert self.outcome is not None
        if isinstance(self.outcome, DelaywheelError):
            raise self.outcome
        return self.outcome


class Gathering:
    """The send() calls that share a request."""

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []

    def add(self, waiter: Waiter) -> None:
        """Let one more call in, at the next position."""
        self._waiters.append(waiter)

    def settle(self, positions: Sequence[int], outcomes: Iterable[Outcome]) -> None:
        """Pass the outcomes on."""
        for position, outcome in zip(positions, outcomes, strict=True):
            self._waiters[position].settle(outcome)

    def wanted(self, positions: Sequence[int]) -> Sequence[int]:
        """Return the positions of the calls that were not cancelled."""
        waiters = self._waiters
        return [position for position in positions if not waiters[position].abandoned]


@dataclass(frozen=True, slots=True)
class Setback:
    """Why a try failed, if trying again makes sense."""

    kind: type[RetryableError]
    text: str
    server: str
    word: str = ""
    """Which server said last that it takes no messages, and why; "" if none did."""


class Lane:
    """Messages that may go to the same servers, in the order in which they are to be sent.

    Messages whose id the user gave are in lanes beside it, one for each *home*: the group that
    subject and id name, so that copies that were sent at different times meet in one group.
    """

    __slots__ = ("beside", "home", "links", "main", "open", "ready", "subject", "waiting")

    def __init__(
        self,
        links: "Sequence[BatchLink]" = (),
        *,
        subject: str | None = None,
        main: "Lane | None" = None,
        home: "BatchLink | None" = None,
    ) -> None:
        self.links = links
        """Those servers, the preferred one first; none while there is no route."""
        self.subject = subject
        """Of a lane without servers: the subject that has no route."""
        self.main = self if main is None else main
        """The lane that this one is beside; itself if it is beside none."""
        self.home = home
        """Whose messages these are, of a lane beside another that has servers."""
        self.beside: dict[BatchLink | None, Lane] = {}
        """Lanes of messages with given ids, by home."""
        self.open: dict[float, tuple[Batch, float]] = {}
        """Batches that still gather send() calls, by time-out, and when each began to."""
        self.ready: deque[Batch] = deque()
        self.waiting = 0
        """Batches that pause after a setback."""

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to be sent."""
        return bool(self.ready or self.open or self.waiting)

    def of_id(self, subject: str, message_id: str) -> "Lane":
        """Return the lane beside this one for a message whose id the user gave."""
        home: BatchLink | None = None
        if len(self.links) == 1:
            [home] = self.links
        elif self.links:
            home = max(self.links, key=lambda link: claim(link.group, subject, message_id))
        lane = self.beside.get(home)
        if lane is None:
            lane = self.beside[home] = Lane(self.links, subject=self.subject, main=self, home=home)
        return lane


def claim(group: str, subject: str, message_id: str) -> bytes:
    """Return what a group bids for a message: of the groups of its route the highest is its home.

    This is rendezvous hashing: a group that comes or goes moves no message between the others.
    """
    name = f"{group}\0{subject}\0{message_id}".encode()
    return hashlib.blake2b(name, digest_size=8).digest()


class Batch:
    """Items that travel together, from their first try to their last.

    Invariant: `positions`, `items`, `ids`, `subjects` and `due_ms` are of one length, and never
    empty while the batch is on its way.
    """

    code = CommandCode.SEND_MESSAGE
    is_slow = False
    """A server answers as soon as it has them on disk."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        deadline: float,
        lane: Lane,
        version: int = 0,
    ) -> None:
        self.receiver = receiver
        self.deadline = deadline
        """Loop time in seconds after which it is not tried any more."""
        self.positions: Sequence[int] = []
        self.items: list[bytes] = []
        self.ids: list[str] = []
        self.subjects: list[str] = []
        self.due_ms: list[int] = []
        self.past_due: set[str] = set()
        """Ids of those that were due before they were sent or have an unknown level, and perhaps of
        others."""
        self.fixed: set[str] = set()
        """Ids of those that are due at a moment that the user gave, and perhaps of others."""
        self.given: set[str] = set()
        """Ids that users gave. An answer names items by their ids alone, so each is here once."""
        self.size = 0
        """Bytes of all items."""
        self.attempts = 0
        """Tries that were put on the wire."""
        self.maybe_kept = False
        """Whether a try ended without an answer, so that a server may have kept the items."""
        self.setback: Setback | None = None
        """Why the last try failed."""
        self.avoid: str | None = None
        """The server that failed last; another one is asked first."""
        self.held_for: str | None = None
        """The group that may have kept it: until `retry_at` only that one gets it."""
        self.retry_at = 0.0
        self.lane = lane
        """Which servers may have it."""
        self.version = version
        """Of the routes by which it came into its lane."""

    def __len__(self) -> int:
        return len(self.items)

    def body(self) -> bytes:
        """Return the body of its frame."""
        return encode_send_request_body(self.items)

    def has_room(self, config: ClientConfig, size: int, own_id: str | None) -> bool:
        """Return True if an item of so many bytes, with an id if the user gave it, may be added."""
        return (
            len(self.items) < config.request_items_max
            and self.size + size <= config.request_bytes_max
            and own_id not in self.given
        )

    def add(
        self,
        encoded: EncodedItem,
        subject: str,
        position: int,
        *,
        own_id: str | None = None,
        is_past_due: bool = False,
    ) -> None:
        """Put one more item in, which is at this position of the receiver's."""
        assert isinstance(self.positions, list)
        item, message_id, due_ms, is_fixed = encoded
        if own_id is not None:
            self.given.add(own_id)
        if is_past_due:
            self.past_due.add(message_id)
        if is_fixed:
            self.fixed.add(message_id)
        self.items.append(item)
        self.ids.append(message_id)
        self.subjects.append(subject)
        self.due_ms.append(due_ms)
        self.positions.append(position)
        self.size += len(item)

    def retime(self, by_ms: int) -> None:
        """Count its delays by another clock, which is so far ahead of the one here."""
        for index, message_id in enumerate(self.ids):
            if message_id not in self.fixed:
                due_ms = min(max(self.due_ms[index] + by_ms, 0), DUE_MS_MAX)
                self.items[index] = due_at(decode_item(self.items[index]), due_ms)
                self.due_ms[index] = due_ms
        self.size = sum(map(len, self.items))

    def count_levels(self, levels_ms: Sequence[int]) -> None:
        """Set when those are due that were written before the delays of levels were known."""
        for index, message_id in enumerate(self.ids):
            if self.due_ms[index] < 0 and message_id not in self.fixed:
                item = decode_item(self.items[index])
                delay_ms = level_to_ms(LEVEL_0_MS - self.due_ms[index], levels_ms)
                self.due_ms[index] = item.create_ms + delay_ms
                said = {DELAY_KEY: str(delay_ms)} if DELAY_KEY in item.attributes else {}
                self.items[index] = due_at(item, self.due_ms[index], **said)
                self.past_due.discard(message_id)
        self.size = sum(map(len, self.items))

    def keep(self, indices: Sequence[int]) -> None:
        """Forget all items but those at these indices."""
        self.positions = [self.positions[index] for index in indices]
        self.items = [self.items[index] for index in indices]
        self.ids = [self.ids[index] for index in indices]
        self.subjects = [self.subjects[index] for index in indices]
        self.due_ms = [self.due_ms[index] for index in indices]
        self.size = sum(map(len, self.items))

    def part(self, indices: Sequence[int]) -> "Batch":
        """Return a batch of the items at these indices, as far on their way as this one."""
        part = copy.copy(self)
        part.keep(indices)
        return part

    def absorb(self, other: "Batch") -> None:
        """Take in the items of another one of the same receiver, of as many attempts."""
        self.positions = [*self.positions, *other.positions]
        self.items += other.items
        self.ids += other.ids
        self.subjects += other.subjects
        self.due_ms += other.due_ms
        self.past_due |= other.past_due
        self.fixed |= other.fixed
        self.given |= other.given
        self.size += other.size
        self.deadline = min(self.deadline, other.deadline)

    def drop_unwanted(self) -> bool:
        """Remove items whose callers have stopped waiting; return whether any is left."""
        wanted = self.receiver.wanted(self.positions)
        if len(wanted) < len(self.positions):
            still = frozenset(wanted)
            self.keep([i for i, position in enumerate(self.positions) if position in still])
        return bool(self.items)


BatchLink = Link[Batch | Asking]
"""The link to one server."""


class Lanes(Protocol):
    """Which messages may go to the same servers."""

    @property
    def version(self) -> int:
        """Counts the changes of routes."""

    def lane_for(self, subject: str, own_id: str | None) -> Lane:
        """Return the lane of a subject's messages, or of one with this id if the user gave it."""


_Message = TypeVar("_Message", OutgoingMessage, OutgoingItem)
_Encoded_contra = TypeVar("_Encoded_contra", bound=tuple[object, ...], contravariant=True)


class Encoder(Protocol[_Encoded_contra]):
    """Makes items of messages."""

    @property
    def given_id(self) -> Callable[[_Encoded_contra], object]:
        """Return None for a message whose id is made here."""

    def encode(self, message: _Encoded_contra, now_ms: int, /) -> EncodedItem:
        """Return the item of a message; raise FatalError if there can be none."""


def cut_batches(
    messages: Iterable[_Message],
    collection: Collection,
    *,
    encoder: Encoder[_Message],
    config: ClientConfig,
    wall_ms: Callable[[], int],
    lanes: Lanes,
) -> Iterator[Batch]:
    """Yield the batches of a send_many(), encoding each just before; the caller sets deadlines.

    A batch holds messages of one lane. A message that cannot be sent gets its error as its outcome,
    and the others go on.
    """
    unfinished = _Unfinished(collection, config)
    last: str | None = None
    lane: Lane | None = None
    for position, message in enumerate(messages):
        now_ms = wall_ms()
        try:
            encoded = encoder.encode(message, now_ms)
        except FatalError as error:
            collection.refuse(position, error)
            continue
        item, message_id, due_ms, _ = encoded
        subject, own_id = message[0], None if encoder.given_id(message) is None else message_id
        if lane is None or subject != last or own_id is not None:
            lane = lanes.lane_for(subject, own_id)
            last = subject if own_id is None else None
        batch = unfinished.by_lane.get(lane)
        if batch is None or not batch.has_room(config, len(item), own_id):
            yield from unfinished.make_room(lane, position)
            # The routes may have changed meanwhile.
            lane = lanes.lane_for(subject, own_id)
            if lane in unfinished.by_lane:
                yield unfinished.take(lane)
            batch = unfinished.by_lane[lane] = Batch(
                collection, deadline=0.0, lane=lane, version=lanes.version
            )
        batch.add(encoded, subject, position, own_id=own_id, is_past_due=due_ms < now_ms)
    yield from unfinished.take_all()


class _Unfinished:
    """Batches of one send_many() that take more messages, each of another lane."""

    def __init__(self, collection: Collection, config: ClientConfig) -> None:
        self._collection = collection
        self._config = config
        self.by_lane: dict[Lane, Batch] = {}
        """All of them."""
        self._emptied_at = 0

    def take(self, lane: Lane) -> Batch:
        """Take out the batch of a lane, which is to be sent now."""
        batch = self.by_lane.pop(lane)
        batch.positions = self._collection.expect(batch.positions)
        return batch

    def take_all(self) -> Iterator[Batch]:
        """Take out all of them."""
        for lane in list(self.by_lane):
            yield self.take(lane)

    def make_room(self, lane: Lane, position: int) -> Iterator[Batch]:
        """Take out what has to go before a lane gets a new batch at this position.

        That is what the lane has, and all batches if they are too many, too large or too old.
        """
        if lane in self.by_lane:
            yield self.take(lane)
        config = self._config
        if (
            len(self.by_lane) >= _UNFINISHED_MAX
            or position - self._emptied_at > _UNFINISHED_REQUESTS * config.request_items_max
            or sum(batch.size for batch in self.by_lane.values())
            > _UNFINISHED_REQUESTS * config.request_bytes_max
        ):
            self._emptied_at = position
            yield from self.take_all()


_UNFINISHED_MAX = 256
"""Batches that may be unfinished…"""
_UNFINISHED_REQUESTS = 16
"""… and as many full ones as they may be large, or may go by before they are sent as they are."""
