"""An HTTP client of a meta server in virtual time, and of its administration API."""

import random
from collections.abc import Mapping
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


class Http(Caller):
    """A caller, at one address, with its headers."""

    def __init__(
        self,
        server: MetaServer,
        *,
        peer: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(app_of(server), peer=peer, headers=headers)

    async def get(self, path: str, **query: object) -> Any:  # noqa: ANN401 (whatever it is)
        """Return the value of an answer that went well, below /api/v1."""
        answer = await self.ask("GET", f"/api/v1{path}", query=query)
        assert answer.code == 200, answer.body
        return answer.json

    async def change(
        self,
        method: str,
        path: str,
        body: object = None,
        **query: object,
    ) -> Any:  # noqa: ANN401 (whatever it is)
        """Return the value of a change that went well, below /api/v1."""
        answer = await self.ask(method, f"/api/v1{path}", body, query=query)
        assert answer.code in {200, 201}, answer.body
        return answer.json

    async def refused(
        self, method: str, path: str, body: object = None, **query: object
    ) -> tuple[int, dict[str, str]]:
        """Return code and error of a request that does not go well, below /api/v1."""
        answer = await self.ask(method, f"/api/v1{path}", body, query=query)
        assert answer.code >= 400, answer.body
        return answer.code, answer.error
