"""One node's data directory, opened: identity, the logs, recovery and the checkpoint.

data directory/
  lock, identity            who this is; one process at a time
  message_log/              what was accepted, and `durable_end`
  schedule_log/             by the time it is due, one file per segment
  dispatch_log/             what became of it, filed alike; `journal/` as it became known
  seals/                    complete segments
  checkpoint/               the manifest of all that is derived
"""

import contextlib
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from storage.batches import Damage
from storage.checkpoint import Checkpoint, RetiredFile, read_checkpoint, write_checkpoint
from storage.columns import RecordKind
from storage.disk import Disk, File
from storage.dispatch_log import JOURNAL_DIRECTORY, FactsJournal
from storage.entries import SubjectTable
from storage.errors import DamagedError, LogStateError, UnsupportedFormatError
from storage.facts import FactBlock, Outcome
from storage.file_header import HEADER_SIZE_MAX, decode_file_header
from storage.identity import Identity, open_identity
from storage.log_walk import list_log_files
from storage.message_log import MESSAGE_LOG_DIRECTORY, MessageLog, RecoveryReport
from storage.schedule_log import ScheduleLimits, ScheduleLog
from storage.seals import SEALS_DIRECTORY, SEALS_PATH, Seal, SealsLog, read_seals
from storage.segment import Segment, SegmentBatch
from storage.spans import key_of_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a node decides about its data directory."""

    cluster: str | None = None
    """Name of the cluster; None takes what the directory says."""

    group: str | None = None
    """Name of the group; fixed at the first start."""

    node_id: str | None = None
    """Name of the node; fixed at the first start."""

    schedule: ScheduleLimits = field(default_factory=ScheduleLimits)
    """How the schedule_log gathers and cuts time."""

    message_log_file_bytes_max: int = 256 * 1024 * 1024
    """A message_log file is closed and the next begun beyond this size."""

    journal_file_bytes_max: int = 64 * 1024 * 1024
    """A file of the facts journal is closed and the next begun beyond this size."""

    retired_grace_ms: int = 60 * 60 * 1000
    """How long files that nothing needs any more stay for those who read them."""


@dataclass(slots=True)
class RecoverySummary:
    """What opening a data directory found and did."""

    message_log: RecoveryReport
    had_checkpoint: bool = True
    """Whether there was one; if not, everything was derived from the first record on."""
    replayed: int = 0
    """Records replayed into the schedule_log."""
    facts: int = 0
    """Facts of the journal that were not filed yet."""
    orphans: list[str] = field(default_factory=list)
    """Files that nothing named, deleted."""
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
    seals: list[Seal]
    checkpoint: Checkpoint

    def write(self) -> None:
        """Make everything durable in the order that recovery relies on. May take its time."""
        self.disk.sync_files(self.files)
        if self.sync_names:
            self.disk.sync_directory("schedule_log")
            self.disk.sync_directory("dispatch_log")
        if self.seals:
            self.seals_log.append(self.seals, append_ms=self.checkpoint.written_ms)
        self.checkpoint = msgspec.structs.replace(
            self.checkpoint,
            seals_length=self.seals_log.length,
            seals_count=self.seals_log.count,
            seals_last_crc=self.seals_log.last_crc,
        )
        write_checkpoint(self.disk, self.identity.log_uuid, self.checkpoint)


_DIRECTORIES = (
    "message_log",
    "schedule_log",
    "dispatch_log",
    JOURNAL_DIRECTORY,
    SEALS_DIRECTORY,
    "checkpoint",
)


class Store:
    """An open data directory.

    `schedule` and the checkpoint's preparation and end belong to one lane of the executor,
    `message_log` and `journal` to one each; `CheckpointWork.write` to another.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        settings: StoreSettings,
        identity: Identity,
        message_log: MessageLog,
        journal: FactsJournal,
        schedule: ScheduleLog,
        seals_log: SealsLog,
        checkpoint: Checkpoint,
    ) -> None:
        self.disk = disk
        self.settings = settings
        self.identity = identity
        self.message_log = message_log
        self.journal = journal
        self.schedule = schedule
        self.seals_log = seals_log
        self.checkpoint = checkpoint
        """The last durable one."""
        self.fact_number = checkpoint.fact_number
        """Number of the last fact the schedule_log was told of."""
        self.sealed = 0
        """Segments sealed since the start."""
        self._retired = list(checkpoint.retired)
        self._locks = contextlib.ExitStack()

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
        """Lock, recover and replay a data directory, making it first if it is empty.

        Raises DataDirectoryError, LogStateError, DamagedError, UnsupportedFormatError,
        StorageFullError or FatalDiskError; nothing was lost then.
        """
        with contextlib.ExitStack() as locks:
            disk.make_directory("")
            locks.enter_context(disk.lock("lock"))
            identity = open_identity(
                disk,
                cluster=settings.cluster,
                group=settings.group,
                node_id=settings.node_id,
                chance=chance,
            )
            for name in _DIRECTORIES:
                disk.make_directory(name)
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

    # -- crossing off ------------------------------------------------------------------------

    def note_facts(self, facts: FactBlock, last_number: int) -> None:
        """Tell the schedule_log of durable facts, up to the journal's `last_number`."""
        self.schedule.note_facts(facts)
        self.fact_number = last_number

    # -- the checkpoint ----------------------------------------------------------------------

    def needs_checkpoint(self, now_ms: int) -> bool:
        """Say whether a checkpoint would say anything new. May be called outside the lane."""
        schedule, last = self.schedule, self.checkpoint
        grace_ms = self.settings.retired_grace_ms
        return (
            schedule.last_filed != last.sequence
            or self.fact_number != last.fact_number
            or schedule.names_changed
            or bool(schedule.retired)
            or any(now_ms - file.since_ms >= grace_ms for file in self._retired)
        )

    def prepare_checkpoint(self, now_ms: int) -> CheckpointWork:
        """Write what waits in memory and take down what a checkpoint shall say."""
        schedule = self.schedule
        schedule.flush(now_ms)
        if schedule.file_facts(now_ms):
            fact_number = self.fact_number
        else:
            fact_number = self.checkpoint.fact_number
        sequence = schedule.replayed_sequence()
        # A replay from below the last filed row would make a sealed segment anew.
        seals = self._find_seals() if sequence == schedule.last_filed else []
        sealed = {seal.key for seal in seals}
        names_changed, schedule.names_changed = schedule.names_changed, False
        self._retire(fact_number, now_ms)
        checkpoint = Checkpoint(
            written_ms=now_ms,
            sequence=sequence,
            fact_number=fact_number,
            floor_minute=schedule.floor_minute,
            hour_mark=schedule.hour_mark,
            day_mark=schedule.day_mark,
            segments=tuple(
                segment.state()
                for segment in schedule.segments.values()
                if segment.key not in sealed and segment.rows
            ),
            retired=tuple(self._retired),
            quarantined=tuple(schedule.quarantined),
        )
        return CheckpointWork(
            disk=self.disk,
            identity=self.identity,
            seals_log=self.seals_log,
            files=schedule.take_dirty(),
            sync_names=names_changed,
            seals=seals,
            checkpoint=checkpoint,
        )

    def _retire(self, fact_number: int, now_ms: int) -> None:
        paths = self.schedule.retired + self.journal.forget_below(fact_number)
        self.schedule.retired = []
        known = {file.path for file in self._retired}
        self._retired += [
            RetiredFile(path=path, since_ms=now_ms) for path in paths if path not in known
        ]

    def finish_checkpoint(self, work: CheckpointWork, now_ms: int) -> None:
        """Forget what the checkpoint, durable now, allows to forget."""
        self.checkpoint = work.checkpoint
        self.schedule.drop_sealed([seal.key for seal in work.seals])
        self.sealed += len(work.seals)
        kept = []
        durable = set(work.checkpoint.retired)
        for file in self._retired:
            over = file in durable and now_ms - file.since_ms >= self.settings.retired_grace_ms
            if not over:
                kept.append(file)
            elif self.disk.exists(file.path):
                self.disk.unlink(file.path)
        self._retired = kept
        self.schedule.close_clean_files()

    def abandon_checkpoint(self, work: CheckpointWork) -> None:
        """Take back a checkpoint that found no space; the next one does its work."""
        self.schedule.put_back_dirty(work.files)
        self.schedule.names_changed |= work.sync_names

    def _find_seals(self) -> list[Seal]:
        seals = []
        for segment in self.schedule.covered_segments():
            seal = self._seal_of(segment)
            if seal is None:
                segment.facts_at_last_look = segment.facts
            else:
                seals.append(seal)
        return seals

    def _seal_of(self, segment: Segment) -> Seal | None:
        """Return the seal of a segment whose facts cover its rows, None if they do not."""
        digests = [hashlib.blake2b(digest_size=16) for _ in _DIGESTED]
        sequences = [np.empty(0, np.int64)]
        for batch in segment.read_rows(self.disk, segment.file.length):
            if not isinstance(batch, SegmentBatch):
                return None
            sequences.append(batch.sequence)
            for name, digest in zip(_DIGESTED, digests, strict=True):
                digest.update(batch.columns.arrays[name].data)
        rows = np.concatenate(sequences)
        facts = [block for block in segment.read_facts(self.disk) if isinstance(block, FactBlock)]
        told = np.unique(np.concatenate([rows[:0], *(block.sequence for block in facts)]))
        if len(rows) != segment.rows or not np.isin(rows, told).all():
            return None
        outcomes = np.zeros(max(Outcome) + 1, np.int64)
        for block in facts:
            outcomes += np.bincount(block.outcome, minlength=len(outcomes))[: len(outcomes)]
        return Seal(
            key=segment.key,
            rows=len(rows),
            distinct=int(np.isin(told, rows).sum()),
            last_sequence=segment.last_sequence,
            length=segment.file.length,
            facts_length=segment.facts_file.length,
            digest=_digest(b"".join(digest.digest() for digest in digests)),
            facts_digest=_digest(told.tobytes()),
            outcomes=tuple(outcomes.tolist()[1:]),
        )

    def close(self) -> None:
        """Give descriptors and the lock back; makes nothing durable."""
        self.schedule.close()
        self.journal.close()
        self.seals_log.close()
        self.message_log.close()
        self._locks.close()


