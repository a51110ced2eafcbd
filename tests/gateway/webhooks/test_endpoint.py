"""gateway.webhooks.endpoint: what is posted, and what becomes of a message by the answer.

Endpoints are real ones on loopback; the cluster is a fake one, whose clock tests move.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from structlog.testing import capture_logs

from benchmarks.webhooks.endpoints import _ANSWERS, ILLS, Endpoints, Received, _answer_of
from delay_client import Client, RetryPolicy
from delay_client.testing import FakeCluster
from gateway.incoming import OWN_URL
from gateway.webhooks import endpoint as module
from gateway.webhooks.endpoint import Endpoint
from gateway.webhooks.signing import webhook_id
from tests.gateway.webhooks.test_settings import webhook

OTHER = "whsec_" + "B" * 32


class Rig:
    """A fake cluster, endpoints on loopback, and webhooks that post to them."""

    def __init__(self, client: Client, cluster: FakeCluster, endpoints: Endpoints) -> None:
        self.client, self.cluster, self.endpoints = client, cluster, endpoints
        self.gone: list[tuple[str, str]] = []
        self.answered: Counter[str] = Counter()
        self._running: list[tuple[Endpoint, asyncio.Task[None]]] = []

    async def start(self, ill: str = "well", *, tries: int = 16, **fields: object) -> Endpoint:
        """Start a webhook that is called as what is wrong with its endpoint, as is its subject."""
        if "hosts" not in fields and "url" not in fields:
            fields["url"] = await self.endpoints.serve(ill)
        one = webhook(name=ill, subjects=(ill,), **fields)
        self.cluster.subscribe(ill, ill, retry=RetryPolicy(tries=tries, base_s=5, jitter=0))
        made = Endpoint(
            one,
            self.cluster.receiver(ill),
            disable=lambda which, why: self.gone.append((which.name, why)),
            answered=self.answered,
        )
        self._running.append((made, asyncio.create_task(made.run())))
        await asyncio.sleep(0.05)
        return made

    async def stop(self) -> None:
        for made, _ in self._running:
            made.stop()
        await asyncio.gather(*(task for _, task in self._running))

    def got(self, ill: str = "well") -> list[Received]:
        return self.endpoints.received.get(ill, [])


def play(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster, endpoints = FakeCluster(patience_s=10), Endpoints()
        async with cluster.client() as client, asyncio.timeout(30):
            rig = Rig(client, cluster, endpoints)
            try:
                await test(rig)
            finally:
                await rig.stop()
                await endpoints.close()

    asyncio.run(main())


def verified(received: Received, secret: str) -> object:
    """Return the JSON of a request whose signature fits; raise WebhookVerificationError."""
    return standardwebhooks.Webhook(secret).verify(received.body, dict(received.headers))


def test_a_message_is_posted_as_it_was_sent_and_signed_with_each_secret() -> None:
    async def test(rig: Rig) -> None:
        first = "whsec_" + base64.b64encode(bytes(range(64))).decode()
        await rig.start(secrets=(first, OTHER))
        await rig.client.send(
            "well",
            b'{"caf\xc3\xa9": 1}',
            delay=60,
            message_id="order.7 é",
            content_type="application/json; charset=utf-8",
            headers={"tenant": "acmé", OWN_URL: "http://evil/", "not a token": "x"},
        )
        await rig.cluster.advance(seconds=59)
        assert not rig.got()
        await rig.cluster.advance(seconds=1)
        [one] = rig.got()
        assert one.body == b'{"caf\xc3\xa9": 1}'
        assert one.headers["content-type"] == "application/json; charset=utf-8"
        assert one.headers["webhook-id"] == "order%2E7%20%C3%A9"
        assert one.headers["delaywheel-header-tenant"] == "acmé"
        assert one.headers["delaywheel-subject"] == "well"
        assert one.headers["delaywheel-attempt"] == "1"
        due = datetime.fromisoformat(one.headers["delaywheel-due"])
        assert abs(due - rig.cluster.now) < timedelta(seconds=1)
        assert due.tzinfo == UTC
        assert not any("token" in name or name.endswith(OWN_URL) for name in one.headers)
        assert {name for name in one.headers if name.startswith("delaywheel-header-")} == {
            "delaywheel-header-tenant"
        }
        assert len(one.headers["webhook-signature"].split()) == 2
        for secret in (first, OTHER):
            assert verified(one, secret) == {"café": 1}
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            verified(one, "whsec_" + "C" * 32)
        for changed in (
            one._replace(body=b'{"caf\xc3\xa9": 2}'),
            one._replace(headers={**one.headers, "webhook-id": "other"}),
        ):
            with pytest.raises(standardwebhooks.WebhookVerificationError):
                verified(changed, OTHER)
        assert [kept.id for kept in rig.cluster.done] == ["order.7 é"]

    play(test)


def test_what_says_no_type_has_that_of_its_body() -> None:
    async def test(rig: Rig) -> None:
        await rig.start()
        await rig.client.send("well", "text", delay=0)
        await rig.client.send("well", b"\xff\x00", delay=0)
        await rig.cluster.advance()
        types = {one.body: one.headers["content-type"] for one in rig.got()}
        assert types == {
            b"text": "text/plain; charset=utf-8",
            b"\xff\x00": "application/octet-stream",
        }

    play(test)


def test_ids_are_told_apart_without_a_dot() -> None:
    ids = ["a.b", "a%2Eb", "a_b", "a b", "é", "a/b", "01M8KQAX3YCV7CF7PFHYXXXV00", "a-b_c~d"]
    made = [webhook_id(one) for one in ids]
    assert len(set(made)) == len(ids)
    assert not any("." in one for one in made)
    assert made[-2:] == ids[-2:]


SAID = {
    "slow": "no answer within 0.4 s",
    "reset": "no answer of HTTP",
    "broken": "500 X: it broke",
    "busy": "429 X",
    "redirect": "302 X",
    "headers": "no answer of HTTP",
    "garbage": "no connection",
    "silent": "no answer within 0.4 s",
}
"""Texts of dead letters; the endless one is done by its status, and the gone one is disabled."""


def test_each_ill_endpoint_holds_up_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.webhooks.endpoints.SLOW_S", 2.0)

    async def test(rig: Rig) -> None:
        for ill in ("well", *ILLS):
            await rig.start(ill, tries=1, timeout_s=0.4)
            await rig.client.send(ill, "x", delay=1)
        await rig.cluster.advance(seconds=1)
        assert [one.subject for one in rig.cluster.done[:1]] == ["well"]
        assert {one.subject for one in rig.cluster.done} == {"well", "endless"}
        reasons = {one.subject: one.reason for one in rig.cluster.refused}
        assert reasons.keys() == SAID.keys()
        for ill, said in SAID.items():
            assert reasons[ill].startswith(f"given up after 1 tries: EndpointError: {said}"), ill
        assert [one.subject for one in rig.cluster.pending()] == ["gone"]
        [(name, why)] = rig.gone
        assert name == "gone"
        assert "410 X" in why
        # Of an endless answer no more is read than may be, and nothing is followed.
        assert [len(rig.got(ill)) for ill in ("endless", "redirect", "gone")] == [1, 1, 1]

    play(test)


def test_of_an_endless_answer_no_more_is_read_than_may_be() -> None:
    async def test(rig: Rig) -> None:
        await rig.start("endless", timeout_s=20.0)
        began = asyncio.get_running_loop().time()
        await rig.client.send("endless", "x", delay=0)
        await rig.cluster.advance()
        assert len(rig.cluster.done) == 1
        await asyncio.gather(*rig.endpoints._talking)  # Its connection is closed.
        assert asyncio.get_running_loop().time() - began < 5

    play(test)


def test_a_dead_letter_has_the_status_and_the_beginning_of_the_answer() -> None:
    async def test(rig: Rig) -> None:
        rig.endpoints.status, rig.endpoints.answer = 422, b"no \xff such order " + b"x" * 200_000
        await rig.start(tries=3)
        sent = await rig.client.send("well", "x", delay=0)
        await rig.cluster.advance(seconds=4)
        assert len(rig.got()) == 1
        await rig.cluster.advance(seconds=20)
        [dead] = rig.cluster.refused
        assert (dead.id, len(rig.got())) == (sent.message_id, 3)
        assert "422 X: no � such order xxx" in dead.reason
        assert 900 < len(dead.reason.encode()) <= 1024
        assert [one.headers["delaywheel-attempt"] for one in rig.got()] == ["1", "2", "3"]
        assert {one.headers["webhook-id"] for one in rig.got()} == {sent.message_id}

    play(test)


def test_an_endpoint_is_left_alone_for_as_long_as_it_says() -> None:
    async def test(rig: Rig) -> None:
        await rig.start("busy")
        await rig.client.send("busy", "x", delay=0)
        await rig.cluster.advance()
        await rig.client.send("busy", "y", delay=0)
        await rig.cluster.advance(seconds=0.5)
        assert [one.body for one in rig.got("busy")] == [b"x"]
        await asyncio.sleep(1.1)
        await rig.cluster.advance(seconds=0.5)
        # The message that was answered waits 5 s as its policy has it, which is longer.
        assert [one.body for one in rig.got("busy")] == [b"x", b"y"]

    play(test)


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ("0", (5, 10)),
        ("4", (5, 10)),
        ("7", (7, 10)),
        ("12", (12, 12)),
        ("86400", (3600, 3600)),
        ("Thu, 01 Jan 1970 00:00:10 GMT", (5, 10)),
        ("Oct 99999999999 24:00:00 Oct +99999999 Oct", (5, 10)),
    ],
)
def test_a_message_waits_as_its_policy_or_its_endpoint_says_whichever_is_longer(
    monkeypatch: pytest.MonkeyPatch, said: str, waits: tuple[int, int]
) -> None:
    answer = _answer_of(500, b"it broke", f"Retry-After: {said}")
    monkeypatch.setitem(_ANSWERS, "broken", answer)

    async def test(rig: Rig) -> None:
        await rig.start("broken", tries=3)
        await rig.client.send("broken", "x", delay=0)
        await rig.cluster.advance()
        for tries, wait_s in enumerate(waits, 1):
            await rig.cluster.advance(seconds=wait_s - 0.5)
            assert rig.answered == {"500": tries}
            await rig.cluster.advance(seconds=0.5)
            assert rig.answered == {"500": tries + 1}
        [dead] = rig.cluster.refused
        assert "500 X: it broke" in dead.reason

    play(test)


def test_an_endpoint_that_asks_for_0_s_is_slowed_down_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(_ANSWERS, "busy", _answer_of(429, b"", "Retry-After: 0"))

    async def test(rig: Rig) -> None:
        await rig.start("busy", concurrency=2)
        for _ in range(5):
            await rig.client.send("busy", "x", delay=0)
        with capture_logs() as logs:
            await rig.cluster.advance()
        # Two at a time are too many, then one is.
        assert rig.answered == {"429": 3}
        assert [one["seconds"] for one in logs if one["event"] == "webhook paused"] == [1.0]
        assert len(rig.cluster.pending()) == 5

    play(test)


def test_an_answer_may_take_longer_than_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 0.2)
    monkeypatch.setattr("benchmarks.webhooks.endpoints.SLOW_S", 0.6)

    async def test(rig: Rig) -> None:
        await rig.start("slow", timeout_s=5.0)
        await rig.client.send("slow", "x", delay=0)
        await rig.cluster.advance()
        assert len(rig.cluster.done) == 1

    play(test)


def test_a_connection_may_not_take_as_long_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 0.2)

    async def test(rig: Rig) -> None:
        # A server that is silent takes no part in TLS either.
        url = (await rig.endpoints.serve("silent")).replace("http:", "https:")
        await rig.start("silent", tries=1, url=url, timeout_s=20.0)
        await rig.client.send("silent", "x", delay=0)
        began = asyncio.get_running_loop().time()
        await rig.cluster.advance()
        assert asyncio.get_running_loop().time() - began < 5
        [dead] = rig.cluster.refused
        assert "no connection within 0.2 s" in dead.reason

    play(test)


def test_what_waits_for_its_turn_goes_back_in_a_pause() -> None:
    async def test(rig: Rig) -> None:
        made = await rig.start("busy", concurrency=4)
        for _ in range(2):
            made._pace.slow_down(asyncio.get_running_loop().time(), 0.0)
        for _ in range(4):
            await rig.client.send("busy", "x", delay=0)
        await rig.cluster.advance()
        assert len(rig.got("busy")) == 1
        assert len(rig.cluster.pending()) == 4
        assert not rig.cluster.done

    play(test)


def test_an_endpoint_that_is_gone_gets_nothing_more() -> None:
    async def test(rig: Rig) -> None:
        await rig.start("gone", concurrency=1)
        for _ in range(5):
            await rig.client.send("gone", "x", delay=0)
        await rig.cluster.advance()
        await asyncio.sleep(0.1)
        await rig.cluster.advance(hours=1)
        assert len(rig.got("gone")) == 1
        assert len(rig.cluster.pending()) == 5
        assert not rig.cluster.refused

    play(test)


def test_one_that_is_gone_is_not_asked_again_after_a_pause() -> None:
    async def test(rig: Rig) -> None:
        made = await rig.start("gone")
        made._pause(0.05, "429")
        made._gone("410")
        await asyncio.sleep(0.1)
        await rig.client.send("gone", "x", delay=0)
        await rig.cluster.advance()
        assert not rig.got("gone")

    play(test)


def test_an_endpoint_that_does_not_listen_is_given_pauses() -> None:
    async def test(rig: Rig) -> None:
        await rig.start(concurrency=1, url="http://127.0.0.1:1/")
        for _ in range(5):
            await rig.client.send("well", "x", delay=0)
        await rig.cluster.advance()
        assert rig.answered == {"none": 1}
        assert len(rig.cluster.pending()) == 5

    play(test)


def test_what_is_at_a_private_address_is_not_connected_to() -> None:
    async def test(rig: Rig) -> None:
        url = await rig.endpoints.serve("well")
        await rig.start("literal", tries=1, url=url, private=())
        await rig.start("name", tries=1, url=url.replace("127.0.0.1", "localhost"), private=())
        for name in ("literal", "name"):
            await rig.client.send(name, "x", delay=0)
        await rig.cluster.advance()
        reasons = {one.subject: one.reason for one in rig.cluster.refused}
        assert reasons.keys() == {"literal", "name"}
        assert all("is no public address" in one for one in reasons.values())
        assert not rig.got()

    play(test)


def test_a_message_may_name_its_own_url() -> None:
    async def test(rig: Rig) -> None:
        urls = {ill: await rig.endpoints.serve(ill) for ill in ("well", "gone", "busy")}
        hosts = tuple(url.split("/")[2] for url in urls.values())
        await rig.start("own", tries=1, hosts=hosts, url="")
        await rig.start("own2", tries=2, hosts=hosts, url="")
        for ill in ("gone", "well"):
            await rig.client.send("own", "x", delay=0, headers={OWN_URL: urls[ill]})
        await rig.client.send("own2", "x", delay=0, headers={OWN_URL: urls["busy"]})
        await rig.client.send("own", "x", delay=0, headers={OWN_URL: "http://127.0.0.1:1/"})
        await rig.client.send("own", "x", delay=0)
        await rig.cluster.advance()
        # One that is gone or busy says nothing of others.
        assert [one.headers["delaywheel-subject"] for one in rig.got()] == ["own"]
        reasons = sorted(one.reason for one in rig.cluster.refused)
        assert len(reasons) == 3
        assert reasons[0].startswith("410 X")
        assert "names no URL" in reasons[1]
        assert "does not allow 127.0.0.1:1" in reasons[2]
        assert not rig.gone
        assert len(rig.got("busy")) == 1
        await rig.cluster.advance(seconds=5)
        assert len(rig.got("busy")) == 2

    play(test)


def test_a_stop_ends_what_is_under_way_and_gives_the_rest_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.webhooks.endpoints.SLOW_S", 0.3)

    async def test(rig: Rig) -> None:
        made = await rig.start("slow", concurrency=2, timeout_s=5.0)
        for _ in range(6):
            await rig.client.send("slow", "x", delay=0)
        advancing = asyncio.create_task(rig.cluster.advance())
        await asyncio.sleep(0.1)
        made.stop()
        await advancing
        assert len(rig.got("slow")) == 2
        assert len(rig.cluster.done) == 2
        assert len(rig.cluster.pending()) == 4

    play(test)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("Thu, 01 Jan 1970 00:01:10 GMT", 10.0),
        ("Thu Jan  1 00:01:10 1970", 10.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        ("Thu, 01 Jan 2070 00:00:00 GMT", 3600.0),
        ("soon", 0.0),
        ("-1", 0.0),
        ("", 0.0),
        ("9" * 400, 3600.0),
        ("Oct 99999999999 24:00:00 Oct +99999999 Oct", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_moment_and_an_hour_at_the_most(
    text: str, seconds: float
) -> None:
    class Desk:
        def now_ms(self) -> int:
            return 60_000

    class Message:
        desk = Desk()

    assert module._retry_after_s({"Retry-After": text}, Message()) == seconds  # type: ignore[arg-type]
