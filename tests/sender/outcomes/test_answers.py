"""Each item of a request gets the code the answer gives it, and nobody is guessed delivered.

It fares by its own codes, whoever shared its requests, its retries and its fate.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.errors import MalformedReplyError
from delay_protocol.messages.items import Item, encode_item
from delay_protocol.messages.send_message import encode_send_reply
from sender.outcomes.answers import (
    REMARK_BYTES,
    answer_bytes_max,
    is_broker_sick,
    item_codes,
    permanent,
)
from sender.outcomes.outcomes import Outcome
from sender.queues.parcels import Batch, Parcel, gathered
from sender.queues.put_off import release_at
from tests.brokers import Received
from tests.sender.broker_rig import ENTRY, QUICK, Reply, Script, rig_of

TRIES_MAX = 3
CONFIG = replace(
    QUICK, refused_base_s=0.1, refused_max_s=1.0, dead_letter_tries=TRIES_MAX, batch_items=32
)
CODES = [*ItemCode, 99]
OUTCOMES = {ItemCode.SUCCESS: Outcome.DELIVERED, ItemCode.MESSAGE_DUPLICATE: Outcome.KNOWN}
PERMANENT = {ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK}
NOTHING = -77
"""Instead of a code: the answer is no answer."""
Told = tuple[str, int]
"""What a group's answer says about an item, once."""


@dataclass
class Read:
    """Items as they were read for a request."""

    joined: bytes | memoryview
    sizes: npt.NDArray[np.int64]


def items_of(*ids: str) -> Read:
    return joined(
        encode_item(
            Item(
                flag=2,
                create_ms=1,
                due_ms=2,
                subject="a.b",
                message_id=message_id,
                tags=(),
                attributes={},
            )
        )
        for message_id in ids
    )


def joined(items: Iterable[bytes]) -> Read:
    found = list(items)
    return Read(b"".join(found), np.array([len(item) for item in found], np.int64))


def codes_of(ids: list[str], answer: list[tuple[str, int]]) -> list[int]:
    body = encode_send_reply([(message_id.encode(), code, "why") for message_id, code in answer])
    found: list[int] = item_codes(items_of(*ids), body).tolist()
    return found


def test_of_an_id_listed_twice_the_last_counts() -> None:
    assert codes_of(["a", "a"], [("a", 4), ("a", 2)]) == [2, 2]


@pytest.mark.parametrize("code", [0, 2, 3, 6, 99])
def test_an_answer_that_lists_a_stranger_is_believed_in_nothing(code: int) -> None:
    with pytest.raises(MalformedReplyError, match=r"1 ids that were not sent, the first is b'xyz'"):
        codes_of(["a", "b"], [("b", 2), ("xyz", code)])


def test_an_answer_that_lists_more_than_the_items_is_read_no_further() -> None:
    whole = encode_send_reply([(b"a", 6, "")] * 2)
    with pytest.raises(MalformedReplyError, match="more results than the 2 items"):
        item_codes(items_of("a", "b"), whole + b"\xff" * 100)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(0, 400)), min_size=1))
def test_there_is_room_for_every_answer_with_remarks_of_the_bound(
    rows: list[tuple[bytes, int]],
) -> None:
    answer = encode_send_reply([(name, 6, "r" * size) for name, size in rows])
    size = sum(40 + len(name) for name, _ in rows)
    most = answer_bytes_max(items=len(rows), size=size)
    assert 24 + len(answer) <= most
    assert most <= 24 + size + len(rows) * (8 + REMARK_BYTES) + 2**16
    # One remark of any length has room in the answer to a single item.
    one = encode_send_reply([(rows[0][0], 6, "r" * (2**15 - 1))])
    assert 24 + len(one) <= answer_bytes_max(items=1, size=size)


def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(MalformedReplyError):
        item_codes(items_of("a"), b"\x00\x01a\x00")


def test_items_given_as_views_are_read_alike() -> None:
    body = encode_send_reply([(b"b", 5, "")])
    items = items_of("a", "b")
    items.joined = memoryview(items.joined)
    assert item_codes(items, body).tolist() == [0, 5]


def test_an_item_that_was_damaged_was_not_sent_and_has_no_code() -> None:
    items = items_of("a", "b", "c")
    whole, sizes = bytes(items.joined), items.sizes.tolist()
    left = Read(whole[: sizes[0]] + whole[sizes[0] + sizes[1] :], np.array([sizes[0], 0, sizes[2]]))
    assert item_codes(left, encode_send_reply([(b"c", 5, "")])).tolist() == [0, 5]


