"""NODE_REGISTER, NODE_CHALLENGE and NODE_CONTROLS: delay servers of ours prove who they are."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.nodes.controls_exchange import decode_node_controls
from delay_protocol.nodes.registration import (
    NodeRegister,
    NodeRegistered,
    Refused,
    decode_node_register,
    encode_node_reply,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.http.credentials import Credentials
from delay_transport.seams.runtime import Clock
from meta_server.groups.controls_push import ControlsPusher
from meta_server.groups.group_records import members_of
from meta_server.groups.liveness import Liveliness
from meta_server.groups.roles import Registered, plan_end, plan_node
from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import MetaServerError, RefusedError
from meta_server.known.model import Change
from meta_server.known.registry import NodeKey, Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.group_admission import NEW_GROUP, GroupAdmission
from meta_server.wire.group_changes import GroupChanges
from meta_server.wire.replies import Replies
from meta_server.wire.speakers import Speakers

_PRESENT = 2.5
_END_S = 10.0
"""Between two notes of how far a delay server's log goes. A copy of its directory that lacks
records which were noted is refused; what was taken since is not missed."""
"""A start that was not heard for so many times as it is to speak again makes room for the next."""
NODES = "nodes"
"""Key of intents about delay nodes: uuids must be unique over all of them."""


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


class NodeRegistration:
    """Answers delay servers, and notes that they were heard."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        replies: Replies,
        heard: Liveliness,
        admission: GroupAdmission,
        speakers: Speakers,
        credentials: Credentials,
        telling: ControlsPusher,
        group_changes: GroupChanges,
        clock: Clock,
        limits: RegistrationConfig,
    ) -> None:
        self._registry = registry
        self._committer = committer
        self._replies = replies
        self._heard = heard
        self._admission = admission
        self._speakers = speakers
        self._credentials = credentials
        self._telling = telling
        self._group_changes = group_changes
        self._clock = clock
        self._limits = limits
        self._ends_noted: dict[NodeKey, float] = {}
        """When it was noted last how far a node's log goes, in trio time."""

    def challenge(self, connection: Connection, frame: Frame) -> None:
        """Answer a NODE_CHALLENGE."""
        answer = self._credentials.challenge(connection, frame.body)
        connection.answer(frame, ResponseCode.SUCCESS, answer)

    def ask_controls(self, connection: Connection, frame: Frame) -> None:
        """Have a NODE_CONTROLS wait for controls."""
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        asked = decode_node_controls(body)
        nodes = self._speakers.nodes_of(connection)
        self._telling.ask(connection, frame, asked, seal, nodes)

    def register(self, connection: Connection, frame: Frame) -> None:
        """Answer a NODE_REGISTER."""
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        node = _Node(connection, frame, decode_node_register(body), seal)
        try:
            planned = self._plan_node(node)
            self._admission.let_in(connection, planned.changes, is_node=True)
        except RefusedError as error:
            self._refuse_node(node, error)
            return
        if not planned.changes and not self._committer.is_pending(NODES):
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

        self._replies.later(
            connection,
            frame,
            (NODES, NEW_GROUP, ("group", node.request.group), ("node", node.key)),
            plan=plan,
            answer=answer,
            refuse=partial(self._refuse_node, node),
            is_urgent=True,
        )

    def _plan_node(self, node: _Node) -> Registered:
        now = trio.current_time()
        return plan_node(
            self._registry,
            node.request,
            is_heard=self._heard.nodes.is_heard(node.key, now),
            is_present=self._is_present(node, now),
            why_behind=self._group_changes.told,
            groups_max=self._limits.groups_max,
            now_ms=self._clock.now_ms(),
        )

    def _is_present(self, node: _Node, now: float) -> bool:
        """Say whether what registered as this node last is connected, and speaks, elsewhere."""
        speaker = self._speakers.speaker_of(node.key)
        heard_at = self._heard.nodes.heard_at(node.key)
        return (
            speaker is not None
            and speaker is not node.connection
            and heard_at is not None
            and now - heard_at < _PRESENT * self._limits.node_again_ms / 1000
        )

    def _note_end(self, node: _Node) -> None:
        """Have it stored now and then how far a node's log goes; nobody waits for that."""
        now, request = trio.current_time(), node.request
        noted_at = self._ends_noted.setdefault(node.key, now)
        if (
            now - noted_at < _END_S
            or self._committer.is_stale
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
            self._committer.submit(intent)

    def is_connected(self, key: NodeKey) -> bool:
        """Say whether what registered as this node last has a connection."""
        return self._speakers.speaker_of(key) is not None

    def forget(self, key: NodeKey) -> None:
        """Wait no longer for a delay server that was removed or given up."""
        self._heard.nodes.forget(key)
        self._ends_noted.pop(key, None)
        self._telling.forget_node(key)

    def _answer_node(self, node: _Node, registered: Registered) -> None:
        connection = node.connection
        self._heard.nodes.hear(node.key, trio.current_time())
        if not connection.is_closed:
            self._speakers.note(node.key, connection)
        self._group_changes.registered(connection, node.request)
        group, now = self._registry.delay_groups[node.request.group], trio.current_time()
        heard = self._heard.groups
        if heard.is_heard(group.name, now) and self._group_changes.may_send(group.name):
            # Its master may be cut off from here alone: it is where it was.
            heard.hear(group.name, now)
        shown = self._registry.groups.get(group.name)
        reply = NodeRegistered(
            role=registered.role,
            record=registered.record,
            again_ms=self._limits.node_again_ms,
            is_retired=shown is not None and shown.is_retired,
            log_uuid=group.log_uuid,
            members=members_of(self._registry, group),
            now_ms=self._clock.now_ms(),
            clock_fault=self._group_changes.state_of(group.name).clock_fault(node.request.node_id),
        )
        body = node.seal(encode_node_reply(reply))
        connection.answer(node.frame, ResponseCode.SUCCESS, body)

    def _refuse_node(self, node: _Node, error: MetaServerError) -> None:
        """Say that it does not belong; or, where that may change, that it is to try again."""

        def refused(reason: str) -> bytes:
            return node.seal(encode_node_reply(Refused(reason=reason)))

        self._replies.refuse_or_retry(node.connection, node.frame, error, refused)
