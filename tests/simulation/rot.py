"""Damage to bytes that were durable: one flipped bit, and what that excuses.

One flip a seed at most, so that the checkers can say exactly what it may cost: which messages may
be missing (`Witness.lost`), which may be sent again (`Witness.doubled`), or that the server may
refuse to start and name the file. Everything else has to go on as if nothing had happened.

Or the durable end is lost as a whole, and in half of the worlds in which it is a bit flips at the
end of the log as well. That excuses a refusal that names the durable end, and what the bit excuses.
"""

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    LogStateError,
    UnsupportedFormatError,
)
from tests.simulation import independent_reader as reader
from tests.simulation.disk import SimDisk
from tests.simulation.witness import Witness

_OLD_MS = 5000
"""Batches this old are far below the durable end that is on the disk."""
_DURABLE_END = "message_log/durable_end"
_REPLACED = ("identity", "checkpoint/checkpoint", _DURABLE_END)
"""Files that are written anew now and then, so that damage to them does not stay."""
LOST = f"{_DURABLE_END} lost"
"""A kind of damage of its own."""
_LATEST = 4
_BATCH_HEADER_SIZE = 76
"""Without its CRC."""
_SECTOR = 512
_SLOT_SIZE = 80
"""Of the slot in each sector of a durable end; what is behind it is never written again."""
_EIO = f"[Errno {errno.EIO}]"
_REFUSALS = (DamagedError, LogStateError, DataDirectoryError, UnsupportedFormatError)
"""What a server says that refuses to start."""

Span = tuple[str, int, int]
"""Path, begin and end of bytes that may be damaged."""


