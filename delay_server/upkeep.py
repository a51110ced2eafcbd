"""Looks after an open data directory, on every node: its log, its checkpoints, and its disk."""

import dataclasses
from collections.abc import Callable

import structlog
import trio

from delay_server.accepting.commits import MESSAGE_WORKER
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.filing.checkpoints import Checkpoints
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from storage.node.store import Store

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_DISK_WORKER = "disk"
_DISK_SHORT_SHARE = 1 / 4
"""Of the floor: with less available beyond it the node deletes what is only old…"""
_DISK_ROOMY_SHARE = 1 / 2
"""… until so much is."""
_DURABLE_END_S = 0.01
"""Half of the 20 ms within which the durable end is to be durable itself."""
_FACTS_END_S = 1.0
"""The same while there are commits of facts alone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often a node looks at what others may change; in seconds."""

    disk_s: float = 1.0
    """At free disk, while messages come or are refused because there is too little."""
    disk_idle_s: float = 60.0
    """At free disk, while nothing is committed: others write there, too."""
    place_s: float = 1.0
    """Whether the data directory is where it was opened."""


class Upkeep:
    """The tasks that maintain an open data directory, whatever the role of its node."""

    def __init__(
        self,
        *,
        store: Store,
        checkpoints: Checkpoints,
        budget: DiskBudget,
        executor: Executor,
        intervals: Intervals,
        duty_changed: Callable[[], None],
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._budget = budget
        self._executor = executor
        self._intervals = intervals
        self._duty_changed = duty_changed
        self._appended = Wakeup()
        self._told = Wakeup()
        self._has_told = False
        """Whether somebody was told of a commit since the durable end was made durable last."""
        self._disk_checked = Wakeup()
        self._appends = 0
        self.disk_is_full = False
        """Whether free disk is below its floor."""
        self._changed_at = trio.current_time()
        """When that changed last."""

    async def begin(self, nursery: trio.Nursery) -> None:
        """Look after log, checkpoints and disk until cancelled; starts with a look at the disk."""
        nursery.start_soon(self._checkpoints.run)
        await nursery.start(self._watch_disk)
        nursery.start_soon(self._watch_place)
        nursery.start_soon(self._sync_durable_end)

    @property
    def disk_full_s(self) -> float | None:
        """For how long free disk has been below its floor; None: it is not."""
        return trio.current_time() - self._changed_at if self.disk_is_full else None

    def appended(self) -> None:
        """See to the disk after an append."""
        self._appends += 1
        self._disk_checked.wake()
        self.note_disk()

    def committed(self, has_facts_alone: bool) -> None:  # noqa: FBT001
        """See to the log and the disk after a commit."""
        self._appended.wake()
        if not has_facts_alone:
            self._has_told = True
            self._told.wake()
        self.appended()

    async def _watch_disk(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Refuse messages while there is no free disk for them; delivery goes on.

        Each commit looks for itself whether there is room for it (`DiskBudget.require`); here it is
        seen what others do to the disk, and when there is room again. A little before it comes to
        that, what is kept for its age only begins to go, so that messages need not be refused for
        want of space that nothing needs. Starts when it has looked for the first time.
        """
        budget = self._budget
        while True:
            appends = self._appends
            await self._executor.run(_DISK_WORKER, budget.look)
            self.note_disk()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            helped = False
            if self.disk_is_full or budget.available < budget.floor * _DISK_SHORT_SHARE:
                wanted = max(int(budget.floor * _DISK_ROOMY_SHARE), budget.refused_bytes)
                helped = await self._checkpoints.make_room(budget.floor + budget.owed + wanted)
            await trio.sleep(self._intervals.disk_s)
            if not self.disk_is_full and not helped and self._appends == appends:
                # Nothing is written by us before the next commit; others are looked after slowly.
                with trio.move_on_after(self._intervals.disk_idle_s):
                    await self._disk_checked.sleep()

    def note_disk(self) -> None:
        """Have messages refused, or taken again, by what the budget says."""
        budget = self._budget
        if budget.full == self.disk_is_full:
            return
        self.disk_is_full, self._changed_at = budget.full, trio.current_time()
        log = _log.error if budget.full else _log.warning
        log(
            "free disk is below its floor; messages are refused"
            if budget.full
            else "free disk is above its floor again; messages are accepted",
            free=budget.free,
            owed=budget.owed,
            floor=budget.floor,
        )
        self._duty_changed()

    async def _watch_place(self) -> None:
        """End the server once its directory, lock or log is not at its path any more.

        A start would not find what is acknowledged from then on. Raises FatalDiskError.
        """
        log = self._store.message_log
        while True:
            await self._executor.run(MESSAGE_WORKER, log.require_in_place)
            await trio.sleep(self._intervals.place_s)

    async def _sync_durable_end(self) -> None:
        """Make the durable end durable soon after a commit, and before the log rests.

        Of facts nobody is told that they are durable, so it is not urgent for them.
        """
        log = self._store.message_log
        while True:
            if log.durable_end_synced:
                await self._appended.sleep()
            if not self._has_told:
                with trio.move_on_after(_FACTS_END_S):
                    await self._told.sleep()
            await trio.sleep(_DURABLE_END_S)
            self._has_told = False
            await self._executor.run(MESSAGE_WORKER, log.sync_durable_end)
