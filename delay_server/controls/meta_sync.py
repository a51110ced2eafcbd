"""Takes newer controls of the meta server's store, and keeps out all others.

    here                            from the meta server              what follows
    version 7 of store A            version 8 of store A              applied
    version 7 of store A            another version of it, up to 7    kept out
    rules, not those of store B     any version of store B            kept out
    no rules                        any version of another store      applied

So a meta server whose store was lost, or a first `--meta`, ends no pause until an operator has told
this node to apply the meta server's controls (`follow`). An older version of the same store comes
from a store that was restored, or from a meta server that has not seen its neighbour's change.

Controls come with the answers to NODE_WATCH. They are stored first, then applied, and then the node
reports them to the meta server, with its next NODE_REGISTER.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog
import trio

from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.controls import Controls, id_of
from delay_protocol.nodes.group_changes import ControlsNews, read_document
from delay_protocol.nodes.registration import AppliedControls
from delay_server.controls.controls_store import ControlsStore
from delay_transport.seams.outbox import Wakeup
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
        self._offered: Controls | None = None
        self._more = Wakeup()
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

    def applied(self) -> AppliedControls:
        """Return which controls this node applies, for its meta server."""
        return AppliedControls(id=id_of(self._store.controls), keeps=self.keeps)

    def offer(self, news: ControlsNews) -> None:
        """Take what a meta server sends, for `run` to apply."""
        present = self._store.controls
        try:
            if news.document is not None:
                self._offered = read_document(news.document, news.id)
            elif news.id == id_of(present):
                self._offered = present
        except MalformedMetaError as error:
            self.failed(str(error))
        self._more.wake()

    async def run(self, changed: Callable[[], None], *, again_s: float) -> None:
        """Apply what is offered until cancelled, in a task of its own: a vote does not wait for it.

        `changed` is called when something was applied, or was not for a new reason.
        """
        while True:
            offered = self._offered
            if offered is None:
                await self._more.sleep()
                continue
            try:
                await self.hear(offered)
            except StorageFullError as error:
                self.failed(str(error))
                await trio.sleep(again_s)
                continue
            if self._offered is offered:
                self._offered = None
            changed()

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

    async def hear(self, told: Controls) -> None:
        """Apply controls of a meta server unless `why_kept` objects.

        Raises StorageFullError; then the controls before count as the last ones.
        """
        async with self._changing:
            reason = why_kept(self._store.controls, told)
            if not reason and told.version:
                await self._have(told)
            elif reason and reason != self.keeps:
                _log.warning("controls of the meta server were not applied", reason=reason)
            self.told, self.keeps, self.trouble = told, reason, ""
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
