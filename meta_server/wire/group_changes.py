"""NODE_WATCH and GROUP_CHANGE: who is master, and who is in sync.

`meta_server/groups/elections.py` decides; here a `GroupState` is kept for each delay group, fed
with what its nodes say, and what follows is stored and told:

    NODE_REGISTER   notes what the node said; an election may begin by that, or because of what
                    is not said any more
    NODE_WATCH      waits until the news of the node's group are other than it was told last
    GROUP_CHANGE    a vote counts at once; the master's wishes are answered when they are stored

What is known beside the record is in memory alone: a meta server that starts waits until it was
said anew.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.nodes.group_changes import (
    WATCH_S,
    Alter,
    ChangeReply,
    HandOver,
    NodeNews,
    Vote,
    WatchReply,
    decode_group_change,
    decode_node_watch,
    encode_change_reply,
    encode_watch_reply,
)
from delay_protocol.nodes.registration import (
    REASON_LENGTH_MAX,
    GroupRecord,
    Master,
    NodeRegister,
    Phase,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.http.credentials import Credentials
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Clock
from meta_server.groups.elections import Begins, GroupState, Heard, Refused, Voted, Waiting
from meta_server.groups.group_records import (
    ELECT,
    HAND_OVER,
    IN_SYNC,
    members_of,
    plan_record,
)
from meta_server.groups.held_requests import HeldRequests
from meta_server.groups.roles import is_same_start
from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import MetaServerError, RefusedError
from meta_server.known.model import (
    Change,
    DelayGroup,
    RemoveDelayGroup,
    RemoveDelayNode,
    SaveDelayGroup,
    SaveDelayNode,
)
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.replies import Replies

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_LOOK_S = 0.1
"""How often it is looked whether an election can end, while one is under way: votes are waited for
in seconds."""

_NEWS = (SaveDelayGroup, SaveDelayNode, RemoveDelayGroup, RemoveDelayNode)
"""Changes after which a node may have to be told something."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A GROUP_CHANGE, and whose it is."""

    connection: Connection
    frame: Frame
    seal: Callable[[bytes], bytes]
    request: NodeRegister
    """By which the node has registered on this connection."""

    @property
    def own(self) -> Master:
        """The start that asks, as a record would name it."""
        return Master(node_id=self.request.node_id, incarnation=self.request.incarnation)

    @property
    def actor(self) -> str:
        """The one who asks, as the audit names it."""
        return f"node {self.request.node_id} at {self.request.address}"


