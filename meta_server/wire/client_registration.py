"""CLIENT_REGISTER: a client asks for the broker groups of a subject, and is kept up to date."""

from dataclasses import dataclass
from functools import partial

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    OnlineState,
    decode_client_register,
    encode_client_register_reply,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.seams.newcomers import Newcomers
from delay_transport.seams.runtime import Clock
from meta_server.groups.routing import route_of, routed_subject
from meta_server.known.commits import Committer
from meta_server.known.errors import MetaServerError, RefusedError, StoreError
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.client_answers import ClientAnswers
from meta_server.wire.pushes import Pusher, Subscription, Use
from meta_server.wire.replies import Replies, admit

_TEXT_BYTES_MAX = 512
"""Of a client id, a consumer group, an application or a room."""

IGNORE_STATE = -2
"""The timestamp of a refusal: QMQ's clients then keep the online state that they have."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A CLIENT_REGISTER, and where its answer goes."""

    connection: Connection
    frame: Frame
    request: ClientRegister


class ClientRegistration:
    """Answers clients, and subscribes them to changes of their routes."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        replies: Replies,
        answers: ClientAnswers,
        pusher: Pusher,
        clock: Clock,
        limits: RegistrationConfig,
    ) -> None:
        self._registry = registry
        self._committer = committer
        self._replies = replies
        self._answers = answers
        self._pusher = pusher
        self._clock = clock
        self._newcomers = _new_subjects(limits)

    def register(self, connection: Connection, frame: Frame) -> None:
        """Answer a CLIENT_REGISTER."""
        request = decode_client_register(frame.body)
        asked = _Asked(connection, frame, request)
        try:
            routed = self._routed(request)
        except RefusedError as error:
            connection.fault()
            self._replies.refusals.note(connection, frame.code, str(error))
            self._answer_client(asked, IGNORE_STATE, OnlineState.OFFLINE, ())
            return
        if (
            routed not in self._registry.subjects
            and request.client_type != ClientType.DELAY_PRODUCER
            and route_of(self._registry, routed) is None
        ):
            if not self._committer.is_pending(("subject", routed)):
                self._admit_subject(connection)
            self._tell_later(asked, routed)
            return
        groups = self._answers.groups_of(routed, request.client_type)
        if groups is not None:
            self._tell(asked, routed, groups)
        else:
            self._tell_later(asked, routed)

    def _tell_later(self, asked: _Asked, routed: str) -> None:
        """Answer when a route is chosen."""

        def answer() -> None:
            self._tell(
                asked, routed, self._answers.groups_of(routed, asked.request.client_type) or ()
            )

        def refuse(error: MetaServerError) -> None:
            if isinstance(error, StoreError):
                # It learns its route by a push, when there is one.
                self._subscribe(asked, routed)
            self._replies.refuse(asked.connection, asked.frame, str(error))

        keys = (("subject", routed),)
        plan = partial(self._answers.plan_route, routed)
        try:
            self._replies.later(
                asked.connection, asked.frame, keys, plan=plan, answer=answer, refuse=refuse
            )
        except StoreError as error:
            refuse(error)

    def _routed(self, request: ClientRegister) -> str:
        for text in (request.client_id, request.consumer_group, request.app_code, request.ldc):
            if len(text.encode()) > _TEXT_BYTES_MAX:
                raise RefusedError(
                    f"a name of {len(text.encode())} bytes, at most {_TEXT_BYTES_MAX}"
                )
        return routed_subject(request.subject)

    def _admit_subject(self, connection: Connection) -> None:
        """Raise if there are too many subjects, or too many new ones at a time."""
        self._answers.check_place()
        admit(self._newcomers, connection)

    def _tell(self, asked: _Asked, routed: str, groups: tuple[BrokerGroupInfo, ...]) -> None:
        """Answer with a route, and keep the client told."""
        subscription = self._subscribe(asked, routed)
        subscription.told = self._pusher.signature(groups)
        self._answer_client(asked, self._answers.timestamp(), OnlineState.ONLINE, groups)

    def _subscribe(self, asked: _Asked, routed: str) -> Subscription:
        """Have the client told of whatever it was not told yet."""
        request = asked.request
        subscription = Subscription(
            routed=routed,
            version=asked.frame.version,
            told=None,
        )
        use = Use(request.client_type, request.subject, request.consumer_group)
        self._pusher.note(asked.connection, use, subscription)
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


def _new_subjects(limits: RegistrationConfig) -> Newcomers:
    return Newcomers(
        "subjects are used for the first time",
        rate=limits.new_subjects_per_second_max,
        burst=limits.new_subjects_per_second_max * limits.new_subjects_burst_seconds,
        address=limits.new_subjects_address_share,
    )
