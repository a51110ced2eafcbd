"""The logs on disk. Knows no socket and no event loop; all file work goes through a Disk."""

from storage.batches import BATCH_BYTES_MAX, Damage
from storage.checkpoint import ClockMark
from storage.columns import Columns, RecordKind
from storage.dead_reader import DeadFilter, DeadItems, DeadRow, DeadSearch, Place
from storage.disk import DirectoryDisk, Disk, File, make_private_directory
from storage.dispatch_log import FactsJournal
from storage.entries import ENTRY, Entries, SubjectTable
from storage.errors import (
    DamagedError,
    DataDirectoryError,
    FatalDiskError,
    LogStateError,
    NotPermittedError,
    NotRegularFileError,
    ReadFailedError,
    StorageError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.facts import FactBlock, Outcome
from storage.identity import Identity
from storage.item_formats import qmq_item_fault
from storage.item_reader import ItemReader, Items
from storage.loading import CloseJob, DrainJob, Job, Key, LoadJob, NumberSet, not_after
from storage.message_log import Append, MessageLog
from storage.provision import Provision
from storage.retention import RetentionRules
from storage.schedule_log import ScheduleLimits, ScheduleLog, SplitJob
from storage.sorting import each_once
from storage.spans import MINUTE_MS, SegmentKey, dead_minute
from storage.store import RecoverySummary, Store, StoreSettings

__all__ = [
    "BATCH_BYTES_MAX",
    "ENTRY",
    "MINUTE_MS",
    "Append",
    "ClockMark",
    "CloseJob",
    "Columns",
    "Damage",
    "DamagedError",
    "DataDirectoryError",
    "DeadFilter",
    "DeadItems",
    "DeadRow",
    "DeadSearch",
    "DirectoryDisk",
    "Disk",
    "DrainJob",
    "Entries",
    "FactBlock",
    "FactsJournal",
    "FatalDiskError",
    "File",
    "Identity",
    "ItemReader",
    "Items",
    "Job",
    "Key",
    "LoadJob",
    "LogStateError",
    "MessageLog",
    "NotPermittedError",
    "NotRegularFileError",
    "NumberSet",
    "Outcome",
    "Place",
    "Provision",
    "ReadFailedError",
    "RecordKind",
    "RecoverySummary",
    "RetentionRules",
    "ScheduleLimits",
    "ScheduleLog",
    "SegmentKey",
    "SplitJob",
    "StorageError",
    "StorageFullError",
    "Store",
    "StoreSettings",
    "SubjectTable",
    "UnsupportedFormatError",
    "dead_minute",
    "each_once",
    "make_private_directory",
    "not_after",
    "qmq_item_fault",
]
