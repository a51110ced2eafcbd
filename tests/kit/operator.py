"""An operator of a meta server: a function for each operation of its administration.

Tests speak to the administration through these alone, so that they stay when it changes.
"""

import random
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette

from meta_server.admin.entrance import Entrance
from meta_server.admin.http import application
from meta_server.admin.parts import Observed
from meta_server.server import MetaServer
from meta_server.settings.config import AdminConfig
from tests.asgi import Caller
from tests.meta_server.meta_rig import PROMPT
from tests.simulation.executor import SimExecutor


def app_of(server: MetaServer) -> Starlette:
    """Return the application of a server."""
    return application(server.entrance, server.observe)


def starting_app() -> Starlette:
    """Return the application of a server that has not loaded its store: it needs no server."""
    executor = SimExecutor(random.Random(1), plan=PROMPT)
    starting = Observed(now_ms=7, started_ms=5, is_stopping=False, listener=None, parts=None)
    return application(Entrance(AdminConfig(), executor, own_address=""), lambda: starting)


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

    async def operate(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | str = ""
    ) -> Shown:
        """Return what is shown of an operation of any name."""
        answer = await self.ask(method, f"/api/v1{path}", body, query=query)
        if answer.code not in {200, 201}:
            raise OperationRefusedError(answer.code, answer.error)
        return answer.json

    # Broker groups

    async def groups(self, **query: object) -> Shown:
        return await self.operate("GET", "/broker-groups", query=query)

    async def group(self, name: str) -> Shown:
        return await self.operate("GET", f"/broker-groups/{name}")

    async def add_group(self, name: object, **fields: object) -> Shown:
        return await self.operate("POST", "/broker-groups", {"name": name, **fields})

    async def change_group(self, name: str, **fields: object) -> Shown:
        return await self.operate("PATCH", f"/broker-groups/{name}", fields)

    async def approve_group(self, name: str, **fields: object) -> Shown:
        return await self.operate("POST", f"/broker-groups/{name}/approve", fields)

    async def remove_group(self, name: str, **query: object) -> Shown:
        return await self.operate("DELETE", f"/broker-groups/{name}", query=query)

    async def retire_group(self, name: str, **fields: object) -> Shown:
        return await self.operate("POST", f"/broker-groups/{name}/retire", fields)

    async def restore_group(self, name: str, **fields: object) -> Shown:
        return await self.operate("POST", f"/broker-groups/{name}/restore", fields)

    async def set_read_only(self, name: str, read_only: bool) -> Shown:
        body = {"read_only": read_only}
        return await self.operate("PUT", f"/broker-groups/{name}/read-only", body)

    # Brokers

    async def brokers(self, **query: object) -> Shown:
        return await self.operate("GET", "/brokers", query=query)

    async def add_broker(self, **fields: object) -> Shown:
        return await self.operate("POST", "/brokers", fields)

    async def replace_broker(self, group: str, role: str, **fields: object) -> Shown:
        return await self.operate("PUT", f"/brokers/{group}/{role}", fields)

    async def remove_broker(self, group: str, role: str, **query: object) -> Shown:
        return await self.operate("DELETE", f"/brokers/{group}/{role}", query=query)

    # Routes and subjects

    async def routes(self, **query: object) -> Shown:
        return await self.operate("GET", "/routes", query=query)

    async def route(self, subject: str) -> Shown:
        return await self.operate("GET", f"/routes/{subject}")

    async def set_route(self, subject: str, groups: Sequence[object], **fields: object) -> Shown:
        return await self.operate("PUT", f"/routes/{subject}", {"groups": groups, **fields})

    async def remove_route(self, subject: str, **query: object) -> Shown:
        return await self.operate("DELETE", f"/routes/{subject}", query=query)

    async def prefix(self, prefix: str) -> Shown:
        return await self.operate("GET", f"/prefix-routes/{prefix}")

    async def set_prefix(self, prefix: str, groups: Sequence[object], **fields: object) -> Shown:
        return await self.operate("PUT", f"/prefix-routes/{prefix}", {"groups": groups, **fields})

    async def remove_prefix(self, prefix: str, **query: object) -> Shown:
        return await self.operate("DELETE", f"/prefix-routes/{prefix}", query=query)

    async def extend_routes(self, group: str, new_group: str, **fields: object) -> Shown:
        body = {"group": group, "new_group": new_group, **fields}
        return await self.operate("POST", "/route-extension", body)

    async def reduce_routes(self, group: str, **fields: object) -> Shown:
        return await self.operate("POST", "/route-reduction", {"group": group, **fields})

    async def route_summary(self) -> Shown:
        return await self.operate("GET", "/route-summary")

    async def subjects(self, **query: object) -> Shown:
        return await self.operate("GET", "/subjects", query=query)

    async def subject(self, subject: str) -> Shown:
        return await self.operate("GET", f"/subjects/{subject}")

    async def tag_subject(self, subject: str, tag: str, **fields: object) -> Shown:
        return await self.operate("PUT", f"/subjects/{subject}", {"tag": tag, **fields})

    async def remove_subject(self, subject: str, **query: object) -> Shown:
        return await self.operate("DELETE", f"/subjects/{subject}", query=query)

    # Delay servers

    async def delay_group(self, name: str) -> Shown:
        return await self.operate("GET", f"/delay-groups/{name}")

    async def remove_node(self, group: str, node: str) -> Shown:
        return await self.operate("DELETE", f"/delay-groups/{group}/nodes/{node}")

    async def give_up_node(self, group: str, node: str, **fields: object) -> Shown:
        return await self.operate("POST", f"/delay-groups/{group}/nodes/{node}/give-up", fields)

    async def accept_older(self, group: str, node: str, **fields: object) -> Shown:
        path = f"/delay-groups/{group}/nodes/{node}/accept-older"
        return await self.operate("POST", path, fields)

    async def elect(self, group: str) -> Shown:
        return await self.operate("POST", f"/delay-groups/{group}/elect", {})

    async def hand_over(self, group: str, **fields: object) -> Shown:
        return await self.operate("POST", f"/delay-groups/{group}/handover", fields)

    async def set_min_isr(self, group: str, min_isr: int) -> Shown:
        return await self.operate("POST", f"/delay-groups/{group}/min-isr", {"min_isr": min_isr})

    async def recover(self, group: str, **fields: object) -> Shown:
        return await self.operate("POST", f"/delay-groups/{group}/recover", fields)

    # Controls, and what is shown of everything

    async def clusters(self) -> Shown:
        return await self.operate("GET", "/controls")

    async def controls(self, cluster: str) -> Shown:
        return await self.operate("GET", f"/controls/{cluster}")

    async def change_rule(self, cluster: str, kind: str, **fields: object) -> Shown:
        """Change the rule of one of the "subjects" or "groups"."""
        return await self.operate("PATCH", f"/controls/{cluster}/{kind}", fields)

    async def remove_rule(self, cluster: str, kind: str, **query: object) -> Shown:
        return await self.operate("DELETE", f"/controls/{cluster}/{kind}", query=query)

    async def audit(self, **query: object) -> Shown:
        return await self.operate("GET", "/audit", query=query)

    async def topology(self) -> Shown:
        return await self.operate("GET", "/topology")
