"""Decides each request once: answers it from memory, or when the store has what follows from it.

`Family.decide` is pure: it goes by the registry, the request, and what `Family.observe` returned.
The dispatcher asks it when the request comes, and once more when its turn in the queue of the store
comes, if the registry has another version then or something else is observed.

Refusals:

    what is wrong                             the answer
    a body that cannot be read                51, and the reason as text
    CLIENT_REGISTER: illegal subject, limits  0, timestamp -2, OFFLINE, no groups, as QMQ's
    CLIENT_REGISTER: not now (store, floods)  51, and the reason as text
    BROKER_ACQUIRE_META: any                  51, empty: QMQ's brokers read any body as an answer
    BROKER_REGISTER: any, or a slow store     51, and the reason as text
    NODE_REGISTER: the node does not belong   0, Refused
    NODE_REGISTER: not now                    51, and the reason as text
    NODE_WATCH, GROUP_CHANGE: who may not     51, and the reason as text
    GROUP_CHANGE: it is not done              0, the record as it is, and the reason
    RECEIVER_REGISTER: not under this name    0, ReceiverRefused
    RECEIVER_REGISTER: not now                51, and the reason as text
    NODE_…: it does not prove that it may     1001, and the reason as text

Each refused request counts as a fault of its connection, which slows one down that makes many; one
that waits for the store in vain does not. Refused brokers and nodes ask again about every second:
the first refusal of an address for a reason is logged, then one line in each interval with the
number of refusals since.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import structlog
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import BodyError
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.http.credentials import Credentials, UnauthenticatedError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Clock
from delay_transport.seams.trouble import Trouble
from meta_server.groups.held_requests import HeldRequests, Hold
from meta_server.groups.liveness import Liveness
from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import MetaServerError, NotNowError, RefusedError, StateError
from meta_server.known.model import Change
from meta_server.known.registry import Registry
from meta_server.settings.config import MetaServerConfig
from meta_server.wire.sessions import Session, Sessions

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

Body = TypeVar("Body")

_TURN_S_MAX = 0.0005
"""Seconds for which requests are handled before others get their turn of the loop: five thousand
clients that register at once take two seconds, and an operator waits for none of them."""

_SLOWLY_S = 0.005
"""Seconds between such turns while something urgent waits for the store, whose steps are many and
each wait for the loop; or while many others wait for it."""

_WAITING_MAX = 200
"""Requests that wait for the store beyond which others are decided slowly: each is some twenty
objects, and the garbage collector looks through all that are new in one go."""

_REMIND_S = 60.0
"""The least time between two lines in the log about refusals of one address for one reason; those
in between are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The things that requests are decided on, and where what follows from them goes."""

    config: MetaServerConfig
    clock: Clock
    registry: Registry
    committer: Committer
    sessions: Sessions
    heard: Liveness
    """Heartbeats of broker groups."""
    credentials: Credentials
    held: HeldRequests
    """Requests that wait for something new."""

    def store_later(
        self, *keys: Hashable, plan: Callable[[], Sequence[Change]], is_urgent: bool = False
    ) -> None:
        """Store changes for which nobody waits, unless some are pending about the first key.

        What fails is tried by the next who asks.
        """
        if self.committer.is_stale or self.committer.is_pending(keys[0]):
            return
        intent = Intent(keys=keys, plan=plan, done=_log_failure, is_urgent=is_urgent)
        with contextlib.suppress(RefusedError):
            self.committer.submit(intent)


def _log_failure(error: MetaServerError | None) -> None:
    if error is not None:
        _log.warning("not stored", reason=str(error))


class Decision(NamedTuple):
    """The consequences of a request."""

    reply: Callable[[], bytes] = bytes
    """Does what is to be done when it is answered, and returns the answer."""
    changes: Sequence[Change] = ()
    keys: tuple[Hashable, ...] = ()
    """The things that it is about; without changes too it is answered after what is stored about
    the first."""
    hold: Hold | None = None
    """Returns the answer in place of `reply`: when there is one, or when the changes are stored."""


_UNDECIDED = Decision()


@dataclass(slots=True, eq=False)
class Request(Generic[Body]):
    """A request that was read, and what was decided on it."""

    family: "Family[Body]"
    session: Session
    frame: Frame
    body: Body
    seal: Callable[[bytes], bytes] = bytes
    """Makes of an answer what is sent."""
    decision: Decision = _UNDECIDED
    known: tuple[int, object] | None = None
    """The version of the registry that it was decided on, and what was observed."""
    is_answered: bool = False

    def decide(self) -> Sequence[Change]:
        """Decide, unless that was done on what is known now; return what is to be stored."""
        known = (self.family.context.registry.version, self.family.observe(self))
        if known != self.known:
            self.known = known
            self.decision = self.family.decide(self, known[1])
        return self.decision.changes

    def answer(self, body: bytes) -> None:
        """Answer it."""
        self.session.connection.answer(self.frame, ResponseCode.SUCCESS, self.seal(body))


class Family(ABC, Generic[Body]):
    """Decides and answers the requests of one command."""

    decode: Callable[[bytes], Body]
    """Reads a body; raises BodyError."""
    is_of_nodes = False
    """True if they come from delay servers, which prove the secret if there is one."""
    is_urgent = False
    """True if they have their turn before those that are not."""
    answer_s: float | None = None
    """Seconds after which a request is answered 51 that waits for the store."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def observe(self, _: Request[Body]) -> object:
        """Note what a request reports, and return what is decided on beside the registry."""
        return None

    @abstractmethod
    def decide(self, request: Request[Body], observed: Any) -> Decision:  # noqa: ANN401 (its own)
        """Return what follows from a request; raise RefusedError. Changes nothing."""

    def admit(self, _: Request[Body], decision: Decision) -> Decision:
        """Count what is new, once for a request; return what follows, or raise RefusedError."""
        return decision

    def refused(self, _: Request[Body], error: MetaServerError) -> bytes | None:  # noqa: ARG002
        """Return the answer to a request that is refused, or fails; None: 51, with the reason."""
        return None


