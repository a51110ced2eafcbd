"""What rules cost: a thousand rate limits, and a subject that was paused for three days.

Beside either others have 1,000 messages a second, whose lateness tells what they notice.
"""

import http
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.load import build_load, seconds_left, send_load
from benchmarks.processes import DelayServer, Receiver
from benchmarks.receiver import HOT

LIMITS: Final = 1000
PAUSED_MS: Final = 3 * 24 * 3_600_000
_PER_SECOND: Final = 20
"""What each limited subject may have."""
_LIMITED_S: Final = 10
_OTHERS_PER_S: Final = 1000
_OTHERS: Final = tuple(b"bench.other%d" % number for number in range(50))
_LEAD_S: Final = 15
_FILED_S: Final = 300.0
_DRAINED_S: Final = 600.0


def limits(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Yield the figures of subjects with a limit each, all of their messages due at once."""
    count = int(LIMITS * scale)
    messages = count * _PER_SECOND * _LIMITED_S
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port)
    names = tuple(HOT + b"%d" % number for number in range(count))
    for name in names:
        _set_rule(server, name, {"rate_per_s": _PER_SECOND})
    due_ms = int((time.time() + _LEAD_S) * 1000)
    send_load(
        server.address,
        build_load(messages, per_request=100, due_from_ms=due_ms, spread_ms=1, subjects=names),
    )
    _send_others(server, due_ms, _LIMITED_S, messages)
    time.sleep(seconds_left(due_ms - 500))
    before = server.cpu_seconds()
    _until_delivered(server)
    cpu = server.cpu_seconds() - before
    found = _counted(server, receiver)
    sent = messages + _LIMITED_S * _OTHERS_PER_S
    yield (
        f"{messages:,} of {count:,} subjects, {_PER_SECOND} a second each",
        f"delivered in {(found['last_ms'] - due_ms) / 1000:.1f} s ({_LIMITED_S} s by the limits)",
    )
    yield "  server CPU", f"{cpu / sent * 1e6:.1f} us a message"
    yield from _told(found)


def pause(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Yield the figures of a subject that was paused for three days, spread over all of them."""
    messages = int(5_000_000 * scale)
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port, behind_ms=PAUSED_MS)
    _set_rule(server, HOT, {"paused": True})
    from_ms = int(time.time() * 1000) - PAUSED_MS + 60_000
    for part in range(10):
        # Bit by bit: all of it would fill this process's memory.
        load = build_load(
            messages // 10,
            per_request=100,
            due_from_ms=from_ms,
            spread_ms=PAUSED_MS,
            seed=part,
            subjects=(HOT,),
            first_number=part * messages // 10,
        )
        send_load(server.address, load, connections=2)
    until = time.monotonic() + _FILED_S
    while server.status()["replay_lag"] and time.monotonic() < until:
        time.sleep(0.5)
    server.stop()
    server = DelayServer(directory, broker_port=receiver.port)
    # It does not know what came to pass in these days.
    _ask(server, "POST", "/clock/accept", {})
    yield f"{messages:,} paused for three days: start", f"{server.seconds_to_ready:.2f} s"
    time.sleep(5)
    yield "  memory while paused", f"{server.memory_mib('RssAnon'):.0f} MiB but mapped files"
    due_ms = int(time.time() * 1000) + 3000
    _send_others(server, due_ms, _LIMITED_S, messages)
    time.sleep(seconds_left(due_ms + 1000))
    before, resumed_ms = server.cpu_seconds(), time.time() * 1000
    _set_rule(server, HOT, {"paused": False})
    most_mib = _until_delivered(server)
    cpu = server.cpu_seconds() - before
    found = _counted(server, receiver)
    yield "  all delivered after", f"{(found['last_ms'] - resumed_ms) / 1000:.1f} s"
    yield "  server CPU", f"{cpu / messages * 1e6:.2f} us a message"
    yield "  memory at the most", f"{most_mib:.0f} MiB but mapped files"
    yield from _told(found)


def _send_others(server: DelayServer, due_ms: int, seconds: int, first_number: int) -> None:
    load = build_load(
        seconds * _OTHERS_PER_S,
        per_request=20,
        due_from_ms=due_ms,
        spread_ms=seconds * 1000,
        subjects=_OTHERS,
        first_number=first_number,
    )
    send_load(server.address, load)


def _set_rule(server: DelayServer, name: bytes, rule: dict[str, Any]) -> None:
    _ask(server, "PUT", f"/controls/subjects/{name.decode()}", rule)


def _ask(server: DelayServer, method: str, path: str, body: object) -> None:
    connection = http.client.HTTPConnection(*server.http_address)
    connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.OK:
        raise SystemExit(f"{method} {path} was refused: {answer.read()!r}")
    connection.close()


def _until_delivered(server: DelayServer) -> float:
    """Wait until nothing is pending; return the most memory meanwhile, in MiB."""
    until = time.monotonic() + _DRAINED_S
    most_mib = 0.0
    while server.status()["pending"]:
        most_mib = max(most_mib, server.memory_mib("RssAnon"))
        if time.monotonic() > until:
            raise SystemExit(f"not delivered within {_DRAINED_S:.0f} s")
        time.sleep(0.2)
    return most_mib


def _counted(server: DelayServer, receiver: Receiver) -> dict[str, Any]:
    time.sleep(0.5)
    server.stop()
    return receiver.summary()


def _told(found: dict[str, Any]) -> Iterator[tuple[str, object]]:
    counts = [found[name] for name in ("received", "distinct", "early")]
    yield "  received, distinct, early", counts
    yield "  lateness of other subjects, ms", found["lateness_of_others_ms"]
