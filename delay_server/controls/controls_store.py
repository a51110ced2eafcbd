"""Stores the controls of this node durably, and the audit of changes.

The file `controls` (storage/state/controls_file.py) has the document, JSON of `Controls`. A change
is answered once the file is replaced, so an answered change survives any crash. Without a file
there never was a change.

The node does not start with a file that it cannot read: the rules are unknown then, and delivery
without them could flood the very broker that an operator protected. An operator who knows that no
rule is needed moves the file away. If the file is missing but the audit has changes, the node
reports damage, starts, and writes a document without rules.

The audit (storage/state/audit_file.py) has a line of JSON for each change, written and fsynced
before the change: who (the token's name), from where, when, and the rule before and after. A change
of dead letters has two lines: the request, before it, and the number changed, after it. At the
limit of files the oldest is deleted. A line that a crash has cut off belongs to a change that was
never answered. A bad line is skipped and reported as damage.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from delay_protocol.nodes.controls import Controls, ControlsError, decode_controls, encode_controls
from storage.batch.batches import Damage
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError, StorageFullError
from storage.state.audit_file import (
    AUDIT_DIRECTORY,
    audit_lines,
    audit_numbers,
    audit_path,
    encode_audit_line,
    read_audit_file,
    version_told,
)
from storage.state.controls_file import CONTROLS_PATH, controls_file
from storage.state.document_file import DOCUMENT_AT

REMEDY: Final = (
    f"restore {CONTROLS_PATH} from a backup, or move it away, start the node (nothing is paused or "
    f"limited then) and set the rules again: the audit in {AUDIT_DIRECTORY}/ lists them. A meta "
    "server sends its rules again by itself"
)
_GONE: Final = (
    "the file is missing, but the audit has version {} of it: nothing is paused or limited any "
    "more; set the rules again"
)
_DAMAGES_MAX: Final = 100
"""Damages that one look into the audit returns."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change, as the audit has it."""

    at_ms: int
    """Wall clock."""
    who: str
    """The token's name; `loopback` where none is needed."""
    peer: str
    """Where the request came from."""
    action: str
    """Such as `set subject`."""
    target: str
    """The subject, prefix or group; or which dead letters were meant."""
    count: int | None = None
    """How many dead letters were changed; None where none were meant, or before it was done."""
    version: int = 0
    """Of the controls after it, where they were changed."""
    before: msgspec.Raw = msgspec.Raw(b"null")
    """The rule that was, as JSON."""
    after: msgspec.Raw = msgspec.Raw(b"null")
    """The rule that is."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A look into the audit. items: the newest first; damages: what could not be read, all over."""

    items: list[AuditEntry]
    damages: list[Damage]


def read_controls(disk: Disk, log_uuid: UUID) -> Controls:
    """Return what the data directory says; raise DamagedError, or UnsupportedFormatError."""
    try:
        document = controls_file(disk, log_uuid).read()
    except DamagedError as error:
        raise _damaged(error.position, error.reason) from error
    if document is None:
        return Controls()
    try:
        return decode_controls(document)
    except ControlsError as error:
        raise _damaged(DOCUMENT_AT, str(error)) from error


def _damaged(position: int, reason: str) -> DamagedError:
    reason = f"{reason}; the rules that it had are unknown: {REMEDY}"
    return DamagedError(path=CONTROLS_PATH, position=position, reason=reason)


def write_controls(disk: Disk, log_uuid: UUID, controls: Controls) -> None:
    """Replace the controls; durable when this returns. StorageFullError, FatalDiskError."""
    controls_file(disk, log_uuid).write(encode_controls(controls))


