"""Looks at all rows agree with what was accepted and settled, whatever came between two of them."""

import errno
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from storage.batch.columns import Columns, RecordKind
from storage.batch.facts import Outcome
from storage.batch.item_formats import qmq_message_id
from storage.disk.disk import ReadableFile
from storage.disk.spans import DEAD_MINUTES_FROM
from storage.readers.looking import (
    OTHERS,
    CountLook,
    FindLook,
    FoundRow,
    Look,
    PageLook,
    Present,
    take_present,
)
from storage.schedule.keys import BEFORE_ALL, Key
from tests.storage.dead_rig import DeadRig
from tests.storage.store_rig import START_MS, StoreRig

HOUR_MS = 3_600_000


def over(look: Look) -> None:
    """Take a look to its end."""
    while not look.step():
        pass


def pending_in(rig: StoreRig) -> dict[int, Key]:
    """Return the keys of all rows that are filed and have no durable fact."""
    last = rig.store.schedule.last_filed
    return {
        sequence: (message.due_ms, sequence)
        for sequence, message in rig.memory.accepted.items()
        if sequence <= last and sequence not in rig.memory.durable_facts | rig.memory.given_up
    }


def page(rig: StoreRig, after: Key, limit: int = 7, **more: int) -> PageLook:
    """Return a page of the subject `gate`."""
    look = PageLook(
        take_present(rig.store.schedule),
        lambda name: name == b"gate",
        after=after,
        limit=limit,
        item_of=qmq_message_id,
        **more,
    )
    over(look)
    return look


@pytest.fixture(params=range(4))
def rig(request: pytest.FixtureRequest) -> StoreRig:
    rig = DeadRig(request.param)
    rig.open()
    for _ in range(200):
        rig.random_step()
    rig.file(count=10**6)
    return rig


def subjects_of(rig: StoreRig) -> Counter[bytes]:
    return Counter(rig.memory.accepted[sequence].subject for sequence in pending_in(rig))


def test_counts_are_those_of_what_is_pending(rig: StoreRig) -> None:
    look = CountLook(
        take_present(rig.store.schedule),
        lambda name: () if name == b"delay" else (name.decode(), "all"),
        names_max=9,
    )
    over(look)
    expected = subjects_of(rig)
    del expected[b"delay"]
    expected[b"all"] = expected.total()
    found = look.by_name()
    assert {name.encode(): numbers for name, numbers in found.items()} == {
        name: [0, number, 0] for name, number in expected.items()
    }
    assert next(iter(found)) == "all"
    assert expected.total() > 20


def test_columns_of_time_are_cut_where_it_is_said(rig: StoreRig) -> None:
    dues = sorted(due_ms for due_ms, _ in pending_in(rig).values())
    first_ms, last_ms = dues[len(dues) // 4], dues[-len(dues) // 4]
    column_ms, columns = (last_ms - first_ms) // 3 + 1, 3
    look = CountLook(
        take_present(rig.store.schedule),
        lambda _: ("a", "b"),
        first_ms=first_ms,
        column_ms=column_ms,
        columns=columns,
        names_max=1,
    )
    over(look)
    expected = [0] * (columns + 2)
    for due_ms in dues:
        expected[min(max((due_ms - first_ms) // column_ms, -1), columns) + 1] += 1
    # The second name has no place of its own.
    assert look.by_name() == {"a": expected, OTHERS: expected}
    assert sum(map(bool, expected)) > 2


def test_pages_miss_nothing_that_was_pending_all_along_and_have_nothing_twice(
    rig: StoreRig,
) -> None:
    """Messages arrive, are delivered, split and sealed between two pages."""
    gate = b"gate"
    always = {s for s in pending_in(rig) if rig.memory.accepted[s].subject == gate}
    seen: list[FoundRow] = []
    after: Key | None = BEFORE_ALL
    while after is not None:
        look = page(rig, after)
        at_once = pending_in(rig)
        assert {row.key[1] for row in look.page} <= at_once.keys()
        covered = look.next or (2**62, 0)
        assert [row.key for row in look.page] == sorted(
            key
            for sequence, key in at_once.items()
            if after < key <= covered and rig.memory.accepted[sequence].subject == gate
        )
        seen += look.page
        after = look.next
        for _ in range(rig.chance.randrange(12)):
            rig.random_step()
        rig.file(count=10**6)
        always &= pending_in(rig).keys()
    sequences = [row.key[1] for row in seen]
    assert len(set(sequences)) == len(sequences)
    assert always <= set(sequences)
    for row in seen:
        message = rig.memory.accepted[row.key[1]]
        assert (row.subject, row.size) == (message.subject, len(message.item))
        assert row.item == qmq_message_id(message.item) != b""


def test_a_full_page_leaves_later_segments_unread() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    for day in range(4, 9):
        rig.commit([START_MS + day * 24 * HOUR_MS] * 30)
    rig.file(count=10**6)
    rig.flush()
    look = page(rig, BEFORE_ALL, limit=3)
    assert look.examined == 30
    assert len(look.page) == 3
    assert look.next == look.page[-1].key


def test_rows_that_are_due_at_one_time_are_in_order_wherever_they_lie() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    due_ms = START_MS + 100 * HOUR_MS
    for _ in range(3):
        rig.commit([due_ms] * 6)
        rig.file(count=10**6)
        if not rig.store.schedule.segments:
            rig.flush()
    assert rig.store.schedule.unwritten()
    seen: list[int] = []
    after: Key | None = BEFORE_ALL
    while after is not None:
        look = page(rig, after, limit=1)
        seen += [row.sequence for row in look.page]
        after = look.next
    accepted = rig.memory.accepted
    assert seen == [one for one in sorted(accepted) if accepted[one].subject == b"gate"]
    assert len(seen) == 6


def test_what_is_settled_before_it_was_written_is_not_pending() -> None:
    rig = DeadRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 100 * HOUR_MS] * 3)
    rig.file(count=10**6)
    [block] = rig.store.schedule.unwritten()
    gone = int(block.sequence[1])
    arrays = {"old_sequence": np.array([gone]), "old_minute": block.minute[1:2].astype(np.uint32)}
    rig._append(RecordKind.CANCEL, Columns(names=[], arrays=arrays), [])
    rig.file(count=10**6)
    assert rig.store.schedule.unwritten() == [block]
    look = CountLook(take_present(rig.store.schedule), lambda _: ("all",), names_max=9)
    over(look)
    assert look.by_name() == {"all": [0, 2, 0]}
    search = found(rig, 1)
    [row] = [row for row in search.found if row.sequence == gone]
    assert (row.segment, search.facts[gone].outcome) == ("", Outcome.CANCELLED)


def test_a_dead_letter_that_waits_for_space_is_not_pending() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 100 * HOUR_MS] * 3)
    rig.file(count=10**6)
    present = take_present(rig.store.schedule)
    [block] = present.waiting
    dead = replace(block, minute=np.full(3, DEAD_MINUTES_FROM + 20_000))
    for waiting, pending in (([block], 3), ([block, dead], 3), ([dead], 0)):
        look = PageLook(replace(present, waiting=waiting), lambda _: True, limit=9)
        over(look)
        assert len(look.page) == pending


