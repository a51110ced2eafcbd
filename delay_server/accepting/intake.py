"""Holds accepted items until the next commit: columns, and the items' bytes as received.

    request bodies     [ a b c ]  [ d e ]  [ f x g ]         x was refused
    pieces             [ a b c ]  [ d e ]  [ f ] [ g ]       cut into batches at batch_bytes_max
    columns            due_ms, id_hash, size, subject        one entry per item, in the same order

A request whose items are all accepted costs one piece and four list extensions; its bytes are not
copied before the write. A batch has a subject table of its own, into which `subject` points.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.batch.columns import LAYOUTS, Columns, RecordKind
from storage.logs.message_log import Draft

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""No batch of a log is larger, its header and columns included."""

SUBJECTS_MAX: Final = 65_535
"""Names that the subject table of one batch holds."""

_HEADER_BYTES: Final = 1024
"""Room for a batch's header and padding; a generous guess costs a quarter of a thousandth."""

_COLUMNS_BYTES: Final = 8 + 8 + 4 + 2
"""Bytes of one item in the columns: due_ms, id_hash, size, subject."""

_NAME_BYTES: Final = 2
"""Bytes that a subject table takes for a name, beside the name."""

ITEM_OVERHEAD_MAX: Final = _HEADER_BYTES + _COLUMNS_BYTES + _NAME_BYTES
"""A batch holds any one item if item, subject and this fit into it."""

Piece = bytes | memoryview


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """One batch for the message_log: arrays of one length, and the bytes they describe."""

    due_ms: npt.NDArray[np.int64]
    """Wall ms."""
    id_hash: npt.NDArray[np.uint64]
    """xxh3 (64 bits, seed 0) of the message ids."""
    size: npt.NDArray[np.uint32]
    """Bytes of each item."""
    subject: npt.NDArray[np.uint16]
    """Indexes into `subjects`."""
    subjects: list[bytes]
    pieces: list[Piece]
    """The items one after another; a piece holds one or more whole items."""
    blob_bytes: int
    """Bytes of all pieces."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.due_ms)

    @property
    def columns(self) -> Columns:
        """Its columns as they go into the log."""
        names = (name for name, _ in LAYOUTS[RecordKind.MESSAGE])
        return Columns(self.subjects, {name: getattr(self, name) for name in names})

    def draft(self) -> Draft:
        """Return it as it goes into the log."""
        return Draft(
            kind=RecordKind.MESSAGE,
            count=len(self),
            names=self.subjects,
            arrays=self.columns.arrays,
            blob=self.pieces,
        )


@dataclass(slots=True)
class _Part:
    """A batch in the making.

    Invariant: `numbers` counts its names in the order they came, which is that of the items, so
    that the same requests make the same bytes in every process.
    """

    due_ms: list[int] = field(default_factory=list)
    id_hash: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    subject: list[int] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    blob_bytes: int = 0
    batch_bytes: int = _HEADER_BYTES

    def reserve(
        self, blob_bytes: int, subjects: list[bytes], *, batch_bytes_max: int
    ) -> list[int] | None:
        """Make room for an item of each subject, so many bytes in all, and number the subjects.

        Return None, and change nothing, if they do not fit.
        """
        added = blob_bytes + _COLUMNS_BYTES * len(subjects)
        numbers = self.numbers
        new: list[bytes] = []
        try:
            found = list(map(numbers.__getitem__, subjects))
        except KeyError:
            new = [name for name in dict.fromkeys(subjects) if name not in numbers]
            added += sum(map(len, new)) + _NAME_BYTES * len(new)
            if len(numbers) + len(new) > SUBJECTS_MAX:
                return None
            found = []
        if self.batch_bytes + added > batch_bytes_max:
            return None
        self.batch_bytes += added
        if new:
            for name in new:
                numbers[name] = len(numbers)
            found = list(map(numbers.__getitem__, subjects))
        return found

    def append_piece(self, piece: Piece) -> None:
        if piece:
            self.pieces.append(piece)
            self.blob_bytes += len(piece)

    def batch(self) -> MessageBatch:
        return MessageBatch(
            due_ms=np.array(self.due_ms, np.int64),
            id_hash=np.array(self.id_hash, np.uint64),
            size=np.array(self.size, np.uint32),
            subject=np.array(self.subject, np.uint16),
            subjects=list(self.numbers),
            pieces=self.pieces,
            blob_bytes=self.blob_bytes,
        )


class Intake:
    """Collects accepted items until the next commit takes them.

    Invariant: only the last part grows, and no part's batch exceeds `batch_bytes_max`.
    """

    def __init__(self, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._parts = [_Part()]
        self._count = 0
        self._blob_bytes = 0

    def __len__(self) -> int:
        """Return the number of items collected."""
        return self._count

    @property
    def blob_bytes(self) -> int:
        """Bytes of all items collected."""
        return self._blob_bytes

    def batches(self) -> list[MessageBatch]:
        """Return what was collected, in order, as batches for the log; none of them is empty."""
        return [part.batch() for part in self._parts if part.size]

    def drafts(self) -> list[Draft]:
        """Return the same as they go into the log."""
        return [batch.draft() for batch in self.batches()]

    def add_request(
        self,
        body: bytes,
        *,
        starts: list[int],
        sizes: list[int],
        due_ms: list[int],
        id_hash: list[int],
        subjects: list[bytes],
    ) -> None:
        """Collect all items of a request: the body is items from its first byte to its last.

        The lists have an entry per item, in the body's order; starts are offsets into the body.
        """
        place = self._place(len(body), subjects)
        if place is None:
            # Larger than a batch: cut it between items.
            self.add_items(
                body,
                starts=starts,
                sizes=sizes,
                due_ms=due_ms,
                id_hash=id_hash,
                subjects=subjects,
            )
            return
        part, numbers = place
        part.due_ms += due_ms
        part.id_hash += id_hash
        part.size += sizes
        part.subject += numbers
        part.append_piece(body)
        self._count += len(sizes)
        self._blob_bytes += len(body)

    def add_items(
        self,
        body: bytes,
        *,
        starts: list[int],
        sizes: list[int],
        due_ms: list[int],
        id_hash: list[int],
        subjects: list[bytes],
    ) -> None:
        """Collect some items of a request, given as for add_request(); neighbours share a piece."""
        view = memoryview(body)
        part = self._parts[-1]
        piece_start = piece_end = 0
        for index, (start, size, subject) in enumerate(zip(starts, sizes, subjects, strict=True)):
            place = self._place(size, [subject])
            if place is None:
                raise ValueError(f"item of {size} bytes for batches of {self._batch_bytes_max}")
            roomy, numbers = place
            if start != piece_end or roomy is not part:
                part.append_piece(view[piece_start:piece_end])
                part, piece_start = roomy, start
            piece_end = start + size
            part.due_ms.append(due_ms[index])
            part.id_hash.append(id_hash[index])
            part.size.append(size)
            part.subject += numbers
            self._blob_bytes += size
        part.append_piece(view[piece_start:piece_end])
        self._count += len(starts)

    def _place(self, blob_bytes: int, subjects: list[bytes]) -> tuple[_Part, list[int]] | None:
        """Reserve room in the last part, or in a new one after it; None if it fits in neither.

        Return the part and, in it, the number of each subject.
        """
        part = self._parts[-1]
        numbers = part.reserve(blob_bytes, subjects, batch_bytes_max=self._batch_bytes_max)
        if numbers is None:
            part = _Part()
            numbers = part.reserve(blob_bytes, subjects, batch_bytes_max=self._batch_bytes_max)
            if numbers is None:
                return None
            self._parts.append(part)
        return part, numbers