class Dispatcher:
    """Hands each request to its family, and answers it; what waits for the store later.

    Delay servers' requests are handled as they come. All others wait for `run`.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.families: dict[int, Family[Any]] = {}
        self.requests: Counter[str] = Counter()
        """Requests by command."""
        self.refusals: Counter[str] = Counter()
        """Refused requests by command."""
        self._waiting: deque[tuple[Session, Frame]] = deque()
        """Requests that wait for their turn, counted as begun at their connections."""
        self._more = Wakeup()
        self._trouble = Trouble(again_s=_REMIND_S)
        self._overdue_at: dict[Request[Any], float] = {}
        """When requests that wait for the store are answered all the same, in trio time."""

    def take(self, connection: Connection, frames: list[Frame]) -> None:
        """Handle requests, or have them wait."""
        session = self.context.sessions.of(connection)
        for frame in frames:
            self.requests[CommandCode(frame.code).name] += 1
            if self.families[frame.code].is_of_nodes:
                self._handle(session, frame)
            else:
                connection.begin(1, len(frame.body))
                self._waiting.append((session, frame))
        self._more.wake()

    async def run(self) -> None:
        """Handle what waits, some of it in each turn of the loop, until cancelled."""
        while True:
            if not self._waiting:
                await self._more.sleep()
            self._handle_some()
            committer = self.context.committer
            slowly = committer.is_urgent or committer.waiting > _WAITING_MAX
            await trio.sleep(_SLOWLY_S if slowly else 0)

    def _handle_some(self) -> None:
        until = trio.current_time() + _TURN_S_MAX
        while self._waiting:
            session, frame = self._waiting.popleft()
            session.connection.done(1, len(frame.body))
            if not session.connection.is_closed:
                self._handle(session, frame)
            if trio.current_time() >= until:
                return

    def _handle(self, session: Session, frame: Frame) -> None:
        connection = session.connection
        try:
            self._take(self._read(session, frame))
        except UnauthenticatedError as error:
            self._note(connection, frame, error)
            connection.answer(frame, ResponseCode.UNAUTHENTICATED, str(error).encode())
        except (BodyError, MetaServerError) as error:
            self._refuse(connection, frame, error)

    def closed(self, connection: Connection, _: CloseReason) -> None:
        """Forget all that is known of a connection that was closed."""
        self.context.sessions.forget(connection)
        self.context.credentials.forget(connection)
        self.context.held.forget(connection)

    def _read(self, session: Session, frame: Frame) -> Request[Any]:
        """Return a request; raise BodyError or UnauthenticatedError."""
        family = self.families[frame.code]
        if not family.is_of_nodes:
            return Request(family, session, frame, family.decode(frame.body))
        opened, credentials = session.connection, self.context.credentials
        body, seal = credentials.open(opened, frame.code, frame.body)
        return Request(family, session, frame, family.decode(body), seal)

    def _take(self, request: Request[Any]) -> None:
        try:
            request.decide()
            decision = request.decision = request.family.admit(request, request.decision)
            if decision.changes or self.context.committer.is_pending(*decision.keys[:1]):
                self._store(request)
                return
        except MetaServerError as error:
            self._refuse_request(request, error)
            return
        if decision.hold is not None:
            connection = request.session.connection
            self.context.held.hold(connection, request.frame, decision.hold, request.seal)
        else:
            request.answer(decision.reply())

    def _store(self, request: Request[Any]) -> None:
        """Store the changes of a request; raise RefusedError or StoreUnavailableError."""
        self.context.committer.submit(
            Intent(
                keys=request.decision.keys,
                plan=request.decide,
                done=partial(self._done, request),
                is_urgent=request.family.is_urgent,
            )
        )
        request.session.connection.begin(1, len(request.frame.body))
        if request.family.answer_s is not None:
            self._overdue_at[request] = trio.current_time() + request.family.answer_s

    def _done(self, request: Request[Any], error: MetaServerError | None) -> None:
        """Answer when it is stored, or when it cannot be."""
        if error is None:
            hold = request.decision.hold
            body = request.decision.reply() if hold is None else hold(True) or b""  # noqa: FBT003
            if not request.is_answered:
                self._settle(request)
                request.answer(body)
        elif request.is_answered:
            _log.warning("not stored", peer_was_told=True, reason=str(error))
        else:
            self._settle(request)
            self._refuse_request(request, error)

    def answer_overdue(self, now: float) -> None:
        """Answer those who have waited for the store for as long as they can; `now` in trio time.

        What they asked for is stored all the same, when the store can.
        """
        for request in [one for one, at in self._overdue_at.items() if at <= now]:
            self._settle(request)
            slow = MetaServerError("the store is slow; this is stored when it can be")
            self._refuse_request(request, slow)

    def _settle(self, request: Request[Any]) -> None:
        """Count a request as answered that waited for the store."""
        self._overdue_at.pop(request, None)
        request.is_answered = True
        request.session.connection.done(1, len(request.frame.body))

    def _refuse_request(self, request: Request[Any], error: MetaServerError) -> None:
        """Answer a request that is refused as its family wants it."""
        connection, frame = request.session.connection, request.frame
        body = request.family.refused(request, error)
        if body is None:
            self._refuse(connection, frame, error)
        else:
            self._note(connection, frame, error)
            request.answer(body)

    def _refuse(self, connection: Connection, frame: Frame, error: Exception) -> None:
        """Answer 51; the reason goes into the log, and to the peer where it could not mislead."""
        is_fault = isinstance(error, RefusedError | BodyError)
        self._note(connection, frame, error, is_fault=is_fault)
        would_mislead = frame.code == CommandCode.BROKER_ACQUIRE_META
        text = b"" if would_mislead else str(error)[:REASON_LENGTH_MAX].encode(errors="replace")
        connection.answer(frame, ResponseCode.BROKER_ERROR, text)

    def _note(
        self, connection: Connection, frame: Frame, error: Exception, *, is_fault: bool = True
    ) -> None:
        """Count a refusal, and write it into the log unless there was one like it lately."""
        if is_fault:
            connection.fault()
        command, reason = CommandCode(frame.code).name, str(error)[:REASON_LENGTH_MAX]
        self.refusals[command] += 1
        # Of the peer the host alone: one that connects anew is no other one.
        kind = (command, connection.peer.rpartition(":")[0], reason)
        self._trouble.log(connection.warn, "refused", *kind, command=command, reason=reason)


def is_final(error: MetaServerError) -> bool:
    """Return True if the same request would be refused again, as far as is known."""
    return isinstance(error, RefusedError) and not isinstance(error, NotNowError | StateError)
