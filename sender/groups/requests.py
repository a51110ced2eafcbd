"""The requests to one broker group: what they are built of, and what their answers settle."""

from dataclasses import dataclass
from typing import Protocol

from delay_protocol.basics.codes import ItemCode
from delay_transport.seams.runtime import Clock
from sender.groups.connection import BrokerConnection, Request
from sender.groups.group_status import GroupCounts
from sender.groups.readable import ReadItems, Unreadable, readable_of
from sender.outcomes.answers import Codes, item_codes, permanent
from sender.outcomes.outcomes import Outcome
from sender.queues.parcels import Batch, Entries, count_of


class Settlement(Unreadable, Protocol):
    """Where entries go that a group does not keep. All calls are synchronous."""

    def settled(self, entries: Entries, outcome: Outcome, group: str) -> None:
        """Take entries for which nothing more is to be done."""

    def retry(self, batch: Batch, *, avoid: int) -> None:
        """Take entries whose try failed with their request."""

    def doubtful(self, batch: Batch, *, avoid: int) -> None:
        """Take entries that a broker may have taken or not."""

    def refused(self, batch: Batch, codes: Codes, *, avoid: int) -> None:
        """Take entries that were refused one by one, with the code of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an answer that lists failures says, in numbers of items."""

    codes: Codes
    taken: int
    hopeless: int
    """Refused for good."""


class Requests:
    """Builds the requests of one broker group, and settles their entries.

    It keeps how much is in flight, and counts what becomes of it. The group calls it when its
    connection can take a request, and with each answer, time-out and lost connection.

    Invariant: `in_flight` and `in_flight_bytes` are the sums over the requests that were built and
    neither answered, timed out nor lost.
    """

    def __init__(
        self,
        name: str,
        number: int,
        *,
        clock: Clock,
        read_items: ReadItems,
        settlement: Settlement,
    ) -> None:
        self.in_flight = 0
        """Entries sent and not answered."""
        self.in_flight_bytes = 0
        self.counts = GroupCounts()
        self._name = name
        self._number = number
        self._clock = clock
        self._read_items = read_items
        self._settlement = settlement

    def build(self, batch: Batch, *, is_beside: bool) -> tuple[Request, bytes | memoryview] | None:
        """Read the items of a batch anew and make a request of those that may be sent.

        None if there are none: an empty request would be answered with success.
        """
        found = readable_of(
            batch, clock=self._clock, read_items=self._read_items, others=self._settlement
        )
        if found is None:
            return None
        batch, items, _, body = found
        self.in_flight += len(batch)
        self.in_flight_bytes += len(body)
        self.counts.requests += 1
        request = Request(batch, items, len(body), is_beside=is_beside)
        return request, body

    def taken(self, request: Request) -> None:
        """Report the entries of a request that was taken as a whole."""
        self._landed(request)
        self.counts.delivered += len(request.batch)
        self._settlement.settled(request.batch.entries, Outcome.DELIVERED, self._name)

    def refused(self, request: Request) -> None:
        """Have the entries of a request tried again that was refused as a whole."""
        self._landed(request)
        self.counts.refused += len(request.batch)
        self._settlement.retry(request.batch, avoid=self._number)

    def unanswered(self, request: Request) -> None:
        """Try the entries again of a request that was not answered: it may have arrived."""
        self._landed(request)
        self.doubtful(request.batch)

    def connection_ended(self, connection: BrokerConnection) -> None:
        """Have tried again what was in flight on a connection: it may have arrived or not."""
        for request in connection.in_flight.values():
            if request is not None:
                self.unanswered(request)

    def doubtful(self, batch: Batch) -> None:
        """Have entries tried again that the group may have taken."""
        self.counts.possible_duplicates += len(batch)
        self._settlement.doubtful(batch, avoid=self._number)

    def taken_in_part(self, request: Request, answer: bytes) -> Told:
        """Settle each entry by what an answer that lists failures says of it.

        Raise MalformedReplyError if the answer is none to this request; all of it is in doubt.
        """
        self._landed(request)
        batch, counts = request.batch, self.counts
        codes = item_codes(request.items, answer)
        delivered = codes == ItemCode.SUCCESS
        known = codes == ItemCode.MESSAGE_DUPLICATE
        refused = ~(delivered | known)
        delivered_count, known_count, refused_count = map(count_of, (delivered, known, refused))
        counts.delivered += delivered_count
        counts.known += known_count
        counts.refused += refused_count
        if delivered_count:
            entries = batch.those(delivered).entries
            self._settlement.settled(entries, Outcome.DELIVERED, self._name)
        if known_count:
            self._settlement.settled(batch.those(known).entries, Outcome.KNOWN, self._name)
        if refused_count:
            self._settlement.refused(batch.those(refused), codes[refused], avoid=self._number)
        return Told(
            codes=codes,
            taken=delivered_count + known_count,
            hopeless=count_of(permanent(codes)),
        )

    def _landed(self, request: Request) -> None:
        self.in_flight -= len(request.batch)
        self.in_flight_bytes -= request.size
