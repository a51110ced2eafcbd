"""BROKER_ACQUIRE_META and BROKER_REGISTER: brokers of QMQ's ask who they are, and give their state.

A broker of QMQ's does not start unless it is answered within 2 s, and does not look at the answer:
so it is answered by then, and what it said is stored later. Its heartbeats repeat it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
import trio

from delay_protocol.meta import requests
from meta_server.groups.broker_groups import COPIES, acquire, plan_register
from meta_server.known.errors import RefusedError
from meta_server.known.model import Audit, Change
from meta_server.wire.admission import NEW_GROUP, GroupAdmission
from meta_server.wire.dispatch import Context, Decision, Family, Request

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_ANSWER_S: Final = 1.5
"""After which a broker whose registration the store has not taken yet is answered 51 all the same.
QMQ's brokers wait for 2 s, and do not start without any answer."""


class Identities(Family[requests.AcquireMeta]):
    """Answers brokers that ask which group and role they have."""

    decode = staticmethod(requests.decode_acquire_meta)

    def decide(self, request: Request[requests.AcquireMeta], _: object) -> Decision:
        """Return who a broker is."""
        reply = acquire(self.context.registry, request.body)
        return Decision(partial(requests.encode_acquire_meta_reply, reply))


class Brokers(Family[requests.BrokerRegister]):
    """Answers brokers, and notes their heartbeats."""

    decode = staticmethod(requests.decode_broker_register)
    answer_s = _ANSWER_S

    def __init__(self, context: Context, admission: GroupAdmission) -> None:
        super().__init__(context)
        self._admission = admission

    def observe(self, request: Request[requests.BrokerRegister]) -> bool:
        """Return True if the group's master sent a heartbeat within the time-out."""
        return self.context.heard.is_heard(request.body.group, trio.current_time())

    def decide(self, request: Request[requests.BrokerRegister], is_heard: bool) -> Decision:  # noqa: FBT001
        """Return the state that follows for the group."""
        registry, name = self.context.registry, request.body.group
        if name in registry.delay_groups:
            raise RefusedError(
                f"{name} is a group of delay servers of ours: its master gives its state when it "
                "registers as a node"
            )
        changes = plan_register(
            registry,
            request.body,
            where=request.session.connection.where,
            is_heard=is_heard,
            groups_max=self.context.config.registration.groups_max,
            now_ms=self.context.clock.now_ms(),
        )
        is_new = changes and name not in registry.groups
        keys = (("group", name), *((NEW_GROUP,) if is_new else ()))
        return Decision(partial(self._reply, request.body, changes), changes, keys)

    def admit(self, request: Request[requests.BrokerRegister], decision: Decision) -> Decision:
        """Refuse new groups that an operator has to let in, and too many at a time."""
        body = request.body
        self._admission.let_in(request.session.connection, decision.changes, is_node=False)
        known = self.context.registry.groups.get(body.group)
        if known is not None and known.master == body.address:
            # Also if the store cannot be told: whoever speaks is not silent. One that speaks from
            # another address would make its predecessor heard, and be refused for that in its turn.
            self._note_heartbeat(body)
        return decision

    def _note_heartbeat(self, request: requests.BrokerRegister) -> None:
        if request.role not in COPIES:
            self.context.heard.hear(request.group, trio.current_time())

    def _reply(self, request: requests.BrokerRegister, changes: Sequence[Change]) -> bytes:
        self._note_heartbeat(request)
        if changes:
            is_move = any(isinstance(change, Audit) for change in changes)
            log = _log.warning if is_move else _log.info
            log(
                "a broker has registered",
                group=request.group,
                address=request.address,
                what=request.request_type.name.lower(),
                state=request.state.name,
                is_move=is_move,
            )
        return b""
