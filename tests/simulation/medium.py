"""The simulated medium: what is in the page cache, what is durable, and what a power cut leaves.

Each file has two images, the cached and the durable one, and the ordered changes between them. Each
directory has two tables of names and the ordered changes between those. An fsync brings the changes
of one file over; syncing a directory brings its names over; nothing else ever does. A power cut
draws which of the remaining changes reached the disk, and tallies what it did to them.
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Optional

from tests.simulation.faults import FaultPlan

SECTOR = 512
_CAPACITY_MIN = 4096

Change = tuple[int, bytes | None]
"""(position, bytes) of a write, (size, None) of a truncate."""


class Inode:
    """One file. `buffer[:size]` is the page cache; the rest of the buffer is zeros.

    The buffer is replaced, never resized, so that views handed out stay valid: they show the file
    as it was then, and may or may not show later writes, as a mapping does.
    """

    __slots__ = ("buffer", "diverged", "durable", "pending", "size", "view")

    def __init__(self) -> None:
        self.buffer = bytearray(_CAPACITY_MIN)
        self.view = memoryview(self.buffer)
        self.size = 0
        self.durable = bytearray()
        self.pending: list[Change] = []
        self.diverged = False  # a failed fsync dropped changes that the cache still shows

    def write(self, position: int, data: bytes) -> None:
        """Change the page cache."""
        end = position + len(data)
        if end > len(self.buffer):
            self._grow(end)
        self.buffer[position:end] = data
        self.size = max(self.size, end)
        self.pending.append((position, data))

    def truncate(self, size: int) -> None:
        """Cut or extend the page cache."""
        if size > len(self.buffer):
            self._grow(size)
        elif size < self.size:
            self.view[size : self.size] = bytes(self.size - size)
        self.size = size
        self.pending.append((size, None))

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the page cache."""
        return self.view[position : min(position + size, self.size)].tobytes()

    def map(self) -> memoryview:
        """Return the whole page cache without copying it."""
        return self.view[: self.size].toreadonly()

    def sync(self) -> None:
        """Bring every change over to the durable image."""
        for change in self.pending:
            _apply(self.durable, change)
        self.pending = []

    def fail_sync(
        self, chance: random.Random, plan: FaultPlan, tally: Counter[str] | None = None
    ) -> None:
        """Drop the changes, but for those that did get written, and call the pages clean."""
        losses = _Losses(chance, plan, tally)
        self.durable = losses.survivors(self.durable, self.pending, self.size)
        self.pending = []
        self.diverged = True
        if chance.random() < plan.sync_reverts:
            self._reload()

    def power_cut(
        self, chance: random.Random, plan: FaultPlan, tally: Counter[str] | None = None
    ) -> None:
        """Draw what reached the disk, and show that."""
        if self.pending:
            losses = _Losses(chance, plan, tally)
            self.durable = losses.survivors(self.durable, self.pending, self.size)
            self.pending = []
        elif not self.diverged:
            return
        self._reload()

    def misdirect(self, chance: random.Random) -> Change | None:
        """Take a write out of the changes as if it had gone elsewhere; the cache shows it still."""
        writes = [place for place, (_, data) in enumerate(self.pending) if data]
        if not writes:
            return None
        self.diverged = True
        return self.pending.pop(chance.choice(writes))

    def overwrite(self, position: int, data: bytes) -> None:
        """Damage what is durable; the page cache shows it where it has nothing newer."""
        for index, byte in enumerate(data, position):
            was = self.durable[index]
            self.durable[index] = byte
            if index < self.size and self.buffer[index] == was:
                self.buffer[index] = byte

    def _grow(self, size: int) -> None:
        buffer = bytearray(max(size, 2 * len(self.buffer)))
        buffer[: self.size] = self.view[: self.size]
        self.buffer = buffer
        self.view = memoryview(buffer)

    def _reload(self) -> None:
        self.size = len(self.durable)
        self.buffer = bytearray(max(self.size, _CAPACITY_MIN))
        self.buffer[: self.size] = self.durable
        self.view = memoryview(self.buffer)
        self.diverged = False


def _apply(image: bytearray, change: Change) -> None:
    position, data = change
    if len(image) < position:
        image.extend(bytes(position - len(image)))
    if data is None:
        del image[position:]
    else:
        image[position : position + len(data)] = data


