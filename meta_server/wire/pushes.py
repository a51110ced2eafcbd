"""Pushes of changed routes to connected clients.

A subscription is one use of a subject by a connected client, with the last answer that it got.
After any change all subscriptions are checked, some in each turn of the loop. Where the answer has
changed, the client gets it as an unrequested answer to CLIENT_REGISTER. So close changes are pushed
once, a slow client gets the latest state when it reads again, and no queue of pushes can grow.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import msgspec
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    ClientRegisterReply,
    OnlineState,
    encode_client_register_reply,
)
from delay_protocol.wire.frames import Frame, encode_response
from delay_transport.connections.connection import Connection
from delay_transport.seams.outbox import Wakeup
from meta_server.settings.config import PushConfig

_SLICE = 200
"""Subscriptions checked in one turn of the loop at most…"""
_SLICE_S_MAX = 0.004
"""… and seconds that the turn takes: working out many different routes takes longer."""


_KEPT_MAX = 10_000
"""Different answers that are kept to be shared; beyond it they are gathered anew."""

_PAUSE_S_MIN = 0.02
"""After which a client that had not taken what was sent before is tried again, while any takes
something; else the pause doubles up to the setting."""


class Use(msgspec.Struct, frozen=True, gc=False):
    """The key of a subscription within a connection.

    Like Subscription a Struct without garbage collection: there are many.
    """

    client_type: int
    subject: str
    """As the client sent it."""
    consumer_group: str


GroupsOf = Callable[[str, int], tuple[BrokerGroupInfo, ...] | None]
"""Returns the groups of a real subject for a type of client; None: there is no route yet."""

Signature = tuple[tuple[str, str, int], ...]
"""The part of an answer that matters: name, master and state of each group."""


class Subscription(msgspec.Struct, kw_only=True, gc=False):
    """The last answer that a client got."""

    routed: str
    """The real subject."""
    version: int
    """Of the protocol, as its last request said."""
    told: Signature | None
    """None: nothing yet."""


@dataclass(slots=True)
class PushCounts:
    """Counters; they only grow."""

    pushes: int = 0
    rounds: int = 0
    delayed: int = 0
    """Connections left for later because they had not taken what was sent before."""
    unkept: int = 0
    """Subscriptions that were not kept because there were too many."""


class Pusher:
    """All subscriptions, and the task that keeps them up to date."""

    def __init__(
        self,
        *,
        answers: Callable[[], GroupsOf],
        timestamp: Callable[[], int],
        limits: PushConfig,
        unsent_bytes_max: int,
    ) -> None:
        """Have `answers()` return what tells a client's groups until something changes."""
        self._answers = answers
        self._timestamp = timestamp
        self._limits = limits
        self._unsent_bytes_max = unsent_bytes_max
        # Dicts: gone through in the order of arrival, in every process.
        self._of: dict[Connection, dict[Use, Subscription]] = {}
        self._wakeup = Wakeup()
        self._due = _Due()
        self._changed = 0
        self._signatures: dict[Signature, Signature] = {}
        self.subscriptions = 0
        """How many there are."""
        self.counts = PushCounts()

    def note(self, connection: Connection, use: Use, subscription: Subscription) -> None:
        """Store the answer that a client got, in place of the one before."""
        if connection.is_closed:
            return
        uses = self._of.setdefault(connection, {})
        if use not in uses:
            if (
                len(uses) >= self._limits.subscriptions_per_connection_max
                or self.subscriptions >= self._limits.subscriptions_max
            ):
                self.counts.unkept += 1
                return
            self.subscriptions += 1
        uses[use] = subscription

    async def used_subjects(self) -> set[str]:
        """Return the real subjects that connected clients use, as far as they are kept."""
        found: set[str] = set()
        for uses in list(self._of.values()):
            found.update(subscription.routed for subscription in list(uses.values()))
            await trio.lowlevel.checkpoint()
        return found

    def signature(self, groups: tuple[BrokerGroupInfo, ...]) -> Signature:
        """Return what of an answer matters; many clients share one object."""
        if len(self._signatures) >= _KEPT_MAX:
            self._signatures.clear()
        signature = tuple((group.name, group.master, int(group.state)) for group in groups)
        return self._signatures.setdefault(signature, signature)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self.subscriptions -= len(self._of.pop(connection, ()))

    def changed(self, subjects: Iterable[str] | None = None) -> None:
        """Look, soon, at what clients should know: of these real subjects, or of all of them."""
        if subjects is None:
            self._due.everything = True
        else:
            self._due.subjects.update(subjects)
        self._changed += 1
        self._wakeup.wake()

    @property
    def is_due(self) -> bool:
        """Whether something has changed that was not looked at."""
        return self._due.everything or bool(self._due.subjects)

    async def run(self) -> None:
        """Push until cancelled."""
        pause_s = _PAUSE_S_MIN
        while True:
            if not self.is_due:
                # Those that had not taken what was sent before are tried again before long.
                with trio.move_on_after(pause_s if self._due.late else math.inf):
                    await self._wakeup.sleep()
            await trio.sleep(self._limits.gather_ms / 1000)
            due, self._due = self._due, _Due()
            pushes = self.counts.pushes
            await self._round(due)
            is_moving = self.counts.pushes != pushes
            pause_s = _PAUSE_S_MIN if is_moving else min(2 * pause_s, self._limits.retry_ms / 1000)

    async def _round(self, due: "_Due") -> None:
        """Go once through all subscriptions that are due."""
        self.counts.rounds += 1
        turn = _Turn(self._answers, lambda: self._changed)
        for connection in list(self._of) if due.everything or due.subjects else list(due.late):
            uses = self._of.get(connection, {})
            if due.everything:
                await self._go_through(connection, list(uses), turn)
                continue
            if connection in due.late:
                await self._go_through(connection, due.late[connection], turn)
            if due.subjects:
                some = await self._of_subjects(connection, due.subjects, turn)
                await self._go_through(connection, some, turn)

    async def _of_subjects(
        self, connection: Connection, subjects: Collection[str], turn: "_Turn"
    ) -> list[Use]:
        """Return the uses of real subjects by a connection."""
        found: list[Use] = []
        subscriptions = self._of.get(connection, {})
        uses = list(subscriptions)
        for start in range(0, len(uses), _SLICE):
            if turn.is_over():
                await turn.next()
            found += [
                use for use in uses[start : start + _SLICE] if subscriptions[use].routed in subjects
            ]
        return found

    async def _go_through(self, connection: Connection, uses: list[Use], turn: "_Turn") -> None:
        """Push what is news of these uses."""
        subscriptions = self._of.get(connection, {})
        for place, use in enumerate(uses):
            if turn.is_over():
                await turn.next()
            subscription = subscriptions.get(use)
            if subscription is None or connection.is_closed:
                return
            if connection.unsent_bytes >= self._unsent_bytes_max:
                self._leave(connection, uses, place)
                return
            groups = turn.groups_of(subscription.routed, use.client_type)
            if groups is not None:
                self._push_if_news(connection, use, subscription, groups, turn)

    def _leave(self, connection: Connection, uses: list[Use], place: int) -> None:
        """Keep for later what a client cannot take now: these uses from one of them on."""
        self.counts.delayed += 1
        left = uses[place:] if place else uses
        before = self._due.late.get(connection)
        if before is not None and before is not left:
            left = [*before, *left]
            subscriptions = self._of[connection]
            if len(left) > len(subscriptions):
                # Some are in it twice.
                left = list(subscriptions)
        self._due.late[connection] = left

    def _push_if_news(
        self,
        connection: Connection,
        use: Use,
        subscription: Subscription,
        groups: tuple[BrokerGroupInfo, ...],
        turn: "_Turn",
    ) -> None:
        signature = turn.signature(groups)
        if signature is None:
            signature = turn.keep_signature(groups, self.signature(groups))
        if signature == subscription.told:
            return
        subscription.told = signature
        body = encode_client_register_reply(
            ClientRegisterReply(
                timestamp_ms=self._timestamp(),
                subject=use.subject,
                consumer_group=use.consumer_group,
                online_state=OnlineState.ONLINE,
                client_type=use.client_type,
                groups=groups,
            )
        )
        self.counts.pushes += 1
        connection.reply(
            encode_response(_asked(subscription.version), code=ResponseCode.SUCCESS, body=body)
        )


