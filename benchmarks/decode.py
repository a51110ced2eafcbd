"""Logs to Arrow: messages a second and core, against reading the same bytes and their CRCs.

The files are made by storage's own writers. Times are CPU time of this process, so that neighbours
on the machine count as little as may be; the limit is measured in the same run, right before.
"""

import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa

from benchmarks.written_logs import append_messages, delivered, files_of
from storage.batch.batches import Damage
from storage.batch.entries import SubjectTable
from storage.batch.rows import RowBlock
from storage.disk.disk import DirectoryDisk, size_if_opened
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.logs.message_log import MessageLog
from storage.readers.arrow import ArrowReader, Kind
from storage.schedule.segment import Segment
from tests.storage.qmq_items import qmq_item

_LOG_UUID = UUID("6a0f3c52-9d1e-4b7a-8c35-2f1e0d9c8b7a")
_START_MINUTE = 29_000_000
_SUBJECTS = tuple(b"some.service.subject.%d" % number for number in range(20))
_BODY = bytes(100)
_SEGMENTS = 10
_ROUNDS = 3
_PIECE = 4 * 1024 * 1024

_ROWS = ["sequence", "due_ms", "size", "id_hash", "subject"]
_FACTS = ["sequence", "filed_minute", "at_ms", "target", "outcome"]
_RECORDS = ["sequence", "kind", "filed_minute", "due_ms", "size", "id_hash", "subject"]


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Write logs, decode them in every way, and yield the figures."""
    messages = int(2_000_000 * scale)
    yield "load of the machine before", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    for per_batch in (10_000, 200):
        where = directory / f"decode-{per_batch}"
        where.mkdir()
        logs = _Logs(where, messages, per_batch)
        yield f"{messages:,} messages, {per_batch:,} in a batch", f"{logs.mib():.0f} MiB"
        limit = _fastest(logs.read_all)
        yield "  read and CRC of every byte, the limit", _rate(messages, limit)
        both = _fastest(logs.rows_and_facts)
        yield "  schedule and dispatch, no blob columns", _rate(messages, both)
        for name, columns in (
            ("schedule, no blob columns", _ROWS),
            ("schedule with message_id", [*_ROWS, "message_id"]),
            ("schedule with payload, items checked", [*_ROWS, "message_id", "payload"]),
        ):
            taken = _fastest(partial(logs.rows, columns))
            yield f"  {name}", _rate(messages, taken)
        taken = _fastest(partial(logs.facts, _FACTS))
        yield "  dispatch", _rate(messages, taken)
        for name, columns in (
            ("message, no blob columns", _RECORDS),
            ("message with message_id", [*_RECORDS, "message_id"]),
            ("message with payload, items checked", [*_RECORDS, "message_id", "payload"]),
        ):
            taken = _fastest(partial(logs.records, columns))
            yield f"  {name}", _rate(messages, taken)
    yield "load of the machine after", f"{os.getloadavg()[0]:.1f}"


def _fastest(run: Callable[[], int]) -> float:
    """Return the least CPU seconds of some runs; the files are in the page cache."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return best


def _rate(messages: int, seconds: float) -> str:
    return f"{messages / seconds:,.0f} messages/s a core"


