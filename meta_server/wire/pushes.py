"""Pushes of changed routes to connected clients.

A subscription is one use of a subject by a connected client, with the last answer that it got.
After any change all subscriptions are checked, some in each turn of the loop. Where the answer has
changed, the client gets it as an unrequested answer to CLIENT_REGISTER. So close changes are pushed
once, a slow client gets the latest state when it reads again, and no queue of pushes can grow.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta import requests
from delay_protocol.wire.frames import Frame, encode_response
from delay_transport.http.pages import Turns
from delay_transport.seams.outbox import Wakeup
from meta_server.groups.routing import Answer
from meta_server.settings.config import PushConfig
from meta_server.wire.sessions import Session, Sessions, Subscription, Use


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
        sessions: Sessions,
        answer: Callable[[str, int], Answer | None],
        timestamp: Callable[[], int],
        limits: PushConfig,
        unsent_bytes_max: int,
    ) -> None:
        """Get `answer`, which returns what a type of client gets for a real subject, or None."""
        self._sessions = sessions
        self._answer = answer
        self._timestamp = timestamp
        self._limits = limits
        self._unsent_bytes_max = unsent_bytes_max
        self._wakeup = Wakeup()
        self._is_all_due = False
        self._due: set[str] = set()
        """Real subjects whose subscriptions are to be looked at."""
        self._late: dict[Session, int] = {}
        """Clients that had not taken what was sent before, and from which use on they may have
        missed something."""
        self.counts = PushCounts()

    def note(self, session: Session, use: Use, subscription: Subscription) -> None:
        """Store the answer that a client got, in place of the one before."""
        if session.connection.is_closed:
            return
        if use not in session.uses and (
            len(session.uses) >= self._limits.subscriptions_per_connection_max
            or self._sessions.uses >= self._limits.subscriptions_max
        ):
            self.counts.unkept += 1
            return
        self._sessions.add_use(session, use, subscription)

    def changed(self, subjects: Iterable[str] | None = None) -> None:
        """Look, soon, at what clients should know: of these real subjects, or of all of them."""
        if subjects is None:
            self._is_all_due = True
        else:
            self._due.update(subjects)
        self._wakeup.wake()

    @property
    def is_due(self) -> bool:
        """Whether something has changed that was not looked at."""
        return self._is_all_due or bool(self._due)

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            if not self.is_due:
                # Those that had not taken what was sent before are tried again before long.
                pause_s = self._limits.retry_ms / 1000 if self._late else math.inf
                with trio.move_on_after(pause_s):
                    await self._wakeup.sleep()
            await trio.sleep(self._limits.gather_ms / 1000)
            await self._round()

    async def _round(self) -> None:
        """Go once through all subscriptions that are due."""
        self.counts.rounds += 1
        is_all_due, self._is_all_due = self._is_all_due, False
        due, self._due = self._due, set()
        late, self._late = self._late, {}
        turns = Turns()
        users = (one for one in self._sessions if one in late or not due.isdisjoint(one.routed))
        for session in list(self._sessions if is_all_due else users):
            first = 0 if is_all_due else late.get(session, len(session.uses))
            await self._go_through(session, due, first, turns)

    async def _go_through(
        self, session: Session, due: Collection[str], first: int, turns: Turns
    ) -> None:
        """Push what is news of a client's uses: from one on of all, before it of these subjects."""
        begin = 0 if due else first
        for place, use in enumerate(list(session.uses)[begin:], begin):
            await turns.pause()
            subscription = session.uses.get(use)
            if subscription is None or session.connection.is_closed:
                return
            if place < first and subscription.routed not in due:
                continue
            if session.connection.unsent_bytes >= self._unsent_bytes_max:
                self.counts.delayed += 1
                self._late[session] = place
                return
            answer = self._answer(subscription.routed, use.client_type)
            if answer is not None:
                self._push_if_news(session, use, subscription, answer)

    def _push_if_news(
        self,
        session: Session,
        use: Use,
        subscription: Subscription,
        answer: Answer,
    ) -> None:
        is_news = answer.signature != subscription.sent
        # Many clients share one object, also where it is no news.
        subscription.sent = answer.signature
        if not is_news:
            return
        body = encoded(use, self._timestamp(), requests.OnlineState.ONLINE, answer.groups)
        self.counts.pushes += 1
        session.connection.reply(
            encode_response(_asked(subscription.version), code=ResponseCode.SUCCESS, body=body)
        )


def encoded(
    use: Use | requests.ClientRegister,
    timestamp_ms: int,
    state: requests.OnlineState,
    groups: tuple[requests.BrokerGroupInfo, ...],
) -> bytes:
    """Return the answer to a CLIENT_REGISTER."""
    return requests.encode_client_register_reply(
        requests.ClientRegisterReply(
            timestamp_ms=timestamp_ms,
            subject=use.subject,
            consumer_group=use.consumer_group,
            online_state=state,
            client_type=use.client_type,
            groups=groups,
        )
    )


def _asked(version: int) -> Frame:
    """Return the request that a push seems to answer: QMQ's clients look at the code alone."""
    code = int(CommandCode.CLIENT_REGISTER)
    return Frame(code=code, version=version, opaque=0, flag=0, request_code=code, body=b"")
