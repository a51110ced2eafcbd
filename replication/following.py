"""A slave's side of replication: it copies the log of the master of one epoch.

    connect --> FOLLOW --> matches --> append what comes, fsync, ACK, hand on what is committed
       ^          |-----> diverges: the log is cut, and the directory opened anew
       +-- wait --+-----> behind: a snapshot is copied into one without records; likewise

The core decides (`replication/core/follower.py`). What is appended is what came, byte for byte,
after each CRC, the chain, epoch and sequence were checked. ACKs go out after each fsync, before
anything is filed, and twice a second.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.following import (
    FOLLOW_FRAME_BYTES_MAX,
    HEAD_SIZE,
    Acknowledged,
    Asked,
    BatchesHead,
    Follow,
    FollowRefused,
    Leave,
    LogBehind,
    LogDiverges,
    Matches,
    decode_batches,
    decode_follow_reply,
    encode_acknowledged,
    encode_follow,
    encode_leave,
)
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_protocol.wire.frames import Frame
from delay_transport.connections.limits import RequestLimits
from delay_transport.connections.request_client import RequestConnection
from delay_transport.meta.requests import MetaRefusedError
from delay_transport.meta.talk import Talk
from delay_transport.seams.errors import ConfigError, ConnectError, TransportError
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Address, Clock, Executor, Network
from replication.commit_queue import CommitQueue
from replication.core.commit_point import CommitPoint
from replication.core.epochs import Behind, Diverges, Question
from replication.core.follower import Cut, Follower
from replication.core.in_sync import ProtocolFaultError
from replication.core.leases import FollowerPromise
from storage.disk.errors import CopyRefusedError, StorageFullError
from storage.logs.message_log import MessageLog

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that came and are not appended: the master stops far earlier (leading.py::WINDOW_BYTES)."""
ACK_S: Final = 0.5
"""How often a slave says how far it is, whether anything is new or not."""
SILENCE_S_MAX: Final = 45.0
"""Seconds without a byte from the master after which the connection is given up."""
MASTER_SILENCE_S_MAX: Final = 2.0
"""Seconds without BATCHES after which a slave connects anew: a master sends some twice a second."""
AGAIN_S: Final = 0.1
"""Pause before a slave asks again."""
FULL_AGAIN_S: Final = 2.0
"""The same where it has no disk space."""
_FOLLOW_S_MAX: Final = 10.0
"""Seconds for the answer to FOLLOW."""
_LEAVE_S_MAX: Final = 0.5
_LEAVE_LOOK_S: Final = 0.005
_RECEIVE_BYTES: Final = 512 * 1024
"""Bytes that are asked of the socket at a time: a master sends batches of megabytes."""
_APPEND_BYTES: Final = 4 * 1024 * 1024
"""Bytes that are appended in one go, where more has come."""


class FollowEnd(Enum):
    """Why a slave follows no more by a connection."""

    AGAIN = "again"
    """It asks again soon."""
    CHANGED = "changed"
    """Its log was cut, or a snapshot copied: the directory is to be opened anew."""


