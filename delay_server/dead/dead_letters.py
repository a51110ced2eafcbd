"""Dead letters, once they are recorded: looked through, requeued, dropped.

A dead letter is a row of a dead segment (storage/schedule/dead_log.py). Requeueing appends a MOVE
record with the same item, which is due at once as its time has passed; dropping appends a CANCEL
record. Either makes a fact about the row, and a row is changed once only: changes come one after
another, and a row whose fact is still on its way is left out by those that follow.

Searches read the files in steps, in a worker of the executor of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.messages.items import item_message_id
from delay_server.accepting.commits import Committer
from delay_server.dead.reason import decode_reason
from delay_server.filing.schedule_access import ScheduleAccess
from delay_transport.seams.constants import constant
from delay_transport.seams.runtime import Executor
from delay_transport.settings.sections import require_at_least
from storage.batch.batches import Damage
from storage.batch.columns import RecordKind
from storage.batch.facts import FactBlock
from storage.batch.item_formats import qmq_item_fault
from storage.disk.errors import DamagedError, ReadFailedError
from storage.disk.spans import dead_minute
from storage.logs.message_log import Draft
from storage.node.store import Store
from storage.readers.dead_reader import DeadFilter, DeadItems, DeadRow, DeadSearch, Place

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

DEAD_WORKER = "dead_letters"
_STEP_ROWS: Final = 20_000
"""Rows examined in one call of the executor."""
_CHANGED_AT_ONCE: Final = 1000
"""Rows of one append."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""Bytes of their items, unless a single one has more."""
_FACTS_WAIT_S: Final = 10.0
"""How long a change waits for its facts: the records are durable, the facts follow by all means."""
_LOOK_AGAIN_S: Final = 10.0
"""Least time between two looks for the oldest dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadConfig:
    """Messages that brokers refuse for good, and what may be done about them."""

    pending_max: int = 1_000_000
    """Dead letters at a time. At the limit messages that brokers refuse for good are retried at
    long intervals, until an operator has requeued or dropped some dead letters."""

    reason_bytes_max: int = constant(1024)
    """Bytes of the text that says why a message was given up; where it would be longer, its oldest
    refusals are left out. 512 to 4096."""

    page_rows_max: int = constant(1000)
    """Dead letters of one answer."""

    change_rows_max: int = constant(10_000)
    """Dead letters that one request requeues or drops; a command sends as many as it takes."""

    page_bytes_max: int = constant(8 * 1024 * 1024)
    """Bytes of the dead letters of one answer, unless a single one has more; the answer says from
    where to go on."""

    examined_rows_max: int = constant(200_000)
    """Dead letters that one request for a page, or for a change, looks at; then it answers with
    what it has found, and from where to go on."""

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        require_at_least(self, 0, "pending_max")
        require_at_least(
            self, 1, "page_rows_max", "change_rows_max", "page_bytes_max", "examined_rows_max"
        )
        if not 512 <= self.reason_bytes_max <= 4096:
            raise ValueError("reason_bytes_max must be between 512 and 4096")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which dead letters are meant; None: any. Bounds of times are wall ms, both included."""

    sequences: Sequence[int] | None = None
    old_sequences: Sequence[int] | None = None
    """Of the messages before they were given up."""
    subject: bytes | None = None
    subject_prefix: bytes | None = None
    code: int | None = None
    """The item code of the last refusal."""
    group: str | None = None
    """The broker group of the last refusal."""
    message_id: bytes | None = None
    due_from_ms: int | None = None
    due_until_ms: int | None = None
    dead_from_ms: int | None = None
    dead_until_ms: int | None = None

    def filter(self, *, settled: bool = False) -> DeadFilter:
        """Return what storage looks for; message ids are told by their hash alone there."""
        has_subject = self.subject is not None or self.subject_prefix is not None
        has_reason = self.code is not None or self.group is not None
        message_id = self.message_id
        return DeadFilter(
            sequences=_ascending(self.sequences),
            old_sequences=_ascending(self.old_sequences),
            subject=self._subject_fits if has_subject else None,
            reason=self._reason_fits if has_reason else None,
            id_hash=None if message_id is None else xxh3_64_intdigest(message_id),
            due_from_ms=self.due_from_ms,
            due_until_ms=self.due_until_ms,
            dead_from_ms=self.dead_from_ms,
            dead_until_ms=self.dead_until_ms,
            settled=settled,
        )

    def _subject_fits(self, subject: bytes) -> bool:
        if self.subject is not None and subject != self.subject:
            return False
        return self.subject_prefix is None or subject.startswith(self.subject_prefix)

    def _reason_fits(self, text: bytes) -> bool:
        reason = decode_reason(text)
        if reason is None:
            return False
        if self.code is not None and reason.code != self.code:
            return False
        return self.group is None or reason.group == self.group


