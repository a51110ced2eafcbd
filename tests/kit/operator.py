"""An operator of a meta server: a function for each operation of its administration.

Tests speak to the administration through these alone, so that they stay when it changes.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from starlette.applications import Starlette

from delay_protocol.meta.requests import BrokerState
from delay_transport.http.access import HttpAccess
from delay_transport.http.tokens import Tokens
from meta_server.admin.administration import carry_out
from meta_server.admin.http import application
from meta_server.admin.parts import Observed, Parts, Planned
from meta_server.admin.rules import extended
from meta_server.known.errors import BadValueError
from meta_server.known.model import Save
from meta_server.server import MetaServer
from tests.asgi import Caller
from tests.kit.plans import action_named


def app_of(server: MetaServer) -> Starlette:
    """Return the application of a server."""
    return application(server.http_access, server.observe)


def starting_app() -> Starlette:
    """Return the application of a server that has not loaded its store: it needs no server."""
    starting = Observed(now_ms=7, started_ms=5, is_stopping=False, listener=None, parts=None)
    return application(HttpAccess(Tokens(None), own_address=""), lambda: starting)


class OperationRefusedError(Exception):
    """An operation that did not go well: its code, and what is wrong."""

    def __init__(self, code: int, error: dict[str, str]) -> None:
        field = error.get("field", "")
        super().__init__(f"{code} {field}{': ' if field else ''}{error['message']}")
        self.code = code
        self.error = error


async def refusal_of(operation: Awaitable[object]) -> tuple[int, dict[str, str]]:
    """Return code and error of an operation that does not go well."""
    try:
        shown = await operation
    except OperationRefusedError as error:
        return error.code, error.error
    raise AssertionError(shown)


Shown = Any
"""The value of an answer."""


class Operator(Caller):
    """Asks a meta server in virtual time, at one address, with its headers.

    Fields and filters that a function does not name are handed on. OperationRefusedError for what
    does not go well.
    """

    def __init__(
        self,
        server: MetaServer,
        *,
        peer: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(app_of(server), peer=peer, headers=headers)
        self.meta_server = server

    async def operate(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Shown:
        """Return what is shown of an operation of any name."""
        answer = await self.ask(method, f"/api/v1{path}", body, query=query, headers=headers)
        if answer.code != 200:
            raise OperationRefusedError(answer.code, answer.error)
        return answer.json

    # Every kind

    async def rows(self, kind: str, /, **query: object) -> Shown:
        return await self.operate("GET", f"/{kind}", query=query)

    async def row(self, kind: str, /, *key: str) -> Shown:
        return await self.operate("GET", "/".join(("", kind, *key)))

    async def put(self, kind: str, /, *key: str, version: object = None, **fields: object) -> Shown:
        path, headers = "/".join(("", kind, *key)), expecting(version)
        return await self.operate("PUT", path, fields, headers=headers)

    async def add(self, kind: str, /, *key: str, **fields: object) -> Shown:
        """Add a row that is not there yet."""
        headers = {"if-none-match": "*"}
        return await self.operate("PUT", "/".join(("", kind, *key)), fields, headers=headers)

    async def change(
        self, kind: str, /, *key: str, version: object = None, **fields: object
    ) -> Shown:
        """Change some fields of a row, as the command does."""
        shown, (_, action) = await self.row(kind, *key), action_named(kind, "set")
        kept = {name: shown[name] for name in action.wanted.__struct_fields__}
        return await self.put(kind, *key, version=version, **(kept | fields))

    async def remove(
        self, kind: str, /, *key: str, version: object = None, **query: object
    ) -> Shown:
        path, headers = "/".join(("", kind, *key)), expecting(version)
        return await self.operate("DELETE", path, query=query, headers=headers)

    async def act(
        self, kind: str, /, *key: str, action: str, version: object = None, **fields: object
    ) -> Shown:
        path, headers = "/".join(("", kind, *key, action)), expecting(version)
        return await self.operate("POST", path, fields, headers=headers)

    # Broker groups

    async def groups(self, **query: object) -> Shown:
        return await self.rows("broker-group", **query)

    async def group(self, name: str) -> Shown:
        return await self.row("broker-group", name)

    async def add_group(self, name: str, **fields: object) -> Shown:
        """Add a group; a "tag", which a recorded day has, is not kept."""
        fields.pop("tag", None)
        return await self.add("broker-group", name, **fields)

    async def change_group(self, name: str, **fields: object) -> Shown:
        """Change a group; "ext" and "tag" are not kept, a "state" is stored as a static one's."""
        for name_of_old in ("ext", "tag"):
            fields.pop(name_of_old, None)
        state = fields.pop("state", None)
        shown = await self.change("broker-group", name, **fields)
        if state is None:
            return shown
        if not shown["static"]:
            raise OperationRefusedError(409, {"message": f"{name} is not static"})

        def give_state(parts: Parts) -> Planned:
            known = parts.registry.groups[name]
            given = replace(known, state=BrokerState[str(state)], version=known.version + 1)
            return Planned([Save(given), parts.entry("broker-group.change", name, known, given)])

        await carry_out(self.meta_server.parts.asked_by("loopback"), give_state)
        return await self.group(name)

    async def approve_group(self, name: str, **fields: object) -> Shown:
        return await self.act("broker-group", name, action="approve", **fields)

    async def remove_group(self, name: str, **query: object) -> Shown:
        return await self.remove("broker-group", name, **query)

    async def retire_group(self, name: str, **fields: object) -> Shown:
        return await self.act("broker-group", name, action="retire", **fields)

    async def restore_group(self, name: str, **fields: object) -> Shown:
        return await self.act("broker-group", name, action="restore", **fields)

    async def set_read_only(self, name: str, read_only: bool) -> Shown:
        return await self.act("broker-group", name, action="read-only", read_only=read_only)

    # Brokers

    async def brokers(self, **query: object) -> Shown:
        return await self.rows("broker", **query)

    async def add_broker(self, **fields: object) -> Shown:
        group, role = (str(fields.pop(name)) for name in ("group", "role"))
        return await self.add("broker", group, role, **fields)

    async def replace_broker(self, group: str, role: str, **fields: object) -> Shown:
        return await self.put("broker", group, role, **fields)

    async def remove_broker(self, group: str, role: str, **query: object) -> Shown:
        return await self.remove("broker", group, role, **query)

    # Routes and subjects

    async def routes(self, **query: object) -> Shown:
        return await self.rows("route", **query)

    async def route(self, subject: str) -> Shown:
        return await self.row("route", subject)

    async def set_route(self, subject: str, groups: Sequence[object], **fields: object) -> Shown:
        return await self.put("route", subject, groups=groups, **fields)

    async def remove_route(self, subject: str, **query: object) -> Shown:
        return await self.remove("route", subject, **query)

    async def prefix(self, prefix: str) -> Shown:
        return await self.row("route", f"{prefix}*")

    async def set_prefix(self, prefix: str, groups: Sequence[object], **fields: object) -> Shown:
        return await self.set_route(f"{prefix}*", groups, **fields)

    async def remove_prefix(self, prefix: str, **query: object) -> Shown:
        return await self.remove_route(f"{prefix}*", **query)

    async def extend_routes(self, group: str, new_group: str, subject: str = "*") -> Shown:
        """Add a group to all routes that have another one; or, as no request does, to one."""
        if subject == "*":
            body = {"new_group": new_group}
            return await self.operate("POST", f"/broker-group/{group}/extend", body)
        if subject not in self.meta_server.registry.routes:
            raise OperationRefusedError(404, {"message": f"{subject} has no route of its own"})

        def extend(parts: Parts) -> Planned:
            groups = parts.registry.routes[subject].groups
            wanted = [subject] if group in groups and new_group not in groups else []
            return extended(parts, wanted, new_group)

        try:
            return await carry_out(self.meta_server.parts.asked_by("loopback"), extend)
        except BadValueError as error:
            raise OperationRefusedError(400, {"message": str(error)}) from error

    async def reduce_routes(self, group: str, subject: str = "*") -> None:
        """Take a group out of the routes that have others beside it, many in each commit."""
        registry = self.meta_server.registry
        if subject != "*" and subject not in registry.routes:
            raise OperationRefusedError(404, {"message": f"{subject} has no route of its own"})

        def leave(parts: Parts) -> Planned:
            found = [
                (known, tuple(one for one in known.groups if one != group)) for known in routes
            ]
            changed = [
                replace(known, groups=groups, is_chosen=False, version=known.version + 1)
                for known, groups in found
                if groups and groups != known.groups
            ]
            return Planned([*map(Save, changed), parts.entry("route.reduce", group, None, None)])

        routes = [registry.routes[subject]] if subject != "*" else list(registry.routes.values())
        await carry_out(self.meta_server.parts.asked_by("loopback"), leave)

    async def subjects(self, **query: object) -> Shown:
        return await self.rows("subject", **query)

    async def subject(self, subject: str) -> Shown:
        return await self.row("subject", subject)

    async def add_subject(self, subject: str, **fields: object) -> Shown:
        return await self.put("subject", subject, **fields)

    async def tag_subject(self, subject: str, _tag: str) -> Shown:
        """Add a subject, as a recorded day had it that gave it a tag."""
        return await self.add_subject(subject)

    async def remove_subject(self, subject: str, **query: object) -> Shown:
        return await self.remove("subject", subject, **query)

    # Delay servers

    async def delay_group(self, name: str) -> Shown:
        return await self.row("delay-group", name)

    async def remove_node(self, group: str, node: str) -> Shown:
        """Remove a node; return its group."""
        await self.remove("delay-node", group, node)
        return await self.delay_group(group)

    async def give_up_node(self, group: str, node: str, **fields: object) -> Shown:
        """Give up a node; return its group."""
        await self.act("delay-node", group, node, action="give-up", **fields)
        return await self.delay_group(group)

    async def accept_older(self, group: str, node: str, **fields: object) -> Shown:
        return await self.act("delay-node", group, node, action="approve", **fields)

    async def elect(self, group: str) -> Shown:
        return await self.act("delay-group", group, action="elect")

    async def hand_over(self, group: str, **fields: object) -> Shown:
        return await self.act("delay-group", group, action="handover", **fields)

    async def set_min_isr(self, group: str, min_isr: int) -> Shown:
        return await self.act("delay-group", group, action="min-isr", min_isr=min_isr)

    async def recover(self, group: str, **fields: object) -> Shown:
        return await self.act("delay-group", group, action="recover", **fields)

    # Rules of clusters, and what is shown of everything

    async def clusters(self) -> Shown:
        return await self.rows("cluster")

    async def controls(self, cluster: str) -> Shown:
        """Return a cluster with its rules: of "subjects" and of "groups", by name."""
        shown = await self.row("cluster", cluster)
        for kind, name, several in _RULES:
            found = (await self.rows(kind, prefix=f"{cluster}/"))["items"]
            shown[several] = {
                row[name]: {
                    field: value
                    for field, value in row.items()
                    if field not in {"cluster", "version", name}
                }
                for row in found
            }
        return shown

    async def change_rule(
        self, cluster: str, several: str, *, version: object = None, **fields: object
    ) -> Shown:
        """Change the rule of one of the "subjects" or "groups"; return the cluster."""
        kind, name, _ = next(one for one in _RULES if one[2] == several)
        await self.change(kind, cluster, str(fields.pop(name)), version=version, **fields)
        return await self.controls(cluster)

    async def remove_rule(self, cluster: str, several: str, **query: object) -> Shown:
        kind, name, _ = next(one for one in _RULES if one[2] == several)
        await self.remove(kind, cluster, str(query.pop(name)), **query)
        return await self.controls(cluster)

    async def audit(self, **query: object) -> Shown:
        return await self.operate("GET", "/audit", query=query)

    async def topology(self) -> Shown:
        return await self.operate("GET", "/topology")


def expecting(version: object) -> dict[str, str]:
    """Return the header for a version that a row must have; None: for any."""
    return {} if version is None else {"if-match": f'"{version}"'}


_RULES = (("subject-rule", "subject", "subjects"), ("group-rule", "group", "groups"))
