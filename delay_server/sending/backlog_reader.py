"""Reads backlogs from disk into the sender, as fast as the sender delivers them; one task.

A subject whose messages have to wait is in a lane of the handout from that step on (lanes.py), with
the number of its lane in the sender. The reader takes due messages of a lane slice by slice,
whenever the sender has delivered half of what it may hold of it. Once all that is due has been
taken, the lane ends: its subjects are like all others, and the wheel gets what is due later. What
the wheel has of them meanwhile is given back when it is popped. Those without a route have no lane
to come through, so nothing of them is read.

Only one slice is read at a time, so however many lanes wait, filing and loading go on beside it.
There may be thousands of lanes, and messages leave the sender every millisecond. So the reader
checks a lane when the sender holds less of it, when its time has come, and else in turn with all
others, a few at a time (agenda.py): each lane may hold more while the sender has more room.
"""

from collections.abc import Callable

import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.loader import Loader
from delay_server.lanes.agenda import Agenda
from delay_server.lanes.lanes import Lanes
from delay_server.sending.dispatch import Offer
from delay_transport.seams.outbox import Wakeup
from storage.batch.entries import Entries
from storage.schedule.handout import Handout
from storage.schedule.loading import DrainJob, FitJob

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


class BacklogReader:
    """The task that serves lanes."""

    def __init__(
        self,
        *,
        handout: Handout,
        give_back: Callable[[Entries], None],
        subject_name: Callable[[int], bytes],
        loader: Loader,
        lanes: Lanes,
        pacer: Pacer,
        offer: Offer,
        room: Callable[[], int],
        on_unreserved: Callable[[], None],
    ) -> None:
        self._handout = handout
        self._give_back = give_back
        self._subject_name = subject_name
        self._loader = loader
        self._lanes = lanes
        self._pacer = pacer
        self._offer = offer
        self._room = room
        self._on_unreserved = on_unreserved
        self._more = Wakeup()
        # The pause is made between any two passes.
        self._looks = Agenda(self._waiting_lanes)
        self._rests_until: dict[int, float] = {}
        """For each lane of which all that was due has been taken: when it is read again."""
        self._rest_s: dict[int, float] = {}
        self.reserved = 0
        """Entries that are being read and that the sender has to have room for when they come."""
        self.drained = 0
        """Entries that came to the sender from lanes."""

    def wake(self) -> None:
        """Look after subjects that wait, now that there are some, or room for more of them."""
        self._looks.all_in_turn()
        self._more.wake()

    async def run(self) -> None:
        """Serve all lanes in turn until cancelled; asleep while there are none."""
        while True:
            if not self._lanes.parked.anyone_waits:
                await self._more.sleep()
                continue
            if not self._pacer.runs():
                await trio.sleep(_HELD_RECHECK_S)
                continue
            worked = False
            for lane in self._lanes.parked.take_eased():
                self._looks.soon(lane)
            for lane in self._looks.due(trio.current_time()):
                worked |= await self._serve(lane)
            if not worked:
                with trio.move_on_at(self._looks.next_at(trio.current_time())):
                    await self._more.sleep()
                await trio.sleep(_PAUSE_S)

    def _waiting_lanes(self) -> list[int]:
        return sorted(self._lanes.parked.waiting_in)

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
        if lane not in self._lanes.parked.waiting_in:
            self._forget(lane)
            return False
        began, before = trio.current_time(), self.drained
        if began < self._rests_until.get(lane, began):
            self._looks.at(lane, self._rests_until[lane])
            return False
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

    def _forget(self, lane: int) -> None:
        """Forget a lane for which nobody waits."""
        self._rests_until.pop(lane, None)
        self._rest_s.pop(lane, None)

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
            entries, done = await self._loader.access.run(job.step, _STEP_ROWS)
            if len(entries):
                async with self._loader.filling:
                    self.reserved = max(self.reserved - len(entries), 0)
                    for place, part in self._lanes.drained(entries):
                        is_shared = self._lanes.subject_of(place) is None
                        self._offer(part, lane=place, late=is_shared)
                    self.drained += len(entries)
                    await self._loader.bound()
        self._give_back(job.surplus)
        return job.more

    def _begin_drain(self, lane: int, rows_max: int) -> DrainJob | None:
        return self._handout.begin_drain(lane, self._pacer.trusted_ms(), rows_max=rows_max)

    async def _close(self, lane: int) -> bool:
        """End a lane of which nothing is due, if what is to come of it fits into the wheel."""
        run = self._loader.access.run
        job = await run(self._begin_fit, lane, self._loader.room_to_load)
        while job is not None and not (await run(job.step, _STEP_ROWS))[1]:
            pass
        if job is None or not job.fits or lane not in self._lanes.parked.waiting_in:
            return False
        subjects = self._lanes.close(lane)
        self._forget(lane)
        _log.info(
            "the backlog of subjects no longer waits on disk",
            subjects=len(subjects),
            first=self._subject_name(subjects[0]).decode(errors="replace"),
        )
        await self._loader.load_up_to(job.until)
        return True

    def _begin_fit(self, lane: int, rows_max: int) -> FitJob | None:
        return self._handout.begin_fit(lane, self._pacer.trusted_ms(), rows_max=rows_max)
