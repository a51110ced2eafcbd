"""Into memory before it is due: splits of coarse segments, loads into the wheel, and its bounds.

Nothing wakes up unless there is something to do.

Memory is bounded: wheel and sender together hold `wheel_entries_max` entries. Loading leaves a
quarter of that to messages that arrive when they are nearly due; if they exceed it, what is due
last is thrown out of the wheel and given back: it is loaded again when there is room.

Names of subjects are bounded as well, in bytes (storage.subjects_bytes_max). A name stays in memory
until a collection finds that nothing holds its number any more. Loading fills three quarters of the
bound at most; where more than seven eighths are in use, what is due last is thrown out likewise.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.checkpoints import Checkpoints
from delay_server.filing.filer import Filed
from delay_server.filing.schedule_access import ScheduleAccess
from delay_server.filing.splitter import Splitter
from delay_server.holding.wheel import Wheel, WheelConfig
from delay_server.lanes.lanes import Lanes
from delay_transport.seams.outbox import Wakeup
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock
from storage.disk.spans import MINUTE_MS
from storage.node.store import Store
from storage.schedule.handout import Handout
from storage.schedule.keys import Key
from storage.schedule.loading import ALL_ROWS, LoadJob
from storage.schedule.splitting import SplitJob

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_FULL_RECHECK_MS = 10_000
"""Longest sleep while the wheel is full; whoever makes room in it says so."""
_MARKED_AT_ONCE = 200_000
"""Subject numbers looked at in one go of a collection; others run between two of them."""
_SWEPT_AT_ONCE = 5000
"""Names taken away in one call."""
_COLLECTED_AGAIN_S = 1.0
"""Time between two collections while nothing but names stands in the way of loading."""


@dataclass(frozen=True, slots=True)
class _View:
    """What the loops need to know of the schedule_log, taken in its lane."""

    next_load_ms: int | None
    next_split_ms: int | None
    wants_floor: int | None


class Loader:
    """The tasks that stand between the schedule_log and the wheel."""

    def __init__(
        self,
        *,
        store: Store,
        handout: Handout,
        give_back: Callable[[Entries], None],
        wheel: Wheel,
        limits: WheelConfig,
        checkpoints: Checkpoints,
        access: ScheduleAccess,
        pacer: Pacer,
        lanes: Lanes,
        held_elsewhere: Callable[[], int],
        on_wheel_grown: Callable[[], None],
        append_floor: Callable[[int], Awaitable[None]],
        on_facts: Callable[[Sequence[FactBlock], int], None],
        on_shared: Callable[[Entries], None],
    ) -> None:
        """Take over the parts.

        held_elsewhere: how many messages have left the wheel and have no outcome; on_shared: for
        messages that several names receive, as soon as they are loaded; on_facts: hears what
        records state about older messages, and of the last one applied.
        """
        self._on_facts = on_facts
        self._on_shared = on_shared
        self._store = store
        self._handout = handout
        self._give_back = give_back
        self._wheel = wheel
        self._limits = limits
        self._step_rows = store.settings.limits.load_step_rows
        self._checkpoints = checkpoints
        self.access = access
        self._pacer = pacer
        self._lanes = lanes
        self._held_elsewhere = held_elsewhere
        self.filling = trio.Lock()
        """Held while something is put into wheel or sender and what is too much is thrown out."""
        self._on_wheel_grown = on_wheel_grown
        self._append_floor = append_floor
        self._waits_for_room = False
        self._check_load = Wakeup()
        self._wake_load_at_ms: float = math.inf
        """Until when run_loading sleeps; infinite while it looks around."""
        self._subjects = store.schedule.subjects
        self._bytes_an_entry = 0
        """Bytes of names for each entry held, when names were collected last."""
        self._waits_for_names = False
        """Whether there would be something to load, if there was room for its names."""
        self._check_names = Wakeup()
        self._names_collected = trio.lowlevel.ParkingLot()
        self._names_rest = (0, 0)
        """From when on is due what was thrown out for its names, and when to load it at the
        earliest, unless something came before it."""
        self._look_again = False
        """Something has come that run_loading may not have seen."""
        self.hour_mark = store.schedule.hour_mark
        self.gather_bytes_max = math.inf
        self.evicted = 0
        """Entries thrown out of the wheel."""
        self._splitter = Splitter(store, access, pacer)

    # -- what is filed -----------------------------------------------------------------------

    async def take_filed(self, filed: Filed) -> None:
        """Take what is due soon into the wheel."""
        self._on_facts(filed.facts, filed.last)
        await self.take(filed.entries)

    async def filed(self, filed: Filed) -> None:
        """Load what is due before anything that was known; wait until names have room."""
        due_ms = filed.next_load_ms
        is_sooner = due_ms is not None and (
            due_ms - self._limits.load_ahead_ms < self._wake_load_at_ms
        )
        if is_sooner or filed.crossed_off:
            self.wake()
        await self._bound_names()

    # -- memory ------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Entries in the wheel and in the sender."""
        return len(self._wheel) + self._held_elsewhere()

    @property
    def room_to_load(self) -> int:
        """How many entries may be loaded; the last quarter is left to what arrives when due."""
        return max(self._limits.entries_max * 3 // 4 - self.held, 0)

    @property
    def _rows_to_load(self) -> int:
        """How many entries a slice may have for which there is room, for their names too."""
        if not self._bytes_an_entry:
            return self.room_to_load
        # Those that are loaded may well have names like those that are held.
        names_bytes = max(self._names_room, self._subjects.bytes_max // 8)
        return min(self.room_to_load, max(names_bytes // self._bytes_an_entry, 1))

    @property
    def _names_room(self) -> int:
        """How many bytes of names may be loaded."""
        return max(self._subjects.bytes_max * 3 // 4 - self._subjects.bytes_held, 0)

    @property
    def _lacks_names_room(self) -> bool:
        """Whether loading has to wait until names become free; an empty wheel never waits."""
        return bool(len(self._wheel)) and self._names_room < self._subjects.bytes_max // 8

    def wheel_has_shrunk(self) -> None:
        """Go on loading if that had to wait for room."""
        if self._waits_for_room and self._has_room():
            self.wake()

    def _has_room(self) -> bool:
        """Say whether there is room for a slice; with small ones a segment is read many times."""
        least = max(self._limits.entries_max // 8, 1)
        return self.room_to_load >= least and not self._lacks_names_room

    async def take(self, entries: Sequence[Entries]) -> None:
        """Put entries into the wheel, but not more than fit."""
        for part in entries:
            for _ in self._lanes.ask(part):
                await trio.lowlevel.checkpoint()
            async with self.filling:
                shared, kept = self._lanes.take_shared(self._lanes.keep(part))
                if len(shared):
                    self._on_shared(shared)
                if len(kept):
                    self._wheel.add(kept)
                    self._on_wheel_grown()
                    await self.bound()

    async def bound(self) -> None:
        """Throw out of the wheel what is too much; to be called holding `filling`."""
        excess = self.held - self._limits.entries_max
        if excess <= 0 or not len(self._wheel):
            return
        # Some more than has to go, or the next few messages would throw out the next few entries.
        excess += self._limits.entries_max // 4
        await self._throw_out(max(len(self._wheel) - excess, 0))

    async def _throw_out(self, keep: int, *, rests: bool = False) -> None:
        """Throw all but about `keep` entries out of the wheel; to be called holding `filling`.

        What `rests` is loaded again when half of the time is over until the first of it is due.
        """
        await self._until_popped()
        before = len(self._wheel)
        if before <= keep:
            return
        key = self._wheel.eviction_key(keep)
        for gone in self._wheel.evict(key):
            self._give_back(gone)
            await trio.lowlevel.checkpoint()
        # What is being read behind that would only be thrown out as well.
        self._handout.cap(key)
        self.evicted += before - len(self._wheel)
        _log.info(
            "the wheel is full; what is due last waits on disk", entries=before - len(self._wheel)
        )
        now_ms = self._pacer.now_ms()
        if rests and now_ms < key[0]:
            # Else what does not fit would come and go without end. It ends before any of that is
            # due, whatever becomes of the clock.
            self._names_rest = key[0], now_ms + (key[0] - now_ms) // 2
        self.wake()

    async def _until_popped(self) -> None:
        """Wait until nothing is being popped from the wheel in steps, which takes some ms."""
        while self._wheel.is_popping:
            await trio.lowlevel.checkpoint()

    # -- names of subjects -------------------------------------------------------------------

    async def run_collecting(self) -> None:
        """Take names of subjects away that nothing holds any more."""
        while True:
            if not self._subjects.wants_collection:
                with trio.move_on_after(_COLLECTED_AGAIN_S if self._waits_for_names else math.inf):
                    await self._check_names.sleep()
            await self._collect_names()
            while self._has_too_many_names():
                async with self.filling:
                    share = self._subjects.bytes_max // 2 / self._subjects.bytes_held
                    keep = int(len(self._wheel) * share)
                    await self._throw_out(max(keep, self._step_rows), rests=True)
                await self._collect_names()
            self._names_collected.unpark_all()
            if self._waits_for_names:
                self.wake()

    def _has_too_many_names(self) -> bool:
        """Say whether something has to leave the wheel for its names; one step's worth may stay."""
        return (
            self._subjects.bytes_held > self._subjects.bytes_max * 7 // 8
            and len(self._wheel) > self._step_rows
        )

    async def _collect_names(self) -> None:
        if self._names_room < self._subjects.bytes_max // 8:
            # Rows that are written need their names no longer.
            await self.access.run(self._store.schedule.flush, self._pacer.now_ms())
        held = await self.access.run(self._store.schedule.condemn_subjects)
        # Nothing else comes to be held of a subject of which nothing was, but with its name.
        for first in range(0, len(held), _MARKED_AT_ONCE):
            part = held[first : first + _MARKED_AT_ONCE]
            part |= self._lanes.holds_subjects(first, len(part))
            await trio.lowlevel.checkpoint()
        for _ in self._lanes.forget_numbers(held):
            await trio.lowlevel.checkpoint()
        await self.access.run(self._subjects.spare, held)
        while not await self.access.run(self._subjects.sweep, _SWEPT_AT_ONCE):
            pass
        if most := max(self.held, len(self._subjects)):
            self._bytes_an_entry = self._subjects.bytes_held // most

    async def _bound_names(self) -> None:
        """Have names collected if there are enough of them, and wait if there are too many."""
        if self._subjects.wants_collection:
            self._check_names.wake()
            if self._subjects.is_full:
                await self._names_collected.park()

    # -- loading and splitting ---------------------------------------------------------------

    async def run_loading(self) -> None:
        """Split coarse segments and load near ones, each in good time."""
        while True:
            self._wake_load_at_ms, self._look_again = math.inf, False
            view = await self._advance()
            if self._pacer.is_news(self._store.clock_known):
                self._checkpoints.wake()
            if self._look_again:
                continue
            now_ms = self._pacer.now_ms()
            self._wake_load_at_ms = self._next_wake(view, now_ms)
            with trio.move_on_after(max(self._wake_load_at_ms - now_ms, 1) / 1000):
                await self._check_load.sleep()

    def wake(self) -> None:
        """Have run_loading look around, once more if it is just doing so."""
        self._look_again = True
        self._check_load.wake()

    def _next_wake(self, view: _View, now_ms: int) -> float:
        times: list[float] = [now_ms + self._pacer.sleep_ms_max]
        waits_for_names = False
        if view.next_load_ms is not None:
            at = view.next_load_ms - self._limits.load_ahead_ms
            if view.next_load_ms >= self._names_rest[0]:
                at = max(at, self._names_rest[1])
            has_room = self._has_room()
            self._waits_for_room = not has_room
            waits_for_names = at <= now_ms and self._lacks_names_room
            recheck_ms = 50 if has_room else _FULL_RECHECK_MS
            times.append(max(at, now_ms + (1000 if self._pacer.reason else recheck_ms)))
        if waits_for_names and not self._waits_for_names:
            self._check_names.wake()
        self._waits_for_names = waits_for_names
        if view.next_split_ms is not None:
            times.append(max(view.next_split_ms, now_ms + 1000))
        if view.wants_floor is not None:
            times.append(max(view.wants_floor * MINUTE_MS, now_ms + 1000))
        return min(times)

    async def _advance(self) -> _View:
        """Do all splits and loads that are due now."""
        may_split = True
        while self._pacer.runs():
            # What wheel and sender hold is the loop's: it is not asked for in a worker.
            rows_max = self._rows_to_load if self._has_room() else 0
            found = await self.access.run(self._next_work, may_split, rows_max)
            self.hour_mark = self._store.schedule.hour_mark
            if isinstance(found, SplitJob):
                may_split = await self._splitter.split(found, between=self._bound_names)
            elif isinstance(found, LoadJob):
                await self._load(found)
                if not found.started:
                    break  # There is something to wait for first.
            else:
                if found.wants_floor is not None and self._pacer.runs():
                    await self._append_floor(found.wants_floor)
                return found
        return await self.access.run(self._view)

    def _next_work(self, may_split: bool, rows_max: int) -> SplitJob | LoadJob | _View:  # noqa: FBT001
        """Begin the next split or load that is due; if none is, look around.

        One call, since nearly always there is nothing to do.
        """
        job: SplitJob | LoadJob | None = None
        if may_split:
            job = self._splitter.begin()
        if job is None:
            job = self._begin_load(self._load_until_ms(), rows_max)
        return self._view() if job is None else job

    def _load_until_ms(self) -> int:
        """Return how far to load: to the end of a minute, since the time itself never stands still.

        So each segment is read once, and between two minutes there is nothing to do.
        """
        ahead_ms = self._pacer.now_ms() + self._limits.load_ahead_ms
        return (ahead_ms // MINUTE_MS + 1) * MINUTE_MS

    def _begin_load(self, until_ms: int, rows_max: int) -> LoadJob | None:
        handout, now_ms = self._handout, self._pacer.now_ms()
        rest_from_ms, rest_until_ms = self._names_rest
        if now_ms < rest_until_ms and (handout.next_load_ms() or 0) >= rest_from_ms:
            return None
        return handout.begin_load(until_ms, rows_max=rows_max, now_ms=now_ms)

    async def _load(self, job: LoadJob) -> None:
        done = False
        while not done:
            entries, done = await self.access.run(job.step, self._step_rows)
            await self.take([entries])
            await self._bound_names()

    async def load_up_to(self, until: Key) -> None:
        """Load at once what lane 0 has got from a lane that ended, up to where others have come."""
        job = await self.access.run(self._begin_load_to, until)
        if job is not None:
            await self._load(job)
        self.wake()

    def _begin_load_to(self, until: Key) -> LoadJob | None:
        return self._handout.begin_load(until[0], rows_max=ALL_ROWS, now_ms=self._pacer.now_ms())

    def _view(self) -> _View:
        schedule = self._store.schedule
        return _View(
            next_load_ms=self._handout.next_load_ms(),
            next_split_ms=schedule.splits.next_ms(),
            wants_floor=schedule.wants_floor(),
        )