class Rot:
    """Flips one bit, once."""

    def __init__(
        self,
        chance: random.Random,
        *,
        witness: Witness,
        faults: Counter[str],
        with_deleted: Callable[[dict[str, bytes]], dict[str, bytes]] = dict,
    ) -> None:
        """`with_deleted` adds those that were deleted to files, for what they tell of others."""
        self._chance = chance
        self._with_deleted = with_deleted
        self._witness = witness
        self._faults = faults
        self._struck: tuple[str, int, int] | None = None
        self._lost: tuple[bytes, bytes | None] | None = None
        """A durable end that was lost: what it held, and what is left of it."""
        self._refused = False

    def strike(self, disk: SimDisk, now_ms: int, *, running: bool, only: str = "") -> bool:
        """Flip a bit in one kind of file, drawn of those that there are; False if there is none.

        While a server runs only files are hit that it reads again. `only`: a kind of file, of which
        one of the latest spans is hit; with " header" behind it, the header of a batch.
        """
        if self._struck is not None or self._lost is not None:
            return False
        # Not a file that another one is about to replace: it would be the other that is hit.
        durable, settled = disk.contents(durable=True), disk.settled()
        files = {path: data for path, data in durable.items() if path in settled}
        kinds: dict[str, list[Span]] = {}
        # What the durable end vouches for may be hit however young it is; asked for, it is.
        for kind, span in self._spans(files, now_ms + (_OLD_MS if only else 0)):
            if not running or span[0] not in _REPLACED:
                kinds.setdefault(kind, []).append(span)
        if files.get(_DURABLE_END) and not running:
            kinds[LOST] = []
        if only == LOST:
            kinds = {kind: [] for kind in kinds if kind == LOST}
        elif only:
            wanted, _, part = only.partition(" ")
            latest = kinds.get(wanted, [])[-_LATEST:]
            if part:
                latest = [(path, begin, begin + _BATCH_HEADER_SIZE) for path, begin, _ in latest]
            kinds = {wanted: latest} if latest else {}
        if not kinds:
            return False
        kind = self._chance.choice(list(kinds))
        if kind == LOST:
            self._lose(disk, files, flips=bool(only) or self._chance.random() < 0.5)
            return True
        self._flip(disk, files, kind, kinds[kind])
        return True

    def _lose(self, disk: SimDisk, files: dict[str, bytes], *, flips: bool) -> None:
        """Lose the durable end in one of the ways, and flip a bit at the end of its log."""
        before = files[_DURABLE_END]
        how, left = self._chance.choice(
            [
                ("gone", None),
                ("empty", b""),
                ("zeros", bytes(len(before))),
                ("short", before[: self._chance.randrange(1, _SLOT_SIZE)]),
                ("other bytes", self._chance.randbytes(len(before))),
            ]
        )
        self._lost = before, left
        self._faults[f"{LOST}: {how}"] += 1
        if flips:
            # Whatever it vouches for, however young.
            found = self._spans(files, 1 << 62)
            spans = [span for kind, span in found if kind in {"message_log", "outcomes"}]
            if spans:
                self._flip(disk, files, "message_log", spans[-_LATEST:])
                self._faults["durable end lost and a bit flipped in its log"] += 1
        disk.put(_DURABLE_END, left)

    def _flip(
        self, disk: SimDisk, files: dict[str, bytes], kind: str, spans: Sequence[Span]
    ) -> None:
        """Flip a bit in one of these spans, and excuse what it may cost."""
        path, begin, end = self._chance.choice(spans)
        position = self._chance.randrange(begin, end)
        byte = files[path][position]
        self._excuse(files, path, position)
        self._struck = (path, position, byte)
        is_padding = path == _DURABLE_END and position % _SECTOR >= _SLOT_SIZE
        if path not in _REPLACED or is_padding:
            self._witness.damage.append(self._struck)
        disk.damage(path, position, bytes([byte ^ 1 << self._chance.randrange(8)]))
        self._faults[f"bit flipped in {kind}"] += 1

    def refused(self, disk: SimDisk, error: Exception) -> bool:
        """Hear that the server refused to start; restore what was damaged, as its operator would.

        Returns False if this is nothing that the damage explains.
        """
        if self._refused or not isinstance(error, _REFUSALS):
            return False
        if _EIO in str(error):
            # The disk failed to read something else.
            return False
        if self._struck is None and self._lost is None:
            return False
        self._refused = True
        named = ""
        if self._struck is not None:
            named, position, byte = self._struck
            disk.damage(named, position, bytes([byte]))
        if self._lost is not None:
            named, (before, left) = _DURABLE_END, self._lost
            if disk.content(named) != left:
                self._witness.complain(f"whole: {named} was made anew, and yet refused: {error}")
            else:
                disk.put(named, before)
        if named not in str(error):
            self._witness.complain(f"whole: {named} is damaged, the server says only: {error}")
        self._faults["start refused"] += 1
        return True

    def with_checkpoint(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the files, the checkpoint as it was if that is what was damaged."""
        path, position, byte = self._struck or ("", 0, 0)
        data = files.get(path, b"")
        if path != "checkpoint/checkpoint" or position >= len(data):
            return files
        with contextlib.suppress(reader.MismatchError):
            reader.read_checkpoint(data)
            return files  # Another one has taken its place.
        return {**files, path: data[:position] + bytes([byte]) + data[position + 1 :]}

    def _spans(self, files: Mapping[str, bytes], now_ms: int) -> Iterator[tuple[str, Span]]:
        """Yield what may be damaged, by the kind of file."""
        durable_end = files.get(_DURABLE_END, b"")
        for path, data in files.items():
            if path.startswith("message_log/0"):
                # A file that was just begun may have no header yet.
                with contextlib.suppress(reader.MismatchError):
                    old = reader.old_batches(data, now_ms - _OLD_MS, durable_end=durable_end)
                    for start, size, ids in old:
                        yield "message_log" if ids else "outcomes", (path, start, start + size)
            elif path in _REPLACED and data:
                yield path, (path, 0, len(data))
        try:
            checkpoint = reader.read_checkpoint(files.get("checkpoint/checkpoint", b""))
        except reader.MismatchError:
            # There is none yet, or the disk is one that breaks its word.
            return
        spans = []
        for segment in checkpoint.segments:
            name = reader.segment_name(segment.start, segment.span)
            spans.append(("segment", (f"schedule_log/{name}", 0, segment.length)))
            spans.append(("facts", (f"dispatch_log/{name}", 0, segment.facts_length)))
        newest = f"seals/{checkpoint.seals_file:020d}.log"
        spans.append(("seals", (newest, 0, checkpoint.seals_length)))
        for kind, span in spans:
            if 0 < span[2] <= len(files.get(span[0], b"")):
                yield kind, span

    def _excuse(self, files: dict[str, bytes], path: str, position: int) -> None:
        if path in _REPLACED:
            return
        self._witness.lost |= reader.lost_by(files, path, position)
        told = reader.told_by(files, path, position)
        if told:
            ids = ids_by_sequence(self._with_deleted(files))
            self._witness.doubled |= {ids[sequence] for sequence in told if sequence in ids}


def ids_by_sequence(files: Mapping[str, bytes]) -> dict[int, bytes]:
    """Return the id of each message of the message_log, as far as that can be read."""
    ids: dict[int, bytes] = {}
    for path, data in files.items():
        if path.startswith("message_log/0"):
            for batch in _batches(data):
                for place, item in enumerate(batch.items):
                    ids[batch.base + place] = reader.read_item(item).message_id
    return ids


def ids_of(data: bytes) -> set[bytes]:
    """Return the ids of all messages in a file."""
    return {reader.read_item(item).message_id for batch in _batches(data) for item in batch.items}


def sequences_of(data: bytes) -> set[int]:
    """Return the sequences of all rows in a file, and of all messages about which it has facts."""
    return {
        at
        for batch in _batches(data)
        for at in batch.columns.get("sequence", batch.columns.get("old_sequence", ()))
    }


def _batches(data: bytes) -> Iterator[reader.Batch]:
    """Yield batches as far as they can be read."""
    with contextlib.suppress(reader.MismatchError):
        yield from reader.read_batches(data)
