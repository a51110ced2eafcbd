"""A group of delay servers as processes on one machine, with its meta server."""

import json
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.processes import DelayServer, MetaServer, free_port

_GROUP: Final = "delay0"
_IN_SYNC_S: Final = 60.0
"""Seconds in which nodes have to be in sync, once one more has started."""


class Group:
    """A meta server and some nodes, all in sync; the first is the master."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        *,
        broker_ports: Sequence[int] = (),
    ) -> None:
        self._directory = directory
        self._broker_ports = broker_ports
        directory.mkdir()
        self.meta = MetaServer(directory)
        self.nodes: list[DelayServer] = []
        try:
            for _ in range(nodes):
                self._start()
                self._until_in_sync()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _start(self) -> None:
        """Start one more node, on an empty directory; it is not waited for."""
        name = f"n{len(self.nodes)}"
        place = self._directory / name
        place.mkdir()
        node = DelayServer(
            place,
            broker_port=self._broker_ports or free_port(),
            meta_port=self.meta.http_port,
            node_id=name,
            is_awaited=False,
        )
        self.nodes.append(node)

    @property
    def master(self) -> DelayServer:
        """The node that took messages first."""
        return self.nodes[0]

    def _record(self) -> dict[str, Any]:
        """Return what the meta server says of the group; as good as nothing if it knows none."""
        url = f"http://127.0.0.1:{self.meta.http_port}/api/v1/topology"
        with urllib.request.urlopen(url) as answer:
            groups: list[dict[str, Any]] = json.load(answer)["delay_groups"]
        found = [one for one in groups if one["name"] == _GROUP]
        return found[0] if found else {"in_sync": [], "master": None}

    def _until_in_sync(self) -> None:
        """Wait until all nodes are in sync; raise SystemExit if they are not in time."""
        until = time.monotonic() + _IN_SYNC_S
        while len(self._record()["in_sync"]) != len(self.nodes):
            if time.monotonic() > until:
                raise SystemExit(f"not in sync within {_IN_SYNC_S} s: {self._record()}")
            time.sleep(0.05)

    def cpu_seconds(self) -> list[float]:
        """Return the CPU of each node."""
        return [node.cpu_seconds() for node in self.nodes]

    def written_bytes(self) -> list[int]:
        """Return what each node has had written to disk."""
        return [node.written_bytes() for node in self.nodes]

    def kill(self) -> None:
        """End all processes."""
        for process in (*self.nodes, self.meta):
            process.kill()
