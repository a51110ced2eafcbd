"""Keeps what is known of each connected peer: one `Session`, which ends with its connection."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from delay_protocol.nodes.controls import ControlsId
from delay_protocol.nodes.group_changes import NodeNews
from delay_protocol.nodes.registration import NodeRegister
from delay_transport.connections.connection import Connection
from meta_server.groups.routing import Signature
from meta_server.known.registry import NodeKey


class Use(msgspec.Struct, frozen=True, gc=False):
    """The key of a subscription within a session.

    Like Subscription a Struct without garbage collection: there are many.
    """

    client_type: int
    subject: str
    """As the client sent it."""
    consumer_group: str


class Subscription(msgspec.Struct, kw_only=True, gc=False):
    """The last answer that a client got."""

    routed: str
    """The real subject."""
    version: int
    """The version of the protocol, as its last request said."""
    sent: Signature | None
    """None: nothing yet."""


@dataclass(slots=True, eq=False)
class Session:
    """A connected peer."""

    connection: Connection
    uses: dict[Use, Subscription] = field(default_factory=dict)
    """The subscriptions of a client, in the order in which they came."""
    routed: set[str] = field(default_factory=set)
    """The real subjects of its uses."""
    nodes: dict[NodeKey, None] = field(default_factory=dict)
    """Delay servers that registered on this connection."""
    registration: NodeRegister | None = None
    """By which a delay server registered last."""
    news: NodeNews | None = None
    """The news of its group that were sent last."""
    controls: ControlsId | None = None
    """The controls that were sent last."""
    receiver: str = ""
    """The name under which it receives; empty of others."""


class Sessions:
    """The sessions by connection, and by the delay server that registered last on each."""

    def __init__(self) -> None:
        self._all: dict[Connection, Session] = {}
        self._of_nodes: dict[NodeKey, Session] = {}
        self.uses = 0
        """Subscriptions of all clients."""

    def __iter__(self) -> Iterator[Session]:
        """Go through all sessions in the order in which they began."""
        return iter(self._all.values())

    def of(self, connection: Connection) -> Session:
        """Return the session of a connection that stands."""
        session = self._all.get(connection)
        if session is None:
            session = self._all[connection] = Session(connection)
        return session

    def add_use(self, session: Session, use: Use, subscription: Subscription) -> None:
        """Keep a subscription, in place of the one before of the same use."""
        self.uses += use not in session.uses
        session.uses[use] = subscription
        session.routed.add(subscription.routed)

    def add_node(self, key: NodeKey, session: Session) -> None:
        """Keep that a delay server registered on a connection that stands."""
        session.nodes[key] = None
        self._of_nodes[key] = session

    def of_node(self, key: NodeKey) -> Session | None:
        """Return where a delay server registered last, if that connection stands."""
        return self._of_nodes.get(key)

    def forget(self, connection: Connection) -> None:
        """Forget all that is known of a connection that was closed."""
        session = self._all.pop(connection, None)
        if session is None:
            return
        self.uses -= len(session.uses)
        session.uses.clear()
        session.routed.clear()
        for key in session.nodes:
            if self._of_nodes.get(key) is session:
                del self._of_nodes[key]
