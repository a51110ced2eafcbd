"""Notices what has become dearer: `make bench-guard`.

CPU of the delay server for each message (taken, delivered, and both at a time), and at rest, on
this tree and on the commit that the file `baseline` names, in turns: pairs of runs, since machines
are shared and noisy. Messages are taken by both in short turns, and by this tree without the window
of duplicates: `window` is what that costs. What counts is the median of the pairs' quotients. Each
tree is started by its own command line and spoken to over the wire only, so both may be as
different as they like. Exit code 1: a median is above the limit, and the pairs agree well enough to
believe it.
"""

import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from benchmarks.load import Load, build_load, send_load
from benchmarks.processes import Collector, DelayServer, free_port

PAIRS: Final = 7
DEARER_MAX: Final = 0.10
"""What a median may be above 1, and how far apart pairs may be that are believed."""

_ROOT: Final = Path(__file__).parent.parent
_TURNS: Final = 40
"""In which each server takes the messages of a pair."""
_TURN: Final = 5_000
"""Messages of a turn: some hundredths of a second."""
_DELIVERED: Final = 60_000
_PER_REQUEST: Final = 20
_AHEAD_S: Final = 6.0
"""From the sending of a burst until it is due: longer than sending takes."""
_DRAINED_S: Final = 30.0
_FILED_S: Final = 6.0
"""Seconds after a delivery until what it left to file is filed: then a server is at rest."""
_IDLE_S: Final = 3.0
_ITEM_BYTES: Final = 400
_ATTRIBUTES: Final = {
    "qmq_appCode": "shop1",
    "qmq_idc": "i1",
    "qmq_expireTime": "1790000000000",
    "qmq_createTIme": "1780000000000",
    "qmq_env": "p",
}
"""With these an item has 267 bytes, as of QMQ's Java client."""

Figures = dict[str, float]


