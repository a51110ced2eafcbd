"""A cluster at a glance: what the page shows first.

    overview    groups, nodes, receivers, circuits, what to do next; of each master its figures
    Live        the overview as a stream of events, asked for once for all who watch

Lists are bounded: what is not well comes first, and `cut` has the length of what was cut.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

import msgspec

from delay_transport.http.problems import RequestError
from gateway.cluster import Answers, Cluster, Json
from gateway.refusals import NoAnswerError

ROWS_MAX: Final = 200
"""Rows of one list of an overview."""
EVERY_S: Final = 2.0
"""Seconds between two events. The cluster is asked once in this time, however many watch."""
EVENTS_MAX: Final = 150
"""Events of one stream, some five minutes: then who watches asks again, and its token counts."""
STREAMS_MAX: Final = 200
"""Streams at a time; one more is answered 429."""

_ARE_WELL: Final[Mapping[str, Callable[[Json], object]]] = {
    "next_steps": lambda _: True,
    "unserved": lambda _: True,
    "delay_groups": lambda group: group["master"],
    "broker_groups": lambda group: group["state"] == "RW",
    "receivers": lambda receiver: receiver["connected"],
}
"""The lists of a topology, and which rows of each are well."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at a glance."""

    topology: Json
    """The meta server's view: groups, nodes, receivers, and `next_steps`, what to do next."""
    figures: dict[str, Json]
    """By delay group what its master says of itself: docs/administration.md has `/status`."""
    away: dict[str, str]
    """Delay groups whose master gave no answer, and why."""
    cut: dict[str, int]
    """The length of each list of which only the first rows are here."""


async def overview(cluster: Cluster) -> Overview:
    """Return everything at a glance; raise RequestError if no meta server answers."""
    topology = await cluster.ask_meta("GET", "topology")
    try:
        answers = await cluster.ask_masters("status")
    except NoAnswerError as error:
        answers = Answers({}, {one["name"]: str(error) for one in topology["delay_groups"]})
    cut = {name: len(topology[name]) for name in _ARE_WELL if len(topology[name]) > ROWS_MAX}
    for name in cut:
        topology[name] = sorted(topology[name], key=lambda row: bool(_ARE_WELL[name](row)))[
            :ROWS_MAX
        ]
    for status in answers.by_group.values():
        brokers = sorted(
            status.get("brokers", {}).items(), key=lambda item: item[1]["circuit"] == "closed"
        )
        status["brokers"] = dict(brokers[:ROWS_MAX])
    return Overview(topology=topology, figures=answers.by_group, away=answers.away, cut=cut)


class Live:
    """The overview as it is now, and as a stream of events: `cluster`, or `problem`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()
        self._latest: Overview | RequestError | None = None
        self._until = 0.0
        self.streams = 0
        """Streams that are open."""

    def end(self) -> None:
        """End all streams: the gateway stops."""
        self._ended.set()

    async def now(self) -> Overview:
        """Return the overview, at most EVERY_S old; raise RequestError."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._until:
                try:
                    self._latest = await overview(self._cluster)
                except RequestError as error:
                    self._latest = error
                self._until = loop.time() + EVERY_S
        if isinstance(self._latest, RequestError):
            raise self._latest
        assert self._latest is not None
        return self._latest

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield nothing, then events, as Server-Sent Events have them; a `problem` is the last.

        Whoever takes the first has a place, and the cluster answers; else it raises RequestError.
        Ends by `end()`, and after EVENTS_MAX.
        """
        if self.streams >= STREAMS_MAX:
            raise RequestError(429, "busy", "too many watch at a time", retry_after_s=5)
        self.streams += 1
        try:
            await self.now()
            yield b""
            for _ in range(EVENTS_MAX):
                try:
                    yield _event(b"cluster", await self.now())
                except RequestError as error:
                    yield _event(b"problem", error.problem)
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await self._ended.wait()
                        return
        finally:
            self.streams -= 1


def _event(name: bytes, value: msgspec.Struct) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name, msgspec.json.encode(value))
