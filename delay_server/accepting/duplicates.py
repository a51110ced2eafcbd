"""Finds messages that a producer sends again, among those that the log took lately.

    intake --> keys --> RecentIds --> records with that key --> their items are read and compared
                            ^                                        same: a repeat, which gets no
    log, as it grows -------+                                        record; else another message

The window is what the log says: a mastership reads the columns of the log's tail before it takes
messages, and every commit adds to it. An *original* is a MESSAGE record of a producer within the
window. A MOVE (of a receiver, of an operator, of the copier) takes its place: it leads back to the
item as it was sent. What was cancelled, expired or dropped or is dead is no original any more, so
the same message may be sent again.

All of this belongs to the worker of the message_log. A repeat is answered with the commit that it
came to, which ends after the commits before it: so its original is committed by then.

What is in doubt is kept, which may deliver a message twice, and loses none: what repeats an item
that cannot be read, and what is beyond the limits below on the work of one commit.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.subjects import real_subject
from delay_protocol.messages.items import item_message_ids
from delay_protocol.messages.repeats import has_one_due_time, is_repeat
from delay_server.accepting.intake import MessageBatch, Piece
from delay_transport.settings.sections import require_at_least
from storage.batch.batches import BatchHeader, LogBatch
from storage.batch.columns import Columns, RecordKind
from storage.batch.facts import Outcome, facts_stated
from storage.logs.message_log import MessageLog
from storage.logs.recent_ids import Keys, RecentIds

_RECORDS_PER_MESSAGE: Final = 2
"""Each message is followed by its fact: the window has so many records for each of its messages."""

_COMPARED_MAX: Final = 32
"""Messages of one id with which an item is compared, the newest first: so many are remembered."""

_IN_VAIN_MAX: Final = 16_384
"""Comparisons in vain that one commit makes: some 200 ms."""

_READ_MAX: Final = 8192
"""Batches of the log that are read for one commit: some 100 us each if they lie side by side, as
they do where all is sent again in its order; up to 1 ms each if not."""

_MOVES_MAX: Final = 64
"""Moves of a message that are followed back to its item."""

_ROWS_AT_ONCE: Final = 50_000
"""Records of the log's tail that are read in one go: some 20 ms."""

_MARK_MS: Final = 1000
"""Between two times at which the log's end is noted: the window may be longer by so much."""

_NOWHERE: Final = np.zeros(0, np.intp)
_NO_KEYS: Final = np.zeros(0, np.uint64)
_NO_SIZES: Final = np.zeros(0, np.uint32)

_Tags = npt.NDArray[np.uint8]
_ANY_DUE: Final = np.uint8(2)
"""Tag of a MOVE, whose message had another due time before."""

_ODD, _MIXER = np.uint8(1), np.int64(0x1E37_79B9_7F4A_7C15)