class _Losses:
    """Draws what is on the disk when power is cut with changes of a file on their way to it."""

    def __init__(
        self, chance: random.Random, plan: FaultPlan, tally: Counter[str] | None = None
    ) -> None:
        self._chance = chance
        self._plan = plan
        self._tally: Counter[str] = Counter() if tally is None else tally

    def survivors(self, durable: bytearray, pending: list[Change], size: int) -> bytearray:
        """Return the durable image after the cut, of a file that had grown to `size`."""
        chance, plan = self._chance, self._plan
        image = bytearray(durable)
        if chance.random() >= plan.lose_writes:
            for change in pending:
                _apply(image, change)
        elif chance.random() < plan.reorder:
            self._keep_sectors(image, pending)
        else:
            self._keep_prefix(image, pending)
        if len(image) < size and chance.random() < plan.zero_tail:
            self._tally["zero-filled"] += 1
            image.extend(bytes(chance.randint(1, size - len(image))))
        if chance.random() < plan.flip_bits:
            self._flip_bits(image, durable, pending)
        return image

    def _keep_prefix(self, image: bytearray, pending: list[Change]) -> None:
        """Apply the first changes, and of the next one a part."""
        chance = self._chance
        kept = chance.randint(0, len(pending))
        for change in pending[:kept]:
            _apply(image, change)
        if kept == len(pending):
            return
        self._tally["unsynced writes lost"] += 1
        position, data = pending[kept]
        if data:
            end = position + chance.randint(0, len(data))
            if chance.random() >= self._plan.tear:
                end -= end % SECTOR
            if end > position:
                self._tally["write torn"] += 1
                _apply(image, (position, data[: end - position]))

    def _keep_sectors(self, image: bytearray, pending: list[Change]) -> None:
        """Apply changes sector by sector: each sector stays as it was at some one time."""
        chance, plan = self._chance, self._plan
        likely = chance.random()
        lost: set[int] = set()
        kept = False
        for position, data in pending:
            if data is None:
                if chance.random() < likely:
                    _apply(image, (position, None))
                    lost.clear()
                elif chance.random() >= plan.reorder_truncate:
                    return  # the blocks of what follows are only found through this truncate
                else:
                    self._tally["truncate lost"] += 1
                continue
            start = position
            end = position + len(data)
            while start < end:
                sector = start // SECTOR
                stop = min(end, (sector + 1) * SECTOR)
                if sector not in lost:
                    piece = data[start - position : stop - position]
                    if chance.random() < likely:
                        kept = True
                        _apply(image, (start, piece))
                    else:
                        lost.add(sector)
                        if chance.random() < plan.tear:
                            self._tally["write torn"] += 1
                            self._tear(image, start, piece)
                start = stop
        if lost:
            self._tally["unsynced writes reordered" if kept else "unsynced writes lost"] += 1

    def _tear(self, image: bytearray, start: int, piece: bytes) -> None:
        """Write the first or the last bytes of a piece of a sector."""
        at = self._chance.randint(0, len(piece))
        if self._chance.random() < 0.5:
            if at:
                _apply(image, (start, piece[:at]))
        elif at < len(piece):
            _apply(image, (start + at, piece[at:]))

    def _flip_bits(self, image: bytearray, durable: bytearray, pending: list[Change]) -> None:
        chance = self._chance
        writes = [(position, len(data)) for position, data in pending if data]
        if not writes:
            return
        for _ in range(chance.randint(1, 3)):
            position, size = chance.choice(writes)
            at = position + chance.randrange(size)
            bit = 1 << chance.randrange(8)
            if at < len(image) and (at >= len(durable) or image[at] != durable[at]):
                self._tally["bit flipped in unsynced bytes"] += 1
                image[at] ^= bit


class _Fate:
    """Shared by the two halves of a rename between directories: both happen, or neither."""

    __slots__ = ("directories", "kept")

    def __init__(self, source: "Directory", target: "Directory") -> None:
        self.directories = (source, target)
        self.kept: bool | None = None


