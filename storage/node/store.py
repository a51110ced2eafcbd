"""One node's data directory, opened: identity, the logs, recovery and the checkpoint.

data directory/
  lock, identity            who this is; one process at a time
  message_log/              what was accepted, and `durable_end`
  schedule_log/             by the time it is due, one file per segment
  dispatch_log/             what became of it, filed alike
  seals/                    complete segments
  checkpoint/               the manifest of all that is derived
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
import numpy as np

from storage.batch.batches import Damage, LogBatch
from storage.batch.chained_file import ChainedFile
from storage.batch.facts import FactBlock, facts_stated, join_facts
from storage.batch.file_header import HEADER_SIZE_MAX, decode_file_header
from storage.batch.rows import Int64s
from storage.disk.disk import Disk, File, next_data
from storage.disk.errors import DamagedError, LogStateError
from storage.disk.read_ahead import PIECE
from storage.disk.spans import SegmentKey, key_of_name
from storage.limits import StorageLimits
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY, MessageLog, RecoveryReport
from storage.logs.numbered_log import list_log_files
from storage.node import aside
from storage.node.retention import Retention, Sweep
from storage.schedule.owed import owed_for
from storage.schedule.schedule_log import ScheduleLog
from storage.schedule.sealing import Look, look_through
from storage.schedule.seals import (
    SEALS_DIRECTORY,
    Seal,
    Seals,
    SealsLog,
    columns_of_seals,
    join_seals,
    seals_end,
)
from storage.schedule.segment import Segment
from storage.state.checkpoint import (
    CHECKPOINT_PATH,
    Checkpoint,
    ClockMark,
    read_checkpoint,
    write_checkpoint,
)
from storage.state.controls_file import CONTROLS_PATH
from storage.state.durable_end import DURABLE_END_NAME
from storage.state.identity import (
    IDENTITY_PATH,
    Identity,
    adopt_identity,
    open_identity,
)

DURABLE_END_PATH = f"{MESSAGE_LOG_DIRECTORY}/{DURABLE_END_NAME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a node decides about its data directory."""

    cluster: str | None = None
    """Name of the cluster; None takes what the directory says."""

    group: str | None = None
    """Name of the group; fixed at the first start."""

    node_id: str | None = None
    """Name of the node; fixed at the first start."""

    begins_new_log: bool = True
    """Whether a new log begins with epoch 1 at once. Otherwise it stays empty until `start_epoch`:
    a node that is told its epoch may be told to copy another's log instead."""

    limits: StorageLimits = field(default_factory=StorageLimits)
    """Size and retention of its files."""


@dataclass(slots=True)
class RecoverySummary:
    """What opening a data directory found and did."""

    message_log: RecoveryReport
    had_checkpoint: bool = True
    """Whether there was one; if not, everything was derived from the first record on."""
    replayed: int = 0
    """Records of the log's tail that were applied to the schedule_log."""
    facts: int = 0
    """Facts that these stated."""
    known: int = 0
    """Facts that are durable and not committed: their messages are not sent again."""
    orphans: list[str] = field(default_factory=list)
    """Files that nothing named, deleted."""
    quarantined: list[str] = field(default_factory=list)
    """What was put aside, since records that are lost may be in it: files that nothing named, and
    copies of those that were cut."""
    damages: list[Damage] = field(default_factory=list)
    """Bytes that should be readable and are not."""