class Received(NamedTuple):
    """A BATCHES that came."""

    head: BatchesHead
    batches: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What a slave copies into, and what it asks of the node that it is in."""

    log: MessageLog
    worker: str
    """The one of the log."""
    point: CommitPoint
    queue: CommitQueue
    promise: FollowerPromise
    applied: Callable[[], int]
    """Returns the first record that is not filed."""
    why_full: Callable[[], str]
    """Says why nothing more can be kept; empty if it can."""
    damage: Callable[[], str]
    """Says why the copy is not whole, in at most REASON_LENGTH_MAX characters; empty if it is."""
    cut: Callable[[Cut, int], Awaitable[range]]
    """Cuts the log, not below the second argument, and returns the records that went."""
    behind: Callable[[Talk, bytes, int], Awaitable[str]]
    """Copies a snapshot, where the master's log begins later than this one ends: with a record of
    that number. Has the body that asked to follow. Returns why nothing was copied; empty if it
    was."""
    appended: Callable[[], None]
    """Hears that something was appended."""


class Following:
    """A slave, as long as it follows the master of one epoch."""

    def __init__(
        self,
        copy: Copy,
        *,
        epoch: int,
        follow: Callable[[Asked], Follow],
        talk: Callable[[RequestConnection], Awaitable[Talk]],
        executor: Executor,
        clock: Clock,
        network: Network,
    ) -> None:
        """Follow; `follow` returns what the slave says of itself, `talk` proves who it is."""
        self._copy = copy
        self._epoch = epoch
        self._follow = follow
        self._talk = talk
        self._executor = executor
        self._clock = clock
        self._network = network
        self._follower = Follower(epoch=epoch, committed=copy.point.committed)
        self._connection: RequestConnection | None = None
        self._inbox: deque[Received] = deque()
        self._inbox_bytes = 0
        self._came = Wakeup()
        self._heard_at = 0.0
        self.standing = "does not follow yet"
        """How it is, in a sentence."""
        self.matched_at = 0.0
        """When its log was found to be the same last, by the boot clock in seconds."""
        self.copies_refused = 0
        """Batches that were not appended, since something was wrong with them."""

    @property
    def is_matched(self) -> bool:
        """Whether its log is the same as the master's, on a connection."""
        return self._connection is not None and self._follower.has_matched

    async def run(self, address: Address) -> None:
        """Follow until the directory is to be opened anew; CutRefusedError."""
        while await self._follow_once(address) is FollowEnd.AGAIN:
            await trio.sleep(AGAIN_S)
            while reason := self._copy.why_full():
                self._ended(reason)
                await trio.sleep(FULL_AGAIN_S)

    async def _follow_once(self, address: Address) -> FollowEnd:
        connection = RequestConnection(
            on_push=self._take,
            on_lost=lambda _: self._came.wake(),
            limits=RequestLimits(
                frame_bytes_max=FOLLOW_FRAME_BYTES_MAX,
                receive_bytes=_RECEIVE_BYTES,
                idle_seconds_max=SILENCE_S_MAX,
            ),
        )
        self._inbox.clear()
        self._inbox_bytes = 0
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(connection.run, self._network, address)
                except ConnectError as error:
                    return self._ended(str(error))
                self._connection, self._copy.promise.is_connected = connection, True
                try:
                    ended = await self._ask(connection)
                    if ended is None:
                        nursery.start_soon(self._acknowledge_again_and_again, connection)
                        ended = await self._append_what_comes(connection)
                except (TransportError, MetaRefusedError, ConfigError) as error:
                    ended = self._ended(str(error))
                except (MalformedMetaError, ProtocolFaultError) as error:
                    self.copies_refused += 1
                    _log.error("the master says what cannot be", fault=str(error))
                    ended = self._ended(str(error))
                finally:
                    connection.close("this node follows no more")
                    nursery.cancel_scope.cancel()
            return ended
        finally:
            self._connection, self._copy.promise.is_connected = None, False

    def _ended(self, reason: str) -> FollowEnd:
        if self.standing != reason:
            _log.warning("this node does not follow its master", reason=reason, epoch=self._epoch)
        self.standing = reason
        return FollowEnd.AGAIN

    # -- the question ----------------------------------------------------------------------------

    async def _ask(self, connection: RequestConnection) -> FollowEnd | None:
        """Ask whether the logs are the same; None if they are."""
        log, follower = self._copy.log, self._follower
        end = log.next_sequence
        asked = Asked(sequence=end, epoch=log.last_epoch, crc=log.crc_before(end) or 0)
        follower.ask(Question(asked.sequence, asked.epoch))
        body = encode_follow(self._follow(asked))
        talk = await self._talk(connection)
        reply = decode_follow_reply(await talk.ask(CommandCode.FOLLOW, body, _FOLLOW_S_MAX))
        if isinstance(reply, FollowRefused):
            return self._ended(reply.reason)
        question = Question(reply.asked.sequence, reply.asked.epoch)
        if reply.asked != asked:
            raise ProtocolFaultError(f"an answer to {reply.asked}; asked was {asked}")
        if isinstance(reply, Matches):
            follower.matches(question)
            self._heard_at = trio.current_time()
            self.standing, self.matched_at = "", self._clock.boot_ms() / 1000
            _log.info("this node follows its master", peer=connection.peer, epoch=self._epoch)
            self._committed()
            return None
        if damage := self._copy.damage():
            # What its log seems to end with may not be what it was.
            return self._ended(damage)
        if isinstance(reply, LogBehind):
            follower.diverges(Behind(question, reply.first), end=end)
            reason = await self._copy.behind(talk, body, reply.first)
            return self._ended(reason) if reason else FollowEnd.CHANGED
        return await self._other_log(reply, question)

    async def _other_log(self, reply: LogDiverges, question: Question) -> FollowEnd:
        copy = self._copy
        other = Diverges(question, reply.epoch, reply.end)
        cut = self._follower.diverges(other, end=copy.log.next_sequence)
        assert cut is not None
        try:
            with trio.CancelScope(shield=True):
                gone = await copy.cut(cut, self._follower.committed)
        except StorageFullError as error:
            return self._ended(f"no disk space to cut the log: {error}")
        _log.warning(
            "cut the end of the message_log, which the master has not; it was never committed",
            epoch=question.epoch,
            first=gone.start,
            last=gone.stop - 1,
            records=len(gone),
        )
        return FollowEnd.CHANGED

    # -- what comes ------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        """Take what the master sends by itself."""
        connection = self._connection
        if connection is None or frame.code != CommandCode.BATCHES:
            return
        try:
            received = Received(*decode_batches(frame.body))
        except MalformedMetaError as error:
            self.copies_refused += 1
            connection.close(str(error))
            return
        self._heard_at = trio.current_time()
        self._inbox.append(received)
        self._inbox_bytes += len(frame.body)
        if self._inbox_bytes > INBOX_BYTES_MAX:
            connection.close(f"{self._inbox_bytes} bytes came that are not appended yet")
        self._came.wake()

    async def _append_what_comes(self, connection: RequestConnection) -> FollowEnd:
        while connection.is_open:
            if not self._inbox:
                with trio.move_on_at(self._heard_at + MASTER_SILENCE_S_MAX):
                    await self._came.sleep()
                    continue
                return self._ended(f"the master sent nothing for {MASTER_SILENCE_S_MAX} s")
            reason = self._copy.why_full()
            if not reason:
                try:
                    await self._append(self._next_batches())
                except CopyRefusedError as error:
                    self.copies_refused += 1
                    _log.error("what the master sent was not appended", reason=str(error))
                    return self._ended(str(error))
                except StorageFullError as error:
                    reason = f"no disk space: {error}"
            if reason:
                await self._leave(connection, reason)
                return self._ended(reason)
        return self._ended("the connection to the master broke")

    def _next_batches(self) -> list[memoryview]:
        """Return the batches that come next, of all that came as far as that is not too much."""
        follower, parts, size = self._follower, [], 0
        now = self._clock.boot_ms() / 1000
        while self._inbox and size < _APPEND_BYTES:
            head, batches = self._inbox.popleft()
            self._inbox_bytes -= HEAD_SIZE + len(batches)
            goes_on = follower.batches(
                head.first,
                head.behind,
                committed=head.committed,
                time=head.time_ms / 1000,
                is_promised=self._copy.promise.heard(self._epoch, now, may_send=head.may_send),
            )
            if goes_on:
                parts.append(batches)
                size += len(batches)
                follower.expects(head.behind)
        return parts

    async def _append(self, parts: list[memoryview]) -> None:
        """Append, fsync, acknowledge, and hand on what is committed."""
        copy = self._copy
        if not parts:
            # An idle slave answers at once: so what it promises is counted from now.
            self._acknowledge()
            self._committed()
            return
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        # What is in the log has to be in the queue as well.
        with trio.CancelScope(shield=True):
            batches = await self._executor.run(copy.worker, copy.log.append_copied, data)
            # Each by itself: the commit may lie between two that came at once, and stay there.
            for batch in batches:
                copy.queue.add([batch])
        self._follower.appended(copy.log.next_sequence)
        self._acknowledge()
        self._committed()
        copy.appended()

    def _committed(self) -> None:
        copy = self._copy
        copy.point.durable_to(copy.log.next_sequence)
        copy.point.commit_to(self._follower.committed)
        copy.queue.hand_on()

    # -- what is said ----------------------------------------------------------------------------

    def _acknowledge(self) -> None:
        connection, copy = self._connection, self._copy
        if connection is None or not connection.is_open or not self._follower.has_matched:
            return
        said = self._follower.ack(end=copy.log.next_sequence, applied=copy.applied())
        echo_ms = None if said.echo is None else round(said.echo * 1000)
        body = encode_acknowledged(
            Acknowledged(
                end=said.end, applied=said.applied, echo_ms=echo_ms, now_ms=self._clock.now_ms()
            )
        )
        connection.tell(CommandCode.ACK, body)

    async def _acknowledge_again_and_again(self, connection: RequestConnection) -> None:
        said = ""
        while True:
            if (damage := self._copy.damage()) != said:
                # It goes on: the group may not be able to do without it.
                said = damage
                connection.tell(CommandCode.LEAVE, encode_leave(Leave(reason=damage)))
            await trio.sleep(ACK_S)
            self._acknowledge()

    async def _leave(self, connection: RequestConnection, reason: str) -> None:
        """Say why nothing more is copied, and wait a little until that is on its way."""
        leave = encode_leave(Leave(reason=reason[:REASON_LENGTH_MAX]))
        connection.tell(CommandCode.LEAVE, leave)
        with trio.move_on_after(_LEAVE_S_MAX):
            while connection.is_open and connection.unsent_bytes:  # noqa: ASYNC110 (it is rare)
                await trio.sleep(_LEAVE_LOOK_S)
