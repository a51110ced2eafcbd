"""From frames to the message_log: admission, group commit, answers.

A request is checked as soon as it arrives, and its accepted items go into an `Intake` of columns.
The next intake gathers while one commit is written and fsynced. One write and one fsync serve a
whole intake, and a connection gets all its answers of a commit in one piece. A request that cannot
be admitted now (the server starts, the log lags, the disk stalls) is held for a bounded time and
then answered 51: a QMQ client that gets a quick refusal uses up its retries at once.

    why a request is refused                                         answer
    it cannot be cut into items, or has more than twice as many      51 at once
      as it may
    the node does not admit for a passing reason (duty.py), the      51 after hold_ms
      intake is full, or the commit takes too long
    the node follows another one                                     51 at once, which one as text
    the node has lost its role, and the request was perhaps          none: the connection is closed
      appended
    the group is retired or read-only, the disk is at its floor,     0, each item code 4
      or there was no space for the commit
    single items are flawed (admission.py)                           0, those items code 3, 5 or 6
    single items were sent before (duplicates.py)                    0, those items code 2, with
                                                                     the first due time as remark
    another command                                                  3 UNKNOWN_CODE

What receivers say (ATTACH, FLOW, SETTLE) goes to delay_server/receiving/receivers.py, what slaves
say to delay_server/replicas.py::Slaves, CHANGE to delay_server/changing/requests.py.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final, Protocol

import trio

from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_protocol.basics.errors import IndivisibleBodyError
from delay_protocol.messages.items import ItemScan, scan_items
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.wire.frames import Frame, encode_response
from delay_server.accepting.admission import Admission, AdmissionConfig, Failure, PutsOff
from delay_server.accepting.commits import Work
from delay_server.accepting.duplicates import Duplicate, Sifted
from delay_server.accepting.intake import Intake, MessageBatch
from delay_server.duty import DISK_FULL_REMARK, Admits, Duty, Situation, duty_of
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Clock
from storage.batch.columns import RecordKind
from storage.logs.message_log import Draft

_TOGETHER_BYTES_MAX = 256 * 1024
"""Requests with more bytes than this in one receive gain nothing from being looked at together."""

_WHY_LENGTH_MAX = 500
"""Letters of the reason that goes with code 51."""

_OF_RECEIVERS = frozenset({CommandCode.ATTACH, CommandCode.FLOW, CommandCode.SETTLE})
_CHANGES = frozenset({CommandCode.CHANGE})
_OF_SLAVES = frozenset(
    {
        CommandCode.NODE_CHALLENGE,
        CommandCode.FOLLOW,
        CommandCode.SNAPSHOT,
        CommandCode.SNAPSHOT_READ,
        CommandCode.ACK,
        CommandCode.LEAVE,
    }
)


class OtherHandler(Protocol):
    """The handler of what does not come from producers."""

    def take(self, connection: Connection, frame: Frame) -> None:
        """Take a frame of theirs."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Hear that a connection is gone."""


Submit = Callable[[Callable[[], Work], Callable[[bool], None]], None]
"""Has an intake committed: asks for it when its commit begins, and says at the end whether it was
kept; False: there was no space."""

Sift = Callable[[Sequence[MessageBatch]], Sifted]
"""Takes what was sent before out of an intake; called in the log's worker."""


_NOTHING_NEW: Final = Draft(kind=RecordKind.FLOOR, count=1)
"""What is appended where all was sent before."""


def _keep_all(batches: Sequence[MessageBatch]) -> Sifted:
    return list(batches), []


@dataclass(slots=True)
class IngestCounts:
    """What became of requests and items since the start."""

    accepted: int = 0
    duplicates: int = 0
    """Items that were confirmed and not kept: the log had them already."""
    refused: Counter[str] = field(default_factory=Counter)
    """Items refused, by the name of their item code."""
    expired: int = 0
    """Requests held in vain."""


@dataclass(slots=True)
class _Waiting:
    """A request whose accepted items are in an intake."""

    connection: Connection
    frame: Frame
    failures: list[Failure]
    count: int
    """Items of it in the intake."""