_NAMES_KEPT: Final = 65_536
"""Subjects whose hashes are kept; when there are more, all are forgotten and made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesConfig:
    """The window in which a message that a producer sends again is recognised."""

    window_ms: int = 600_000
    """Milliseconds. A message that is sent again within them, equal in all but its creation time,
    is confirmed and not kept twice; 0 keeps every copy. The message_log stays for so long."""

    messages_max: int = 4_000_000
    """Messages that the node remembers for it at the most, 25 bytes of memory each; 0 keeps every
    copy. With more messages in the window it is shorter: 13 s at 300,000 messages a second."""

    def __post_init__(self) -> None:
        """Refuse what is less than nothing."""
        require_at_least(self, 0, "window_ms", "messages_max")

    @property
    def is_on(self) -> bool:
        """Whether anything is recognised."""
        return bool(self.window_ms and self.messages_max)


class Duplicate(NamedTuple):
    """An item of an intake that the log has already."""

    place: int
    """Its place among the items of the intake."""
    message_id: bytes
    due_ms: int
    """When the original is due."""


class _Message(NamedTuple):
    """A message as its producer sent it."""

    subject: bytes
    due_ms: int
    item: bytes


Sifted = tuple[list[MessageBatch], list[Duplicate]]


class Duplicates:
    """The window of one mastership.

    Invariant: it knows all records of the log from the beginning of the window up to `_next`.
    """

    def __init__(
        self, log: MessageLog, config: DuplicatesConfig, *, now_ms: Callable[[], int]
    ) -> None:
        self._log = log
        self._window_ms = config.window_ms
        self._now_ms = now_ms
        self._records_max = _RECORDS_PER_MESSAGE * config.messages_max
        self._ids = RecentIds(config.messages_max)
        self._tags = np.zeros(self._records_max, np.uint8)
        """Tag of the due time of a record, by its sequence modulo the window's records; 0 for what
        is no original, or no more."""
        self._next = 0
        """The next record that comes to the window; 0 before anything was read."""
        self._marks: deque[tuple[int, int]] = deque()
        """Append time and first sequence of a batch, about one each second of the window."""
        self._hashes: dict[bytes, int] = {}
        self._known: tuple[npt.NDArray[np.uint64] | None, Keys] = None, _NO_KEYS
        """The hashes of ids of the batch before, which is appended next as a rule, and its keys."""
        self._first = 0
        """The first record of the window, meanwhile."""
        self._in_vain = 0
        """Comparisons of a commit, as _IN_VAIN_MAX bounds them."""

    @property
    def oldest_ms(self) -> int:
        """When the oldest message came that is remembered, in ms since 1970; 0 without one.

        May be read in another thread.
        """
        return next(iter(list(self._marks)), (0, 0))[0]

    # -- what the log says -------------------------------------------------------------------

    def catch_up(self) -> bool:
        """Read the next piece of the log's tail; return True once all is read."""
        log = self._log
        if not self._next:
            first = log.first_since(self._now_ms() - self._window_ms)
            self._next = max(first, log.next_sequence - self._records_max)
        rows = 0
        for header, columns in log.read_columns(self._next):
            self._note(header, columns)
            rows += header.count
            if rows >= _ROWS_AT_ONCE:
                return False
        self._next = log.next_sequence
        return True

    def note(self, batches: Sequence[LogBatch]) -> None:
        """Take in what was appended; what comes before the tail is read is read with it."""
        for batch in batches:
            if batch.header.base_sequence == self._next:
                self._note(batch.header, batch.columns)

    def _note(self, header: BatchHeader, columns: Columns) -> None:
        first, behind = header.base_sequence, header.next_sequence
        if not self._marks or header.append_ms >= self._marks[-1][0] + _MARK_MS:
            self._marks.append((header.append_ms, first))
            self._ids.forget_before(self._oldest)
        if header.kind in {RecordKind.MESSAGE, RecordKind.MOVE}:
            arrays = columns.arrays
            keys = self._keys(columns.names, arrays["subject"], arrays["id_hash"])
            self._ids.add(keys, np.arange(first, behind))
            is_message = header.kind is RecordKind.MESSAGE
            tags = _tags_of(arrays["due_ms"]) if is_message else np.full(header.count, _ANY_DUE)
        else:
            tags = np.zeros(header.count, np.uint8)
        self._tag(first, tags)
        self._next = behind
        facts = facts_stated(header, columns)
        if facts is not None:
            stays = (facts.outcome == Outcome.DELIVERED) | (facts.outcome == Outcome.KNOWN)
            gone = facts.sequence[~stays]
            self._tags[gone[gone >= behind - self._records_max] % self._records_max] = 0

    def _tag(self, first: int, tags: _Tags) -> None:
        """Note the tags of records from `first` on, in the places of the oldest."""
        place = first % self._records_max
        end = place + len(tags)
        if end <= self._records_max:
            self._tags[place:end] = tags
        else:
            self._tags[np.arange(place, end) % self._records_max] = tags

    def _forget_old(self) -> None:
        """Forget the times before the window."""
        marks, ended_ms = self._marks, self._now_ms() - self._window_ms - _MARK_MS
        while marks and marks[0][0] <= ended_ms:
            marks.popleft()
        first = self._next - self._records_max
        while len(marks) > 1 and marks[1][1] <= first:
            marks.popleft()

    @property
    def _oldest(self) -> int:
        """The first record of the window."""
        self._forget_old()
        since = self._marks[0][1] if self._marks else self._next
        return max(since, self._next - self._records_max)

    def _keys(
        self,
        names: Sequence[bytes],
        subject: npt.NDArray[np.uint16],
        id_hash: npt.NDArray[np.uint64],
    ) -> Keys:
        """Return the keys of records; a copy for one name of receivers has that of its message."""
        if id_hash is self._known[0]:
            return self._known[1]
        if len(self._hashes) > _NAMES_KEPT:
            self._hashes.clear()
        hashes = self._hashes
        for name in names:
            if name not in hashes:
                hashes[name] = xxh3_64_intdigest(real_subject(name))
        if len(names) == 1:
            keys = id_hash ^ np.uint64(hashes[names[0]])
        else:
            keys = id_hash ^ np.array([hashes[name] for name in names], np.uint64)[subject]
        self._known = id_hash, keys
        return keys

    # -- what producers send -----------------------------------------------------------------

    def sift(self, batches: Sequence[MessageBatch]) -> Sifted:
        """Take the repeats out of what is to be appended next, and return both."""
        keys = [self._keys(one.subjects, one.subject, one.id_hash) for one in batches]
        all_keys = keys[0] if len(keys) == 1 else np.concatenate(keys)
        places, sequences = self._ids.find(all_keys, next_sequence=self._next)
        again = _repeated(all_keys)
        if not len(places) and not len(again):
            return list(batches), []
        self._first = self._oldest
        tags = self._tags[sequences % self._records_max]
        is_original = (sequences >= self._first) & (sequences < self._next) & (tags != 0)
        places, sequences, tags = places[is_original], sequences[is_original], tags[is_original]
        suspects = np.union1d(places, again)
        if not len(suspects):
            return list(batches), []
        # Of each suspect what the log may have of it, the newest first.
        order = np.lexsort((-sequences, places))
        places, sequences, tags = places[order], sequences[order], tags[order]
        due_ms = np.concatenate([one.due_ms for one in batches])
        is_due_then = (tags == _ANY_DUE) | (tags == _tags_of(due_ms[places]))
        candidates = list(zip(sequences.tolist(), is_due_then.tolist(), strict=True))
        edges = np.searchsorted(places, suspects), np.searchsorted(places, suspects, side="right")
        stored = [
            candidates[begin:end] for begin, end in zip(*map(np.ndarray.tolist, edges), strict=True)
        ]
        return self._sift(batches, all_keys, suspects, stored)

    def _sift(
        self,
        batches: Sequence[MessageBatch],
        keys: Keys,
        suspects: npt.NDArray[np.intp],
        stored: Sequence[Sequence[tuple[int, bool]]],
    ) -> Sifted:
        """Compare the items at some places with what they may be repeats of.

        stored: for each place records of the log, and whether they may be due when it is.
        """
        sent_items = [_Items(one.columns, b"".join(one.pieces)) for one in batches]
        begins = np.cumsum([0, *map(len, batches)])
        numbers = (np.searchsorted(begins, suspects, side="right") - 1).tolist()
        rows = (suspects - begins[numbers]).tolist()
        sent = [sent_items[number].at(row) for number, row in zip(numbers, rows, strict=True)]
        compared: list[list[int]] = []
        for message, candidates in zip(sent, stored, strict=True):
            is_strict = has_one_due_time(message.item)
            likely = [one for one, is_due_then in candidates if is_due_then or not is_strict]
            compared.append(likely[:_COMPARED_MAX])
        originals = self._originals(set(chain(*compared)))
        self._in_vain = 0
        kept: dict[int, list[_Message]] = {}
        """By key, what of this commit is no repeat."""
        found: list[Duplicate] = []
        repeats: list[list[int]] = [[] for _ in batches]
        for place, number, row, message, sequences in zip(
            suspects.tolist(), numbers, rows, sent, compared, strict=True
        ):
            others = kept.setdefault(int(keys[place]), [])
            known = (originals[one] for one in sequences if one in originals)
            same = self._same(message, chain(others[-_COMPARED_MAX:], known))
            if same is None:
                others.append(message)
                continue
            repeats[number].append(row)
            (message_id,) = item_message_ids(message.item, [len(message.item)])
            found.append(Duplicate(place, message_id, same.due_ms))
        left = [
            _without(batch, rows, items)
            for batch, rows, items in zip(batches, repeats, sent_items, strict=True)
            if len(rows) < len(batch)
        ]
        return left, found

    def _same(self, sent: _Message, originals: Iterable[_Message]) -> _Message | None:
        """Return what an item repeats, of this commit or of the log; None if it is new."""
        for original in originals:
            if self._in_vain >= _IN_VAIN_MAX:
                return None
            if sent.subject == original.subject and is_repeat(sent.item, original.item):
                return original
            self._in_vain += 1
        return None

    def _originals(self, records: Iterable[int]) -> dict[int, _Message]:
        """Return the messages that records of the log are, or are in the place of.

        What cannot be read, and what is beyond the limits above, is left out.
        """
        found: dict[int, _Message] = {}
        asked = {one: [one] for one in records}
        """By record that is to be read: those that it is read for."""
        reading = iter(range(_READ_MAX))
        for _ in range(_MOVES_MAX):
            before: defaultdict[int, list[int]] = defaultdict(list)
            wanted = sorted(one for one in asked if one >= self._first)
            for batch, _ in zip(self._log.batches_of(wanted), reading, strict=False):
                header, items = batch.header, _Items(batch.columns, bytes(batch.blob))
                begin = bisect_left(wanted, header.base_sequence)
                for record in wanted[begin : bisect_left(wanted, header.next_sequence)]:
                    row = record - header.base_sequence
                    if header.kind is RecordKind.MESSAGE:
                        found |= dict.fromkeys(asked[record], items.at(row))
                    elif header.kind is RecordKind.MOVE:
                        before[int(items.columns.arrays["old_sequence"][row])] += asked[record]
            asked = before
            if not asked:
                break
        return found


