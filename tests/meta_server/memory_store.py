"""A store in memory, for simulations: it fails when told to, and forgets what was not committed.

A Medium is what survives; a MemoryStore is one process's way to it.
"""

import errno
from collections.abc import Sequence
from enum import Enum
from uuid import UUID

import msgspec

from meta_server.known import model
from meta_server.known.errors import StoreRefusedError, StoreUnavailableError
from meta_server.known.registry import Registry


def contents_of(registry: Registry) -> model.Contents:
    """Return all rows, as a store would."""
    rows = tuple(row for kind in model.KINDS for row in registry.of(kind).values())
    return model.Contents(rows=rows, timestamp_ms=registry.timestamp_ms)


class Fault(Enum):
    """How a commit fails."""

    LOST = "not kept"
    """Nothing of it is in the store."""
    KEPT = "kept"
    """All of it is in the store, but whoever asked does not learn that."""
    REFUSED = "refused"
    """The store cannot hold it."""


class Medium:
    """What is durable, whoever comes and goes."""

    def __init__(self, contents: model.Contents | None = None) -> None:
        self.uuid = UUID(int=1, version=4)
        self.tables = Registry(contents or model.Contents())
        self.audit: list[model.AuditRow] = []
        self.audit_numbers = 0
        self.is_down = False
        """Whether every call fails."""
        self.next_faults: list[Fault] = []
        """What becomes of the next commits, in order."""
        self.commits: list[tuple[model.Change, ...]] = []
        """Everything that was kept."""
        self.loads = 0

    @property
    def contents(self) -> model.Contents:
        """What a store that is opened now would load."""
        return contents_of(self.tables)


class MemoryStore:
    """The MetaStore of model.py on a Medium."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self.is_closed = False

    @property
    def uuid(self) -> UUID:
        """Which store it is."""
        return self._medium.uuid

    def load(self) -> model.Contents:
        """Return everything."""
        self._check_up()
        self._medium.loads += 1
        return self._medium.contents

    def commit(self, changes: Sequence[model.Change], /) -> None:
        """Keep all or nothing."""
        self._check_up()
        medium = self._medium
        fault = medium.next_faults.pop(0) if medium.next_faults else None
        if fault is Fault.LOST:
            raise StoreUnavailableError("told to lose it")
        if fault is Fault.REFUSED:
            raise StoreRefusedError("told to refuse it")
        medium.tables.apply(changes)
        medium.commits.append(tuple(changes))
        for change in changes:
            if isinstance(change, model.Audit):
                medium.audit_numbers += 1
                medium.audit.append(model.AuditRow(number=medium.audit_numbers, entry=change.entry))
            elif isinstance(change, model.ForgetAudit):
                before_ms = change.before_ms
                medium.audit = [row for row in medium.audit if row.entry.at_ms >= before_ms]
        if fault is Fault.KEPT:
            raise StoreUnavailableError("told to say that it is lost")

    def read_audit(self, *, before: int | None = None, limit: int) -> tuple[model.AuditRow, ...]:
        """Return entries, newest first."""
        self._check_up()
        rows = [row for row in self._medium.audit if before is None or row.number < before]
        return tuple(reversed(rows[-limit:]))

    def close(self) -> None:
        """Let go."""
        self.is_closed = True

    def _check_up(self) -> None:
        assert not self.is_closed
        if self._medium.is_down:
            raise StoreUnavailableError("told to be down")


class MemoryRecordFile:
    """The file beside a store; durable as the Medium is."""

    def __init__(self, contents: model.Contents | None = None) -> None:
        groups = () if contents is None else contents.of(model.DelayGroup)
        self.document: bytes | None = msgspec.json.encode({group.name: group for group in groups})
        self.is_full = False
        """True if nothing can be written."""

    def read(self) -> bytes | None:
        """Return what was written last."""
        return self.document

    def write(self, document: bytes, /) -> None:
        """Replace it."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "told to be full")
        self.document = document
