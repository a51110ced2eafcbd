"""Pushes stored rules (pauses, limits, weights) to delay servers, by long polling.

Each node keeps one NODE_CONTROLS request waiting here
(`delay_protocol/nodes/controls_exchange.py`). It is answered when the rules of the node's cluster
differ from those the node got last, else after a while. So nothing is queued for a slow node, and a
node that was away gets only the latest rules. Each request names the version that the node applies,
or why it applies none, which operators are shown.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from delay_protocol.nodes.controls_exchange import (
    HOLD_S,
    ControlsId,
    NodeControls,
    document_of,
    encode_node_controls_reply,
)
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import Connection
from meta_server.groups.held_requests import HeldRequests
from meta_server.known.errors import RefusedError
from meta_server.known.model import ClusterControls
from meta_server.known.registry import NodeKey, Registry


@dataclass(frozen=True, slots=True)
class NodeSaid:
    """The latest report of a node about its rules."""

    has: ControlsId | None
    keeps: str


class ControlsPusher:
    """The requests that wait, and the task that answers them."""

    def __init__(self, registry: Registry, *, store_uuid: Callable[[], UUID]) -> None:
        self._registry = registry
        self._store_uuid = store_uuid
        self._held = HeldRequests(self._answer, hold_s=HOLD_S)
        self._documents: dict[str, tuple[ClusterControls | None, bytes]] = {}
        self.said: dict[NodeKey, NodeSaid] = {}
        """By node; of some that are away now."""
        self.told = 0
        """Documents told."""

    @property
    def waiting(self) -> int:
        """Nodes that would be told a change at once."""
        return len(self._held)

    def ask(
        self,
        connection: Connection,
        frame: Frame,
        asked: NodeControls,
        seal: Callable[[bytes], bytes],
        nodes: Collection[NodeKey],
    ) -> None:
        """Accept a request of the registered node of this connection; raise RefusedError."""
        clusters = {key[0] for key in nodes}
        if len(clusters) != 1:
            raise RefusedError("register one delay server on this connection first")
        (cluster,) = clusters
        self._held.hold(connection, frame, (cluster, asked.told), seal)
        for key in nodes:
            self.said[key] = NodeSaid(asked.has, asked.keeps)

    def changed(self) -> None:
        """Check all waiting requests: the rules may have changed."""
        self._held.changed()

    def loaded_anew(self) -> None:
        """Remove reports of removed nodes, and check all waiting requests."""
        self.said = {key: said for key, said in self.said.items() if key in self._registry.nodes}
        self._documents.clear()
        self.changed()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._held.forget(connection)

    def forget_node(self, key: NodeKey) -> None:
        """Forget what a node said that was given up."""
        self.said.pop(key, None)

    def present(self, cluster: str) -> ControlsId:
        """Return which controls hold in a cluster now."""
        version = self._registry.controls_of(cluster).version
        return ControlsId(store=self._store_uuid(), version=version)

    def version_at(self, key: NodeKey) -> int | None:
        """Return by which version of this store's controls a node goes; None: by none of them."""
        said = self.said.get(key)
        if said is None or said.has is None or said.has.store != self._store_uuid():
            return None
        return said.has.version

    def ahead(self, cluster: str) -> str:
        """Return which node has newer controls of this very store than it has; empty if none has.

        Then the store was set back, or another meta server has changed it meanwhile.
        """
        version = self.present(cluster).version
        for key in self.said:
            if key[0] == cluster and (self.version_at(key) or 0) > version:
                return f"{key[2]} of {key[1]}"
        return ""

    def note_of(self, key: NodeKey) -> str:
        """Return why a node does not go by the present controls; empty if it does."""
        said = self.said.get(key)
        if said is None:
            return "it has not said yet by which controls it goes"
        if said.keeps:
            return said.keeps
        version, present = self.version_at(key), self.present(key[0]).version
        if version is None and not present:
            # Nobody has said anything, so there is nothing to go by.
            return ""
        if version is None:
            return "it has not taken the controls of this meta server yet"
        return "" if version == present else f"it has controls version {version}, not {present} yet"

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._held.run()

    def _answer(self, asked: tuple[str, ControlsId | None], is_over: bool) -> bytes | None:  # noqa: FBT001 (of HeldRequests)
        cluster, told = asked
        if self.present(cluster) != told:
            self.told += 1
            return encode_node_controls_reply(self._document(cluster))
        return encode_node_controls_reply(None) if is_over else None

    def _document(self, cluster: str) -> bytes:
        row = self._registry.controls.get(cluster)
        known = self._documents.get(cluster)
        if known is None or known[0] is not row:
            controls = self._registry.controls_of(cluster)
            known = (row, document_of(controls, self._store_uuid()))
            self._documents[cluster] = known
        return known[1]
