"""Brings what waits on disk of hot subjects to the sender as fast as it leaves; one task.

A subject that waits (lanes.py) has a lane in the schedule_log, which is opened and closed here. Its
due messages are read slice by slice, whenever the sender has done with half of what it may hold of
them. When all that is due has been taken, and the wheel has dropped what it had of the subject, the
lane is closed: what is still to come of it up to the loading cursor goes into the wheel, and the
subject is like all others.
"""

import math
from collections.abc import Callable

import structlog
import trio

from delay_server.dispatch import Offer
from delay_server.filing import Filing
from delay_server.lanes import Lanes
from delay_server.out_of_wheel import OutOfWheel
from delay_server.pace import Pacer
from delay_server.wheel import Wheel
from delay_transport import Wakeup
from storage import CloseJob, DrainJob, ScheduleLog

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
costs the same however little it is."""
_HELD_RECHECK_S = 0.5


class Draining:
    """The task that serves lanes."""

    def __init__(
        self,
        *,
        schedule: ScheduleLog,
        filing: Filing,
        lanes: Lanes,
        wheel: Wheel,
        out_of_wheel: OutOfWheel,
        pacer: Pacer,
        offer: Offer,
        room: Callable[[], int],
        on_unreserved: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._filing = filing
        self._lanes = lanes
        self._wheel = wheel
        self._out_of_wheel = out_of_wheel
        self._pacer = pacer
        self._offer = offer
        self._room = room
        self._on_unreserved = on_unreserved
        self._more = Wakeup()
        self._rests_until: dict[int, float] = {}
        """For each lane that is open: when it is to be looked after again."""
        self._rest_s: dict[int, float] = {}
        self.reserved = 0
        """Entries that are being read and that the sender has to have room for when they come."""
        self.drained = 0
        """Entries that came to the sender from lanes."""
        self.opened = 0
        """Lanes opened."""

    def wake(self) -> None:
        """Look after subjects that wait, now that there are some."""
        self._more.wake()

    async def run(self) -> None:
        """Serve all lanes in turn until cancelled; asleep while there are none."""
        while True:
            if not self._lanes.waiting:
                await self._more.sleep()
                continue
            if not self._pacer.runs():
                await trio.sleep(_HELD_RECHECK_S)
                continue
            worked = False
            for subject in sorted(self._lanes.waiting):
                worked |= await self._serve(subject)
            if not worked:
                with trio.move_on_at(self._next_look()):
                    await self._more.sleep()
                await trio.sleep(_PAUSE_S)

    def _next_look(self) -> float:
        """Return when a lane that rests has to be looked after, if it could be given anything."""
        return min(
            (
                self._rests_until[subject]
                for subject in self._lanes.waiting
                if self._wanted(subject)
            ),
            default=math.inf,
        )

    def _wanted(self, subject: int) -> int:
        """Return how much of a lane is to be taken now; none while the sender has enough of it."""
        room = self._room()
        share, held = self._lanes.share(room), self._lanes.held(subject)
        # Half of the room at the most: others want some while this is being read.
        return 0 if held > share // 2 else max(min(share - held, room - room // 2), 0)

    async def _serve(self, subject: int) -> bool:
        """Do what can be done for a lane now; say whether there was anything."""
        if subject not in self._rests_until:
            await self._open(subject)
            return True
        if trio.current_time() < self._rests_until[subject]:
            return False
        wanted = self._wanted(subject)
        if not wanted:
            return False
        began, before = trio.current_time(), self.drained
        if not await self._drain(subject, wanted):
            if self.drained > before:
                self._rest_s[subject] = _REST_S
            closed = not self._wheel.pending_of(subject) and await self._close(subject)
            if not closed:
                now = trio.current_time()
                rest_s = self._rest_s.get(subject, _REST_S)
                self._rests_until[subject] = now + max(rest_s, _REST_SHARE * (now - began))
                self._rest_s[subject] = min(2 * rest_s, _REST_S_MAX)
        return True

    async def _open(self, subject: int) -> None:
        async with self._filing.taking:
            given = self._out_of_wheel.of_subject(subject)
            await self._filing.run(self._schedule.open_lane, subject, given)
        self._rests_until[subject] = trio.current_time()
        self.opened += 1
        _log.info("a subject waits on disk", subject=self._name(subject), held=len(given))

    async def _drain(self, subject: int, rows_max: int) -> bool:
        """Take what is due of a lane, as much as is wanted; say whether there is more."""
        self.reserved = rows_max
        try:
            return await self._drain_reserved(subject, rows_max)
        finally:
            self.reserved = 0
            self._on_unreserved()

    async def _drain_reserved(self, subject: int, rows_max: int) -> bool:
        job = await self._filing.run(self._begin_drain, subject, rows_max)
        if job is None:
            return False
        done = False
        while not done:
            async with self._filing.taking:
                entries, done = await self._filing.run(job.step, _STEP_ROWS)
                if len(entries):
                    self.reserved = max(self.reserved - len(entries), 0)
                    self._lanes.drained(entries)
                    self._offer(entries, lane=self._lanes.number(subject))
                    self.drained += len(entries)
                    await self._filing.bound()
        return job.more

    def _begin_drain(self, subject: int, rows_max: int) -> DrainJob | None:
        return self._schedule.begin_drain(
            subject, self._pacer.trusted_ms(), rows_max=rows_max, now_ms=self._pacer.now_ms()
        )

    async def _close(self, subject: int) -> bool:
        """Close a lane of which nothing is in the wheel, if what is to come of it fits there."""
        rows_max = self._filing.room_to_load
        async with self._filing.taking:
            job = await self._filing.run(self._begin_close, subject, rows_max)
            closed = self._note_closed(subject, job)
        done = job is None
        while not done:
            assert job is not None
            async with self._filing.taking:
                entries, done = await self._filing.run(job.step, _STEP_ROWS)
                closed = closed or self._note_closed(subject, job)
                await self._filing.take([entries])
        return closed

    def _begin_close(self, subject: int, rows_max: int) -> CloseJob | None:
        return self._schedule.begin_close(subject, rows_max=rows_max, now_ms=self._pacer.now_ms())

    def _note_closed(self, subject: int, job: CloseJob | None) -> bool:
        """Let the wheel have the subject again, in the moment in which its lane is closed."""
        if job is None or not job.started:
            return False
        self._lanes.stop_waiting(subject)
        del self._rests_until[subject]
        self._rest_s.pop(subject, None)
        _log.info("a subject waits on disk no longer", subject=self._name(subject))
        return True

    def _name(self, subject: int) -> str:
        return self._schedule.subjects.names[subject].decode(errors="replace")
