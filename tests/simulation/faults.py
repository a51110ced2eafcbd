"""What a simulated disk may do to its node, and how a test asks for it.

Two ways to ask: a FaultPlan gives rates and chances, all drawn from the seed; a Trap names one
moment exactly ("the second fsync while a checkpoint is written"). Deaths are BaseExceptions, so
that no `except Exception` of the code under test can survive one.
"""

import enum
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FrameType

from storage.batch.columns import RecordKind


class Death(BaseException):
    """The node is gone. Raised by every later use of a handle that the node held."""


class PowerCut(Death):
    """The machine lost power: what was not fsynced may be lost."""


class Kill(Death):
    """The process got SIGKILL: the page cache and the names survive."""


class Stage(enum.Enum):
    """When, within an operation, a death comes."""

    BEFORE = "before"
    """Nothing of the operation happened."""

    INSIDE = "inside"
    """A part of it happened: some bytes of a write, some pages of an fsync. Operations that are
    atomic treat it as before or after, by chance."""

    AFTER = "after"
    """All of it happened, but the caller never heard."""


class Action(enum.Enum):
    """What a trap does."""

    POWER_CUT = "power cut"
    KILL = "kill"
    EIO = "EIO"
    FULL = "ENOSPC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """One fault, at one moment; it goes off once."""

    action: Action
    """Deaths can strike in any operation; EIO and FULL only in those that can fail that way."""

    kinds: Collection[str] | None = None
    """Operations it waits for, by their Disk or File method ("create" for an open that creates,
    "write", "read" for write_at, read_at); None for all."""

    when: Callable[[str, str, str], bool] | None = None
    """Further condition on (kind, path, label). A rename's path is "source -> target"; the label is
    the qualified name of the function that the executor runs, or what `labelled` says."""

    skip: int = 0
    """How many matching operations to let pass first."""

    stage: Stage | None = None
    """Of a death; None to draw it."""


def running(*names: str) -> Callable[[str, str, str], bool]:
    """Return a condition for `Trap.when`: one of these functions is on the call stack.

    A name is a function's, or its qualified end: "split", "Checkpoint.write". It finds functions
    that the executor's label cannot tell, since another one called them.
    """
    ends = tuple("." + name for name in names)

    def when(_kind: str, _path: str, _label: str) -> bool:
        frame = sys._getframe(1)
        while frame.f_back is not None:
            code = frame.f_code
            if f".{code.co_qualname}".replace(".<locals>", "").endswith(ends):
                return True
            frame = frame.f_back
        return False

    return when


_APPENDS = frozenset({"MessageLog._write_encoded", "MessageLog.sync_written"})


def appending(kind: RecordKind) -> Callable[[str, str, str], bool]:
    """Return a condition for `Trap.when`: an append to the message_log has records of this kind."""

    def when(_kind: str, _path: str, _label: str) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_qualname not in _APPENDS:
            frame = frame.f_back
        batches = () if frame is None else frame.f_locals.get("batches", ())
        return any(batch.header.kind is kind for batch in batches)

    return when


@dataclass(frozen=True, slots=True)
class Fired:
    """A trap that went off, or a fault of the plan that struck."""

    action: Action
    stage: Stage
    kind: str
    path: str
    label: str
    operation: int
    """The number of the disk operation, counted over all lives of the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Chances from 0 to 1 of what a power cut does, and rates of errors per operation."""

    lose_writes: float = 0.9
    """Per file with un-fsynced writes: that any of them may be lost. 0: all survive a power cut."""

    reorder: float = 0.5
    """Of those: that each 512-byte sector survives or not by itself, rather than a prefix of all
    writes. A sector is always as it was at some one time since its last fsync."""

    reorder_truncate: float = 0.2
    """In a reordered file: that a truncate is lost while writes after it survive."""

    tear: float = 0.3
    """Per sector at which survival ends: that a part of its new bytes did get there."""

    zero_tail: float = 0.2
    """Per file: that its size grew further than its data, and reads as zeros there."""

    flip_bits: float = 0.2
    """Per file: that one to three bits flip among the un-fsynced bytes that did get to the disk.
    Bytes that already were durable as they are stay whole."""

    lose_names: float = 0.9
    """Per directory with changes not synced: that any of them may be lost."""

    reorder_names: float = 0.5
    """Of those: that each change survives or not by itself, rather than a prefix. Changes of one
    name keep their order."""

    eio_read: float = 0.0
    """Per read_at, map and open."""

    eio_write: float = 0.0
    """Per write_at, truncate and change of names."""

    eio_sync: float = 0.0
    """Per fsync: it fails, its pages are marked clean, the next one succeeds and writes nothing."""

    sync_reverts: float = 0.5
    """Per failed fsync: that the file reads as it is on the disk at once (btrfs), rather than only
    after the next power cut (ext4, XFS)."""

    full: float = 0.0
    """Per write_at, create, make_directory and rename: no space left, after a part of it."""

    full_sync: float = 0.0
    """Per fsync: no space left; its pages are dropped as with `eio_sync`."""

    short_write: float = 0.0
    """Per write_at: it is short and gone on with, so that it survives a power cut in parts."""

    slow_sync: float = 0.0
    """Per fsync: that it takes long."""

    slow_sync_s: tuple[float, float] = (0.1, 10.0)
    """Least and most virtual seconds of such a one."""

    sync_lies: float = 0.0
    """Per fsync: it says that it succeeded and did nothing. No log survives a disk like this: for
    tests that have to see something lost."""

    misdirected: float = 0.0
    """Per fsync of a changed file: one of its writes goes elsewhere on the disk. As above."""

    @property
    def has_rates(self) -> bool:
        """Say whether any operation may fail by itself."""
        return any((self.eio_read, self.eio_write, self.eio_sync, self.full, self.full_sync))


CALM = FaultPlan(lose_writes=0, tear=0, zero_tail=0, flip_bits=0, lose_names=0)
"""A power cut with this plan loses nothing."""

HARSH = FaultPlan(lose_writes=1, lose_names=1, reorder=0.7, reorder_names=0.7)
"""A power cut with this plan may lose anything that was not fsynced, everywhere."""
