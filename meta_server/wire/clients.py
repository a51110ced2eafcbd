"""Records which client uses which subject, for operators: in memory, stored in batches.

Routes do not depend on it. The record is approximate (a client that is seen every minute is stored
once an hour), bounded, and removed when the client has not been seen for long.
"""

from collections.abc import Sequence

from meta_server.known.model import Change, ClientKey, ClientSeen, ForgetClient, NoteClient
from meta_server.known.registry import Registry
from meta_server.settings.config import RegistrationConfig

_CHANGES_MAX = 1000
"""Changes of one commit: what is more waits for the next."""


class SeenClients:
    """Clients that were seen and are not in the store yet, or not as lately."""

    def __init__(self, registry: Registry, limits: RegistrationConfig) -> None:
        self._registry = registry
        self._limits = limits
        # As long as the bound of what is stored: what gathers is at most that much again.
        self._seen: dict[ClientKey, ClientSeen] = {}
        self.unkept = 0
        """Clients not remembered because there were too many."""

    def note(self, client: ClientSeen) -> None:
        """Note that a client was seen."""
        known = self._registry.clients.get(client.key)
        if known is not None:
            is_stale = client.seen_ms - known.seen_ms >= self._limits.client_seen_refresh_ms
            if not is_stale and (known.app_code, known.room) == (client.app_code, client.room):
                return
        elif len(self._registry.clients) + len(self._seen) >= self._limits.clients_max:
            self.unkept += client.key not in self._seen
            return
        self._seen[client.key] = client

    @property
    def gathered(self) -> int:
        """How many wait to be stored."""
        return len(self._seen)

    def plan_store(self) -> Sequence[Change]:
        """Return changes that store what has gathered, as much as goes into one commit."""
        return [NoteClient(client) for client in list(self._seen.values())[:_CHANGES_MAX]]

    def stored(self, changes: Sequence[Change]) -> None:
        """Take out what was stored, unless it was seen again meanwhile."""
        for change in changes:
            if isinstance(change, NoteClient) and (
                self._seen.get(change.client.key) is change.client
            ):
                del self._seen[change.client.key]

    def plan_forget(self, keys: Sequence[ClientKey], since_ms: int) -> Sequence[Change]:
        """Return changes that forget those of these clients that were not seen since."""
        clients = self._registry.clients
        return [
            ForgetClient(key)
            for key in keys
            if (client := clients.get(key)) is not None and client.seen_ms < since_ms
        ]