def test_an_illegal_subject_and_a_block_are_permanent_and_nothing_else_is() -> None:
    codes = item_codes(
        items_of(*"abcdefgh"),
        encode_send_reply([(i.encode(), n, "") for n, i in enumerate("abcdefgh")]),
    )
    assert permanent(codes).tolist() == [n in {3, 5} for n in range(8)]


@pytest.mark.parametrize(
    ("codes", "is_sick"),
    [
        ([4, 4], True),
        ([1, 6, 3], True),
        ([4, 0], False),
        ([6, 2], False),
        ([3, 5, 3], False),
        ([99, 99], True),
        ([-1, 3], True),
        ([2**31 - 1], True),
        ([7, 0], False),
        ([99, 2], False),
    ],
)
def test_a_broker_is_sick_if_it_takes_nothing_for_reasons_of_its_own(
    codes: list[int], is_sick: object
) -> None:
    ids = [str(number) for number in range(len(codes))]
    answer = list(zip(ids, codes, strict=True))
    body = encode_send_reply([(i.encode(), code, "") for i, code in answer])
    assert is_broker_sick(item_codes(items_of(*ids), body)) is is_sick


@given(
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=10),
    st.dictionaries(st.sampled_from("abcdefxy"), st.sampled_from([*ItemCode, 99, -2])),
)
def test_every_listed_item_has_its_code_and_all_others_were_taken(
    ids: list[str], listed: dict[str, int]
) -> None:
    if listed.keys() <= set(ids):
        assert codes_of(ids, list(listed.items())) == [listed.get(one, 0) for one in ids]
        return
    with pytest.raises(MalformedReplyError):
        codes_of(ids, list(listed.items()))


def moody(group: str, chance: random.Random, told: dict[bytes, list[Told]]) -> Script:
    """Return a broker that tells each item what it likes, and sometimes of one that is nobody's."""

    def answer(request: Received) -> Reply:
        mood = chance.choice([CODES, [ItemCode.BLOCK], [ItemCode.SUCCESS, ItemCode.BLOCK]])
        codes = {one: int(chance.choice(mood)) for one in request.ids}
        failures = {one: code for one, code in codes.items() if code}
        if chance.random() < 0.1:
            failures[b"nobody's"] = int(ItemCode.STORE_ERROR)
        for one, code in codes.items():
            told.setdefault(one, []).append((group, NOTHING if b"nobody's" in failures else code))
        return Reply(failures=failures)

    return answer


def fate(told: Sequence[Told], *, groups: int) -> tuple[int, object]:
    """Return after how many answers nothing more is to be done for an item, and what became of it.

    That is its outcome with the group, or its history as a dead letter.
    """
    history: list[Told] = []
    for number, (group, code) in enumerate(told, start=1):
        if code in {ItemCode.SUCCESS, ItemCode.MESSAGE_DUPLICATE}:
            return number, (group, OUTCOMES[ItemCode(code)])
        if code not in PERMANENT:
            # It is tried again.
            continue
        history.append((group, code))
        refusers = {one for one, _ in history}
        is_agreed = groups == 1 or len(refusers) > 1 or len(history) >= 2 * TRIES_MAX
        if len(history) >= TRIES_MAX and is_agreed:
            return number, history
    raise AssertionError(f"nothing became of it: {told}")


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
async def test_each_item_is_delivered_tried_again_or_given_up_by_its_own_codes(
    groups: int, seed: int
) -> None:
    chance = random.Random(seed)
    told: dict[bytes, list[Told]] = {}

    async with rig_of(groups, config=CONFIG, seed=seed) as rig:
        rig.sender.gives_up = True
        for broker in rig.brokers:
            broker.script = moody(f"g-{broker.name}", chance, told)
        for lane in (0, 0, 1, 7):
            rig.offer(chance.randint(1, 40), lane=lane)
            await trio.sleep(chance.random() / 10)
        await trio.sleep(2000)
        assert rig.sender.unsent().total == 0
        outcomes = {fact.sequence: (fact.group, fact.outcome) for fact in rig.facts}
        assert len(outcomes) == len(rig.facts)
        for sequence in range(rig.offered):
            answers = told[b"m%d" % sequence]
            tries, expected = fate(answers, groups=groups)
            assert tries == len(answers)
            if isinstance(expected, tuple):
                assert outcomes.pop(sequence) == expected
                continue
            last, count = rig.dead.pop(sequence)
            assert [(one.group, one.code) for one in last.all()] == expected
            assert count == tries
        assert not outcomes
        assert not rig.dead
        counted = Counter(code for answers in told.values() for _, code in answers)
        counts = [status.counts for status in rig.sender.status()]
        assert sum(one.delivered for one in counts) == counted[ItemCode.SUCCESS]
        assert sum(one.known for one in counts) == counted[ItemCode.MESSAGE_DUPLICATE]
        assert sum(one.possible_duplicates for one in counts) == counted[NOTHING]


