"""Requests to a gateway: `python -m benchmarks.webhooks.posting HOST:PORT REQUESTS SIZE`.

SIZE is 1 for single messages, or how many each list has. Prints `ready`, and messages a second.
"""

import asyncio
import json
import sys
import time
from typing import Final

import uvloop

_CONNECTIONS: Final = 32
_BODY: Final = "x" * 100


def _request_of(size: int) -> bytes:
    if size == 1:
        path, media = "/v1/messages/bench.single", "text/plain\r\nDelaywheel-Delay: 1h"
        body = _BODY.encode()
    else:
        one = {"subject": "bench.list", "body": _BODY, "delay": "1h"}
        path, media = "/v1/messages", "application/json"
        body = json.dumps([one] * size).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _send(host: str, port: int, request: bytes, times: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(times):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 202"):
            raise SystemExit(head.decode())
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await reader.readexactly(length)
    writer.close()


async def _main(address: str, requests: int, size: int) -> None:
    host, _, port = address.rpartition(":")
    request = _request_of(size)
    print("ready", flush=True)
    began = time.perf_counter()
    each = requests // _CONNECTIONS
    await asyncio.gather(*(_send(host, int(port), request, each) for _ in range(_CONNECTIONS)))
    print(each * _CONNECTIONS * size / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