def _ascending(sequences: Sequence[int] | None) -> npt.NDArray[np.int64] | None:
    return None if sequences is None else np.unique(np.array(sequences, np.int64))


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter that was found. item: None where it is damaged."""

    row: DeadRow
    item: bytes | None


@dataclass(frozen=True, slots=True)
class Page:
    """What a search found. after: where to go on; None if that was all."""

    letters: list[Letter]
    after: Place | None


@dataclass(slots=True)
class Change:
    """What a change came to.

    matched: dead letters that were meant; done: those that were requeued or dropped; damaged:
    sequences of those that cannot be requeued since their bytes are damaged; after: where to go on,
    None if that was all; lacks_space: it ended early, since there is no free disk; unread: it did,
    since a file could not be read, and why; sequences: which were meant.
    """

    matched: int = 0
    done: int = 0
    damaged: list[int] | None = None
    after: Place | None = None
    lacks_space: bool = False
    unread: str = ""
    sequences: list[int] = field(default_factory=list)


class DeadLetters:
    """What people do about dead letters."""

    def __init__(
        self,
        *,
        store: Store,
        committer: Committer,
        access: ScheduleAccess,
        executor: Executor,
        config: DeadConfig,
        on_damage: Callable[[Damage], None],
        on_appended: Callable[[], None],
        untold: FactBlock | None,
    ) -> None:
        """`on_appended`: something was appended, or found no space.

        untold: facts of records that a crash kept from being told; they will be.
        """
        self.config = config
        self._store = store
        self._committer = committer
        self._access = access
        self._executor = executor
        self._report_damage = on_damage
        self._damages = 0
        """Reported since the start; places that were known before count again."""
        self._on_appended = on_appended
        self._changing = trio.Lock()
        self._open: set[int] = set()
        """Rows that were changed and whose facts the schedule_log does not know yet."""
        if untold is not None:
            self._open.update(untold.sequence[untold.of_dead].tolist())
        self._all_noted = trio.Event()
        self.is_closed = False
        """Whether nothing may be changed any more."""
        self.requeued = 0
        """Since the start; so is the next."""
        self.dropped = 0
        self.oldest_ms: int | None = None
        """When the oldest dead letter was given up, wall ms; as last looked at."""
        self._changed = trio.Event()
        self._settled_to = Place()
        """Nothing up to here is pending."""

    @property
    def pending(self) -> int:
        """Dead letters that were neither requeued nor dropped."""
        return max(self._store.schedule.dead.pending - len(self._open), 0)

    def noted(self, facts: FactBlock) -> None:
        """Hear of facts that the schedule_log knows."""
        if facts.of_dead.any():
            self._open.difference_update(facts.sequence[facts.of_dead].tolist())
            if not self._open:
                self._all_noted.set()
            self.look_again()

    def look_again(self) -> None:
        """Have it looked which dead letter is the oldest."""
        self._changed.set()

    async def run(self) -> None:
        """Keep an eye on the oldest dead letter; asleep while nothing changes."""
        while True:
            self._changed = trio.Event()
            oldest = await self._look_for_oldest()
            self.oldest_ms = None if oldest is None else oldest.dead_ms
            await self._changed.wait()
            # The first one is known at once; after that a look costs more than it tells.
            if self.oldest_ms is not None:
                await trio.sleep(_LOOK_AGAIN_S)

    async def _look_for_oldest(self) -> DeadRow | None:
        """Return the oldest dead letter; what lies before it is not looked at again and again."""
        while self.pending:
            after: Place | None = self._settled_to
            while after is not None:
                damages = self._damages
                page = await self.find(Wanted(), after=after, rows_max=1, with_items=False)
                if page.letters:
                    return page.letters[0].row
                after = page.after
                # What is settled stays so; what could not be read may be read the next time.
                if after is not None and damages == self._damages:
                    self._settled_to = after
            if self._settled_to == Place():
                break
            # The clock was set back: a later one lies in the segment of an earlier day.
            self._settled_to = Place()
        return None

    # -- looking -----------------------------------------------------------------------------

    async def find(
        self,
        wanted: Wanted,
        *,
        after: Place,
        rows_max: int,
        settled: bool = False,
        with_items: bool = True,
    ) -> Page:
        """Return up to `rows_max` dead letters behind a place, with their items.

        They are fewer where they have `page_bytes_max`, or so many were looked at that did not fit.
        settled: those too that were requeued or dropped, as long as their segment is not sealed.
        """
        search = await self._search(wanted, after, settled=settled)
        letters: list[Letter] = []
        place, examined, size = after, 0, 0
        try:
            while len(letters) < rows_max and examined < self.config.examined_rows_max:
                rows = await self._step(search, rows_max - len(letters))
                examined += _STEP_ROWS
                fits = len(rows)
                if with_items:
                    fits = _fitting(rows, self.config.page_bytes_max - size, but_one=not letters)
                    size += sum(row.size for row in rows)
                letters += await self._letters(rows[:fits], wanted, with_items=with_items)
                if fits < len(rows):
                    return Page(letters, rows[fits - 1].place if fits else place)
                place = search.place
                if search.is_done:
                    break
        finally:
            search.close()
        return Page(letters, None if search.is_done else search.place)

    async def look_through(
        self, wanted: Wanted, *, rows_max: int, settled: bool = False, with_items: bool = True
    ) -> list[Letter]:
        """Return the first `rows_max` dead letters, however many have to be looked at for them.

        It goes on page by page; items are to be asked for where they cannot be many.
        """
        found: list[Letter] = []
        after: Place | None = Place()
        while after is not None and len(found) < rows_max:
            page = await self.find(
                wanted,
                after=after,
                rows_max=rows_max - len(found),
                settled=settled,
                with_items=with_items,
            )
            found += page.letters
            after = page.after
        return found

    async def count_of_subject(self, subject: bytes) -> tuple[int, bool]:
        """Return how many dead letters of a subject one page has, and whether these are all."""
        if not self.pending:
            return 0, True
        rows_max = self.config.page_rows_max
        wanted = Wanted(subject=subject)
        page = await self.find(wanted, after=Place(), rows_max=rows_max, with_items=False)
        return len(page.letters), page.after is None

    async def deaths_of(self, letter: Letter, *, rows_max: int) -> list[Letter]:
        """Return the dead letters with the message id of this one, itself included, without items.

        A message that was requeued and refused again has several, of which one is pending.
        """
        assert letter.item is not None
        wanted = Wanted(message_id=item_message_id(letter.item), subject=letter.row.subject)
        return await self.look_through(wanted, rows_max=rows_max, settled=True, with_items=False)

    async def stop(self) -> None:
        """Change nothing more, and wait until what is being appended is."""
        self.is_closed = True
        async with self._changing:
            pass

    def _on_damage(self, damage: Damage) -> None:
        self._damages += 1
        self._report_damage(damage)

    async def _search(
        self, wanted: Wanted, after: Place, *, settled: bool = False, patient: bool = False
    ) -> DeadSearch:
        extents = await self._access.run(self._store.schedule.dead_extents)
        return DeadSearch(
            self._store.disk,
            self._store.identity.log_uuid,
            extents,
            wanted=wanted.filter(settled=settled),
            after=after,
            on_damage=self._on_damage,
            patient=patient,
        )

    async def _step(self, search: DeadSearch, rows_max: int) -> list[DeadRow]:
        return await self._executor.run(DEAD_WORKER, search.step, rows_max, _STEP_ROWS)

    async def _letters(
        self, rows: Sequence[DeadRow], wanted: Wanted, *, with_items: bool
    ) -> list[Letter]:
        """Return the letters of rows, without those that only have the hash of the id wanted."""
        if not rows or not (with_items or wanted.message_id is not None):
            return [Letter(row, None) for row in rows]
        read = partial(self._read, with_items=with_items)
        return await self._executor.run(DEAD_WORKER, read, rows, wanted.message_id)

    def _read(
        self, rows: Sequence[DeadRow], message_id: bytes | None, *, with_items: bool
    ) -> list[Letter]:
        reader = DeadItems(self._store.disk, self._store.identity.log_uuid)
        found: list[Letter] = []
        for row in rows:
            item = self._item(reader, row)
            if message_id is None or (item is not None and _has_id(item, message_id)):
                found.append(Letter(row, item if with_items else None))
        return found

    def _item(self, reader: DeadItems, row: DeadRow) -> bytes | None:
        try:
            item = reader.read(row)
        except DamagedError as error:
            fault = error.reason
        else:
            fault = qmq_item_fault(item, row.due_ms) or ""
            if not fault:
                return item
        self._on_damage(Damage(row.key.path, row.position, row.header.size, fault))
        return None

    # -- changing ----------------------------------------------------------------------------

    async def requeue(self, wanted: Wanted, *, after: Place, rows_max: int) -> Change:
        """Send up to `rows_max` dead letters behind a place once more, under the same ids."""
        return await self._change(RecordKind.MOVE, wanted, after, rows_max)

    async def drop(self, wanted: Wanted, *, after: Place, rows_max: int) -> Change:
        """Have up to `rows_max` dead letters behind a place never sent."""
        return await self._change(RecordKind.CANCEL, wanted, after, rows_max)

    async def count(self, wanted: Wanted, *, after: Place, rows_max: int) -> Change:
        """Return what a change would come to, as far as that is known before."""
        changed_before = frozenset(self._open)
        page = await self.find(wanted, after=after, rows_max=rows_max, with_items=False)
        found = [
            letter.row.sequence
            for letter in page.letters
            if letter.row.sequence not in changed_before
        ]
        return Change(matched=len(found), after=page.after, sequences=found)

    async def _change(
        self, kind: RecordKind, wanted: Wanted, after: Place, rows_max: int
    ) -> Change:
        change = Change(damaged=[], after=after)
        async with self._changing:
            # What a search is given to look through knows no facts that come later. Nobody else
            # changes anything meanwhile, and a search comes by no row twice.
            changed_before = frozenset(self._open)
            search = await self._search(wanted, after, patient=True)
            examined = 0
            try:
                while not self.is_closed and change.matched < rows_max:
                    at_once = min(rows_max - change.matched, _CHANGED_AT_ONCE)
                    rows = await self._step(search, at_once)
                    examined += _STEP_ROWS
                    unchanged = [row for row in rows if row.sequence not in changed_before]
                    for part in _parts(unchanged):
                        with_items = kind is RecordKind.MOVE
                        letters = await self._letters(part, wanted, with_items=with_items)
                        if not await self._settle(kind, letters, change):
                            return change
                    change.after = None if search.is_done else search.place
                    if search.is_done or examined >= self.config.examined_rows_max:
                        return change
            except ReadFailedError as error:
                change.unread = str(error)
            finally:
                search.close()
        return change

    async def _settle(self, kind: RecordKind, letters: list[Letter], change: Change) -> bool:
        """Record what becomes of these; False if there was no space for them, or it is closed."""
        assert change.damaged is not None
        change.matched += len(letters)
        change.sequences += [letter.row.sequence for letter in letters]
        if kind is RecordKind.MOVE:
            change.damaged += [one.row.sequence for one in letters if one.item is None]
            letters = [one for one in letters if one.item is not None]
        return not letters or await self._append(kind, letters, change)

    async def _append(self, kind: RecordKind, letters: list[Letter], change: Change) -> bool:
        if self.is_closed:
            return False
        draft = _move(letters) if kind is RecordKind.MOVE else _cancel(letters)
        self._all_noted = trio.Event()
        sequences = {letter.row.sequence for letter in letters}
        # Before it is durable: its facts may be noted before this task runs again.
        self._open |= sequences
        kept = False
        try:
            kept = await self._committer.commit_records(draft)
        finally:
            if not kept:
                self._open -= sequences
        self._on_appended()
        if not kept:
            change.lacks_space = True
            return False
        change.done += len(letters)
        if kind is RecordKind.MOVE:
            self.requeued += len(letters)
        else:
            self.dropped += len(letters)
        with trio.move_on_after(_FACTS_WAIT_S):
            while self._open:
                await self._all_noted.wait()
                self._all_noted = trio.Event()
        return True


def _fitting(rows: Sequence[DeadRow], bytes_max: int, *, but_one: bool) -> int:
    """Return how many of these have together at most so many bytes; but_one: one at the least."""
    sizes = np.cumsum([row.size for row in rows], dtype=np.int64)
    fits = int(np.searchsorted(sizes, bytes_max, side="right"))
    return max(fits, int(but_one and bool(rows)))


def _parts(rows: Sequence[DeadRow]) -> Iterator[Sequence[DeadRow]]:
    """Yield rows in parts of at most _BYTES_AT_ONCE, or of one that has more by itself."""
    while rows:
        fits = _fitting(rows, _BYTES_AT_ONCE, but_one=True)
        yield rows[:fits]
        rows = rows[fits:]


def _has_id(item: bytes, message_id: bytes) -> bool:
    return bytes(item_message_id(item)) == message_id


def _cancel(letters: Sequence[Letter]) -> Draft:
    """Return the records that drop dead letters."""
    return Draft(
        kind=RecordKind.CANCEL,
        count=len(letters),
        names=(),
        arrays={
            "old_sequence": np.array([one.row.sequence for one in letters], np.int64),
            "old_minute": np.array([dead_minute(one.row.key) for one in letters], np.uint32),
        },
    )


def _move(letters: Sequence[Letter]) -> Draft:
    """Return the records that requeue dead letters: the same items, due when they were."""
    rows = [letter.row for letter in letters]
    subjects = list(dict.fromkeys(row.subject for row in rows))
    numbers = {subject: number for number, subject in enumerate(subjects)}
    return Draft(
        kind=RecordKind.MOVE,
        count=len(letters),
        names=subjects,
        arrays={
            "old_sequence": np.array([row.sequence for row in rows], np.int64),
            "due_ms": np.array([row.due_ms for row in rows], np.int64),
            "id_hash": np.array([row.id_hash for row in rows], np.uint64),
            "size": np.array([row.size for row in rows], np.uint32),
            "old_minute": np.array([dead_minute(row.key) for row in rows], np.uint32),
            "subject": np.array([numbers[row.subject] for row in rows], np.uint16),
        },
        blob=[letter.item for letter in letters if letter.item is not None],
    )
