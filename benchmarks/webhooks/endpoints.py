"""Endpoints of webhooks: one that is well, and ten that are not.

`python -m benchmarks.webhooks.endpoints PORT …` serves the one that is well at the first port, and
those of ILLS at the next ones. Prints `ready`, and on SIGTERM one JSON line: what the well one got.
"""

import asyncio
import json
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np

from benchmarks.quantiles import quantiles

ILLS: Final = (
    *("slow", "endless", "reset", "broken", "gone"),
    *("busy", "redirect", "headers", "garbage", "silent"),
)
"""Faults of an endpoint; `Endpoints._answer` says what each does."""

SLOW_S: Final = 3.0
"""After so long the slow one answers."""


class Received(NamedTuple):
    """A request; names of headers are in lower case."""

    headers: Mapping[str, str]
    body: bytes
    at_ms: float

    @property
    def lateness_ms(self) -> float:
        """The time between when it was due and when it arrived."""
        due = datetime.fromisoformat(self.headers["delaywheel-due"])
        return self.at_ms - due.timestamp() * 1000


class Endpoints:
    """Servers of this machine."""

    def __init__(self) -> None:
        self.received: dict[str, list[Received]] = {}
        """Requests by what is wrong with the endpoint; `well`: nothing."""
        self.status = 200
        """The answer of the well one."""
        self.answer = b"ok"
        """The body of the well and of the broken one."""
        self._servers: list[asyncio.Server] = []
        self._talking: set[asyncio.Task[None]] = set()

    async def serve(self, ill: str, port: int = 0) -> str:
        """Serve one endpoint; return its URL."""
        found = self.received.setdefault(ill, [])

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._talking.add(task)
            try:
                while (request := await _request(reader, ill)) is not None:
                    found.append(request)
                    await self._answer(ill, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                self._talking.discard(task)
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", port)
        self._servers.append(server)
        scheme = "https" if ill == "garbage" else "http"
        return f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"

    async def close(self) -> None:
        """Listen no more, and end what is connected."""
        for server in self._servers:
            server.close()
        for task in self._talking:
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    async def _answer(self, ill: str, writer: asyncio.StreamWriter) -> None:
        if ill == "slow":
            await asyncio.sleep(SLOW_S)
        if ill == "silent":
            await asyncio.sleep(3600)
        if ill == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            raise ConnectionResetError
        writer.write(_ANSWERS.get(ill) or _answer_of(self.status, self.answer))
        while ill == "endless":
            writer.write(b"4000\r\n" + bytes(0x4000) + b"\r\n")
            await writer.drain()


async def _request(reader: asyncio.StreamReader, ill: str) -> Received | None:
    if ill == "garbage":
        return Received({}, await reader.read(4096), 0) if not reader.at_eof() else None
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    at_ms = time.time() * 1000
    lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:] if line)
    headers = {name.lower(): value for name, _, value in lines}
    body = await reader.readexactly(int(headers["content-length"]))
    return Received(headers, body, at_ms)


def _answer_of(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


_ANSWERS: Final = {
    "endless": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "broken": _answer_of(500, b"it broke"),
    "gone": _answer_of(410, b""),
    "busy": _answer_of(429, b"", "Retry-After: 1"),
    "redirect": _answer_of(302, b"", "Location: http://127.0.0.1:1/"),
    "headers": _answer_of(200, b"", f"X: {'x' * 1_000_000}"),
    "garbage": bytes(range(256)),
}


async def _serve(ports: list[int]) -> None:
    endpoints, stopped = Endpoints(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    for ill, port in zip(("well", *ILLS), ports, strict=False):
        await endpoints.serve(ill, port)
    print("ready", flush=True)
    await stopped.wait()
    got = endpoints.received["well"]
    late = [one.lateness_ms for one in got]
    told = {
        "received": len(got),
        "distinct": len({one.headers["webhook-id"] for one in got}),
        "early": sum(one < 0 for one in late),
        "seconds": (max(one.at_ms for one in got) - min(one.at_ms for one in got)) / 1000,
        "lateness_ms": quantiles(np.array(late, np.int64)),
        "others": {ill: len(some) for ill, some in endpoints.received.items() if ill != "well"},
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve([int(port) for port in sys.argv[1:]]))
