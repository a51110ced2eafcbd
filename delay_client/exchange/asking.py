"""Calls of cancel_many() and move_many(), in parts, each of which every delay group is asked. Pure.

ChangeCall   all changes of a call, and what became of each
Part         some of them, of one cluster and near in due time: one request to each master
Asking       the request to one master; what a Link sends
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from delay_client.messages.changed import Changed, ChangeOutcome, Wanted, changed, known
from delay_client.messages.errors import DelaywheelError, Refused
from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.messages.changes import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    ChangeReply,
    ChangeRequest,
    ChangeResult,
    encode_change,
)

_CHANGE_OVERHEAD = 64
"""More bytes than a change has beside its subject and its id, and its share of the request."""


class ChangeCall:
    """The changes of one call.

    Invariant: `parts` has each part of which the changes have no outcome yet.
    """

    def __init__(
        self,
        asked: Sequence[Wanted | DelaywheelError],
        *,
        timeout_s: float,
        now: float,
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called whenever outcomes have come in."""
        self.timeout_s = timeout_s
        self.deadline = now + timeout_s
        """Loop time after which it is given up; each answer but 51 puts it off."""
        self.abandoned = False
        """Set when the caller has gone."""
        self._on_progress = on_progress
        self._outcomes: list[ChangeOutcome | None] = [
            one if isinstance(one, DelaywheelError) else None for one in asked
        ]
        self.parts = dict.fromkeys(self._cut(asked))

    def _cut(self, asked: Sequence[Wanted | DelaywheelError]) -> Iterator["Part"]:
        """Yield the parts: in the order of due times, since those of one hour lie together."""
        numbered = [
            (one.cluster, one.change.due_ms or 0, number, one)
            for number, one in enumerate(asked)
            if not isinstance(one, DelaywheelError)
        ]
        part: Part | None = None
        for cluster, _, position, one in sorted(numbered, key=lambda row: row[:3]):
            if part is None or part.cluster != cluster or not part.has_room_for(one):
                if part is not None:
                    yield part
                part = Part(self, cluster)
            part.add(position, one)
        if part is not None:
            yield part

    def settle(self, part: "Part", outcomes: Sequence[ChangeOutcome]) -> None:
        """Take the outcomes of a part."""
        del self.parts[part]
        for position, outcome in zip(part.positions, outcomes, strict=True):
            self._outcomes[position] = outcome
        self._on_progress()

    def outcomes(self) -> list[ChangeOutcome]:
        """Return what became of every change, in the order in which they were given."""
        assert not self.parts
        return [outcome for outcome in self._outcomes if outcome is not None]


class Part:
    """Changes that go to each master in one request, and what is known of them.

    Invariant: a group is in `asks`, or it answered or was given up, and is in `over`.
    """

    def __init__(self, call: ChangeCall, cluster: int) -> None:
        self.call = call
        self.cluster = cluster
        """Hash of the name of the cluster that may have them; 0: any."""
        self.positions: list[int] = []
        self.wanted: list[Wanted] = []
        self.size = 0
        self.asks: dict[str, Asking] = {}
        """Requests without an answer yet, by group."""
        self.over: set[str] = set()
        self.answered: set[str] = set()
        """Servers that answered."""
        self.doubts: dict[str, str] = {}
        """Reasons for which groups gave no answer."""
        self._found: defaultdict[int, list[ChangeResult]] = defaultdict(list)
        """Answers of groups, by place in the request."""
        self._facts_since_ms = 0

    def has_room_for(self, one: Wanted) -> bool:
        """Return True if one more change fits into the request."""
        return len(self.wanted) < CHANGES_MAX and self.size + _size(one) <= CHANGE_BYTES_MAX

    def add(self, position: int, one: Wanted) -> None:
        """Take one more change, which is at a position in the call."""
        self.positions.append(position)
        self.wanted.append(one)
        self.size += _size(one)

    @property
    def is_found(self) -> bool:
        """True if some group knows each message: what others would say is not waited for long."""
        return len(self._found) == len(self.wanted)

    def take(self, server: str, reply: ChangeReply) -> None:
        """Take the answer of a group; raise MalformedMetaError for one of other changes."""
        if {one.item for one in reply.results} != set(range(len(self.wanted))):
            raise MalformedMetaError("the answer is not about the messages that were asked")
        self.answered.add(server)
        self._facts_since_ms = max(self._facts_since_ms, reply.facts_since_ms)
        for result in known(reply.results):
            self._found[result.item].append(result)

    def finish(self) -> None:
        """Settle all changes by what is known."""
        doubts = "; ".join(f"{group}: {why}" for group, why in self.doubts.items())
        since_ms = self._facts_since_ms
        outcomes: list[Changed] = [
            changed(one.change, self._found[index], doubts=doubts, facts_since_ms=since_ms)
            for index, one in enumerate(self.wanted)
        ]
        self.call.settle(self, outcomes)

    def refuse(self, text: str) -> None:
        """Take that something in the request is refused, and nothing of it was done.

        Who is alone in it has an error; else it is divided in two, to be asked anew.
        """
        if len(self.wanted) == 1:
            self.fail(Refused, text)
            return
        del self.call.parts[self]
        rows = list(zip(self.positions, self.wanted, strict=True))
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            part = Part(self.call, self.cluster)
            for row in half:
                part.add(*row)
            self.call.parts[part] = None

    def fail(self, kind: type[DelaywheelError], text: str) -> None:
        """Settle all changes by an error: no group could be asked."""
        ids = [one.change.message_id for one in self.wanted]
        self.call.settle(self, [kind(text, message_id=message_id) for message_id in ids])


class Asking:
    """The request of a part to one group."""

    code = CommandCode.CHANGE

    def __init__(self, part: Part, group: str, server: str) -> None:
        self.part = part
        self.group = group
        self.server = server
        self.size = part.size
        self.attempts = 0
        self.is_in_flight = False
        self.retry_at = 0.0
        self.trouble = ""
        """Reason for which the last try failed; empty before one did."""
        self._ahead_ms = 0

    @property
    def deadline(self) -> float:
        """Loop time in seconds after which it is not tried any more."""
        return self.part.call.deadline

    @property
    def is_slow(self) -> bool:
        """True if a server may take all the time there is: it looks through all that it has."""
        return any(one.change.due_ms is None for one in self.part.wanted)

    @property
    def is_over(self) -> bool:
        """True if its answer does not count any more."""
        return self.part.asks.get(self.group) is not self

    def retime(self, by_ms: int) -> None:
        """Count its delays by another clock, which is so far ahead of the one here."""
        self._ahead_ms = by_ms

    def body(self) -> bytes:
        """Return the body of its frame."""
        items = (
            replace(one.change, to_ms=max((one.change.to_ms or 0) + self._ahead_ms, 0))
            if one.is_delay
            else one.change
            for one in self.part.wanted
        )
        return encode_change(ChangeRequest(items=tuple(items)))


def _size(one: Wanted) -> int:
    return len(one.change.subject.encode()) + len(one.change.message_id.encode()) + _CHANGE_OVERHEAD