def _segment_paths(disk: Disk) -> list[str]:
    return [
        f"{directory}/{name}"
        for directory in ("schedule_log", "dispatch_log")
        for name in disk.list(directory)
        if key_of_name(name) is not None
    ]


_DIGESTED = ("sequence", "due_ms", "size", "id_hash")


def _digest(data: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


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
            # From now on one is always there: seals and retired files are never without it.
            write_checkpoint(disk, uuid, checkpoint)
        schedule = ScheduleLog(
            disk,
            uuid,
            limits=settings.schedule,
            subjects=SubjectTable(),
            on_damage=self._on_damage,
        )
        # First all that may refuse to start: until then nothing derived is cut or deleted.
        self._require_known_formats(checkpoint)
        journal, facts = FactsJournal.recover(
            disk,
            uuid,
            filed_number=checkpoint.fact_number,
            file_bytes_max=settings.journal_file_bytes_max,
        )
        for damage in facts.damages:
            self._on_damage(damage)
        known = [int(block.sequence.max()) for block in facts.facts]
        known += [state.last_sequence for state in checkpoint.segments]
        message_log, report = MessageLog.recover(
            disk,
            log_uuid=uuid,
            checkpoint_sequence=checkpoint.sequence,
            known_sequence=max(known, default=0),
            file_bytes_max=settings.message_log_file_bytes_max,
        )
        for damage in report.damages:
            self._on_damage(damage)
        self._restore_segments(schedule, checkpoint)
        seals_log, sealed = self._restore_seals(schedule, checkpoint)
        orphans = self._delete_orphans(schedule, checkpoint, sealed)
        if message_log.next_sequence == 1:
            message_log.start_epoch(1, append_ms=self._now_ms)
        summary = RecoverySummary(message_log=report, orphans=orphans, damages=self._damages)
        summary.had_checkpoint = found is not None
        summary.replayed = self._replay(message_log, schedule, checkpoint.sequence)
        store = Store(
            disk=disk,
            settings=settings,
            identity=self._identity,
            message_log=message_log,
            journal=journal,
            schedule=schedule,
            seals_log=seals_log,
            checkpoint=checkpoint,
        )
        for block in facts.facts:
            store.note_facts(block, journal.next_number - 1)
            summary.facts += len(block)
        return store, summary

    def _require_young_logs(self) -> None:
        """Without a checkpoint everything must be derivable from the very first record."""
        disk = self._disk
        files = list_log_files(disk, MESSAGE_LOG_DIRECTORY)
        young = files[0].first_sequence == 1 if files else not _segment_paths(disk)
        if not young or disk.exists(SEALS_PATH):
            raise LogStateError(
                "the checkpoint is missing, and without it nobody can say which messages were "
                "delivered; restore checkpoint/checkpoint from a backup or take this node's data "
                "from a replica"
            )

    def _require_known_formats(self, checkpoint: Checkpoint) -> None:
        """Raise UnsupportedFormatError or DataDirectoryError for segments that are not for us."""
        for state in checkpoint.segments:
            for path in (state.key.path, state.key.facts_path):
                # What is missing or damaged is reported by those who read it.
                with contextlib.suppress(DamagedError, OSError):
                    file = self._disk.open_read(path)
                    try:
                        head = file.read_at(0, HEADER_SIZE_MAX)
                    finally:
                        file.close()
                    decode_file_header(head, path=path, log_uuid=self._identity.log_uuid)

    def _restore_segments(self, schedule: ScheduleLog, checkpoint: Checkpoint) -> None:
        schedule.floor_minute = checkpoint.floor_minute
        schedule.hour_mark = checkpoint.hour_mark
        schedule.day_mark = checkpoint.day_mark
        schedule.quarantined = list(checkpoint.quarantined)
        schedule.last_filed = checkpoint.sequence
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
                file.cut()
                file.close()
            schedule.segments[segment.key.code] = segment
            schedule.pending += segment.pending

    def _restore_seals(
        self, schedule: ScheduleLog, checkpoint: Checkpoint
    ) -> tuple[SealsLog, set[str]]:
        """Open the seals log; return it and the names of the segments it tells of."""
        disk, uuid = self._disk, self._identity.log_uuid
        length, crc = checkpoint.seals_length, checkpoint.seals_last_crc
        names = set()
        damaged = False
        for seal in read_seals(disk, uuid, length):
            if isinstance(seal, Damage):
                damaged = True
                self._on_damage(seal)
            else:
                names.add(seal.key.name)
        if damaged:
            # Which segments were sealed is not known any more: no file is taken for an orphan.
            named = {state.key.name for state in checkpoint.segments} | names
            unknown = [path for path in _segment_paths(disk) if path.split("/")[1] not in named]
            kept = {file.path for file in checkpoint.retired} | set(schedule.quarantined)
            schedule.quarantined += [path for path in unknown if path not in kept]
        if not disk.exists(SEALS_PATH):
            length = crc = 0
        elif not length:
            disk.unlink(SEALS_PATH)
        else:
            file = disk.open(SEALS_PATH)
            if file.size() > length:
                file.truncate(length)
            file.close()
        log = SealsLog(disk, uuid, length=length, count=checkpoint.seals_count, crc=crc)
        return log, names

    def _delete_orphans(
        self, schedule: ScheduleLog, checkpoint: Checkpoint, sealed: set[str]
    ) -> list[str]:
        """Delete segment files that nothing names: they were made after the checkpoint."""
        named = {state.key.name for state in checkpoint.segments} | sealed
        kept = {file.path for file in checkpoint.retired} | set(schedule.quarantined)
        orphans = [
            path
            for path in _segment_paths(self._disk)
            if path.split("/")[1] not in named and path not in kept
        ]
        for state in checkpoint.segments:
            # Named by the checkpoint, but as a segment that had no such file yet.
            if not state.length and self._disk.exists(state.key.path):
                orphans.append(state.key.path)
            if not state.facts_length and self._disk.exists(state.key.facts_path):
                orphans.append(state.key.facts_path)
        for path in orphans:
            self._disk.unlink(path)
        return orphans

    def _replay(self, message_log: MessageLog, schedule: ScheduleLog, sequence: int) -> int:
        """File what the checkpoint does not cover; return the number of records."""
        replayed = 0
        for batch in message_log.read(sequence + 1):
            if isinstance(batch, Damage):
                self._on_damage(batch)
                continue
            header = batch.header
            replayed += header.count
            if header.kind in {RecordKind.EPOCH_START, RecordKind.FLOOR}:
                schedule.file_control(
                    sequence=header.base_sequence,
                    floor_minute=header.floor_minute,
                    epoch=header.epoch,
                    now_ms=self._now_ms,
                )
                continue
            if header.kind is not RecordKind.MESSAGE:
                raise UnsupportedFormatError(
                    path="message_log",
                    position=header.base_sequence,
                    reason=f"record kind {header.kind.name} at this sequence is not known here",
                )
            schedule.file(
                base_sequence=header.base_sequence,
                floor_minute=header.floor_minute,
                epoch=header.epoch,
                columns=batch.columns,
                blob=bytes(batch.blob),
                append_ms=self._now_ms,
                above=sequence,
            )
            if schedule.pile_is_full:
                schedule.flush(self._now_ms)
        schedule.last_filed = max(schedule.last_filed, message_log.next_sequence - 1)
        return replayed