@dataclass(slots=True)
class CheckpointWork:
    """A checkpoint that is being written: what has to be durable before it, and what it says."""

    disk: Disk
    identity: Identity
    seals_log: SealsLog
    files: list[File]
    sync_names: bool
    candidates: list[Segment]
    """Copies of segments that may be complete: `write` reads them, and seals those that are."""
    sweep: Sweep
    checkpoint: Checkpoint
    """Names the candidates, until `write` has taken out those that it sealed."""
    is_whole: bool
    """Whether all that was applied is in files: nothing waits in memory."""
    looks: list[Look] = field(default_factory=list)
    """What reading the candidates came to, of those that were read."""

    @property
    def seals(self) -> list[Seal]:
        """The seals of the candidates that are complete, as far as they were read."""
        return [look.seal for look in self.looks if look.seal is not None]

    def write(self) -> None:
        """Make everything durable in the order that recovery relies on. May take its time."""
        changed = self._unlink()
        if self.sync_names:
            changed |= {"schedule_log", "dispatch_log"}
        self.disk.sync_files(self.files)
        for directory in sorted(changed):
            self.disk.sync_directory(directory)
        self.seals_log.compact()
        written_ms = self.checkpoint.written_ms
        for candidate in self.candidates:
            self.looks.append(look_through(self.disk, candidate, sealed_ms=written_ms))
        seals = self._seals()
        if seals is not None:
            self.seals_log.append(seals, append_ms=written_ms)
        end = self.seals_log.end
        sealed = {seal.key for seal in self.seals}
        self.checkpoint = msgspec.structs.replace(
            self.checkpoint,
            segments=tuple(x for x in self.checkpoint.segments if x.key not in sealed),
            seals_file=end.file,
            seals_length=end.length,
            seals_count=end.count,
            seals_last_crc=end.last_crc,
            seals_needed=end.needed,
        )
        write_checkpoint(self.disk, self.identity.log_uuid, self.checkpoint)

    def _unlink(self) -> set[str]:
        """Delete what the checkpoint before this one lists; return the changed directories.

        A name that came back in a power cut must be listed still: so the directories are fsynced
        before this checkpoint, which does not list it. And what is deleted may be just the space
        that the rest needs.
        """
        for path in self.sweep.unlink:
            if self.disk.exists(path):
                self.disk.unlink(path)
        return {path.rpartition("/")[0] for path in self.sweep.unlink}

    def _seals(self) -> Seals | None:
        """Return all that goes into the seals log, None if nothing does."""
        sealed = self.seals
        parts = [columns_of_seals(sealed)] if sealed else []
        parts += [self.sweep.marks] if self.sweep.marks is not None else []
        return join_seals(parts) if parts else None


_DIRECTORIES = (
    "message_log",
    "schedule_log",
    "dispatch_log",
    SEALS_DIRECTORY,
    "checkpoint",
)


QUARANTINE_DIRECTORY = "quarantine"
"""Files that nothing names, of starts that found damage: `<directory>.<incarnation>.<name>`."""


