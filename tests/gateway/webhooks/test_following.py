"""gateway.webhooks.following: webhooks as an operator changes them, and what a meta server is told.

The meta server is a small one of this test, on loopback.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from benchmarks.webhooks.endpoints import Endpoints
from delay_client import Client
from delay_client.testing import FakeCluster
from delay_transport.http.problems import Problem, RequestError
from gateway.cluster import Cluster
from gateway.webhooks import following as module
from gateway.webhooks.endpoint import Endpoint
from gateway.webhooks.following import Webhooks
from tests.gateway.webhooks.test_settings import FIELDS


class Meta:
    """A meta server that answers what a test says."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.status = 200
        self.asked: list[tuple[str, Any, Any]] = []
        """Path, If-Match and body of what would disable a webhook."""
        self.tokens: set[str | None] = set()

    def set(self, name: str, **fields: object) -> None:
        version = self.rows.get(name, {"version": 0})["version"] + 1
        self.rows[name] = FIELDS | {"name": name, "subjects": (name,), "version": version} | fields

    def _answer(self, body: bytes) -> web.Response:
        if self.status == 200:
            return web.Response(body=body)
        problem = Problem(status=self.status, code="test", detail=f"it answers {self.status}")
        return web.Response(status=self.status, body=msgspec.json.encode(problem))

    async def serve(self) -> tuple[web.AppRunner, str]:
        async def reveal(request: web.Request) -> web.Response:
            self.tokens.add(request.headers.get("Authorization"))
            body = msgspec.json.encode({"webhooks": list(self.rows.values())})
            return self._answer(body)

        async def disable(request: web.Request) -> web.Response:
            row = self.rows[request.match_info["name"]]
            said = await request.json()
            self.asked.append((request.path, request.headers["If-Match"], said))
            if self.status == 200:
                row["disabled"] = said["reason"]
            return self._answer(b"{}")

        app = web.Application()
        app.router.add_post("/api/v1/webhooks/reveal", reveal)
        app.router.add_post("/api/v1/webhook/{name}/disable", disable)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return runner, f"{host}:{port}"


class Rig:
    def __init__(
        self,
        meta: Meta,
        cluster: FakeCluster,
        client: Client,
        endpoints: Endpoints,
        hooks: Webhooks,
    ) -> None:
        self.meta, self.cluster, self.client = meta, cluster, client
        self.endpoints, self.hooks = endpoints, hooks

    async def followed(self) -> None:
        """Wait until what the meta server has is known."""
        await asyncio.sleep(0.3)

    async def send(self, subject: str) -> None:
        await self.client.send(subject, "x", delay=0)
        await self.cluster.advance()

    def got(self, ill: str = "well") -> int:
        return len(self.endpoints.received.get(ill, []))


def play(
    test: Callable[[Rig], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    token: str | None = None,
) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.05)

    async def main() -> None:
        cluster, endpoints, meta = FakeCluster(patience_s=0.2), Endpoints(), Meta()
        runner, address = await meta.serve()
        # The one that does not answer has no token: each is asked with its own.
        servers = Cluster(["127.0.0.1:1", address], {} if token is None else {address: token})
        hooks = Webhooks(servers, receiver=lambda one: cluster.receiver(one.name))
        async with servers, cluster.client() as client, asyncio.timeout(30):
            following = asyncio.create_task(hooks.run())
            try:
                await test(Rig(meta, cluster, client, endpoints, hooks))
            finally:
                following.cancel()
                await asyncio.wait([following])
                await endpoints.close()
                await runner.cleanup()
        assert following.cancelled()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_webhooks_come_change_and_go_as_an_operator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.cluster.subscribe("a", "a")
        await rig.send("a")
        assert rig.got() == 0
        url = await rig.endpoints.serve("well")
        rig.meta.set("a", url=url)
        await rig.followed()
        await rig.cluster.advance()
        assert rig.got() == 1
        # Its URL changes; it is disabled; enabled; removed.
        rig.meta.set("a", url=await rig.endpoints.serve("other"))
        await rig.followed()
        await rig.send("a")
        assert (rig.got(), rig.got("other")) == (1, 1)
        rig.meta.set("a", url=url, disabled="for a test")
        await rig.followed()
        await rig.send("a")
        assert len(rig.cluster.pending()) == 1
        rig.meta.set("a", url=url)
        await rig.followed()
        await rig.cluster.advance()
        assert rig.got() == 2
        rig.meta.rows.clear()
        await rig.followed()
        await rig.send("a")
        assert len(rig.cluster.pending()) == 1
        assert rig.hooks.answered == {"200": 3}

    play(test, monkeypatch)


