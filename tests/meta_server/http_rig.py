"""An HTTP client of a meta server in virtual time, and of its administration API."""

from collections.abc import Mapping
from typing import Any

from meta_server.admin.http import application
from meta_server.server import MetaServer
from tests.asgi import Caller


class Http(Caller):
    """A caller, at one address, with its headers."""

    def __init__(
        self,
        server: MetaServer,
        *,
        peer: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(application(server), peer=peer, headers=headers)

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
