"""RECEIVER_REGISTER: a receiver learns where to attach, and gets its subscription where it may.

Each request is answered when what there is to say is other than what its connection was told, or
after a while. What cannot be done for a receiver, or not yet, is said in `waits`; it is told of the
masters all the same, and gets messages once an operator lets it.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
from xxhash import xxh3_64_intdigest

from delay_protocol.nodes.registration import COUNTED_MAX, REASON_LENGTH_MAX
from delay_protocol.receivers import masters
from delay_protocol.receivers.masters import (
    ReceiverRefused,
    ReceiverRegister,
    ReceiverRegistered,
    Retries,
)
from meta_server.groups.receiver_groups import RECEIVERS, Room, hindrance, lacks, plan_receiver
from meta_server.known import model
from meta_server.known.errors import MetaServerError, NotNowError, RefusedError, StateError
from meta_server.known.model import Change, GroupKind
from meta_server.known.registry import Registry
from meta_server.wire.admission import GroupAdmission
from meta_server.wire.dispatch import Context, Decision, Family, Request, is_final


class Receivers(Family[ReceiverRegister]):
    """Answers receivers, and tells them of other masters."""

    decode = staticmethod(masters.decode_receiver_register)

    def __init__(self, context: Context, admission: GroupAdmission) -> None:
        super().__init__(context)
        self._admission = admission
        limits = context.config.registration
        self._room = Room(limits.groups_max, context.config.admin.prefix_routes_max)
        self.loaded_anew()

    def observe(self, request: Request[ReceiverRegister]) -> None:
        """Note under which name it receives; raise RefusedError if it may not.

        A client that only asks for the masters has no name.
        """
        name = request.body.name
        if not name:
            return
        reason, is_for_good = self.context.credentials.why_not_receive(name, request.body.token)
        if reason:
            raise RefusedError(reason) if is_for_good else NotNowError(reason)
        request.session.receiver = name

    def decide(self, request: Request[ReceiverRegister], _: object) -> Decision:
        """Return what the subscription of a receiver's name gains."""
        body, now_ms = request.body, self.context.clock.now_ms()
        if not body.name:
            return self._waits(body, "")
        try:
            row = plan_receiver(
                self.context.registry, body.name, body.patterns, self._room, now_ms=now_ms
            )
        except StateError as error:
            return self._waits(body, str(error))
        if row is None:
            return self._waits(body, "")
        actor = f"receiver at {request.session.connection.where}"
        known = self.context.registry.receivers.get(body.name)
        entry = model.audited("receiver.register", body.name, known, row, actor=actor, at_ms=now_ms)
        keys = (("group", body.name), RECEIVERS)
        hold = partial(self._news, body, "")
        return Decision(changes=(model.Save(row), entry), keys=keys, hold=hold)

    def admit(self, request: Request[ReceiverRegister], decision: Decision) -> Decision:
        """Let a receiver wait for an operator, or until not too many are new at a time."""
        body, connection = request.body, request.session.connection
        for row in model.saved(decision.changes, model.Receiver):
            try:
                self._admission.let_receive(connection, row)
            except NotNowError as error:
                return self._waits(body, str(error))
        return decision

    def refused(self, _: Request[ReceiverRegister], error: MetaServerError) -> bytes | None:
        """Return why it may not have its name, unless it may later."""
        if not is_final(error):
            return None
        return masters.encode_receiver_reply(ReceiverRefused(reason=str(error)[:REASON_LENGTH_MAX]))

    def changed(self, changes: Sequence[Change]) -> None:
        """Tell what follows from changes that are stored."""
        for change in changes:
            # Routes that were chosen come, and go with their subjects, by the hundred.
            row = change.row if isinstance(change, model.Save | model.Remove) else None
            is_set = isinstance(row, model.Route) and not row.is_chosen
            if is_set or isinstance(row, model.BrokerGroup | model.Receiver):
                self.loaded_anew()
                self.context.held.changed()
                return

    def loaded_anew(self) -> None:
        """Find the masters that receivers are told of."""
        self._masters = _masters_of(self.context.registry)

    def _waits(self, request: ReceiverRegister, waits: str) -> Decision:
        """Return that a receiver is answered when there is news, with why something is not done."""
        return Decision(hold=partial(self._news, request, waits))

    def _news(self, request: ReceiverRegister, waits: str, is_over: bool) -> bytes | None:  # noqa: FBT001 (a Hold)
        registry, name = self.context.registry, request.name
        lacking = lacks(registry, name, request.patterns)
        reasons = [why for one in lacking if (why := hindrance(registry, name, one))]
        if waits and (name not in registry.receivers or len(lacking) > len(reasons)):
            reasons.insert(0, waits)
        said, retries = "; ".join(reasons)[:REASON_LENGTH_MAX], Retries()
        if row := registry.receivers.get(name):
            retries = msgspec.convert(row, Retries, from_attributes=True)
        digest = xxh3_64_intdigest(msgspec.msgpack.encode((self._masters, said, retries)))
        version = digest % COUNTED_MAX + 1
        if version == request.told and not is_over:
            return None
        return masters.encode_receiver_reply(
            ReceiverRegistered(version=version, masters=self._masters, waits=said, retries=retries)
        )


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