@dataclass(slots=True, eq=False)
class _Gathered:
    """Requests whose accepted items are committed together."""

    intake: Intake = field(default_factory=Intake)
    waiting: list[_Waiting] = field(default_factory=list)
    is_submitted: bool = False
    """Whether a commit will take it; until it does it grows."""
    sift: Sift = _keep_all
    duplicates: list[Duplicate] = field(default_factory=list)
    """What was sifted out of the intake, by its places in it."""

    @property
    def blob_bytes(self) -> int:
        """Bytes of all items."""
        return self.intake.blob_bytes

    def drafts(self) -> list[Draft]:
        """Return the batches without what was sent before; called in the log's worker."""
        batches, self.duplicates = self.sift(self.intake.batches())
        # A master that was replaced may not confirm what its successor has perhaps given up since:
        # its log takes no record any more.
        return [batch.draft() for batch in batches] or [_NOTHING_NEW]

    def answer_duplicates(self) -> None:
        """Enter what was sifted out into the answers of its requests."""
        if not self.duplicates:
            return
        ends = list(accumulate(one.count for one in self.waiting))
        for place, message_id, due_ms in self.duplicates:
            failures = self.waiting[bisect_right(ends, place)].failures
            # Before what is wrong with another item of the same id: the last counts.
            failures.insert(0, Failure(message_id, ItemCode.MESSAGE_DUPLICATE, str(due_ms)))


@dataclass(slots=True)
class _Held:
    until: float
    connection: Connection
    frame: Frame


