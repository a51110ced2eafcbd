"""Reports of QMQ's own producer while a group of our delay servers fails over.

Nothing that it reports as sent is lost, and it goes on. What else it reports is counted and
printed: docs/compatibility.md has the figures, and the command.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from examples.departures.account import quantile
from tests.kit.dumped import messages_in
from tests.ports import closed_port
from tests.processes.real_processes import RecordingBroker, until, wall_ms
from tests.processes.test_nodes import Cluster, Node, group_state
from tests.processes.test_replicas import DELIVERED_S, ELECTED_S, GROUP, Group
from tests.qmq_java.java_programs import JavaProcess, java_client, missing

pytestmark = [
    pytest.mark.java,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

FAILOVERS: Final = int(os.environ.get("JAVA_FAILOVERS", "1"))
"""Failovers of each kind; JAVA_FAILOVERS sets it."""
KINDS: Final = ("killed, gone", "killed, restarted", "handover")
PRODUCERS: Final = {"async": 200, "sync": 100}
"""The mode of each one, and its messages a second."""
TRIES: Final = 10
"""QMQ's default."""
DELAY_MS: Final = 30_000
"""Longer than any send takes: what is due within 500 ms its client sends to a broker itself."""
SUPERVISOR_S: Final = 0.1
CALM_S: Final = 2.0
BESIDE_MS: Final = 500
"""Milliseconds before and after a failover in which a report counts to it."""
GOES_ON_S: Final = 30.0
IN_SYNC_S: Final = 90.0
"""A node that was dropped three times in 10 minutes waits for 30 s."""
TOLD_S: Final = 60.0
"""For the outcome of each message: ten tries of 5 s."""


class Stream:
    """The reports of a producer on the messages that it sends all the time."""

    def __init__(self, client: JavaProcess) -> None:
        self.client = client
        self.made: list[str] = []
        self.threw: Counter[str] = Counter()
        self.took_ms: dict[str, dict[str, int]] = {"sent": {}, "failed": {}}
        self.at_ms: dict[str, list[int]] = {"sent": [], "failed": []}
        self._read = 0

    def read(self) -> "Stream":
        """Take over what it has said since the last time."""
        said = self.client.said[self._read :]
        self._read += len(said)
        for words in said:
            match words:
                case ["made", _, name]:
                    self.made.append(name)
                case ["threw", _, error]:
                    self.threw[error] += 1
                case ["sent" | "failed" as outcome, name, took_ms, at_ms]:
                    self.took_ms[outcome][name] = int(took_ms)
                    self.at_ms[outcome].append(int(at_ms))
        return self

    @property
    def has_ended(self) -> bool:
        """Return whether the outcome of each message was told."""
        self.read()
        return set(self.made) == self.took_ms["sent"].keys() | self.took_ms["failed"].keys()

    def goes_on(self, since_ms: int) -> bool:
        """Return whether messages were sent after a moment, the last of them too."""
        self.read()
        return self.at_ms["sent"][-1:] > [since_ms]

    def figures(self, copies: Counter[str], times: Mapping[str, Sequence[tuple[int, int]]]) -> str:
        """Return what is worth telling of it."""
        sent, failed = self.took_ms["sent"], self.took_ms["failed"]
        took = sorted(sent.values())
        told = {
            "made": len(self.made),
            "sent": len(sent),
            "failed": len(failed),
            "threw": dict(self.threw),
            "said both": len(sent.keys() & failed.keys()),
            "failed and kept": len(failed.keys() & copies.keys()),
            "stored twice": sum(copies[name] > 1 for name in self.made),
            "ms to sent, p50 p99 max": [quantile(took, part) for part in (0.5, 0.99, 1)],
            "ms to failed, max": max(failed.values(), default=0),
            "failed by kind": {kind: self.failed_between(some) for kind, some in times.items()},
            "longest ms without": {kind: self.silence_ms(some) for kind, some in times.items()},
        }
        return str(told)

    def failed_between(self, times: Sequence[tuple[int, int]]) -> int:
        """Return how many failures were told in these times."""
        return sum(begin <= at < end for at in self.at_ms["failed"] for begin, end in times)

    def silence_ms(self, times: Sequence[tuple[int, int]]) -> int:
        """Return the longest time from one success to the next in these times."""
        sent = sorted(self.at_ms["sent"])
        moments = [[at for at in sent if begin <= at < end] for begin, end in times]
        return max(after - before for some in moments for before, after in pairwise(some))


