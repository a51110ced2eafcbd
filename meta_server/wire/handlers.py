"""Handles registrations of clients, brokers and delay servers.

A request that changes nothing is answered at once, from memory. A change is answered when the store
has it. Refusals:

    what is wrong                             the answer
    a body that cannot be read                51, and the reason as text
    CLIENT_REGISTER: illegal subject, limits  0, timestamp -2, OFFLINE, no groups, as QMQ's
    CLIENT_REGISTER: not now (store, floods)  51, and the reason as text
    BROKER_ACQUIRE_META: any                  51, empty: QMQ's brokers read any body as an answer
    BROKER_REGISTER: any, or a slow store     51, and the reason as text
    NODE_REGISTER: the node does not belong   0, Refused
    NODE_REGISTER: not now                    51, and the reason as text
    NODE_CONTROLS: any                        51, and the reason as text
    NODE_…: it does not prove that it may     1001, and the reason as text

A broker of QMQ's needs an answer within 2 s to start, and ignores its content. So it is answered by
then, and its registration is stored later. Its heartbeats repeat it.

Each refusal for the content of a request counts as a fault of its connection; many faults slow a
connection down.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import BodyError
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    OnlineState,
    decode_acquire_meta,
    decode_broker_register,
    decode_client_register,
    encode_acquire_meta_reply,
    encode_client_register_reply,
)
from delay_protocol.nodes.controls_exchange import decode_node_controls
from delay_protocol.nodes.registration import (
    REASON_LENGTH_MAX,
    NodeRegister,
    NodeRegistered,
    Refused,
    decode_node_register,
    encode_node_reply,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.listener import Dispatch
from delay_transport.seams.newcomers import Newcomers
from delay_transport.seams.runtime import Clock
from meta_server.groups.broker_groups import Heard, acquire, plan_register, plan_silence
from meta_server.groups.controls_push import ControlsTelling
from meta_server.groups.liveness import Liveness
from meta_server.groups.roles import Registered, plan_end, plan_node
from meta_server.groups.routing import (
    Answers,
    RoutingLimits,
    answer_of,
    plan_route,
    route_of,
    routed_subject,
)
from meta_server.groups.waiting_groups import WaitingGroup, WaitingGroups, new_groups
from meta_server.known.commits import Committing, Intent
from meta_server.known.errors import MetaServerError, NotNowError, RefusedError, StoreError
from meta_server.known.model import Change, ClientKey, ClientSeen, GroupKind, SaveBrokerGroup
from meta_server.known.registry import NodeKey, Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.credentials import Credentials, UnauthenticatedError
from meta_server.wire.pushes import Pushing, Subscription, Use
from meta_server.wire.refusals import Refusals
from meta_server.wire.timestamps import Timestamps

IGNORE_STATE = -2
"""The timestamp of a refusal: QMQ's clients then keep the online state that they have."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

NODES = "nodes"
"""Key of intents about delay nodes: uuids must be unique over all of them."""
NEW_GROUP = "a new group"
"""Key of intents that add a group: there is a limit to their number."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A CLIENT_REGISTER, and where its answer goes."""

    connection: Connection
    frame: Frame
    request: ClientRegister


@dataclass(slots=True, eq=False)
class _Patience:
    """How long a request waits for the store before it is answered that it does."""

    until: float
    """In trio time."""
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Node:
    """A NODE_REGISTER, and how its answer is sealed."""

    connection: Connection
    frame: Frame
    request: NodeRegister
    seal: Callable[[bytes], bytes]

    @property
    def key(self) -> NodeKey:
        """Which node it is about."""
        return (self.request.cluster, self.request.group, self.request.node_id)


@dataclass(slots=True)
class Liveliness:
    """Liveness of groups and nodes."""

    groups: Liveness[str]
    nodes: Liveness[NodeKey]


