"""BROKER_ACQUIRE_META and BROKER_REGISTER: brokers, QMQ's and ours, say who and how they are.

A broker of QMQ's does not start unless it is answered within 2 s, and does not look at the answer:
so it is answered by then, and what it said is stored later. Its heartbeats repeat it.
"""

from typing import Final

import structlog
import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.meta.requests import (
    decode_acquire_meta,
    decode_broker_register,
    encode_acquire_meta_reply,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.seams.runtime import Clock
from meta_server.groups.broker_groups import Heard, acquire, plan_register
from meta_server.groups.liveness import Liveliness
from meta_server.known.commits import Committer
from meta_server.known.errors import RefusedError
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.group_admission import NEW_GROUP, GroupAdmission
from meta_server.wire.replies import Patience, Replies
from meta_server.wire.speakers import Speakers

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_ANSWER_S: Final = 1.5
"""After which a broker whose registration the store has not taken yet is answered 51 all the same.
QMQ's brokers wait for 2 s, and do not start without any answer."""


class BrokerRegistration:
    """Answers brokers, and notes that they were heard."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        replies: Replies,
        heard: Liveliness,
        admission: GroupAdmission,
        speakers: Speakers,
        clock: Clock,
        limits: RegistrationConfig,
        proof_needed: bool,
    ) -> None:
        """`proof_needed` says whether a delay server has to prove the secret."""
        self._registry = registry
        self._committer = committer
        self._replies = replies
        self._heard = heard
        self._admission = admission
        self._speakers = speakers
        self._clock = clock
        self._limits = limits
        self._proof_needed = proof_needed
        self.moves = 0
        """Groups whose brokers turned up at another address."""

    def acquire(self, connection: Connection, frame: Frame) -> None:
        """Answer a BROKER_ACQUIRE_META."""
        reply = acquire(self._registry, decode_acquire_meta(frame.body))
        connection.answer(frame, ResponseCode.SUCCESS, encode_acquire_meta_reply(reply))

    def register(self, connection: Connection, frame: Frame) -> None:
        """Answer a BROKER_REGISTER."""
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
        self._admission.let_in(connection, heard.changes, is_node=False)

        def hear() -> None:
            if heard.group is not None:
                self._heard.groups.hear(heard.group, trio.current_time())

        if known is not None and known.master == request.address:
            # Also if the store cannot be told: whoever speaks is not silent. One that speaks from
            # another address would make its predecessor heard, and be refused for that in its turn.
            hear()
        key = ("group", request.group)
        if not heard.changes and not self._committer.is_pending(key):
            connection.answer(frame, ResponseCode.SUCCESS)
            return

        patience = Patience(trio.current_time() + _ANSWER_S)

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
                "a broker has registered",
                group=request.group,
                address=request.address,
                what=request.request_type.name.lower(),
                state=request.state.name,
            )
            if not patience.is_over:
                connection.answer(frame, ResponseCode.SUCCESS)

        keys = (key, NEW_GROUP) if is_new else (key,)
        self._replies.later(
            *(connection, frame, keys),
            plan=lambda: plan().changes,
            answer=answer,
            patience=patience,
        )

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
        speaker = self._speakers.speaker_of((group.cluster, name, node_id))
        is_open = not self._proof_needed
        if speaker is connection or (is_open and speaker and speaker.where == connection.where):
            return
        raise RefusedError(
            f"{name} is a group of delay servers of ours: requests for it have to come on the "
            f"connection on which its master {node_id} registered last"
            + (", or from its IP address" if is_open else "")
        )
