"""Elections: when one begins, and when it ends.

`meta_server/groups/elections.py` decides; here a `GroupState` is kept for each delay group, fed
with what its nodes report (`nodes.py`) and vote (`votes.py`), and what follows is stored. An
election may begin by what is reported, or because of what is not reported any more.

What is known beside the record is in memory alone: a meta server that starts waits until it was
reported anew.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from delay_protocol.nodes.registration import GroupRecord, NodeRegister, Phase
from delay_transport.http.pages import Turns
from delay_transport.seams.outbox import Wakeup
from meta_server.groups.current_controls import CurrentControls
from meta_server.groups.elections import Begins, GroupState, Heard
from meta_server.groups.group_records import ELECT, plan_record
from meta_server.groups.roles import is_same_start
from meta_server.known import model
from meta_server.known.errors import RefusedError, StateError
from meta_server.known.registry import NodeKey
from meta_server.known.set_back import SetBacks
from meta_server.wire.dispatch import Context
from meta_server.wire.sessions import Session

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_OPEN_S = 0.1
"""How often it is looked whether an election can end, while one is under way: votes are waited for
in seconds."""
_LOOK_S_MIN = 0.05
"""The least time between two looks at all groups: of a thousand some may begin one at any moment.
"""


class GroupChanges:
    """The states of all delay groups, and the task that elects."""

    def __init__(self, context: Context, set_backs: SetBacks, controls: CurrentControls) -> None:
        self._context = context
        self._registry = context.registry
        self._began = trio.current_time()
        self._timeout_s = context.config.registration.node_timeout_ms / 1000
        self._states: dict[str, GroupState] = {}
        self.set_backs = set_backs
        self.controls = controls
        """The controls that nodes are sent."""
        self._look_at = math.inf
        """Time (trio) at which time alone may begin or end an election of a group."""
        self._more = Wakeup()
        self.begun: Counter[tuple[str, str]] = Counter()
        """Elections, and handovers that no operator asked for, by group and kind of reason."""

    def state_of(self, name: str) -> GroupState:
        """Return what is known of a group beside its record."""
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = GroupState(self._began)
        return state

    def sentence_of(self, name: str) -> str:
        """Return what an election, or the group, waits for; empty if for nothing."""
        return self.set_backs.why_behind(name) or self.state_of(name).waits

    # -- what becomes known ------------------------------------------------------------------

    def registered(self, session: Session, request: NodeRegister, noted_at: float) -> None:
        """Note what a node said of itself; noted_at: when its end was stored last."""
        heard = Heard(trio.current_time(), request, noted_at)
        self.state_of(request.group).heard[request.node_id] = heard
        session.registration = request
        self._look(self.group(request.group), heard.at)

    def refused(self, request: NodeRegister, reason: str) -> None:
        """Note that a node of a known group does not belong."""
        if request.group in self._registry.delay_groups:
            state = self.state_of(request.group)
            state.was_refused(request.node_id, self._context.clock.now_ms(), reason)

    def last_heard(self, key: NodeKey) -> Heard | None:
        """Return what a node said last; None: nothing since this meta server began."""
        state = self._states.get(key[1])
        return None if state is None else state.heard.get(key[2])

    def heard_at(self, key: NodeKey) -> float | None:
        """Return when a node sent its last heartbeat; None: not within the time-out.

        All count as heard when this meta server began.
        """
        heard = self.last_heard(key)
        at = self._began if heard is None else heard.at
        return at if trio.current_time() - at < self._timeout_s else None

    def controls_at(self, key: NodeKey) -> tuple[int | None, str]:
        """Return which version of the controls a node applies, and why not the newest."""
        heard = self.last_heard(key)
        return self.controls.compared(key[0], None if heard is None else heard.node.controls)

    def ahead(self, cluster: str) -> str:
        """Return which node applies newer controls of this store than it has; empty if none does.

        Then the store was set back, or another meta server has changed it meanwhile.
        """
        newest = self._registry.controls_of(cluster).version
        for key in self._registry.nodes:
            if key[0] == cluster and (self.controls_at(key)[0] or 0) > newest:
                return f"{key[2]} of {key[1]}"
        return ""

    # -- a store that was set back -----------------------------------------------------------

    def told(self, request: NodeRegister) -> str:
        """Note what a node was told; return why its group's record is not the newest, if not."""
        behind = self.set_backs.told(request)
        if behind:
            # When it has the newest record, all nodes have as long to register as after a start.
            self.state_of(request.group).began = trio.current_time()
            now_ms = self._context.clock.now_ms()
            plan = partial(self.set_backs.plan_heal, request.group, now_ms=now_ms)
            self._see(request.group, plan)
        return behind

    def may_send(self, name: str) -> bool:
        """Return True if the master of a group may send, as it says, or who hears it."""
        group = self.group(name)
        return self.state_of(name).may_send(group.record, now=trio.current_time())

    def stood_still(self, seconds: float) -> None:
        """Exclude time in which this process heard nobody from everybody's silence."""
        self._began += seconds
        for state in self._states.values():
            state.stood_still(seconds)

    def changed(self, changes: Sequence[model.Change]) -> None:
        """Tell what follows from changes that are stored."""
        for group in model.removed(changes, model.DelayGroup):
            self._states.pop(group.name, None)
        for group in model.saved(changes, model.DelayGroup):
            self.set_backs.stored(group)
            self._look(group, trio.current_time())
        for node in model.removed(changes, model.DelayNode):
            state = self.state_of(node.group)
            state.heard.pop(node.node_id, None)
            state.refused.pop(node.node_id, None)
        if model.touches(changes, model.ClusterControls, model.DelayGroup, model.DelayNode):
            self.news()

    def loaded_anew(self) -> None:
        """Ask for all votes again, since it is not known which record they were given for."""
        for name in self._states.keys() - self._registry.delay_groups.keys():
            del self._states[name]
        for state in self._states.values():
            state.begin_again()
        self._look_at = -math.inf
        self._more.wake()

    def voted(self, name: str) -> None:
        """Check whether an election can end by the vote that came."""
        self.news()
        self._see(name, partial(self._plan_choice, name))

    def news(self) -> None:
        """Check who has to be sent something."""
        self._context.held.changed()

    def registration_on(self, session: Session) -> NodeRegister:
        """Return by which the present start of a node registered; raise RefusedError."""
        request = session.registration
        if request is None:
            raise RefusedError("register a delay server on this connection first")
        known = self._registry.nodes.get((request.cluster, request.group, request.node_id))
        if known is None or not is_same_start(request, known):
            raise RefusedError(f"{request.node_id} has registered with another start since")
        return request

    def group(self, name: str) -> model.DelayGroup:
        """Return a delay group; raise RefusedError if there is none."""
        group = self._registry.delay_groups.get(name)
        if group is None:
            raise RefusedError(f"there is no delay group {name}")
        return group

    # -- plans: on what is known when their turn comes ---------------------------------------

    def _plan_election(self, name: str) -> Sequence[model.Change]:
        group, state = self.group(name), self.state_of(name)
        cause = self._why_begin(group, trio.current_time())
        if cause is None or self.set_backs.why_behind(name):
            return ()
        begun = state.begin(group.record, cause)
        _log.warning("an election begins", group=name, epoch=begun.epoch, reason=cause.sentence)
        self.begun[name, cause.kind] += 1
        return self.plan_record(group, begun, ELECT, "the meta server", why=cause.sentence)

    def _plan_choice(self, name: str) -> Sequence[model.Change]:
        group, now = self.group(name), trio.current_time()
        if group.record.phase is not Phase.ELECTING or self.set_backs.why_behind(name):
            return ()
        state = self.state_of(name)
        votes = {
            node: f"record {voted.vote.end - 1} of epoch {voted.vote.last_epoch}; "
            + (state.fitness(group.record, node, now=now).sentence or "fit")
            for node, voted in sorted(state.votes.items())
        }
        try:
            found = state.choose(group.record, now=now)
        except StateError as wait:
            if state.waits != str(wait):
                state.waits = str(wait)
                _log.info("an election goes on", group=name, reason=state.waits)
            return ()
        assert found.master is not None
        node, why = found.master.node_id, "" if state.cause is None else state.cause.sentence
        _log.warning("a master is elected", group=name, node=node, epoch=found.epoch, votes=votes)
        return self.plan_record(group, found, ELECT, "the meta server", why=why, votes=votes)

    def plan_record(
        self, group: model.DelayGroup, record: GroupRecord, action: str, actor: str, **more: object
    ) -> Sequence[model.Change]:
        """Return what stores another record of a group, with its entry in the audit."""
        registry, now_ms = self._registry, self._context.clock.now_ms()
        return plan_record(registry, group, record, action, actor=actor, now_ms=now_ms, **more)

    # -- elections ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Begin elections and end them, at the times at which they may, until cancelled."""
        while True:
            turns, began, self._look_at = Turns(), trio.current_time(), math.inf
            for name in [*self._registry.delay_groups]:
                if group := self._registry.delay_groups.get(name):
                    self._look(group, trio.current_time())
                await turns.pause()
            while (at := max(self._look_at, began + _LOOK_S_MIN)) > trio.current_time():
                with trio.move_on_at(at):
                    await self._more.sleep()

    def _look(self, group: model.DelayGroup, now: float) -> None:
        """Begin an election, or end one, if there is a reason; forget a wish that is over."""
        name, record, state = group.name, group.record, self.state_of(group.name)
        if state.forget_wish(now):
            self.news()
        is_electing = record.phase is Phase.ELECTING and bool(record.in_sync)
        is_behind = bool(self.set_backs.why_behind(name))
        if not is_electing or is_behind:
            state.waits = ""
        if is_behind:
            return
        if is_electing:
            self._see(name, partial(self._plan_choice, name))
        elif self._why_begin(group, now):
            self._see(name, partial(self._plan_election, name))
        elif wish := state.must_hand_over(record, now=now):
            _log.warning("the master is to hand over", group=name, to=wish.to, reason=wish.why)
            self.begun[name, "unfit"] += 1
            self.news()
        is_open = is_electing or bool(state.wish.to)
        at = now + _OPEN_S if is_open else state.look_at(record, now=now)
        if at < self._look_at:
            self._look_at = at
            self._more.wake()

    def _why_begin(self, group: model.DelayGroup, now: float) -> Begins | None:
        """Return why an election begins; where an operator begins them only a restart does."""
        cause = self.state_of(group.name).why_begin(group.record, now=now)
        is_by_hand = self._context.config.registration.elect == "operator"
        return None if cause is not None and not cause.gone and is_by_hand else cause

    def _see(self, name: str, plan: Callable[[], Sequence[model.Change]]) -> None:
        """Carry out a plan of the meta server's own; the next look tries again."""
        keys = (("election", name), ("group", name))
        self._context.store_later(*keys, plan=plan, is_urgent=True)
