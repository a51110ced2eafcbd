"""On which connection each delay server was registered last."""

from collections.abc import Collection

from delay_transport.connections.connection import Connection
from meta_server.known.registry import NodeKey


class Speakers:
    """Nodes by connection and connections by node, as long as the connections stand."""

    def __init__(self) -> None:
        self._speakers: dict[NodeKey, Connection] = {}
        self._spoken_for: dict[Connection, dict[NodeKey, None]] = {}
        """The same the other way round."""

    def __len__(self) -> int:
        """Return how many nodes have a connection."""
        return len(self._speakers)

    def note(self, key: NodeKey, connection: Connection) -> None:
        """Note that a node was registered on a connection."""
        self._speakers[key] = connection
        self._spoken_for.setdefault(connection, {})[key] = None

    def speaker_of(self, key: NodeKey) -> Connection | None:
        """Return the connection of a node, if it stands."""
        return self._speakers.get(key)

    def nodes_of(self, connection: Connection) -> Collection[NodeKey]:
        """Return the nodes that were registered on a connection."""
        return self._spoken_for.get(connection, {})

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        for key in self._spoken_for.pop(connection, ()):
            if self._speakers.get(key) is connection:
                del self._speakers[key]