class Ingest:
    """The handler of producers' connections, and the group commit behind it.

    What is admitted is committed by what `commit_by` was given, so that this module knows no log.
    `trusted_ms` is the time at which items without a due time are due: the wall's, unless
    that has leapt and is not believed. `why_not` says why the server does not take messages, for
    those who were held in vain; QMQ's producers do not look at the text.
    """

    def __init__(
        self,
        *,
        admission: Admission,
        limits: AdmissionConfig,
        clock: Clock,
        trusted_ms: Callable[[], int],
        why_not: Callable[[], str],
    ) -> None:
        self._admission = admission
        self.limits = limits
        """The server lowers them when it knows how small the disk is."""
        self._clock = clock
        self._trusted_ms = trusted_ms
        self._why_not = why_not
        self._duty = duty_of(Situation())
        self._submit: Submit | None = None
        self._sift: Sift = _keep_all
        self._gathered = _Gathered()
        self._under_way: list[_Gathered] = []
        """What is being committed."""
        self._held: deque[_Held] = deque()
        self._aged = Wakeup()
        self._idle = trio.Event()
        self.hello: Callable[[], bytes] = bytes
        """Set by the server when it knows who it is: returns what a HELLO is refused with. Who
        delivers learns by it that this is no broker, and a client that it is a delay server."""
        self.puts_off: Callable[[Connection, bytes], str | None] | None = None
        """Set by the server where first-seen subjects may have to come again later."""
        self.receivers: OtherHandler | None = None
        """Set by the server: takes what receivers say."""
        self.slaves: OtherHandler | None = None
        """Set by the server: takes what the other nodes of the group say."""
        self.changes: OtherHandler | None = None
        """Set by the server: takes what clients want to cancel or move."""
        self.counts = IngestCounts()

    # -- FrameHandler ------------------------------------------------------------------------

    def frames(self, connection: Connection, frames: list[Frame]) -> None:
        """Take the requests of one receive."""
        if len(frames) > 1 and self._admit_together(connection, frames):
            return
        for frame in frames:
            if frame.code == CommandCode.HELLO:
                hello = self.hello()
                code = ResponseCode.BROKER_REJECT if hello else ResponseCode.BROKER_ERROR
                connection.answer(frame, code, hello)
            elif frame.code != CommandCode.SEND_MESSAGE:
                self._take_other(connection, frame)
            elif self._duty.admits is Admits.ELSEWHERE:
                connection.answer(frame, ResponseCode.BROKER_ERROR, self._duty.remark.encode())
            elif self._must_hold():
                self._hold(connection, frame)
            else:
                self._admit(connection, frame)

    def _take_other(self, connection: Connection, frame: Frame) -> None:
        """Take a request that is not a producer's."""
        for codes, handler in (
            (_OF_RECEIVERS, self.receivers),
            (_OF_SLAVES, self.slaves),
            (_CHANGES, self.changes),
        ):
            if frame.code in codes and handler is not None:
                handler.take(connection, frame)
                return
        connection.fault()
        connection.answer(frame, ResponseCode.UNKNOWN_CODE)

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """Let held requests of the connection go when their time comes; nobody waits for them."""
        for handler in (self.receivers, self.slaves):
            if handler is not None:
                handler.closed(connection, reason.value)

    def _puts_off_of(self, connection: Connection) -> PutsOff | None:
        return None if self.puts_off is None else partial(self.puts_off, connection)

    @property
    def _refuses(self) -> bool:
        """Whether every append is refused with item code 4."""
        return self._duty.admits is Admits.REFUSE

    def _admit_together(self, connection: Connection, frames: list[Frame]) -> bool:
        """Admit all requests at once where nothing is wrong with any of them."""
        if self._refuses or self._must_hold():
            return False
        if any(frame.code != CommandCode.SEND_MESSAGE for frame in frames):
            return False
        bodies = [frame.body for frame in frames]
        size = sum(map(len, bodies))
        if size > _TOGETHER_BYTES_MAX:
            return False
        now_ms = self._clock.now_ms()
        puts_off = self._puts_off_of(connection)
        intake = self._gathered.intake
        counts = self._admission.admit_together(bodies, now_ms, intake, puts_off=puts_off)
        if not counts:
            return False
        connection.begin(len(frames), size)
        self._gathered.waiting += [
            _Waiting(connection, frame, [], count)
            for frame, count in zip(frames, counts, strict=True)
        ]
        self._offer()
        return True

    @property
    def _waits(self) -> bool:
        """Whether nothing may be admitted for a passing reason."""
        return self._duty.admits in {Admits.HOLD, Admits.ELSEWHERE}

    def _must_hold(self) -> bool:
        return (
            self._waits
            or bool(self._held)
            or self._gathered.intake.blob_bytes >= self.limits.pending_bytes_max
        )

    def _hold(self, connection: Connection, frame: Frame) -> None:
        connection.begin(1, len(frame.body))
        until = trio.current_time() + self.limits.hold_ms / 1000
        self._held.append(_Held(until, connection, frame))
        self._aged.wake()

    def _admit(self, connection: Connection, frame: Frame) -> None:
        if self._refuses:
            self._refuse_all(connection, frame)
            return
        try:
            # Due at once is due by the time that is trusted: a wall that leapt may be taken back.
            admitted = self._admission.admit(
                frame.body,
                self._clock.now_ms(),
                self._gathered.intake,
                at_once_ms=self._trusted_ms(),
                puts_off=self._puts_off_of(connection),
            )
        except IndivisibleBodyError as error:
            connection.fault()
            connection.warn("request refused", reason=str(error))
            connection.answer(frame, ResponseCode.BROKER_ERROR)
            return
        for _message_id, code, _remark in admitted.failures:
            self.counts.refused[ItemCode(code).name] += 1
        if admitted.count_refused:
            connection.fault(admitted.count_refused)
        if not admitted.count_accepted:
            connection.answer(frame, ResponseCode.SUCCESS, encode_send_reply(admitted.failures))
            return
        connection.begin(1, len(frame.body))
        waiting = _Waiting(connection, frame, admitted.failures, admitted.count_accepted)
        self._gathered.waiting.append(waiting)
        self._offer()

    def _refuse_all(self, connection: Connection, frame: Frame) -> None:
        try:
            scan = ItemScan()
            scan_items(frame.body, scan, items_max=self._admission.scan_items_max)
        except IndivisibleBodyError:
            connection.answer(frame, ResponseCode.BROKER_ERROR)
            return
        code = ItemCode.BROKER_READ_ONLY
        self.counts.refused[code.name] += len(scan.ids)
        # Also of what found no space in its commit, before anybody was told of the disk.
        remark = self._duty.remark or DISK_FULL_REMARK
        failures = [(message_id, int(code), remark) for message_id in dict.fromkeys(scan.ids)]
        connection.answer(frame, ResponseCode.SUCCESS, encode_send_reply(failures))

    # -- group commit ------------------------------------------------------------------------

    def follow(self, duty: Duty) -> None:
        """Admit, refuse or hold what comes, held requests first; what was admitted is answered."""
        self._duty = duty
        self._admit_held()

    def drop(self) -> None:
        """Acknowledge nothing that was admitted, whatever has become durable meanwhile.

        What no commit has taken yet is held, as if it came now.
        """
        self._close_under_way()
        for one in self._gathered.waiting:
            self._hold(one.connection, one.frame)
            one.connection.done(1, len(one.frame.body))
        self._gathered.waiting, self._gathered.intake = [], Intake()

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered as they come."""
        return not self._waits

    @property
    def is_busy(self) -> bool:
        """Whether something that was admitted is not answered yet."""
        return bool(self._gathered.waiting or self._under_way)

    async def stop(self) -> None:
        """Wait until everything admitted is committed and answered; nothing is admitted now."""
        while self.is_busy:
            self._idle = trio.Event()
            await self._idle.wait()

    def commit_by(self, submit: Submit | None, sift: Sift | None = None) -> None:
        """Have what is admitted be committed by this from now on; None: by nobody.

        What the one before it has not said the end of is not answered. sift: finds what was sent
        before; None: all is kept.
        """
        self._close_under_way()
        self._submit, self._gathered.is_submitted = submit, False
        self._sift = sift or _keep_all
        self._offer()

    def _offer(self) -> None:
        """Have what is gathered be committed, together with what comes until then."""
        gathered = self._gathered
        if self._submit is not None and gathered.waiting and not gathered.is_submitted:
            gathered.is_submitted = True
            self._submit(partial(self._take, gathered), partial(self._ended, gathered))

    def _take(self, gathered: _Gathered) -> Work:
        """Hand over what has been admitted; what comes now is gathered for the next commit."""
        gathered.sift = self._sift
        if gathered is self._gathered:
            self._gathered = _Gathered()
        self._under_way.append(gathered)
        # What was held for lack of room is admitted while this is being written.
        self._admit_held()
        return gathered

    def _ended(self, gathered: _Gathered, kept: bool) -> None:  # noqa: FBT001
        """Answer what was committed, unless it was dropped meanwhile."""
        if gathered in self._under_way:
            self._under_way.remove(gathered)
            if kept:
                self.counts.duplicates += len(gathered.duplicates)
                self.counts.accepted += len(gathered.intake) - len(gathered.duplicates)
                gathered.answer_duplicates()
                self._answer(gathered.waiting)
            else:
                self._refuse_waiting(gathered.waiting)
        self._admit_held()
        if not self.is_busy:
            self._idle.set()

    def _answer(self, waiting: list[_Waiting]) -> None:
        answers: dict[Connection, list[bytes]] = {}
        sizes: Counter[Connection] = Counter()
        success = int(ResponseCode.SUCCESS)
        for one in waiting:
            frame = one.frame
            body = encode_send_reply(one.failures) if one.failures else b""
            parts = answers.setdefault(one.connection, [])
            sizes[one.connection] += len(frame.body)
            # A one-way request gets none, but is counted as done.
            parts.append(
                b"" if frame.is_one_way else encode_response(frame, code=success, body=body)
            )
        for connection, parts in answers.items():
            connection.reply(b"".join(parts))
            connection.done(len(parts), sizes[connection])

    def _close_under_way(self) -> None:
        """Close the connections of what is perhaps kept, since no answer to it would be right."""
        for gathered in self._under_way:
            for one in gathered.waiting:
                one.connection.close("what it sent may be kept or not: the node lost its role")
                one.connection.done(1, len(one.frame.body))
        self._under_way = []

    def _refuse_waiting(self, waiting: list[_Waiting]) -> None:
        for one in waiting:
            self._refuse_all(one.connection, one.frame)
            one.connection.done(1, len(one.frame.body))

    def _admit_held(self) -> None:
        if self._duty.admits is Admits.ELSEWHERE:
            self._answer_held()
        if self._waits:
            return
        bytes_max = self.limits.pending_bytes_max
        while self._held and self._gathered.intake.blob_bytes < bytes_max:
            held = self._held.popleft()
            if not held.connection.is_closed:
                self._admit(held.connection, held.frame)
            held.connection.done(1, len(held.frame.body))

    def _answer_held(self) -> None:
        """Have what is held be sent to the master."""
        while self._held:
            held = self._held.popleft()
            body = self._duty.remark.encode()
            held.connection.answer(held.frame, ResponseCode.BROKER_ERROR, body)
            held.connection.done(1, len(held.frame.body))

    async def run_expiry(self) -> None:
        """Answer 51 to requests that were held too long."""
        while True:
            if not self._held:
                await self._aged.sleep()
                continue
            head = self._held[0]
            await trio.sleep_until(head.until)
            if self._held and self._held[0] is head:
                self._held.popleft()
                self.counts.expired += 1
                why = "" if self.is_serving else self._why_not()[:_WHY_LENGTH_MAX]
                head.connection.answer(head.frame, ResponseCode.BROKER_ERROR, why.encode())
                head.connection.done(1, len(head.frame.body))

    @property
    def held_requests(self) -> int:
        """Requests that wait to be admitted."""
        return len(self._held)
