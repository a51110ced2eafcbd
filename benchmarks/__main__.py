"""`python -m benchmarks [NAME …]`: the figures of docs/performance.md, one run each.

ingest     durable ingest, 100-byte bodies, 20 a request, due within an hour and within a year
delivery   1,000,000 messages due in half a second, to one broker group and to four
lateness   1,000 messages a second
both       ingest and delivery together, at 100,000 messages a second and at 1,000
restart    SIGKILL with 2,000,000 messages pending
replicas   ingest, answers, delivery and both at once with slaves in sync; CPU of each node
receivers  a burst to receivers that attach, and lateness at 1,000 messages a second; the same of
           subjects that two names receive, of one name's; a subject beside one that 16 receive
gateway    POST of single messages and of lists; webhooks at once, at 200 a second, and beside ten
           endpoints that are not well (needs the extra `gateway`)
registering  a meta server: 200,000 subjects loaded, 5,000 registrations at once and an operator
           beside, 1,000 groups of three delay servers and 100 elections at once
looking    pages, counts and cancels of 10,000,000 pending messages, and lateness beside them
reconcile  1,000,000 messages, then ten times as many: CPU and memory (needs pyarrow)
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import burst, looking, registering
from benchmarks.attached import measured as attached
from benchmarks.both import together
from benchmarks.load import Load, build_load, codec_seconds, send_load
from benchmarks.processes import DelayServer, Receiver
from benchmarks.replicas import rates
from benchmarks.webhooks import measured as webhooks

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def say(name: str, value: object) -> None:
    """Print one figure."""
    print(f"  {name:<46} {value}", flush=True)


def now_ms() -> int:
    """Return the wall clock."""
    return int(time.time() * 1000)


def ingest(directory: Path, scale: float) -> None:
    """Measure durable ingest."""
    for name, spread_ms in (("an hour", HOUR_MS), ("a year", YEAR_MS)):
        messages = int(1_000_000 * scale)
        load = build_load(
            messages, per_request=20, due_from_ms=now_ms() + 600_000, spread_ms=spread_ms
        )
        codec = codec_seconds(load) / load.messages
        where = directory / f"ingest-{spread_ms}"
        where.mkdir()
        receiver = Receiver(where)
        server = DelayServer(where, broker_port=receiver.port)
        before = server.cpu_seconds()
        seconds = send_load(server.address, load, connections=2)
        lag = server.status()["replay_lag"]
        to_ack = (server.cpu_seconds() - before) / load.messages
        caught_up = time.perf_counter()
        while server.status()["replay_lag"]:
            time.sleep(0.05)
        caught_up = time.perf_counter() - caught_up
        while server.status()["checkpoint_sequence"] < load.messages + 1:
            time.sleep(2)
        whole = (server.cpu_seconds() - before) / load.messages
        say(f"ingest, due within {name}", f"{load.messages / seconds:,.0f} messages/s")
        say("  plain codec loop", f"{codec * 1e6:.2f} us CPU a message")
        say("  server, until acknowledged", f"{to_ack * 1e6:.2f} us, {to_ack / codec:.1f} times")
        say("  server, filed and checkpointed", f"{whole * 1e6:.2f} us, {whole / codec:.1f} times")
        say("  replay lag at the end", f"{lag:,} messages, caught up in {caught_up:.1f} s")
        say("  memory", f"{server.memory_mib():.0f} MiB")
        server.stop()
        receiver.stop()
        shutil.rmtree(where)


def delivery(directory: Path, scale: float) -> None:
    """Measure a burst, to one broker group and to four."""
    for groups in (1, 4):
        where = directory / f"delivery-{groups}"
        where.mkdir()
        for name, value in burst.measure(where, scale, groups=groups):
            say(name, value)
        shutil.rmtree(where)


def lateness(directory: Path, scale: float) -> None:
    """Measure lateness at a modest rate."""
    seconds = int(30 * scale)
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port)
    rates.send_second_by_second(server.address, seconds)
    time.sleep(4)
    server.stop()
    counted = receiver.summary()
    say("lateness at 1,000 messages/s, ms", counted["lateness_ms"])
    say("  received, early", f"{counted['received']:,}, {counted['early']}")


def both(directory: Path, scale: float) -> None:
    """Measure ingest and delivery together at set rates."""
    for rate, seconds in ((100_000, 60), (1000, 30)):
        found = together.measure(directory, scale, rate=rate, seconds=seconds)
        for name, value in found.figures():
            say(name, value)


def restart(directory: Path, scale: float) -> None:
    """Measure a restart after SIGKILL."""
    messages = int(2_000_000 * scale)
    load: Load = build_load(
        messages, per_request=100, due_from_ms=now_ms() + 600_000, spread_ms=HOUR_MS
    )
    receiver = Receiver(directory)
    server = DelayServer(directory, broker_port=receiver.port)
    send_load(server.address, load, connections=2)
    server.kill()
    server = DelayServer(directory, broker_port=receiver.port)
    status = server.status()
    say(f"restart with {messages:,} pending", f"{server.seconds_to_ready:.2f} s until ready")
    say("  of it recovery", f"{status['recovery_seconds']:.2f} s")
    say("  pending after it", f"{status['pending']:,}")
    say("  memory", f"{server.memory_mib():.0f} MiB")
    server.stop()
    receiver.stop()


def replicas(directory: Path, scale: float) -> None:
    """Measure what copies on other nodes cost."""
    for measure in (rates.ingest, rates.answers, rates.both, rates.bursts, rates.lateness):
        for name, value in measure(directory, scale):
            say(name, value)


def receivers(directory: Path, scale: float) -> None:
    """Measure what receivers get, how late, and what it costs."""
    for measure in (attached.bursts, attached.lateness, attached.names, attached.many_names):
        for name, value in measure(directory, scale):
            say(name, value)


def gateway(directory: Path, scale: float) -> None:
    """Measure what a gateway takes, and what it posts."""
    for name, value in webhooks.measure(directory, scale):
        say(name, value)


def register(directory: Path, scale: float) -> None:
    """Measure what a meta server takes."""
    for name, value in registering.measure(directory, scale):
        say(name, value)


def look(directory: Path, scale: float) -> None:
    """Measure looks at many pending messages."""
    for name, value in looking.measure(directory, scale):
        say(name, value)


def reconcile(directory: Path, scale: float) -> None:
    """Measure how fast logs are reconciled."""
    # pyarrow is optional, and nothing else here needs it.
    from benchmarks.reconciling import measure  # noqa: PLC0415

    for name, value in measure(directory, scale):
        say(name, value)


BENCHMARKS: dict[str, Callable[[Path, float], None]] = {
    "ingest": ingest,
    "delivery": delivery,
    "lateness": lateness,
    "both": both,
    "restart": restart,
    "replicas": replicas,
    "receivers": receivers,
    "gateway": gateway,
    "registering": register,
    "looking": look,
    "reconcile": reconcile,
}


def main() -> None:
    """Run the benchmarks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(BENCHMARKS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    for name in options.names or BENCHMARKS:
        print(name, flush=True)
        with tempfile.TemporaryDirectory(prefix="delaywheel-bench-") as directory:
            BENCHMARKS[name](Path(directory), options.scale)


if __name__ == "__main__":
    main()
