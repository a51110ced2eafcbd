"""Targets for dead letters as they lie on disk, and for the operator's files that storage reads."""

from typing import Final

import msgspec
import numpy as np

from delay_server.dead.reason import code_name, decode_reason
from storage.batch.batches import Damage, file_seed
from storage.batch.columns import RecordKind
from storage.batch.dead_rows import note_of_row
from storage.batch.file_header import FileHeader, LogKind, encode_file_header
from storage.batch.item_formats import qmq_item_fault
from storage.disk.errors import DataDirectoryError, UnsupportedFormatError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.readers.dead_reader import read_dead_item
from storage.schedule.dead_index import DeadIndex
from storage.schedule.segment import Segment
from tests.fuzz.memory_disk import MemoryDisk
from tests.fuzz.mending import log_image
from tests.fuzz.target import byte_at, target
from tests.storage.small_logs import LOG_UUID, NOW_MS

_DAY: Final = Span.DEAD.minutes
DEAD_KEY: Final = SegmentKey(NOW_MS // MINUTE_MS // _DAY * _DAY, Span.DEAD)
DEAD_HEADER: Final = FileHeader(
    kind=LogKind.SCHEDULE_LOG, log_uuid=LOG_UUID, span=Span.DEAD, start_minute=DEAD_KEY.start
)


@target(
    decoders=(DeadIndex.read, read_dead_item, note_of_row, decode_reason),
    packages=("storage", "delay_server.dead.reason"),
    # What is read ahead, and the facts of a segment.
    memory_base=4 * 1024 * 1024,
    size_max=2048,
    memory_per_byte=1500,
)
def dead_letters(data: bytes) -> None:
    """Each row is indexed once, but for those that are settled; its item is whole."""
    image = log_image(
        data[1:],
        level=byte_at(data, 0),
        header=encode_file_header(DEAD_HEADER),
        seed=file_seed(DEAD_HEADER),
        kinds=(RecordKind.ROWS,) * 7 + (RecordKind.FACTS,),
    )
    disk = MemoryDisk({DEAD_KEY.path: image})
    segment = Segment.new(disk, LOG_UUID, DEAD_KEY)
    segment.file.length = len(image)
    index, damages = DeadIndex(), list[Damage]()
    try:
        index.read(disk, segment, np.array([1], np.int64), damages.append)
    except (DataDirectoryError, UnsupportedFormatError):
        return
    assert 1 not in index.rows, "settled"
    for sequence, row in list(index.rows.items())[:20]:
        assert sequence == row.sequence
        found = read_dead_item(disk, row)
        assert (found.item is None or found.reason is None) is bool(found.fault)
        if found.item is not None:
            assert qmq_item_fault(found.item, row.due_ms) is None
        reason = decode_reason((found.reason or "").encode())
        assert reason is None or row.group == reason.group[:64]


@target(decoders=(decode_reason,), packages=("delay_server.dead.reason",))
def dead_reason(data: bytes) -> None:
    """The text of a reason is one of ours or none, and can be shown."""
    found = decode_reason(data)
    if found is not None:
        assert decode_reason(msgspec.json.encode(found)) == found
        assert code_name(found.code)