class GroupChanges:
    """The states of all delay groups, the nodes that wait for news, and the task that elects."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        replies: Replies,
        credentials: Credentials,
        clock: Clock,
        limits: RegistrationConfig,
        set_backs: SetBacks,
    ) -> None:
        self._registry = registry
        self._committer = committer
        self._replies = replies
        self._credentials = credentials
        self._clock = clock
        self._limits = limits
        self._began = trio.current_time()
        self._states: dict[str, GroupState] = {}
        self._set_backs = set_backs
        self._starts: dict[Connection, NodeRegister] = {}
        """By which a node registered last on each connection."""
        self._told: dict[Connection, NodeNews] = {}
        self._held: HeldRequests[Connection] = HeldRequests(self._answer_watch, hold_s=WATCH_S)
        self._under_way: set[str] = set()
        """Groups for which it is being looked whether an election begins or ends."""
        self._sentences: dict[str, str] = {}
        self._look_at: dict[str, float] = {}
        """By group, when time alone may begin an election; in trio time."""
        self._more = Wakeup()
        self.begun: Counter[tuple[str, str]] = Counter()
        """Elections, and handovers that no operator asked for, by group and kind of reason."""

    @property
    def waiting(self) -> int:
        """Nodes that would be told news at once."""
        return len(self._held)

    def state_of(self, name: str) -> GroupState:
        """Return what is known of a group beside its record."""
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = GroupState(self._began)
        return state

    def sentence_of(self, name: str) -> str:
        """Return what an election, or the group, waits for; empty if for nothing."""
        return self._set_backs.why_behind(name) or self._sentences.get(name, "")

    # -- what becomes known ------------------------------------------------------------------

    def registered(self, connection: Connection, request: NodeRegister) -> None:
        """Note what a node said of itself."""
        now = trio.current_time()
        state = self.state_of(request.group)
        heard = Heard(
            at=now,
            storage=request.storage_uuid,
            incarnation=request.incarnation,
            end=request.last_sequence + 1,
            uncommitted=request.uncommitted,
            committed=request.committed,
            stands=request.stands,
            clock_ahead_ms=request.clock_ahead_ms,
        )
        state.was_heard(request.node_id, heard)
        if not connection.is_closed:
            self._starts[connection] = request
        self._consider(request.group, now)

    # -- a store that was set back -----------------------------------------------------------

    def told(self, request: NodeRegister) -> str:
        """Note what a node was told; return why its group's record is not the newest, if not."""
        behind = self._set_backs.told(request)
        if behind:
            # When it has the newest record, all nodes have as long to register as after a start.
            self.state_of(request.group).began = trio.current_time()
            self._see(request.group, partial(self._plan_heal, request.group))
        return behind

    def _plan_heal(self, name: str) -> Sequence[Change]:
        return self._set_backs.plan_heal(name, now_ms=self._clock.now_ms())

    def may_send(self, name: str) -> bool:
        """Return True if the master of a group may send, as it says, or who hears it."""
        group = self._group(name)
        return self.state_of(name).may_send(group.record, now=trio.current_time())

    def stood_still(self, seconds: float) -> None:
        """Exclude time in which this process heard nobody from everybody's silence."""
        self._began += seconds
        for state in self._states.values():
            state.stood_still(seconds)

    def changed(self, changes: Sequence[Change]) -> None:
        """Tell what follows from changes that are stored."""
        for change in changes:
            if isinstance(change, RemoveDelayGroup):
                self._forget_group(change.group.name)
            elif isinstance(change, SaveDelayGroup):
                self._set_backs.stored(change.group)
        if any(isinstance(change, _NEWS) for change in changes):
            self.news()

    def loaded_anew(self) -> None:
        """Ask for all votes again, since it is not known which record they were given for."""
        for name in self._states.keys() - self._registry.delay_groups.keys():
            self._forget_group(name)
        for state in self._states.values():
            state.begin_again()
        self.news()

    def _forget_group(self, name: str) -> None:
        for known in (self._states, self._sentences, self._look_at):
            known.pop(name, None)

    def news(self) -> None:
        """Check who has to be told something, and whether an election can end."""
        self._held.changed()
        self._more.wake()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._held.forget(connection)
        self._starts.pop(connection, None)
        self._told.pop(connection, None)

    # -- what nodes ask ----------------------------------------------------------------------

    def watch(self, connection: Connection, frame: Frame) -> None:
        """Have a NODE_WATCH wait for news."""
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        decode_node_watch(body)
        self._start_on(connection)
        self._held.hold(connection, frame, connection, seal)

    def _start_on(self, connection: Connection) -> NodeRegister:
        """Return the start that speaks on a connection; raise RefusedError."""
        request = self._starts.get(connection)
        if request is None:
            raise RefusedError("register a delay server on this connection first")
        known = self._registry.nodes.get((request.cluster, request.group, request.node_id))
        if known is None or not is_same_start(request, known):
            raise RefusedError(f"{request.node_id} has registered with another start since")
        return request

    def _answer_watch(self, connection: Connection, is_over: bool) -> bytes | None:  # noqa: FBT001 (of HeldRequests)
        request = self._starts.get(connection)
        news = None if request is None else self._news_of(request)
        if news is not None and news != self._told.get(connection):
            self._told[connection] = news
            return encode_watch_reply(WatchReply(news=news))
        return encode_watch_reply(WatchReply()) if is_over else None

    def _news_of(self, request: NodeRegister) -> NodeNews | None:
        group = self._registry.delay_groups.get(request.group)
        if group is None:
            return None
        record, state = group.record, self.state_of(group.name)
        own = Master(node_id=request.node_id, incarnation=request.incarnation)
        is_asked = record.in_sync.get(
            request.node_id
        ) == request.storage_uuid and request.node_id in state.asks(record)
        is_wished = record.master == own and state.wish.epoch == record.epoch
        return NodeNews(
            record=record,
            members=members_of(self._registry, group),
            vote_epoch=record.epoch if is_asked else 0,
            gone=state.cause.gone if is_asked and state.cause is not None else 0,
            hand_over_to=state.wish.to if is_wished else "",
            hand_over_why=state.wish.why if is_wished else "",
        )

    def change(self, connection: Connection, frame: Frame) -> None:
        """Take a GROUP_CHANGE."""
        body, seal = self._credentials.open(connection, frame.code, frame.body)
        change = decode_group_change(body)
        asked = _Asked(connection, frame, seal, self._start_on(connection))
        if isinstance(change, Vote):
            self._vote(asked, change)
        elif isinstance(change, Alter):
            self._store(asked, partial(self._plan_alter, asked, change))
        else:
            self._store(asked, partial(self._plan_hand_over, asked, change))

    def _vote(self, asked: _Asked, vote: Vote) -> None:
        request = asked.request
        group = self._group(request.group)
        voted = Voted(
            storage=request.storage_uuid,
            incarnation=request.incarnation,
            last_epoch=vote.last_epoch,
            end=vote.end,
            applied=vote.applied,
        )
        refusal = self.state_of(group.name).voted(
            group.record, request.node_id, vote.epoch, voted, now=trio.current_time()
        )
        self._answer(asked, group.record, refusal)
        if not refusal:
            self.news()

    def _store(self, asked: _Asked, plan: Callable[[], tuple[Sequence[Change], str]]) -> None:
        """Answer when the store has what is planned, with why it is not done, or not all."""
        refusal, name = "", asked.request.group

        def plan_changes() -> Sequence[Change]:
            nonlocal refusal
            changes, refusal = plan()
            return changes

        self._replies.later(
            *(asked.connection, asked.frame, (("group", name),)),
            plan=plan_changes,
            answer=lambda: self._answer(asked, self._group(name).record, refusal),
            is_urgent=True,
        )

    def _answer(self, asked: _Asked, record: GroupRecord, refusal: str) -> None:
        reply = ChangeReply(record=record, refusal=refusal[:REASON_LENGTH_MAX])
        body = asked.seal(encode_change_reply(reply))
        asked.connection.answer(asked.frame, ResponseCode.SUCCESS, body)

    def _group(self, name: str) -> DelayGroup:
        group = self._registry.delay_groups.get(name)
        if group is None:
            raise RefusedError(f"there is no delay group {name}")
        return group

    # -- plans: on what is known when their turn comes ---------------------------------------

    def _plan_alter(self, asked: _Asked, change: Alter) -> tuple[Sequence[Change], str]:
        now, group = trio.current_time(), self._group(asked.request.group)
        state, record = self.state_of(group.name), group.record
        if behind := self._set_backs.why_behind(group.name):
            return (), behind
        pair = (change.epoch, change.version)
        found = state.alter(record, asked.own, pair, change.in_sync, now=now)
        if isinstance(found, Refused):
            return (), found.sentence
        is_other = found.in_sync != record.in_sync
        changes = self._named(group, found, IN_SYNC if is_other else "", asked.actor)
        return changes, state.why_not(record, change.in_sync, now=now)

    def _plan_hand_over(self, asked: _Asked, change: HandOver) -> tuple[Sequence[Change], str]:
        group = self._group(asked.request.group)
        if behind := self._set_backs.why_behind(group.name):
            return (), behind
        pair, state = (change.epoch, change.version), self.state_of(group.name)
        why, now = state.wish.why, trio.current_time()
        found = state.hand_over(group.record, asked.own, pair, change.target, now=now)
        if isinstance(found, Refused):
            return (), found.sentence
        try:
            return self._named(group, found, HAND_OVER, asked.actor, why=why), ""
        except RefusedError as error:
            return (), str(error)

    def _plan_election(self, name: str) -> Sequence[Change]:
        group, state = self._group(name), self.state_of(name)
        cause = self._why_begin(group, trio.current_time())
        if cause is None:
            return ()
        begun = state.begin(group.record, cause)
        _log.warning("an election begins", group=name, epoch=begun.epoch, reason=cause.sentence)
        self.begun[name, cause.kind] += 1
        return self._named(group, begun, ELECT, "the meta server", why=cause.sentence)

    def _plan_choice(self, name: str) -> Sequence[Change]:
        group, now = self._group(name), trio.current_time()
        if group.record.phase is not Phase.ELECTING or self._set_backs.why_behind(name):
            return ()
        state = self.state_of(name)
        votes = {
            node: f"record {vote.end - 1} of epoch {vote.last_epoch}; "
            + (state.fitness(group.record, node, now=now).sentence or "fit")
            for node, vote in sorted(state.votes.items())
        }
        found = state.choose(group.record, now=now)
        if not isinstance(found, GroupRecord):
            self._say(name, found.sentence)
            return ()
        assert found.master is not None
        node, why = found.master.node_id, "" if state.cause is None else state.cause.sentence
        _log.warning("a master is elected", group=name, node=node, epoch=found.epoch, votes=votes)
        return self._named(group, found, ELECT, "the meta server", why=why, votes=votes)

    def _say(self, name: str, sentence: str) -> None:
        if self._sentences.get(name) != sentence:
            self._sentences[name] = sentence
            _log.info("an election goes on", group=name, reason=sentence)

    def _named(
        self, group: DelayGroup, record: GroupRecord, action: str, actor: str, **more: object
    ) -> Sequence[Change]:
        return plan_record(
            *(self._registry, group, record),
            action=action,
            actor=actor,
            now_ms=self._clock.now_ms(),
            more=more,
        )

    # -- elections ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer who waits for news, begin elections and end them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._held.run)
            while True:
                at = self._look()
                with trio.move_on_at(min(at, min(self._look_at.values(), default=math.inf))):
                    await self._more.sleep()

    def _why_begin(self, group: DelayGroup, now: float) -> Begins | None:
        """Return why an election begins; where an operator begins them only a restart does."""
        if self._set_backs.why_behind(group.name):
            return None
        cause = self.state_of(group.name).why_begin(group.record, now=now)
        if cause is not None and not cause.gone and self._limits.elect == "operator":
            return None
        return cause

    def _consider(self, name: str, now: float) -> None:
        """Begin an election if there is a reason, and note when time alone may make one."""
        group = self._registry.delay_groups.get(name)
        if group is None:
            return
        state = self.state_of(name)
        if self._why_begin(group, now) is not None:
            self._see(name, partial(self._plan_election, name))
        elif not self._set_backs.why_behind(name) and (
            wish := state.must_hand_over(group.record, now=now)
        ):
            _log.warning("the master is to hand over", group=name, to=wish.to, reason=wish.why)
            self.begun[name, "unfit"] += 1
            self.news()
        before = min(self._look_at.values(), default=math.inf)
        self._look_at[name] = state.look_at(group.record, now=now)
        if self._look_at[name] < before:
            self._more.wake()

    def _look(self) -> float:
        """Begin and end elections; return when to look again if nothing is heard."""
        now = trio.current_time()
        for name in [name for name, at in self._look_at.items() if at <= now]:
            self._consider(name, now)
        electing = {
            name
            for name, group in self._registry.delay_groups.items()
            if group.record.phase is Phase.ELECTING
            and group.record.in_sync
            and not self._set_backs.why_behind(name)
        }
        for name in self._sentences.keys() - electing:
            del self._sentences[name]
        for name in electing:
            if self.state_of(name).votes:
                self._see(name, partial(self._plan_choice, name))
            else:
                found = self.state_of(name).choose(self._group(name).record, now=now)
                assert isinstance(found, Waiting)
                self._say(name, found.sentence)
        over = [name for name, state in self._states.items() if state.forget_wish(now)]
        if over:
            self._held.changed()
        is_waiting = bool(electing) or any(state.wish.to for state in self._states.values())
        return now + _LOOK_S if is_waiting else math.inf

    def _see(self, name: str, plan: Callable[[], Sequence[Change]]) -> None:
        """Have a plan of the meta server's own carried out; what fails is tried again later."""
        if name in self._under_way:
            return

        def done(error: MetaServerError | None) -> None:
            self._under_way.discard(name)
            if error is not None:
                _log.warning("not stored", group=name, reason=str(error))
                # It may be that votes have to be given again.
                self._held.changed()

        self._under_way.add(name)
        try:
            self._committer.submit(
                Intent(keys=(("group", name),), plan=plan, done=done, is_urgent=True)
            )
        except MetaServerError:
            self._under_way.discard(name)