async def test_items_that_were_refused_a_few_at_a_time_are_tried_again_together() -> None:
    requests: list[int] = []

    def script(request: Received) -> Reply:
        requests.append(len(request.ids))
        return Reply(failures=dict.fromkeys(request.ids, int(ItemCode.BLOCK)))

    config = replace(CONFIG, refused_base_s=1.0, refused_max_s=300.0)
    async with rig_of(config=config) as rig:
        rig.brokers[0].script = script
        rig.sender.gives_up = True
        for _ in range(200):
            rig.offer(1)
            await trio.sleep(0.001)
        assert len(requests) == 200
        await trio.sleep(60)
        assert len(rig.dead) == 200
        assert sum(requests) == 600
        # Waits end within 0.7 s and within 1.2 s, in steps of a 32nd of a second.
        assert len(requests) - 200 <= 24 + 40


@given(st.floats(0, 1e6), st.floats(0.005, 300))
def test_what_waits_is_released_no_sooner_and_hardly_later(now: float, wait_s: float) -> None:
    at = release_at(now, wait_s)
    assert now + wait_s <= at + 1e-9
    assert at <= now + wait_s + min(wait_s / 16, 1 / 32) + 1e-9


def parcels_of(parts: Sequence[tuple[int, int, int]]) -> list[Parcel]:
    """Return parcels of so many entries each, of a lane, with a group to avoid."""
    parcels = []
    first = 0
    for count, lane, avoid in parts:
        entries = np.zeros(count, ENTRY)
        entries["sequence"] = np.arange(first, first + count)
        tries = entries["sequence"].astype(np.uint32) % 5
        parcels.append(Parcel(entries, tries, lane, avoid))
        first += count
    return parcels


def rows_of(parcels: Sequence[Parcel]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for parcel in parcels:
        rows = zip(parcel.entries["sequence"].tolist(), parcel.tries.tolist(), strict=True)
        found.setdefault((parcel.lane, parcel.avoid), []).extend(rows)
    return found


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(-1, 1)), max_size=12))
def test_what_is_alike_is_gathered_in_its_order_with_its_tries(
    parts: list[tuple[int, int, int]],
) -> None:
    parcels = parcels_of(parts)
    whole = gathered(parcels)
    assert rows_of(whole) == rows_of(parcels)
    assert len(whole) == len(rows_of(parcels))
    assert all(parcel.entries.dtype == ENTRY for parcel in whole)


@pytest.mark.parametrize("chosen", [lambda n: n >= 0, lambda n: n < 0, lambda n: n % 2 == 1])
def test_those_of_a_batch_are_what_a_mask_says(
    chosen: Callable[[np.ndarray], np.ndarray],
) -> None:
    (parcel,) = parcels_of([(6, 3, 1)])
    batch = Batch(parcel.entries, parcel.tries, [(3, 4), (5, 2)])
    mask = chosen(batch.entries["sequence"])
    those, copy = batch.those(mask), batch.where(mask)
    assert (those is batch) == bool(mask.all())
    assert those.entries.tolist() == copy.entries.tolist()
    assert those.tries.tolist() == copy.tries.tolist()
    assert list(those.lanes) == list(copy.lanes)


def test_a_copy_keeps_nothing_else_alive() -> None:
    (whole,) = parcels_of([(1000, 3, 1)])
    part = whole.part(5, 7)
    copy = part.copy()
    assert rows_of([copy]) == rows_of([part])
    assert not np.shares_memory(copy.entries, whole.entries)
    assert not np.shares_memory(copy.tries, whole.tries)
