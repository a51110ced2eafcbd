"""Pushes of changed routes: every connected client is told what it would get if it asked.

A subscription is one use of a subject by a connected client, with what it was told last. When
anything changes, all of them are gone through, some at a time, and those whose answer is another
one now get it, as an answer to CLIENT_REGISTER that nobody asked for. So changes that come close
together are pushed once, a client that takes nothing gets the latest state when it does, and there
is no queue of pushes that could grow.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import trio

from delay_protocol import (
    BrokerGroupInfo,
    ClientRegisterReply,
    CommandCode,
    Frame,
    OnlineState,
    ResponseCode,
    encode_client_register_reply,
    encode_response,
)
from delay_transport import Connection, Wakeup

_SLICE = 200
"""Subscriptions looked at in one turn of the loop at most…"""
_SLICE_S_MAX = 0.004
"""… and seconds that the turn takes: working out many different routes takes longer."""


_SIGNATURES_MAX = 10_000
"""Different answers that are kept to be shared; beyond it they are gathered anew."""


class Use(msgspec.Struct, frozen=True, gc=False):
    """What tells the subscriptions of one connection apart.

    Like Subscription a Struct that the garbage collector does not look at: there are many.
    """

    client_type: int
    subject: str
    """As the client sent it."""
    consumer_group: str


Signature = tuple[OnlineState, tuple[tuple[str, str, int], ...]]
"""What of an answer matters to a client: its online state; name, master and state of each group."""


class Subscription(msgspec.Struct, kw_only=True, gc=False):
    """What a client was told."""

    routed: str
    """The real subject."""
    client_id: str
    version: int
    """Of the protocol, as its last request said."""
    told: Signature | None
    """None: nothing yet."""


@dataclass(slots=True)
class PushCounts:
    """What happened so far; numbers only grow."""

    pushes: int = 0
    rounds: int = 0
    delayed: int = 0
    """Connections left for later because they had not taken what was sent before."""
    unkept: int = 0
    """Subscriptions that were not kept because there were too many."""


class Pushing:
    """All subscriptions, and the task that keeps them up to date."""

    def __init__(
        self,
        *,
        groups_of: Callable[[str, int], tuple[BrokerGroupInfo, ...] | None],
        online_state: Callable[[str, Subscription, str], OnlineState],
        timestamp: Callable[[], int],
        gather_s: float,
        retry_s: float,
        unsent_bytes_max: int,
        subscriptions_max: int,
        per_connection_max: int,
    ) -> None:
        """Ask `groups_of(subject, client type)`; None means that there is no route yet."""
        self._groups_of = groups_of
        self._online_state = online_state
        self._timestamp = timestamp
        self._gather_s = gather_s
        self._retry_s = retry_s
        self._unsent_bytes_max = unsent_bytes_max
        self._subscriptions_max = subscriptions_max
        self._per_connection_max = per_connection_max
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
        """Keep what a client was told, in place of what it was told before."""
        if connection.is_closed:
            return
        uses = self._of.setdefault(connection, {})
        if use not in uses:
            if (
                len(uses) >= self._per_connection_max
                or self.subscriptions >= self._subscriptions_max
            ):
                self.counts.unkept += 1
                return
            self.subscriptions += 1
        uses[use] = subscription

    def signature(self, state: OnlineState, groups: tuple[BrokerGroupInfo, ...]) -> Signature:
        """Return what of an answer matters; many clients share one object."""
        if len(self._signatures) >= _SIGNATURES_MAX:
            self._signatures.clear()
        signature = (state, tuple((group.name, group.master, int(group.state)) for group in groups))
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
        while True:
            if not self.is_due:
                # Those that had not taken what was sent before are tried again before long.
                retry_s = self._retry_s if self._due.late else math.inf
                with trio.move_on_after(retry_s):
                    await self._wakeup.sleep()
            await trio.sleep(self._gather_s)
            due, self._due = self._due, _Due()
            await self._round(due)

    async def _round(self, due: "_Due") -> None:
        """Go once through all subscriptions that are due."""
        self.counts.rounds += 1
        left = _SLICE
        until = trio.current_time() + _SLICE_S_MAX
        changed = self._changed
        answers: dict[tuple[str, int], tuple[BrokerGroupInfo, ...] | None] = {}
        for connection in list(self._of) if due.everything or due.subjects else list(due.late):
            uses = self._of.get(connection, {})
            everything = due.everything or connection in due.late
            for use in list(uses):
                if left <= 0 or trio.current_time() >= until:
                    await trio.lowlevel.checkpoint()
                    left = _SLICE
                    until = trio.current_time() + _SLICE_S_MAX
                    if self._changed != changed:
                        # What was worked out before is not so any more.
                        changed = self._changed
                        answers.clear()
                left -= 1
                subscription = uses.get(use)
                if subscription is None or connection.is_closed:
                    break
                if not everything and subscription.routed not in due.subjects:
                    continue
                if connection.unsent_bytes >= self._unsent_bytes_max:
                    self.counts.delayed += 1
                    self._due.late[connection] = None
                    break
                key = (subscription.routed, use.client_type)
                if key not in answers:
                    answers[key] = self._groups_of(*key)
                groups = answers[key]
                if groups is not None:
                    self._push_if_news(connection, use, subscription, groups)

    def _push_if_news(
        self,
        connection: Connection,
        use: Use,
        subscription: Subscription,
        groups: tuple[BrokerGroupInfo, ...],
    ) -> None:
        state = self._online_state(use.subject, subscription, use.consumer_group)
        signature = self.signature(state, groups)
        if signature == subscription.told:
            return
        subscription.told = signature
        body = encode_client_register_reply(
            ClientRegisterReply(
                timestamp_ms=self._timestamp(),
                subject=use.subject,
                consumer_group=use.consumer_group,
                online_state=state,
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
    late: dict[Connection, None] = field(default_factory=dict)
    """All of these connections, which had not taken what was sent before."""


def _asked(version: int) -> Frame:
    """Return the request that a push seems to answer: QMQ's clients look at the code alone."""
    code = int(CommandCode.CLIENT_REGISTER)
    return Frame(code=code, version=version, opaque=0, flag=0, request_code=code, body=b"")
