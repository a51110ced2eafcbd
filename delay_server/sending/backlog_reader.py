"""Reads backlogs from disk into the sender, as fast as the sender delivers them; one task.

The reader opens a lane in the schedule_log for subjects whose backlog waits on disk (lanes.py),
with the number of their lane in the sender. It reads due messages slice by slice, whenever the
sender has delivered half of what it may hold of the lane. Once all due messages are read, it closes
the lane: the wheel gets the rows up to the loading cursor, and the subjects are like all others.
Before that the wheel drops its entries of these subjects, since nothing tells which of the
remaining rows they are.

Subjects of a lane that have to wait later join it, bit by bit: each time it begins anew at the very
first row. Those without a route have no lane to come through, so nothing of them is read.

Only one slice is read at a time, so however many lanes wait, filing and loading go on beside it.
There may be thousands of lanes, and messages leave the sender every millisecond. So the reader
checks a lane when the sender holds less of it, when its time has come, and else in turn with all
others, a few at a time (agenda.py): each lane may hold more while the sender has more room.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.loader import Loader
from delay_server.holding.out_of_wheel import OutOfWheel
from delay_server.holding.wheel import Wheel
from delay_server.lanes.agenda import Agenda
from delay_server.lanes.lanes import Lanes
from delay_server.sending.dispatch import Offer
from delay_transport.seams.outbox import Wakeup
from storage.disk.errors import ReadFailedError
from storage.schedule.loading import CloseJob, DrainJob, NumberSet
from storage.schedule.schedule_log import ScheduleLog

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_STEP_ROWS = 50_000
"""Rows read in one step; filing and loading go on in between."""
_PAUSE_S = 0.005
"""Least time between two looks at what the sender has done: it has it done bit by bit."""
_REST_S = 0.1
_REST_S_MAX = 1.0
"""Time between two readings of a lane of which all that was due has been taken; it doubles as long
as nothing is found."""
_REST_SHARE = 4
"""It rests at least this many times as long as the reading took: looking for what is due by now
costs the same however little it is. And lanes are closed with something in the wheel, which is to
look at all of it and to read minutes, no more often."""
_HELD_RECHECK_S = 0.5
_JOIN_S = 1.0
"""Least time between two occasions at which subjects join an open lane."""


class BacklogReader:
    """The task that serves lanes."""

    def __init__(
        self,
        *,
        schedule: ScheduleLog,
        loader: Loader,
        lanes: Lanes,
        wheel: Wheel,
        out_of_wheel: OutOfWheel,
        pacer: Pacer,
        offer: Offer,
        room: Callable[[], int],
        on_unreserved: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._loader = loader
        self._lanes = lanes
        self._wheel = wheel
        self._out_of_wheel = out_of_wheel
        self._pacer = pacer
        self._offer = offer
        self._room = room
        self._on_unreserved = on_unreserved
        self._more = Wakeup()
        # The pause is made between any two passes.
        self._looks = Agenda[int](everyone=self._waiting_lanes, turn_s=0.0)
        self._rests_until: dict[int, float] = {}
        """For each lane that is open: when it is to be looked after again."""
        self._rest_s: dict[int, float] = {}
        self._may_join_at: dict[int, float] = {}
        self._unread_until: dict[int, float] = {}
        """For each lane of which something could not be read: when that is to be tried again."""
        self._cleared: set[int] = set()
        """Lanes of which the wheel has nothing but what is due: it takes no more of them."""
        self._may_clear_at = -math.inf
        """When the wheel may be looked through for another lane."""
        self.reserved = 0
        """Entries that are being read and that the sender has to have room for when they come."""
        self.drained = 0
        """Entries that came to the sender from lanes."""
        self.opened = 0
        """Lanes opened."""

    def wake(self) -> None:
        """Look after subjects that wait, now that there are some, or room for more of them."""
        self._looks.all_in_turn()
        self._more.wake()

    async def run(self) -> None:
        """Serve all lanes in turn until cancelled; asleep while there are none."""
        while True:
            if not self._lanes.anyone_waits:
                await self._more.sleep()
                continue
            if not self._pacer.runs():
                await trio.sleep(_HELD_RECHECK_S)
                continue
            worked = False
            for lane in sorted(self._lanes.leaving):
                await self._leave(lane)
            for lane in self._lanes.take_eased():
                self._looks.soon(lane)
            for lane in self._looks.due(trio.current_time()):
                worked |= await self._serve(lane)
            if not worked:
                with trio.move_on_at(self._looks.next_at(trio.current_time())):
                    await self._more.sleep()
                await trio.sleep(_PAUSE_S)

    def _waiting_lanes(self) -> list[int]:
        return sorted({*self._lanes.unopened, *self._lanes.opened})

    def _wanted(self, lane: int) -> int:
        """Return how much of a lane is to be taken now; none while the sender has enough of it."""
        room = self._room()
        share, held = self._lanes.share(room, lane), self._lanes.held_in(lane)
        # Half of the room at the most: others want some while this is being read.
        return 0 if held > share // 2 else max(min(share - held, room - room // 2), 0)

    async def _serve(self, lane: int) -> bool:
        """Do what can be done for a lane now; say whether there was anything.

        It is looked at again when there may be more, as long as more of it is wanted.
        """
        wanted = self._wanted(lane)
        if not wanted:
            return False
        began, before = trio.current_time(), self.drained
        if lane in self._lanes.unopened:
            may_join_at = self._may_join_at.get(lane, began)
            if may_join_at <= began:
                await self._open(lane)
                self._looks.soon(lane)
                return True
            self._looks.at(lane, may_join_at)
        if lane not in self._lanes.opened:
            return False
        if began < self._rests_until[lane]:
            self._looks.at(lane, self._rests_until[lane])
            return False
        if self._unread_until.get(lane, math.inf) <= began:
            del self._unread_until[lane]
            await self._loader.access.run(self._schedule.retry_lane, lane)
        if not await self._drain(lane, wanted):
            if self.drained > before:
                self._rest_s[lane] = _REST_S
            if not await self._close(lane):
                now = trio.current_time()
                rest_s = self._rest_s.get(lane, _REST_S)
                self._rests_until[lane] = now + max(rest_s, _REST_SHARE * (now - began))
                self._rest_s[lane] = min(2 * rest_s, _REST_S_MAX)
        self._looks.soon(lane)
        return True

    async def _open(self, lane: int) -> None:
        """Open a lane, or let those that wait for it join it."""
        async with self._loader.access.taking:
            await self._loader.take_back_returned()
            if lane not in self._lanes.unopened:
                # While this waited, those that were to come got other routes.
                return
            subjects = self._lanes.open(lane)
            self._cleared.discard(lane)
            given = self._out_of_wheel.of_subjects(subjects)
            await self._loader.access.run(self._schedule.open_lane, lane, subjects, given)
        now = trio.current_time()
        self._rests_until[lane] = now
        self._may_join_at[lane] = now + _JOIN_S
        self.opened += 1
        _log.info(
            "the backlog of subjects waits on disk",
            subjects=len(subjects),
            first=self._name(int(subjects[0])),
            held=len(given),
        )

    async def _leave(self, lane: int) -> None:
        """Take subjects out of a lane that go another way now."""
        async with self._loader.access.taking:
            subjects = self._lanes.leave(lane)
            await self._loader.access.run(self._schedule.leave_lane, lane, subjects)
        if lane not in self._lanes.opened:
            self._forget(lane)

    def _forget(self, lane: int) -> None:
        """Forget a lane of the schedule_log that is no more."""
        for times in (self._rests_until, self._rest_s, self._may_join_at, self._unread_until):
            times.pop(lane, None)
        self._cleared.discard(lane)

    async def _drain(self, lane: int, rows_max: int) -> bool:
        """Take what is due of a lane, as much as is wanted; say whether there is more."""
        self.reserved = rows_max
        try:
            return await self._drain_reserved(lane, rows_max)
        finally:
            self.reserved = 0
            self._on_unreserved()

    async def _drain_reserved(self, lane: int, rows_max: int) -> bool:
        job = await self._loader.access.run(self._begin_drain, lane, rows_max)
        if job is None:
            return False
        done = False
        while not done:
            async with self._loader.access.taking:
                entries, done = await self._loader.access.run(job.step, _STEP_ROWS)
                if len(entries):
                    self.reserved = max(self.reserved - len(entries), 0)
                    for place, part in self._lanes.drained(entries):
                        is_shared = self._lanes.subject_of(place) is None
                        self._offer(part, lane=place, late=is_shared)
                    self.drained += len(entries)
                    await self._loader.bound()
        if job.trouble is not None:
            wait_s = await self._loader.read_failed(job.trouble)
            self._unread_until[lane] = trio.current_time() + wait_s
        return job.more

    def _begin_drain(self, lane: int, rows_max: int) -> DrainJob | None:
        return self._schedule.begin_drain(
            lane, self._pacer.trusted_ms(), rows_max=rows_max, now_ms=self._pacer.now_ms()
        )

    async def _close(self, lane: int) -> bool:
        """Close a lane if what is to come of it fits into the wheel, and nothing of it is due."""
        began = trio.current_time()
        clears = began >= self._may_clear_at
        # Where others are about to join it would only be opened again.
        clears = clears and lane not in self._cleared and lane not in self._lanes.unopened
        async with self._loader.access.taking:
            clears = clears and bool(self._in_wheel(lane))
            if clears:
                await self._clear(lane)
            if lane in self._lanes.leaving or self._in_wheel(lane):
                closed, job = False, None
            else:
                rows_max = self._loader.room_to_load
                job = await self._loader.access.run(self._begin_close, lane, rows_max)
                closed = self._note_closed(lane, job)
        done = job is None
        while not done:
            assert job is not None
            async with self._loader.access.taking:
                try:
                    entries, done = await self._loader.access.run(job.step, _STEP_ROWS)
                except ReadFailedError as error:
                    closed = closed or self._note_closed(lane, job)
                    await self._loader.leave_unread(job, error)
                    break
                closed = closed or self._note_closed(lane, job)
                await self._loader.take([entries])
        if clears:
            now = trio.current_time()
            self._may_clear_at = now + _REST_SHARE * (now - began)
            self._loader.wheel_has_shrunk()
        return closed

    async def _clear(self, lane: int) -> None:
        """Throw out of the wheel what it has of a lane's subjects but for what is due."""
        self._cleared.add(lane)
        subjects = NumberSet()
        subjects.add(self._members(lane))
        for entries in self._wheel.remove_ahead(subjects):
            self._lanes.removed(entries)
            await trio.lowlevel.checkpoint()

    def _members(self, lane: int) -> npt.NDArray[np.intp]:
        """Return the subjects that are in an open lane."""
        subjects = self._lanes.opened.get(lane, set())
        return np.fromiter(subjects, np.intp, len(subjects))

    def _in_wheel(self, lane: int) -> int:
        """Return how many entries of a lane's subjects are in the wheel."""
        return self._wheel.pending_among(self._members(lane))

    def _begin_close(self, lane: int, rows_max: int) -> CloseJob | None:
        return self._schedule.begin_close(lane, rows_max=rows_max, now_ms=self._pacer.now_ms())

    def _note_closed(self, lane: int, job: CloseJob | None) -> bool:
        """Let the wheel have the subjects again, in the moment in which their lane is closed."""
        if job is None or not job.started:
            return False
        self._lanes.close(lane)
        self._forget(lane)
        _log.info(
            "the backlog of subjects no longer waits on disk",
            subjects=len(job.members),
            first=self._name(int(job.members.numbers()[0])),
        )
        return True

    def _name(self, subject: int) -> str:
        return self._schedule.subjects.names[subject].decode(errors="replace")
