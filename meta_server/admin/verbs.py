"""Lists and shows rows of any kind, and carries out actions on them."""

from typing import Any, Final, NamedTuple

import msgspec

from delay_transport.http.operations import Call, Precondition, Request
from delay_transport.http.pages import Page, page_of
from meta_server.admin.admin_types import Done
from meta_server.admin.administration import carry_out, clean_routes
from meta_server.admin.kinds import BROKER_GROUPS, SET, Action, ResourceKind
from meta_server.admin.parts import Parts, Planned
from meta_server.known.errors import RefusedError
from meta_server.known.model import Audit

ANY: Final = Precondition()
"""Any version will do."""

_ABSENT: Final = "0"
"""The version of a row that is not there, where something is shown all the same."""


class VersionError(RefusedError):
    """The row has another version than the request expects."""


Asked = Call[Parts, Any, Any, Any]


async def list_rows(kind: ResourceKind, call: Asked) -> Page[Any]:
    """Return a page of the rows of a kind that pass the filters."""
    parts, query = call.context, call.query

    def is_wanted(row: Any) -> bool:  # noqa: ANN401 (of any kind)
        return "/".join(kind.key_of(row)).startswith(query.prefix) and kind.wanted(row, query)

    return await page_of(
        kind.rows(parts.registry),
        kind.key_of,
        query,
        show=lambda row: kind.show(parts, row),
        wanted=is_wanted,
        key_type=tuple[str] if len(kind.key.__struct_fields__) == 1 else tuple[str, str],
    )


async def show_row(kind: ResourceKind, call: Asked) -> msgspec.Struct:
    """Return the row of a key."""
    return kind.one(call.context, call.path)


async def act(kind: ResourceKind, action: Action, call: Asked) -> msgspec.Struct:
    """Carry out an action; return the row as it is then, unless there is none any more."""
    parts, key = call.context, call.path
    wanted = call.query if call.body is None else call.body
    change = Change(kind, action, key, wanted, call.precondition)
    await carry_out(parts.asked_by(call.caller.name), change.plan)
    if not action.is_last:
        return kind.one(parts, key)
    if kind is BROKER_GROUPS:
        await clean_routes(parts)
    return Done()


class Change(NamedTuple):
    """An action on a row, as it is asked for."""

    kind: ResourceKind
    action: Action
    key: Request
    wanted: msgspec.Struct
    precondition: Precondition = ANY

    def plan(self, parts: Parts) -> Planned:
        """Return what carries it out, with its entry in the audit; nothing if nothing changes.

        Raises VersionError unless the row has the version that is expected.
        """
        kind, action, key = self.kind, self.action, self.key
        known = (kind.found if action.needs_row else kind.find)(parts.registry, key)
        expected = self.precondition
        if expected.version == _ABSENT:
            expected = Precondition(is_new=True)
        if fault := expected.fault(None if known is None else known.etag):
            raise VersionError(f"the {kind.what} {kind.target(key)}: {fault}")
        planned = action.rule(parts, key, known, self.wanted)
        if not planned.changes or any(isinstance(change, Audit) for change in planned.changes):
            return planned
        name = action.name
        if name == SET:
            name = "add" if known is None else "change"
        before = known if planned.before is None else planned.before
        entry = parts.entry(f"{kind.name}.{name}", kind.target(key), before, planned.after)
        return planned._replace(changes=(*planned.changes, entry))
