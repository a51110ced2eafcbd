"""The journal of the dispatch_log: facts in the order in which they became known, fsynced.

Files `dispatch_log/journal/<number of the first fact, 20 digits>.log` of FACTS batches, numbered
without gaps from 1. From here facts are filed by filed minute beside the schedule segments
(schedule_log.py); what a checkpoint says is filed, the journal may forget.

`dispatch_log/journal/durable_end` says up to which number facts were durable: what cannot be read
below it is damage, beyond it what a crash left of an append that nobody was told of. It is made
before the first file. Where it is lost, an end that cannot be read is damage: nobody knows which of
the two it is, and the worst that it can mean is that messages are sent once more.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import UUID

from storage.batch.batches import Damage
from storage.batch.chained_file import ChainedFile
from storage.batch.facts import FactBlock, fact_drafts, facts_of_columns, join_facts
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, LogKind, encode_file_header
from storage.batch.walk import walk_file
from storage.disk.disk import Disk, File, size_if_opened
from storage.disk.errors import DamagedError, FatalDiskError, LogStateError, StorageFullError
from storage.logs.numbered_log import list_log_files
from storage.state.durable_end import DURABLE_END_NAME, END_IS_GONE, DurableEnd, DurableEndFile

JOURNAL_DIRECTORY = "dispatch_log/journal"
JOURNAL_END_PATH = f"{JOURNAL_DIRECTORY}/{DURABLE_END_NAME}"

NO_JOURNAL_LEFT = "no file of the journal is left"
"""What is wrong where facts were filed: the newest file of the journal never leaves."""

_APPENDS_PER_END_SYNC = 64
"""After so many appends the durable end is made durable itself, about once a second under load. The
kernel does it within half a minute otherwise; a power cut before that makes recovery believe the
end before it, and take a flipped bit behind that for a torn write."""


def _path(first: int) -> str:
    return f"{JOURNAL_DIRECTORY}/{first:020d}.log"


def _unreadable(path: str, position: int) -> FatalDiskError:
    return FatalDiskError(
        f"{path}: the disk fails to read it at position {position}; start again, and if that does "
        "not help move the file away: the messages that its facts tell of are then sent again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecovery:
    """What opening the journal found."""

    facts: list[FactBlock] = field(default_factory=list)
    """The facts above the checkpoint's number, in order."""
    damages: list[Damage] = field(default_factory=list)
    """Bytes that are not as they were written, with good batches behind them."""
    torn: list[Damage] = field(default_factory=list)
    """Unreadable ends (and beginnings): what crashes left of appends that nobody was told of."""


