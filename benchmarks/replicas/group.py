"""A group of delay servers as processes on one machine, with its meta server."""

import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.processes import DelayServer, MetaServer, administer, free_port

GROUP: Final = "delay0"
IN_SYNC_S: Final = 60.0
"""Seconds in which all nodes have to be in sync at the beginning."""


class Group:
    """A meta server and some nodes, all in sync; the first is the master."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        *,
        broker_ports: Sequence[int] = (),
        settings: tuple[str, ...] = (),
    ) -> None:
        self._directory = directory
        self._broker_ports = broker_ports
        self._settings = settings
        directory.mkdir()
        self.meta = MetaServer(directory, directory / "meta")
        self.nodes: list[DelayServer] = []
        try:
            for _ in range(nodes):
                self.start()
                self.until_in_sync(IN_SYNC_S)
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

    def start(self) -> DelayServer:
        """Start one more node, on an empty directory; it is not waited for."""
        name = f"n{len(self.nodes)}"
        place = self._directory / name
        place.mkdir()
        node = DelayServer(
            place,
            broker_port=self._broker_ports or free_port(),
            meta_port=self.meta.http_port,
            settings=self._settings,
            node_id=name,
            is_awaited=False,
        )
        self.nodes.append(node)
        return node

    @property
    def master(self) -> DelayServer:
        """The node that took messages first."""
        return self.nodes[0]

    def hand_over(self) -> None:
        """Ask for another master, as an operator does."""
        administer(self.meta.http_address, "POST", f"delay-groups/{GROUP}/handover", {})

    def record(self) -> dict[str, Any]:
        """Return what the meta server says of the group; as good as nothing if it knows none."""
        url = f"http://127.0.0.1:{self.meta.http_port}/status"
        with urllib.request.urlopen(url) as answer:
            groups: list[dict[str, Any]] = json.load(answer)["delay_groups"]
        found = [one for one in groups if one["name"] == GROUP]
        return found[0] if found else {"in_sync": [], "master": None}

    def until_in_sync(self, seconds: float) -> None:
        """Wait until all nodes are in sync."""
        self.until(lambda: len(self.record()["in_sync"]) == len(self.nodes), seconds)

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait for something; raise SystemExit if it does not come about in time."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise SystemExit(f"it did not come about in {seconds} s: {self.record()}")
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
