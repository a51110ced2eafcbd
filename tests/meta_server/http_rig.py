"""An HTTP client of a meta server in virtual time: requests go straight to the ASGI application."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
import trio
from starlette.applications import Starlette

from meta_server.http import application
from meta_server.server import MetaServer

JSON = {"content-type": "application/json"}


class Answer(msgspec.Struct):
    """What came back."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 (whatever it is)
        """The value of the body."""
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, str]:
        """What is wrong, as the API says it."""
        found: dict[str, str] = self.json["error"]
        return found


class Http:
    """A caller, at one address, with its headers."""

    def __init__(
        self, server: MetaServer, *, peer: str = "127.0.0.1", headers: dict[str, str] | None = None
    ) -> None:
        self.app: Starlette = application(server)
        self.peer = peer
        self.headers = headers or {}

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        pieces: list[bytes] | None = None,
        stall_s: float = 0,
        query: Mapping[str, object] | None = None,
    ) -> Answer:
        """Return the answer to one request; `stall_s` is waited for before the body comes."""
        sent: list[Any] = []
        data = raw
        if body is not None:
            data = msgspec.json.encode(body)
        parts = list(pieces if pieces is not None else [data or b""])
        lines = {"host": "127.0.0.1:8080", **self.headers}
        if body is not None:
            lines |= JSON
        if pieces is None:
            lines["content-length"] = str(len(data or b""))
        lines |= headers or {}

        async def receive() -> dict[str, object]:
            await trio.sleep(stall_s)
            if not parts:
                await trio.sleep_forever()
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:  # noqa: ANN401 (whatever ASGI sends)
            await trio.lowlevel.checkpoint()
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(query or {}, doseq=True).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
            "root_path": "",
            "scheme": "http",
            "server": ("127.0.0.1", 8080),
            "client": (self.peer, 12345) if self.peer else None,
        }
        await self.app(scope, receive, send)
        return Answer(
            code=sent[0]["status"],
            headers={name.decode(): value.decode() for name, value in sent[0]["headers"]},
            body=b"".join(message.get("body", b"") for message in sent[1:]),
        )

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
