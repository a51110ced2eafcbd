"""Replaces a message that several names receive by a copy for each of them.

    loaded, or due --> waits --> its bytes are read --> is appended --> is filed, which settles it

A copy has the item byte for byte and its due time; the subject of its record is `%RETRY%S%G`, which
goes to the name G alone (lanes/routes.py). From there on it is a message of its own. All copies of
a message are in one commit: all but the last are MESSAGE records, the last is a MOVE, which names
the message and comes behind the others. So whatever part of a commit a crash leaves, the message is
there, or all copies are; it may come twice, and is never lost.

A commit takes what waits of all subjects, in turn: messages that become due one by one, each of
another subject, would be late if each waited for a commit of its own.

Until the MOVE is filed a message counts as out of the wheel, so that no other part delivers it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, groupby
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.subjects import real_subject, retry_subject
from delay_protocol.messages.items import item_message_ids
from delay_server.accepting.commits import Committer
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.accepting.intake import Intake
from delay_server.filing.unfiled import UnfiledRecords
from delay_server.receiving.moves import move_of
from delay_transport.seams.outbox import Wakeup
from sender.queues.lanes import LaneQueue
from sender.queues.parcels import first_try
from storage.batch.batches import COPIES
from storage.batch.entries import ENTRY, Entries
from storage.logs.message_log import Draft
from storage.readers.item_reader import Items

_ROWS_AT_ONCE: Final = 512
"""Messages copied by one commit at the most; to read so many takes less than a millisecond."""

_BYTES_AT_ONCE: Final = 128 * 1024
"""Their bytes, unless a single message has more; there are up to 16 copies of each."""

_TURN_ROWS: Final = 64
"""Messages of one subject after which it is the turn of the next one."""

_NO_SPACE_RETRY_S: Final = 10.0
"""Each try reads the items once more."""


class Copier:
    """Copies what it is given; one task."""

    def __init__(
        self,
        *,
        committer: Committer,
        budget: DiskBudget,
        unfiled: UnfiledRecords,
        read_items: Callable[[Entries], tuple[Items, npt.NDArray[np.bool_] | None]],
        subject_name: Callable[[int], bytes],
        names_of: Callable[[str], list[str]],
        give_back: Callable[[Entries], None],
        on_damaged: Callable[[Entries], None],
        on_changed: Callable[[], None],
    ) -> None:
        """Take over the parts.

        unfiled: holds messages until their MOVE is filed; names_of: who receives a subject now;
        give_back: for messages of a subject that no name receives any more; on_damaged: for those
        that cannot be read; on_changed: something was appended, or found no space.
        """
        self._committer = committer
        self._budget = budget
        self._unfiled = unfiled
        self._read_items = read_items
        self._subject_name = subject_name
        self.names_of = names_of
        """Returns who receives a subject now; none where it goes to brokers."""
        self._give_back = give_back
        self._on_damaged = on_damaged
        self._on_changed = on_changed
        self._waiting = LaneQueue(turn_items=_TURN_ROWS)
        """Messages to be copied, with the number of a subject as their lane."""
        self._more = Wakeup()
        self.copied = 0
        """Copies that were made."""

    @property
    def count(self) -> int:
        """Messages that wait here; not those whose records are being appended."""
        return self._waiting.count

    def take(self, entries: Entries) -> None:
        """Take messages of subjects that several names receive."""
        subjects = entries["subject"]
        for subject in np.unique(subjects).tolist():
            self._waiting.append(first_try(entries[subjects == subject], lane=subject))
        self._more.wake()

    def held(self) -> Iterator[Entries]:
        """Yield the entries of all messages that wait here."""
        for parcel in self._waiting.parcels():
            yield parcel.entries

    async def run(self) -> None:
        """Copy what comes."""
        while True:
            if not self.count:
                await self._more.sleep()
                continue
            if not await self._copy_next():
                await trio.sleep(_NO_SPACE_RETRY_S)

    async def _copy_next(self) -> bool:
        """Copy as many messages as one commit takes; False if there was no space."""
        entries, subjects = self._next()
        if not len(entries):
            return True
        found, damaged = self._read_items(entries)
        if damaged is not None and damaged.any():
            self._on_damaged(entries[damaged])
            entries, subjects = entries[~damaged], list(compress(subjects, ~damaged))
        if not len(entries):
            return True
        if await self._append(entries, found, subjects):
            self.copied += sum(map(len, subjects))
            return True
        self.take(entries)
        return False

    def _next(self) -> tuple[Entries, list[tuple[bytes, ...]]]:
        """Take what one commit copies; return it with the subjects of the copies of each message.

        Subjects take turns. What no name receives any more is given back instead.
        """
        batch = self._waiting.take(items_max=_ROWS_AT_ONCE, bytes_max=_BYTES_AT_ONCE, any_size=True)
        assert batch is not None, "something waits"
        parts: list[Entries] = [np.zeros(0, ENTRY)]
        subjects: list[tuple[bytes, ...]] = []
        for parcel in batch.by_lane():
            copies = self._copies_of(parcel.lane)
            if copies:
                parts.append(parcel.entries)
                subjects += [copies] * len(parcel)
            else:
                self._give_back(parcel.entries)
        return np.concatenate(parts), subjects

    def _copies_of(self, subject: int) -> tuple[bytes, ...]:
        """Return the subjects of the copies of a message, by the number of its own."""
        name = real_subject(self._subject_name(subject)).decode()
        return tuple(retry_subject(name, one).encode() for one in self.names_of(name))

    async def _append(
        self, entries: Entries, found: Items, subjects: Sequence[tuple[bytes, ...]]
    ) -> bool:
        """Append the copies, under these subjects, until they are durable or find no space."""
        copies = copies_of(entries, found, subjects)
        size = sum(draft.blob_bytes for draft in copies)
        if not self._budget.has_room_below(sum(map(len, subjects)), size):
            return False
        self._unfiled.begin(entries)
        was_kept = await self._committer.commit_records(
            *copies, has_items=False, on_durable=partial(self._unfiled.durable, entries)
        )
        if was_kept:
            self._budget.spend(size)
        else:
            self._unfiled.forget(entries)
        self._on_changed()
        return was_kept


def copies_of(
    entries: Entries, found: Items, subjects: Sequence[tuple[bytes, ...]]
) -> Sequence[Draft]:
    """Return the records that replace messages by copies.

    subjects: those of the copies of each message, one at the least.
    """
    sizes = [len(item) for item in found if len(item)]
    ids = list(map(xxh3_64_intdigest, item_message_ids(found.joined, sizes)))
    edges = [0, *np.cumsum(sizes).tolist()]
    due_ms = entries["due_ms"].tolist()
    intake, moving = Intake(), Intake()
    body, begin = bytes(found.joined), 0
    for (*others, last), same in groupby(subjects):
        end = begin + sum(1 for _ in same)
        for subject in (*others, last):
            (moving if subject is last else intake).add_request(
                body[edges[begin] : edges[end]],
                starts=[edge - edges[begin] for edge in edges[begin:end]],
                sizes=sizes[begin:end],
                due_ms=due_ms[begin:end],
                id_hash=ids[begin:end],
                subjects=[subject] * (end - begin),
            )
        begin = end
    (moved,) = moving.drafts()
    drafts = [*intake.drafts(), move_of(entries, moved, [one[-1] for one in subjects])]
    return [replace(one, features=COPIES) for one in drafts]