class Store:
    """An open data directory.

    `schedule` and the checkpoint's preparation and end belong to one worker of the executor,
    `message_log` to one of its own; `CheckpointWork.write` to another.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        settings: StoreSettings,
        identity: Identity,
        message_log: MessageLog,
        schedule: ScheduleLog,
        seals_log: SealsLog,
        retention: Retention,
        checkpoint: Checkpoint,
        recovery: RecoverySummary,
    ) -> None:
        self.disk = disk
        self.settings = settings
        self.identity = identity
        self.message_log = message_log
        self.schedule = schedule
        self.seals_log = seals_log
        self.retention = retention
        self.checkpoint = checkpoint
        """The last durable one."""
        self.whole_checkpoint: Checkpoint | None = None
        """The same, if it covers all that was applied when it was taken down."""
        self.sealed = 0
        """Segments sealed since the start."""
        self.recovery = recovery
        self.replaces = aside.given_up_uuid(disk)
        """The storage uuid of what was put aside, in the place of which this one is."""
        self._open_end = message_log.next_sequence
        """Where the log ended when it was opened: what was applied before lies below it."""
        self._locks = contextlib.ExitStack()
        self._end_recovery()

    # -- opening -----------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        disk: Disk,
        settings: StoreSettings,
        *,
        chance: random.Random,
        now_ms: int,
        on_damage: Callable[[Damage], None],
    ) -> tuple["Store", RecoverySummary]:
        """Lock and recover a data directory, making it first if it is empty.

        Nothing beyond the checkpoint is applied: `apply_tail` does that, up to where the log is
        committed, before anything else is appended.

        Raises DataDirectoryError (NotPermittedError, NotRegularFileError), LogStateError,
        DamagedError, UnsupportedFormatError, StorageFullError or FatalDiskError; nothing was lost
        then.
        """
        with contextlib.ExitStack() as locks:
            disk.make_directory("")
            locks.enter_context(disk.lock("lock"))
            aside.finish(disk, _DIRECTORIES, chance=chance)
            identity = open_identity(
                disk,
                cluster=settings.cluster,
                group=settings.group,
                node_id=settings.node_id,
                chance=chance,
            )
            for name in _DIRECTORIES:
                disk.make_directory(name)
            disk.require_usable(("", *_DIRECTORIES), _files_of_logs(disk))
            for name in ("", *_DIRECTORIES):
                # A process that died between making a name and its fsync left a name that only the
                # page cache knows; nothing may rely on it before it is durable.
                disk.sync_directory(name)
            recovery = _Recovery(disk, settings, identity, now_ms, on_damage)
            store, summary = recovery.run()
            store.hold(locks.pop_all())
            return store, summary

    def hold(self, locks: contextlib.ExitStack) -> None:
        """Take over the directory's lock."""
        self._locks = locks

    # -- the tail of the log -----------------------------------------------------------------

    def apply_tail(self, committed: int, *, now_ms: int) -> None:
        """Apply what lies below `committed` and was not applied yet, and the rest of its batch.

        A batch is committed whole, and a checkpoint may end inside one: its facts are of several
        segments, of which some were filed. And have nobody send again what facts behind these tell
        of: they are durable here, whether they are ever committed or not. To be called after a
        start, and before a mastership of a node that has followed another; nothing is handed out
        meanwhile. What was done is in `recovery`. Raises StorageFullError, UnsupportedFormatError
        or FatalDiskError.
        """
        schedule, summary = self.schedule, self.recovery
        summary.replayed = summary.facts = summary.known = 0
        # What is written has its room already.
        schedule.keeps_free = False
        above = schedule.last_filed
        known: list[FactBlock] = []
        for batch in self.message_log.read(above + 1):
            if isinstance(batch, Damage):
                schedule.on_damage(batch)
                continue
            if batch.header.base_sequence >= committed:
                facts = facts_stated(batch.header, batch.columns)
                known += [] if facts is None else [facts]
                continue
            summary.replayed += batch.header.count
            facts = schedule.apply(batch, now_ms=now_ms, above=above).facts
            summary.facts += 0 if facts is None else len(facts)
            if schedule.pile_is_full:
                schedule.flush(now_ms)
            schedule.waiting.join_pile()
        schedule.last_filed = max(schedule.last_filed, committed - 1)
        if known:
            facts = join_facts(known)
            schedule.facts.know(facts)
            summary.known = len(facts)
        self._end_recovery()

    def _end_recovery(self) -> None:
        """Leave free from now on what others need."""
        self.schedule.keeps_free = True

    # -- epochs ------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, *, now_ms: int) -> None:
        """Begin an epoch, which must be above the log's last one; it is durable then, and filed.

        Only while nothing else uses the logs: what is committed and not filed would be passed over.
        Raises StorageFullError with nothing changed, or FatalDiskError.
        """
        self.schedule.apply(self.begin_epoch(epoch, now_ms=now_ms), now_ms=now_ms)

    def begin_epoch(self, epoch: int, *, now_ms: int) -> LogBatch:
        """Begin an epoch, which must be above the log's last one; return its batch, durable.

        It is to be applied when it is committed. Raises as `start_epoch` does.
        """
        return self.message_log.start_epoch(epoch, append_ms=now_ms)

    def epoch_starts(self) -> list[tuple[int, int]]:
        """Return each epoch that is known of the log, and its first sequence, ascending."""
        applied = {start.epoch: start.first_sequence for start in self.schedule.epochs}
        return sorted((dict(self.message_log.epoch_starts) | applied).items())

    # -- another node's log ------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Whether there is anything in the directory that came by a log."""
        return (
            self.message_log.next_sequence > 1
            or bool(self.checkpoint.segments)
            or bool(self.schedule.quarantined)
        )

    def adopt_log(self, log_uuid: UUID) -> None:
        """Give the directory, in which there is no record, to another log; and close it.

        It is as new when it is opened again; of what it had, the promise stays (which is the
        disk's) and the audit. Controls go: whoever tells them tells them again. A crash leaves the
        directory of either log, without records. Raises LogStateError with nothing changed, and the
        store open, if there are records; StorageFullError or FatalDiskError, and it is closed.
        """
        if self.has_records:
            raise LogStateError(
                f"this data directory has records of log {self.identity.log_uuid}, and cannot "
                f"become one of log {log_uuid}: make the node a new replica on an empty directory"
            )
        try:
            # Without a checkpoint there need not be a durable end, the other way round there must.
            for path in (CHECKPOINT_PATH, DURABLE_END_PATH, CONTROLS_PATH):
                if self.disk.exists(path):
                    self.disk.unlink(path)
                self.disk.sync_directory(path.rpartition("/")[0])
            adopt_identity(self.disk, self.identity, log_uuid)
        finally:
            self.close()

    def become(self, checkpoint: Checkpoint) -> None:
        """Have a directory without records be a copy, whose files are durable; and close it.

        A crash leaves it without records: the files are deleted by the next start. Raises
        StorageFullError or FatalDiskError.
        """
        assert not self.has_records, "a copy in a directory with records"
        try:
            write_checkpoint(self.disk, self.identity.log_uuid, checkpoint)
        finally:
            self.close()

    # -- a damaged directory (storage/node/aside.py) -----------------------------------------

    def give_up(self) -> None:
        """Mark all to be put aside by the next start, which begins anew as another disk; close it.

        Raises StorageFullError with nothing changed, or FatalDiskError; it is closed.
        """
        try:
            aside.give_up(self.disk, _DIRECTORIES)
        finally:
            self.close()

    def keep_aside(self) -> None:
        """Keep what was put aside where it is, since the copy is damaged too. FatalDiskError."""
        aside.keep(self.disk)

    def remove_aside(self) -> bool:
        """Delete what was put aside, if it is not to stay; say if it was. FatalDiskError."""
        return aside.remove(self.disk, _DIRECTORIES)

    # -- space -------------------------------------------------------------------------------

    def owed_bytes(self, rows: int, blob_bytes: int) -> int:
        """Return the bytes of disk still to be written for what is in the message_log.

        rows, blob_bytes: of what the schedule_log was not told of yet. May be called outside the
        lanes: what is on its way is counted in both places rather than in none.
        """
        schedule = self.schedule
        pending, unfiled = schedule.pending + schedule.dead_pending, schedule.waiting.weight
        return owed_for(pending + rows, unfiled + blob_bytes) + schedule.splits.largest_bytes

    # -- the checkpoint ----------------------------------------------------------------------

    @property
    def clock_known(self) -> ClockMark | None:
        """What the last durable checkpoint says of the clock; None if there was none."""
        last = self.checkpoint
        if isinstance(last.clock, ClockMark):
            return last.clock
        if not last.written_ms:
            return None
        return ClockMark(boot_id="", wall_ms=last.written_ms, boot_ms=0, held=False)

    @property
    def next_ms(self) -> int | None:
        """When a checkpoint is due though nothing happens, for its deletions; None if none is."""
        return self.retention.next_ms

    def needs_checkpoint(self, now_ms: int) -> bool:
        """Say whether a checkpoint would say anything new. May be called outside the lane."""
        schedule, last, next_ms = self.schedule, self.checkpoint, self.next_ms
        return (
            schedule.last_filed != last.sequence
            or schedule.files.names_changed
            or bool(schedule.retired)
            or (next_ms is not None and now_ms >= next_ms)
        )

    def prepare_checkpoint(
        self,
        now_ms: int,
        free_bytes_wanted: int | None = None,
        clock: ClockMark | None = None,
    ) -> CheckpointWork:
        """Write what waits in memory and take down what a checkpoint shall say.

        No segment is read, however many may be complete: `CheckpointWork.write` does that.
        With less free disk than `free_bytes_wanted`, what is kept for its age only goes as well.
        Without `clock` it says of the clock what the last one did.
        """
        schedule = self.schedule
        schedule.flush(now_ms)
        schedule.file_facts(now_ms)
        sequence = schedule.replayed_sequence()
        names_changed, schedule.files.names_changed = schedule.files.names_changed, False
        sweep = self._sweep(now_ms, free_bytes_wanted)
        checkpoint = Checkpoint(
            written_ms=now_ms,
            sequence=sequence,
            first_sequence=sweep.first_sequence,
            epochs=tuple(schedule.epochs),
            floor_minute=schedule.floor_minute,
            hour_mark=schedule.splits.hour_mark,
            day_mark=schedule.splits.day_mark,
            segments=tuple(schedule.states()),
            retired=tuple(sweep.retired),
            quarantined=tuple(schedule.quarantined),
            copied=self.checkpoint.copied,
            clock=self.checkpoint.clock if clock is None else clock,
        )
        return CheckpointWork(
            disk=self.disk,
            identity=self.identity,
            seals_log=self.seals_log,
            files=schedule.files.take_dirty(),
            sync_names=names_changed,
            candidates=self._candidates(sequence),
            sweep=sweep,
            checkpoint=checkpoint,
            is_whole=sequence == schedule.last_filed,
        )

    def _sweep(self, now_ms: int, free_bytes_wanted: int | None) -> Sweep:
        schedule = self.schedule
        retired, schedule.retired = schedule.retired, []
        sweep = self.retention.sweep(retired, now_ms=now_ms, free_bytes_wanted=free_bytes_wanted)
        schedule.quarantined += sweep.unreadable
        for damage in sweep.damages:
            schedule.on_damage(damage)
        return sweep

    def finish_checkpoint(self, work: CheckpointWork) -> None:
        """Forget what the checkpoint, durable now, allows to forget."""
        self.checkpoint = work.checkpoint
        self.whole_checkpoint = work.checkpoint if work.is_whole else None
        self._heed(work.looks)
        sealed = [seal.key for seal in work.seals]
        self.schedule.drop_sealed(sealed)
        self.sealed += len(sealed)
        self.seals_log.settle()
        self.retention.listed(work.sweep, work.checkpoint)
        self.schedule.files.close_clean()

    def abandon_checkpoint(self, work: CheckpointWork) -> None:
        """Take back a checkpoint that found no space; the next one does its work.

        What is known of segments by having read them stays known.
        """
        self._heed(work.looks)
        self.schedule.files.put_back_dirty(work.files)
        self.schedule.files.names_changed |= work.sync_names
        self.seals_log.take_back()

    def _candidates(self, sequence: int) -> list[Segment]:
        """Return copies of the segments that may be complete, none of which a replay would touch.

        A replay files what is above `sequence` again: rows of a sealed segment would be taken for
        new ones there, and so a row that waits in memory keeps its segment open. Nobody knows which
        rows wait before all is applied that was applied before the start.
        """
        schedule = self.schedule
        knows_all = schedule.last_filed + 1 >= self._open_end
        return [
            Segment.of_state(self.disk, self.identity.log_uuid, segment.state())
            for segment in (schedule.covered_segments() if knows_all else ())
            if segment.last_sequence <= sequence and not schedule.waits(segment.key)
        ]

    def _heed(self, looks: Sequence[Look]) -> None:
        """Take over what reading the candidates of a checkpoint came to."""
        schedule = self.schedule
        for look in looks:
            segment = schedule.segments.get(look.key.code)
            if segment is None:
                continue
            if look.surplus is not None:
                schedule.facts.note_surplus(segment, look.surplus)
            if look.seal is None:
                segment.facts_at_last_look = look.facts

    def can_free(self, free_bytes_wanted: int, now_ms: int) -> bool:
        """Say whether a checkpoint that wants so much free disk would help to get it."""
        missing = free_bytes_wanted > self.disk.free_bytes()[0]
        return missing and self.retention.can_free(now_ms)

    def close(self) -> None:
        """Give descriptors and the lock back; makes nothing durable."""
        self.schedule.close()
        self.seals_log.close()
        self.message_log.close()
        self._locks.close()


