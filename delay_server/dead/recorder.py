"""Records messages that the sender gives up as DEAD records.

    sender gives up --> waits --> is appended --> is filed, which crosses the message off

Until the last step the recorder holds the message, which counts as out of the wheel and in its
lane, so that no other part delivers it again. After a crash a message without a record is loaded
again and refused again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import structlog
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.messages.items import item_message_ids
from delay_server.accepting.commits import Committer
from delay_server.dead.reason import REASON_BYTES_MAX, encode_reason
from delay_server.filing.unfiled import UnfiledRecords
from delay_server.holding.sorted_runs import RAW
from delay_transport.seams.outbox import Wakeup
from sender.outcomes.dead import Refusal
from storage.batch.batches import BATCH_BYTES_MAX
from storage.batch.columns import RecordKind
from storage.batch.entries import ENTRY, Entries
from storage.batch.facts import FactBlock, Outcome
from storage.logs.message_log import Draft
from storage.readers.item_reader import Items

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_ROWS_AT_ONCE = 256
"""Records of one append; reading so many items takes a fraction of a millisecond."""
_BYTES_AT_ONCE = 1024 * 1024
"""Bytes of their items, unless a single one has more."""
_BATCH_SPARE_BYTES = 256
"""What a batch of one takes beside its item and names."""
_GATHERED_S = 0.05
"""How long what was given up waits for more of it: each append costs the loop and the disk."""
_NO_SPACE_RETRY_S = 1.0
_NO_SPACE_RETRY_S_MAX = 30.0
"""After failing again and again: each try reads the items once more."""


@dataclass(slots=True)
class _Doomed:
    """Some messages that were given up together."""

    entries: Entries
    refusals: Sequence[Refusal]
    """The last one of each."""
    tries: Sequence[int]
    told: Sequence[Callable[[], None]] = ()
    """Who is told when they are recorded: of messages that came one by one."""

    def part(self, begin: int, end: int) -> "_Doomed":
        """Return those of these positions."""
        # A copy: one that waits must not keep the array that it came in.
        return _Doomed(
            self.entries[begin:end].copy(), self.refusals[begin:end], self.tries[begin:end]
        )

    @classmethod
    def joined(cls, parts: Sequence["_Doomed"]) -> "_Doomed":
        """Return all of them, in order, as if they had been given up together."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.entries.view(RAW) for part in parts]).view(ENTRY),
            [refusal for part in parts for refusal in part.refusals],
            [tries for part in parts for tries in part.tries],
            [told for part in parts for told in part.told],
        )


