"""Keeps the node registered at a meta server, and gets its role from it.

    find (HTTP) --> connect --> [prove] --> NODE_REGISTER --> again, each second --> ...
      ^                           |
      +-- wait, jittered <--------+-- whatever fails: no answer, not now, a record of old

NODE_REGISTER names the data that this node has, and the answer says what the node may do
(permission.py). It has the state in which producers should see the group as well: the node
registers at once when that changes, and before it stops.

On the same connection one NODE_WATCH always waits at the meta server. Its answers bring news of the
group, and the controls that operators set at the meta server (meta_sync.py).

With a secret both sides sign each request and each answer (delay_protocol/nodes/auth.py), and the
node ignores an answer without a valid signature.

A node that has begun an epoch stays in it until a meta server answers with another one, however
long no meta server answers; permission.py says why that is safe.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

import msgspec
import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.basics.printable import printable
from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.clocks import DIFFERS_MS, ahead_ms
from delay_protocol.nodes.group_changes import (
    WATCH_S,
    ChangeReply,
    GroupChange,
    NodeNews,
    NodeWatch,
    decode_change_reply,
    decode_watch_reply,
    encode_group_change,
    encode_node_watch,
)
from delay_protocol.nodes.registration import (
    NODE_BODY_BYTES_MAX,
    GroupMember,
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Refused,
    decode_node_reply,
    encode_node_register,
    is_older,
)
from delay_server.controls.meta_sync import ControlsSync
from delay_server.membership.permission import Permission, permission_of
from delay_server.settings.errors import FencedError, MembershipError, NodeRefusedError
from delay_transport.connections.limits import RequestLimits
from delay_transport.connections.request_client import RequestConnection
from delay_transport.meta.address import MetaLocator
from delay_transport.meta.requests import MetaRefusedError
from delay_transport.meta.talk import Talk, prove
from delay_transport.seams.backoff import Backoff
from delay_transport.seams.errors import ConfigError, ConnectError, TransportError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Clock, Network
from delay_transport.seams.trouble import Trouble
from storage.state.identity import Identity

if TYPE_CHECKING:
    from delay_server.settings.config import MetaConfig

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_RENEW_S_MIN = 0.1
_RENEW_S_MAX = 30.0
"""However often a meta server asks for it."""
_RECONNECT_S_MIN = 0.1
"""Before a meta server that failed is asked again; doubles with each failure."""
REQUEST_S = 2.0
"""The longest wait for an answer of a meta server. After that another connection is tried."""
_OFFLINE_S = 1.0
"""At a stop to have producers go elsewhere, while the node still accepts messages. Part of
node.stop_ms_max."""
_OFFLINE_AGAIN_S = 0.1
_ANSWER_BYTES_MAX = NODE_BODY_BYTES_MAX + 64 * 1024
"""The most bytes of one frame of a meta server, the seal included."""


class GroupNews(NamedTuple):
    """What a meta server says of the group."""

    record: GroupRecord
    members: Mapping[str, GroupMember]
    log_uuid: UUID | None = None
    """Of the group's log, where it was said."""
    asked: NodeNews | None = None
    """The requests to this node; None: nothing was said of that."""


class GroupListener(Protocol):
    """Whoever acts on what is agreed of the group."""

    def told(self, news: GroupNews, /) -> None:
        """Hear of the group."""

    def says_else_in(self) -> float:
        """Return after how many seconds it stands in another way, if it hears nothing."""

    def lose(self, error: FencedError, /) -> None:
        """Hear that this node is the master no more."""