class FactsJournal:
    """Appends facts and makes them durable.

    Invariant: every fact below `next_number` is durable in one of the files, and the durable end
    says so where the disk has space for it. There is no file without a durable end.
    """

    def __init__(self, disk: Disk, log_uuid: UUID, *, file_bytes_max: int) -> None:
        self._disk = disk
        self._log_uuid = log_uuid
        self._file_bytes_max = file_bytes_max
        self._file: ChainedFile | None = None
        self._files: list[int] = []
        self._end = DurableEndFile(
            disk, JOURNAL_DIRECTORY, log_uuid=log_uuid, kind=LogKind.JOURNAL_END
        )
        self._end_is_lost = False
        """Whether recovery found it gone, or not as it was written."""
        self._appends = 0
        self.next_number = 1

    def _header(self, first: int) -> FileHeader:
        return FileHeader(
            kind=LogKind.DISPATCH_JOURNAL, log_uuid=self._log_uuid, first_sequence=first
        )

    @classmethod
    def recover(
        cls, disk: Disk, log_uuid: UUID, *, filed_number: int, file_bytes_max: int
    ) -> tuple["FactsJournal", JournalRecovery]:
        """Open the journal; every readable batch counts, numbers at or below `filed_number` do not.

        Numbering goes on in a new file, so nothing is ever written behind damaged bytes.

        Raises FatalDiskError if the disk fails to read the newest file: what cannot be read there
        looks like a torn end, and its facts would be forgotten and their numbers given to others.
        """
        journal = cls(disk, log_uuid, file_bytes_max=file_bytes_max)
        disk.make_directory(JOURNAL_DIRECTORY)
        found = JournalRecovery()
        journal._files = [file.first_sequence for file in list_log_files(disk, JOURNAL_DIRECTORY)]
        end = journal._read_end(found, had_facts=bool(journal._files or filed_number))
        if journal._files and journal._files[0] > filed_number + 1:
            raise LogStateError(
                f"{JOURNAL_DIRECTORY} begins at fact {journal._files[0]}, but the checkpoint has "
                f"filed only {filed_number}: facts are missing and messages could be sent again; "
                "put back the journal files that were taken away, or send what `delaywheel log "
                "salvage` finds to a node on an empty directory (--send)"
            )
        known = filed_number + 1
        if filed_number and not journal._files:
            found.damages.append(Damage(JOURNAL_DIRECTORY, 0, 0, NO_JOURNAL_LEFT))
        last = journal._files[0] if journal._files else 1
        for first, following in zip_longest(journal._files, journal._files[1:]):
            if following is not None and following <= filed_number + 1:
                continue
            if first > known:
                reason = f"facts {known} to {first - 1} are missing"
                place = size_if_opened(disk, _path(last))
                found.damages.append(Damage(_path(last), place, 0, reason, None, known, first))
            last = first
            journal.next_number = max(journal.next_number, first)
            for number, block in journal._read_file(first, found, rewrite=following is None):
                journal.next_number = max(journal.next_number, number + len(block))
                if number + len(block) - 1 > filed_number:
                    begin = max(filed_number + 1 - number, 0)
                    found.facts.append(block.slice(begin, len(block)))
            known = max(known, journal.next_number)
        journal.next_number = max(journal.next_number, filed_number + 1)
        journal._look_at_end(end, found)
        return journal, found

    def _read_end(self, recovery: JournalRecovery, *, had_facts: bool) -> DurableEnd | None:
        end = None
        try:
            end = self._end.read()
            damage = self._end.doubt
        except DamagedError as error:
            damage = error
        if damage is None and end is None and had_facts:
            damage = DamagedError(path=JOURNAL_END_PATH, position=0, reason=END_IS_GONE)
        if damage is not None:
            self._end_is_lost = True
            recovery.damages.append(Damage(damage.path, damage.position, 0, damage.reason))
        return end

    def _look_at_end(self, end: DurableEnd | None, recovery: JournalRecovery) -> None:
        """Report facts that were durable and cannot be read; nothing is numbered like them."""
        if end is not None and end.next_sequence > self.next_number:
            first, after = self.next_number, end.next_sequence
            path = _path(end.file_sequence)
            torn = [damage for damage in recovery.torn if damage.path == path]
            position, size = (torn[0].position, torn[0].size) if torn else (0, 0)
            if torn:
                why = torn[0].reason
            else:
                gone = not self._disk.exists(path)
                why = "the file is gone" if gone else "the file ends before them"
            reason = f"facts {first} to {after - 1} were durable and cannot be read: {why}"
            recovery.torn[:] = [damage for damage in recovery.torn if damage not in torn]
            recovery.damages.append(Damage(path, position, size, reason, None, first, after))
            self.next_number = after
        if self._end_is_lost and self._files:
            path = _path(self._files[-1])
            torn = [damage for damage in recovery.torn if damage.path == path]
            recovery.torn[:] = [damage for damage in recovery.torn if damage not in torn]
            recovery.damages.extend(torn)
        # The facts are durable: no space for saying so is no reason to stop.
        with contextlib.suppress(StorageFullError):
            self._begin_end()
        self._end.sync()

    def _begin_end(self) -> None:
        """Say that the next fact begins a file; makes the durable end if it is not there."""
        self._end.write(
            DurableEnd(
                next_sequence=self.next_number,
                file_sequence=self.next_number,
                position=0,
                last_crc=0,
                epoch=0,
                floor_minute=0,
            )
        )

    def _read_file(
        self, first: int, recovery: JournalRecovery, *, rewrite: bool
    ) -> Iterator[tuple[int, FactBlock]]:
        """Yield number and facts of each good batch; make them durable with `rewrite`.

        What stood at the end when the process died may be in the page cache only, even if its fsync
        was tried: written again, it is known to be kept before anybody counts on it.
        """
        path, header = _path(first), self._header(first)
        try:
            opened = self._disk.open_read(path)
        except OSError as error:
            if rewrite:
                raise _unreadable(path, 0) from error
            recovery.damages.append(Damage(path, 0, 0, f"cannot be read: {error}"))
            return
        length = opened.size()
        opened.close()
        if length < FILE_HEADER_SIZE:
            return
        file = self._open_to_rewrite(path) if rewrite else None
        unreadable: list[tuple[str, int]] = []
        for found in walk_file(self._disk, path, length, header, unreadable=unreadable):
            if rewrite and unreadable:
                raise _unreadable(*unreadable[0])
            if isinstance(found, Damage):
                # The newest file's header, too, may be of its first append; it is written again.
                torn = found.position + found.size >= length or (rewrite and not found.position)
                (recovery.torn if torn else recovery.damages).append(found)
                continue
            if file is not None:
                try:
                    data = file.read_at(found.position, found.header.size)
                except OSError as error:
                    raise _unreadable(path, found.position) from error
                file.write_at(found.position, [data])
            yield found.header.base_sequence, facts_of_columns(found.columns)
        if file is not None:
            file.write_at(0, [encode_file_header(header)])
            file.sync()
            file.close()

    def _open_to_rewrite(self, path: str) -> File:
        try:
            return self._disk.open(path)
        except OSError as error:
            raise _unreadable(path, 0) from error

    def append(
        self, blocks: Sequence[FactBlock], *, append_ms: int, epoch: int
    ) -> tuple[FactBlock, int]:
        """Make facts durable; return them as one block, and the number of the last one.

        Raises StorageFullError with nothing kept, FatalDiskError.
        """
        facts = join_facts(blocks)
        file = self._open_file()
        drafts = fact_drafts(facts, first_number=self.next_number, epoch=epoch, append_ms=append_ms)
        file.append(drafts)
        file.file().sync()
        self.next_number += len(facts)
        end = DurableEnd(
            next_sequence=self.next_number,
            file_sequence=self._files[-1],
            position=file.length,
            last_crc=file.last_crc,
            epoch=epoch,
            floor_minute=0,
        )
        with contextlib.suppress(StorageFullError):
            self._end.write(end)
        self._appends += 1
        if self._appends % _APPENDS_PER_END_SYNC == 0:
            self._end.sync()
        return facts, self.next_number - 1

    def _open_file(self) -> ChainedFile:
        if self._file is not None and self._file.length < self._file_bytes_max:
            return self._file
        self._close_file()
        if not self._end.is_whole:
            # There was no space for it at the start.
            self._begin_end()
        first = self.next_number
        path = _path(first)
        if self._disk.exists(path):
            # An empty or torn file of this number holds no fact, or numbering would be past it.
            self._disk.unlink(path)
        file = ChainedFile(self._disk, path, self._header(first))
        file.file()
        self._disk.sync_directory(JOURNAL_DIRECTORY)
        if first not in self._files:
            self._files.append(first)
        # Only now: a file whose name is not durable yet must not be written to by the next append.
        self._file = file
        return file

    def forget_below(self, filed_number: int) -> list[str]:
        """Drop the files whose facts are all at or below `filed_number`; return their paths.

        The caller deletes them, later. The newest file stays.
        """
        gone = []
        while len(self._files) > 1 and self._files[1] <= filed_number + 1:
            gone.append(_path(self._files.pop(0)))
        return gone

    def close(self) -> None:
        """Give the descriptors back."""
        self._close_file()
        self._end.close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
