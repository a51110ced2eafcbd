"""gateway.cluster: all masters are asked beside each other, and a group that is away is named."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from delay_transport.http.problems import RequestError
from gateway import cluster as module
from gateway.cluster import Answers, Cluster
from gateway.refusals import NoAnswerError
from tests.delaywheel.json_servers import Answering, answering
from tests.ports import closed_port


def problem(code: int, word: str, detail: str) -> tuple[int, bytes]:
    return code, json.dumps({"status": code, "code": word, "detail": detail}).encode()


def group(name: str, address: str, *, master: str | None = "n1") -> dict[str, Any]:
    node = {"node_id": "n1", "http_address": address}
    return {"name": name, "master": master, "election": "", "nodes": [node]}


@contextmanager
def cluster_of(groups: Mapping[str, Answering | str | None]) -> Iterator[str]:
    """Serve a meta server and the masters of groups; a text is an address, None: no master."""
    with ExitStack() as stack:
        rows = []
        for name, one in groups.items():
            address = "" if one is None else one
            if callable(address):
                address = stack.enter_context(answering(address))
            rows.append(group(name, address, master=None if one is None else "n1"))

        def meta(_: str, target: str, __: dict[str, str], ___: bytes) -> tuple[int, bytes]:
            # A page has two groups.
            first = int(target.partition("after=")[2].partition("&")[0] or 0)
            after = str(first + 2) if first + 2 < len(rows) else None
            return 200, json.dumps({"items": rows[first : first + 2], "next": after}).encode()

        yield stack.enter_context(answering(meta))


def saying(value: object, code: int = 200) -> Answering:
    return lambda *_: (code, json.dumps(value).encode())


def play(
    meta: str, test: Callable[[Cluster], Awaitable[None]], tokens: Mapping[str, str] | None = None
) -> None:
    async def main() -> None:
        async with Cluster([meta], tokens or {}) as cluster, asyncio.timeout(20):
            await test(cluster)

    asyncio.run(main())


def test_what_some_answer_comes_with_the_names_of_those_that_are_away() -> None:
    dead = f"127.0.0.1:{closed_port()}"
    groups: dict[str, Answering | str | None] = {
        "d1": saying({"n": 1}),
        "d2": dead,
        "d3": None,
        "d4": lambda *_: problem(503, "starting", "it starts"),
        "d5": saying({"n": 5}),
        "d6": saying([1, 2]),
        "d7": "",
        "d8": lambda *_: problem(404, "not-found", "it is another server by now"),
    }

    async def test(cluster: Cluster) -> None:
        found = await cluster.ask_masters("find")
        assert found.by_group == {"d1": {"n": 1}, "d5": {"n": 5}}
        assert list(found.away) == ["d2", "d3", "d4", "d6", "d7", "d8"]
        assert dead in found.away["d2"]
        assert "one is elected" in found.away["d3"]
        assert found.away["d4"] == "it starts"
        assert "no server of a cluster" in found.away["d6"]
        assert "cannot be asked over HTTP" in found.away["d7"]
        assert await cluster.ask_master("d5", "GET", "find") == {"n": 5}
        with pytest.raises(RequestError, match="it starts") as away:
            await cluster.ask_master("d4", "GET", "find")
        assert (away.value.code, away.value.kind) == (503, "starting")
        with pytest.raises(RequestError, match="no delay group 'd9'") as unknown:
            await cluster.ask_master("d9", "GET", "dead")
        assert unknown.value.code == 404

    with cluster_of(groups) as meta:
        play(meta, test)


def test_each_master_gets_its_own_parameters_and_the_body() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def hear(method: str, target: str, _: dict[str, str], body: bytes) -> tuple[int, bytes]:
        seen.append((method, target, body))
        return 200, b"{}"

    async def test(cluster: Cluster) -> None:
        await cluster.ask_masters(
            "dead letters",
            "a/ä",
            query_of=lambda name: {"after": f"{name} &", "ids": True, "subject": None},
        )
        await cluster.ask_master("d1", "POST", "requeue", body={"x": 1})

    with cluster_of({"d1": hear, "d2": hear}) as meta:
        play(meta, test)
    *asked, last = seen
    assert sorted(asked) == [
        ("GET", f"/dead%20letters/a%2F%C3%A4?after={name}+%26&ids=true", b"")
        for name in ("d1", "d2")
    ]
    assert last == ("POST", "/requeue", b'{"x":1}')


def test_a_request_that_is_wrong_is_refused_and_not_taken_for_a_group_that_is_away() -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(RequestError, match="limit: 0") as refused:
            await cluster.ask_masters("list")
        assert (refused.value.code, refused.value.kind) == (400, "bad-value")

    wrong = lambda *_: problem(400, "bad-value", "limit: 0 is not allowed")  # noqa: E731
    with cluster_of({"d1": wrong, "d2": saying({})}) as meta:
        play(meta, test)


def test_one_that_is_slow_or_endless_holds_up_nobody_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 1000)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)

    def slow(*_: object) -> tuple[int, bytes]:
        time.sleep(2)
        return 200, b"{}"

    async def test(cluster: Cluster) -> None:
        began = asyncio.get_running_loop().time()
        found = await cluster.ask_masters("list")
        assert asyncio.get_running_loop().time() - began < 1.5
        assert list(found.by_group) == ["good"]
        assert "more than 1000 bytes" in found.away["much"]
        assert "no answer within 0.5 s" in found.away["slow"]

    groups = {"slow": slow, "much": saying("x" * 2000), "good": saying({})}
    with cluster_of(groups) as meta:
        play(meta, test)


def test_one_look_too_many_is_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKS_MAX", 2)

    def slow(*_: object) -> tuple[int, bytes]:
        time.sleep(0.3)
        return 200, b"{}"

    async def test(cluster: Cluster) -> None:
        await cluster.groups()
        looks = [asyncio.create_task(cluster.ask_masters("list")) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(RequestError, match="ask again") as refused:
            await cluster.ask_masters("list")
        assert (refused.value.code, refused.value.retry_after_s) == (429, 1)
        await asyncio.gather(*looks)
        assert (await cluster.ask_masters("list")).away == {}

    with cluster_of({"d1": slow}) as meta:
        play(meta, test)


def test_a_token_goes_to_those_alone_whom_the_file_names() -> None:
    seen: dict[str, str | None] = {}

    def hear(name: str, answer: Answering) -> Answering:
        def heard(
            method: str, target: str, headers: dict[str, str], body: bytes
        ) -> tuple[int, bytes]:
            seen[name] = headers.get("authorization")
            return answer(method, target, headers, body)

        return heard

    async def test(cluster: Cluster) -> None:
        await cluster.ask_masters("find")

    wants = lambda *_: problem(401, "token", "a token is needed")  # noqa: E731
    with answering(hear("d1", saying({}))) as first, answering(hear("d2", wants)) as second:
        rows = {"items": [group("d1", first), group("d2", second)], "next": None}
        with answering(hear("meta", saying(rows))) as meta:
            # A token that stands alone is for whom the gateway itself names.
            play(meta, test, {"": "alone"})
            assert seen == {"meta": "Bearer alone", "d1": None, "d2": None}
            play(meta, test, {meta: "m", first: "one"})
            assert seen == {"meta": "Bearer m", "d1": "Bearer one", "d2": None}

            async def told(cluster: Cluster) -> None:
                found = await cluster.ask_masters("find")
                assert f"{second}: a token is needed: see --cluster-token-file" in found.away["d2"]
                with pytest.raises(RequestError) as refused:
                    await cluster.ask_master("d2", "GET", "find")
                assert (refused.value.code, refused.value.kind) == (502, "cluster-token")

            play(meta, told, {"*": "all"})


def test_another_meta_server_is_asked_where_one_is_away() -> None:
    async def main() -> None:
        metas = [f"127.0.0.1:{closed_port()}", f"http://{meta}/"]
        async with Cluster(metas, {}) as cluster:
            assert await cluster.ask_meta("GET", "topology") == {"items": [], "next": None}
            with pytest.raises(NoAnswerError, match="no delay server has registered"):
                await cluster.ask_masters("find")
        async with Cluster(metas, {}) as cluster:
            # A change might be made twice.
            with pytest.raises(NoAnswerError):
                await cluster.ask_meta("POST", "delay-group", "d1", "elect", body={})
            assert await cluster.ask_meta("POST", "delay-group", "d1", "elect", body={})
        async with Cluster(metas[:1], {}) as cluster:
            with pytest.raises(NoAnswerError, match="no meta server answers: 127") as away:
                await cluster.groups()
            assert (away.value.code, away.value.retry_after_s) == (503, 1)

    with answering(saying({"items": [], "next": None})) as meta:
        asyncio.run(main())


def test_a_new_master_is_found_once_the_old_one_refuses() -> None:
    rows: list[dict[str, Any]] = []

    async def test(cluster: Cluster) -> None:
        found = await cluster.ask_masters("find")
        assert found == Answers({"d1": {"of": "old"}}, {})
        rows[0]["nodes"][0]["http_address"] = new
        state["old"] = False
        with pytest.raises(NoAnswerError):
            await cluster.ask_masters("find")
        assert (await cluster.ask_masters("find")).by_group == {"d1": {"of": "new"}}

    state = {"old": True}

    def old(*_: object) -> tuple[int, bytes]:
        return (200, b'{"of":"old"}') if state["old"] else problem(503, "starting", "a slave")

    with answering(old) as first, answering(saying({"of": "new"})) as new:
        rows.append(group("d1", first))
        listing = lambda *_: (200, json.dumps({"items": rows, "next": None}).encode())  # noqa: E731
        with answering(listing) as meta:
            play(meta, test)
