"""Figures of a gateway: POST, webhooks a second, lateness, and one endpoint beside ten bad ones."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.load import build_load, seconds_left, send_load
from benchmarks.processes import DelayServer, MetaServer, Process, free_port
from benchmarks.webhooks.endpoints import ILLS

Figures = Iterator[tuple[str, object]]

_SECRET: Final = "whsec_" + "A" * 32
_FOLLOWED_S: Final = 5
"""Seconds after which a gateway has attached for a webhook that was set."""
_RATE: Final = 200
_BAD_RATE: Final = 20
"""Messages a second for each bad endpoint."""
_LEAD_S: Final = 5


class _Cluster:
    """A meta server, a delay server and a gateway."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self._meta = MetaServer(place)
        stack.callback(self._meta.kill)
        self.server = DelayServer(place, meta_port=self._meta.http_port)
        stack.callback(self.server.kill)
        self.address = f"127.0.0.1:{free_port()}"
        self.gateway = Process(
            *("delaywheel", "gateway", "--meta", f"127.0.0.1:{self._meta.http_port}"),
            *("--listen", self.address),
            log=place / "gateway.log",
        )
        stack.callback(self.gateway.kill)

    def set_webhook(self, name: str, url: str, **fields: object) -> None:
        """Enter a webhook for the subject NAME.hook."""
        row = {"url": url, "subjects": [f"{name}.hook"], "secrets": [_SECRET], **fields}
        asked = http.client.HTTPConnection("127.0.0.1", self._meta.http_port)
        with contextlib.closing(asked):
            body = json.dumps(row | {"private": ["127.0.0.1"]})
            kind = {"Content-Type": "application/json"}
            asked.request("PUT", f"/api/v1/webhook/{name}", body, kind)
            answer = asked.getresponse()
            if answer.status != http.client.OK:
                raise SystemExit(answer.read().decode())

    def pace(self, seconds: int, *, others: bool = False) -> None:
        """Send messages for the well endpoint at a rate, and for the others at theirs."""
        for second in range(seconds):
            next_at, due_ms = time.monotonic() + 1, int(time.time() * 1000) + 2000
            rates = {"well": _RATE} | (dict.fromkeys(ILLS, _BAD_RATE) if others else {})
            for number, (name, rate) in enumerate(rates.items()):
                load = build_load(
                    rate,
                    per_request=20,
                    due_from_ms=due_ms,
                    spread_ms=1000,
                    first_number=(number * 1000 + second) * _RATE,
                    subjects=[f"{name}.hook".encode()],
                )
                send_load(self.server.address, load)
            time.sleep(max(next_at - time.monotonic(), 0))


class _Endpoints(Process):
    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.ports = [free_port() for _ in ("well", *ILLS)]
        super().__init__(
            "benchmarks.webhooks.endpoints", *map(str, self.ports), log=place / "endpoints.log"
        )
        stack.callback(self.kill)

    def summary(self) -> dict[str, Any]:
        """Stop them and return what the well one counted."""
        summary: dict[str, Any] = json.loads(self.stop())
        return summary


def measure(directory: Path, scale: float) -> Figures:
    """Measure all of it, one after another."""
    for number, one in enumerate((_posting, _burst, _lateness, _beside_bad)):
        place = directory / f"gateway{number}"
        place.mkdir()
        with ExitStack() as stack:
            yield from one(place, stack, scale)


def _posting(place: Path, stack: ExitStack, scale: float) -> Figures:
    cluster = _Cluster(place, stack)
    for size, requests in ((1, 20_000), (100, 2000)):
        before = cluster.gateway.cpu_seconds()
        client = Process(
            *("benchmarks.webhooks.posting", cluster.address),
            *(str(int(requests * scale)), str(size)),
            log=place / "posting.log",
        )
        rest, _ = client.child.communicate()
        cpu = (cluster.gateway.cpu_seconds() - before) / (int(requests * scale) * size)
        yield (
            f"POST of {size}, messages/s",
            f"{float(rest):,.0f}; gateway {cpu * 1e6:.1f} us CPU a message, {1 / cpu:,.0f} a core",
        )


def _burst(place: Path, stack: ExitStack, scale: float) -> Figures:
    cluster, endpoints = _Cluster(place, stack), _Endpoints(place, stack)
    cluster.set_webhook("well", f"http://127.0.0.1:{endpoints.ports[0]}/", concurrency=50)
    time.sleep(_FOLLOWED_S)
    messages = int(20_000 * scale)
    due_ms = int(time.time() * 1000) + _LEAD_S * 1000
    load = build_load(
        messages, per_request=20, due_from_ms=due_ms, spread_ms=1, subjects=[b"well.hook"]
    )
    send_load(cluster.server.address, load)
    time.sleep(seconds_left(due_ms - 500))
    before = cluster.gateway.cpu_seconds()
    while cluster.server.status()["brokers"]["well"]["delivered"] < messages:
        time.sleep(0.1)
    cpu = (cluster.gateway.cpu_seconds() - before) / messages
    found = endpoints.summary()
    yield (
        f"webhooks, {messages:,} due at once, to one endpoint",
        f"{messages / found['seconds']:,.0f}/s; gateway {cpu * 1e6:.0f} us, {1 / cpu:,.0f} a core",
    )
    yield "  received, distinct, early", [found[one] for one in ("received", "distinct", "early")]


def _lateness(place: Path, stack: ExitStack, scale: float) -> Figures:
    cluster, endpoints = _Cluster(place, stack), _Endpoints(place, stack)
    cluster.set_webhook("well", f"http://127.0.0.1:{endpoints.ports[0]}/")
    time.sleep(_FOLLOWED_S)
    cluster.pace(max(int(30 * scale), 5))
    time.sleep(4)
    found = endpoints.summary()
    yield f"webhooks at {_RATE}/s, lateness, ms", found["lateness_ms"]
    yield "  received, distinct, early", [found[one] for one in ("received", "distinct", "early")]


def _beside_bad(place: Path, stack: ExitStack, scale: float) -> Figures:
    cluster, endpoints = _Cluster(place, stack), _Endpoints(place, stack)
    for name, port in zip(("well", *ILLS), endpoints.ports, strict=True):
        scheme = "https" if name == "garbage" else "http"
        cluster.set_webhook(name, f"{scheme}://127.0.0.1:{port}/", timeout_s=10)
    time.sleep(_FOLLOWED_S)
    cluster.pace(max(int(30 * scale), 5), others=True)
    time.sleep(4)
    found = endpoints.summary()
    yield f"the same beside {len(ILLS)} bad endpoints, ms", found["lateness_ms"]
    yield "  received, distinct, early", [found[one] for one in ("received", "distinct", "early")]
    yield "  requests of the others", found["others"]