def test_an_endpoint_that_is_gone_is_disabled_at_the_meta_server_once_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(rig: Rig) -> None:
        rig.cluster.subscribe("a/b c", "a")
        rig.meta.set("a/b c", url=await rig.endpoints.serve("gone"))
        await rig.followed()
        rig.meta.status = 503
        await rig.send("a")
        await rig.followed()
        assert len(rig.meta.asked) > 1
        assert rig.got("gone") == 1
        rig.meta.status = 200
        await rig.followed()
        path, version, said = rig.meta.asked[-1]
        assert (path, version) == ("/api/v1/webhook/a/b c/disable", '"1"')
        assert "410" in said["reason"]
        assert rig.meta.rows["a/b c"]["disabled"]
        asked = len(rig.meta.asked)
        await rig.followed()
        assert (len(rig.meta.asked), rig.got("gone")) == (asked, 1)
        assert len(rig.cluster.pending()) == 1

    with capture_logs() as logs:
        play(test, monkeypatch)
    assert [one["webhook"] for one in logs if one["event"] == "webhook disabled"] == ["a/b c"]


@pytest.mark.parametrize(("status", "said"), [(503, "answers 503"), (401, "--cluster-token-file")])
def test_webhooks_stay_as_they_are_while_no_meta_server_answers(
    monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    async def test(rig: Rig) -> None:
        rig.cluster.subscribe("a", "a")
        rig.meta.set("a", url=await rig.endpoints.serve("well"))
        await rig.followed()
        rig.meta.status = status
        rig.meta.rows.clear()
        await rig.followed()
        await rig.send("a")
        assert rig.got() == 1
        assert rig.meta.tokens == {"Bearer secret"}

    with capture_logs() as logs:
        play(test, monkeypatch, token="secret")  # noqa: S106 (of a test)
    told = [one["reason"] for one in logs if one["event"] == "webhooks are as they were"]
    assert any(said in one for one in told)


def test_an_endpoint_that_ends_by_itself_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ends(Endpoint):
        async def run(self) -> None:
            ends.append(1)
            if len(ends) == 1:
                raise OSError("a fault of the test")
            await super().run()

    async def test(rig: Rig) -> None:
        rig.cluster.subscribe("a", "a")
        rig.meta.set("a", url=await rig.endpoints.serve("well"))
        await rig.followed()
        await rig.send("a")
        assert rig.got() == 1

    ends: list[int] = []
    monkeypatch.setattr(module, "Endpoint", Ends)
    with capture_logs() as logs:
        play(test, monkeypatch)
    [told] = [one for one in logs if one["event"] == "webhook ended"]
    assert "a fault of the test" in told["reason"]


def test_which_urls_a_message_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        with pytest.raises(RequestError, match="has not heard of its webhooks yet") as early:
            Webhooks(Cluster(["127.0.0.1:1"], {})).check_url("a", "https://a.example/")
        assert (early.value.code, early.value.retry_after_s) == (503, 1)
        rig.meta.set("a", hosts=["a.example"])
        rig.meta.set("fixed", url="https://f.example/")
        await rig.followed()
        rig.hooks.check_url("a", "https://a.example/x")
        for subject, url, why in (
            ("a", "https://b.example/", "does not allow b.example"),
            ("fixed", "https://a.example/", "no webhook without a URL of its own"),
            ("none", "https://a.example/", "no webhook without a URL of its own"),
        ):
            with pytest.raises(RequestError, match=why) as refused:
                rig.hooks.check_url(subject, url)
            assert refused.value.code == 422

    play(test, monkeypatch)
