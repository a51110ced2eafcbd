"""A small program under every kind of fault: a log behind a socket, and clients that append to it.

It exercises the kit itself: the server of this page keeps its promise (what was answered is in the
log), so a test that finds it broken has found a fault in the kit. It also shows, in one page, how a
simulation of the real server is put together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from storage.disk.errors import FatalDiskError
from tests.simulation.crash import Ending, Life, SimNode
from tests.simulation.determinism import derive, run_deterministic
from tests.simulation.disk import SimDisk, SimFile
from tests.simulation.faults import HARSH, Action, Kill, PowerCut, Trap
from tests.simulation.network import SimNetwork
from tests.simulation.trace import Trace

_RECORD = 8
_HOST = "10.0.0.1"
_PORT = 20801
_ACTIONS = {0: Action.POWER_CUT, 1: Action.KILL, 2: Action.EIO}


@dataclass(frozen=True, slots=True)
class ToyResult:
    """What a run came to."""

    digest: str
    answered: frozenset[int]
    found: frozenset[int]
    endings: tuple[Ending, ...]
    disk_operations: int


class _LogServer:
    """Appends each 8-byte record it gets, fsyncs many at once, and answers with the record."""

    def __init__(self, life: Life, *, sync_first: bool) -> None:
        self._life = life
        self._sync_first = sync_first
        self._waiting: list[tuple[bytes, trio.abc.Stream]] = []
        self._arrived = trio.Event()

    async def serve(self) -> None:
        """Recover, then take records until the end."""
        run = self._life.executor.run
        file, end = await run("log", self._open)
        listener = await self._life.network.listen(_HOST, _PORT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit, file, end)
            while True:
                nursery.start_soon(self._receive, await listener.accept())

    def _open(self) -> tuple[SimFile, int]:
        disk = self._life.disk
        if not disk.exists("logs/log"):
            disk.make_directory("logs")
            file = disk.open("logs/log", create=True)
        else:
            file = disk.open("logs/log")
        # Names too: the life before may have died between making one and syncing its directory.
        disk.sync_directory("")
        disk.sync_directory("logs")
        data = file.read_at(0, file.size())
        end = 0
        while _is_record(data[end : end + _RECORD]):
            end += _RECORD
        file.truncate(end)
        # What a failed fsync left is in the page cache only: written again, it is known to be kept.
        file.write_at(0, [data[:end]])
        file.sync()
        return file, end

    async def _receive(self, stream: trio.abc.Stream) -> None:
        buffer = b""
        try:
            while data := await stream.receive_some():
                buffer += data
                while len(buffer) >= _RECORD:
                    self._waiting.append((buffer[:_RECORD], stream))
                    buffer = buffer[_RECORD:]
                    self._arrived.set()
        except trio.BrokenResourceError:
            pass
        await stream.aclose()

    async def _commit(self, file: SimFile, end: int) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            commit, self._waiting = self._waiting, []
            data = b"".join(record for record, _ in commit)
            if self._sync_first:
                await self._life.executor.run("log", self._append, file, end, data)
                await self._answer(commit)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(
                        self._life.executor.run, "log", self._append, file, end, data
                    )
                    await self._answer(commit)
            end += len(data)

    @staticmethod
    def _append(file: SimFile, end: int, data: bytes) -> None:
        file.write_at(end, [data])
        file.sync()

    @staticmethod
    async def _answer(commit: Sequence[tuple[bytes, trio.abc.Stream]]) -> None:
        for record, stream in commit:
            try:
                await stream.send_all(record)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                continue


def _record(number: int) -> bytes:
    return number.to_bytes(4, "little") + (~number & 0xFFFFFFFF).to_bytes(4, "little")


def _is_record(data: bytes) -> bool:
    number = int.from_bytes(data[:4], "little")
    return len(data) == _RECORD and data == _record(number)


async def _client(network: SimNetwork, name: str, numbers: Sequence[int], got: set[int]) -> None:
    """Send each number until it is answered."""
    own = network.node(name)
    left = list(numbers)
    while left:
        try:
            with trio.fail_after(60):
                async with await own.connect(_HOST, _PORT) as stream:
                    while left:
                        await _append_remotely(stream, _record(left[0]))
                        got.add(left.pop(0))
        except (OSError, trio.BrokenResourceError, trio.TooSlowError):
            await trio.sleep(1)


async def _append_remotely(stream: trio.abc.Stream, record: bytes) -> None:
    await stream.send_all(record)
    answer = b""
    while len(answer) < _RECORD:
        data = await stream.receive_some(_RECORD - len(answer))
        if not data:
            raise trio.BrokenResourceError("the server closed")
        answer += data
    assert answer == record


def run_toy_log(
    seed: int, *, clients: int = 3, records: int = 20, sync_first: bool = True
) -> ToyResult:
    """Run one seed: crashes of every kind, until every client has its answers."""
    trace = Trace()
    network = SimNetwork(derive(seed, "network"), trace=trace)
    disk = SimDisk(derive(seed, "disk"), plan=HARSH, trace=trace)
    node = SimNode("server", disk=disk, network=network, chance=derive(seed, "server"))
    nemesis = derive(seed, "nemesis")
    got: set[int] = set()
    endings: list[Ending] = []

    async def serve(life: Life) -> None:
        await _LogServer(life, sync_first=sync_first).serve()

    async def keep_serving() -> None:
        while True:
            if len(endings) < 8:
                action = _ACTIONS[nemesis.randrange(3)]
                node.revive().arm(Trap(action=action, skip=nemesis.randrange(20)))
                node.crash_at_step(nemesis.randrange(300), nemesis.choice([Kill, PowerCut]))
            endings.append(await node.live(serve, expected=(FatalDiskError, OSError)))
            await trio.sleep(nemesis.uniform(0, 5))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_serving)
            async with trio.open_nursery() as producers:
                for client in range(clients):
                    numbers = range(client * records, (client + 1) * records)
                    producers.start_soon(_client, network, f"client{client}", numbers, got)
            node.crash(PowerCut)
            nursery.cancel_scope.cancel()

    run_deterministic(seed, main, limit_s=86_400)
    data = node.revive().contents(durable=True).get("logs/log", b"")
    found: set[int] = set()
    for start in range(0, len(data), _RECORD):
        if not _is_record(data[start : start + _RECORD]):
            break
        found.add(int.from_bytes(data[start : start + 4], "little"))
    return ToyResult(
        trace.digest(), frozenset(got), frozenset(found), tuple(endings), disk.operations
    )
