"""Records messages that the sender gives up as DEAD records.

    sender gives up --> waits --> is appended --> is filed, which crosses the message off

Until the last step the recorder holds the message, which counts as out of the wheel and in its
lane, so that no other part delivers it again. After a crash a message without a record is loaded
again and refused again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np
import numpy.typing as npt
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.messages.items import item_message_ids
from delay_server.accepting.commits import Committer
from delay_server.dead.reason import REASON_BYTES_MAX, encode_reason
from delay_server.filing.unfiled import UnfiledRecords
from delay_transport.seams.outbox import Wakeup
from sender.outcomes.dead import Refusal
from storage.batch.batches import BATCH_BYTES_MAX
from storage.batch.columns import RecordKind
from storage.batch.entries import ENTRY, Entries
from storage.batch.facts import Outcome
from storage.logs.message_log import Draft
from storage.readers.item_reader import Items

_ROWS_AT_ONCE = 256
"""Records of one append; reading so many items takes a fraction of a millisecond."""
_BYTES_AT_ONCE = 1024 * 1024
"""Bytes of their items, unless a single one has more."""
_BATCH_SPARE_BYTES = 256
"""What a batch of one takes beside its item and names."""
_GATHERED_S = 0.05
"""How long what was given up waits for more of it: each append costs the loop and the disk."""
_NO_SPACE_RETRY_S = 10.0
"""Each try reads the items once more."""


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A message that was given up.

    entry: its bytes; refusal: the last one; tries: how often it was sent; told: hears of its
    record, if anybody does.
    """

    entry: bytes
    size: int
    refusal: Refusal
    tries: int
    told: Callable[[], None] | None


class DeadLetterRecorder:
    """Makes dead letters of what the sender gives up."""

    def __init__(
        self,
        *,
        committer: Committer,
        read_items: Callable[[Entries], tuple[Items, npt.NDArray[np.bool_] | None]],
        subject_for: Callable[[int, str], bytes],
        on_damaged: Callable[[Entries], None],
        on_buried: Callable[[Entries], None],
        on_changed: Callable[[], None],
    ) -> None:
        """Take over the parts.

        subject_for: the subject under which a message goes to the group that refused it, and to no
        other name of receivers; on_damaged: for messages whose items cannot be read; on_buried: for
        those that are crossed off: both are held here no longer. on_changed: something was
        appended, or found no space.
        """
        self._committer = committer
        self._read_items = read_items
        self._subject_for = subject_for
        self._on_damaged = on_damaged
        self._on_changed = on_changed
        self._waiting: deque[_GivenUp] = deque()
        self.unfiled = UnfiledRecords(Outcome.DEAD, on_buried)
        """Entries whose record is being appended, or not filed yet."""
        self._more = Wakeup()
        self._is_stopping = False

    @property
    def count(self) -> int:
        """Messages held here."""
        return len(self._waiting) + self.unfiled.count

    def give_up(
        self,
        entries: Entries,
        refusals: Sequence[Refusal],
        tries: Sequence[int],
        told: Callable[[], None] | None = None,
    ) -> None:
        """Take messages from the sender; `told`, with one of them only, hears of its record."""
        each = (entry.tobytes() for entry in entries)
        sizes = entries["size"].tolist()
        self._waiting.extend(map(_GivenUp, each, sizes, refusals, tries, repeat(told)))
        self._more.wake()

    def held(self) -> Iterator[Entries]:
        """Yield the entries of all messages held here."""
        yield _entries_of(self._waiting)
        yield from self.unfiled.held()

    async def run(self) -> None:
        """Append what comes."""
        while True:
            if not self._may_append():
                await self._more.sleep()
                continue
            # Items are refused a few at a time, but many records cost hardly more than one.
            if len(self._waiting) < _ROWS_AT_ONCE:
                await trio.sleep(_GATHERED_S)
                if not self._may_append():
                    continue
            given_up = self._take()
            if not await self._append(given_up):
                self._waiting.extendleft(reversed(given_up))
                await trio.sleep(_NO_SPACE_RETRY_S)

    def _may_append(self) -> bool:
        return bool(self._waiting) and not self._is_stopping

    def _take(self) -> list[_GivenUp]:
        """Take what fits into one append from the front of what waits."""
        taken = [self._waiting.popleft()]
        bytes_left = _BYTES_AT_ONCE - taken[0].size
        while self._waiting and len(taken) < _ROWS_AT_ONCE and self._waiting[0].size <= bytes_left:
            taken.append(self._waiting.popleft())
            bytes_left -= taken[-1].size
        return taken

    async def _append(self, given_up: list[_GivenUp]) -> bool:
        """Record those that are not damaged, and keep only these; False if there was no space."""
        entries = _entries_of(given_up)
        found, damaged = self._read_items(entries)
        if damaged is not None and damaged.any():
            self._on_damaged(entries[damaged])
            _tell([given_up[place] for place in np.flatnonzero(damaged).tolist()])
            given_up[:] = [given_up[place] for place in np.flatnonzero(~damaged).tolist()]
            entries = entries[~damaged]
        if not given_up:
            return True
        draft = self._draft(entries, given_up, found)
        self.unfiled.begin(entries)
        kept = await self._committer.commit_records(
            draft, on_durable=partial(self.unfiled.durable, entries)
        )
        if kept:
            _tell(given_up)
        else:
            self.unfiled.forget(entries)
        self._on_changed()
        return kept

    def _draft(self, entries: Entries, given_up: Sequence[_GivenUp], found: Items) -> Draft:
        """Return the records for some messages."""
        items = [item for item in found if len(item)]
        ids = item_message_ids(found.joined, map(len, items))
        numbers: dict[bytes, int] = {}
        subjects = [
            numbers.setdefault(self._subject_for(subject, one.refusal.group), len(numbers))
            for subject, one in zip(entries["subject"].tolist(), given_up, strict=True)
        ]
        spare = BATCH_BYTES_MAX - _BATCH_SPARE_BYTES - sum(map(len, items)) - sum(map(len, numbers))
        reason_bytes_max = min(REASON_BYTES_MAX, max(spare // len(items), 0))
        # What was refused together every time has one reason.
        number_of: dict[tuple[int, int], int] = {}
        reasons: list[int] = []
        for one in given_up:
            number = number_of.get((id(one.refusal), one.tries))
            if number is None:
                text = encode_reason(one.refusal, one.tries, bytes_max=reason_bytes_max)
                number = numbers.setdefault(text, len(numbers))
                number_of[id(one.refusal), one.tries] = number
            reasons.append(number)
        return Draft(
            kind=RecordKind.DEAD,
            count=len(entries),
            names=list(numbers),
            arrays={
                "old_sequence": entries["sequence"].copy(),
                "due_ms": entries["due_ms"].copy(),
                "id_hash": np.array(list(map(xxh3_64_intdigest, ids)), np.uint64),
                "size": entries["size"].copy(),
                "old_minute": entries["minute"].copy(),
                "subject": np.array(subjects, np.uint16),
                "reason": np.array(reasons, np.uint16),
            },
            blob=items,
        )

    def close(self) -> None:
        """Append nothing more, from now on."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Append nothing more; wait for what is being appended."""
        self.close()
        await self.unfiled.until_appended()


def _entries_of(given_up: Iterable[_GivenUp]) -> Entries:
    return np.frombuffer(b"".join(one.entry for one in given_up), ENTRY)


def _tell(given_up: Iterable[_GivenUp]) -> None:
    for one in given_up:
        if one.told is not None:
            one.told()
