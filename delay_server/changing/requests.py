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
    CHANGE that may be appended when the node loses its role         none: the connection is closed

What waits is changed in rounds, one at a time: a round finds all its messages, segment by segment,
and commits their records together.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
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
from delay_protocol.messages.items import decode_item
from delay_protocol.messages.origin import FIRST_DUE_KEY, first_due_ms
from delay_protocol.wire.frames import Frame
from delay_server.changing.changer import Changer, NotChangedError, Wish
from delay_server.duty import Admits, Duty
from delay_transport.connections.connection import Connection
from delay_transport.seams.outbox import Wakeup
from storage.disk.spans import MINUTE_MS
from storage.schedule.look_up import Columns, Row
from storage.schedule.row_places import contained

WAITING_MAX: Final = 256
"""Requests that wait; each has up to 1 MiB, mostly far less. Clients ask again a second later."""
ROUND_ITEMS: Final = 4096
"""Messages of one round, unless a request has more: their items are in memory until it ends."""
PAST_MS: Final = 60_000
"""Time by which clocks of clients may differ; to move a message further back is a fault."""


@dataclass(eq=False, slots=True)
class _Asked:
    connection: Connection
    frame: Frame
    items: Sequence[Change]


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
        for asked in self._under_way:
            asked.connection.close("what it changed may be kept or not: the node lost its role")
            asked.connection.done(1, len(asked.frame.body))
        self._under_way = []
        for asked in self._waiting:
            self._answer(asked, ResponseCode.BROKER_ERROR, b"this node lost its role")
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
            async with changer.lock:
                results = await change_messages(changer, asked)
        except NotChangedError as error:
            for one in self._under_way:
                self._answer(one, ResponseCode.BROKER_ERROR, str(error).encode())
        else:
            since_ms = changer.facts_since_ms()
            for one in self._under_way:
                told = tuple(
                    msgspec.structs.replace(result, item=place)
                    for place, change in enumerate(one.items)
                    for result in results[change]
                )
                reply = ChangeReply(results=told, facts_since_ms=since_ms)
                self._answer(one, ResponseCode.SUCCESS, encode_change_reply(reply))
        self._under_way = []

    def _answer(self, asked: _Asked, code: ResponseCode, body: bytes) -> None:
        asked.connection.answer(asked.frame, code, body)
        asked.connection.done(1, len(asked.frame.body))


