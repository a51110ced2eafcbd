"""From the wheel to the sender when a message is due, and from the sender to the facts."""

from collections import Counter
from collections.abc import Awaitable, Callable

import numpy as np
import structlog
import trio

from delay_server.pace import Pacer
from delay_server.wheel import Wheel
from delay_transport import Executor, Wakeup
from storage import Entries, FactBlock, FactsJournal, Outcome, StorageFullError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

JOURNAL_LANE = "dispatch_log"
_HELD_RECHECK_S = 0.5
_SLEEP_MS_MAX = 5000
"""Longest sleep while something is in the wheel: a wall clock that is set forward by less than the
guard minds makes nothing later than this."""
_ROOM_RECHECK_S = 0.02
_SLICE_ENTRIES = 2048
"""Entries offered in one go; others run between two of them."""
_FULL_RETRY_S = 1.0


class Dispatch:
    """Takes what is due out of the wheel and offers it to the sender."""

    def __init__(
        self,
        *,
        wheel: Wheel,
        pacer: Pacer,
        offer: Callable[[Entries], None],
        room: Callable[[], int],
    ) -> None:
        self._wheel = wheel
        self._pacer = pacer
        self._offer = offer
        self._room = room
        self._earlier = Wakeup()
        self._sleeps_until_ms: int | None = None

    def wheel_has_grown(self) -> None:
        """Wake up if something is due before the time that is slept for."""
        due_ms = self._wheel.next_due_ms()
        asleep_ms = self._sleeps_until_ms
        if due_ms is not None and (asleep_ms is None or due_ms < asleep_ms):
            self._earlier.wake()

    async def run(self) -> None:
        """Offer each message when its time has come; sleep in between."""
        while True:
            due_ms = self._wheel.next_due_ms()
            if due_ms is None:
                self._sleeps_until_ms = None
                await self._earlier.sleep()
                continue
            if not self._pacer.runs():
                await trio.sleep(_HELD_RECHECK_S)
                continue
            now_ms = self._pacer.trusted_ms()
            if due_ms > now_ms:
                self._sleeps_until_ms = due_ms
                wait_ms = min(due_ms - now_ms, _SLEEP_MS_MAX)
                with trio.move_on_after(wait_ms / 1000):
                    await self._earlier.sleep()
                continue
            room = self._room()
            if not room:
                # The sender holds as much as it should; the rest waits here, in order.
                await trio.sleep(_ROOM_RECHECK_S)
                continue
            entries = self._wheel.pop_due(now_ms, min(room, _SLICE_ENTRIES))
            if len(entries):
                self._offer(entries)
            # Others run between slices of a large burst.
            await trio.lowlevel.checkpoint()


class CrossingOff:
    """Gathers outcomes and makes them facts: journal first, then the schedule_log learns of them.

    Many outcomes share one fsync; none waits longer than `sync_ms_max` for it to begin.
    """

    def __init__(
        self,
        *,
        journal: FactsJournal,
        executor: Executor,
        pacer: Pacer,
        epoch: Callable[[], int],
        note_facts: Callable[[FactBlock, int], Awaitable[None]],
        sync_ms_max: int,
    ) -> None:
        self._journal = journal
        self._executor = executor
        self._pacer = pacer
        self._epoch = epoch
        self._note_facts = note_facts
        self._linger_s = sync_ms_max / 2000
        self._waiting: list[FactBlock] = []
        self._writing = False
        self._more = Wakeup()
        self._idle = trio.Event()
        self.outcomes: Counter[Outcome] = Counter()
        self.syncs = 0

    def cross_off(self, entries: Entries, at_ms: int, target: str, outcome: Outcome) -> None:
        """Take the outcome of some messages."""
        count = len(entries)
        self.outcomes[outcome] += count
        self._waiting.append(
            FactBlock(
                sequence=entries["sequence"].copy(),
                minute=entries["minute"].copy(),
                at_ms=np.full(count, at_ms, np.int64),
                target=np.zeros(count, np.uint16),
                outcome=np.full(count, outcome, np.uint8),
                targets=[target.encode()],
            )
        )
        self._more.wake()

    @property
    def waiting(self) -> int:
        """Facts that are not durable yet."""
        return sum(len(block) for block in self._waiting)

    async def run(self) -> None:
        """Write facts; ends only by an error of the disk or cancellation."""
        while True:
            if not self._waiting:
                self._idle.set()
                await self._more.sleep()
                await trio.sleep(self._linger_s)
                continue
            self._writing = True
            blocks, self._waiting = self._waiting, []
            facts, number = await self._append(blocks)
            self.syncs += 1
            await self._note_facts(facts, number)
            self._writing = False

    async def _append(self, blocks: list[FactBlock]) -> tuple[FactBlock, int]:
        while True:
            try:
                return await self._executor.run(
                    JOURNAL_LANE, self._append_now, blocks, self._pacer.now_ms()
                )
            except StorageFullError as error:
                # The disk's floor leaves room for facts; somebody else has used it up.
                _log.error("no space for facts; a crash now would send again", error=str(error))
                await trio.sleep(_FULL_RETRY_S)

    def _append_now(self, blocks: list[FactBlock], now_ms: int) -> tuple[FactBlock, int]:
        return self._journal.append(blocks, append_ms=now_ms, epoch=self._epoch())

    async def stop(self) -> None:
        """Wait until every outcome given so far is a durable fact."""
        while self._waiting or self._writing:
            self._idle = trio.Event()
            self._more.wake()
            await self._idle.wait()