def give_up_unopened(disk: Disk) -> None:
    """Give up a directory that cannot be opened, as `Store.give_up` does one that is open.

    Raises what `Disk.lock` does, StorageFullError with nothing changed, or FatalDiskError.
    """
    with disk.lock("lock"):
        aside.give_up(disk, _DIRECTORIES)


def _segment_files(disk: Disk) -> tuple[list[str], Int64s]:
    """Return the paths of all segment files, and the codes of their keys."""
    found = [
        (f"{directory}/{name}", key.code)
        for directory in ("schedule_log", "dispatch_log")
        for name in disk.list(directory)
        if (key := key_of_name(name)) is not None
    ]
    return [path for path, _ in found], np.array([code for _, code in found], np.int64)


def _keys_of(paths: Iterable[str]) -> Iterator[SegmentKey]:
    """Yield the keys of those files that are segments in their place."""
    for path in paths:
        key = key_of_name(path.rpartition("/")[2])
        if key is not None:
            yield key


def _files_of_logs(disk: Disk) -> list[str]:
    """Return the paths of all files that have the name of one of ours."""
    found = _segment_files(disk)[0]
    for directory in (MESSAGE_LOG_DIRECTORY, SEALS_DIRECTORY):
        found += [file.path for file in list_log_files(disk, directory)]
    small = (IDENTITY_PATH, CHECKPOINT_PATH, DURABLE_END_PATH)
    return found + [path for path in small if disk.exists(path)]


