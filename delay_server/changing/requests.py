"""CHANGE of clients: each message is found, changed as far as it can be, and answered.

    what comes                                                       answer
    CHANGE at a node that is not the master, or cannot append now    51 at once, with why, or where
                                                                     the master is
    CHANGE that cannot be read, or a move beyond the horizon or      53, nothing of it is done
      into the past
    CHANGE while too many wait                                       51
    CHANGE otherwise                                                 0 once all is committed
    CHANGE for which there was no space                              51, which of it is done is told
                                                                     to who asks again
    CHANGE that is not answered when the node loses its role         none: the connection is closed

What waits is changed in rounds, one at a time: a round finds all its messages, segment by segment,
and commits their records together.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.basics.errors import BodyError
from delay_protocol.basics.subjects import real_subject, retry_group
from delay_protocol.messages.changes import (
    Change,
    ChangeReply,
    ChangeResult,
    ChangeState,
    decode_change,
    encode_change_reply,
)
from delay_protocol.messages.items import decode_item, item_message_ids
from delay_protocol.messages.origin import FIRST_DUE_KEY, first_due_ms
from delay_protocol.wire.frames import Frame
from delay_server.changing.changer import Changer, NotChangedError, Wish
from delay_server.duty import Admits, Duty
from delay_transport.connections.connection import Connection
from delay_transport.seams.outbox import Wakeup
from storage.disk.spans import MINUTE_MAX, MINUTE_MS
from storage.readers.looking import FindLook, FoundRow

WAITING_MAX: Final = 256
"""Requests that wait; each has up to 1 MiB, mostly far less. Clients ask again a second later."""
ROUND_ITEMS: Final = 4096
"""Messages of one round, unless a request has more: their items are in memory until it ends."""
ROWS_MAX: Final = 16_384
"""Rows that one look finds; with 300 bytes each they take 5 MiB."""
PAST_MS: Final = 60_000
"""Time by which clocks of clients may differ; to move a message further back is a fault."""


@dataclass(eq=False, slots=True)
class _Asked:
    connection: Connection
    frame: Frame
    items: Sequence[Change]


class _Sought:
    """A message that is to be changed, and what was found of it."""

    __slots__ = ("change", "first_due_ms", "message_id", "minute", "rows", "subject")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.subject = change.subject.encode()
        self.message_id = change.message_id.encode()
        self.minute = (change.due_ms or 0) // MINUTE_MS
        """The minute in which it was due; 0 where that is not said."""
        self.first_due_ms = {change.due_ms}
        """That time, and when its rows were due at first: what was moved may be put off then."""
        self.rows: dict[int, tuple[FoundRow, ChangeResult]] = {}
        """Its rows by sequence, and what became of each."""


class Changes:
    """The requests of clients, at whichever mastership there is."""

    def __init__(
        self, *, duty: Callable[[], Duty], now_ms: Callable[[], int], horizon_ms: Callable[[], int]
    ) -> None:
        """Begin without a mastership; `horizon_ms`: how far ahead a message may be due."""
        self._duty = duty
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self.changer: Changer | None = None
        """Of the mastership that there is."""
        self._waiting: deque[_Asked] = deque()
        self._under_way: list[_Asked] = []
        self._more = Wakeup()
        self._idle = trio.Event()

    def why_not(self) -> str:
        """Return why nothing can be changed now, or where it can; empty if it can."""
        duty = self._duty()
        if self.changer is not None and duty.admits not in {Admits.HOLD, Admits.ELSEWHERE}:
            return ""
        return duty.remark or "; ".join(duty.why) or "this node is not the master"

    def take(self, connection: Connection, frame: Frame) -> None:
        """Take a CHANGE."""
        if why := self.why_not():
            connection.answer(frame, ResponseCode.BROKER_ERROR, why.encode())
            return
        if len(self._waiting) >= WAITING_MAX:
            why = f"{WAITING_MAX} requests for changes wait here: ask again in a second"
            connection.answer(frame, ResponseCode.BROKER_ERROR, why.encode())
            return
        try:
            items = decode_change(frame.body).items
            fault = next(filter(None, map(self.fault_of, items)), "")
        except BodyError as error:
            items, fault = (), str(error)
        if fault:
            connection.fault()
            connection.answer(frame, ResponseCode.PARAM_ERROR, fault.encode())
            return
        connection.begin(1, len(frame.body))
        self._waiting.append(_Asked(connection, frame, items))
        self._more.wake()

    def fault_of(self, change: Change) -> str:
        """Return why a change is refused; empty if it is not."""
        if change.to_ms is None:
            return ""
        now_ms = self._now_ms()
        if change.to_ms < now_ms - PAST_MS:
            past_s = (now_ms - change.to_ms) // 1000
            return f"{change.message_id!a} is to be moved {past_s} s into the past: cancel it"
        if change.to_ms > now_ms + self._horizon_ms():
            days = self._horizon_ms() / 86_400_000
            return f"{change.message_id!a} is to be moved further ahead than {days:g} days"
        return ""

    def closed(self, connection: Connection, reason: str) -> None:
        """Go on: what a connection asked for is done, whoever hears of it."""
        del connection, reason

    def drop(self) -> None:
        """Change nothing more: this node is the master no more."""
        if self.changer is not None:
            self.changer.is_closed = True
        for asked in (*self._under_way, *self._waiting):
            asked.connection.close("what it changed may be kept or not: the node lost its role")
            asked.connection.done(1, len(asked.frame.body))
        self._under_way = []
        self._waiting.clear()

    async def stop(self) -> None:
        """Wait until all that came is answered."""
        while self._waiting or self._under_way:
            self._idle = trio.Event()
            await self._idle.wait()

    async def run(self, changer: Changer) -> None:
        """Change what is asked for in a mastership, until cancelled."""
        self.changer = changer
        try:
            while True:
                if not self._waiting:
                    self._idle.set()
                    await self._more.sleep()
                    continue
                self._take_round()
                await self._run_round(changer)
        finally:
            self.drop()
            self.changer = None

    def _take_round(self) -> None:
        count = 0
        while self._waiting and (not count or count + len(self._waiting[0].items) <= ROUND_ITEMS):
            self._under_way.append(self._waiting.popleft())
            count += len(self._under_way[-1].items)

    async def _run_round(self, changer: Changer) -> None:
        asked = [change for one in self._under_way for change in one.items]
        try:
            results = await change_messages(changer, asked)
        except NotChangedError as error:
            for one in self._under_way:
                self._answer(one, ResponseCode.BROKER_ERROR, str(error).encode())
        else:
            for one in self._under_way:
                reply = encode_change_reply(reply_of(changer, one.items, results))
                self._answer(one, ResponseCode.SUCCESS, reply)
        self._under_way = []

    def _answer(self, asked: _Asked, code: ResponseCode, body: bytes) -> None:
        asked.connection.answer(asked.frame, code, body)
        asked.connection.done(1, len(asked.frame.body))


def reply_of(
    changer: Changer, items: Sequence[Change], results: Mapping[Change, Sequence[ChangeResult]]
) -> ChangeReply:
    """Return the answer to a request of these items, of what became of messages."""
    told = tuple(
        msgspec.structs.replace(result, item=place)
        for place, change in enumerate(items)
        for result in results[change]
    )
    return ChangeReply(results=told, facts_since_ms=changer.facts_since_ms())


async def change_messages(
    changer: Changer, changes: Iterable[Change]
) -> dict[Change, Sequence[ChangeResult]]:
    """Return what became of messages, one result for each name.

    Equal changes are one. A message whose row was moved, or became a dead letter, is looked for
    once more, at all times from then on: it may be what a receiver put off, or a copy for a name.
    Raises NotChangedError.
    """
    await changer.until_filed()
    sought = [_Sought(one) for one in dict.fromkeys(changes)]
    timed = [one for one in sought if one.change.due_ms is not None]
    minutes = {one.minute for one in timed}
    unreadable = await _change(changer, timed, is_exact=True, minutes=minutes, between=(0, 0))
    later = [one for one in sought if one.change.due_ms is None or _goes_on(one)]
    since = min((one.minute for one in later), default=0)
    unreadable += await _change(changer, later, is_exact=False, between=(since, MINUTE_MAX + 1))
    # Sent after they were due: they are in the minute in which they came.
    floor = changer.floor_minute()
    late = [one for one in timed if not one.rows and one.minute < floor]
    since = min((one.minute for one in late), default=0)
    unreadable += await _change(changer, late, is_exact=True, between=(since, floor + 1))
    why = "some files cannot be read: `delaywheel log verify` tells more" if unreadable else ""
    return {one.change: _told(one, why) for one in sought}


async def _change(
    changer: Changer,
    sought: Collection[_Sought],
    *,
    is_exact: bool,
    minutes: Collection[int] = (),
    between: tuple[int, int],
) -> int:
    """Change rows of these messages that were not found before, and note what became of them.

    Returns the number of places that could not be read.
    is_exact: only rows that are due as it is said. Where none is moved their items are not read:
    subject, due time and the 64 bits of the id's hash are enough.
    minutes, between: as FindLook takes them.
    """
    by_hash = defaultdict[int, list[_Sought]](list)
    for one in sought:
        by_hash[xxh3_64_intdigest(one.message_id)].append(one)
    if not by_hash:
        return 0
    look = await changer.look(
        partial(
            FindLook,
            id_hashes=by_hash,
            due_ms={one.change.due_ms or 0 for one in sought} if is_exact else None,
            minutes=minutes,
            between=between,
            found_max=ROWS_MAX,
            with_items=not is_exact or any(one.change.to_ms is not None for one in sought),
            with_facts=False,
        ),
        between=(min(minutes), max(minutes) + 1) if minutes else between,
    )
    if look.is_full:
        raise NotChangedError("too many messages have these ids: give the times as well")
    _note_first_times(look.found, by_hash)
    new = [
        (one, row)
        for row in look.found
        for one in by_hash[row.id_hash]
        if row.sequence not in one.rows and _is_meant(one, row, is_exact=is_exact)
    ]
    first: dict[int, _Sought] = {}
    for one, row in new:
        if not _was_moved(one, row):
            first.setdefault(row.sequence, one)
    wishes = [Wish(row, one.change.to_ms) for one, row in new if first.get(row.sequence) is one]
    results = await changer.change(wishes)
    for one, row in new:
        if first.get(row.sequence) is one:
            result = results[row.sequence]
        else:
            result = ChangeResult(item=0, state=ChangeState.CHANGED_BEFORE, due_ms=row.due_ms)
        one.rows[row.sequence] = row, result
    return look.unreadable


def _note_first_times(
    found: Iterable[FoundRow], by_hash: Mapping[int, Collection[_Sought]]
) -> None:
    """Note when messages were due at first, as items say of rows that were found before."""
    for row in found:
        for one in by_hash[row.id_hash]:
            if row.sequence in one.rows and row.item:
                one.first_due_ms.add(first_due_ms(decode_item(row.item)))


def _is_meant(sought: _Sought, row: FoundRow, *, is_exact: bool) -> bool:
    """Return True if a row with the hash of its id is of a message."""
    if sought.subject not in (row.subject, real_subject(row.subject)):
        return False
    due_ms = sought.change.due_ms
    if is_exact and row.due_ms != due_ms:
        return False
    if not row.item:
        # It was not read, or cannot be, and so will never be sent.
        return due_ms == row.due_ms
    [message_id] = item_message_ids(row.item, [len(row.item)])
    if message_id != sought.message_id:
        return False
    if due_ms in (None, row.due_ms):
        return True
    first_ms = first_due_ms(decode_item(row.item))
    # What is due at its first time goes on from no other row.
    return first_ms != row.due_ms and first_ms in sought.first_due_ms


def _was_moved(sought: _Sought, row: FoundRow) -> bool:
    """Return True if a client moved it there, and names the time that it had before."""
    if sought.change.due_ms in (None, row.due_ms) or row.subject != sought.subject:
        return False
    return FIRST_DUE_KEY not in decode_item(row.item).attributes


def _goes_on(sought: _Sought) -> bool:
    """Return True if other rows may stand for a message now, for a name of which none was found."""
    # What was sent again once it was cancelled, and then moved, is moved.
    return any(
        all(one.state in _ENDED for one in results)
        and any(one.state is ChangeState.DEAD or one.reason == "moved" for one in results)
        for results in _by_name(sought).values()
    )


_ENDED: Final = (ChangeState.DEAD, ChangeState.CHANGED_BEFORE)
_BEST: Final = sorted(ChangeState, key=lambda one: one is not ChangeState.SENDING)
"""Which of several rows of one name is told of: one that is being sent may still be delivered."""


def _best(results: Sequence[ChangeResult]) -> ChangeResult:
    """Return the one that is told of; of equal ones that which was found last."""
    return min(reversed(results), key=lambda one: _BEST.index(one.state))


def _by_name(sought: _Sought) -> Mapping[str, list[ChangeResult]]:
    """Return what became of its rows, in the order in which they were found, by name.

    The message itself is left out, under "", where copies took its place.
    """
    found = defaultdict[str, list[ChangeResult]](list)
    for row, result in sought.rows.values():
        found[retry_group(row.subject.decode())].append(result)
    is_copied = len(found) > 1 and "" in found
    if is_copied and _best(found[""]).state is ChangeState.CHANGED_BEFORE:
        del found[""]
    return found


def _told(sought: _Sought, why_unknown: str) -> Sequence[ChangeResult]:
    """Return what is answered: the best for each name; the message itself only where it is one."""
    by_name = _by_name(sought)
    if by_name:
        return [
            msgspec.structs.replace(_best(results), name=name) for name, results in by_name.items()
        ]
    due_ms = sought.change.due_ms
    return [ChangeResult(item=0, state=ChangeState.UNKNOWN, due_ms=due_ms, reason=why_unknown)]
