"""RECEIVER_REGISTER: a receiver learns where to attach, and gets a group and routes where it may.

Each request is answered when what there is to say is other than what its connection was told, or
after a while. What cannot be done for a receiver, or not yet, is said in `waits`; it is told of the
masters all the same, and gets messages once an operator lets it.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.nodes.registration import COUNTED_MAX, REASON_LENGTH_MAX
from delay_protocol.receivers import masters
from delay_protocol.receivers.masters import ReceiverRefused, ReceiverRegister, ReceiverRegistered
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.http.credentials import Credentials
from delay_transport.seams.runtime import Clock
from meta_server.groups.held_requests import HeldRequests
from meta_server.groups.receiver_groups import (
    BroughtPatterns,
    Room,
    keys_of,
    plan_receiver,
    routed_elsewhere,
    unrouted,
)
from meta_server.known import model
from meta_server.known.errors import NotNowError, RefusedError, StateError
from meta_server.known.model import Change, GroupKind
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.group_admission import NEW_GROUP, GroupAdmission
from meta_server.wire.replies import Replies


class ReceiverRegistration:
    """Answers receivers, and tells them of other masters."""

    def __init__(
        self,
        *,
        registry: Registry,
        replies: Replies,
        admission: GroupAdmission,
        credentials: Credentials,
        clock: Clock,
        limits: RegistrationConfig,
        prefixes_max: int,
        patterns_end: bool,
    ) -> None:
        """Let receivers set routes as long as there are fewer than `prefixes_max` of prefixes.

        Where `patterns_end`, patterns end that they bring no more.
        """
        self._registry = registry
        self._brought = BroughtPatterns(registry)
        self._patterns_end = patterns_end
        self._replies = replies
        self._admission = admission
        self._credentials = credentials
        self._clock = clock
        self._prefixes_max = prefixes_max
        self._held: HeldRequests[tuple[ReceiverRegister, str]] = HeldRequests(
            self._answer, hold_s=masters.HOLD_S
        )
        """Requests, each with why something of it is not done."""
        self._room = Room(limits.groups_max, limits.subjects_max, prefixes_max)
        self.news()

    def register(self, connection: Connection, frame: Frame) -> None:
        """Answer a RECEIVER_REGISTER, or have it wait."""
        request = masters.decode_receiver_register(frame.body)
        plan = partial(self._plan, request, f"receiver at {connection.where}")
        refuse = partial(self._replies.refuse_or_retry, connection, frame, refused=_refused)
        is_news, waits = False, ""
        reason, is_final = self._credentials.why_not_receive(request.name, request.token)
        if reason:
            refuse(RefusedError(reason) if is_final else NotNowError(reason))
            return
        if self._patterns_end and request.name in self._registry.groups:
            self._brought.note(request.name, request.patterns, trio.current_time())
        try:
            if plan():
                self._admission.let_receive(connection, request.name, request.patterns)
                is_news = True
        except (NotNowError, StateError) as error:
            waits = str(error)
        except RefusedError as error:
            refuse(error)
            return
        if not (is_news or waits):
            elsewhere = routed_elsewhere(self._registry, request.name, request.patterns)
            self._admission.note_routed_elsewhere(connection, request.name, tuple(elsewhere))
        if not is_news:
            self._held.hold(connection, frame, (request, waits), bytes)
            return

        def answer() -> None:
            body = masters.encode_receiver_reply(self._registered(request, ""))
            connection.answer(frame, ResponseCode.SUCCESS, body)

        patterns = (*request.patterns, *(route.pattern for route in self._ended(request.name)))
        self._replies.later(
            *(connection, frame, (("group", request.name), NEW_GROUP, *keys_of(patterns))),
            plan=plan,
            answer=answer,
            refuse=refuse,
        )

    def changed(self, changes: Sequence[Change]) -> None:
        """Tell what follows from changes that are stored."""
        for change in changes:
            # Routes that were chosen come, and go with their subjects, by the hundred.
            is_set = isinstance(change, model.SaveRoute | model.RemoveRoute) and not (
                change.route.is_chosen
            )
            if is_set or isinstance(change, model.SaveBrokerGroup | model.RemoveBrokerGroup):
                self.news()
                return

    def news(self) -> None:
        """Check who has to be told something."""
        self._masters = _masters_of(self._registry)
        self._held.changed()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._held.forget(connection)

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._held.run()

    def _plan(self, request: ReceiverRegister, actor: str) -> Sequence[Change]:
        """Return which patterns of a receiver's name end; if none does, what it gains."""
        name, now_ms = request.name, self._clock.now_ms()
        ended: list[Change] = [model.RemoveRoute(route) for route in self._ended(name)]
        changes = ended or plan_receiver(
            *(self._registry, name, request.patterns, self._room), is_approved=False, now_ms=now_ms
        )
        if changes:
            rows = msgspec.json.encode(changes).decode()
            entry = model.AuditEntry(
                at_ms=now_ms,
                actor=actor,
                action="receiver.end-pattern" if ended else "receiver.register",
                target=name,
                before=rows if ended else "",
                after="" if ended else rows,
            )
            changes.append(model.Audit(entry))
        return changes

    def _ended(self, name: str) -> Sequence[model.Route]:
        return self._brought.ended(name, trio.current_time())

    def _answer(self, asked: tuple[ReceiverRegister, str], is_over: bool) -> bytes | None:  # noqa: FBT001 (of HeldRequests)
        registered = self._registered(*asked)
        if registered.version == asked[0].told and not is_over:
            return None
        return masters.encode_receiver_reply(registered)

    def _registered(self, request: ReceiverRegister, waits: str) -> ReceiverRegistered:
        registry, name, patterns = self._registry, request.name, request.patterns
        reasons = list(routed_elsewhere(registry, name, patterns).values())
        if waits and (name not in registry.groups or unrouted(registry, name, patterns)):
            reasons.insert(0, waits)
        said = "; ".join(reasons)[:REASON_LENGTH_MAX]
        digest = xxh3_64_intdigest(msgspec.msgpack.encode((self._masters, said)))
        return ReceiverRegistered(
            version=digest % COUNTED_MAX + 1, masters=self._masters, waits=said
        )


def _refused(reason: str) -> bytes:
    return masters.encode_receiver_reply(ReceiverRefused(reason=reason))


def _masters_of(registry: Registry) -> tuple[masters.MasterInfo, ...]:
    """Return where receivers attach.

    Also where a group is away, or retired: it hands out what it has as soon as it is there.
    """
    found = [
        masters.MasterInfo(group=group.name, address=group.master)
        for group in registry.groups.values()
        if group.kind is GroupKind.DELAY and group.master
    ]
    return tuple(found[: masters.MASTERS_MAX])
