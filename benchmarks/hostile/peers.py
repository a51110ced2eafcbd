"""Peers that nobody wants: `python -m benchmarks.hostile.peers HOST PORT KIND N FROM`.

idle        N connections that never say anything, made anew when they are closed
slow        N connections that send a byte of a long frame every 50 ms
stuck       N connections that begin a frame of 8 MiB, send half of it and stop
garbage     N connections at a time that send random bytes until they are closed
truncated   N connections at a time that send half a good request and vanish, half of them by reset
endless     N connections that send whole frames without pause whose bodies are no items
unknown     N connections that send requests of a code that nobody takes, without pause
deaf        N connections that send good questions without pause and never read an answer
invalid     N connections that send items with wrong CRCs without pause
many        N connections at a time that connect and close at once
mixed       N connections of all these kinds, by the shares of MIX

They connect from the addresses FROM in turn, any of 127.0.0.0/8 with commas between. Runs until its
standard input is closed; prints "ready" when it has begun and its counts at the end.
"""

import json
import random
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from benchmarks.load import build_load
from delay_protocol.wire.frames import encode_request

_DEAF_PAUSE_S = 0.005
_AGAIN_S = 0.05
"""Pause before a connection that the server closed is made anew."""

Peer = Callable[[trio.SocketStream, random.Random], Awaitable[None]]


async def _idle(stream: trio.SocketStream, _chance: random.Random) -> None:
    await stream.receive_some(1)


async def _slow(stream: trio.SocketStream, chance: random.Random) -> None:
    frame = encode_request(code=10, opaque=1, body=chance.randbytes(100_000))
    for place in range(len(frame)):
        await stream.send_all(frame[place : place + 1])
        await trio.sleep(0.05)


async def _stuck(stream: trio.SocketStream, _chance: random.Random) -> None:
    frame = encode_request(code=10, opaque=1, body=bytes(8 << 20))
    await stream.send_all(frame[: 4 << 20])
    await stream.receive_some(1)


async def _garbage(stream: trio.SocketStream, chance: random.Random) -> None:
    while True:
        await stream.send_all(chance.randbytes(1000))


async def _truncated(stream: trio.SocketStream, chance: random.Random) -> None:
    await stream.send_all(_GOOD[: len(_GOOD) // 2])
    if chance.random() < 0.5:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _many(_stream: trio.SocketStream, _chance: random.Random) -> None:
    return


async def _endless(stream: trio.SocketStream, chance: random.Random) -> None:
    await _flood(stream, encode_request(code=10, opaque=1, body=chance.randbytes(60_000)))


async def _unknown(stream: trio.SocketStream, _chance: random.Random) -> None:
    await _flood(stream, encode_request(code=999, opaque=1, body=b"") * 100)


async def _invalid(stream: trio.SocketStream, _chance: random.Random) -> None:
    await _flood(stream, _GOOD.replace(b"xxx", b"xx?"))


async def _deaf(stream: trio.SocketStream, _chance: random.Random) -> None:
    question = encode_request(code=999, opaque=1, body=b"") * 1000
    while True:
        await stream.send_all(question)
        await trio.sleep(_DEAF_PAUSE_S)


async def _flood(stream: trio.SocketStream, data: bytes) -> None:
    """Send without pause, and read what is answered."""

    async def read() -> None:
        while await stream.receive_some(1 << 16):
            pass
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while True:
            await stream.send_all(data)


KINDS: dict[str, Peer] = {
    "idle": _idle,
    "slow": _slow,
    "stuck": _stuck,
    "garbage": _garbage,
    "truncated": _truncated,
    "endless": _endless,
    "unknown": _unknown,
    "deaf": _deaf,
    "invalid": _invalid,
    "many": _many,
}
MIX = {
    "idle": 55,
    "slow": 20,
    "garbage": 7,
    "truncated": 7,
    "many": 6,
    "stuck": 1,
    "endless": 1,
    "unknown": 1,
    "deaf": 1,
    "invalid": 1,
}
"""Of a hundred connections of the kind `mixed` so many are of each other kind."""
_GOOD = build_load(20, per_request=20, due_from_ms=0, spread_ms=1).frames[0]


class BadPeers:
    """N peers of one kind or of all kinds, and what they met."""

    def __init__(self, address: tuple[str, int], kind: str, source: str) -> None:
        self._address = address
        self._sources = source.split(",")
        shares = MIX if kind == "mixed" else {kind: 1}
        self._peers = [KINDS[name] for name, share in shares.items() for _ in range(share)]
        self.counts: Counter[str] = Counter()

    async def run(self, count: int) -> None:
        """Be a nuisance until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in range(count):
                peer = self._peers[number % len(self._peers)]
                source = self._sources[number % len(self._sources)]
                nursery.start_soon(self._again_and_again, peer, source, random.Random(number))

    async def _again_and_again(self, peer: Peer, source: str, chance: random.Random) -> None:
        while True:
            try:
                stream = await trio.open_tcp_stream(*self._address, local_address=source)
            except OSError:
                self.counts["not connected"] += 1
            else:
                self.counts["connected"] += 1
                async with stream:
                    try:
                        await peer(stream, chance)
                    except* (trio.BrokenResourceError, trio.ClosedResourceError):
                        self.counts["cut off"] += 1
            await trio.sleep(_AGAIN_S * chance.uniform(0.5, 1.5))


async def _main(*arguments: str) -> None:
    host, port, kind, count, source = arguments
    peers = BadPeers((host, int(port)), kind, source)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers.run, int(count))
        await trio.sleep(1)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()
    print(json.dumps(peers.counts), flush=True)


if __name__ == "__main__":
    trio.run(_main, *sys.argv[1:])
