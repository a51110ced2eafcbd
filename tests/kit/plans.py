"""Plans of an operator, by the names that the API has for kinds, actions and fields."""

from collections.abc import Mapping

from delay_transport.http.operations import Precondition, Request
from meta_server.admin.administration import carry_out
from meta_server.admin.kinds import KINDS, REMOVE, SET, Action, ResourceKind
from meta_server.admin.parts import Plan
from meta_server.admin.verbs import ANY, Change
from meta_server.server import MetaServer


def put(kind: str, *key: str, is_new: bool = False, **fields: object) -> Plan:
    """Return what adds or replaces a row; `is_new`: it must not be there."""
    precondition = Precondition(is_new=True) if is_new else ANY
    return _change(kind, SET, key, fields)._replace(precondition=precondition).plan


def removal(kind: str, *key: str) -> Plan:
    """Return what removes a row."""
    return action(kind, REMOVE, *key)


def action(kind: str, name: str, *key: str, **fields: object) -> Plan:
    """Return what carries out an action on a row."""
    return _change(kind, name, key, fields).plan


def _change(kind: str, name: str, key: tuple[str, ...], fields: Mapping[str, object]) -> Change:
    found, asked = action_named(kind, name)
    return Change(found, asked, _key(found.key, key), asked.wanted(**fields))


def action_named(kind: str, name: str) -> tuple[ResourceKind, Action]:
    """Return a kind and its action by their names."""
    found = next(one for one in KINDS if one.name == kind)
    return found, next(one for one in found.actions if one.name == name)


async def act(server: MetaServer, kind: str, name: str, *key: str, **fields: object) -> None:
    """Carry out an action, as the operator `operator`; raises why it is refused."""
    change = action(kind, name, *key, **fields)
    await carry_out(server.parts.asked_by("operator"), change)


def _key(kind: type[Request], values: tuple[str, ...]) -> Request:
    return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))