class _NameChange:
    """One change of a directory's names: one removed, one added, or both at once."""

    __slots__ = ("added", "fate", "node", "removed")

    def __init__(
        self,
        *,
        removed: str | None = None,
        added: str | None = None,
        node: Optional["Node"] = None,
        fate: _Fate | None = None,
    ) -> None:
        self.removed = removed
        self.added = added
        self.node = node
        self.fate = fate

    def apply(self, names: dict[str, "Node"]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.node is not None:
            names[self.added] = self.node


class Directory:
    """Names: as the process sees them, and as they are on the disk."""

    __slots__ = ("_durable", "_journal", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self._durable: dict[str, Node] = {}
        self._journal: list[_NameChange] = []

    def add(self, name: str, node: "Node") -> None:
        """Enter a new name."""
        self.record(_NameChange(added=name, node=node))

    def remove(self, name: str) -> None:
        """Remove a name."""
        self.record(_NameChange(removed=name))

    def rename(self, name: str, target: "Directory", target_name: str) -> None:
        """Move a name here or to another directory, replacing what has the new name."""
        node = self.names[name]
        if target is self:
            self.record(_NameChange(removed=name, added=target_name, node=node))
        else:
            fate = _Fate(self, target)
            self.record(_NameChange(removed=name, fate=fate))
            target.record(_NameChange(added=target_name, node=node, fate=fate))

    def put(self, name: str, data: bytes | None) -> int:
        """Let a name have these bytes, or be gone, cached and durable; return by how much it grew.

        No change of it may be on its way.
        """
        before = self.names.pop(name, None)
        self._durable.pop(name, None)
        grown = -(before.size if isinstance(before, Inode) else 0)
        if data is not None:
            node = Inode()
            node.write(0, data)
            node.sync()
            self.names[name] = self._durable[name] = node
            grown += len(data)
        return grown

    def sync(self) -> None:
        """Bring every change over to the disk; other halves of renames come along."""
        self._commit(len(self._journal))

    def durable_files(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield path and file of all that is below by durable names, in the order of the names."""
        for name in sorted(self._durable):
            node = self._durable[name]
            if isinstance(node, Directory):
                yield from node.durable_files(f"{prefix}{name}/")
            else:
                yield prefix + name, node

    def files(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield path and file of all that is below, in the order of the names."""
        for name in sorted(self.names):
            node = self.names[name]
            if isinstance(node, Directory):
                yield from node.files(f"{prefix}{name}/")
            else:
                yield prefix + name, node

    def power_cut(
        self, chance: random.Random, plan: FaultPlan, tally: Counter[str] | None = None
    ) -> int:
        """Draw what reached the disk, for all that is below; return its bytes."""
        self._settle_names(chance, plan, Counter() if tally is None else tally)
        used = 0
        for node in self._durable.values():
            if isinstance(node, Directory):
                used += node.power_cut(chance, plan, tally)
            else:
                node.power_cut(chance, plan, tally)
                used += node.size
        return used

    def record(self, change: _NameChange) -> None:
        """Show a change, and remember that it is not durable."""
        change.apply(self.names)
        self._journal.append(change)

    def _commit(self, count: int) -> None:
        changes = self._journal[:count]
        del self._journal[:count]
        for change in changes:
            change.apply(self._durable)
            if change.fate is not None:
                for directory in change.fate.directories:
                    if directory is not self:
                        directory.commit_through(change.fate)

    def commit_through(self, fate: _Fate) -> None:
        """Make durable the other half of a rename, and what came before it."""
        for index, change in enumerate(self._journal):
            if change.fate is fate:
                self._commit(index + 1)
                return

    def _settle_names(self, chance: random.Random, plan: FaultPlan, tally: Counter[str]) -> None:
        changes = self._journal
        if changes:
            if chance.random() >= plan.lose_names:
                likely, prefix = 1.0, len(changes)
            elif chance.random() < plan.reorder_names:
                likely, prefix = chance.random(), len(changes)
            else:
                likely, prefix = 1.0, chance.randint(0, len(changes))
            lost: set[str | None] = set()
            for index, change in enumerate(changes):
                names = {change.removed, change.added} - {None}
                keep = index < prefix and chance.random() < likely and lost.isdisjoint(names)
                if change.fate is not None:
                    if change.fate.kept is None:
                        change.fate.kept = keep
                    keep = change.fate.kept
                if keep:
                    change.apply(self._durable)
                else:
                    tally["name lost"] += 1
                    lost |= names
            self._journal = []
        self.names = dict(self._durable)


Node = Inode | Directory
