"""The files that the worked examples of docs/formats/ show: one message, filed, delivered, sealed.

It is the message of message_log.md's example: sequence 2, due at NOW_MS, on subject `boarding`.
"""

from collections.abc import Sequence

import numpy as np

from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock, Outcome
from storage.batch.rows import RowBlock
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.schedule.seals import SEALS_DIRECTORY, Seal, SealsEnd, SealsLog, columns_of_seals
from storage.schedule.segment import Segment
from storage.state.checkpoint import (
    CHECKPOINT_PATH,
    Checkpoint,
    ClockMark,
    EpochStart,
    RetiredFile,
    write_checkpoint,
)
from tests.simulation.disk import SimDisk
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import LOG_UUID, NOW_MS, new_disk

KEY = SegmentKey(NOW_MS // MINUTE_MS, Span.MINUTE)
EXAMPLE_SEAL = Seal(
    key=KEY,
    rows=1,
    distinct=1,
    last_sequence=2,
    length=236,
    facts_length=184,
    digest=(0x0102030405060708, 0x090A0B0C0D0E0F10),
    facts_digest=(0x1112131415161718, 0x191A1B1C1D1E1F20),
    outcomes=(1, 0, 0, 0, 0, 0, 0),
    sealed_ms=NOW_MS + 120_000,
)


def segment_disk() -> SimDisk:
    """Return an empty disk with the directories of derived files."""
    disk = new_disk()
    for name in ("schedule_log", "dispatch_log", "seals", "checkpoint"):
        disk.make_directory(name)
    return disk


def rows_of(
    dues: list[int],
    table: SubjectTable,
    *,
    first: int = 2,
    subjects: list[bytes] | None = None,
    bodies: list[bytes] | None = None,
    floor_minute: int = 0,
) -> RowBlock:
    """Return rows with items that are whole; sequences ascend from `first`."""
    names = subjects or [b"boarding"] * len(dues)
    bodies = bodies or [b"\0\1k\0\1v"] * len(dues)
    items = [
        qmq_item(due, name, b"UA-%d" % (1521 + first + place), body)
        for place, (due, name, body) in enumerate(zip(dues, names, bodies, strict=True))
    ]
    due_ms = np.array(dues, np.int64)
    return RowBlock(
        sequence=np.arange(first, first + len(dues), dtype=np.int64),
        due_ms=due_ms,
        id_hash=np.full(len(dues), 2**63, np.uint64),
        size=np.array([len(item) for item in items], np.uint32),
        subject=table.numbers(names),
        origin=np.zeros(len(dues), np.uint8),
        minute=np.maximum(due_ms // MINUTE_MS, floor_minute),
        blob=b"".join(items),
    )


def delivered(
    sequences: list[int],
    *,
    minute: int | Sequence[int] = KEY.start,
    at_ms: int = NOW_MS + 3,
    outcome: Outcome = Outcome.DELIVERED,
    target: bytes = b"g1",
    first_record: int = 3,
) -> FactBlock:
    """Return one fact for each sequence; the records that state them follow each other.

    minute: of all of them, or of each.
    """
    count = len(sequences)
    return FactBlock(
        sequence=np.array(sequences, np.int64),
        minute=np.full(count, minute, np.uint32),
        at_ms=np.full(count, at_ms, np.int64),
        target=np.zeros(count, np.uint16),
        outcome=np.full(count, outcome, np.uint8),
        record=np.arange(first_record, first_record + count, dtype=np.int64),
        targets=[target],
    )


def example_segment(disk: SimDisk) -> Segment:
    """Write the segment and its facts, both of one row."""
    table = SubjectTable()
    segment = Segment.new(disk, LOG_UUID, KEY)
    segment.append(rows_of([NOW_MS], table), table, epoch=1, append_ms=NOW_MS + 45)
    segment.append_facts(delivered([2]), epoch=1, append_ms=NOW_MS + 3000)
    return segment


def example_files() -> dict[str, bytes]:
    """Return the bytes of every file that a page shows, by page."""
    disk = segment_disk()
    segment = example_segment(disk)
    seals = SealsLog(disk, LOG_UUID, end=SealsEnd())
    disk.sync_directory(SEALS_DIRECTORY)
    seals.append(columns_of_seals([EXAMPLE_SEAL]), append_ms=NOW_MS + 120_000)
    write_checkpoint(
        disk,
        LOG_UUID,
        Checkpoint(
            written_ms=NOW_MS + 3000,
            sequence=3,
            epochs=(EpochStart(1, 1),),
            floor_minute=KEY.start,
            hour_mark=KEY.start + 180,
            day_mark=KEY.start + 4320,
            segments=(segment.state(),),
            retired=(RetiredFile(path="schedule_log/20131127T0000Z.hour", since_ms=NOW_MS - 5),),
            clock=ClockMark(boot_id="example", wall_ms=NOW_MS + 3000, boot_ms=90_000, held=False),
        ),
    )
    files = disk.contents()
    return {
        "schedule_log.md": files[KEY.path],
        "dispatch_log.md": files[KEY.facts_path],
        "seals.md": files["seals/00000000000000000001.log"],
        "checkpoint.md": files[CHECKPOINT_PATH],
    }