def baseline_in(directory: Path) -> Path | None:
    """Return a copy of the tree of the baseline; None where its commit is not to be had."""
    commit = (_ROOT / "benchmarks" / "baseline").read_text().strip()
    found = subprocess.run(
        ["/usr/bin/env", "git", "-C", str(_ROOT), "archive", commit],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def measure_ingest(baseline: Path, directory: Path) -> list[tuple[Figures, Figures]]:
    """Return CPU in us a message taken, on this tree and the other one, for each pair."""
    far_ms = int(time.time() * 1000) + 3_600_000
    servers: list[DelayServer] = []
    found: list[tuple[Figures, Figures]] = []
    try:
        for name, tree, settings in (
            ("mine", _ROOT, ()),
            ("without", _ROOT, ("duplicates.window_ms=0",)),
            ("baseline", baseline, ()),
        ):
            place, port = directory / name, free_port()
            place.mkdir(parents=True)
            servers.append(DelayServer(place, broker_port=port, settings=settings, tree=tree))
        for first_turn in range(0, (1 + PAIRS) * _TURNS, _TURNS):
            before = [server.cpu_seconds() for server in servers]
            for turn in range(first_turn, first_turn + _TURNS):
                load, first = _load(_TURN, far_ms, turn * _TURN), turn % len(servers)
                for server in servers[first:] + servers[:first]:
                    _send(server, load)
            mine, without, theirs = (
                (server.cpu_seconds() - then) / (_TURNS * _TURN) * 1e6
                for server, then in zip(servers, before, strict=True)
            )
            found.append(({"ingest": mine, "window": mine}, {"ingest": theirs, "window": without}))
    finally:
        for server in servers:
            server.kill()
    # What is loaded and allocated once was paid in the first.
    return found[1:]


def measure(tree: Path, directory: Path) -> Figures:
    """Return CPU of one run: us a message delivered, and of both, and ms a second at rest.

    together: messages are taken while as many are delivered, for each of all of them.
    """
    collector = Collector(directory, groups=1, size=2 * _DELIVERED * _ITEM_BYTES + (64 << 20))
    server = DelayServer(directory, broker_port=collector.ports, tree=tree)
    try:
        _send_ahead(server, 0)
        delivery = _cost(server, lambda: _until_pending(server, 0))
        time.sleep(_FILED_S)
        idle = _cost(server, lambda: time.sleep(_IDLE_S))
        _send_ahead(server, _DELIVERED)
        more = _load(_DELIVERED, int(time.time() * 1000) + 3_600_000, 2 * _DELIVERED)
        together = _cost(server, lambda: _send_and_wait(server, more, _DELIVERED))
    finally:
        server.kill()
        collector.kill()
    return {
        "delivery": delivery / _DELIVERED * 1e6,
        "together": together / (2 * _DELIVERED) * 1e6,
        "idle": idle / _IDLE_S * 1e3,
    }


def _load(messages: int, due_ms: int, first_number: int) -> Load:
    return build_load(
        messages,
        per_request=_PER_REQUEST,
        due_from_ms=due_ms,
        spread_ms=500,
        first_number=first_number,
        attributes=_ATTRIBUTES,
    )


def _send(server: DelayServer, load: Load) -> None:
    send_load(server.address, load, connections=2)


def _send_ahead(server: DelayServer, first_number: int) -> None:
    """Send what is delivered next; return shortly before it is due."""
    due_s = time.time() + _AHEAD_S
    _send(server, _load(_DELIVERED, int(due_s * 1000), first_number))
    time.sleep(max(due_s - 0.2 - time.time(), 0))


def _send_and_wait(server: DelayServer, load: Load, pending: int) -> None:
    _send(server, load)
    _until_pending(server, pending)


def _until_pending(server: DelayServer, count: int) -> None:
    until = time.monotonic() + _DRAINED_S
    while server.status()["pending"] > count:
        if time.monotonic() > until:
            raise SystemExit("the burst was not delivered")
        time.sleep(0.25)


def _cost(server: DelayServer, work: Callable[[], None]) -> float:
    before = server.cpu_seconds()
    work()
    return server.cpu_seconds() - before


def judge(pairs: list[tuple[Figures, Figures]]) -> bool:
    """Print what the pairs (this tree, the baseline) say; return whether something is dearer."""
    is_dearer = False
    for name in pairs[0][0]:
        found = [mine[name] / max(theirs[name], 1e-9) for mine, theirs in pairs]
        middle, (low, _, high) = median(found), quantiles(found, n=4)
        spread = high - low
        verdict = "as before"
        if spread > DEARER_MAX:
            verdict = "cannot tell"
        elif middle > 1 + DEARER_MAX:
            verdict, is_dearer = "DEARER", True
        mine = median(one[name] for one, _ in pairs)
        print(
            f"{name:9} {middle:5.2f} of the baseline, spread {spread:.2f}: {verdict} ({mine:.1f})"
        )
    return is_dearer


def main() -> int:
    """Measure all pairs; return the exit code."""
    with tempfile.TemporaryDirectory() as place:
        baseline = baseline_in(Path(place) / "baseline")
        if baseline is None:
            print("cannot tell: the commit of benchmarks/baseline is not in this clone")
            return 0
        pairs = []
        for number, (mine, theirs) in enumerate(measure_ingest(baseline, Path(place) / "ingest")):
            found: dict[Path, Figures] = {}
            for tree in (_ROOT, baseline) if number % 2 else (baseline, _ROOT):
                directory = Path(place) / f"{number}-{tree.name}"
                directory.mkdir()
                found[tree] = measure(tree, directory)
            pairs.append((mine | found[_ROOT], theirs | found[baseline]))
            print(
                number + 1, *(f"{k} {v:.2f}/{pairs[-1][1][k]:.2f}" for k, v in pairs[-1][0].items())
            )
        return int(judge(pairs))


if __name__ == "__main__":
    sys.exit(main())
