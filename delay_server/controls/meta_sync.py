"""Takes newer controls of the meta server's store, and keeps out all others.

    here                            from the meta server              what follows
    version 7 of store A            version 8 of store A              applied
    version 7 of store A            another version of it, up to 7    kept out
    rules, not those of store B     any version of store B            kept out
    no rules                        any version of another store      applied

So a meta server whose store was lost, or a first `--meta`, ends no pause until an operator has told
this node to apply the meta server's controls (`follow`). An older version of the same store comes
from a store that was restored, or from a meta server that has not seen its neighbour's change.

Controls are stored first, then applied, and then the node reports them to the meta server.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog
import trio

from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.controls_exchange import NodeControls, id_of
from delay_server.controls.controls_store import ControlsStore
from storage.disk.errors import StorageFullError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_REMEDY = "run `delaywheel controls --follow` at the node to have it apply them"


def why_kept(present: Controls, told: Controls) -> str:
    """Return why a meta server's controls `told` are not applied; empty if they are."""
    if told == present:
        return ""
    if told.store == present.store:
        if told.version > present.version:
            return ""
        return (
            f"this node has version {present.version} of the same store, and was told version "
            f"{told.version}, which is not newer: if the store was restored, {_REMEDY}"
        )
    if not (present.groups or present.subjects):
        return ""
    whose = "another store's" if isinstance(present.store, UUID) else "the node's own"
    return f"{whose} rules stay in force: {_REMEDY}"


class ControlsSync:
    """The controls that the meta server sends, and whether this node applies them."""

    def __init__(
        self,
        store: ControlsStore,
        *,
        take: Callable[[Controls], Awaitable[None]],
    ) -> None:
        """`take` makes controls durable and has them hold; raises StorageFullError."""
        self._store = store
        self._take = take
        self._changing = trio.Lock()
        self._heard = trio.Event()
        self.told: Controls | None = None
        """The last controls of a meta server; None: none since the start."""
        self.keeps = ""
        """Why they are not applied; empty if they are."""
        self.trouble = ""
        """Why no meta server sends controls; empty if one does."""
        self.taken = 0
        """Documents that were applied."""

    def question(self, *, is_first: bool) -> NodeControls:
        """Return what to ask a meta server; `is_first`: on this connection, so of everything."""
        return NodeControls(
            has=id_of(self._store.controls),
            told=None if is_first or self.told is None else id_of(self.told),
            keeps=self.keeps,
        )

    async def until_heard(self) -> None:
        """Wait for the first answer about controls, or its failure."""
        await self._heard.wait()

    def failed(self, reason: str) -> None:
        """Note that a request for controls failed."""
        if reason != self.trouble:
            _log.warning(
                "no controls from the meta server; the last ones stay in force", reason=reason
            )
        self.trouble = reason
        self._heard.set()

    async def hear(self, told: Controls | None) -> None:
        """Apply controls of a meta server unless `why_kept` objects; None: there is nothing new.

        Raises StorageFullError; then the controls before count as the last ones.
        """
        self.trouble = ""
        if told is not None:
            async with self._changing:
                reason = why_kept(self._store.controls, told)
                if not reason and told.version:
                    await self._have(told)
                elif reason and reason != self.keeps:
                    _log.warning("controls of the meta server were not applied", reason=reason)
                self.told, self.keeps = told, reason
        self._heard.set()

    async def follow(self) -> bool:
        """Apply the last controls whatever is here; False: none since the start.

        Raises StorageFullError.
        """
        async with self._changing:
            if self.told is None:
                return False
            await self._have(self.told)
            self.keeps = ""
            return True

    async def _have(self, told: Controls) -> None:
        before = self._store.controls
        if told == before:
            return
        try:
            await self._take(told)
        except StorageFullError as error:
            _log.error("controls of the meta server could not be stored", reason=str(error))
            raise
        self.taken += 1
        _log.info(
            "applied controls of the meta server", version=told.version, before=before.version
        )