@dataclass(slots=True)
class _Due:
    """Which subscriptions are to be looked at."""

    everything: bool = False
    subjects: set[str] = field(default_factory=set)
    """Those of these real subjects."""
    late: dict[Connection, list[Use]] = field(default_factory=dict)
    """These, of connections that had not taken what was sent before."""


class _Turn:
    """A turn of the loop in a round, and what was worked out and still is so."""

    def __init__(self, answers: Callable[[], GroupsOf], changes: Callable[[], int]) -> None:
        self._answers = answers
        self._changes = changes
        self._begin()
        self._forget()

    def is_over(self) -> bool:
        """Count a subscription; say whether others are to have their turn before it."""
        self._left -= 1
        return self._left < 0 or trio.current_time() >= self._until

    async def next(self) -> None:
        """Let others have their turn."""
        await trio.lowlevel.checkpoint()
        self._begin()
        if self._changes() != self._changed:
            # What was worked out before is not so any more.
            self._forget()

    def _begin(self) -> None:
        self._left = _SLICE
        self._until = trio.current_time() + _SLICE_S_MAX

    def _forget(self) -> None:
        self._changed = self._changes()
        self._answer = self._answers()
        self._found: dict[tuple[str, int], tuple[BrokerGroupInfo, ...] | None] = {}
        self._signatures: dict[int, tuple[tuple[BrokerGroupInfo, ...], Signature]] = {}

    def groups_of(self, subject: str, client_type: int) -> tuple[BrokerGroupInfo, ...] | None:
        """Return what clients of a type get for a real subject."""
        key = (subject, client_type)
        if key not in self._found:
            if len(self._found) >= _KEPT_MAX:
                self._found.clear()
            self._found[key] = self._answer(subject, client_type)
        return self._found[key]

    def signature(self, groups: tuple[BrokerGroupInfo, ...]) -> Signature | None:
        """Return the signature of this very answer, if it is known."""
        found = self._signatures.get(id(groups))
        return None if found is None else found[1]

    def keep_signature(
        self, groups: tuple[BrokerGroupInfo, ...], signature: Signature
    ) -> Signature:
        """Keep the signature of an answer, and the answer, so that no other one has its id."""
        if len(self._signatures) >= _KEPT_MAX:
            self._signatures.clear()
        self._signatures[id(groups)] = (groups, signature)
        return signature


def _asked(version: int) -> Frame:
    """Return the request that a push seems to answer: QMQ's clients look at the code alone."""
    code = int(CommandCode.CLIENT_REGISTER)
    return Frame(code=code, version=version, opaque=0, flag=0, request_code=code, body=b"")
