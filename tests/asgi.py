"""An HTTP client without sockets: requests go straight to an ASGI application, in virtual time."""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
import trio
from starlette.applications import Starlette

JSON = {"content-type": "application/json"}


class Answer(msgspec.Struct):
    """What came back."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The content type."""
        return self.headers.get("content-type", "")

    @property
    def json(self) -> Any:  # noqa: ANN401 (whatever it is)
        """The value of the body."""
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, str]:
        """What is wrong, as our servers say it."""
        assert self.kind == "application/problem+json"
        found: dict[str, str] = self.json
        return found | {"message": found["detail"]}


class Caller:
    """Somebody at one address who asks an application, always with the same headers."""

    def __init__(
        self,
        app: Starlette,
        *,
        peer: str = "127.0.0.1",
        server: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Ask from the address `peer` (empty: from none that is known) at the server's address."""
        self.app = app
        self.peer = peer
        self.server = server
        self.headers = dict(headers or {})

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        pieces: Sequence[bytes] | None = None,
        stall_s: float = 0,
        query: Mapping[str, object] | str = "",
        leaves_after_s: float = math.inf,
    ) -> Answer:
        """Return the answer to one request. `path` is not escaped, a `query` that is text is.

        Its body is `body` as JSON, and says so; or the bytes of `raw`; or those of `pieces`, one
        after another, without a length. Before any of it comes `stall_s` is waited.
        """
        lines = {"host": f"{self.server}:8080", **self.headers}
        if body is not None:
            raw = msgspec.json.encode(body)
            lines |= JSON
        if pieces is None:
            pieces = [raw or b""]
            lines["content-length"] = str(len(pieces[0]))
        lines |= headers or {}
        parts = list(pieces)
        asked = query if isinstance(query, str) else urlencode(query, doseq=True)
        sent: list[Any] = []

        async def receive() -> dict[str, object]:
            await trio.sleep(stall_s)
            if not parts:
                await trio.sleep(leaves_after_s)
                return {"type": "http.disconnect"}
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
            "query_string": asked.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
            "root_path": "",
            "scheme": "http",
            "server": (self.server, 8080),
            "client": (self.peer, 12345) if self.peer else None,
        }
        await self.app(scope, receive, send)
        return Answer(
            code=sent[0]["status"],
            headers={name.decode(): value.decode() for name, value in sent[0]["headers"]},
            body=b"".join(message.get("body", b"") for message in sent[1:]),
        )