@contextlib.contextmanager
def streams(cluster: Cluster) -> Iterator[dict[str, Stream]]:
    """Run producers that send all the time."""
    with contextlib.ExitStack() as stack:
        found = {}
        for how, rate in PRODUCERS.items():
            log = cluster.folder / f"{how}.log"
            meta = f"127.0.0.1:{cluster.meta_http}"
            found[how] = Stream(stack.enter_context(java_client(meta, log)))
            found[how].client.tell("stream", "a.b", DELAY_MS, rate, how, TRIES)
        yield found


def fail_over(group: Group, nodes: dict[str, Node], kind: str) -> None:
    """Give the group another master; return when the meta server names it."""
    before = group.shown()
    master = before["master"]
    if kind == "handover":
        code, _, errors = group.admin("handover", GROUP)
        assert code == 0, errors
    else:
        nodes[master].process.kill()
        if kind == "killed, restarted":
            time.sleep(SUPERVISOR_S)
            nodes[master] = group.start(master)
    assert until(lambda: group.shown()["epoch"] > before["epoch"], seconds=ELECTED_S)
    group.until_master(*nodes)


def go_on(master: Node, producers: Mapping[str, Stream]) -> None:
    """Wait until a new master gets messages, and each producer is told that it sent some."""
    since_ms, accepted = wall_ms(), master.process.status()["accepted"]

    def is_so() -> bool:
        gets = master.process.status()["accepted"] > accepted
        return gets and all(one.goes_on(since_ms) for one in producers.values())

    assert until(is_so, seconds=GOES_ON_S), [one.client.log()[-2000:] for one in producers.values()]


@pytest.mark.parametrize("groups", ["one group", "two groups"])
def test_nothing_that_qmqs_producer_reports_as_sent_is_lost_through_failovers(
    tmp_path: Path, groups: str
) -> None:
    times: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    (tmp_path / "meta").mkdir()
    with RecordingBroker() as broker, contextlib.ExitStack() as stack:
        cluster = Cluster(tmp_path, broker)
        meta = stack.enter_context(cluster.meta())
        group = Group(cluster, meta.wait_ready(), stack)
        nodes = group.start_three()
        assert group.admin("min-isr", GROUP, "2")[0] == 0
        others: list[Path] = []
        if groups == "two groups":
            sole = cluster.node("sole", "--node-id", "n1", "--group", "d2", port=closed_port())
            others.append(stack.enter_context(sole).data)
            assert until(lambda: group_state(meta, "d2") == "RW", seconds=ELECTED_S)
        producers = stack.enter_context(streams(cluster))
        go_on(nodes["n1"], producers)
        for kind in KINDS * FAILOVERS:
            time.sleep(CALM_S)
            began_ms = wall_ms() - BESIDE_MS
            fail_over(group, nodes, kind)
            go_on(nodes[group.shown()["master"]], producers)
            times[kind].append((began_ms, wall_ms() + BESIDE_MS))
            for name, node in nodes.items():
                if node.process.process.poll() is not None:
                    nodes[name] = group.start(name)
            in_sync = until(lambda: sorted(group.shown()["in_sync"]) == [*nodes], seconds=IN_SYNC_S)
            assert in_sync, group.shown()
        for producer in producers.values():
            producer.client.tell("end-stream")
            assert until(lambda one=producer: one.has_ended, seconds=TOLD_S)
        sent = {name for one in producers.values() for name in one.took_ms["sent"]}
        came = DELAY_MS / 1000 + DELIVERED_S
        assert until(lambda: sent <= set(broker.ids), seconds=came), len(sent - set(broker.ids))
        assert not [one for one in broker.deliveries if one.at_ms < one.due_ms or not one.crc_ok]
        logs = [
            Counter(name for disk in (node.data, *others) for name in messages_in(disk))
            for node in nodes.values()
        ]
        assert not [name for name in sent for log in logs if name not in log]
        for how, producer in producers.items():
            print(f"{groups}, {how}: {producer.figures(logs[0], times)}")  # noqa: T201 (for -rP)
