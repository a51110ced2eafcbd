"""The newest record of each delay group, kept a second time beside the store.

A store may be set back: a backup is restored, or a database server fails over to an older copy.
Then two masters of one epoch could be elected. The file `records` in the data directory of the
meta server is written after the store and durable before anybody is told of a record. So a record
in it is never newer than what the store had, and never older than what anybody was told by this
meta server.

    the store has a newer record   the file takes it: the process died between the two
    the file has a newer record    the store takes it, in a version above all that was told
    the file lacks a group         nothing shows that its record is the newest: the nodes have to
                                   say so first (known/set_back.py)

Whoever restores a backup deletes the file: it is about the store that is gone. A file that cannot
be read counts as none.
"""

from collections.abc import Sequence
from typing import Final, Protocol
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from delay_protocol.nodes.registration import GroupRecord
from meta_server.known import model
from meta_server.known.errors import StoreUnavailableError
from storage.batch.file_header import LogKind
from storage.disk.disk import Disk
from storage.disk.errors import StorageError
from storage.state.document_file import DocumentFile

RECORDS_PATH: Final = "records"
"""Of the file in the data directory of a meta server."""
_BYTES_MAX: Final = 64 * 1024 * 1024
"""Far above all groups there may be. A larger file is refused, unread."""
VERSIONS_SKIPPED: Final = 1000
"""More versions than an older store may have told in an epoch that is known: a record that is taken
in place of the store's is so far above what is known, and whatever was told is older."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)
_DECODER: Final = msgspec.json.Decoder(dict[str, model.DelayGroup])


class RecordFile(Protocol):
    """Where the records are kept. Its calls block, and raise StorageError or OSError."""

    def read(self) -> bytes | None:
        """Return what was written last; None: nothing was."""

    def write(self, document: bytes, /) -> None:
        """Replace what is there; durable when this returns."""


def record_document(disk: Disk) -> DocumentFile:
    """Return the file in the data directory of a meta server."""
    return DocumentFile(
        disk, RECORDS_PATH, kind=LogKind.RECORDS, owner=UUID(int=0), bytes_max=_BYTES_MAX
    )


class RecordedStore:
    """A store, and the file with its newest records."""

    def __init__(self, store: model.MetaStore, file: RecordFile) -> None:
        """Read the file."""
        self._store = store
        self._file = file
        self._records = self._read()
        self.unproven: frozenset[str] = frozenset()
        """Groups of which the file had nothing when the store was loaded first."""
        self._is_loaded = False

    @property
    def uuid(self) -> UUID:
        """Which store it is."""
        return self._store.uuid

    def load(self) -> model.Contents:
        """Return everything, the store and the file brought up to each other."""
        contents = self._store.load()
        stored = {group.name: group for group in contents.of(model.DelayGroup)}
        if not self._is_loaded:
            self.unproven = frozenset(stored.keys() - self._records.keys())
        newer = [
            model.Save(
                replace(kept, record=raised(kept.record, stored.get(name))),
                over=stored[name].etag if name in stored else None,
            )
            for name, kept in self._records.items()
            if name not in stored or stored[name].pair < kept.pair
        ]
        if newer:
            for group in model.saved(newer, model.DelayGroup):
                _log.warning(
                    "the store was set back: it takes the record of the file beside it",
                    group=group.name,
                    epoch=group.record.epoch,
                    version=group.record.version,
                )
            self._store.commit(newer)
            contents = self._store.load()
        self._write(
            {
                group.name: group
                for group in contents.of(model.DelayGroup)
                if group.name in self._records or group.name not in self.unproven
            }
        )
        self._is_loaded = True
        return contents

    def commit(self, changes: Sequence[model.Change], /) -> None:
        """Make changes durable, and then what they say of records in the file."""
        self._store.commit(changes)
        gone = {group.name for group in model.removed(changes, model.DelayGroup)}
        records = {name: group for name, group in self._records.items() if name not in gone}
        records |= {group.name: group for group in model.saved(changes, model.DelayGroup)}
        self._write(records)

    def read_audit(self, *, before: int | None = None, limit: int) -> tuple[model.AuditRow, ...]:
        """Return up to `limit` entries, newest first, those with a lower number than `before`."""
        return self._store.read_audit(before=before, limit=limit)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _read(self) -> dict[str, model.DelayGroup]:
        try:
            document = self._file.read()
            return {} if document is None else _DECODER.decode(document)
        except (StorageError, OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.error(
                "the file of records cannot be read: each group waits until its nodes have said "
                "which record is the newest",
                reason=str(error),
            )
            return {}

    def _write(self, records: dict[str, model.DelayGroup]) -> None:
        """Write the file if it changes; raise StoreUnavailableError."""
        if records == self._records:
            return
        try:
            self._file.write(msgspec.json.encode(records))
        except (StorageError, OSError) as error:
            reason = f"the file of records beside the store cannot be written: {error}"
            raise StoreUnavailableError(reason) from error
        self._records = records


def raised(record: GroupRecord, stored: model.DelayGroup | None) -> GroupRecord:
    """Return a record as it takes the place of the store's: in a version that nobody was told."""
    version = max(record.version, 0 if stored is None else stored.record.version)
    return msgspec.structs.replace(record, version=version + VERSIONS_SKIPPED)
