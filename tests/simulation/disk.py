"""A disk that keeps what was fsynced and may lose, tear, flip and refuse the rest.

`SimDisk` is one life's view of the medium: the node that opened it, and every file it opened, dies
with it (`power_cut`, `kill`, or a Trap that goes off in the middle of a call). What survives is
reached through `revive`, which returns the view for the next life:

    disk = SimDisk(chance)
    disk.arm(Trap(action=Action.POWER_CUT, kinds={"sync"}, skip=3))
    ...                            # some call raises PowerCut; from now on every call does
    disk = disk.revive()

Every operation is counted by kind and noted in the trace. All chance comes from the one Random.
"""

import contextlib
import errno
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NoReturn

from storage.disk.disk import Bytes, Disk, File
from storage.disk.errors import (
    DataDirectoryError,
    FatalDiskError,
    NotRegularFileError,
    OpenError,
    StorageFullError,
)
from tests.simulation.faults import (
    Action,
    Death,
    FaultPlan,
    Fired,
    Kill,
    PowerCut,
    Stage,
    Trap,
)
from tests.simulation.medium import SECTOR, Directory, Inode
from tests.simulation.trace import Trace

_DEATHS: dict[Action, type[Death]] = {Action.POWER_CUT: PowerCut, Action.KILL: Kill}
_OPENS = frozenset({"open", "open_read", "map"})
_READS = _OPENS | {"read", "size"}
_NAMES = frozenset({"create", "make_directory", "rename", "unlink", "sync_directory"})
_WRITES = frozenset({"write", "truncate"}) | _NAMES
_FALLIBLE = _READS | _WRITES | {"sync"}
_ALLOCATING = frozenset({"write", "create", "make_directory", "rename"})


class _Medium:
    """What all lives of a disk share."""

    def __init__(
        self, chance: random.Random, trace: Trace, capacity_bytes: int, label: str
    ) -> None:
        self.chance = chance
        self.trace = trace
        self.capacity_bytes = capacity_bytes
        self.label = label
        self.root = Directory()
        self.used = 0
        self.generation = 0
        self.operations = 0
        self.counts: dict[str, int] = {}
        self.fired: list[Fired] = []
        self.tally: Counter[str] = Counter()


class _Armed:
    """A trap, and how many matching operations it still lets pass."""

    __slots__ = ("remaining", "trap")

    def __init__(self, trap: Trap) -> None:
        self.trap = trap
        self.remaining = trap.skip