class _Logs:
    """The schedule_log, the facts and the message_log of so many messages."""

    def __init__(self, directory: Path, messages: int, per_batch: int) -> None:
        self._disk = DirectoryDisk(directory)
        for name in ("schedule_log", "dispatch_log", "message_log"):
            self._disk.make_directory(name)
        self._messages = messages
        self._per_batch = per_batch
        self._segments: list[Segment] = []
        self._log_files: list[tuple[str, int, int, int]] = []
        self._write_segments()
        self._write_log()

    def _write_segments(self) -> None:
        table = SubjectTable()
        for number in range(_SEGMENTS):
            key = SegmentKey(_START_MINUTE + number, Span.MINUTE)
            segment = Segment.new(self._disk, _LOG_UUID, key)
            end = (number + 1) * self._messages // _SEGMENTS
            for first in range(number * self._messages // _SEGMENTS, end, self._per_batch):
                count = min(self._per_batch, end - first)
                block = _block(first, count, key, table)
                segment.append(block, table, epoch=1, append_ms=0)
                segment.append_facts(delivered(block, block.due_ms + 3), epoch=1, append_ms=0)
            segment.close()
            self._segments.append(segment)

    def _write_log(self) -> None:
        table = SubjectTable()
        log, _ = MessageLog.recover(
            self._disk,
            log_uuid=_LOG_UUID,
            checkpoint_sequence=0,
            known_sequence=0,
            had_checkpoint=False,
        )
        log.start_epoch(1, append_ms=0)
        key = SegmentKey(_START_MINUTE, Span.MINUTE)
        for first in range(0, self._messages, self._per_batch):
            count = min(self._per_batch, self._messages - first)
            block = _block(first, count, key, table)
            append_messages(log, block, table, floor_minute=_START_MINUTE)
        for path, first, end in files_of(log):
            self._log_files.append((path, size_if_opened(self._disk, path), first, end))
        log.close()

    def _paths(self) -> list[str]:
        paths = [path for one in self._segments for path in (one.key.path, one.key.facts_path)]
        return paths + [path for path, _, _, _ in self._log_files]

    def mib(self) -> float:
        """Return the size of all files."""
        return sum(size_if_opened(self._disk, path) for path in self._paths()) / 2**20

    def read_all(self) -> int:
        """Read the segments and their facts, and take the CRC of every byte."""
        crc = 0
        for segment in self._segments:
            for path in (segment.key.path, segment.key.facts_path):
                file = self._disk.open_read(path)
                position = 0
                while data := file.read_at(position, _PIECE):
                    crc = zlib.crc32(data, crc)
                    position += len(data)
                file.close()
        return crc

    def rows(self, columns: list[str]) -> int:
        """Decode the schedule_log."""
        reader = ArrowReader(self._disk, _LOG_UUID, Kind.SCHEDULE, columns)
        return self._count(
            found
            for one in self._segments
            for found in reader.rows(one.key.path, length=one.file.length)
        )

    def rows_and_facts(self) -> int:
        """Decode both, without the columns that need blobs."""
        return self.rows(_ROWS) + self.facts(_FACTS)

    def facts(self, columns: list[str]) -> int:
        """Decode the dispatch_log."""
        reader = ArrowReader(self._disk, _LOG_UUID, Kind.DISPATCH, columns)
        return self._count(
            found
            for one in self._segments
            for found in reader.filed_facts(one.key.facts_path, length=one.facts_file.length)
        )

    def records(self, columns: list[str]) -> int:
        """Decode the message_log."""
        reader = ArrowReader(self._disk, _LOG_UUID, Kind.MESSAGE, columns)
        found = (
            found
            for path, length, first, end in self._log_files
            for found in reader.messages(
                path, length=length, first_sequence=first, next_sequence=end
            )
        )
        return self._count(found) - 1

    def _count(self, found: Iterable[pa.RecordBatch | Damage]) -> int:
        rows = 0
        for table in found:
            if isinstance(table, Damage):
                raise SystemExit(str(table.error()))
            rows += table.num_rows
        if rows not in {self._messages, self._messages + 1}:
            raise SystemExit(f"{rows} rows of {self._messages}")
        return rows


def _block(first: int, count: int, key: SegmentKey, table: SubjectTable) -> RowBlock:
    """Return rows of messages with ids like those of the client."""
    begin_ms = key.start * MINUTE_MS
    due_ms = begin_ms + np.arange(first, first + count, dtype=np.int64) % MINUTE_MS
    names = [_SUBJECTS[number % len(_SUBJECTS)] for number in range(first, first + count)]
    items = [
        qmq_item(due, name, b"260101.120000.10.0.0.1.4711.%d" % number, _BODY)
        for due, name, number in zip(
            due_ms.tolist(), names, range(first, first + count), strict=True
        )
    ]
    return RowBlock(
        sequence=np.arange(first + 1, first + count + 1, dtype=np.int64),
        due_ms=due_ms,
        id_hash=np.arange(count, dtype=np.uint64),
        size=np.array([len(item) for item in items], np.uint32),
        subject=table.numbers(names),
        minute=np.full(count, key.start, np.int64),
        blob=b"".join(items),
    )
