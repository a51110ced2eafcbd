"""Decides which controls of the meta server this node applies, and applies them.

    applied here                             from the meta server       what follows
    version 7 of store A                     version 8 of store A       applied
    version 7 of store A                     version 6 of store A       not applied: older
    version 7 of store A, or the node's own  any version of store B     applied if it opens nothing
    version 7 of store A                     another version 7 of it    applied if it opens nothing
    any rules but those of store B           version 0 of store B       not applied: no rules yet

*Opens*: it would end a pause of this node, or raise a rate limit. So a meta server whose store was
lost, or a first `--meta`, ends no pause until an operator has entered the same rules there, or has
told this node to apply the meta server's controls (`follow`). An older version of the same store
comes from a store that was restored, or from a meta server that has not seen its neighbour's
change.

Controls are stored first, then applied, and then the node reports them to the meta server.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog
import trio

from delay_protocol.nodes.controls import Controls, opened_by
from delay_protocol.nodes.controls_exchange import NodeControls, id_of
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_server.controls.controls_store import AuditEntry, ControlsStore
from delay_transport.seams.runtime import Clock
from storage.disk.errors import StorageFullError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_NAMED_MAX = 3
"""Rules that a reason names."""
_NAME_LENGTH_MAX = 100
"""Characters of one that are shown."""


def why_kept(present: Controls, told: Controls) -> str:
    """Return why a meta server's controls `told` are not applied; empty if they are."""
    if present.store == told.store and told.version > present.version:
        return ""
    if present.store == told.store and told.version < present.version:
        return (
            f"this node has version {present.version} of the same store, and {told.version} is "
            "older: if the store was restored, run `delaywheel controls --follow` at the node"
        )
    whose = "another store's" if isinstance(present.store, UUID) else "the node's own"
    remedy = "enter them at the meta server, or run `delaywheel controls --follow` at the node"
    if not told.version and (present.groups or present.subjects):
        return f"{whose} rules stay in force, since the meta server has none yet: {remedy}"
    opened = opened_by(present, told)
    if not opened:
        return ""
    named = ", ".join(name[:_NAME_LENGTH_MAX] for name in opened[:_NAMED_MAX])
    more = len(opened) - _NAMED_MAX
    return (
        f"{whose} rules stay in force, since they are stricter: {named}"
        + (f" and {more} more" if more > 0 else "")
        + f"; {remedy}"
    )


class ControlsSync:
    """The controls that the meta server sends, and whether this node applies them."""

    def __init__(
        self,
        store: ControlsStore,
        *,
        take: Callable[[Controls, AuditEntry], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """`take` makes controls durable and has them hold; raises StorageFullError."""
        self._store = store
        self._take = take
        self._clock = clock
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

    async def hear(self, told: Controls | None, peer: str) -> None:
        """Apply controls of a meta server unless `why_kept` objects; None: there is nothing new.

        Raises StorageFullError; then the controls before count as the last ones.
        """
        self.trouble = ""
        if told is not None:
            async with self._changing:
                reason = why_kept(self._store.controls, told)[:REASON_LENGTH_MAX]
                if not reason and told.version:
                    await self._have(told, who="meta server", peer=peer)
                elif reason and reason != self.keeps:
                    _log.warning("controls of the meta server were not applied", reason=reason)
                self.told, self.keeps = told, reason
        self._heard.set()

    async def follow(self, *, who: str, peer: str) -> bool:
        """Apply the last controls even if they are less strict; False: none since the start.

        Raises StorageFullError.
        """
        async with self._changing:
            if self.told is None:
                return False
            await self._have(self.told, who=who, peer=peer)
            self.keeps = ""
            return True

    async def _have(self, told: Controls, *, who: str, peer: str) -> None:
        before = self._store.controls
        if told == before:
            return
        entry = AuditEntry(
            at_ms=self._clock.now_ms(),
            who=who,
            peer=peer,
            action="follow meta server",
            target=f"store {told.store}",
            version=told.version,
        )
        try:
            await self._take(told, entry)
        except StorageFullError as error:
            _log.error("controls of the meta server could not be stored", reason=str(error))
            raise
        self.taken += 1
        _log.info(
            "applied controls of the meta server", version=told.version, before=before.version
        )
