"""Figures of receivers, with a broker group at the same server's kind beside them."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.load import build_load, seconds_left, send_load
from benchmarks.processes import DelayServer, MetaServer, Process, Receiver
from benchmarks.replicas.rates import send_second_by_second

Figures = Iterator[tuple[str, object]]

_NAME: Final = "bench0"
_LEAD_S: Final = 8
_TURNS: Final = 3
_WITHIN_S: Final = 60
"""Seconds in which everything has to be delivered."""
_BESIDE_RATE: Final = 200
"""Messages a second of the subject that is beside another one."""
_MANY_WITHIN_S: Final = 180
"""Seconds in which all that many names receive has to be delivered."""


class Service(Process):
    """A service that counts what it receives."""

    def __init__(
        self,
        directory: Path,
        where: str,
        *,
        form: str,
        number: int,
        name: str = _NAME,
        pattern: str = "bench.*",
    ) -> None:
        """Start it; `where` and `pattern` are as benchmarks.attached.service takes them."""
        log = directory / f"service{number}.log"
        super().__init__("benchmarks.attached.service", where, name, form, pattern, log=log)

    def summary(self) -> dict[str, Any]:
        """Stop it and return what it counted."""
        summary: dict[str, Any] = json.loads(self.stop())
        return summary


def _place_of(server: DelayServer) -> str:
    return f"127.0.0.1:{server.port}"


def _attaching(directory: Path) -> DelayServer:
    return DelayServer(directory, settings=(f"brokers.{_NAME}=attached",))


def _until_delivered(server: DelayServer, messages: int, names: Sequence[str] = (_NAME,)) -> None:
    until = time.monotonic() + _WITHIN_S
    while any(server.status()["brokers"][one]["delivered"] < messages for one in names):
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
        running = [
            Service(place, _place_of(server), form=form, number=number)
            for number in range(services)
        ]
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
        service = Service(place, _place_of(server), form="handlers", number=0)
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


@dataclass(frozen=True, slots=True)
class _Shared:
    """Results of a run with messages that each of some names receives."""

    burst_us: float
    """CPU of the server for each message that was sent, from its arrival to its delivery."""
    rate_us: float
    """The same at 1,000 messages a second."""
    lateness_ms: Sequence[dict[str, int]]
    """Lateness of each name at that rate."""
    is_complete: bool
    """True if each name got each message once, and none early."""


def names(directory: Path, scale: float) -> Figures:
    """Measure subjects that two names receive, and that one receives, in turns."""
    found: dict[int, list[_Shared]] = {1: [], 2: []}
    for turn in range(_TURNS):
        for receiving, runs in found.items():
            place = directory / f"names-{turn}-{receiving}"
            place.mkdir()
            runs.append(_shared(place, [f"name{number}" for number in range(receiving)], scale))
    for receiving, runs in found.items():
        yield (
            f"{receiving} name{'s' * (receiving > 1)}, CPU us a message, a burst; 1,000/s",
            "; ".join(
                ", ".join(f"{one:.0f}" for one in some)
                for some in ([run.burst_us for run in runs], [run.rate_us for run in runs])
            ),
        )
        for run in runs:
            yield "  lateness at 1,000 messages/s, ms", list(run.lateness_ms)
        yield "  each once, none early", all(run.is_complete for run in runs)
    pairs = list(zip(*found.values(), strict=True))
    yield (
        "CPU of two names, of one name's: a burst; 1,000/s",
        "; ".join(
            f"{median(some):.2f}"
            for some in (
                [two.burst_us / one.burst_us for one, two in pairs],
                [two.rate_us / one.rate_us for one, two in pairs],
            )
        ),
    )


def _shared(place: Path, names: Sequence[str], scale: float) -> _Shared:
    """Measure a burst to these names, and then a rate, each with services of its own."""
    messages, seconds = int(100_000 * scale), max(int(10 * scale), 5)
    with ExitStack() as stack:
        meta = MetaServer(place)
        stack.callback(meta.kill)
        server = DelayServer(place, meta_port=meta.http_port)
        stack.callback(server.kill)

        def services() -> list[Service]:
            where = f"meta=127.0.0.1:{meta.http_port}"
            some = [
                Service(place, where, form="handlers", number=number, name=name)
                for number, name in enumerate(names)
            ]
            for one in some:
                stack.callback(one.kill)
            return some

        running = services()
        before = server.cpu_seconds()
        due_ms = int(time.time() * 1000) + _LEAD_S * 1000
        load = build_load(messages, per_request=20, due_from_ms=due_ms, spread_ms=1)
        send_load(server.address, load)
        time.sleep(seconds_left(due_ms))
        _until_delivered(server, messages, names)
        burst = server.cpu_seconds() - before
        counted = [one.summary() for one in running]
        running = services()
        before = server.cpu_seconds()
        send_second_by_second(server.address, seconds)
        time.sleep(4)
        rate = server.cpu_seconds() - before
        paced = [one.summary() for one in running]
    return _Shared(
        burst / messages * 1e6,
        rate / seconds / 1000 * 1e6,
        [one["lateness_ms"] for one in paced],
        all(one["distinct"] == one["received"] == messages for one in counted)
        and all(one["received"] == seconds * 1000 for one in paced)
        and not any(one["early"] for one in (*counted, *paced)),
    )


def many_names(directory: Path, scale: float) -> Figures:
    """Measure how late a subject is beside one that 1 name, or 16, receive with much due in 1 s.

    It is measured from before the copies are made until the last of them is delivered. The services
    of the names give way to all others, so that the figure is the server's and not theirs: 16 of
    them take as much CPU as the server does. On a machine that does other work as well begin the
    benchmark by `chrt -r 2`: then that gives way, too.
    """
    for names in (1, 16):
        place = directory / f"many-{names}"
        place.mkdir()
        yield from _beside(place, names, int(100_000 * scale))


def _beside(place: Path, names: int, messages: int) -> Figures:
    """Measure a subject at a low rate beside a burst to so many names."""
    with ExitStack() as stack:
        meta = MetaServer(place)
        stack.callback(meta.kill)
        server = DelayServer(place, meta_port=meta.http_port)
        stack.callback(server.kill)

        def service(number: int, name: str, pattern: str) -> Service:
            where = f"meta=127.0.0.1:{meta.http_port}"
            one = Service(place, where, form="handlers", number=number, name=name, pattern=pattern)
            stack.callback(one.kill)
            return one

        running = [service(number, f"name{number}", "bench.*") for number in range(names)]
        beside = service(names, "beside", "beside.*")
        for one in running:
            one.give_way()
        memory = [server.memory_mib()]
        due_ms = 0
        for second in count():
            next_at, now_ms = time.monotonic() + 1, int(time.time() * 1000)
            load = build_load(
                _BESIDE_RATE,
                per_request=20,
                due_from_ms=now_ms + 2000,
                spread_ms=1000,
                first_number=second * _BESIDE_RATE,
                subjects=[b"beside.subject"],
            )
            send_load(server.address, load)
            if second == 3:
                due_ms = now_ms + _LEAD_S * 1000
                load = build_load(
                    messages,
                    per_request=20,
                    due_from_ms=due_ms,
                    spread_ms=1000,
                    subjects=[b"bench.subject"],
                )
                send_load(server.address, load)
            memory.append(server.memory_mib())
            brokers = server.status()["brokers"]
            if all(brokers[f"name{number}"]["delivered"] == messages for number in range(names)):
                break
            if second > _MANY_WITHIN_S:
                raise SystemExit(f"not all was delivered within {_MANY_WITHIN_S} s: {brokers}")
            time.sleep(max(next_at - time.monotonic(), 0))
        took_s = time.time() - due_ms / 1000
        time.sleep(4)
        counted, late = [one.summary() for one in running], beside.summary()
    are_complete = all(one["distinct"] == one["received"] == messages for one in counted)
    are_early = any(one["early"] for one in (*counted, late))
    yield (
        f"{messages:,} due in 1 s to {names} name{'s' * (names > 1)}",
        f"delivered in {took_s:.0f} s; {memory[0]:.0f} MiB before, {max(memory):.0f} at its peak",
    )
    yield "  each once to each name, none early", are_complete and not are_early
    yield f"  lateness of a subject at {_BESIDE_RATE}/s beside it, ms", late["lateness_ms"]
