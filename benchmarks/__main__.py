"""`python -m benchmarks [NAME …]`: the figures of docs/performance.md, one run each.

ingest     durable ingest, 100-byte bodies, 20 a request, due within an hour and within a year
delivery   1,000,000 messages due in half a second, to one broker group and to four
lateness   1,000 messages a second
both       ingest and delivery together, at 100,000 messages a second and at 1,000
both-max   the highest rate at which both hold for a minute (needs 10 GB of memory)
restart    SIGKILL with 2,000,000 messages pending
neighbours a good producer beside thousands of bad peers
hostile    a good neighbour's answers beside 3,000 hostile connections
isolation  a group that is dead, a subject that is poisonous or overdue: what others notice
backlog    5,000,000 of one subject due in one minute, room for 400,000, a broker of 50,000/s
limits     1,000 subjects with a rate limit each, all due at once
pause      5,000,000 of one subject, spread over three days of a pause, and resumed
receivers  a burst to receivers that attach, and lateness at 1,000 messages a second
replicas   ingest, answers, delivery and both at once with slaves in sync; CPU of each node
joining    an empty node that copies 10,000,000 messages, 2,000,000 of a snapshot; idle nodes
handover   20 handovers of a group under load
meta       10,000 clients and 100,000 subjects on one meta server
decode     2,000,000 messages from the logs to Arrow tables, with and without blobs (needs pyarrow)
reconcile  1,000,000 messages, then ten times as many: CPU and memory (needs pyarrow)
hourly     2 days of messages by the hour and at once; 20,000,000 due in one minute (needs pyarrow)
spark      2,000,000 messages read by Spark on two cores, and reconciled (needs pyspark and Java 17)
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import burst, registrations
from benchmarks import isolation as ills
from benchmarks.attached import measured as attached
from benchmarks.both import together
from benchmarks.hostile import answers as among_hostile
from benchmarks.hostile import neighbours as bad
from benchmarks.load import Load, build_load, codec_seconds, seconds_left, send_load
from benchmarks.processes import DelayServer, Receiver
from benchmarks.receiver import HOT
from benchmarks.replicas import handover, joining, rates
from benchmarks.ruled import measured as ruled

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
        for name, value in together.told(directory, scale, rate=rate, seconds=seconds):
            say(name, value)


def both_max(directory: Path, scale: float) -> None:
    """Measure the highest rate that ingest and delivery hold together."""
    for name, value in together.highest(directory, scale):
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


def neighbours(directory: Path, scale: float) -> None:
    """Measure what bad peers take from good ones."""
    for name, value in bad.measure(directory, scale):
        say(name, value)


def hostile(directory: Path, scale: float) -> None:
    """Measure how long answers take beside hostile connections, and how many do not come."""
    for name, value in among_hostile.measure(directory, scale):
        say(name, value)


def isolation(directory: Path, scale: float) -> None:
    """Measure what others notice of a group that is ill, and of a subject that is."""
    for name, value in ills.measure(directory, scale):
        say(name, value)


def backlog(directory: Path, scale: float) -> None:
    """Measure a hot subject that far exceeds memory and broker, and what others notice of it."""
    messages, others = int(5_000_000 * scale), int(6000 * scale)
    entries_max, rate = int(400_000 * scale), 50_000 * scale
    receiver = Receiver(directory, rate=rate)
    settings = (f"wheel.entries_max={entries_max}",)
    server = DelayServer(directory, broker_port=receiver.port, settings=settings)
    lead_ms = int(30_000 + 210_000 * scale)
    due_ms = now_ms() + lead_ms
    spread: dict[str, Any] = {"due_from_ms": due_ms, "spread_ms": 60_000}
    cold = tuple(b"bench.other%d" % number for number in range(50))
    for part in range(10):
        # Bit by bit: all of it would fill this process's memory.
        hot = build_load(
            messages // 10,
            per_request=100,
            seed=part,
            subjects=(HOT,),
            first_number=part * messages // 10,
            **spread,
        )
        send_load(server.address, hot, connections=2)
        rest = build_load(
            others // 10,
            per_request=20,
            subjects=cold,
            first_number=messages + part * others,
            **spread,
        )
        send_load(server.address, rest)
    seconds_left(due_ms, at_least_s=3)
    say("memory before it is due", f"{server.memory_mib():.0f} MiB")
    most_held = most_mib = own_mib = 0.0
    while (status := server.status())["pending"]:
        most_held = max(most_held, status["held_entries"])
        most_mib = max(most_mib, server.memory_mib())
        own_mib = max(own_mib, server.memory_mib("RssAnon"))
        time.sleep(0.1)
    time.sleep(0.5)
    server.stop()
    counted = receiver.summary()
    seconds = (counted["last_ms"] - due_ms) / 1000
    say(f"{messages:,} of one subject due in one minute", f"all delivered after {seconds:.0f} s")
    say("  entries in memory", f"{most_held:,.0f} at the most, set are {entries_max:,}")
    say("  memory", f"{most_mib:.0f} MiB at the most, {own_mib:.0f} of it not mapped files")
    say(
        "  received, distinct, early", [counted[name] for name in ("received", "distinct", "early")]
    )
    say("  lateness of all, ms", counted["lateness_ms"])
    say("  lateness of other subjects, ms", counted["lateness_of_others_ms"])


def limits(directory: Path, scale: float) -> None:
    """Measure what a thousand rate limits cost."""
    for name, value in ruled.limits(directory, scale):
        say(name, value)


def pause(directory: Path, scale: float) -> None:
    """Measure the end of a long pause."""
    for name, value in ruled.pause(directory, scale):
        say(name, value)


def meta(directory: Path, scale: float) -> None:
    """Measure the meta server with many clients."""
    for name, value in registrations.measure(directory, scale):
        say(name, value)


def decode(directory: Path, scale: float) -> None:
    """Measure reading the logs as Arrow tables."""
    # pyarrow is optional, and nothing else here needs it.
    from benchmarks.decode import measure  # noqa: PLC0415

    for name, value in measure(directory, scale):
        say(name, value)


def reconcile(directory: Path, scale: float) -> None:
    """Measure how fast logs are reconciled."""
    # Needs pyarrow, which the others do not.
    from benchmarks.reconciling import measure  # noqa: PLC0415

    for name, value in measure(directory, scale):
        say(name, value)


def hourly(directory: Path, scale: float) -> None:
    """Measure what an hour costs, and the memory that large segments take."""
    # Needs pyarrow, which the others do not.
    from benchmarks.hourly import measure  # noqa: PLC0415

    for name, value in measure(directory, scale):
        say(name, value)


def spark(directory: Path, scale: float) -> None:
    """Measure what Spark reads of the logs."""
    # Needs pyspark, and Java.
    from benchmarks.spark_reading import measure  # noqa: PLC0415

    for name, value in measure(directory, scale):
        say(name, value)


def receivers(directory: Path, scale: float) -> None:
    """Measure what receivers get, how late, and what it costs."""
    for measure in (attached.bursts, attached.lateness):
        for name, value in measure(directory, scale):
            say(name, value)


def replicas(directory: Path, scale: float) -> None:
    """Measure what copies on other nodes cost."""
    for measure in (rates.ingest, rates.answers, rates.both, rates.bursts, rates.lateness):
        for name, value in measure(directory, scale):
            say(name, value)


def joined(directory: Path, scale: float) -> None:
    """Measure how empty nodes join, and what nodes cost that rest."""
    for measure in (joining.idle, joining.snapshot, joining.catch_up):
        for name, value in measure(directory, scale):
            say(name, value)


def handed_over(directory: Path, scale: float) -> None:
    """Measure handovers."""
    for name, value in handover.measure(directory, scale):
        say(name, value)


BENCHMARKS: dict[str, Callable[[Path, float], None]] = {
    "ingest": ingest,
    "delivery": delivery,
    "lateness": lateness,
    "both": both,
    "both-max": both_max,
    "restart": restart,
    "neighbours": neighbours,
    "hostile": hostile,
    "isolation": isolation,
    "backlog": backlog,
    "limits": limits,
    "pause": pause,
    "receivers": receivers,
    "replicas": replicas,
    "joining": joined,
    "handover": handed_over,
    "meta": meta,
    "decode": decode,
    "reconcile": reconcile,
    "hourly": hourly,
    "spark": spark,
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
