"""A cluster of real processes and a fake one, as the same thing to a test."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread
import msgspec

from delay_client import (
    Client,
    ClientConfig,
    ReceivedMessage,
    Receiver,
    ReceiverConfig,
    RetryPolicy,
)
from delay_client.testing import FakeCluster
from delay_protocol.basics.levels import parse_levels
from tests.processes.real_processes import ServerProcess, delaywheel, meta_server, server

CONNECTING = ClientConfig(meta_backoff_min_s=0.2, meta_backoff_max_s=1.0, backoff_max_s=0.5)
LEVELS = "1s 2s"
"""The table of levels of each world."""
REAL_S = 15.0
"""What takes longer does not come."""


class World(Protocol):
    """A cluster. Subjects and names of one test are those of no other."""

    unit_s: float
    """A time in which a machine that is busy does a few things."""

    def now(self) -> datetime:
        """Return what time it is there."""

    def client(self, config: ClientConfig | None = None, *, app_code: str = "") -> Client:
        """Return a client."""

    def receiver(
        self,
        name: str,
        subjects: Sequence[str],
        *,
        config: ReceiverConfig | None = None,
    ) -> Receiver:
        """Return a receiver."""

    async def subscribe(
        self, name: str, pattern: str, *, tries: int, waits: str, unsettled_tries: int = 8
    ) -> None:
        """Set the subjects of a name, and its retries, as an operator does."""

    async def advance(self, units: float) -> None:
        """Let time pass."""

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so that is due by now; fail if it does not come to be."""

    async def refused(self, subject: str, count: int = 0) -> Mapping[str, str]:
        """Return the reasons of dead letters of a subject by id, once there are so many.

        A server lists a dead letter when its row is on the disk, a moment after it was settled.
        """


class FakeWorld:
    """A cluster without processes."""

    unit_s = 10.0

    def __init__(self) -> None:
        self.cluster = FakeCluster(levels=LEVELS)

    def now(self) -> datetime:
        return self.cluster.now

    def client(self, config: ClientConfig | None = None, *, app_code: str = "") -> Client:
        return self.cluster.client(app_code=app_code, config=config)

    def receiver(
        self, name: str, subjects: Sequence[str], *, config: ReceiverConfig | None = None
    ) -> Receiver:
        return self.cluster.receiver(name, subjects=subjects, config=config)

    async def subscribe(
        self, name: str, pattern: str, *, tries: int, waits: str, unsettled_tries: int = 8
    ) -> None:
        retry = RetryPolicy(
            tries=tries,
            waits_s=tuple(ms / 1000 for ms in parse_levels(waits)),
            unsettled_tries=unsettled_tries,
        )
        self.cluster.subscribe(name, pattern, retry=retry)

    async def advance(self, units: float) -> None:
        await self.cluster.advance(seconds=units * self.unit_s)

    async def until(self, condition: Callable[[], object]) -> None:
        await self.cluster.advance()
        assert condition()

    async def refused(self, subject: str, count: int = 0) -> Mapping[str, str]:  # noqa: ARG002
        refused = self.cluster.refused
        return {one.id: one.reason for one in refused if one.subject == subject}


class RealWorld:
    """A meta server and a delay server, each a process."""

    unit_s = 0.4

    def __init__(self, meta: ServerProcess, delay: ServerProcess) -> None:
        self._meta = meta
        self._delay = delay

    def now(self) -> datetime:
        return datetime.now(UTC)

    def client(self, config: ClientConfig | None = None, *, app_code: str = "") -> Client:
        return Client(meta=self._meta.http, app_code=app_code, config=config or CONNECTING)

    def receiver(
        self, name: str, subjects: Sequence[str], *, config: ReceiverConfig | None = None
    ) -> Receiver:
        config = config or ReceiverConfig(connecting=CONNECTING)
        return Receiver(name, subjects=subjects, meta=self._meta.http, config=config)

    async def subscribe(
        self, name: str, pattern: str, *, tries: int, waits: str, unsettled_tries: int = 8
    ) -> None:
        fields = (
            f"patterns={pattern}",
            f"tries={tries}",
            f"waits={waits}",
            f"unsettled_tries={unsettled_tries}",
        )
        words = ("admin", "--meta", self._meta.http, "set", "receiver", name, *fields)
        await anyio.to_thread.run_sync(delaywheel, *words)

    async def advance(self, units: float) -> None:
        await anyio.sleep(units * self.unit_s)

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(REAL_S):
            while not condition():  # noqa: ASYNC110 (what it waits for tells nobody)
                await anyio.sleep(0.01)

    async def refused(self, subject: str, count: int = 0) -> Mapping[str, str]:
        with anyio.fail_after(REAL_S):
            while len(found := await self._refused(subject)) < count:  # noqa: ASYNC110 (as above)
                await anyio.sleep(0.01)
        return found

    async def _refused(self, subject: str) -> Mapping[str, str]:
        code, body = await anyio.to_thread.run_sync(self._delay.get, f"/dead?subject={subject}")
        assert code == 200, body
        items = msgspec.json.decode(body)["items"]
        return {one["message_id"]: one["refusals"][-1]["said"] for one in items}


@contextlib.contextmanager
def real_world(folder: Path) -> Iterator[World]:
    """Run the processes."""
    for name in ("meta", "delay"):
        (folder / name).mkdir()
    with contextlib.ExitStack() as stack:
        levels = ("--set", f"delay.levels={LEVELS}")
        starting = meta_server(folder / "meta" / "data", options=levels)
        meta = stack.enter_context(starting).wait_ready()
        options = ("--meta", meta.http, "--set", "sender.retry_base_s=0.01")
        delay = server(folder / "delay" / "data", options=options)
        yield RealWorld(meta, stack.enter_context(delay).wait_ready())


@asynccontextmanager
async def running(receiver: Receiver, got: list[ReceivedMessage]) -> AsyncIterator[None]:
    """Have a receiver note what comes, and be done with it, from when it is attached to the end."""

    async def note(message: ReceivedMessage) -> None:
        got.append(message)

    async with anyio.create_task_group() as tasks, receiver:
        tasks.start_soon(receiver.run, note)
        while not receiver.is_attached:  # noqa: ASYNC110 (what it waits for tells nobody)
            await anyio.sleep(0.01)
        yield
        receiver.stop()