class Audit:
    """The audit's files. All calls block, and are made one at a time."""

    def __init__(
        self,
        disk: Disk,
        *,
        file_bytes_max: int,
        files_max: int,
        on_damage: Callable[[Damage], None],
    ) -> None:
        """`on_damage` is called for every unreadable place, at every read of it."""
        self._disk = disk
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._on_damage = on_damage

    def append(self, entry: AuditEntry) -> None:
        """Make an entry durable. Raises StorageFullError or FatalDiskError."""
        line = encode_audit_line(entry)
        numbers = audit_numbers(self._disk)
        number = numbers[-1] if numbers else 0
        end = self._end_of(number) if number else None
        if end is None or (end and end + len(line) > self._file_bytes_max):
            number, end = number + 1, 0
            self._disk.make_directory(AUDIT_DIRECTORY)
            self._disk.open(audit_path(number), create=True).close()
            self._forget_oldest([*numbers, number])
        if not end:
            # Whoever made it may have died before its name was durable.
            self._disk.sync_directory(AUDIT_DIRECTORY)
            self._disk.sync_directory("")
        file = self._disk.open(audit_path(number))
        try:
            file.write_at(end, [line])
            file.sync()
        finally:
            file.close()

    def look(self, count: int) -> AuditPage:
        """Return the latest entries, at most so many, and what could not be read."""
        items: list[AuditEntry] = []
        damages: list[Damage] = []
        numbers = audit_numbers(self._disk)
        for number in reversed(numbers):
            found = self._entries_of(number, damages, is_last=number == numbers[-1])
            items += reversed(found[-(count - len(items)) :] if len(items) < count else [])
        for damage in damages:
            self._on_damage(damage)
        return AuditPage(items, damages[:_DAMAGES_MAX])

    def _entries_of(self, number: int, damages: list[Damage], *, is_last: bool) -> list[AuditEntry]:
        """Return the entries of a file; what is none is added to `damages`."""
        path = audit_path(number)
        found: list[AuditEntry] = []
        try:
            data = read_audit_file(self._disk, path)
        except OSError as error:
            damages.append(Damage(path, 0, 0, f"cannot be read: {error}"))
            return found
        for line in audit_lines(data):
            fault = None if line.is_whole else "the line fails its CRC"
            if line.is_whole:
                try:
                    found.append(msgspec.json.decode(line.text, type=AuditEntry))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    fault = str(error)
            if fault is not None and not (is_last and line.is_tail):
                damages.append(Damage(path, line.position, len(line.text), fault))
        return found

    def _forget_oldest(self, numbers: Sequence[int]) -> None:
        for number in numbers[: -self._files_max]:
            self._disk.unlink(audit_path(number))

    def _end_of(self, number: int) -> int | None:
        """Return where the next line of a file belongs; None if the file cannot be read.

        What a crash has left of a line is cut off: what follows is not to be read as its end.
        """
        try:
            data = read_audit_file(self._disk, audit_path(number))
        except OSError:
            return None
        end = data.rfind(b"\n") + 1
        file = self._disk.open(audit_path(number))
        try:
            if file.size() > end:
                file.truncate(end)
                file.sync()
        finally:
            file.close()
        return end


class ControlsStore:
    """The controls that hold at this node, its own or a meta server's, and the audit.

    Its calls block; they are made one at a time.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        log_uuid: UUID,
        audit: Audit,
        on_damage: Callable[[Damage], None],
    ) -> None:
        """Read the controls; raise DamagedError, or UnsupportedFormatError.

        `on_damage` hears of controls that are gone.
        """
        self._disk = disk
        self._log_uuid = log_uuid
        self.audit = audit
        # Whoever put the file there may have died before its name was durable.
        disk.sync_directory("")
        self.controls = read_controls(disk, log_uuid)
        """As they are durable."""
        version = 0 if disk.exists(CONTROLS_PATH) else version_told(disk)
        if version:
            on_damage(Damage(CONTROLS_PATH, 0, 0, _GONE.format(version)))
            with contextlib.suppress(StorageFullError):
                # Told once: from now on they are as somebody was told that they are.
                self._write(Controls(version=version + 1))

    def change(
        self,
        plan: Callable[[Controls], Controls],
        entry: Callable[[Controls, Controls], AuditEntry],
    ) -> Controls:
        """Make what `plan` makes of the controls durable, once `entry` of it is in the audit.

        Raises what `plan` does, StorageFullError (nothing has changed then) or FatalDiskError.
        """
        before = self.controls
        after = plan(before)
        if (after.groups, after.subjects) == (before.groups, before.subjects):
            return before
        self.audit.append(entry(before, after))
        self._write(after)
        return after

    def take(self, told: Controls, entry: AuditEntry) -> None:
        """Store controls of a meta server, once their `entry` is in the audit.

        Raises StorageFullError (nothing has changed then) or FatalDiskError.
        """
        if told != self.controls:
            self.audit.append(entry)
            self._write(told)

    def _write(self, controls: Controls) -> None:
        write_controls(self._disk, self._log_uuid, controls)
        self.controls = controls