async def change_messages(
    changer: Changer, changes: Iterable[Change]
) -> dict[Change, Sequence[ChangeResult]]:
    """Return what became of messages, one result for each name; the caller holds the lock.

    Equal changes are one. A message whose row was moved, or became a dead letter, is looked for
    once more, at all times from then on: it may be what a receiver put off, or a copy for a name.
    Raises NotChangedError.
    """
    await changer.until_filed()
    asked = list(dict.fromkeys(changes))
    timed = [one for one in asked if one.due_ms is not None]
    found: dict[Change, dict[int, tuple[Row, ChangeResult]]] = {one: {} for one in asked}
    minutes = {one.due_ms // MINUTE_MS for one in timed if one.due_ms is not None}
    if timed:
        looked = _Looked(timed, is_exact=True)
        rows = await changer.look_up(looked.select, minutes=minutes)
        await _change(changer, looked.of(rows.found.values()), found)
    later = [one for one in asked if one.due_ms is None or _goes_on(found[one])]
    if later:
        looked = _Looked(later, is_exact=False)
        since = min((one.due_ms or 0) // MINUTE_MS for one in later)
        rows = await changer.look_up(looked.select, since=since)
        if not rows.is_complete:
            raise NotChangedError("too many messages have these ids: give the times as well")
        await _change(changer, looked.of(rows.found.values()), found)
    # Sent after they were due: they are in the minute in which they came.
    floor = changer.floor_minute()
    late = [one for one in timed if not found[one] and (one.due_ms or 0) // MINUTE_MS < floor]
    if late:
        looked = _Looked(late, is_exact=True)
        since = min((one.due_ms or 0) // MINUTE_MS for one in late)
        unsealed = await changer.minutes_between(since, floor + 1)
        rows = await changer.look_up(looked.select, minutes=unsealed)
        await _change(changer, looked.of(rows.found.values()), found)
    return {one: _told(one, found[one].values()) for one in asked}


class _Looked:
    """The messages that one look is for."""

    def __init__(self, changes: Sequence[Change], *, is_exact: bool) -> None:
        self._is_exact = is_exact
        """True: rows that are due as it is said, and no others."""
        self._by_hash = defaultdict[int, list[Change]](list)
        for change in changes:
            self._by_hash[xxh3_64_intdigest(change.message_id.encode())].append(change)
        self._hashes = np.sort(np.array(list(self._by_hash), np.uint64))

    def select(self, columns: Columns) -> npt.NDArray[np.intp]:
        """Return the places of rows that may be meant."""
        places = np.flatnonzero(contained(columns.id_hash, self._hashes))  # type: ignore[arg-type]
        kept = [
            place
            for place in places.tolist()
            if any(
                self._may_be(change, int(columns.due_ms[place]), columns.names[subject])
                for subject in [int(columns.subject[place])]
                for change in self._by_hash[int(columns.id_hash[place])]
            )
        ]
        return np.array(kept, np.intp)

    def _may_be(self, change: Change, due_ms: int, subject: bytes) -> bool:
        if self._is_exact and due_ms != change.due_ms:
            return False
        return change.subject.encode() in {subject, real_subject(subject)}

    def of(self, rows: Iterable[Row]) -> list[tuple[Change, Row]]:
        """Return which rows are meant, by their items."""
        found: list[tuple[Change, Row]] = []
        for row in rows:
            found += [
                (change, row)
                for change in self._by_hash[row.id_hash]
                if self._may_be(change, row.due_ms, row.subject) and self._is(change, row)
            ]
        return found

    def _is(self, change: Change, row: Row) -> bool:
        if not row.item:
            # It cannot be read, so it will never be sent.
            return change.due_ms == row.due_ms
        item = decode_item(row.item)
        if item.message_id != change.message_id:
            return False
        return change.due_ms in {None, row.due_ms, first_due_ms(item)}


async def _change(
    changer: Changer,
    meant: Sequence[tuple[Change, Row]],
    found: dict[Change, dict[int, tuple[Row, ChangeResult]]],
) -> None:
    """Change rows that were not looked at before, and note what became of them."""
    new = [(change, row) for change, row in meant if row.sequence not in found[change]]
    first: dict[int, Change] = {}
    wishes = []
    for change, row in new:
        if not _was_moved(change, row) and first.setdefault(row.sequence, change) is change:
            wishes.append(Wish(row, change.to_ms))
    results = await changer.change(wishes)
    for change, row in new:
        result = results.get(row.sequence)
        if result is None or first[row.sequence] is not change:
            state = ChangeState.CHANGED_BEFORE
            result = ChangeResult(item=0, state=state, due_ms=row.due_ms)
        found[change][row.sequence] = row, result


def _was_moved(change: Change, row: Row) -> bool:
    """Return True if a client moved it there, and names the time that it had before."""
    if change.due_ms in {None, row.due_ms} or row.subject != change.subject.encode():
        return False
    return FIRST_DUE_KEY not in decode_item(row.item).attributes


def _goes_on(rows: dict[int, tuple[Row, ChangeResult]]) -> bool:
    """Return True if other rows may stand for a message now, none of which was found."""
    states = [result for _, result in rows.values()]
    return bool(states) and all(
        one.state is ChangeState.DEAD or one.reason == "moved" for one in states
    )


_BEST: Final = (
    ChangeState.CANCELLED,
    ChangeState.MOVED,
    ChangeState.SENDING,
    ChangeState.DELIVERED,
    ChangeState.DEAD,
    ChangeState.CHANGED_BEFORE,
    ChangeState.UNKNOWN,
)
"""Which of several rows of one name is told of; of equal ones the one that was found last."""


def _told(change: Change, rows: Iterable[tuple[Row, ChangeResult]]) -> Sequence[ChangeResult]:
    """Return what is answered: the best for each name; the message itself only where it is one."""
    by_name: dict[str, ChangeResult] = {}
    for row, result in rows:
        name = retry_group(row.subject.decode())
        before = by_name.get(name)
        if before is None or _BEST.index(result.state) <= _BEST.index(before.state):
            by_name[name] = msgspec.structs.replace(result, name=name)
    if len(by_name) > 1 and "" in by_name and by_name[""].state is ChangeState.CHANGED_BEFORE:
        del by_name[""]
    return list(by_name.values()) or [
        ChangeResult(item=0, state=ChangeState.UNKNOWN, due_ms=change.due_ms)
    ]