def test_what_is_taken_down_stays_as_it_is(rig: StoreRig) -> None:
    """A look that is slow sees nothing of what is filed, settled, split or written after it."""
    present = take_present(rig.store.schedule)
    expected = pending_in(rig)
    for _ in range(60):
        rig.random_step()
    look = PageLook(present, lambda _: True, limit=10**6)
    over(look)
    assert {row.key[1]: row.key for row in look.page} == expected


def found(rig: StoreRig, id_hash: int, present: Present | None = None) -> FindLook:
    look = FindLook(present or take_present(rig.store.schedule), [id_hash])
    over(look)
    return look


def test_all_with_one_hash_are_found_with_their_columns_and_whether_they_are_done(
    rig: StoreRig,
) -> None:
    """The rig gives the first of each batch the hash 0, the second 1."""
    rig.cross_off()
    seen: dict[int, bool] = {}
    limit = 20
    for id_hash in range(50):
        look = found(rig, id_hash)
        assert look.is_complete
        for row in look.found:
            message = rig.memory.accepted[row.sequence]
            shown = (row.due_ms, row.minute, row.subject, row.item)
            assert shown == (message.due_ms, message.minute, message.subject, message.item)
            assert row.sequence not in seen
            seen[row.sequence] = row.sequence in look.facts
        if len(look.found) >= limit:
            return
    done = rig.memory.durable_facts | rig.memory.given_up
    assert {sequence for sequence, is_done in seen.items() if is_done} <= done
    assert {sequence for sequence, is_done in seen.items() if not is_done} == (
        rig.memory.accepted.keys() - done
    )
    nothing = found(rig, 2**64 - 1)
    assert (nothing.found, nothing.is_complete) == ([], True)


def test_an_unreadable_segment_is_said(rig: StoreRig) -> None:
    rig.flush()
    states = [state for state in take_present(rig.store.schedule).segments if state.length]
    lost = random.Random(1).choice(states)
    present = take_present(rig.store.schedule)
    rig.disk.damage(lost.key.path, 64 + 80 + 20, b"\xff\xff")
    makes: list[Callable[[], Look]] = [
        lambda: PageLook(present, lambda _: True, limit=10**6),
        lambda: CountLook(present, lambda _: (), names_max=1),
        lambda: FindLook(present, [2**64 - 1]),
    ]
    for make in makes:
        look = make()
        over(look)
        assert look.unreadable == 1
        assert look.examined


def test_rows_whose_facts_cannot_be_opened_are_not_taken_for_pending(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.flush()
    rig.cross_off()
    present = take_present(rig.store.schedule)
    minutes = {row.minute for row in rig.memory.accepted.values()}
    sealed = replace(present, segments=[], waiting=[], facts=[])

    def fails(path: str) -> ReadableFile:
        if path.startswith("dispatch_log/"):
            raise OSError(errno.EIO, "made up")
        return type(rig.disk).open_read(rig.disk, path)

    monkeypatch.setattr(rig.disk, "open_read", fails)
    for id_hash in range(50):
        look = FindLook(sealed, [id_hash], minutes=minutes)
        over(look)
        assert all(look.facts[row.sequence].outcome is None for row in look.found)
        if look.found:
            return
    raise AssertionError("nothing was found")