class Handlers:
    """Answers requests. All methods are synchronous; what waits for the store is answered later."""

    def __init__(
        self,
        *,
        registry: Registry,
        committing: Committing,
        heard: Liveliness,
        timestamps: Timestamps,
        clock: Clock,
        routing: RoutingLimits,
        limits: RegistrationConfig,
        is_open: bool,
        note_client: Callable[[ClientSeen], None],
        credentials: Credentials,
        telling: ControlsTelling,
    ) -> None:
        """`is_open` says whether groups come into being that no operator knows of."""
        self._registry = registry
        self._committing = committing
        self._heard = heard
        self._timestamps = timestamps
        self._clock = clock
        self._routing = routing
        self._limits = limits
        self._note_client = note_client
        self._newcomers = _new_subjects(limits)
        self._is_open = is_open
        self._new_groups = new_groups()
        self.waiting = WaitingGroups(timeout_s=limits.broker_timeout_ms / 1000)
        """Groups that an operator has to let in."""
        self._credentials = credentials
        self._telling = telling
        self._speakers: dict[NodeKey, Connection] = {}
        """On which connection a delay server was registered last, while it stands."""
        self._spoken_for: dict[Connection, dict[NodeKey, None]] = {}
        """The same the other way round."""
        self._ends_noted: dict[NodeKey, float] = {}
        """When it was noted last how far a node's log goes, in trio time."""
        self._patient: dict[_Patience, Callable[[], None]] = {}
        """Requests with a time-out for the store, the earliest first."""
        self.pushing: Pushing
        """Set before the first request comes."""
        self.requests: Counter[str] = Counter()
        """Requests by command."""
        self.refusals = Refusals(remind_s=limits.remind_seconds)
        self.moves = 0
        """Groups whose brokers turned up at another address."""

    def set_limits(self, limits: RegistrationConfig) -> None:
        """Hold to other limits from now on."""
        self._limits = limits
        self._newcomers = _new_subjects(limits)
        self.refusals.remind_s = limits.remind_seconds

    def dispatch(self) -> Dispatch:
        """Return what a listener hands its frames to."""
        return Dispatch(
            {
                CommandCode.CLIENT_REGISTER: self._each(self._client_register),
                CommandCode.BROKER_ACQUIRE_META: self._each(self._acquire_meta),
                CommandCode.BROKER_REGISTER: self._each(self._broker_register),
                CommandCode.NODE_REGISTER: self._each(self._node_register),
                CommandCode.NODE_CHALLENGE: self._each(self._node_challenge),
                CommandCode.NODE_CONTROLS: self._each(self._node_controls),
            },
            on_closed=self._closed,
        )

    def _each(
        self, take: Callable[[Connection, Frame], None]
    ) -> Callable[[Connection, list[Frame]], None]:
        def take_all(connection: Connection, frames: list[Frame]) -> None:
            for frame in frames:
                self.requests[CommandCode(frame.code).name] += 1
                try:
                    take(connection, frame)
                except UnauthenticatedError as error:
                    connection.fault()
                    self.refusals.note(connection, frame.code, str(error))
                    connection.answer(frame, ResponseCode.UNAUTHENTICATED, str(error).encode())
                except (BodyError, RefusedError) as error:
                    connection.fault()
                    self._refuse(connection, frame, str(error))
                except MetaServerError as error:
                    self._refuse(connection, frame, str(error))

        return take_all

    def _closed(self, connection: Connection, _: CloseReason) -> None:
        self.pushing.forget(connection)
        self._credentials.forget(connection)
        self._telling.forget(connection)
        for key in self._spoken_for.pop(connection, ()):
            if self._speakers.get(key) is connection:
                del self._speakers[key]

    def _refuse(self, connection: Connection, frame: Frame, reason: str) -> None:
        """Answer 51; the reason goes into the log, and to the peer where it could not mislead."""
        self.refusals.note(connection, frame.code, reason)
        would_mislead = frame.code == CommandCode.BROKER_ACQUIRE_META
        text = b"" if would_mislead else reason[:REASON_LENGTH_MAX].encode(errors="replace")
        connection.answer(frame, ResponseCode.BROKER_ERROR, text)

    def _later(
        self,
        connection: Connection,
        frame: Frame,
        keys: tuple[object, ...],
        *,
        plan: Callable[[], Sequence[Change]],
        answer: Callable[[], None],
        refuse: Callable[[MetaServerError], None] | None = None,
        patience: _Patience | None = None,
    ) -> None:
        """Answer when the store has what is planned, or 51 when that takes too long."""
        size = len(frame.body)

        def give_up() -> None:
            connection.done(1, size)
            self._refuse(connection, frame, "the store is slow; the request will be stored later")

        def done(error: MetaServerError | None) -> None:
            if patience is not None:
                self._patient.pop(patience, None)
            is_told = patience is not None and patience.is_over
            if not is_told:
                connection.done(1, size)
            if error is None:
                answer()
            elif is_told:
                _log.warning("a registration was not stored", peer_was_told=True, reason=str(error))
            elif refuse is not None:
                refuse(error)
            else:
                if isinstance(error, RefusedError):
                    connection.fault()
                self._refuse(connection, frame, str(error))

        self._committing.submit(Intent(keys=keys, plan=plan, done=done))
        connection.begin(1, size)
        if patience is not None:
            self._patient[patience] = give_up

    def answer_overdue(self, now: float) -> None:
        """Answer those who have waited for the store for as long as they can; `now` in trio time.

        What they asked for is stored all the same, when the store can.
        """
        while self._patient:
            patience, give_up = next(iter(self._patient.items()))
            if patience.until > now:
                return
            del self._patient[patience]
            patience.is_over = True
            give_up()

    # Clients

    def groups_of(self, subject: str, client_type: int) -> tuple[BrokerGroupInfo, ...] | None:
        """Return what a client of this type gets for a real subject now; None: no route yet.

        Where a route is missing, or wants more groups, that is set going. So this is only to be
        asked for subjects that were admitted.
        """
        return self._groups_of(self._answers_now(), subject, client_type)

    def answers(self) -> Callable[[str, int], tuple[BrokerGroupInfo, ...] | None]:
        """Return `groups_of` for many subjects: quicker, and good until something changes."""
        return partial(self._groups_of, self._answers_now())

    def _answers_now(self) -> Answers:
        return Answers(self._registry, self._routing, now_ms=self._clock.now_ms())

    def _groups_of(
        self, answers: Answers, subject: str, client_type: int
    ) -> tuple[BrokerGroupInfo, ...] | None:
        found = answers.groups_for(subject, client_type)
        if found is not None:
            return found
        changes = self._plan_route(subject)
        key = ("subject", subject)
        if changes and not self._committing.is_stale and not self._committing.is_pending(key):
            # Where this is refused the next one who asks tries again.
            with contextlib.suppress(RefusedError):
                if subject not in self._registry.subjects:
                    # Of one that was admitted, and that the store could not be told of then.
                    self._check_place()
                self._committing.submit(
                    Intent(
                        keys=(key,), plan=partial(self._plan_route, subject), done=lambda _: None
                    )
                )
        names = route_of(self._registry, subject)
        if names is None:
            return None if changes else ()
        return answer_of(self._registry, subject, client_type, names)

    def online_state(
        self, subject: str, subscription: Subscription, consumer_group: str
    ) -> OnlineState:
        """Return whether a consumer is to consume, as an operator said of this or the real name."""
        registry = self._registry
        client_id = subscription.client_id
        offline = registry.offline and (
            registry.is_offline(client_id, subject, consumer_group)
            or registry.is_offline(client_id, subscription.routed, consumer_group)
        )
        return OnlineState.OFFLINE if offline else OnlineState.ONLINE

    def timestamp(self) -> int:
        """Return the timestamp of an answer that is given now."""
        return self._timestamps.read(self._clock.now_ms())

    def _client_register(self, connection: Connection, frame: Frame) -> None:
        request = decode_client_register(frame.body)
        asked = _Asked(connection, frame, request)
        try:
            routed = self._routed(request)
        except RefusedError as error:
            connection.fault()
            self.refusals.note(connection, frame.code, str(error))
            self._answer_client(asked, IGNORE_STATE, OnlineState.OFFLINE, ())
            return
        if (
            routed not in self._registry.subjects
            and request.client_type != ClientType.DELAY_PRODUCER
            and route_of(self._registry, routed) is None
        ):
            if not self._committing.is_pending(("subject", routed)):
                self._admit_subject(connection)
            self._tell_later(asked, routed)
            return
        groups = self.groups_of(routed, request.client_type)
        if groups is not None:
            self._tell(asked, routed, groups)
        else:
            self._tell_later(asked, routed)

    def _tell_later(self, asked: _Asked, routed: str) -> None:
        """Answer when a route is chosen."""

        def answer() -> None:
            self._tell(asked, routed, self.groups_of(routed, asked.request.client_type) or ())

        def refuse(error: MetaServerError) -> None:
            if isinstance(error, StoreError):
                # It learns its route by a push, when there is one.
                self._subscribe(asked, routed)
            self._refuse(asked.connection, asked.frame, str(error))

        keys = (("subject", routed),)
        plan = partial(self._plan_route, routed)
        try:
            self._later(
                asked.connection, asked.frame, keys, plan=plan, answer=answer, refuse=refuse
            )
        except StoreError as error:
            refuse(error)

    def _routed(self, request: ClientRegister) -> str:
        limits = self._limits
        for text in (request.client_id, request.consumer_group, request.app_code, request.ldc):
            if len(text.encode()) > limits.client_text_bytes_max:
                raise RefusedError(
                    f"a name of {len(text.encode())} bytes, at most {limits.client_text_bytes_max}"
                )
        return routed_subject(request.subject)

    def _check_place(self) -> None:
        """Raise if there are too many subjects."""
        subjects_max = self._limits.subjects_max
        # Those that wait or are being stored are counted as if all of them were subjects.
        if len(self._registry.subjects) + self._committing.unapplied >= subjects_max:
            raise RefusedError(f"there are {subjects_max} subjects, which is the limit")

    def _admit_subject(self, connection: Connection) -> None:
        """Raise if there are too many subjects, or too many new ones at a time."""
        self._check_place()
        _admit(self._newcomers, connection)

    def _plan_route(self, subject: str) -> Sequence[Change]:
        return plan_route(self._registry, subject, self._routing, now_ms=self._clock.now_ms())

    def _tell(self, asked: _Asked, routed: str, groups: tuple[BrokerGroupInfo, ...]) -> None:
        """Answer with a route, and keep the client told."""
        subscription = self._subscribe(asked, routed)
        request = asked.request
        state = self.online_state(request.subject, subscription, request.consumer_group)
        subscription.told = self.pushing.signature(state, groups)
        self._answer_client(asked, self.timestamp(), state, groups)

    def _subscribe(self, asked: _Asked, routed: str) -> Subscription:
        """Push to the client what it has not received yet."""
        request = asked.request
        subscription = Subscription(
            routed=routed,
            client_id=request.client_id,
            version=asked.frame.version,
            told=None,
        )
        use = Use(request.client_type, request.subject, request.consumer_group)
        self.pushing.note(asked.connection, use, subscription)
        self._note_client(
            ClientSeen(
                key=ClientKey(
                    subject=request.subject,
                    client_type=request.client_type,
                    consumer_group=request.consumer_group,
                    client_id=request.client_id,
                ),
                app_code=request.app_code,
                room=request.ldc,
                seen_ms=self._clock.now_ms(),
            )
        )
        return subscription

    def _answer_client(
        self,
        asked: _Asked,
        timestamp_ms: int,
        state: OnlineState,
        groups: tuple[BrokerGroupInfo, ...],
    ) -> None:
        request = asked.request
        body = encode_client_register_reply(
            ClientRegisterReply(
                timestamp_ms=timestamp_ms,
                subject=request.subject,
                consumer_group=request.consumer_group,
                online_state=state,
                client_type=request.client_type,
                groups=groups,
            )
        )
        asked.connection.answer(asked.frame, ResponseCode.SUCCESS, body)

    # Brokers

    def _acquire_meta(self, connection: Connection, frame: Frame) -> None:
        reply = acquire(self._registry, decode_acquire_meta(frame.body))
        connection.answer(frame, ResponseCode.SUCCESS, encode_acquire_meta_reply(reply))

    def _broker_register(self, connection: Connection, frame: Frame) -> None:
        request = decode_broker_register(frame.body)
        self._check_speaker(connection, request.group)
        heard = Heard()

        def plan() -> Heard:
            nonlocal heard
            heard = plan_register(
                self._registry,
                request,
                where=connection.where,
                is_heard=self._heard.groups.is_heard(request.group, trio.current_time()),
                groups_max=self._limits.groups_max,
                now_ms=self._clock.now_ms(),
            )
            return heard

        plan()
        known = self._registry.groups.get(request.group)
        is_new = known is None
        self._let_in(connection, heard.changes, is_node=False)

        def hear() -> None:
            if heard.group is not None:
                self._heard.groups.hear(heard.group, trio.current_time())

        if known is not None and known.master == request.address:
            # Also if the store cannot be told: whoever speaks is not silent. One that speaks from
            # another address would make its predecessor heard, and be refused for that in its turn.
            hear()
        key = ("group", request.group)
        if not heard.changes and not self._committing.is_pending(key):
            connection.answer(frame, ResponseCode.SUCCESS)
            return

        patience = _Patience(trio.current_time() + self._limits.broker_answer_ms_max / 1000)

        def answer() -> None:
            hear()
            if heard.moved_from:
                self.moves += 1
                _log.warning(
                    "broker group moved",
                    group=request.group,
                    before=heard.moved_from,
                    address=request.address,
                    what=request.request_type.name.lower(),
                )
            _log.info(
                "broker registered",
                group=request.group,
                address=request.address,
                what=request.request_type.name.lower(),
                state=request.state.name,
            )
            if not patience.is_over:
                connection.answer(frame, ResponseCode.SUCCESS)

        keys = (key, NEW_GROUP) if is_new else (key,)
        self._later(
            *(connection, frame, keys),
            plan=lambda: plan().changes,
            answer=answer,
            patience=patience,
        )

    def _let_in(self, connection: Connection, changes: Sequence[Change], *, is_node: bool) -> None:
        """Raise RefusedError unless the group that these changes make, if any, may come into being.

        One that waits for an operator is noted. One whose broker is entered, or that proves the
        secret, is expected.
        """
        group = next((row.group for row in changes if isinstance(row, SaveBrokerGroup)), None)
        if (
            group is None
            or group.name in self._registry.groups
            or self._registry.is_entered(group.name)
            or self._committing.is_pending(("group", group.name))
        ):
            return
        now = trio.current_time()
        if group.kind is GroupKind.DELAY and self._credentials.policy != "none":
            if not (is_node and self._credentials.is_proven(connection)):
                raise RefusedError(
                    f"{group.name} is a new delay group, and those have to prove the secret of "
                    "this meta server: set meta.secret_file; one of QMQ's has to be entered"
                )
        elif not self._is_open or (
            # Beside delay servers of ours an unknown one of QMQ's would get producers of all.
            group.kind is GroupKind.DELAY and not is_node and self._registry.delay_groups
        ):
            waiting = WaitingGroup(
                name=group.name,
                kind=group.kind,
                address=group.master,
                where=connection.where,
                is_node=is_node,
                since=now,
                heard=now,
            )
            remedy = f"delaywheel admin broker-group approve {group.name}"
            if self.waiting.note(waiting):
                _log.warning(
                    "a broker group waits for approval",
                    group=group.name,
                    address=group.master,
                    peer=connection.peer,
                    remedy=remedy,
                )
            raise NotNowError(f"{group.name} is not known: it waits for an operator ({remedy})")
        _admit(self._new_groups, connection)

    def _check_speaker(self, connection: Connection, name: str) -> None:
        """Refuse what is said for a group of our delay servers by anybody but its master.

        BROKER_REGISTER itself proves nothing, since QMQ's servers send it too; but ours send it on
        the connection on which they have registered. Where nothing is to be proved another one of
        the same IP address will do. QMQ's groups have no record.
        """
        group = self._registry.delay_groups.get(name)
        if group is None:
            return
        master = group.record.master
        node_id = "" if master is None else master.node_id
        speaker = self._speakers.get((group.cluster, name, node_id))
        is_open = self._credentials.policy == "none"
        if speaker is connection or (is_open and speaker and speaker.where == connection.where):
            return
        raise RefusedError(
            f"{name} is a group of delay servers of ours: requests for it have to come on the "
            f"connection on which its master {node_id} registered last"
            + (", or from its IP address" if is_open else "")
        )

    def group_is_silent(self, name: str, refused: Callable[[], None]) -> None:
        """Take a group from routes whose master has been silent; call `refused` if that fails."""

        def done(error: MetaServerError | None) -> None:
            if error is not None:
                refused()

        def plan() -> Sequence[Change]:
            if self._heard.groups.is_heard(name, trio.current_time()):
                # It spoke while this waited.
                return ()
            return plan_silence(self._registry, name, now_ms=self._clock.now_ms())

        try:
            self._committing.submit(Intent(keys=(("group", name),), plan=plan, done=done))
        except MetaServerError:
            refused()

    # Nodes

    def _node_challenge(self, connection: Connection, frame: Frame) -> None:
        answer = self._credentials.challenge(connection, frame.body)
        connection.answer(frame, ResponseCode.SUCCESS, answer)

    def _node_controls(self, connection: Connection, frame: Frame) -> None:
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        asked = decode_node_controls(body)
        nodes = self._spoken_for.get(connection, {})
        self._telling.ask(connection, frame, asked, seal, nodes)

    def _node_register(self, connection: Connection, frame: Frame) -> None:
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        node = _Node(connection, frame, decode_node_register(body), seal)
        try:
            planned = self._plan_node(node)
            self._let_in(connection, planned.changes, is_node=True)
        except RefusedError as error:
            self._refuse_node(node, error)
            return
        if not planned.changes and not self._committing.is_pending(NODES):
            self._answer_node(node, planned)
            self._note_end(node)
            return

        def plan() -> Sequence[Change]:
            nonlocal planned
            planned = self._plan_node(node)
            return planned.changes

        def answer() -> None:
            self._ends_noted[node.key] = trio.current_time()
            self._answer_node(node, planned)

        self._later(
            connection,
            frame,
            (NODES, NEW_GROUP, ("group", node.request.group), ("node", node.key)),
            plan=plan,
            answer=answer,
            refuse=partial(self._refuse_node, node),
        )

    def _plan_node(self, node: _Node) -> Registered:
        now = trio.current_time()
        return plan_node(
            self._registry,
            node.request,
            is_heard=self._heard.nodes.is_heard(node.key, now),
            is_present=self._is_present(node, now),
            groups_max=self._limits.groups_max,
            now_ms=self._clock.now_ms(),
        )

    def _is_present(self, node: _Node, now: float) -> bool:
        """Say whether what registered as this node last is connected, and speaks, elsewhere."""
        speaker = self._speakers.get(node.key)
        heard_at = self._heard.nodes.heard_at(node.key)
        return (
            speaker is not None
            and speaker is not node.connection
            and heard_at is not None
            and now - heard_at < self._limits.node_lease_ms / 1000
        )

    def _note_end(self, node: _Node) -> None:
        """Store from time to time how far a node's log goes; no answer waits for it."""
        now, request = trio.current_time(), node.request
        noted_at = self._ends_noted.setdefault(node.key, now)
        if (
            now - noted_at < self._limits.node_end_ms / 1000
            or self._committing.is_stale
            or not plan_end(self._registry, request)
        ):
            return
        self._ends_noted[node.key] = now
        # Many of these share a commit, unlike registrations.
        intent = Intent(
            keys=(("node", node.key),),
            plan=lambda: plan_end(self._registry, request),
            done=lambda _: None,
        )
        with contextlib.suppress(RefusedError):
            self._committing.submit(intent)

    def forget_node(self, key: NodeKey) -> None:
        """Wait no longer for a delay server that was given up."""
        self._heard.nodes.forget(key)
        self._ends_noted.pop(key, None)
        self._telling.forget_node(key)

    def _answer_node(self, node: _Node, registered: Registered) -> None:
        connection = node.connection
        self._heard.nodes.hear(node.key, trio.current_time())
        if not connection.is_closed:
            self._speakers[node.key] = connection
            self._spoken_for.setdefault(connection, {})[node.key] = None
        shown = self._registry.groups.get(node.request.group)
        reply = NodeRegistered(
            role=registered.role,
            record=registered.record,
            lease_ms=self._limits.node_lease_ms,
            is_retired=shown is not None and shown.is_retired,
        )
        body = node.seal(encode_node_reply(reply))
        connection.answer(node.frame, ResponseCode.SUCCESS, body)

    def _refuse_node(self, node: _Node, error: MetaServerError) -> None:
        """Say that it does not belong; or, where that may change, that it is to try again."""
        connection, frame = node.connection, node.frame
        if isinstance(error, NotNowError) or not isinstance(error, RefusedError):
            self._refuse(connection, frame, str(error))
            return
        connection.fault()
        self.refusals.note(connection, frame.code, str(error))
        body = encode_node_reply(Refused(reason=str(error)[:REASON_LENGTH_MAX]))
        connection.answer(frame, ResponseCode.SUCCESS, node.seal(body))


def _admit(newcomers: Newcomers, connection: Connection) -> None:
    """Count what is new and comes by a connection; raise NotNowError if it is too early."""
    told = newcomers.refusal(trio.current_time(), address=connection.where)
    if told is not None:
        raise NotNowError(told)


def _new_subjects(limits: RegistrationConfig) -> Newcomers:
    return Newcomers(
        "subjects are used for the first time",
        rate=limits.new_subjects_per_second_max,
        burst=limits.new_subjects_per_second_max * limits.new_subjects_burst_seconds,
        address=limits.new_subjects_address_share,
    )
