"""What is given up a few at a time is recorded together, each with its own reason."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
import trio
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import ItemCode
from delay_protocol.messages.items import Item, encode_item
from delay_server.accepting.commits import Committer
from delay_server.dead import recorder
from delay_server.dead.reason import decode_reason
from delay_server.dead.recorder import DeadLetterRecorder
from sender.outcomes.dead import Refusal
from storage.batch.entries import ENTRY, Entries
from storage.batch.facts import FactBlock, Outcome
from storage.logs.message_log import Draft
from storage.readers.item_reader import Items


def name_of(sequence: int) -> str:
    return f"m{sequence}"


def item_of(sequence: int) -> bytes:
    return encode_item(
        Item(
            flag=2,
            create_ms=1,
            due_ms=2,
            subject=f"s{sequence % 3}",
            message_id=name_of(sequence),
            tags=(),
            attributes={"k": "v" * (sequence % 50)},
        )
    )


@dataclass
class Reader:
    """Reads items, some of which are damaged."""

    damaged: set[int]

    def read(self, entries: Entries) -> tuple[Items, np.ndarray | None]:
        sequences = entries["sequence"].tolist()
        bad = np.array([one in self.damaged for one in sequences])
        items = [b"" if one in self.damaged else item_of(one) for one in sequences]
        sizes = np.array([len(item) for item in items], np.int64)
        return Items(memoryview(b"".join(items)), sizes), bad if bad.any() else None


@dataclass
class Log:
    """Takes records; for a while there is no space."""

    full_for: int = 0
    drafts: list[Draft] = field(default_factory=list)
    told_after_s: float = 0.0
    """How long it takes from a durable record until anybody is told of its commit."""

    async def commit_records(self, draft: Draft, *, on_durable: Callable[[int], None]) -> bool:
        await trio.sleep(0.003)
        self.full_for -= 1
        if self.full_for < 0:
            self.drafts.append(draft)
            on_durable(0)
            await trio.sleep(self.told_after_s)
        return self.full_for < 0


class Grave:
    """A DeadLetterRecorder, and what came of it."""

    def __init__(self, *, damaged: Sequence[int] = (), full_for: int = 0) -> None:
        self.log = Log(full_for)
        self.damaged: list[int] = []
        self.buried: list[int] = []
        self.dead_recorder = DeadLetterRecorder(
            committer=cast("Committer", self.log),
            read_items=Reader(set(damaged)).read,
            subject_for=lambda number, _: b"s%d" % number,
            on_damaged=lambda entries: self.damaged.extend(entries["sequence"].tolist()),
            on_buried=lambda entries: self.buried.extend(entries["sequence"].tolist()),
            on_changed=lambda: None,
        )

    def give_up(self, sequences: Sequence[int], refusals: Sequence[Refusal]) -> None:
        entries = np.zeros(len(sequences), ENTRY)
        entries["sequence"] = sequences
        entries["subject"] = entries["sequence"] % 3
        entries["size"] = [len(item_of(one)) for one in sequences]
        self.dead_recorder.give_up(entries, refusals, [one % 7 for one in sequences])

    def file_all(self) -> None:
        """File the records, as the schedule_log does."""
        for draft in self.log.drafts:
            count = draft.count
            self.dead_recorder.unfiled.filed(
                FactBlock(
                    sequence=draft.arrays["old_sequence"],
                    minute=draft.arrays["old_minute"],
                    at_ms=np.zeros(count, np.int64),
                    target=np.zeros(count, np.uint16),
                    outcome=np.full(count, Outcome.DEAD, np.uint8),
                    record=np.zeros(count, np.int64),
                    targets=[b""],
                )
            )


def refusal(group: str, at_ms: int) -> Refusal:
    return Refusal(group, int(ItemCode.BLOCK), at_ms, 1)


@pytest.mark.parametrize("seed", range(8))
async def test_however_they_come_each_is_recorded_once_with_its_item_and_its_reason(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_max = 4000 if seed % 2 else 1 << 20
    monkeypatch.setattr(recorder, "_BYTES_AT_ONCE", bytes_max)
    chance = random.Random(seed)
    total = 1500
    damaged = chance.sample(range(total), 20)
    grave = Grave(damaged=damaged, full_for=chance.choice([0, 2]))
    why: dict[int, Refusal] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grave.dead_recorder.run)
        first = 0
        while first < total:
            count = min(chance.choice([1, 1, 2, 5, 600]), total - first)
            shared = refusal("shared", first)
            last = [shared if chance.random() < 0.5 else refusal("own", n) for n in range(count)]
            sequences = range(first, first + count)
            why |= zip(sequences, last, strict=True)
            grave.give_up(sequences, last)
            held = [one for part in grave.dead_recorder.held() for one in part["sequence"].tolist()]
            assert len(held) == len(set(held)) == grave.dead_recorder.count
            await trio.sleep(chance.choice([0, 0.001, 0.2]))
            first += count
        await trio.sleep(100)
        grave.file_all()
        nursery.cancel_scope.cancel()
    whole = [one for one in range(total) if one not in damaged]
    assert grave.buried == whole
    assert sorted(grave.damaged) == sorted(damaged)
    assert grave.dead_recorder.count == 0
    for draft in grave.log.drafts:
        assert draft.count == len(draft.blob) <= 256
        assert sum(map(len, draft.blob)) <= bytes_max
        arrays = draft.arrays
        for place, sequence in enumerate(arrays["old_sequence"].tolist()):
            assert bytes(draft.blob[place]) == item_of(sequence)
            assert arrays["id_hash"][place] == xxh3_64_intdigest(name_of(sequence).encode())
            assert draft.names[arrays["subject"][place]] == b"s%d" % (sequence % 3)
            reason = decode_reason(draft.names[arrays["reason"][place]])
            assert reason is not None
            assert (reason.group, reason.last_ms) == (why[sequence].group, why[sequence].at_ms)
            assert reason.tries == sequence % 7


async def test_those_that_are_given_up_one_by_one_share_appends() -> None:
    grave = Grave()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grave.dead_recorder.run)
        for sequence in range(500):
            grave.give_up([sequence], [refusal("g", sequence)])
            await trio.sleep(0.001)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert sum(draft.count for draft in grave.log.drafts) == 500
    assert len(grave.log.drafts) <= 12


async def test_nothing_is_appended_any_more_that_waits_for_others_when_it_is_closed() -> None:
    grave = Grave()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grave.dead_recorder.run)
        grave.give_up([1], [refusal("g", 1)])
        await trio.sleep(0.001)
        await grave.dead_recorder.stop()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert not grave.log.drafts
    assert [one for part in grave.dead_recorder.held() for one in part["sequence"]] == [1]


async def test_what_finds_no_space_is_tried_now_and_then_until_there_is_some() -> None:
    grave = Grave(full_for=10**6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grave.dead_recorder.run)
        grave.give_up([1, 2], [refusal("g", 1)] * 2)
        await trio.sleep(600)
        assert 10**6 - grave.log.full_for <= 60
        grave.log.full_for = 0
        await trio.sleep(35)
        nursery.cancel_scope.cancel()
    assert [draft.count for draft in grave.log.drafts] == [2]


async def test_what_is_filed_before_anybody_is_told_of_its_commit_is_let_go() -> None:
    """As while a master has no lease: it may file what is committed, and tell nobody."""
    grave = Grave()
    grave.log.told_after_s = 60
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grave.dead_recorder.run)
        grave.give_up([1], [refusal("g", 1)])
        await trio.sleep(1)
        assert grave.dead_recorder.count == 1
        grave.file_all()
        assert grave.buried == [1]
        assert grave.dead_recorder.count == 0
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
