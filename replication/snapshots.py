"""Snapshots: a slave that has no records copies the files that a checkpoint names.

    slave     SNAPSHOT --> the checkpoint, in pieces --> file after file --> the checkpoint, durable
    master    writes a checkpoint, and keeps what it names and its log from there on, until
              the slave follows, or has been gone for KEPT_S

A piece is read and written at a time, in workers of their own, so producers keep their rate. A
snapshot that is broken off begins again. What is damaged at the master is copied as it is, read a
second time to be sure, and told as damage of the slave. What the master cannot read at all is
refused with a sentence.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.nodes.following import FollowRefused
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_protocol.nodes.snapshots import (
    CHECKPOINT_NAME,
    READ_BYTES_MAX,
    ReadReply,
    SnapshotBegun,
    SnapshotBytes,
    SnapshotRead,
    SnapshotReply,
    decode_read_reply,
    decode_snapshot_reply,
    encode_snapshot_read,
)
from delay_transport.connections.connection import Connection
from delay_transport.meta.talk import Talk
from delay_transport.seams.runtime import Executor
from replication.core.in_sync import ProtocolFaultError
from replication.core.record import Member
from storage.batch.batches import Damage
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError
from storage.logs.message_log import MessageLog
from storage.node.retention import Retention
from storage.node.snapshot import (
    CopiedFile,
    CopyWriter,
    checkpoint_of_copy,
    decode_copy,
    encode_copy,
    files_of,
)
from storage.state.checkpoint import Checkpoint

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

KEPT_S: Final = 120.0
"""So long a master keeps its log for a slave that has copied, or was broken off: it opens what it
has, and comes back within seconds."""
_TAKE_S_MAX: Final = 30.0
"""Seconds in which a checkpoint has to cover all that was applied: a segment that is being split
keeps rows in memory, and is split in less."""
_TAKE_AGAIN_S: Final = 0.5
_ASK_S_MAX: Final = 60.0
"""Seconds for the answer to SNAPSHOT."""
_READ_S_MAX: Final = 20.0
"""Seconds for the answer to SNAPSHOT_READ."""
GIVE_WORKER: Final = "snapshot_reader"
COPY_WORKER: Final = "snapshot_writer"


class SnapshotRefusedError(Exception):
    """A snapshot could not be taken; the text says why."""


# -- the master ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Given:
    """What a slave copies, or has copied."""

    member: Member
    copied_from: int
    """The first record of the log that it will lack."""
    files: dict[str, int]
    """The bytes of each file."""
    document: bytes
    until: float = math.inf
    """When it is forgotten, once the connection is closed."""


class Snapshots:
    """The snapshots that slaves of a master copy, one for each slave."""

    def __init__(
        self,
        *,
        disk: Disk,
        log: MessageLog,
        log_uuid: UUID,
        retention: Retention,
        executor: Executor,
        take: Callable[[], Awaitable[Checkpoint | None]],
    ) -> None:
        """`take` writes a checkpoint; it returns None if that does not cover all applied."""
        self._disk = disk
        self._log = log
        self._log_uuid = log_uuid
        self._retention = retention
        self._executor = executor
        self._take = take
        self._given: dict[Connection, _Given] = {}
        self._gone: list[_Given] = []
        """Those of closed connections."""
        self._followed_from: list[int] = []
        """The first record that a slave which follows has not acknowledged, of each."""
        self._busy: set[Connection] = set()
        """Connections with a request under way."""

    async def begin(self, connection: Connection, member: Member) -> SnapshotReply:
        """Take a checkpoint for a slave, and keep what it names.

        Raises ProtocolFaultError while another request of the connection is under way.
        """
        if connection in self._busy:
            raise ProtocolFaultError("a snapshot was asked for before the last answer")
        self._busy.add(connection)
        try:
            return await self._begin(connection, member)
        finally:
            self._busy.discard(connection)

    async def _begin(self, connection: Connection, member: Member) -> SnapshotReply:
        self._gone = [given for given in self._gone if given.member != member]
        for other, given in list(self._given.items()):
            if given.member == member:
                del self._given[other]
        # From before the checkpoint on: until it is known nothing that it may need may leave.
        first = max(self._log.first_sequence, 1)
        given = self._given[connection] = _Given(member, first, {}, b"")
        self._hold()
        try:
            with trio.fail_after(_TAKE_S_MAX):
                checkpoint = await self._take_whole()
            sequence = checkpoint.sequence
            crc = await self._executor.run(GIVE_WORKER, self._log.crc_before, sequence + 1)
        except trio.TooSlowError:
            return self._refused(connection, "the master has rows in memory that wait for a split")
        except (DamagedError, OSError) as error:
            return self._refused(connection, f"the master cannot read its log: {error}")
        if crc is None:
            return self._refused(connection, f"the master's log does not go on behind {sequence}")
        wanted = checkpoint_of_copy(checkpoint, crc)
        given.copied_from = sequence + 1
        if self._given.get(connection) is given:
            given.document = encode_copy(wanted)
            given.files = {file.path: file.length for file in files_of(wanted, self._log_uuid)}
        self._hold()
        _log.info(
            "a slave copies a snapshot",
            node=member.node,
            sequence=sequence,
            files=len(given.files),
            bytes=sum(given.files.values()),
        )
        return SnapshotBegun(sequence=sequence, size=len(given.document))

    async def _take_whole(self) -> Checkpoint:
        while True:
            checkpoint = await self._take()
            if checkpoint is not None:
                return checkpoint
            await trio.sleep(_TAKE_AGAIN_S)

    def _refused(self, connection: Connection, reason: str) -> FollowRefused:
        self._given.pop(connection, None)
        self._hold()
        return FollowRefused(reason=reason[:REASON_LENGTH_MAX])

    async def read(self, connection: Connection, asked: SnapshotRead) -> ReadReply:
        """Read some of a file for a slave; ProtocolFaultError for what was not offered."""
        given = self._given.get(connection)
        if given is None or connection in self._busy:
            raise ProtocolFaultError("bytes of a snapshot were asked for that nobody has begun")
        end = asked.position + asked.size
        if asked.path == CHECKPOINT_NAME:
            data = given.document[asked.position : end]
            if len(data) != asked.size:
                raise ProtocolFaultError(f"a checkpoint of {len(given.document)}, not {end} bytes")
            return SnapshotBytes(data=data)
        length = given.files.get(asked.path)
        if length is None or end > length:
            raise ProtocolFaultError(f"{asked.path} up to {end} is not of the snapshot")
        self._busy.add(connection)
        try:
            data = await self._executor.run(GIVE_WORKER, self._read, asked)
        except OSError as error:
            reason = f"the master cannot read {asked.path}: {error}"
            return FollowRefused(reason=reason[:REASON_LENGTH_MAX])
        finally:
            self._busy.discard(connection)
        return SnapshotBytes(data=data)

    def _read(self, asked: SnapshotRead) -> bytes:
        with closing(self._disk.open_read(asked.path)) as file:
            data = file.read_at(asked.position, asked.size)
        if len(data) < asked.size:
            # A file that was cut short: the slave tells it as damage.
            data = data.ljust(asked.size, b"\0")
        return data

    def closed(self, connection: Connection) -> None:
        """Hear that a connection is gone: the slave may come back, or follow now."""
        given = self._given.pop(connection, None)
        if given is not None:
            given.until = trio.current_time() + KEPT_S
            given.files, given.document = {}, b""
            self._gone.append(given)
            self._hold()

    def look(self, follow: dict[Member, int]) -> None:
        """Keep the log for those who copy, and for those who follow: from these records on."""
        now = trio.current_time()
        self._gone = [one for one in self._gone if one.until > now and one.member not in follow]
        self._followed_from = list(follow.values())
        self._hold()

    def _hold(self) -> None:
        given = [one.copied_from for one in (*self._given.values(), *self._gone)]
        self._retention.copied_from = min(given + self._followed_from, default=None)
        self._retention.is_copied = bool(self._given)

    def end(self) -> None:
        """Keep nothing for slaves any more: this node leads no longer."""
        self._given, self._gone, self._followed_from = {}, [], []
        self._retention.copied_from, self._retention.is_copied = None, False


# -- the slave -----------------------------------------------------------------------------------


class SnapshotCopy:
    """A snapshot that this node, which has no records, copies from its master."""

    def __init__(
        self,
        *,
        disk: Disk,
        log_uuid: UUID,
        executor: Executor,
        on_damage: Callable[[Damage], None],
        why_full: Callable[[], str],
    ) -> None:
        """on_damage: hears of what was damaged at the master; why_full: as `Copy` has it."""
        self._disk = disk
        self._log_uuid = log_uuid
        self._executor = executor
        self._on_damage = on_damage
        self._why_full = why_full
        self._writer = CopyWriter(disk)
        self.began_at = trio.current_time()
        self.copied_bytes = 0
        """Of the files."""
        self.bytes = 0
        """Of all files; 0 until that is known."""

    async def run(self, talk: Talk, follow: bytes) -> Checkpoint:
        """Copy all; return the checkpoint that makes it the directory's, and that is not there yet.

        follow: the body that asked to follow. Raises SnapshotRefusedError, CopyRefusedError,
        StorageFullError, FatalDiskError, or what a request raises.
        """
        body = await talk.ask(CommandCode.SNAPSHOT, follow, _ASK_S_MAX)
        reply = decode_snapshot_reply(body)
        if isinstance(reply, FollowRefused):
            raise SnapshotRefusedError(reply.reason)
        pieces = []
        for position in range(0, reply.size, READ_BYTES_MAX):
            size = min(READ_BYTES_MAX, reply.size - position)
            pieces.append(await self._ask(talk, CHECKPOINT_NAME, position, size))
        wanted = decode_copy(b"".join(pieces))
        files = list(files_of(wanted, self._log_uuid))
        self.bytes = sum(file.length for file in files)
        free, _ = self._disk.free_bytes()
        if self.bytes > free:
            raise SnapshotRefusedError(
                f"a snapshot has {self.bytes} bytes, and {free} are free on this disk"
            )
        _log.info("copying a snapshot", sequence=wanted.sequence, bytes=self.bytes)
        run, writer = self._executor.run, self._writer
        try:
            await run(COPY_WORKER, writer.begin)
            for file in files:
                await self._copy(talk, file)
            await run(COPY_WORKER, writer.sync_names)
        finally:
            with trio.CancelScope(shield=True):
                await run(COPY_WORKER, writer.close)
        seconds = round(trio.current_time() - self.began_at, 3)
        _log.info("copied a snapshot", sequence=wanted.sequence, bytes=self.bytes, seconds=seconds)
        return wanted

    async def _copy(self, talk: Talk, file: CopiedFile) -> None:
        """Copy a file; a second time if it was damaged, since it may have been on its way here."""
        run, writer = self._executor.run, self._writer
        for is_last in (False, True):
            for position in range(0, file.length, READ_BYTES_MAX):
                if reason := self._why_full():
                    raise SnapshotRefusedError(reason)
                size = min(READ_BYTES_MAX, file.length - position)
                data = await self._ask(talk, file.path, position, size)
                await run(COPY_WORKER, partial(writer.write, file.path, position, data))
                self.copied_bytes += size
            damages = await run(COPY_WORKER, writer.finish, file)
            if not damages:
                return
            if is_last:
                for damage in damages:
                    self._on_damage(damage)
                return
            await run(COPY_WORKER, writer.drop, file)
            self.copied_bytes -= file.length

    async def _ask(self, talk: Talk, path: str, position: int, size: int) -> bytes:
        asked = encode_snapshot_read(SnapshotRead(path=path, position=position, size=size))
        body = await talk.ask(CommandCode.SNAPSHOT_READ, asked, _READ_S_MAX)
        reply = decode_read_reply(body)
        if isinstance(reply, FollowRefused):
            raise SnapshotRefusedError(reply.reason)
        if len(reply.data) != size:
            raise ProtocolFaultError(f"{len(reply.data)} bytes of {path}, asked for were {size}")
        return reply.data
