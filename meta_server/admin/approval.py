"""The rule of approval: a broker group that waits is let in."""

from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerState
from meta_server.admin import rules
from meta_server.admin.admin_types import Approval, NameKey
from meta_server.admin.parts import Parts, Planned
from meta_server.known.errors import NotFoundError, StateError
from meta_server.known.model import BrokerGroup, Save


def approve_group(parts: Parts, key: NameKey, known: BrokerGroup | None, body: Approval) -> Planned:
    """Let in a broker group that waits, or have one that is known count as entered."""
    name, admission = key.name, parts.handlers.admission
    waiting = admission.waiting.get(name)
    asking = known or (None if waiting is None else waiting.row)
    if not isinstance(asking, BrokerGroup):
        raise NotFoundError(f"no broker group {name!a} waits to be let in, and none is known")
    if body.address not in {None, asking.master}:
        here, wanted = (one or "no address" for one in (asking.master, body.address))
        raise StateError(f"{name} is at {here}, not at {wanted}")

    def stored() -> None:
        admission.forget(name)
        if known is None:
            # Its broker has one time-out to speak again.
            parts.heard.hear(name, parts.now)

    if known is not None:
        return rules.saved(parts, known, replace(known, is_entered=True))._replace(stored=stored)
    assert waiting is not None
    rules.check_group_count(parts, name)
    group = replace(
        asking,
        # Which of several delay servers of ours is the master their record will say.
        master="" if waiting.is_node else asking.master,
        state=BrokerState.NRW,
        is_entered=True,
        speaker=waiting.where,
        updated_ms=parts.now_ms,
    )
    return Planned([Save(group)], group, stored=stored)
