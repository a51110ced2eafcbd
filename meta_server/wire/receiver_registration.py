"""RECEIVER_REGISTER: a receiver learns where to attach, and gets a group and routes where it may.

Each request is answered when what there is to say is other than what its connection was told, or
after a while. What cannot be done for it, or not yet, is said in `waits`, and it is told of the
masters all the same: messages come once an operator lets them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.nodes.registration import COUNTED_MAX, REASON_LENGTH_MAX
from delay_protocol.receivers.masters import (
    HOLD_S,
    MASTERS_MAX,
    MasterInfo,
    ReceiverRefused,
    ReceiverRegister,
    ReceiverRegistered,
    decode_receiver_register,
    encode_receiver_reply,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from delay_transport.seams.runtime import Clock
from meta_server.groups.held_requests import HeldRequests
from meta_server.groups.receiver_groups import (
    check_receiver,
    keys_of,
    new_receivers,
    plan_routes,
    routed_elsewhere,
    unrouted,
)
from meta_server.known.errors import MetaServerError, NotNowError, RefusedError, StateError
from meta_server.known.model import (
    Change,
    GroupKind,
    RemoveBrokerGroup,
    RemoveRoute,
    SaveBrokerGroup,
    SaveRoute,
)
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig
from meta_server.wire.group_admission import NEW_GROUP, GroupAdmission
from meta_server.wire.replies import Replies


@dataclass(frozen=True, slots=True)
class _Asked:
    """A RECEIVER_REGISTER that waits for its answer."""

    request: ReceiverRegister
    waits: str = ""
    """Why it has no group, or some pattern no route, as long as that is so."""


class ReceiverRegistration:
    """Answers receivers, and tells them of other masters."""

    def __init__(
        self,
        *,
        registry: Registry,
        replies: Replies,
        admission: GroupAdmission,
        clock: Clock,
        limits: RegistrationConfig,
        prefixes_max: int,
    ) -> None:
        """Have receivers set routes as long as there are fewer than `prefixes_max` of prefixes."""
        self._registry = registry
        self._replies = replies
        self._admission = admission
        self._clock = clock
        self._limits = limits
        self._prefixes_max = prefixes_max
        self._masters: tuple[MasterInfo, ...] | None = None
        """None: to be gathered anew."""
        self._held: HeldRequests[_Asked] = HeldRequests(self._answer, hold_s=HOLD_S)

    def set_limits(self, limits: RegistrationConfig) -> None:
        """Hold to other limits from now on."""
        self._limits = limits

    @property
    def waiting(self) -> int:
        """Receivers that would be told news at once."""
        return len(self._held)

    def register(self, connection: Connection, frame: Frame) -> None:
        """Answer a RECEIVER_REGISTER, or have it wait."""
        request = decode_receiver_register(frame.body)
        plan, refuse = partial(self._plan, connection, request), partial(_refuse, self._replies)
        is_news, waits = False, ""
        try:
            if plan():
                self._admission.let_receive(connection, request.name, request.patterns)
                is_news = True
        except (NotNowError, StateError) as error:
            waits = str(error)
        except RefusedError as error:
            refuse(connection, frame, error)
            return
        if not is_news:
            self._held.hold(connection, frame, _Asked(request, waits), bytes)
            return

        def answer() -> None:
            body = encode_receiver_reply(self._registered(_Asked(request)))
            connection.answer(frame, ResponseCode.SUCCESS, body)

        self._replies.later(
            *(connection, frame, (("group", request.name), NEW_GROUP, *keys_of(request.patterns))),
            plan=plan,
            answer=answer,
            refuse=partial(refuse, connection, frame),
        )

    def changed(self, changes: Sequence[Change]) -> None:
        """Tell what follows from changes that are stored."""
        if any(isinstance(change, SaveBrokerGroup | RemoveBrokerGroup) for change in changes):
            self.news()
        elif any(
            # Routes that are chosen, or go with a subject, come by the hundred.
            isinstance(change, SaveRoute | RemoveRoute) and not change.route.is_chosen
            for change in changes
        ):
            self._held.changed()

    def news(self) -> None:
        """Check who has to be told something."""
        self._masters = None
        self._held.changed()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._held.forget(connection)

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._held.run()

    def _plan(self, connection: Connection, request: ReceiverRegister) -> Sequence[Change]:
        registry, limits, now_ms = self._registry, self._limits, self._clock.now_ms()
        check_receiver(registry, request.name, request.patterns)
        changes: list[Change] = []
        if request.name not in registry.groups:
            if len(registry.groups) >= limits.groups_max:
                raise StateError(f"there are {limits.groups_max} groups, which is the limit")
            changes.append(SaveBrokerGroup(new_receivers(request.name, now_ms=now_ms, ext={})))
        changes += plan_routes(
            *(registry, request.name, request.patterns),
            actor=f"receiver at {connection.where}",
            by_node=True,
            subjects_max=limits.subjects_max,
            prefixes_max=self._prefixes_max,
            now_ms=now_ms,
        )
        return changes

    def _answer(self, asked: _Asked, is_over: bool) -> bytes | None:  # noqa: FBT001 (of HeldRequests)
        registered = self._registered(asked)
        if registered.version == asked.request.told and not is_over:
            return None
        return encode_receiver_reply(registered)

    def _registered(self, asked: _Asked) -> ReceiverRegistered:
        registry, request = self._registry, asked.request
        reasons = list(routed_elsewhere(registry, request.name, request.patterns))
        if request.name not in registry.groups or unrouted(registry, request.patterns):
            reasons.insert(0, asked.waits)
        waits = "; ".join(filter(None, reasons))[:REASON_LENGTH_MAX]
        if self._masters is None:
            self._masters = _masters_of(registry)
        said = msgspec.msgpack.encode((self._masters, waits))
        version = xxh3_64_intdigest(said) % COUNTED_MAX + 1
        return ReceiverRegistered(version=version, masters=self._masters, waits=waits)


def _masters_of(registry: Registry) -> tuple[MasterInfo, ...]:
    """Return where receivers attach.

    Also to a group that is away, or retired: it delivers what it has as soon as it is there.
    """
    found = [
        MasterInfo(group=group.name, address=group.master)
        for group in registry.groups.values()
        if group.kind is GroupKind.DELAY and group.master
    ]
    return tuple(found[:MASTERS_MAX])


def _refuse(replies: Replies, connection: Connection, frame: Frame, error: MetaServerError) -> None:
    """Say that it may not receive under this name; or, where that may change, to try again."""
    if isinstance(error, NotNowError | StateError) or not isinstance(error, RefusedError):
        replies.refuse(connection, frame, str(error))
        return
    connection.fault()
    replies.refusals.note(connection, frame.code, str(error))
    body = encode_receiver_reply(ReceiverRefused(reason=str(error)[:REASON_LENGTH_MAX]))
    connection.answer(frame, ResponseCode.SUCCESS, body)