def _lost_above(sequence: int, damages: Sequence[Damage]) -> bool:
    """Say whether records above this one are among what is damaged."""
    return any(
        damage.next_sequence is not None and damage.next_sequence > sequence + 1
        for damage in damages
    )


class _Recovery:
    """Brings a data directory to the state its logs prescribe."""

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        identity: Identity,
        now_ms: int,
        on_damage: Callable[[Damage], None],
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._identity = identity
        self._now_ms = now_ms
        self._damages: list[Damage] = []
        self._report = on_damage
        self._lost_records = False
        """Whether records are lost that the checkpoint does not cover."""

    def _on_damage(self, damage: Damage) -> None:
        self._damages.append(damage)
        self._report(damage)

    def run(self) -> tuple[Store, RecoverySummary]:
        """Recover; return the open store and what was done."""
        disk, settings, uuid = self._disk, self._settings, self._identity.log_uuid
        found = read_checkpoint(disk, uuid)
        checkpoint = found or Checkpoint()
        if found is None:
            self._require_young_logs()
        schedule = ScheduleLog(
            disk,
            uuid,
            limits=settings.limits,
            on_damage=self._on_damage,
        )
        # First all that may refuse to start: until then nothing derived is cut or deleted.
        self._require_known_formats(checkpoint)
        epochs = checkpoint.epochs
        message_log, report = MessageLog.recover(
            disk,
            log_uuid=uuid,
            checkpoint_sequence=checkpoint.sequence,
            known_sequence=checkpoint.last_known,
            had_checkpoint=found is not None,
            first_sequence=checkpoint.first_sequence,
            checkpoint_epoch=epochs[-1].epoch if epochs else 0,
            copied_end=checkpoint.copied_end,
            file_bytes_max=settings.limits.message_log_file_bytes_max,
        )
        for damage in report.damages:
            self._on_damage(damage)
        if found is None:
            # From now on one is always there: seals and retired files are never without it, nor is
            # it without the durable end that is there now.
            write_checkpoint(disk, uuid, checkpoint)
        summary = RecoverySummary(message_log=report, damages=self._damages)
        summary.had_checkpoint = found is not None
        self._lost_records = _lost_above(checkpoint.sequence, report.damages)
        self._restore_segments(schedule, checkpoint, summary)
        seals_log = self._restore_seals(schedule, checkpoint)
        self._remove_orphans(schedule, checkpoint, seals_log, summary)
        schedule.quarantined += summary.quarantined
        if message_log.next_sequence == 1 and settings.begins_new_log:
            message_log.start_epoch(1, append_ms=self._now_ms)
        store = Store(
            disk=disk,
            settings=settings,
            identity=self._identity,
            message_log=message_log,
            schedule=schedule,
            seals_log=seals_log,
            retention=Retention(
                disk,
                uuid,
                limits=settings.limits,
                message_log=message_log,
                seals_log=seals_log,
                checkpoint=checkpoint,
            ),
            checkpoint=checkpoint,
            recovery=summary,
        )
        return store, summary

    def _require_young_logs(self) -> None:
        """Without a checkpoint everything must be derivable from the very first record."""
        disk = self._disk
        files = list_log_files(disk, MESSAGE_LOG_DIRECTORY)
        young = files[0].first_sequence == 1 if files else not _segment_files(disk)[0]
        if not young or list_log_files(disk, SEALS_DIRECTORY):
            raise LogStateError(
                "the checkpoint is missing, and without it nobody can say which messages were "
                "delivered; start a node on an empty directory and send it what `delaywheel log "
                "salvage` finds pending here (--send), or restore the whole directory from a "
                "backup; an older checkpoint alone must never be put back"
            )

    def _require_known_formats(self, checkpoint: Checkpoint) -> None:
        """Raise UnsupportedFormatError or DataDirectoryError for segments that are not for us."""
        for state in checkpoint.segments:
            for path in (state.key.path, state.key.facts_path):
                # What is missing or damaged is reported by those who read it.
                with contextlib.suppress(DamagedError, OSError):
                    with contextlib.closing(self._disk.open_read(path)) as file:
                        head = file.read_at(0, HEADER_SIZE_MAX)
                    decode_file_header(head, path=path, log_uuid=self._identity.log_uuid)

    def _restore_segments(
        self, schedule: ScheduleLog, checkpoint: Checkpoint, summary: RecoverySummary
    ) -> None:
        schedule.floor_minute = checkpoint.floor_minute
        schedule.splits.hour_mark = checkpoint.hour_mark
        schedule.splits.day_mark = checkpoint.day_mark
        schedule.quarantined = list(checkpoint.quarantined)
        schedule.last_filed = checkpoint.sequence
        schedule.epochs = list(checkpoint.epochs)
        if checkpoint.epochs:
            schedule.epoch = checkpoint.epochs[-1].epoch
        for state in checkpoint.segments:
            segment = Segment.of_state(self._disk, self._identity.log_uuid, state)
            for file in (segment.file, segment.facts_file):
                if not file.length:
                    continue
                if not self._disk.exists(file.path):
                    self._on_damage(
                        Damage(
                            path=file.path, position=0, size=file.length, reason="the file is gone"
                        )
                    )
                    # Its place is kept: what is written later leaves a hole where rows are missing.
                    continue
                if self._lost_records and file is segment.file:
                    self._copy_aside(file, summary)
                file.cut()
                file.close()
            schedule.restore(segment)
        schedule.splits.find_largest()

    def _copy_aside(self, segment: ChainedFile, summary: RecoverySummary) -> None:
        """Keep a copy of a segment file that is about to be cut: lost records may be in it."""
        with contextlib.closing(self._disk.open_read(segment.path)) as opened:
            if opened.size() <= segment.length:
                return
            path = self._name_aside(segment.path)
            with contextlib.closing(self._disk.open(path, create=True)) as copy:
                position = next_data(opened, 0)
                while position is not None and (data := opened.read_at(position, PIECE)):
                    position += copy.write_at(position, [data])
                    position = next_data(opened, position)
                copy.sync()
        self._disk.sync_directory(QUARANTINE_DIRECTORY)
        summary.quarantined.append(path)

    def _name_aside(self, path: str) -> str:
        """Return where a file goes that is to stay but must not be used; nobody writes there."""
        directory, _, name = path.rpartition("/")
        self._disk.make_directory(QUARANTINE_DIRECTORY)
        self._disk.sync_directory("")
        return f"{QUARANTINE_DIRECTORY}/{directory}.{self._identity.incarnation}.{name}"

    def _restore_seals(self, schedule: ScheduleLog, checkpoint: Checkpoint) -> SealsLog:
        """Open the seals log; put into quarantine what it should tell of and does not."""
        log, damages = SealsLog.recover(
            self._disk,
            self._identity.log_uuid,
            end=seals_end(checkpoint),
            retired={file.path for file in checkpoint.retired},
            file_bytes_max=self._settings.limits.seals_file_bytes_max,
        )
        for damage in damages:
            self._on_damage(damage)
        if damages:
            # Which segments were sealed is not known any more: no file is taken for an orphan that
            # may be of one. A segment that may still get rows cannot be: its file is made again.
            unnamed = self._unnamed_files(schedule, checkpoint, log)
            schedule.quarantined += [
                path
                for path, key in zip(unnamed, _keys_of(unnamed), strict=True)
                if key.end <= checkpoint.floor_minute
            ]
        codes = [key.code for key in _keys_of(schedule.quarantined)]
        log.give_up(np.array(codes, np.int64))
        return log

    def _unnamed_files(
        self, schedule: ScheduleLog, checkpoint: Checkpoint, seals_log: SealsLog
    ) -> list[str]:
        """Return segment files that neither checkpoint nor seals nor quarantine tell of."""
        paths, codes = _segment_files(self._disk)
        named = np.array([state.key.code for state in checkpoint.segments], np.int64)
        is_named = np.isin(codes, np.concatenate([named, seals_log.live["code"]]))
        kept = {file.path for file in checkpoint.retired} | set(schedule.quarantined)
        unnamed = [paths[place] for place in np.flatnonzero(~is_named).tolist()]
        return [path for path in unnamed if path not in kept]

    def _remove_orphans(
        self,
        schedule: ScheduleLog,
        checkpoint: Checkpoint,
        seals_log: SealsLog,
        summary: RecoverySummary,
    ) -> None:
        """Delete files that nothing names: they were made after the checkpoint.

        Where anything is damaged no segment is deleted: it may hold rows of records that are lost.
        They are put aside for salvage.
        """
        retired = {file.path for file in checkpoint.retired}
        orphans = self._unnamed_files(schedule, checkpoint, seals_log)
        for state in checkpoint.segments:
            # Named by the checkpoint, but as a segment that had no such file yet.
            if not state.facts_length and self._disk.exists(state.key.facts_path):
                orphans.append(state.key.facts_path)
        for path in orphans:
            if self._damages:
                aside = self._name_aside(path)
                self._disk.rename(path, aside)
                summary.quarantined.append(aside)
            else:
                self._disk.unlink(path)
                summary.orphans.append(path)
        if summary.quarantined:
            self._disk.sync_directory(QUARANTINE_DIRECTORY)
        for file in list_log_files(self._disk, MESSAGE_LOG_DIRECTORY):
            if file.first_sequence < checkpoint.first_sequence and file.path not in retired:
                self._disk.unlink(file.path)
                summary.orphans.append(file.path)
