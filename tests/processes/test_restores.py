"""Real processes: a backup of a meta server is restored as docs/meta-server.md says.

What was acknowledged meanwhile is with whoever is the master afterwards.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.real_processes import RecordingBroker, ServerProcess, delaywheel, until
from tests.processes.test_nodes import Cluster
from tests.processes.test_replicas import (
    ELECTED_S,
    GROUP,
    QUICK_TIMEOUT,
    Group,
    Steady,
    check_all,
)

pytestmark = [pytest.mark.process, pytest.mark.long]


class Restorable(Group):
    """A group of which the meta server is stopped, set back, and started again."""

    def __init__(self, cluster: Cluster, stack: contextlib.ExitStack) -> None:
        super().__init__(cluster, self._started(cluster, stack), stack)
        self._data = cluster.folder / "meta" / "data"
        self._copy = cluster.folder / "copy.db"

    @staticmethod
    def _started(cluster: Cluster, stack: contextlib.ExitStack) -> ServerProcess:
        meta = stack.enter_context(cluster.meta(*QUICK_TIMEOUT))
        meta.wait_ready()
        return meta

    def back_up(self) -> None:
        """Copy the store while the server runs."""
        with (
            contextlib.closing(sqlite3.connect(self._data / "meta.db")) as store,
            contextlib.closing(sqlite3.connect(self._copy)) as copy,
        ):
            store.backup(copy)

    def stop_meta(self) -> None:
        """Stop the meta server, and move all that it knows away."""
        self._meta.terminate()
        for path in [*self._data.glob("meta.db*"), self._data / "records"]:
            path.rename(self.cluster.folder / f"{path.name}.away")

    def restore(self) -> None:
        """Start the meta server on the copy, or with nothing where there is none."""
        if self._copy.exists():
            self._copy.rename(self._data / "meta.db")
        self._meta = self._started(self.cluster, self._stack)

    def waits_for(self) -> str:
        """Return the next steps of `topology`."""
        done = delaywheel("topology", "--meta", f"127.0.0.1:{self.cluster.meta_http}", "--json")
        return "; ".join(row["step"] for row in json.loads(done.stdout)["next_steps"])


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Restorable]:
    (tmp_path / "meta").mkdir()
    with RecordingBroker() as broker, contextlib.ExitStack() as stack:
        yield Restorable(Cluster(tmp_path, broker), stack)


def check_healed(group: Restorable, steady: Steady, disks: list[Path]) -> None:
    """See that a group goes on: it takes messages, hands over, and has lost nothing."""
    steady.until_more()
    code, _, errors = group.admin("handover", GROUP)
    assert code == 0, errors
    steady.until_more()
    group.until_in_sync("n1", "n2", "n3")
    check_all(group, steady, disks)


@pytest.mark.parametrize("handovers", [1, 3, 20])
def test_a_backup_of_before_handovers_is_restored(group: Restorable, handovers: int) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        steady.until_more()
        group.back_up()
        for _ in range(handovers):
            code, _, errors = group.admin("handover", GROUP)
            assert code == 0, errors
            group.until_in_sync(*nodes)
        epoch = group.shown()["epoch"]
        assert epoch == 1 + handovers
        group.stop_meta()
        group.restore()
        assert until(lambda: group.shown()["epoch"] == epoch, seconds=ELECTED_S), group.waits_for()
        check_healed(group, steady, [node.data for node in nodes.values()])
