"""The limits of a data directory: a section of a node's settings, which all parts take whole."""

from dataclasses import dataclass, field
from typing import Any, Final

MIB: Final = 1024 * 1024
DAY_MS: Final = 24 * 60 * 60 * 1000


def _constant(value: int) -> int:
    """Declare a field as no setting: tests alone choose another value."""
    declared: Any = field(default=value, metadata={"is_constant": True})
    return declared  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimits:
    """Size and retention of the files of the logs, checkpoints, and limits of the disk."""

    message_log_file_bytes_max: int = 256 * MIB
    """Bytes. At this size a file of the message_log is closed and the next one begins. Files are
    deleted as a whole: larger ones stay longer. The file system must have room for four."""

    minute_horizon_minutes: int = _constant(120)
    """Minutes. What is due within them lies in segments of one minute, from which it is sent."""

    hour_horizon_minutes: int = _constant(48 * 60)
    """Minutes. What is due within them lies in segments of one hour, what is due later in segments
    of one day. Longer horizons mean more open files and less rewriting."""

    gather_bytes_max: int = _constant(64 * MIB)
    """Bytes of messages for later segments that may wait in memory for more of their segment. More
    means fewer, larger writes; they are in the message_log already."""

    subjects_bytes_max: int = 128 * MIB
    """Bytes of memory for subjects: the name and 256 bytes for each subject that has messages due
    soon, in delivery or waiting to be written. With more subjects than fit, filing is slower, and
    the messages that are due last wait on disk."""

    open_files_max: int = 2048
    """Segment files that are open for appending at a time. At the limit the node syncs and closes
    those written since the last checkpoint, which costs an fsync. Together with
    listener.connections_max it should stay below the process's limit of open files."""

    filing_bytes_max: int = _constant(128 * MIB)
    """Bytes of durable messages that wait to be filed by time. Beyond it the next write waits, so
    that memory stays bounded when the disk is slow."""

    fact_sync_ms_max: int = 20
    """Milliseconds from a broker's confirmation until its fact is durable. After a crash in this
    time the message is delivered twice. A lower value means more fsyncs."""

    checkpoint_interval_ms: int = 3000
    """Milliseconds between checkpoints while the logs grow. A lower value means faster restarts and
    more fsyncs."""

    checkpoint_bytes: int = _constant(256 * MIB)
    """Bytes filed after which a checkpoint does not wait for the interval."""

    message_log_keep_ms: int = DAY_MS
    """Milliseconds for which the message_log keeps records that are filed and checkpointed, for
    readers of the log."""

    duplicate_window_ms: int = _constant(10 * 60 * 1000)
    """Milliseconds. So much of the message_log stays even when the disk is short: what a producer
    sends again is recognised by it. The server takes this and the next from its own settings."""

    duplicate_window_items: int = _constant(4_000_000)
    """Messages. Where so many came within the window above, they are enough."""

    segments_keep_ms: int = 7 * DAY_MS
    """Milliseconds for which a segment stays on disk after all of its messages have an outcome."""

    seals_keep_ms: int = 3 * 365 * DAY_MS
    """Milliseconds for which the seals log keeps the seal of a segment: the counts of its
    outcomes."""

    seals_file_bytes_max: int = _constant(MIB)
    """Bytes. Beyond this a file of the seals log is closed, written again more densely, and the
    next begun. Smaller ones make starts faster, and more files."""

    retired_grace_ms: int = 60 * 60 * 1000
    """Milliseconds for which a retired file stays for readers (Spark, copies), across restarts too.
    With little free disk it is deleted at once."""

    disk_free_bytes_min: int = 2048 * MIB
    """Bytes of the disk floor; the smaller of this and the share below counts, at least 1 MiB. The
    node refuses messages if free disk, without what accepted messages still need, is below the
    floor; delivery continues. Below 1.25 times the floor it deletes files that are only kept for
    their age, until 1.5 times the floor is free: segments first, oldest first, then the log."""

    disk_free_share_min: float = 0.05
    """Disk floor as a share of the file system, 0 to 1. The smaller of the two floors counts."""

    load_step_rows: int = _constant(50_000)
    """Rows that are loaded, or filed for delivery, in one step. Filing goes on between steps."""
