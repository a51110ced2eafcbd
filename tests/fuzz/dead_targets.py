"""Targets for dead letters as they lie on disk, and for the operator's files that storage reads."""

from typing import Final

import msgspec
import numpy as np

from delay_server.controls.controls_store import AuditEntry
from delay_server.dead.dead_letters import Wanted
from delay_server.dead.reason import code_name, code_of, decode_reason
from storage.batch.batches import Damage, file_seed
from storage.batch.columns import RecordKind
from storage.batch.file_header import FileHeader, LogKind, encode_file_header
from storage.batch.item_formats import qmq_item_fault
from storage.disk.errors import DamagedError, UnsupportedFormatError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.readers.dead_reader import DeadItems, DeadRow, DeadSearch, Place
from storage.schedule.dead_log import DeadExtent
from storage.state.audit_file import audit_lines, audit_path, encode_audit_line, read_audit_file
from tests.fuzz.memory_disk import MemoryDisk
from tests.fuzz.mending import log_image
from tests.fuzz.target import attempt, byte_at, target
from tests.storage.small_logs import LOG_UUID, NOW_MS

_DAY: Final = Span.DEAD.minutes
DEAD_KEY: Final = SegmentKey(NOW_MS // MINUTE_MS // _DAY * _DAY, Span.DEAD)
DEAD_HEADER: Final = FileHeader(
    kind=LogKind.SCHEDULE_LOG, log_uuid=LOG_UUID, span=Span.DEAD, start_minute=DEAD_KEY.start
)


@target(
    decoders=(DeadSearch.step, DeadItems.read, decode_reason),
    packages=("storage", "delay_server.dead.reason", "delay_server.dead.dead_letters"),
    # What is read ahead, and the facts of a segment.
    memory_base=4 * 1024 * 1024,
    size_max=2048,
    memory_per_byte=1500,
)
def dead_letters(data: bytes) -> None:
    """Each row is found once, in order, however the search is divided, and its item is whole."""
    image = log_image(
        data[1:],
        level=byte_at(data, 0),
        header=encode_file_header(DEAD_HEADER),
        seed=file_seed(DEAD_HEADER),
        kinds=(RecordKind.DEAD_ROWS,) * 7 + (RecordKind.ROWS,),
    )
    disk = MemoryDisk({DEAD_KEY.path: image})
    extent = DeadExtent(DEAD_KEY, len(image), 0, (np.array([1], np.int64),))
    whole = attempt((UnsupportedFormatError,), _found, disk, extent, Wanted(), 10_000)
    if whole is None:
        return
    sequences = [row.sequence for row in whole]
    assert sequences == sorted(set(sequences))
    assert all(row.is_pending is (row.sequence != 1) for row in whole)
    assert _found(disk, extent, Wanted(), 1) == whole
    reader = DeadItems(disk, LOG_UUID)
    for row in whole[:20]:
        item = attempt(DamagedError, reader.read, row)
        assert item is None or len(item) == row.size
        if item is not None:
            qmq_item_fault(item, row.due_ms)
        reason = decode_reason(row.reason)
        if reason is not None:
            of_code = Wanted(code=reason.code, group=reason.group)
            assert row in _found(disk, extent, of_code, 10_000)
    for row in whole[:3]:
        assert row in _found(disk, extent, Wanted(sequences=[row.sequence]), 10_000)


def _found(disk: MemoryDisk, extent: DeadExtent, wanted: Wanted, at_once: int) -> list[DeadRow]:
    """Return all rows, taking up the search anew from its place after each step."""
    damages: list[Damage] = []
    rows: list[DeadRow] = []
    place = Place()
    for _ in range(10_000):
        search = DeadSearch(
            disk,
            LOG_UUID,
            [extent],
            wanted=wanted.filter(settled=True),
            after=place,
            on_damage=damages.append,
        )
        rows += search.step(at_once, 100_000)
        if search.is_done:
            return rows
        assert place < search.place
        place = search.place
    raise AssertionError("the search comes to no end")


@target(decoders=(decode_reason,), packages=("delay_server.dead.reason",))
def dead_reason(data: bytes) -> None:
    """The text of a reason is one of ours or none, and can be shown."""
    found = decode_reason(data)
    if found is not None:
        assert decode_reason(msgspec.json.encode(found)) == found
        shown = code_name(found.code)
        if 0 <= found.code < 2**31:
            assert code_of(shown) == found.code
    number = code_of(data.decode(errors="replace"))
    assert number is None or 0 <= number < 10**10


@target(decoders=(read_audit_file, audit_lines), packages=("storage.state.audit_file",))
def audit_file(data: bytes) -> None:
    """All bytes of an audit are told of once; a line that was written is found behind any line."""
    size = byte_at(data, 0)
    before, after = data[1 : 1 + size], data[1 + size :]
    entry = AuditEntry(
        at_ms=1, who=after[:50].decode(errors="replace"), peer="", action="", target=""
    )
    written = encode_audit_line(entry)
    for image in (data, before + b"\n" + written + after):
        disk = MemoryDisk({audit_path(1): image})
        lines = list(audit_lines(read_audit_file(disk, audit_path(1))))
        assert b"".join(line.text + b"\n" * (not line.is_tail) for line in lines) == image
        assert all(image[line.position :].startswith(line.text) for line in lines)
        assert image is data or written[:-1] in [line.text for line in lines if line.is_whole]
