"""NODE_WATCH and GROUP_CHANGE: delay servers wait for news of their group, vote, and hand over."""

from functools import partial

import trio

from delay_protocol.basics.errors import LocalProtocolError
from delay_protocol.nodes import group_changes as wire
from delay_protocol.nodes.registration import REASON_LENGTH_MAX, Master, NodeRegister
from meta_server.groups.elections import Voted
from meta_server.groups.group_records import HAND_OVER, IN_SYNC, members_of
from meta_server.known.errors import RefusedError
from meta_server.wire.dispatch import Context, Decision, Family, Request
from meta_server.wire.group_changes import GroupChanges
from meta_server.wire.sessions import Session


class Watches(Family[wire.NodeWatch]):
    """Holds a NODE_WATCH until the news of its group, or the controls, are other than were sent."""

    decode = staticmethod(wire.decode_node_watch)
    is_of_nodes = True

    def __init__(self, context: Context, groups: GroupChanges) -> None:
        super().__init__(context)
        self._groups = groups

    def decide(self, request: Request[wire.NodeWatch], _: object) -> Decision:
        """Return that a node that has registered on this connection is answered by its news."""
        node = self._groups.registration_on(request.session)
        return Decision(hold=partial(self._answer, request.session, node))

    def _answer(self, session: Session, node: NodeRegister, is_over: bool) -> bytes | None:  # noqa: FBT001 (a Hold)
        node = session.registration or node
        news, controls = self._news_of(node), self._controls_for(session, node)
        if news == session.news:
            news = None
        if news is None and controls is None:
            return wire.encode_watch_reply(wire.WatchReply()) if is_over else None
        try:
            body = wire.encode_watch_reply(wire.WatchReply(news=news, controls=controls))
        except LocalProtocolError:
            # Both are too long for one answer: a vote does not wait for controls.
            body, controls = wire.encode_watch_reply(wire.WatchReply(news=news)), None
        session.news = news or session.news
        if controls is not None:
            session.controls = controls.id
        return body

    def _controls_for(self, session: Session, node: NodeRegister) -> wire.ControlsNews | None:
        """Return the controls to send to a node; None if it was sent them on this connection."""
        found = self._groups.controls.of(node.cluster)
        if found.id == session.controls:
            return None
        is_applied = session.controls is None and found.id == node.controls.id
        return wire.ControlsNews(id=found.id) if is_applied else found

    def _news_of(self, node: NodeRegister) -> wire.NodeNews | None:
        group = self.context.registry.delay_groups.get(node.group)
        if group is None:
            return None
        record, state = group.record, self._groups.state_of(group.name)
        own = Master(node_id=node.node_id, incarnation=node.incarnation)
        is_member = record.in_sync.get(node.node_id) == node.storage_uuid
        is_asked = is_member and node.node_id in state.asks(record)
        is_wished = record.master == own and state.wish.epoch == record.epoch
        return wire.NodeNews(
            record=record,
            members=members_of(self.context.registry, group),
            vote_epoch=record.epoch if is_asked else 0,
            gone=state.cause.gone if is_asked and state.cause is not None else 0,
            hand_over_to=state.wish.to if is_wished else "",
            hand_over_why=state.wish.why if is_wished else "",
        )


class Votes(Family[wire.GroupChange]):
    """Answers a GROUP_CHANGE: a vote counts at once, what a master wants when it is stored."""

    decode = staticmethod(wire.decode_group_change)
    is_of_nodes = True
    is_urgent = True

    def __init__(self, context: Context, groups: GroupChanges) -> None:
        super().__init__(context)
        self._groups = groups

    def observe(self, _: Request[wire.GroupChange]) -> float:
        """Return the time: what is known of the nodes goes by it."""
        return trio.current_time()

    def decide(self, request: Request[wire.GroupChange], now: float) -> Decision:
        """Return the record that follows from what a master wants."""
        change, groups = request.body, self._groups
        node = groups.registration_on(request.session)
        group = groups.group(node.group)
        if isinstance(change, wire.Vote):
            return Decision(partial(self._vote, node, change))
        refused = partial(self._reply, group.name)
        if behind := groups.set_backs.why_behind(group.name):
            return Decision(partial(refused, behind))
        state, record = groups.state_of(group.name), group.record
        own = Master(node_id=node.node_id, incarnation=node.incarnation)
        pair, actor = (change.epoch, change.version), f"node {node.node_id} at {node.address}"
        refusal, why, action = "", {}, HAND_OVER
        try:
            if isinstance(change, wire.Alter):
                found = state.alter(record, own, pair, change.in_sync, now=now)
                refusal = state.why_not(record, change.in_sync, now=now)
                action = IN_SYNC if found.in_sync != record.in_sync else ""
            else:
                found = state.hand_over(record, own, pair, change.target, now=now)
                why = {"why": state.wish.why}
            changes = groups.plan_record(group, found, action, actor, **why)
        except RefusedError as error:
            return Decision(partial(refused, str(error)))
        reply = partial(
            self._reply, group.name, refusal, handed_over=isinstance(change, wire.HandOver)
        )
        return Decision(reply, changes, (("group", group.name),))

    def _vote(self, node: NodeRegister, vote: wire.Vote) -> bytes:
        group = self._groups.group(node.group)
        voted = Voted(node.storage_uuid, node.incarnation, vote)
        state, now = self._groups.state_of(group.name), trio.current_time()
        refusal = state.voted(group.record, node.node_id, voted, now=now)
        if not refusal:
            self._groups.voted(group.name)
        return self._reply(group.name, refusal)

    def _reply(self, name: str, refusal: str, *, handed_over: bool = False) -> bytes:
        if handed_over:
            self._groups.state_of(name).changed_at = trio.current_time()
        record = self._groups.group(name).record
        return wire.encode_change_reply(
            wire.ChangeReply(record=record, refusal=refusal[:REASON_LENGTH_MAX])
        )
