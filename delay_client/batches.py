"""Batches: the items of one request, and whom to tell what became of them.

A batch is the unit of sending and of trying again, so nothing but lists of bytes is kept for a
single message of a send_many(). What became of an item goes to the batch's `Receiver` under the
item's position there:

    send_many()   Collection   one list of outcomes for the whole call
    send()        Gathering    one Waiter for each of the calls that share the request
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from delay_client.config import ClientConfig
from delay_client.errors import DelaywheelError, FatalError, RetryableError
from delay_client.item_encoder import ItemEncoder
from delay_client.messages import Outcome, OutgoingMessage, Receipt


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

    def expect(self, count: int, refused: Mapping[int, FatalError]) -> Sequence[int]:
        """Make room for `count` more messages; return the positions of those not `refused`.

        `refused` are the errors of messages that cannot be sent, by their place among the `count`.
        """
        start = len(self._outcomes)
        self._outcomes += [None] * count
        self.unsettled += count - len(refused)
        if not refused:
            return range(start, start + count)
        for place, error in refused.items():
            self._outcomes[start + place] = error
        return [start + place for place in range(count) if place not in refused]

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
    server: str | None


class Batch:
    """Items that travel together, from their first try to their last.

    Invariant: `positions`, `items`, `ids` and `due_ms` are of one length, and never empty while
    the batch is on its way.
    """

    __slots__ = (
        "attempts",
        "avoid",
        "deadline",
        "due_ms",
        "ids",
        "items",
        "maybe_kept",
        "positions",
        "receiver",
        "retry_at",
        "setback",
        "size",
    )

    def __init__(self, receiver: Receiver, *, deadline: float) -> None:
        self.receiver = receiver
        self.deadline = deadline
        """Loop time in seconds after which nobody tries any more."""
        self.positions: Sequence[int] = ()
        self.items: list[bytes] = []
        self.ids: list[str] = []
        self.due_ms: list[int] = []
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
        self.retry_at = 0.0

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: bytes, message_id: str, due_ms: int) -> None:
        """Put one more item in; its position is the caller's to add."""
        self.items.append(item)
        self.ids.append(message_id)
        self.due_ms.append(due_ms)
        self.size += len(item)

    def keep(self, indices: Sequence[int]) -> None:
        """Forget all items but those at these indices."""
        self.positions = [self.positions[index] for index in indices]
        self.items = [self.items[index] for index in indices]
        self.ids = [self.ids[index] for index in indices]
        self.due_ms = [self.due_ms[index] for index in indices]
        self.size = sum(map(len, self.items))

    def drop_unwanted(self) -> bool:
        """Forget what nobody waits for any more; return whether anything is left."""
        wanted = self.receiver.wanted(self.positions)
        if len(wanted) < len(self.positions):
            still = frozenset(wanted)
            self.keep([i for i, position in enumerate(self.positions) if position in still])
        return bool(self.items)


def cut_batches(
    messages: Iterable[OutgoingMessage],
    collection: Collection,
    *,
    encoder: ItemEncoder,
    config: ClientConfig,
    wall_ms: Callable[[], int],
) -> Iterator[Batch]:
    """Yield the batches of a send_many(), encoding each just before; the caller sets deadlines.

    A message that cannot be sent gets its error as its outcome, and the others go on.
    """
    encode = encoder.encode
    items_max = config.request_items_max
    bytes_max = config.request_bytes_max
    batch = Batch(collection, deadline=0.0)
    refused: dict[int, FatalError] = {}
    count = size = 0
    for message in messages:
        try:
            item, message_id, due_ms = encode(message, wall_ms())
        except FatalError as error:
            refused[count] = error
            count += 1
            continue
        size += len(item)
        if len(batch.items) == items_max or (size > bytes_max and batch.items):
            batch.positions = collection.expect(count, refused)
            batch.size = size - len(item)
            yield batch
            batch = Batch(collection, deadline=0.0)
            refused = {}
            count = 0
            size = len(item)
        # Batch.add() spelled out: this runs once for each message.
        batch.items.append(item)
        batch.ids.append(message_id)
        batch.due_ms.append(due_ms)
        count += 1
    batch.positions = collection.expect(count, refused)
    batch.size = size
    if batch.items:
        yield batch
