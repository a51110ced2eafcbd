"""Power loss for real processes: what they did to real files, and what a power cut leaves of it.

A process runs on real files with `disk_journal.c` preloaded, which writes down every change of a
file or name and every fsync, in order. After its death the journal is replayed into the model of a
disk that the simulation uses (`tests/simulation/medium.py`): page cache and durable image of each
file, names as seen and as durable. `cut_power` draws what survives, by sectors of 512 bytes, torn
and reordered, and `restore` makes the real directory look like that for the next process.

The journal is kept honest: replayed in full it must give exactly the directory that the process
left (`differences`), so a call that escaped the layer is noticed, not taken for durable.
"""

import os
import random
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from tests.simulation.faults import HARSH, FaultPlan
from tests.simulation.medium import Directory, Inode, Node

_SOURCE = Path(__file__).with_name("disk_journal.c")
_MAGIC = 0x4A4B5344
_RECORD = struct.Struct("<IIiiqII")


class Unavailable(Exception):  # noqa: N818 (a reason to skip, not an error)
    """Power loss cannot be tried on this machine; the text says why."""


class _Kind(IntEnum):
    OPEN = 1
    CLOSE = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    SYNC_FAILED = 7
    ALL_BEGIN = 8
    ALL_END = 9
    MKDIR = 10
    RENAME = 11
    UNLINK = 12
    DUPLICATE = 13


@dataclass(frozen=True, slots=True)
class _Record:
    kind: _Kind
    descriptor: int
    flags: int
    position: int
    path: str
    data: bytes


@dataclass(slots=True)
class Counts:
    """What one life did to its files."""

    writes: int = 0
    bytes_written: int = 0
    syncs: int = 0
    names: int = 0
    failed_ns: list[int] = field(default_factory=list)
    """When fsyncs failed, by the machine's monotonic clock."""
    under_way_ns: dict[int, int] = field(default_factory=dict)
    """Per descriptor when an fsync began that has not ended."""
    slowest_sync_s: float = 0.0


def build_layer(directory: Path) -> Path:
    """Compile the layer into a directory, try it, and return the library to preload.

    Raises Unavailable where there is no compiler, or a preloaded library is not used.
    """
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if sys.platform != "linux" or compiler is None:
        raise Unavailable(
            "power loss cannot be tried here: it needs Linux and a C compiler (cc, gcc or clang)"
        )
    library = directory / "disk_journal.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, check=False)
    if done.returncode:
        raise Unavailable(
            "power loss cannot be tried here: the compiler refuses disk_journal.c: "
            + done.stderr.decode(errors="replace")
        )
    root = directory / "probe"
    root.mkdir()
    layer = DiskLayer(library, root)
    program = "import os, sys; os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600))"
    subprocess.run(
        [sys.executable, "-c", program, str(root / "file")],
        env=os.environ | layer.environment(),
        check=True,
    )
    layer.replay()
    found = [name for name, _ in layer.disk.files()]
    shutil.rmtree(root)
    if found != ["file"]:
        raise Unavailable(
            "power loss cannot be tried here: preloaded libraries (LD_PRELOAD) are not used"
        )
    return library


class DiskLayer:
    """The disk below one directory, over all lives of the processes that use it.

    `root` must exist and be empty; its own name counts as durable, everything below it does not
    before it is made so.
    """

    def __init__(self, library: Path, root: Path) -> None:
        self.disk = Directory()
        self.tally: Counter[str] = Counter()
        """What power cuts did."""
        self._library = library
        self._root = root.resolve()
        self._journal = self._root.with_name(f"{self._root.name}.journal")

    def environment(self, fault: str | None = None) -> dict[str, str]:
        """Return what a process needs in its environment; `fault` as in disk_journal.c."""
        values = {
            "LD_PRELOAD": str(self._library),
            "DISK_JOURNAL_ROOT": str(self._root),
            "DISK_JOURNAL_FILE": str(self._journal),
        }
        return values | ({"DISK_JOURNAL_FAULT": fault} if fault else {})

    def replay(self) -> Counts:
        """Take over what the process that has ended did; return how much that was."""
        counts = Counts()
        if self._journal.exists():
            _Replay(self.disk, counts).run(self._journal.read_bytes())
            self._journal.unlink()
        return counts

    def differences(self) -> list[str]:
        """Return the paths that are not as the replayed journal says.

        A process that was killed may have been in the middle of one operation, which nobody heard
        the end of: one path, or the two of a rename.
        """
        expected = dict(self.disk.files())
        real = {str(path.relative_to(self._root)): path for path in _files(self._root)}
        different = set(expected).symmetric_difference(real)
        different |= {
            name
            for name, inode in expected.items()
            if name in real and real[name].read_bytes() != inode.map()
        }
        return sorted(different)

    def cut_power(self, chance: random.Random, plan: FaultPlan = HARSH) -> None:
        """Draw what of the un-fsynced changes survives; nothing else does."""
        self.disk.power_cut(chance, plan, self.tally)

    def restore(self) -> None:
        """Make the real directory what the disk has; touches only what differs."""
        _restore(self.disk, self._root)


