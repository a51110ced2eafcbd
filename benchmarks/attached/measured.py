"""Figures of receivers, with a broker group at the same server's kind beside them."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.load import build_load, seconds_left, send_load
from benchmarks.processes import DelayServer, Process, Receiver
from benchmarks.replicas.rates import send_second_by_second

Figures = Iterator[tuple[str, object]]

_NAME: Final = "bench0"
_LEAD_S: Final = 8
_WITHIN_S: Final = 60
"""Seconds in which everything has to be delivered."""


class Service(Process):
    """A service that counts what it receives."""

    def __init__(self, directory: Path, server: DelayServer, *, form: str, number: int) -> None:
        super().__init__(
            "benchmarks.attached.service", f"127.0.0.1:{server.port}", _NAME, form,
            log=directory / f"service{number}.log",
        )  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Stop it and return what it counted."""
        summary: dict[str, Any] = json.loads(self.stop())
        return summary


def _attaching(directory: Path) -> DelayServer:
    return DelayServer(directory, settings=(f"brokers.{_NAME}=attached",))


def _until_delivered(server: DelayServer, messages: int) -> None:
    until = time.monotonic() + _WITHIN_S
    while server.status()["brokers"][_NAME]["delivered"] < messages:
        if time.monotonic() > until:
            raise SystemExit(f"not all was delivered within {_WITHIN_S} s: {server.status()}")
        time.sleep(0.2)


def _burst(server: DelayServer, messages: int) -> float:
    """Have messages due at one moment and delivered; return the server's CPU seconds of that."""
    due_ms = int(time.time() * 1000) + _LEAD_S * 1000
    send_load(server.address, build_load(messages, per_request=20, due_from_ms=due_ms, spread_ms=1))
    time.sleep(seconds_left(due_ms - 1000))
    before = server.cpu_seconds()
    time.sleep(seconds_left(due_ms))
    _until_delivered(server, messages)
    return server.cpu_seconds() - before


def _told(counted: Sequence[dict[str, Any]], messages: int, cpu: float) -> str:
    seconds = max(one["last_ms"] for one in counted) - min(one["first_ms"] for one in counted)
    once = sum(one["distinct"] for one in counted) == messages
    early = sum(one["early"] for one in counted)
    return (
        f"{messages / seconds * 1000:,.0f}/s, server {cpu / messages * 1e6:.1f} us a message"
        f"{', each once' if once else ', NOT each once'}, {early} early"
    )


def bursts(directory: Path, scale: float) -> Figures:
    """Measure a burst: to a broker, to one receiver, to four, and in batches."""
    messages = int(200_000 * scale)
    place = directory / "broker"
    place.mkdir()
    broker = Receiver(place)
    server = DelayServer(place, broker_port=broker.port)
    cpu = _burst(server, messages)
    server.stop()
    yield f"a burst of {messages:,}, one broker", _told([broker.summary()], messages, cpu)
    for services, form in ((1, "handlers"), (4, "handlers"), (1, "batches")):
        place = directory / f"{form}{services}"
        place.mkdir()
        server = _attaching(place)
        running = [Service(place, server, form=form, number=number) for number in range(services)]
        cpu = _burst(server, messages)
        counted = [one.summary() for one in running]
        server.stop()
        own = sum(one["cpu_seconds"] for one in counted) / messages * 1e6
        yield (
            f"the same, {services} receiver{'s' * (services > 1)}, {form}",
            f"{_told(counted, messages, cpu)}; receivers {own:.1f} us a message",
        )


def lateness(directory: Path, scale: float) -> Figures:
    """Measure lateness at 1,000 messages a second, from the due time to the handler."""
    seconds = max(int(30 * scale), 5)
    place = directory / "lateness"
    place.mkdir()
    with ExitStack() as stack:
        server = _attaching(place)
        stack.callback(server.kill)
        service = Service(place, server, form="handlers", number=0)
        before = server.cpu_seconds()
        send_second_by_second(server.address, seconds)
        time.sleep(4)
        cpu = server.cpu_seconds() - before
        counted = service.summary()
    yield "lateness at 1,000 messages/s, one receiver, ms", counted["lateness_ms"]
    yield "  received, early", f"{counted['received']:,}, {counted['early']}"
    messages = seconds * 1000
    yield (
        "  CPU us a message, server; receiver",
        f"{cpu / messages * 1e6:.0f}; {counted['cpu_seconds'] / messages * 1e6:.0f}",
    )
