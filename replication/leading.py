"""The master's side of replication: who follows, what they are sent, and what they acknowledge.

The core decides (`replication/core/master.py`); this has the connections, the clock and the log. A
slave connects to the port of producers and asks (`delay_protocol/nodes/following.py`). Once its log
matches it is sent what is written, before that is durable here, from the bytes of the commit; what
it lacks from before is read from the log. At most WINDOW_BYTES are sent beyond what it has
acknowledged.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import structlog
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.clocks import ahead_ms
from delay_protocol.nodes.following import (
    Acknowledged,
    BatchesHead,
    Follow,
    FollowRefused,
    FollowReply,
    Matches,
    decode_acknowledged,
    decode_leave,
    encode_batches_head,
)
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_protocol.nodes.snapshots import ReadReply, SnapshotRead, SnapshotReply
from delay_protocol.wire.frames import Frame, encode_one_way
from delay_transport.connections.connection import Connection
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Clock, Executor
from delay_transport.seams.trouble import Trouble
from replication.commit_queue import READ_WORKER
from replication.core.epochs import Epochs
from replication.core.handover import HandoverRequest
from replication.core.in_sync import Proposal, ProtocolFaultError
from replication.core.master import Master
from replication.core.record import Member, Record, Start
from replication.questions import Asks, Questions
from replication.snapshots import Snapshots
from storage.batch.batches import LogBatch
from storage.batch.columns import RecordKind
from storage.disk.errors import DamagedError, LogTrimmedError
from storage.logs.message_log import MessageLog, Written

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Bytes that are sent to a slave beyond its last acknowledgement: some 100 ms of a full stream."""
FRAME_BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches in one frame, where there are several; no batch has more."""
_READ_BYTES: Final = 1024 * 1024
"""Bytes that a slave which lacks much is sent at a time."""
LOOK_S: Final = 0.1
"""How often the core is asked what follows from the time that has passed."""
HEARTBEAT_S: Final = 0.5
"""How often a slave is sent something, whether there is anything new or not."""
COMMIT_NEWS_S: Final = 0.02
"""After so long a slave is told of a commit that nothing followed."""
_DAMAGED_AGAIN_S: Final = 5.0
"""After so long a slave is sent again what could not be read."""


@dataclass(eq=False, slots=True)
class Stream:
    """What is sent on one connection to a slave."""

    connection: Connection
    start: Start
    number: int
    next: int
    """The first record that was not sent."""
    acknowledged: int
    """The first record that it has not acknowledged."""
    told: int = 0
    """What it was told to be committed."""
    told_at: float = 0.0
    unacknowledged: deque[tuple[int, int]] = field(default_factory=deque)
    """The record behind what was sent at a time, and its bytes."""
    bytes_beyond: int = 0
    """Bytes of that."""
    more: Wakeup = field(default_factory=Wakeup)
    """Woken when it may be sent something that the log has."""

    @property
    def member(self) -> Member:
        """Whose it is."""
        return self.start.member

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        return self.bytes_beyond < WINDOW_BYTES


class Leading:
    """The connections of slaves, in one epoch of the master."""

    def __init__(
        self,
        master: Master,
        *,
        log: MessageLog,
        log_uuid: UUID,
        epochs: Epochs,
        executor: Executor,
        clock: Clock,
        asks: Asks,
        snapshots: Snapshots,
    ) -> None:
        self.master = master
        self.snapshots = snapshots
        self._log = log
        self.questions = Questions(
            master, log=log, log_uuid=log_uuid, epochs=epochs, executor=executor, asks=asks
        )
        self._executor = executor
        self._clock = clock
        self._asks = asks
        self._streams: dict[Connection, Stream] = {}
        self._number = 0
        self._nursery: trio.Nursery | None = None
        self._look_now = Wakeup()
        self._commit_moved = Wakeup()
        self._is_asking = False
        self._is_over = False
        """Whether what slaves have may be other than what the log here has."""
        self._asked: set[Connection] = set()
        """Connections whose question is being answered."""
        self.why_not_append = self.why_not_send = "its epoch has not begun"
        """As the core said last."""
        self._lacks_promises = False
        """Whether promises were lacking at the last look."""
        self.refused = 0
        """Requests to follow that were refused."""
        self._refusals = Trouble()
        self.clocks_ahead_s: dict[Member, float] = {}
        """By how much the wall clocks of slaves are ahead of the one here."""
        self.protocol_faults = 0
        """Slaves that said what cannot be."""
        master.members.written(log.next_sequence, self.now)
        master.members.durable(log.next_sequence)

    @property
    def now(self) -> float:
        """The boot clock in seconds."""
        return self._clock.boot_ms() / 1000

    # -- what may be done ------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Return True if something may be sent at this moment."""
        reason = self.master.why_not_act(self.now)
        if reason and not self.why_not_send:
            # The next look tells everybody.
            self.why_not_send = reason
            self._look_now.wake()
        return not reason

    def recorded(self, record: Record) -> None:
        """Take a record of this epoch."""
        before = self.master.commit_point.committed
        self.master.recorded(record, self.now)
        self._moved(before)
        self._look_now.wake()

    def hand_over(self, node: str) -> str:
        """Begin to hand over; return why that cannot be, empty if it has begun."""
        reason = self.master.hand_over(node, self.now)
        for stream in self._streams.values():
            # Whoever is well answers at once.
            self._send_empty(stream, self.now)
        self._look_now.wake()
        return reason

    # -- the log grows ---------------------------------------------------------------------------

    @property
    def follow(self) -> bool:
        """Whether anybody follows."""
        return bool(self._streams)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Count the block as a commit: its disk hangs if it takes too long."""
        members = self.master.members
        members.commits_since = self.now
        try:
            yield
        finally:
            members.commits_since = None

    def written(self, written: Written) -> None:
        """Send what is written, and not durable yet, to those who have all before."""
        batches = written.batches
        if not batches or self._is_over:
            return
        now = self.now
        first = batches[0].header.base_sequence
        self.master.members.written(batches[-1].header.next_sequence, now)
        pieces: list[tuple[int, int, bytes]] | None = None
        for stream in list(self._streams.values()):
            if stream.next != first or not stream.has_room:
                # It is sent this from the log.
                continue
            if pieces is None:
                pieces = list(self._frames(batches, b"".join(written.buffers), now))
            for behind, size, frame in pieces:
                self._send(stream, behind, size, frame, now)

    def _frames(
        self, batches: Sequence[LogBatch], data: bytes, now: float
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield the record behind, the bytes of batches, and the frame that has them."""
        view, at = memoryview(data), 0
        first = batches[0].header.base_sequence
        size = 0
        for place, batch in enumerate(batches):
            size += batch.header.size
            is_last = place + 1 == len(batches)
            if is_last or size + batches[place + 1].header.size > FRAME_BYTES:
                behind = batch.header.next_sequence
                yield behind, size, self._frame(first, behind, view[at : at + size], now)
                first, at, size = behind, at + size, 0

    def _frame(self, first: int, behind: int, data: memoryview | bytes, now: float) -> bytes:
        committed = self.master.commit_point.committed
        may_send = not self.master.why_not_act(now)
        head = BatchesHead(first, behind, committed, int(now * 1000), may_send)
        return encode_one_way(CommandCode.BATCHES, encode_batches_head(head), data)

    def _send(self, stream: Stream, behind: int, size: int, frame: bytes, now: float) -> None:
        stream.connection.reply(frame)
        stream.next, stream.told, stream.told_at = behind, self.master.commit_point.committed, now
        stream.unacknowledged.append((behind, size))
        stream.bytes_beyond += size
        self.master.members.sent(stream.member, stream.number, behind)

    def durable(self, end: int, batches: Sequence[LogBatch]) -> None:
        """Hear that all below `end` is durable here, and that these batches are the last of it."""
        if self._is_over:
            return
        now, members = self.now, self.master.members
        before = self.master.commit_point.committed
        members.written(end, now)
        for batch in batches:
            if batch.header.kind is RecordKind.FACTS:
                self.master.outcomes.durable(batch.header.next_sequence, batch.header.count, now)
        members.durable(end)
        self.questions.durable()
        for stream in self._streams.values():
            if stream.next < end:
                stream.more.wake()
        self._moved(before)

    def took_back(self) -> None:
        """End the mastership: a slave may have what is not in the log here."""
        self._is_over = True
        self._asks.lose("there was no disk space for what slaves had been sent already")

    def _moved(self, before: int) -> None:
        """Hand on what has become committed since."""
        committed = self.master.commit_point.committed
        if committed != before:
            self.master.outcomes.committed_to(committed)
            self._commit_moved.wake()
            self._asks.moved()

    # -- what slaves say -------------------------------------------------------------------------

    def follows(
        self, connection: Connection, follow: Follow, answer: Callable[[FollowReply], None]
    ) -> None:
        """Answer a slave that asks to follow, soon; what comes next on the connection is its."""
        if self._nursery is None:
            answer(FollowRefused(reason="this master has not begun its epoch"))
            return
        if connection in self._asked or connection in self._streams:
            connection.close("it asked twice")
            return
        self._asked.add(connection)
        self._nursery.start_soon(self._answer_follow, connection, follow, answer)

    async def _answer_follow(
        self, connection: Connection, follow: Follow, answer: Callable[[FollowReply], None]
    ) -> None:
        try:
            reply = await self.questions.answer(follow)
        finally:
            self._asked.discard(connection)
        if connection.is_closed:
            return
        if isinstance(reply, FollowRefused):
            self.refused += 1
            node, reason = follow.node_id, reply.reason
            self._refusals.log(
                connection.warn, "a slave was refused", node, reason=reason, node=node
            )
        answer(reply)
        if isinstance(reply, Matches):
            self._begin_stream(connection, follow)

    def _begin_stream(self, connection: Connection, follow: Follow) -> None:
        start = start_of(follow)
        for other in list(self._streams.values()):
            if other.member == start.member:
                self._end_stream(other, "it follows by another connection")
        self._number += 1
        sequence = follow.asked.sequence
        stream = Stream(connection, start, self._number, sequence, sequence)
        self._streams[connection] = stream
        self.master.members.connected(start, stream.number, sequence=sequence, now=self.now)
        _log.info("a slave follows", node=follow.node_id, peer=connection.peer, sequence=sequence)
        self._send_empty(stream, self.now)
        if self._nursery is not None:
            self._nursery.start_soon(self._fill, stream)

    def _end_stream(self, stream: Stream, reason: str) -> None:
        if self._streams.pop(stream.connection, None) is None:
            return
        self.master.members.disconnected(stream.member, stream.number, self.now)
        stream.more.wake()
        stream.connection.close(reason)

    def closed(self, connection: Connection, reason: str) -> None:
        """Hear that a connection is gone."""
        self.snapshots.closed(connection)
        stream = self._streams.get(connection)
        if stream is not None:
            _log.warning("a slave is gone", node=stream.member.node, reason=reason)
            self._end_stream(stream, reason)

    def take(self, connection: Connection, frame: Frame) -> None:
        """Take an ACK or a LEAVE."""
        stream = self._streams.get(connection)
        if stream is None:
            return
        try:
            if frame.code == CommandCode.ACK:
                self._acknowledged(stream, decode_acknowledged(frame.body))
            else:
                said = decode_leave(frame.body)
                _log.warning("a slave leaves", node=stream.member.node, reason=said.reason)
                self.master.members.leaves(stream.member, stream.number, said.reason)
                self._look_now.wake()
        except (ProtocolFaultError, MalformedMetaError) as error:
            self.protocol_faults += 1
            _log.error(
                "a slave says what cannot be; its connection was closed",
                node=stream.member.node,
                peer=connection.peer,
                fault=str(error),
            )
            self._end_stream(stream, str(error))

    def _acknowledged(self, stream: Stream, said: Acknowledged) -> None:
        before, now = self.master.commit_point.committed, self.now
        echo = None if said.echo_ms is None else said.echo_ms / 1000
        if echo is not None and echo > now:
            raise ProtocolFaultError(f"{stream.member.node} echoes a time that has not come")
        self.master.members.acknowledged(
            stream.member,
            stream.number,
            end=said.end,
            applied=said.applied,
            echo=echo,
            now=now,
        )
        if echo is not None and said.now_ms is not None:
            waited_ms = round((now - echo) * 1000)
            found = ahead_ms(said.now_ms, self._clock.now_ms(), waited_ms=waited_ms)
            self.clocks_ahead_s[stream.member] = found / 1000
        stream.acknowledged = said.end
        waiting = stream.unacknowledged
        while waiting and waiting[0][0] <= said.end:
            stream.bytes_beyond -= waiting.popleft()[1]
        stream.more.wake()
        self._moved(before)
        if self.master.handover is not None:
            self._look_now.wake()

    # -- snapshots -------------------------------------------------------------------------------

    def begin_snapshot(
        self, connection: Connection, follow: Follow, answer: Callable[[SnapshotReply], None]
    ) -> None:
        """Answer a slave that has no records, once there is a checkpoint to copy."""
        if self._nursery is None:
            answer(FollowRefused(reason="this master has not begun its epoch"))
            return
        self._nursery.start_soon(self._answer_snapshot, connection, follow, answer)

    async def _answer_snapshot(
        self, connection: Connection, follow: Follow, answer: Callable[[SnapshotReply], None]
    ) -> None:
        epoch = self.master.record.epoch
        reason = self.questions.why_not(follow)
        reply: SnapshotReply = FollowRefused(reason=reason[:REASON_LENGTH_MAX], epoch=epoch)
        if not reason:
            try:
                reply = await self.snapshots.begin(connection, start_of(follow).member)
            except ProtocolFaultError as error:
                self._close_at_fault(connection, error)
                return
        if isinstance(reply, FollowRefused):
            connection.warn("a snapshot was refused", node=follow.node_id, reason=reply.reason)
        if not connection.is_closed:
            answer(reply)

    def read_snapshot(
        self, connection: Connection, asked: SnapshotRead, answer: Callable[[ReadReply], None]
    ) -> None:
        """Answer a slave that copies a snapshot, soon."""
        if self._nursery is not None:
            self._nursery.start_soon(self._answer_read, connection, asked, answer)

    async def _answer_read(
        self, connection: Connection, asked: SnapshotRead, answer: Callable[[ReadReply], None]
    ) -> None:
        try:
            reply = await self.snapshots.read(connection, asked)
        except ProtocolFaultError as error:
            self._close_at_fault(connection, error)
            return
        if not connection.is_closed:
            answer(reply)

    def _close_at_fault(self, connection: Connection, error: ProtocolFaultError) -> None:
        self.protocol_faults += 1
        connection.fault()
        connection.close(str(error))

    # -- what slaves lack ------------------------------------------------------------------------

    async def _fill(self, stream: Stream) -> None:
        """Send a slave what the log has beyond what it was sent, again and again."""
        log, connection = self._log, stream.connection
        try:
            while self._streams.get(connection) is stream:
                if stream.next >= log.next_sequence or not stream.has_room:
                    await stream.more.sleep()
                    continue
                read = partial(log.read_raw, bytes_max=_READ_BYTES)
                raw = await self._executor.run(READ_WORKER, read, stream.next)
                # It may have been sent what is written now, if that came next.
                if self._streams.get(connection) is stream and raw.first_sequence == stream.next:
                    now = self.now
                    frame = self._frame(raw.first_sequence, raw.next_sequence, raw.data, now)
                    self._send(stream, raw.next_sequence, len(raw.data), frame, now)
        except LogTrimmedError as error:
            self._end_stream(stream, str(error))
        except (DamagedError, OSError) as error:
            node = stream.member.node
            _log.error("the log cannot be read for a slave", node=node, error=str(error))
            self._asks.note(error)
            await trio.sleep(_DAMAGED_AGAIN_S)
            self._end_stream(stream, str(error))

    # -- what happens again and again ------------------------------------------------------------

    async def run(self) -> None:
        """Serve slaves and look after the in-sync set, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tell_of_commits)
                try:
                    await self._look_again_and_again()
                finally:
                    # One that ends takes no task any more.
                    self._nursery = None
        finally:
            self.snapshots.end()
            for stream in list(self._streams.values()):
                self._end_stream(stream, "its master stops")

    async def _look_again_and_again(self) -> None:
        while True:
            self.look()
            with trio.move_on_after(LOOK_S):
                await self._look_now.sleep()

    def look(self) -> None:
        """Do what follows from the time."""
        now, master = self.now, self.master
        before = master.commit_point.committed
        asked = master.handover
        wanted = master.look(now, in_flight=self._asks.in_flight())
        if asked is not None and master.handover is None:
            _log.warning(
                "the group is not handed over: not all in sync answer, or have everything",
                node=asked.target.node,
            )
        self._moved(before)
        if wanted is not None and not self._is_asking and self._nursery is not None:
            self._is_asking = True
            self._nursery.start_soon(self._ask, wanted)
        for decision in master.members.changed(now):
            _log.info(decision.sentence, standing=decision.standing.value)
        if (lacks := master.lacks_promises_s(now) is not None) != self._lacks_promises:
            self._lacks_promises = lacks
            self._asks.renew()
        reasons = master.why_not_append(now), master.why_not_send(now)
        if reasons != (self.why_not_append, self.why_not_send):
            self._tell_of_reasons(*reasons)
        self.snapshots.look({one.member: one.acknowledged for one in self._streams.values()})
        for stream in self._streams.values():
            if now - stream.told_at >= HEARTBEAT_S:
                self._send_empty(stream, now)

    def _tell_of_reasons(self, append: str, send: str) -> None:
        """Log and have followed what the master may not do, when whether it may has changed."""
        was_append, was_send = self.why_not_append, self.why_not_send
        self.why_not_append, self.why_not_send = append, send
        if bool(was_append) != bool(append):
            _log.warning("messages are held", reason=append) if append else _log.info(
                "messages are accepted"
            )
        if bool(was_send) != bool(send):
            _log.warning("sending pauses", reason=send) if send else _log.info("sending goes on")
        self._asks.duty_changed()

    async def _ask(self, wanted: Proposal | HandoverRequest) -> None:
        try:
            await self._asks.change_record(wanted)
        finally:
            self._is_asking = False

    def _send_empty(self, stream: Stream, now: float) -> None:
        """Say how far the log is committed, and that the master is there."""
        stream.connection.reply(self._frame(stream.next, stream.next, b"", now))
        stream.told, stream.told_at = self.master.commit_point.committed, now

    async def _tell_of_commits(self) -> None:
        """Tell slaves of a commit that nothing follows."""
        while True:
            await self._commit_moved.sleep()
            await trio.sleep(COMMIT_NEWS_S)
            now, committed = self.now, self.master.commit_point.committed
            for stream in self._streams.values():
                if stream.told < committed:
                    self._send_empty(stream, now)


def start_of(follow: Follow) -> Start:
    """Return the start of a node that asks to follow."""
    member = Member(follow.node_id, follow.storage_uuid)
    return Start(member, follow.incarnation, follow.boot_id)


def answer_of(
    connection: Connection,
    frame: Frame,
    seal: Callable[[bytes], bytes],
    encode: Callable[[T], bytes],
) -> Callable[[T], None]:
    """Return what answers a request of a slave."""

    def answer(reply: T) -> None:
        connection.answer(frame, ResponseCode.SUCCESS, seal(encode(reply)))

    return answer
