"""Records messages that a receiver wants to have later as MOVE records.

    receiver settles LATER --> is appended --> is committed --> is filed, which settles the old row

Until the last step the message is held here, which counts as out of the wheel, so that no other
part delivers it. A crash before the record is durable delivers it again; after it the message is
due at its new time, here or at the next master.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.errors import BodyError
from delay_protocol.basics.subjects import real_subject
from delay_protocol.messages.items import item_message_ids
from delay_server.accepting.admission import Admission
from delay_server.accepting.commits import Committer, Records
from delay_server.accepting.intake import Intake
from delay_server.filing.unfiled import UnfiledRecords
from sender.groups.readable import ReadItems
from sender.queues.parcels import Batch
from storage.batch.columns import RecordKind
from storage.batch.entries import Entries
from storage.batch.facts import Outcome
from storage.logs.message_log import Draft


class NotMovableError(Exception):
    """Items that cannot take the place of messages; the text says why."""


class Moves:
    """Moves messages of a mastership to other due times."""

    def __init__(
        self,
        *,
        committer: Committer,
        admission: Admission,
        read_items: ReadItems,
        subject_name: Callable[[int], bytes],
        subject_for: Callable[[int, str], bytes],
        now_ms: Callable[[], int],
        on_moved: Callable[[Entries], None],
        on_no_space: Callable[[Batch], None],
        on_changed: Callable[[], None],
    ) -> None:
        """Take over the parts.

        subject_for: the subject under which a message goes to one name; on_moved: for messages
        whose MOVE is filed; on_no_space: for those that were not moved, and are to be delivered
        again. Both are held here no longer. on_changed: something was appended, or found no space.
        """
        self._committer = committer
        self._admission = admission
        self._read_items = read_items
        self._subject_name = subject_name
        self._subject_for = subject_for
        self._now_ms = now_ms
        self._on_no_space = on_no_space
        self._on_changed = on_changed
        self.unfiled = UnfiledRecords(Outcome.MOVED, on_moved)
        """Messages held here."""

    def plan(
        self, batch: Batch, items: Sequence[bytes], receiver: str
    ) -> list[tuple[Batch, Draft]]:
        """Return the records that put `items` in the places of messages, with whose they are.

        They go to the name of their receiver alone. Raises NotMovableError if an item is not one
        that may be kept, or is not the same message.
        """
        intake, body = Intake(), b"".join(items)
        try:
            admitted = self._admission.admit(body, self._now_ms(), intake)
        except BodyError as error:
            raise NotMovableError(str(error)) from error
        for _, code, remark in admitted.failures:
            raise NotMovableError(f"{ItemCode(code).name}: {remark}")
        entries, kept = batch.entries, intake.batches()
        sizes = [size for one in kept for size in one.size.tolist()]
        if sizes != list(map(len, items)):
            raise NotMovableError("what goes with a LATER is not one item")
        self._check_same(entries, body, sizes)
        told = [one.subjects[number] for one in kept for number in one.subject.tolist()]
        before = [self._subject_name(number) for number in entries["subject"].tolist()]
        for name, own in zip(told, before, strict=True):
            # A copy has the subject of the message that it is a copy of.
            if name not in {own, real_subject(own)}:
                raise NotMovableError("an item has another subject than its message")
        names = [self._subject_for(number, receiver) for number in entries["subject"].tolist()]
        planned, begin = [], 0
        for one in kept:
            places = np.zeros(len(batch), np.bool_)
            places[begin : begin + len(one)] = True
            part, subjects = batch.those(places), names[begin : begin + len(one)]
            begin += len(one)
            planned.append((part, move_of(part.entries, one.draft(), subjects)))
        return planned

    def _check_same(self, entries: Entries, body: bytes, sizes: Sequence[int]) -> None:
        found, damaged = self._read_items(entries)
        if damaged is not None and damaged.any():
            raise NotMovableError("its message cannot be read")
        if item_message_ids(body, sizes) != item_message_ids(found.joined, found.sizes.tolist()):
            raise NotMovableError("an item has another id than its message")

    def move(self, planned: Sequence[tuple[Batch, Draft]], on_end: Callable[[], None]) -> None:
        """Append planned records, soon; `on_end` hears of each commit, or of a lack of space."""
        for batch, draft in planned:
            self.unfiled.begin(batch.entries)
            self._committer.submit(
                partial(Records, [draft]),
                partial(self._ended, batch, on_end),
                on_durable=partial(self.unfiled.durable, batch.entries),
            )

    def _ended(self, batch: Batch, on_end: Callable[[], None], kept: bool) -> None:  # noqa: FBT001
        if not kept:
            self.unfiled.forget(batch.entries)
            self._on_no_space(batch)
        self._on_changed()
        on_end()


def move_of(entries: Entries, draft: Draft, subjects: Sequence[bytes]) -> Draft:
    """Return the records that put the messages of a draft in the places of others.

    subjects: of each record.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(subjects))}
    arrays = {
        **draft.arrays,
        "subject": np.array([numbers[name] for name in subjects], np.uint16),
        "old_sequence": entries["sequence"].copy(),
        "old_minute": entries["minute"].copy(),
    }
    return replace(draft, kind=RecordKind.MOVE, names=list(numbers), arrays=arrays)
