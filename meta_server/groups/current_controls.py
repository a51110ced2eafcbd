"""The stored rules (pauses, rates, weights) as delay servers are sent them, and who applies which.

A node says with NODE_REGISTER which controls it applies, and why not others; they are sent with the
answers to NODE_WATCH (`meta_server/wire/votes.py`).
"""

from collections.abc import Callable
from uuid import UUID

from delay_protocol.nodes.controls import decode_controls, document_of, id_of
from delay_protocol.nodes.group_changes import ControlsNews
from delay_protocol.nodes.registration import AppliedControls
from meta_server.known.model import ClusterControls
from meta_server.known.registry import Registry


class CurrentControls:
    """The controls that are in force, by cluster."""

    def __init__(self, registry: Registry, *, store_uuid: Callable[[], UUID]) -> None:
        self._registry = registry
        self._store_uuid = store_uuid
        self._made: dict[str, tuple[ClusterControls | None, ControlsNews]] = {}

    def of(self, cluster: str) -> ControlsNews:
        """Return the name and the document of the controls of a cluster."""
        row = self._registry.controls.get(cluster)
        made = self._made.get(cluster)
        if made is None or made[0] is not row:
            document = document_of(self._registry.controls_of(cluster), self._store_uuid())
            name = id_of(decode_controls(document))
            assert name is not None
            made = self._made[cluster] = (row, ControlsNews(id=name, document=document))
        return made[1]

    def compared(self, cluster: str, applied: AppliedControls | None) -> tuple[int | None, str]:
        """Return which version of this store's controls a node applies, and why not the newest.

        None: it applies none of them. Empty: it applies the newest.
        """
        if applied is None:
            return None, "it has not registered since this meta server started"
        newest, found = self.of(cluster).id, applied.id
        version = found.version if found is not None and found.store == newest.store else None
        if applied.keeps or found == newest or (version is None and not newest.version):
            return version, applied.keeps
        applies = "none of this meta server's controls" if version is None else f"version {version}"
        return version, f"it applies {applies}, the version here is {newest.version}"
