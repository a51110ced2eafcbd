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
    NODE_WATCH, GROUP_CHANGE: who may not     51, and the reason as text
    GROUP_CHANGE: it is not done              0, the record as it is, and the reason
    RECEIVER_REGISTER: not under this name    0, ReceiverRefused
    RECEIVER_REGISTER: not now                51, and the reason as text
    NODE_…: it does not prove that it may     1001, and the reason as text

Each refusal of a request for what it is counts as a fault of its connection, which slows one down
that makes many.
"""

from collections import Counter
from collections.abc import Callable

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import BodyError
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.listener import Dispatch
from delay_transport.http.credentials import Credentials, UnauthenticatedError
from delay_transport.seams.runtime import Clock
from meta_server.groups.controls_push import ControlsPusher
from meta_server.groups.liveness import Liveliness
from meta_server.known.commits import Committer
from meta_server.known.errors import MetaServerError, RefusedError
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.broker_registration import BrokerRegistration
from meta_server.wire.client_answers import ClientAnswers
from meta_server.wire.client_registration import ClientRegistration
from meta_server.wire.group_admission import GroupAdmission
from meta_server.wire.group_changes import GroupChanges
from meta_server.wire.node_registration import NodeRegistration
from meta_server.wire.pushes import Pusher
from meta_server.wire.receiver_registration import ReceiverRegistration
from meta_server.wire.replies import Replies
from meta_server.wire.speakers import Speakers


class Handlers:
    """Hands each request to what answers it.

    All methods are synchronous; what waits for the store is answered later.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        heard: Liveliness,
        answers: ClientAnswers,
        pusher: Pusher,
        clock: Clock,
        limits: RegistrationConfig,
        is_open: bool,
        credentials: Credentials,
        telling: ControlsPusher,
        prefix_routes_max: int,
        patterns_end: bool,
        set_backs: SetBacks,
    ) -> None:
        """`is_open` says whether groups come into being that no operator knows of.

        `patterns_end` says whether patterns end that receivers bring no more.
        """
        self._credentials = credentials
        self._telling = telling
        self._pusher = pusher
        self._answers = answers
        self.speakers = Speakers()
        self.replies = Replies(committer)
        self.admission = GroupAdmission(
            registry=registry,
            committer=committer,
            credentials=credentials,
            is_open=is_open,
            timeout_s=limits.broker_timeout_ms / 1000,
        )
        self._clients = ClientRegistration(
            registry=registry,
            committer=committer,
            replies=self.replies,
            answers=answers,
            pusher=pusher,
            clock=clock,
            limits=limits,
        )
        self.brokers = BrokerRegistration(
            registry=registry,
            committer=committer,
            replies=self.replies,
            heard=heard,
            admission=self.admission,
            speakers=self.speakers,
            clock=clock,
            limits=limits,
            proof_needed=credentials.policy != "none",
        )
        self.group_changes = GroupChanges(
            registry=registry,
            committer=committer,
            replies=self.replies,
            credentials=credentials,
            clock=clock,
            limits=limits,
            set_backs=set_backs,
        )
        self.receivers = ReceiverRegistration(
            registry=registry,
            replies=self.replies,
            admission=self.admission,
            credentials=credentials,
            clock=clock,
            limits=limits,
            prefixes_max=prefix_routes_max,
            patterns_end=patterns_end,
        )
        self.nodes = self._make_nodes(registry, committer, heard, clock, limits)
        self.requests: Counter[str] = Counter()
        """Requests by command."""

    def _make_nodes(
        self,
        registry: Registry,
        committer: Committer,
        heard: Liveliness,
        clock: Clock,
        limits: RegistrationConfig,
    ) -> NodeRegistration:
        return NodeRegistration(
            registry=registry,
            committer=committer,
            replies=self.replies,
            heard=heard,
            admission=self.admission,
            speakers=self.speakers,
            credentials=self._credentials,
            telling=self._telling,
            group_changes=self.group_changes,
            clock=clock,
            limits=limits,
        )

    def dispatch(self) -> Dispatch:
        """Return what a listener hands its frames to."""
        return Dispatch(
            {
                CommandCode.CLIENT_REGISTER: self._each(self._clients.register),
                CommandCode.BROKER_ACQUIRE_META: self._each(self.brokers.acquire),
                CommandCode.BROKER_REGISTER: self._each(self.brokers.register),
                CommandCode.NODE_REGISTER: self._each(self.nodes.register),
                CommandCode.NODE_CHALLENGE: self._each(self.nodes.challenge),
                CommandCode.NODE_CONTROLS: self._each(self.nodes.ask_controls),
                CommandCode.NODE_WATCH: self._each(self.group_changes.watch),
                CommandCode.GROUP_CHANGE: self._each(self.group_changes.change),
                CommandCode.RECEIVER_REGISTER: self._each(self.receivers.register),
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
                    self.replies.refusals.note(connection, frame.code, str(error))
                    connection.answer(frame, ResponseCode.UNAUTHENTICATED, str(error).encode())
                except (BodyError, RefusedError) as error:
                    connection.fault()
                    self.replies.refuse(connection, frame, str(error))
                except MetaServerError as error:
                    self.replies.refuse(connection, frame, str(error))

        return take_all

    def _closed(self, connection: Connection, _: CloseReason) -> None:
        self._pusher.forget(connection)
        self._credentials.forget(connection)
        self._telling.forget(connection)
        self.group_changes.forget(connection)
        self.receivers.forget(connection)
        self.speakers.forget(connection)