class _Replay:
    """Applies the records of one life."""

    def __init__(self, disk: Directory, counts: Counts) -> None:
        self._disk = disk
        self._counts = counts
        self._open: dict[int, Node] = {}
        self._begun: dict[int, object] = {}
        """Per descriptor the last change that an fsync under way covers."""
        self._all_begun: list[tuple[Node, object]] = []

    def run(self, journal: bytes) -> None:
        for record in _records(journal):
            self._apply(record)

    def _apply(self, record: _Record) -> None:
        counts = self._counts
        match record.kind:
            case _Kind.OPEN:
                self._open[record.descriptor] = self._opened(record)
            case _Kind.DUPLICATE:
                self._open[record.descriptor] = self._open[record.flags]
            case _Kind.CLOSE:
                self._open.pop(record.descriptor, None)
            case _Kind.WRITE:
                counts.writes += 1
                counts.bytes_written += len(record.data)
                self._file(record).write(record.position, record.data)
            case _Kind.TRUNCATE:
                self._file(record).truncate(record.position)
            case _Kind.SYNC_BEGIN:
                counts.under_way_ns[record.descriptor] = record.position
                self._begun[record.descriptor] = _last_change(self._open[record.descriptor])
            case _Kind.SYNC_END:
                self._ended(record)
                mark = self._begun.pop(record.descriptor)
                _sync_through(self._open[record.descriptor], mark)
            case _Kind.ALL_BEGIN:
                counts.under_way_ns[record.descriptor] = record.position
                self._all_begun = [(node, _last_change(node)) for node in _nodes(self._disk)]
            case _Kind.ALL_END:
                self._ended(record)
                for node, mark in self._all_begun:
                    _sync_through(node, mark)
            case _Kind.SYNC_FAILED:
                counts.failed_ns.append(record.position)
                failed = _nodes(self._disk) if record.flags else [self._open[record.descriptor]]
                for node in failed:
                    if isinstance(node, Inode):
                        # Nothing of it was written, and nothing will be: its pages are clean now.
                        node.pending = []
                        node.diverged = True
            case _:
                counts.names += 1
                self._change_names(record)

    def _ended(self, record: _Record) -> None:
        counts = self._counts
        counts.syncs += 1
        took_s = (record.position - counts.under_way_ns.pop(record.descriptor)) / 1e9
        counts.slowest_sync_s = max(counts.slowest_sync_s, took_s)

    def _file(self, record: _Record) -> Inode:
        node = self._open[record.descriptor]
        assert isinstance(node, Inode)
        return node

    def _opened(self, record: _Record) -> Node:
        if not record.path.strip("/"):
            return self._disk
        directory, name = self._parent(record.path)
        node = directory.names.get(name)
        if node is None:
            assert record.flags & os.O_CREAT, f"{record.path} was opened but never made"
            node = Inode()
            self._counts.names += 1
            directory.add(name, node)
        elif record.flags & os.O_TRUNC and isinstance(node, Inode):
            node.truncate(0)
        return node

    def _change_names(self, record: _Record) -> None:
        directory, name = self._parent(record.path)
        match record.kind:
            case _Kind.MKDIR:
                directory.add(name, Directory())
            case _Kind.RENAME:
                directory.rename(name, *self._parent(record.data.decode()))
            case _:
                assert record.kind is _Kind.UNLINK
                directory.remove(name)

    def _parent(self, path: str) -> tuple[Directory, str]:
        *folders, name = [part for part in path.split("/") if part]
        directory = self._disk
        for folder in folders:
            below = directory.names[folder]
            assert isinstance(below, Directory)
            directory = below
        return directory, name


def _records(journal: bytes) -> Iterator[_Record]:
    """Yield all records but one that the death of the process cut off."""
    position = 0
    while position + _RECORD.size <= len(journal):
        magic, kind, descriptor, flags, at, path_size, size = _RECORD.unpack_from(journal, position)
        assert magic == _MAGIC, "the journal of the disk layer makes no sense"
        path_at = position + _RECORD.size
        position = path_at + path_size + size
        if position > len(journal):
            return
        path = journal[path_at : path_at + path_size].decode()
        yield _Record(_Kind(kind), descriptor, flags, at, path, journal[position - size : position])


def _nodes(directory: Directory) -> Iterator[Node]:
    yield directory
    for node in directory.names.values():
        if isinstance(node, Directory):
            yield from _nodes(node)
        else:
            yield node


def _pending(node: Node) -> Sequence[object]:
    return node.pending if isinstance(node, Inode) else node._journal


def _last_change(node: Node) -> object:
    changes = _pending(node)
    return changes[-1] if changes else None


def _sync_through(node: Node, mark: object) -> None:
    """Make durable what was changed up to `mark`, which another fsync may have done already."""
    count = next((at for at, change in enumerate(_pending(node), 1) if change is mark), 0)
    if not count:
        return
    if isinstance(node, Directory):
        node._commit(count)
        return
    later = node.pending[count:]
    del node.pending[count:]
    node.sync()
    node.pending = later


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file())


def _restore(directory: Directory, real: Path) -> None:
    names = directory.names
    for path in list(real.iterdir()):
        node = names.get(path.name)
        if node is None or isinstance(node, Directory) != path.is_dir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name, node in names.items():
        path = real / name
        if isinstance(node, Directory):
            path.mkdir(exist_ok=True)
            _restore(node, path)
        elif not path.exists() or path.read_bytes() != node.map():
            path.write_bytes(node.map())