class _Items:
    """The items of a batch that has some, by their rows."""

    def __init__(self, columns: Columns, blob: bytes) -> None:
        self.columns = columns
        self.blob = blob
        sizes = columns.arrays.get("size", _NO_SIZES)
        self.edges: list[int] = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def at(self, row: int) -> _Message:
        """Return the item of a row."""
        arrays = self.columns.arrays
        name = self.columns.names[int(arrays["subject"][row])]
        item = self.blob[self.edges[row] : self.edges[row + 1]]
        return _Message(name, int(arrays["due_ms"][row]), item)


def _without(batch: MessageBatch, rows: Sequence[int], items: _Items) -> MessageBatch:
    """Return a batch without some of its rows, which ascend."""
    if not rows:
        return batch
    kept = np.ones(len(batch), np.bool_)
    kept[rows] = False
    view, edges = memoryview(items.blob), items.edges
    begins = [0, *(edges[row + 1] for row in rows)]
    ends = [*(edges[row] for row in rows), len(view)]
    pieces: list[Piece] = [
        view[begin:end] for begin, end in zip(begins, ends, strict=True) if begin < end
    ]
    return replace(
        batch,
        due_ms=batch.due_ms[kept],
        id_hash=batch.id_hash[kept],
        size=batch.size[kept],
        subject=batch.subject[kept],
        pieces=pieces,
        blob_bytes=sum(map(len, pieces)),
    )


def _tags_of(due_ms: npt.NDArray[np.int64]) -> _Tags:
    """Return a byte of each due time by which most other times are told from it; it is odd."""
    mixed = due_ms * _MIXER
    return mixed.view(np.uint8)[7::8] | _ODD


def _repeated(keys: Keys) -> npt.NDArray[np.intp]:
    """Return the places of keys that are there more than once."""
    if len(keys) == 1:
        return _NOWHERE
    ordered = np.sort(keys)
    is_again = ordered[1:] == ordered[:-1]
    if not np.count_nonzero(is_again):
        return _NOWHERE
    return np.flatnonzero(np.isin(keys, ordered[1:][is_again]))