class Registration:
    """Registers this node at a meta server, and keeps the answer: what the node may do.

    Invariant: `permission` has the highest epoch and version of all answers.
    """

    def __init__(
        self,
        settings: "MetaConfig",
        *,
        identity: Identity,
        log_epoch: Callable[[], int],
        node: Callable[[], NodeRegister],
        broker_state: Callable[[], BrokerState | None],
        on_changed: Callable[[], None],
        read_secret: Callable[[], Awaitable[bytes | None]],
        controls_sync: ControlsSync,
        replica: GroupListener,
        network: Network,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        """Act for the node of this identity.

        log_epoch: the newest epoch of its log; node: what it says of itself now; broker_state: how
        clients should see the group now, None as long as nothing is to be said; on_changed is
        called after `permission` has changed; read_secret returns what is to be proved, None where
        nothing is, and raises ConfigError if the file cannot be used; controls_sync hears of
        controls, and replica of the group, where the node is one of several.
        """
        self._settings = settings
        self._identity = identity
        self._log_epoch = log_epoch
        self._node = node
        self._on_changed = on_changed
        self._read_secret = read_secret
        self._controls_sync = controls_sync
        self._replica = replica
        self._talk: Talk | None = None
        self._reply: NodeRegistered | None = None
        self._network = network
        self._clock = clock
        self._chance = chance
        self._locator = MetaLocator(network, settings.http_addresses())
        self._backoff = Backoff(base_s=_RECONNECT_S_MIN, max_s=settings.reconnect_seconds_max)
        self.permission: Permission | None = None
        """What the node may do; None before the first answer."""
        self.own_epoch = 0
        """The epoch that this start of the node has begun; 0: none yet."""
        self.meta: str | None = None
        """host:port of the meta server while it answers."""
        self.trouble = ""
        """Why no meta server is available; empty while one answers."""
        self.answers = 0
        """Answers with a record of the group."""
        self._again_s = 0.0
        """After so long it is to say that it is there, by the last answer."""
        self.clock_ahead_ms = 0
        """By how much the wall clock is ahead of the meta server's, by its last answer."""
        self.is_authenticated = False
        """Whether the meta server that answers has proved that it has the secret."""
        self._broker_state = broker_state
        self._sent_state: BrokerState | None = None
        """The state for producers that was sent last."""
        self.watch_trouble = ""
        """Why it does not hear of changes of the group at once; empty if it does."""
        self._trouble_boot_ms: int | None = None
        self._waits = Trouble()
        """For a meta server, or for its turn to be the master."""
        self._delivers = Wakeup()
        self._renew_now = Wakeup()
        self._must_renew = False
        self._epoch_known = trio.Event()

    # -- what can be seen --------------------------------------------------------------------

    @property
    def accepts(self) -> bool:
        """Whether messages may be acknowledged."""
        return self.permission is not None and self.permission.delivers

    @property
    def closed(self) -> str:
        """Why the group takes no messages, as an operator decided; empty if it does."""
        return "" if self.permission is None else self.permission.closed

    @property
    def reason(self) -> str:
        """Why the node does not accept; empty if it does."""
        if self.permission is None:
            return f"no role yet: {self.trouble or 'the meta server has not answered'}"
        return self.permission.reason

    @property
    def members(self) -> Mapping[str, GroupMember]:
        """The nodes of the group, as they are registered."""
        return {} if self._reply is None else self._reply.members

    @property
    def shown(self) -> str | None:
        """The state in which producers see the group; None if this node is not its master."""
        return None if self._reply is None else self._reply.state

    @property
    def clock_fault(self) -> str:
        """Why the clock of this node is taken for wrong; empty if it is not."""
        return "" if self._reply is None else self._reply.clock_fault

    @property
    def away_ms(self) -> int:
        """For how long no meta server could be asked; 0 while one answers."""
        return self._since(self._trouble_boot_ms) or 0

    def _since(self, boot_ms: int | None) -> int | None:
        return None if boot_ms is None else self._clock.boot_ms() - boot_ms

    # -- what the server does ----------------------------------------------------------------

    async def take_epoch(self) -> int:
        """Wait until the node may deliver; return the epoch in which, and act in it from now on.

        It has to be durable in the log before anything is accepted or delivered.
        """
        while self.permission is None or not self.permission.delivers:
            await self._delivers.sleep()
        self.own_epoch = self.permission.record.epoch
        return self.own_epoch

    async def until_epoch_known(self) -> None:
        """Wait until a meta server knows that the epoch is in the log.

        From then on a copy of the directory that lacks it is refused, so before that nothing is to
        be accepted.
        """
        self.renew()
        await self._epoch_known.wait()

    def renew(self) -> None:
        """Register again at once, or as soon as what is under way is answered."""
        self._must_renew = True
        self._renew_now.wake()

    def state_changed(self) -> None:
        """Register at once if the state for producers is another than was sent last."""
        if self._broker_state() != self._sent_state:
            self.renew()

    async def until_offline(self) -> None:
        """Wait until producers are sent elsewhere, for a moment."""
        with trio.move_on_after(_OFFLINE_S):
            while self.meta is not None and self.shown not in {None, BrokerState.NRW.name}:
                self.renew()
                await trio.sleep(_OFFLINE_AGAIN_S)

    async def change(self, change: GroupChange) -> ChangeReply:
        """Ask for a change of the group, and take the record that is answered.

        Raises TransportError or MetaRefusedError: it may have been made or not.
        """
        talk = self._talk
        if talk is None:
            raise MetaRefusedError("no meta server answers")
        body = encode_group_change(change)
        answer = await talk.ask(CommandCode.GROUP_CHANGE, body, REQUEST_S)
        try:
            reply = decode_change_reply(answer)
        except MalformedMetaError as error:
            raise MetaRefusedError(str(error)) from error
        self._hear_of_group(reply.record, self.members)
        return reply

    async def run(self) -> None:
        """Stay registered until cancelled.

        Raises NodeRefusedError or FencedError; the node must not serve then.
        """
        failures = 0
        while True:
            answers = self.answers
            ended = await self._converse()
            if isinstance(ended, MembershipError):
                raise ended
            failures = failures + 1 if self.answers == answers else 1
            self._note_trouble(ended)
            await trio.sleep(self._backoff.wait_s(failures, self._chance))

    # -- one meta server ---------------------------------------------------------------------

    async def _converse(self) -> str | MembershipError:
        """Find a meta server and stay registered there; return what ended that."""
        try:
            address = await self._locator.locate()
        except TransportError as error:
            return str(error)
        connection = RequestConnection(
            on_lost=lambda _: self._renew_now.wake(),
            limits=RequestLimits(
                connect_seconds_max=REQUEST_S,
                frame_bytes_max=_ANSWER_BYTES_MAX,
            ),
        )
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(connection.run, self._network, address)
            except ConnectError as error:
                return str(error)
            try:
                ended = await self._renew(connection, nursery)
            finally:
                self.meta = self._talk = None
                self.is_authenticated = False
            nursery.cancel_scope.cancel()
        return ended

    async def _renew(
        self, connection: RequestConnection, nursery: trio.Nursery
    ) -> str | MembershipError:
        """Register again and again; return what ended that."""
        talk: Talk | None = None
        while True:
            try:
                if talk is None:
                    talk = self._talk = await prove(
                        connection,
                        await self._read_secret(),
                        chance=self._chance,
                        timeout_s=REQUEST_S,
                    )
                self._must_renew = False
                sent_ms = self._clock.boot_ms()
                said = self._said()
                body = await talk.ask(
                    CommandCode.NODE_REGISTER,
                    encode_node_register(said),
                    REQUEST_S,
                )
                self._take(body, connection.peer, sent_ms)
            except MembershipError as error:
                return error
            except (ConfigError, TransportError, MalformedMetaError, MetaRefusedError) as error:
                return str(error)
            self.is_authenticated = talk.key is not None
            if self.own_epoch and said.last_epoch == self.own_epoch:
                self._epoch_known.set()
            if self.meta is None:
                self._note_found(connection.peer)
                nursery.start_soon(self._apply_controls)
                nursery.start_soon(self._watch, talk)
            # Not all nodes at the same time, whatever they have been through together.
            renew_s = min(max(self._again_s, _RENEW_S_MIN), _RENEW_S_MAX)
            renew_s *= 0.9 + 0.1 * self._chance.random()
            renew_s = min(renew_s, self._replica.says_else_in())
            if self._must_renew:
                continue
            with trio.move_on_after(renew_s):
                await self._renew_now.sleep()

    def _said(self) -> NodeRegister:
        """Return what the node says of itself now, and of whom it knows."""
        state = self._sent_state = self._broker_state()
        return msgspec.structs.replace(
            self._node(),
            clock_ahead_ms=self.clock_ahead_ms,
            controls=self._controls_sync.applied(),
            state=None if state is None else state.name,
        )

    def _take(self, body: bytes, peer: str, sent_ms: int) -> None:
        """Take an answer to NODE_REGISTER."""
        name = f"{self._identity.node_id} of {self._identity.group}"
        reply = decode_node_reply(body)
        if isinstance(reply, Refused):
            raise NodeRefusedError(node=name, meta=peer, reason=reply.reason)
        self._again_s = reply.again_ms / 1000
        self.answers += 1
        if reply.now_ms is not None:
            waited_ms = self._clock.boot_ms() - sent_ms
            found = -ahead_ms(reply.now_ms, self._clock.now_ms(), waited_ms=waited_ms)
            self._must_renew |= abs(found - self.clock_ahead_ms) > DIFFERS_MS
            self.clock_ahead_ms = found
        self._hear(reply, peer)
        self._replica.told(GroupNews(reply.record, reply.members, reply.log_uuid))

    def _hear(self, reply: NodeRegistered, peer: str) -> None:
        """Take what the group is now; raise FencedError where this node has lost its role."""
        name = f"{self._identity.node_id} of {self._identity.group}"
        permission = permission_of(
            reply, self._identity, log_epoch=self._log_epoch(), own_epoch=self.own_epoch
        )
        before = self.permission
        if before is not None and is_older(permission.record, before.record):
            raise MetaRefusedError(
                f"the meta server at {peer} has an old record of {self._identity.group}: epoch "
                f"{permission.pair[0]}, version {permission.pair[1]}; this node has seen epoch "
                f"{before.pair[0]}, version {before.pair[1]}"
            )
        is_news = permission != before or reply.clock_fault != self.clock_fault
        self.permission, self._reply = permission, reply
        self._note_permission(before, permission)
        if self.own_epoch and not (
            permission.delivers and permission.record.epoch == self.own_epoch
        ):
            reason = permission.reason or f"it is the master of epoch {permission.record.epoch} now"
            raise FencedError(node=name, epoch=self.own_epoch, reason=reason)
        if permission.delivers:
            self._delivers.wake()
        if is_news:
            self._on_changed()

    def _hear_of_group(self, record: GroupRecord, members: Mapping[str, GroupMember]) -> None:
        """Take a record of the group that came otherwise than by NODE_REGISTER."""
        reply = self._reply
        assert reply is not None, "it is registered"
        master, own = record.master, self._identity
        is_master = master == Master(node_id=own.node_id, incarnation=own.incarnation)
        self._hear(
            msgspec.structs.replace(
                reply,
                role=NodeRole.MASTER if is_master else NodeRole.SLAVE,
                record=record,
                members=dict(members),
                state=reply.state if is_master else None,
            ),
            "" if self.meta is None else self.meta,
        )

    async def _watch(self, talk: Talk) -> None:
        """Take what the meta server sends whenever something changes: the group, or controls."""
        settings, asked = self._settings, encode_node_watch(NodeWatch())
        while True:
            try:
                body = await talk.ask(CommandCode.NODE_WATCH, asked, REQUEST_S + WATCH_S)
                reply = decode_watch_reply(body)
                news = reply.news
                if news is not None:
                    self._replica.told(GroupNews(news.record, news.members, asked=news))
                    self._hear_of_group(news.record, news.members)
                if reply.controls is not None:
                    self._controls_sync.offer(reply.controls)
            except TransportError as error:
                talk.connection.close(str(error))
                return
            except FencedError as error:
                self._replica.lose(error)
                return
            except (MetaRefusedError, MalformedMetaError) as error:
                if str(error) != self.watch_trouble:
                    _log.warning("cannot watch the group", reason=str(error))
                self.watch_trouble = str(error)
                self._controls_sync.failed(str(error))
                await trio.sleep(settings.reconnect_seconds_max)
            else:
                self.watch_trouble = ""

    async def _apply_controls(self) -> None:
        await self._controls_sync.run(self.renew, again_s=self._settings.reconnect_seconds_max)

    # -- what the log says -------------------------------------------------------------------

    def _note_found(self, peer: str) -> None:
        """Note that a meta server answers."""
        if self.trouble:
            _log.info("a meta server answers again", meta=peer, away_s=self.away_ms / 1000)
            self._waits.over()
        self.meta, self.trouble, self._trouble_boot_ms = peer, "", None

    def _note_trouble(self, reason: str) -> None:
        """Note that no meta server is available; log it at first, and then at intervals."""
        if not self.trouble:
            self._trouble_boot_ms = self._clock.boot_ms()
        self.trouble = reason
        self._waits.log(
            _log.warning,
            "no meta server is available",
            reason=printable(reason),
            away_s=self.away_ms / 1000,
            meanwhile=f"master in epoch {self.own_epoch}" if self.own_epoch else "waiting",
        )

    def _note_permission(self, before: Permission | None, permission: Permission) -> None:
        """Log what the node may do when that changes, and at intervals while it waits."""
        if before is not None and permission.closed != before.closed:
            _log.warning(
                "the node refuses messages and delivers those that it has"
                if permission.closed
                else "this group is in service again",
                group=self._identity.group,
                reason=permission.closed,
            )
        is_ordinary = permission.delivers or permission.role is NodeRole.SLAVE
        if permission != before:
            self._waits.over()
        elif is_ordinary:
            return
        self._waits.log(
            _log.info if is_ordinary else _log.warning,
            "registered"
            if permission.delivers
            else "registered; this node does not accept messages",
            group=self._identity.group,
            node_id=self._identity.node_id,
            address=self._node().address,
            http=self._node().http_address,
            role=permission.role.value,
            epoch=permission.record.epoch,
            version=permission.record.version,
            **({} if permission.delivers else {"reason": permission.reason}),
        )
