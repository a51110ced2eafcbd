"""gateway.overview: figures of all groups as one, what is cut or away, and one question for all."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

import pytest

from delay_transport.http.problems import RequestError
from gateway import overview as module
from gateway.cluster import Answers, Cluster, Json
from gateway.overview import ROWS_MAX, STREAMS_MAX, Live, overview
from gateway.refusals import NoAnswerError


class Servers:
    """Answers as the servers of a cluster do."""

    def __init__(self, masters: Mapping[str, Json], away: Mapping[str, str] | None = None) -> None:
        self.masters = masters
        self.away = dict(away or {})
        self.topology: Json = {
            "now_ms": 7_200_123,
            "next_steps": [],
            "unserved": [],
            "delay_groups": [{"name": name, "master": "n1"} for name in (*masters, *self.away)],
            "broker_groups": [],
            "receivers": [],
        }
        self.asked = 0
        self.query: Mapping[str, Any] = {}
        self.is_away = False

    async def ask_meta(self, *_: str) -> Json:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise NoAnswerError("no meta server answers")
        return dict(self.topology)

    async def ask_masters(
        self, _: str, query_of: Callable[[str], Mapping[str, Any]] = lambda _: {}
    ) -> Answers:
        if not self.masters:
            raise NoAnswerError("nobody answers")
        self.query = query_of("")
        return Answers({name: dict(one) for name, one in self.masters.items()}, self.away)


def of(servers: Servers) -> Cluster:
    return cast(Cluster, servers)


def test_a_master_that_is_away_is_named_beside_the_figures_of_others() -> None:
    found = asyncio.run(overview(of(Servers({"d1": {"pending": 3}}, {"d2": "it starts"}))))
    assert found.figures == {"d1": {"pending": 3, "brokers": {}}}
    assert (found.away, found.cut) == ({"d2": "it starts"}, {})
    alone = Servers({}, {"d2": "it starts"})
    assert asyncio.run(overview(of(alone))).away == {"d2": "nobody answers"}


def test_of_a_long_list_what_is_not_well_comes_first_and_the_rest_is_counted() -> None:
    circuits = {f"g{n}": {"circuit": "closed"} for n in range(ROWS_MAX)} | {
        "bad": {"circuit": "open"}
    }
    servers = Servers({"d1": {"brokers": circuits}})
    servers.topology["receivers"] = [{"name": "up", "connected": 1}] * ROWS_MAX
    servers.topology["receivers"] += [{"name": "gone", "connected": 0}]
    found = asyncio.run(overview(of(servers)))
    assert found.cut == {"receivers": ROWS_MAX + 1}
    assert [one["name"] for one in found.topology["receivers"]][:2] == ["gone", "up"]
    assert len(found.topology["receivers"]) == len(found.figures["d1"]["brokers"]) == ROWS_MAX
    assert next(iter(found.figures["d1"]["brokers"])) == "bad"


def test_however_many_watch_the_cluster_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    monkeypatch.setattr(module, "EVERY_S", 0.05)
    servers = Servers({"d1": {}})

    async def main() -> None:
        live = Live(of(servers))

        async def watch() -> list[bytes]:
            return [event async for event in live.events()][1:]

        found = await asyncio.gather(*(watch() for _ in range(50)))
        assert {len(events) for events in found} == {3}
        assert all(event.startswith(b"event: cluster\ndata: {") for event in found[0])
        assert all(event.endswith(b"}\n\n") for event in found[0])
        assert servers.asked <= 5
        assert live.streams == 0

    asyncio.run(main())


def test_a_stream_ends_with_a_problem_and_when_the_gateway_stops() -> None:
    servers = Servers({"d1": {}})

    async def main() -> None:
        live = Live(of(servers))
        stream = live.events()
        assert await anext(stream) == b""
        assert b"cluster" in await anext(stream)
        assert live.streams == 1
        live.end()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(stream), 1)
        assert live.streams == 0
        other = Live(of(servers))
        stream = other.events()
        await anext(stream)
        other._until = 0
        servers.is_away = True
        events = [event async for event in stream]
        assert len(events) == 1
        assert events[0].startswith(b"event: problem\ndata: {")
        # The failure counts for a while as well, and one more has it at once.
        with pytest.raises(RequestError):
            await anext(other.events())
        assert (servers.asked, other.streams) == (3, 0)

    asyncio.run(main())


def test_of_streams_that_begin_at_once_those_too_many_are_refused() -> None:
    async def main() -> None:
        live = Live(of(Servers({"d1": {}})))

        async def begin() -> AsyncGenerator[bytes]:
            stream = live.events()
            assert await anext(stream) == b""
            return stream

        begun = [begin() for _ in range(STREAMS_MAX + 2)]
        found = await asyncio.gather(*begun, return_exceptions=True)
        refused = [one for one in found if isinstance(one, RequestError)]
        assert [(one.code, one.retry_after_s) for one in refused] == [(429, 5)] * 2
        assert live.streams == STREAMS_MAX
        # What nobody reads any more gives its place back.
        found.clear()
        gc.collect()
        await asyncio.sleep(0.01)
        assert live.streams == 0

    asyncio.run(main())
