"""What may be deleted, when, and in which order.

Three kinds of files leave while the server runs:

* those of the **message_log**, oldest first, when the durable checkpoint covers every record in
  them, they are beyond the window of duplicates, and they are old enough;
* both files of a **sealed segment**, when it was sealed long enough ago; never one that is not
  sealed, and never a quarantined file;
* those of the **seals log**, when they are old enough and no segment they tell of has files.

All of them, and files that splits leave behind, take the same way: a seal marks a segment as
deleted, durably; a checkpoint lists the files as *retired* and is durable; they are unlinked when
the grace is over, and their directories fsynced, before a checkpoint drops them from its list. So a
crash at any point leaves files that are named, or gone.

What a slave has still to copy stays as well, records of the message_log and retired files alike.

Below the floor of free disk the grace is over at once, and what is kept for its age or for a slave
only goes too, as far as needed: segments first, the oldest before the others, then the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from uuid import UUID

import numpy as np

from storage.batch.batches import BatchHeader, Damage
from storage.batch.file_header import FileHeader, LogKind
from storage.batch.walk import walk_headers
from storage.disk.disk import Disk, size_if_opened
from storage.disk.spans import key_of_code
from storage.limits import StorageLimits
from storage.logs.message_log import MessageLog
from storage.logs.numbered_log import LogFile
from storage.schedule.seals import LiveSeals, Seals, SealsLog, codes_of, marked_deleted
from storage.state.checkpoint import Checkpoint, RetiredFile

_SWEEP_MS = 10 * 60 * 1000
"""Segments that grow old within the same ten minutes go together: one mark, one checkpoint."""

_SEGMENTS_AT_ONCE = 2000
"""Segments marked by one checkpoint: a setting that was lowered does not make it huge."""

_RETIRED_MAX = 10_000
"""Retired files a checkpoint lists before no more segments join them."""


class Hold(Enum):
    """Why a file of the message_log has to stay."""

    REPLAY = "a restart would replay it"
    DUPLICATES = "it is within the window of duplicates"
    SLAVE = "a slave has still to copy it"
    AGE = "it is not old enough"


_CAN_GO = frozenset({None, Hold.SLAVE, Hold.AGE})
"""What is no reason below the floor of free disk."""


@dataclass(frozen=True, slots=True)
class AgedFile:
    """A closed file of the message_log.

    newest_ms: its last append; None if that is not known; messages_behind: those appended behind it
    since the log was opened.
    """

    path: str
    last_sequence: int
    newest_ms: int | None
    messages_behind: int


def hold_on(
    file: AgedFile,
    limits: StorageLimits,
    *,
    now_ms: int,
    replayed_sequence: int,
    copied_from: int | None = None,
) -> Hold | None:
    """Return why a file that is not the newest has to stay, the firmest reason first.

    replayed_sequence: what the durable checkpoint covers; copied_from: the first record that a
    slave has still to copy.
    """
    if file.last_sequence > replayed_sequence:
        return Hold.REPLAY
    age_ms = None if file.newest_ms is None else now_ms - file.newest_ms
    if file.messages_behind < limits.duplicate_window_items and (
        age_ms is None or age_ms < limits.duplicate_window_ms
    ):
        return Hold.DUPLICATES
    if copied_from is not None and file.last_sequence >= copied_from:
        return Hold.SLAVE
    if age_ms is None or age_ms < limits.message_log_keep_ms:
        return Hold.AGE
    return None


def leaves_at_ms(since_ms: int, keep_ms: int) -> int:
    """Return when something kept since then leaves, in step with its neighbours."""
    step = max(1, min(_SWEEP_MS, keep_ms // 64))
    return -(-(since_ms + keep_ms) // step) * step


@dataclass(slots=True)
class Sweep:
    """What one checkpoint deletes, and what it lists for deletion."""

    unlink: list[str] = field(default_factory=list)
    """Files that the last durable checkpoint lists and whose grace is over."""
    retired: list[RetiredFile] = field(default_factory=list)
    """What this checkpoint lists."""
    marks: Seals | None = None
    """The seals that mark segments as deleted."""
    first_sequence: int = 1
    """The message_log is kept from here on."""
    seals_files: list[str] = field(default_factory=list)
    """Files of the seals log among the retired."""
    unreadable: list[str] = field(default_factory=list)
    """Files of segments whose seals cannot be read: they are not deleted, now or later."""
    damages: list[Damage] = field(default_factory=list)


class Retention:
    """Finds what may leave a data directory; deletes nothing by itself.

    Belongs to the lane that prepares and finishes checkpoints, but for `next_ms`.
    """

    def __init__(
        self,
        disk: Disk,
        log_uuid: UUID,
        *,
        limits: StorageLimits,
        message_log: MessageLog,
        seals_log: SealsLog,
        checkpoint: Checkpoint,
    ) -> None:
        """Take over what the durable checkpoint lists."""
        self._disk = disk
        self._log_uuid = log_uuid
        self._limits = limits
        self._message_log = message_log
        self._seals_log = seals_log
        self._checkpoint = checkpoint
        self._unlisted: list[RetiredFile] = []
        """Retired since the last durable checkpoint, which does not list them."""
        self._begun_ms: dict[str, int | None] = {}
        """When the first batch of a file was appended, where that was looked up."""
        self.copied_from: int | None = None
        """The first record that a slave has still to copy; None if none has. May be set by others,
        as may be `is_copied`. What was held leaves with the next checkpoint that there is."""
        self.is_copied = False
        """Whether a slave copies files: those that are retired stay."""
        self.next_ms: int | None = None
        """When the next file leaves, None if none waits for its time."""
        self.look_ahead()

    # -- for a checkpoint --------------------------------------------------------------------

    def sweep(
        self, also: Sequence[str], *, now_ms: int, free_bytes_wanted: int | None = None
    ) -> Sweep:
        """Return what the next checkpoint is to delete, and to list.

        also: files that nothing needs since the last call; they are remembered until a durable
        checkpoint lists them. free_bytes_wanted: with less free disk than this, graces and ages
        are cut short.
        """
        missing = 0
        if free_bytes_wanted is not None:
            missing = free_bytes_wanted - self._disk.free_bytes()[0]
        sweep = Sweep()
        for file in self._checkpoint.retired:
            is_over = now_ms >= file.since_ms + self._limits.retired_grace_ms and not self.is_copied
            if missing > 0 or is_over:
                sweep.unlink.append(file.path)
            else:
                # A clock that was ahead when it was listed must not keep it for so much longer.
                sweep.retired.append(RetiredFile(file.path, min(file.since_ms, now_ms)))
        known = {file.path for file in (*self._checkpoint.retired, *self._unlisted)}
        self._unlisted += [RetiredFile(path, now_ms) for path in also if path not in known]
        sweep.retired += self._unlisted
        places, log_files = self._old_segments(now_ms), self._old_log_files(now_ms)
        if missing > 0:
            missing -= sum(map(self._size, sweep.unlink))
            self._sacrifice(missing, places, log_files, now_ms)
        paths = self._mark(sweep, places[: min(_SEGMENTS_AT_ONCE, self._room(sweep.retired))])
        paths += [file.path for file in log_files]
        sweep.first_sequence = self._message_log.first_sequence
        if log_files:
            sweep.first_sequence = log_files[-1].last_sequence + 1
        sweep.seals_files = self._old_seals_files(now_ms)
        paths += sweep.seals_files
        # A mark that was damaged is made again; its files are listed once.
        sweep.retired += [RetiredFile(path, now_ms) for path in paths if path not in known]
        return sweep

    def listed(self, sweep: Sweep, checkpoint: Checkpoint) -> None:
        """Note that the checkpoint with this sweep is durable."""
        self._checkpoint = checkpoint
        listed = set(sweep.retired)
        self._unlisted = [file for file in self._unlisted if file not in listed]
        self._message_log.drop_before(sweep.first_sequence)
        self._seals_log.forget(sweep.seals_files)
        for path in sweep.unlink:
            self._begun_ms.pop(path, None)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Find out when the next file leaves."""
        retired = () if self.is_copied else self._checkpoint.retired
        times = [file.since_ms + self._limits.retired_grace_ms for file in retired]
        live = self._seals_log.live
        if len(live) and self._room(self._checkpoint.retired):
            times.append(leaves_at_ms(int(live["sealed_ms"].min()), self._limits.segments_keep_ms))
        oldest = next(self._closed_log_files(), None)
        if oldest is not None and oldest.newest_ms is not None:
            keep_ms = self._limits.message_log_keep_ms
            hold = self._hold_on(oldest, oldest.newest_ms + keep_ms)
            if hold is Hold.DUPLICATES:
                keep_ms = self._limits.duplicate_window_ms
            if hold is not Hold.SLAVE and oldest.last_sequence <= self._checkpoint.sequence:
                times.append(oldest.newest_ms + keep_ms)
        seals_file_ms = self._seals_file_leaves_ms(0)
        if seals_file_ms is not None:
            times.append(seals_file_ms)
        self.next_ms = min(times, default=None)

    def can_free(self, now_ms: int) -> bool:
        """Say whether a sweep for want of free disk would delete or list anything."""
        oldest = next(self._closed_log_files(), None)
        is_free = oldest is not None and self._hold_on(oldest, now_ms) in _CAN_GO
        return is_free or bool(self._checkpoint.retired or len(self._seals_log.live))

    def _room(self, retired: Sequence[RetiredFile]) -> int:
        """Return how many segments may join the retired files."""
        return max(_RETIRED_MAX - len(retired), 0) // 2

    def _mark(self, sweep: Sweep, places: Sequence[int]) -> list[str]:
        """Have these segments marked as deleted; return their files."""
        if not places:
            return []
        chosen = self._seals_log.live[np.sort(np.array(places, np.intp))]
        seals, sweep.damages = self._seals_log.find(chosen["number"])
        readable = np.isin(chosen["code"], codes_of(seals))
        if readable.any():
            sweep.marks = marked_deleted(seals)
        if not readable.all():
            # Told once: all that cannot be read are given up now, whenever they were to go.
            live = self._seals_log.live
            found, _ = self._seals_log.find(live["number"])
            unreadable = live[~np.isin(live["code"], codes_of(found))]
            self._seals_log.give_up(unreadable["code"])
            sweep.unreadable = _paths_of(unreadable)
        return _paths_of(chosen[readable])

    # -- what is old enough ------------------------------------------------------------------

    def _old_segments(self, now_ms: int) -> list[int]:
        """Return the places of the segments that are old enough, oldest first."""
        sealed_ms, keep_ms = self._seals_log.live["sealed_ms"], self._limits.segments_keep_ms
        places = np.flatnonzero(sealed_ms <= now_ms - keep_ms)
        places = places[np.argsort(sealed_ms[places], kind="stable")]
        return [
            place
            for place in places[:_SEGMENTS_AT_ONCE].tolist()
            if leaves_at_ms(int(sealed_ms[place]), keep_ms) <= now_ms
        ]

    def _old_log_files(self, now_ms: int) -> list[AgedFile]:
        def is_free(file: AgedFile) -> bool:
            return self._hold_on(file, now_ms) is None

        return list(takewhile(is_free, self._closed_log_files()))

    def _closed_log_files(self) -> Iterator[AgedFile]:
        """Yield the files of the message_log but the newest, oldest first."""
        files = self._message_log.files()
        for place, file in enumerate(files[:-1]):
            newest_ms = self._newest_ms(files, place, LogKind.MESSAGE_LOG)
            following = files[place + 1].first_sequence
            behind = self._message_log.messages_from(following)
            yield AgedFile(file.path, following - 1, newest_ms, behind)

    def _hold_on(self, file: AgedFile, now_ms: int) -> Hold | None:
        return hold_on(
            file,
            self._limits,
            now_ms=now_ms,
            replayed_sequence=self._checkpoint.sequence,
            copied_from=self.copied_from,
        )

    def _old_seals_files(self, now_ms: int) -> list[str]:
        old: list[str] = []
        for place, file in enumerate(self._seals_log.files):
            leaves_ms = self._seals_file_leaves_ms(place)
            if leaves_ms is None or leaves_ms > now_ms:
                break
            old.append(file.path)
        return old

    def _seals_file_leaves_ms(self, place: int) -> int | None:
        """Return when a file of the seals log leaves; None while it has to stay."""
        files = self._seals_log.files
        if place + 1 >= len(files):
            return None
        if files[place + 1].first_sequence > self._checkpoint.seals_needed:
            return None
        newest_ms = self._newest_ms(files, place, LogKind.SEALS)
        if newest_ms is None:
            return None
        return leaves_at_ms(newest_ms, self._limits.seals_keep_ms)

    def _newest_ms(self, files: Sequence[LogFile], place: int, kind: LogKind) -> int | None:
        """Return an append time that is not before the last append to a file; None if unknown.

        It is that of the first batch behind the file.
        """
        for file in files[place + 1 :]:
            if file.path not in self._begun_ms:
                self._begun_ms[file.path] = self._find_begun_ms(file, kind)
            begun_ms = self._begun_ms[file.path]
            if begun_ms is not None:
                return begun_ms
        return None

    def _find_begun_ms(self, file: LogFile, kind: LogKind) -> int | None:
        header = FileHeader(kind=kind, log_uuid=self._log_uuid, first_sequence=file.first_sequence)
        length = size_if_opened(self._disk, file.path)
        found = next(walk_headers(self._disk, file.path, length, header), None)
        if isinstance(found, BatchHeader) and found.base_sequence == file.first_sequence:
            return found.append_ms
        return None

    # -- below the floor of free disk --------------------------------------------------------

    def _sacrifice(
        self, missing: int, places: list[int], log_files: list[AgedFile], now_ms: int
    ) -> None:
        """Add what is kept for its age only, until so many bytes are found.

        Segments go first, which are kept for longer, the oldest before the others.
        """
        live = self._seals_log.live
        missing -= sum(map(self._size, _paths_of(live[np.array(places, np.intp)])))
        missing -= sum(self._size(file.path) for file in log_files)
        oldest = np.argsort(live["sealed_ms"], kind="stable")[:_SEGMENTS_AT_ONCE]
        for place in oldest[~np.isin(oldest, places)].tolist():
            if missing <= 0:
                return
            places.append(place)
            missing -= int(live["length"][place] + live["facts_length"][place])
        # In order, whatever the clock was when they were written: the log has no gaps.
        for file in list(self._closed_log_files())[len(log_files) :]:
            if missing <= 0 or self._hold_on(file, now_ms) not in _CAN_GO:
                return
            log_files.append(file)
            missing -= self._size(file.path)

    def _size(self, path: str) -> int:
        return size_if_opened(self._disk, path)


def _paths_of(segments: LiveSeals) -> list[str]:
    """Return the files of these segments."""
    keys = [key_of_code(code) for code in segments["code"].tolist()]
    return [path for key in keys for path in (key.path, key.facts_path)]
