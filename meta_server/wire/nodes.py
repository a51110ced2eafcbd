"""NODE_REGISTER and NODE_CHALLENGE: delay servers of ours prove who they are, and report."""

from functools import partial
from typing import cast

import trio

from delay_protocol.nodes import registration as wire
from meta_server.groups.broker_groups import plan_state
from meta_server.groups.group_records import members_of
from meta_server.groups.roles import Registered, check_belongs, plan_end, plan_node
from meta_server.known.errors import MetaServerError, NotNowError, RefusedError
from meta_server.known.registry import NodeKey
from meta_server.wire.admission import NEW_GROUP, GroupAdmission
from meta_server.wire.dispatch import Context, Decision, Family, Request, is_final
from meta_server.wire.group_changes import GroupChanges

_PRESENT = 2.5
"""A start that was not heard for so many times as it is to speak again makes room for the next."""
_END_S = 10.0
"""The least time between two notes of how far a delay server's log goes. A copy of its directory
that lacks records which were noted is refused; what was taken since is not missed."""
NODES = "nodes"
"""Key of intents about delay nodes: uuids must be unique over all of them."""


class Challenges(Family[bytes]):
    """Answers delay servers that begin to prove the secret."""

    decode = bytes

    def decide(self, request: Request[bytes], _: object) -> Decision:
        """Return that a challenge is drawn."""
        connection, body = request.session.connection, request.body
        return Decision(partial(self.context.credentials.challenge, connection, body))


class Nodes(Family[wire.NodeRegister]):
    """Answers delay servers, and notes their heartbeats."""

    decode = staticmethod(wire.decode_node_register)
    is_of_nodes = True
    is_urgent = True

    def __init__(
        self, context: Context, admission: GroupAdmission, group_changes: GroupChanges
    ) -> None:
        super().__init__(context)
        self._admission = admission
        self._group_changes = group_changes

    def observe(self, request: Request[wire.NodeRegister]) -> tuple[bool, bool]:
        """Note which record a node of its group was sent.

        Returns whether it sent a heartbeat within the time-out, and whether what registered as it
        last is connected elsewhere.
        """
        node, context = request.body, self.context
        check_belongs(context.registry, node, groups_max=context.config.registration.groups_max)
        if behind := self._group_changes.told(node):
            raise NotNowError(behind)
        heard_at = self._group_changes.heard_at(key_of(node))
        session = context.sessions.of_node(key_of(node))
        present_s = _PRESENT * context.config.registration.node_again_ms / 1000
        is_elsewhere = (
            session is not None
            and session is not request.session
            and heard_at is not None
            and trio.current_time() - heard_at < present_s
        )
        return heard_at is not None, is_elsewhere

    def decide(self, request: Request[wire.NodeRegister], observed: tuple[bool, bool]) -> Decision:
        """Return the role of a node that belongs to its group."""
        node, (is_heard, is_present) = request.body, observed
        result = plan_node(
            self.context.registry,
            node,
            is_heard=is_heard,
            is_present=is_present,
            now_ms=self.context.clock.now_ms(),
        )
        keys = (NODES, NEW_GROUP, ("group", node.group), ("node", key_of(node)))
        return Decision(partial(self._reply, request, result), result.changes, keys)

    def admit(self, request: Request[wire.NodeRegister], decision: Decision) -> Decision:
        """Refuse new groups that an operator has to let in, and too many at a time."""
        self._admission.let_in(request.session.connection, decision.changes, is_node=True)
        return decision

    def refused(self, request: Request[wire.NodeRegister], error: MetaServerError) -> bytes | None:
        """Return that a node does not belong, unless it may later."""
        reason = str(error)[: wire.REASON_LENGTH_MAX]
        if isinstance(error, RefusedError):
            self._group_changes.refused(request.body, reason)
        return wire.encode_node_reply(wire.Refused(reason=reason)) if is_final(error) else None

    def _reply(self, request: Request[wire.NodeRegister], result: Registered) -> bytes:
        node, context, now = request.body, self.context, trio.current_time()
        if not request.session.connection.is_closed:
            context.sessions.add_node(key_of(node), request.session)
        noted_at = now if result.changes else self._note_end(node, now)
        self._group_changes.registered(request.session, node, noted_at)
        group = context.registry.delay_groups[node.group]
        heard = context.heard
        is_master = result.role is wire.NodeRole.MASTER
        if is_master and node.state is not None:
            heard.hear(group.name, now)
            self._note_state(node)
        elif heard.is_heard(group.name, now) and self._group_changes.may_send(group.name):
            # Its master may be cut off from here alone: it is where it was.
            heard.hear(group.name, now)
        shown = context.registry.groups.get(group.name)
        return wire.encode_node_reply(
            wire.NodeRegistered(
                role=result.role,
                record=result.record,
                again_ms=context.config.registration.node_again_ms,
                is_retired=shown is not None and shown.is_retired,
                is_read_only=shown is not None and shown.is_read_only,
                log_uuid=group.log_uuid,
                members=members_of(context.registry, group),
                now_ms=context.clock.now_ms(),
                clock_fault=self._group_changes.state_of(group.name).clock_fault(node.node_id),
                state=cast("wire.Shown", shown.state.name)
                if is_master and shown is not None
                else None,
            )
        )

    def _note_state(self, node: wire.NodeRegister) -> None:
        """Store the state that a master gives for producers; nobody waits for that.

        The next registration repeats it.
        """
        now_ms = self.context.clock.now_ms()
        plan = partial(plan_state, self.context.registry, node, now_ms=now_ms)
        if plan():
            self.context.store_later(("group", node.group), plan=plan)

    def _note_end(self, node: wire.NodeRegister, now: float) -> float:
        """Store now and then how far a node's log goes; return when that was done last.

        Nobody waits for that.
        """
        before = self._group_changes.last_heard(key_of(node))
        noted_at = now if before is None else before.noted_at
        if now - noted_at < _END_S:
            return noted_at
        # Many of these share a commit, unlike registrations.
        plan = partial(plan_end, self.context.registry, node)
        if plan():
            self.context.store_later(("node", key_of(node)), plan=plan)
        return now


def key_of(node: wire.NodeRegister) -> NodeKey:
    """Return which node it is."""
    return node.cluster, node.group, node.node_id
