"""Dead letters in a world of one server, and an operator who asks for them over HTTP."""

import math
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from delay_protocol.basics.codes import ItemCode
from delay_server.admin.http import application
from delay_server.server import DelayServer
from delay_server.settings.config import AdminConfig
from delay_transport.http.tokens import Role, Token, digest_of, encode_tokens
from tests import asgi
from tests.delay_server.server_rig import World, make_item, until


class Caller:
    """A caller of the node's port, with its headers."""

    def __init__(self, app: Starlette, *, peer: str = "127.0.0.1", **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = {"host": "127.0.0.1:20811", **asgi.JSON, **given}
        self._caller = asgi.Caller(app, peer=peer, headers=lines)

    async def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        leaves_after_s: float = math.inf,
    ) -> tuple[int, Any]:
        path, _, query = target.partition("?")
        answer = await self._caller.ask(
            method, path, body, raw=raw, query=query, leaves_after_s=leaves_after_s
        )
        return answer.code, answer.json if answer.kind.endswith("json") else answer.body


def refuse_all(world: World) -> None:
    """Have the broker refuse everything for good."""
    world.broker.fails = lambda _: ItemCode.SUBJECT_NOT_ASSIGNED


def take_all(world: World) -> None:
    """Have the broker take everything again."""
    world.broker.fails = lambda _: 0


def fill_disk(world: World) -> None:
    """Leave less disk than the floor, and enough for what was accepted."""
    world.disk.capacity_bytes = sum(map(len, world.disk.contents().values())) + 500_000


async def send(world: World, *names: str, subject: str = "s") -> None:
    """Send messages that are due now."""
    await world.keep(*(make_item(name, world.now_ms, subject=subject) for name in names))


async def bury(world: World, server: DelayServer, *names: str) -> Caller:
    """Have messages become dead letters, and be taken from then on; return an operator."""
    refuse_all(world)
    await send(world, *names)
    await until(lambda: server.master.dead_letters.pending == len(names))
    take_all(world)
    return Caller(application(server.administered()))


async def explained(operator: Caller, query: str) -> list[dict[str, Any]]:
    """Return what is said of a message."""
    code, answer = await operator.ask("GET", f"/find?{query}")
    assert code == 200
    found: list[dict[str, Any]] = answer["messages"]
    return found


def tokens(path: Path) -> AdminConfig:
    """Return the settings of a node with a reader's token, r, and an administrator's, a."""
    roles = {"rita": Role.READ, "adam": Role.ADMIN}
    path.write_bytes(
        encode_tokens(
            [Token(name=name, role=role, sha256=digest_of(name[0])) for name, role in roles.items()]
        )
    )
    path.chmod(0o600)
    return AdminConfig(token_file=str(path))