class DeadLetterRecorder:
    """Makes dead letters of what the sender gives up."""

    def __init__(
        self,
        *,
        committer: Committer,
        read_items: Callable[[Entries], tuple[Items, npt.NDArray[np.bool_] | None]],
        subject_name: Callable[[int], bytes],
        on_damaged: Callable[[Entries], None],
        on_buried: Callable[[Entries], None],
        on_changed: Callable[[], None],
    ) -> None:
        """Take over the parts.

        on_damaged: for messages whose items cannot be read; on_buried: for those that are crossed
        off: both are held here no longer. on_changed: something was appended, or found no space.
        """
        self._committer = committer
        self._read_items = read_items
        self._subject_name = subject_name
        self._on_damaged = on_damaged
        self._on_buried = on_buried
        self._on_changed = on_changed
        self._waiting: deque[_Doomed] = deque()
        self._unfiled = UnfiledRecords(Outcome.DEAD)
        self._more = Wakeup()
        self._idle = trio.Event()
        self._is_stopping = False
        self._is_appending = False
        self.count = 0
        """Messages held here."""
        self.lacks_space = False
        """Whether the last append found no space; it is tried again."""

    def give_up(
        self,
        entries: Entries,
        refusals: Sequence[Refusal],
        tries: Sequence[int],
        told: Callable[[], None] | None = None,
    ) -> None:
        """Take messages from the sender; `told`, with one of them only, hears of its record."""
        assert told is None or len(entries) == 1
        self.count += len(entries)
        self._waiting.append(_Doomed(entries, refusals, tries, [told] if told else []))
        self._more.wake()

    def held(self) -> Iterator[Entries]:
        """Yield the entries of all messages held here."""
        yield from (doomed.entries for doomed in self._waiting)
        yield from self._unfiled.held()

    def filed(self, facts: FactBlock) -> None:
        """Hear of records that were filed; let go of the messages that these are about."""
        if (entries := self._unfiled.filed(facts)) is not None:
            self._let_go(entries, self._on_buried)

    def _let_go(self, entries: Entries, tell: Callable[[Entries], None]) -> None:
        self.count -= len(entries)
        tell(entries)

    async def run(self) -> None:
        """Append what comes."""
        pause_s = _NO_SPACE_RETRY_S
        while True:
            if not self._may_append():
                self._idle.set()
                await self._more.sleep()
                continue
            # Items are refused a few at a time, but many records cost hardly more than one.
            if not self._is_much():
                await trio.sleep(_GATHERED_S)
                if not self._may_append():
                    continue
            doomed = self._take()
            draft = self._draft(doomed)
            if draft is None:
                _tell(doomed)
                continue
            self._unfiled.begin(doomed.entries)
            self._is_appending = True
            kept = await self._committer.commit_records(
                draft, on_durable=partial(self._unfiled.durable, doomed.entries)
            )
            self._is_appending = False
            self.lacks_space = not kept
            if kept:
                pause_s = _NO_SPACE_RETRY_S
                self._on_changed()
                _tell(doomed)
                continue
            self._unfiled.forget(doomed.entries)
            self._waiting.appendleft(doomed)
            self._on_changed()
            self._idle.set()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _NO_SPACE_RETRY_S_MAX)

    def _may_append(self) -> bool:
        return bool(self._waiting) and not self._is_stopping

    def _is_much(self) -> bool:
        """Say whether an append's worth of records waits."""
        waiting = sum(len(doomed.entries) for doomed in islice(self._waiting, _ROWS_AT_ONCE))
        return waiting >= _ROWS_AT_ONCE

    def _take(self) -> _Doomed:
        """Take what fits into one append from the front of what waits."""
        parts: list[_Doomed] = []
        rows_left, bytes_left = _ROWS_AT_ONCE, _BYTES_AT_ONCE
        while self._waiting and rows_left:
            head = self._waiting.popleft()
            ends = np.cumsum(head.entries["size"][:rows_left], dtype=np.int64)
            count = int(np.searchsorted(ends, bytes_left, side="right"))
            if not parts:
                count = max(count, 1)
            if count < len(head.entries):
                self._waiting.appendleft(head.part(count, len(head.entries)) if count else head)
                parts += [head.part(0, count)] if count else []
                break
            parts.append(head)
            rows_left -= count
            bytes_left -= int(ends[-1])
        return _Doomed.joined(parts)

    def _draft(self, doomed: _Doomed) -> Draft | None:
        """Return the records for some messages; None if all of them are damaged.

        Those that are damaged are taken out of `doomed`.
        """
        found, damaged = self._read_items(doomed.entries)
        items = [item for item in found if len(item)]
        if damaged is not None and damaged.any():
            self._let_go(doomed.entries[damaged], self._on_damaged)
            whole = np.flatnonzero(~damaged).tolist()
            doomed.entries = doomed.entries[~damaged]
            doomed.refusals = [doomed.refusals[place] for place in whole]
            doomed.tries = [doomed.tries[place] for place in whole]
            if not items:
                return None
        entries = doomed.entries
        ids = item_message_ids(found.joined, map(len, items))
        numbers: dict[bytes, int] = {}
        subjects = [
            numbers.setdefault(self._subject_name(subject), len(numbers))
            for subject in entries["subject"].tolist()
        ]
        spare = BATCH_BYTES_MAX - _BATCH_SPARE_BYTES - sum(map(len, items)) - sum(map(len, numbers))
        reason_bytes_max = min(REASON_BYTES_MAX, max(spare // len(items), 0))
        # What was refused together every time has one reason.
        number_of: dict[tuple[int, int], int] = {}
        reasons: list[int] = []
        for refusal, tries in zip(doomed.refusals, doomed.tries, strict=True):
            number = number_of.get((id(refusal), tries))
            if number is None:
                text = encode_reason(refusal, tries, bytes_max=reason_bytes_max)
                number = number_of[id(refusal), tries] = numbers.setdefault(text, len(numbers))
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
        self._idle = trio.Event()
        self._more.wake()
        if self._is_appending:
            await self._idle.wait()


def _tell(doomed: _Doomed) -> None:
    for told in doomed.told:
        told()