class SimFile:
    """A File on a SimDisk."""

    __slots__ = ("_closed", "_disk", "_inode", "_path", "_writable")

    def __init__(self, disk: "SimDisk", path: str, inode: Inode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False

    @property
    def path(self) -> str:
        """The path it was opened by."""
        return self._path

    @property
    def inode(self) -> Inode:
        """What it is a handle of."""
        return self._inode

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Write to the page cache."""
        disk = self._disk
        fired = disk.begin("write", self._path)
        data = b"".join(buffers)
        medium = disk.medium
        medium.trace.note(
            f"{medium.label} write {self._path} {position} {len(data)} {zlib.crc32(data):x}"
        )
        self._check_writable()
        part = data
        if fired is not None:
            part = disk.part_of_write(fired, data)
        inode = self._inode
        growth = position + len(part) - inode.size
        if growth > 0 and medium.used + growth > medium.capacity_bytes:
            room = inode.size + max(0, medium.capacity_bytes - medium.used) - position
            part = part[: max(0, room)]
            fired = fired or disk.note_fault(Action.FULL, Stage.INSIDE, "write", self._path)
        if part:
            if growth > 0:
                medium.used += max(0, position + len(part) - inode.size)
                disk.least_free_bytes = min(
                    disk.least_free_bytes, medium.capacity_bytes - medium.used
                )
            for start, end in disk.pieces_of_write(len(part)):
                inode.write(position + start, part[start:end])
        if fired is not None:
            disk.fail(fired)
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        """Read from the page cache."""
        disk = self._disk
        fired = disk.begin("read", self._path)
        if fired is not None:
            disk.fail(fired)
        self._check_open()
        data = self._inode.read(position, size)
        medium = disk.medium
        medium.trace.note(
            f"{medium.label} read {self._path} {position} {size} {zlib.crc32(data):x}"
        )
        return data

    def size(self) -> int:
        """Return the size in the page cache."""
        disk = self._disk
        fired = disk.begin("size", self._path)
        if fired is not None:
            disk.fail(fired)
        self._check_open()
        return self._inode.size

    def truncate(self, size: int) -> None:
        """Cut or extend the file in the page cache."""
        disk = self._disk
        fired = disk.begin("truncate", self._path)
        disk.note(f"truncate {self._path} {size}")
        self._check_writable()
        if fired is None or disk.takes_effect(fired):
            disk.medium.used += size - self._inode.size
            self._inode.truncate(size)
        if fired is not None:
            disk.fail(fired)

    def sync(self) -> None:
        """Make the file durable, or fail and lose what was to become so."""
        disk = self._disk
        fired = disk.begin("sync", self._path)
        disk.note(f"sync {self._path}")
        self._check_open()
        if fired is None:
            disk.take_time_to_sync()
            if not disk.lies():
                disk.misdirect(self._inode)
                self._inode.sync()
            return
        if fired.action in _DEATHS:
            if fired.stage is Stage.AFTER:
                self._inode.sync()
        else:
            medium = disk.medium
            self._inode.fail_sync(medium.chance, disk.plan, medium.tally)
            disk.medium.used = sum(inode.size for _, inode in disk.medium.root.files())
        disk.fail(fired)

    def close(self) -> None:
        """Close the handle; quiet on a dead one, for the sake of `finally` blocks."""
        if not self._closed:
            self._closed = True
            self._disk.open_files -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)

    def _check_writable(self) -> None:
        if self._closed or not self._writable:
            error = OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
            raise FatalDiskError(f"{self._path}: {error}") from error


class SimDisk:
    """A Disk in memory, for one life of a node."""

    def __init__(
        self,
        chance: random.Random,
        *,
        plan: FaultPlan | None = None,
        trace: Trace | None = None,
        capacity_bytes: int = 1 << 40,
        name: str = "disk",
    ) -> None:
        medium = _Medium(chance, trace or Trace(), capacity_bytes, name)
        self._begin_life(medium, plan or FaultPlan())

    def _begin_life(self, medium: _Medium, plan: FaultPlan) -> None:
        self.medium = medium
        self.label = ""
        """What is running: part of every trap's question."""
        self.open_files = 0
        """Handles not closed by this life."""
        self.on_death: Callable[[Death], None] | None = None
        """Called as soon as this life's disk is dead, before anybody else hears of it."""
        self.least_free_bytes = medium.capacity_bytes - medium.used
        """The least that was ever free in this life; negative where the disk was made smaller."""
        self.extra_s = 0.0
        """Virtual seconds that operations took beyond the ordinary; the executor takes them off."""
        self.plan = plan
        self._watchers: dict[str, list[Callable[[str, str, str], None]]] = {}
        self._death: Death | None = None
        self._armed: list[_Armed] = []
        self._locks: dict[str, Inode | Directory] = {}

    @property
    def plan(self) -> FaultPlan:
        """The chances in force."""
        return self._plan

    @plan.setter
    def plan(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._has_rates = plan.has_rates

    @property
    def trace(self) -> Trace:
        """Where operations are noted."""
        return self.medium.trace

    @property
    def death(self) -> Death | None:
        """How this life ended, if it did."""
        return self._death

    @property
    def generation(self) -> int:
        """How many lives the disk has had before this one."""
        return self.medium.generation

    @property
    def operations(self) -> int:
        """Operations of all lives."""
        return self.medium.operations

    @property
    def counts(self) -> dict[str, int]:
        """Operations of all lives by kind."""
        return self.medium.counts

    @property
    def fired(self) -> list[Fired]:
        """Faults of all lives, oldest first."""
        return self.medium.fired

    @property
    def tally(self) -> Counter[str]:
        """What befell the disk in all lives, by kind, beside `fired`."""
        return self.medium.tally

    @property
    def used_bytes(self) -> int:
        """What its files take."""
        return self.medium.used

    @property
    def capacity_bytes(self) -> int:
        """The size of the disk; may be changed at any time."""
        return self.medium.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int) -> None:
        self.medium.capacity_bytes = capacity_bytes

    # What a test does to the disk.

    def arm(self, *traps: Trap) -> None:
        """Set traps for this life."""
        self._armed += [_Armed(trap) for trap in traps]

    def watch(self, kinds: Collection[str], look: Callable[[str, str, str], None]) -> None:
        """Call `look(kind, path, label)` before each operation of these kinds, for this life."""
        for kind in kinds:
            self._watchers.setdefault(kind, []).append(look)

    def disarm(self) -> None:
        """Take all traps away."""
        self._armed = []

    @contextlib.contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        """Name what runs in this block; for code that no executor runs."""
        before = self.label
        self.label = label
        try:
            yield
        finally:
            self.label = before

    def power_cut(self, reason: str = "power cut") -> PowerCut:
        """End this life by a power cut: what was not fsynced may be lost."""
        death = PowerCut(reason)
        self._die(death)
        return death

    def kill(self, reason: str = "killed") -> Kill:
        """End this life as SIGKILL does, and the end of a process: the page cache survives."""
        death = Kill(reason)
        self._die(death)
        return death

    def revive(self, plan: FaultPlan | None = None) -> "SimDisk":
        """Return the disk for the next life. Ends this one like `kill` if it has not ended."""
        self.kill("revived")
        self.medium.generation += 1
        next_life = object.__new__(SimDisk)
        next_life._begin_life(self.medium, plan or self._plan)
        return next_life

    def contents(self, *, durable: bool = False) -> dict[str, bytes]:
        """Return all files by path, as the node sees them or as they are on the disk.

        For checkers: not an operation, and it works on a dead disk.
        """
        if durable:
            return {path: bytes(inode.durable) for path, inode in self.medium.root.durable_files()}
        return {path: inode.read(0, inode.size) for path, inode in self.medium.root.files()}

    def content(self, path: str, *, durable: bool = False) -> bytes | None:
        """Return one file as `contents` does; None if there is none."""
        if durable:
            found = (inode for name, inode in self.medium.root.durable_files() if name == path)
            return next((bytes(inode.durable) for inode in found), None)
        node = self._find(path)
        return node.read(0, node.size) if isinstance(node, Inode) else None

    def settled(self) -> set[str]:
        """Return the paths under which a power cut now would leave the files that are there."""
        durable = self.medium.root.durable_files()
        return {path for path, inode in durable if self._find(path) is inode}

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Overwrite durable bytes, as a failing medium or a misdirected write does."""
        node = self._find(path)
        if not isinstance(node, Inode) or position + len(data) > len(node.durable):
            raise ValueError(f"{path} has no {len(data)} durable bytes at {position}")
        node.overwrite(position, data)

    def put(self, path: str, data: bytes | None) -> None:
        """Replace a settled file as a whole, durably, by other bytes or, with None, by nothing."""
        directory, name = self._parent(path, "put")
        self.medium.used += directory.put(name, data)
        self.note(f"put {path}")

    def flip_bit(self, path: str | None = None) -> tuple[str, int]:
        """Flip one bit of what is durable, drawn over all files; return its path and position."""
        chance = self.medium.chance
        files = [
            (name, inode)
            for name, inode in self.medium.root.files()
            if inode.durable and path in {None, name}
        ]
        if not files:
            raise ValueError(f"nothing durable to damage in {path or 'any file'}")
        weights = [len(inode.durable) for _, inode in files]
        [(name, inode)] = chance.choices(files, weights)
        position = chance.randrange(len(inode.durable))
        inode.overwrite(position, bytes([inode.durable[position] ^ (1 << chance.randrange(8))]))
        self.note(f"flip {name} {position}")
        return name, position

    # The Disk protocol.

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open for reading and writing."""
        if create:
            fired = self.begin("create", path) or self._find_no_space("create", path)
            self.note(f"create {path}")
            directory, name = self._parent(path, "create")
            if name in directory.names:
                self._refuse("create", path, errno.EEXIST)
            inode = Inode()
            if fired is None or self.takes_effect(fired):
                directory.add(name, inode)
            if fired is not None:
                self.fail(fired)
        else:
            inode = self._open_inode("open", path)
        self.open_files += 1
        return SimFile(self, path, inode, writable=True)

    def open_read(self, path: str) -> SimFile:
        """Open for reading only."""
        inode = self._open_inode("open_read", path)
        self.open_files += 1
        return SimFile(self, path, inode, writable=False)

    def map(self, path: str) -> memoryview:
        """Return a view of the page cache."""
        return self._open_inode("map", path).map()

    def exists(self, path: str) -> bool:
        """Say whether the name is there."""
        self._begin_to_look("exists", path)
        return self._find(path) is not None

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        self._begin_to_look("list", directory)
        node = self._find(directory)
        return sorted(node.names) if isinstance(node, Directory) else []

    def require_usable(self, directories: Sequence[str], files: Sequence[str]) -> None:
        """Refuse what has the name of a file and is a directory; everything else is ours."""
        del directories
        for path in files:
            if isinstance(self._find(path), Directory):
                raise NotRegularFileError(f"{path} is a directory, not a regular file")

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        fired = self.begin("make_directory", path)
        if fired is None and self._find(path) is None:
            fired = self._find_no_space("make_directory", path)
        self.note(f"make_directory {path}")
        if fired is None or self.takes_effect(fired):
            node = self.medium.root
            for part in _parts(path):
                child = node.names.get(part)
                if child is None:
                    child = Directory()
                    node.add(part, child)
                elif not isinstance(child, Directory):
                    self._refuse("mkdir", path, errno.EEXIST)
                node = child
        if fired is not None:
            self.fail(fired)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`."""
        what = f"{source} -> {target}"
        fired = self.begin("rename", what) or self._find_no_space("rename", what)
        self.note(f"rename {what}")
        source_directory, source_name = self._parent(source, "rename")
        target_directory, target_name = self._parent(target, "rename")
        node = source_directory.names.get(source_name)
        replaced = target_directory.names.get(target_name)
        if node is None:
            self._refuse("rename", what, errno.ENOENT)
        if isinstance(replaced, Directory):
            self._refuse("rename", what, errno.EISDIR)
        if node is not replaced and (fired is None or self.takes_effect(fired)):
            self.medium.used -= replaced.size if replaced is not None else 0
            source_directory.rename(source_name, target_directory, target_name)
        if fired is not None:
            self.fail(fired)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        fired = self.begin("unlink", path)
        self.note(f"unlink {path}")
        directory, name = self._parent(path, "unlink")
        node = directory.names.get(name)
        if not isinstance(node, Inode):
            self._refuse("unlink", path, errno.ENOENT if node is None else errno.EISDIR)
        if fired is None or self.takes_effect(fired):
            self.medium.used -= node.size
            directory.remove(name)
        if fired is not None:
            self.fail(fired)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        fired = self.begin("sync_directory", path)
        self.note(f"sync_directory {path}")
        node = self._find(path)
        if not isinstance(node, Directory):
            self._refuse("fsync directory", path, errno.ENOENT)
        if fired is None:
            if not self.lies():
                node.sync()
            return
        if self.takes_effect(fired):
            node.sync()
        self.fail(fired)

    def sync_files(self, files: Sequence[File]) -> None:
        """Make several open files durable, one after another."""
        for file in files:
            file.sync()

    def prefetch(self, path: str) -> None:
        """Count the hint."""
        self._begin_to_look("prefetch", path)

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total bytes."""
        self._begin_to_look("free_bytes", "")
        capacity = self.medium.capacity_bytes
        return max(0, capacity - self.medium.used), capacity

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold the lock file; it is free again when this life ends."""
        self._begin_to_look("lock", path)
        directory, name = self._parent(path, "lock")
        if name not in directory.names:
            directory.add(name, Inode())
        if path in self._locks:
            raise DataDirectoryError(f"{path} is held by another process")
        self._locks[path] = directory.names[name]
        try:
            yield
        finally:
            self._locks.pop(path, None)

    def require_in_place(self, files: Sequence[File]) -> None:
        """Refuse where a lock or an open file is not what its path leads to."""
        self._begin_to_look("require_in_place", "")
        held = dict(self._locks)
        for file in files:
            assert isinstance(file, SimFile)
            held[file.path] = file.inode
        for path, node in held.items():
            if self._find(path) is not node:
                raise FatalDiskError(f"{path} is not what this process has opened")

    # What SimFile shares with this.

    def begin(self, kind: str, path: str) -> Fired | None:
        """Count an operation; return the fault that strikes it, if one does.

        Raises the death of a dead disk. A death that strikes before the operation is raised here.
        """
        if self._death is not None:
            raise type(self._death)(*self._death.args)
        medium = self.medium
        medium.operations += 1
        counts = medium.counts
        counts[kind] = counts.get(kind, 0) + 1
        if kind in self._watchers:
            for look in self._watchers[kind]:
                look(kind, path, self.label)
        if not self._armed and not self._has_rates:
            return None
        fired = self._spring(kind, path) or self._draw(kind, path)
        if fired is not None and fired.stage is Stage.BEFORE and fired.action in _DEATHS:
            self.fail(fired)
        return fired

    def note(self, text: str) -> None:
        """Add to the trace."""
        self.medium.trace.note(f"{self.medium.label} {text}")

    def note_fault(self, action: Action, stage: Stage, kind: str, path: str) -> Fired:
        """Record a fault that strikes now."""
        fired = Fired(action, stage, kind, path, self.label, self.medium.operations)
        self.medium.fired.append(fired)
        self.note(f"fault {action.value} {stage.value} {kind} {path}")
        return fired

    def part_of_write(self, fired: Fired, data: bytes) -> bytes:
        """Return the bytes that a struck write still writes."""
        if fired.stage is Stage.AFTER:
            return data
        if fired.stage is Stage.BEFORE:
            return b""
        return data[: self.medium.chance.randint(0, len(data))]

    def takes_effect(self, fired: Fired) -> bool:
        """Say whether an atomic operation that is struck happened nevertheless."""
        if fired.action not in _DEATHS:
            return False
        return fired.stage is Stage.AFTER or self.medium.chance.random() < 0.5

    def lies(self) -> bool:
        """Say whether an fsync only pretends."""
        return self._happens(self._plan.sync_lies, "fsync lied")

    def pieces_of_write(self, size: int) -> Sequence[tuple[int, int]]:
        """Return begin and end of the parts in which so many bytes are written."""
        if size < 2 or not self._happens(self._plan.short_write, "short write"):
            return [(0, size)]
        cut = self.medium.chance.randrange(1, size)
        return [(0, cut), (cut, size)]

    def take_time_to_sync(self) -> None:
        """Let an fsync take long, if it is one of those."""
        if self._happens(self._plan.slow_sync, "fsync slow"):
            self.extra_s += self.medium.chance.uniform(*self._plan.slow_sync_s)

    def misdirect(self, inode: Inode) -> None:
        """Let one of the writes that are to become durable go elsewhere, if it is to."""
        if not inode.pending or not self._happens(self._plan.misdirected, "write misdirected"):
            return
        chance = self.medium.chance
        change = inode.misdirect(chance)
        others = [
            other for _, other in self.medium.root.files() if other is not inode and other.durable
        ]
        if change is not None and change[1] and others:
            victim = chance.choice(others)
            position = chance.randrange(len(victim.durable)) // SECTOR * SECTOR
            victim.overwrite(position, change[1][: len(victim.durable) - position])

    def _happens(self, rate: float, what: str) -> bool:
        if rate <= 0 or self.medium.chance.random() >= rate:
            return False
        self.medium.tally[what] += 1
        return True

    def _find_no_space(self, kind: str, path: str) -> Fired | None:
        """Say whether a new name finds no place on a full disk; now and then there is still one."""
        medium = self.medium
        if medium.used < medium.capacity_bytes or medium.chance.random() < 0.5:
            return None
        return self.note_fault(Action.FULL, Stage.INSIDE, kind, path)

    def fail(self, fired: Fired) -> NoReturn:
        """Raise what the struck operation raises."""
        if fired.action in _DEATHS:
            where = f"{fired.stage.value} {fired.kind} of {fired.path}"
            death = _DEATHS[fired.action](
                f"{fired.action.value} {where} (operation {fired.operation}, {fired.label!r})"
            )
            self._die(death)
            raise death
        code = errno.EIO if fired.action is Action.EIO else errno.ENOSPC
        error = OSError(code, os.strerror(code), fired.path)
        if fired.kind in _OPENS:
            raise OpenError(f"{fired.kind} {fired.path}: {error}") from error
        if fired.kind in _READS:
            raise error
        if fired.action is Action.FULL and fired.kind in _ALLOCATING:
            raise StorageFullError(f"{fired.kind} {fired.path}: {error}") from error
        raise FatalDiskError(f"{fired.kind} {fired.path}: {error}") from error

    def _die(self, death: Death) -> None:
        if self._death is not None:
            return
        self._death = death
        self._armed = []
        self._locks = {}
        medium = self.medium
        self.note(f"death {type(death).__name__}")
        if isinstance(death, PowerCut):
            medium.used = medium.root.power_cut(medium.chance, self._plan, medium.tally)
        if self.on_death is not None:
            self.on_death(death)

    def _spring(self, kind: str, path: str) -> Fired | None:
        for index, armed in enumerate(self._armed):
            trap = armed.trap
            if trap.kinds is not None and kind not in trap.kinds:
                continue
            if not _can_strike(trap.action, kind):
                continue
            if trap.when is not None and not trap.when(kind, path, self.label):
                continue
            if armed.remaining:
                armed.remaining -= 1
                continue
            del self._armed[index]
            stage = trap.stage
            if stage is None:
                stage = self.medium.chance.choice((Stage.BEFORE, Stage.INSIDE, Stage.AFTER))
            if trap.action not in _DEATHS:
                stage = Stage.INSIDE
            return self.note_fault(trap.action, stage, kind, path)
        return None

    def _draw(self, kind: str, path: str) -> Fired | None:
        if not self._has_rates:
            return None
        plan = self._plan
        if kind == "sync":
            rate = plan.eio_sync
            full = plan.full_sync
        elif kind in _READS:
            rate, full = plan.eio_read if kind != "size" else 0.0, 0.0
        else:
            rate = plan.eio_write if kind in _WRITES else 0.0
            full = plan.full if kind in _ALLOCATING else 0.0
        if not rate and not full:
            return None
        drawn = self.medium.chance.random()
        if drawn < rate:
            return self.note_fault(Action.EIO, Stage.INSIDE, kind, path)
        if drawn < rate + full:
            return self.note_fault(Action.FULL, Stage.INSIDE, kind, path)
        return None

    def _begin_to_look(self, kind: str, path: str) -> None:
        fired = self.begin(kind, path)
        self.note(f"{kind} {path}")
        if fired is not None:
            self.fail(fired)

    def _open_inode(self, kind: str, path: str) -> Inode:
        self._begin_to_look(kind, path)
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _find(self, path: str) -> Inode | Directory | None:
        node: Inode | Directory | None = self.medium.root
        for part in _parts(path):
            if not isinstance(node, Directory):
                return None
            node = node.names.get(part)
        return node

    def _parent(self, path: str, what: str) -> tuple[Directory, str]:
        parts = _parts(path)
        node: Inode | Directory | None = self.medium.root
        for part in parts[:-1]:
            node = node.names.get(part) if isinstance(node, Directory) else None
        if not parts or not isinstance(node, Directory):
            self._refuse(what, path, errno.ENOENT)
        return node, parts[-1]

    def _refuse(self, what: str, path: str, code: int) -> NoReturn:
        error = OSError(code, os.strerror(code), path)
        raise FatalDiskError(f"{what} {path}: {error}") from error


def _can_strike(action: Action, kind: str) -> bool:
    if action is Action.EIO:
        return kind in _FALLIBLE
    if action is Action.FULL:
        return kind in _ALLOCATING or kind in {"sync", "truncate"}
    return True


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


def _conforms(disk: SimDisk) -> Disk:
    """Let the type checker hold SimDisk against the seam."""
    return disk
