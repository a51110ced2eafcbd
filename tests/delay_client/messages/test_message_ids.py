"""Promise: ids are ULIDs that never repeat and sort in the order in which they were made."""

import random

from delay_client.messages.message_ids import MessageIdMaker

LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
NOW_MS = 1_700_000_000_000


def time_of(message_id: str) -> int:
    number = 0
    for letter in message_id[:10]:
        number = number * 32 + LETTERS.index(letter)
    return number


def test_an_id_has_26_letters_and_tells_when_it_was_made() -> None:
    message_id = MessageIdMaker(random.Random(1)).make(NOW_MS)
    assert len(message_id) == 26
    assert set(message_id) <= set(LETTERS)
    assert time_of(message_id) == NOW_MS


def test_ids_of_one_ms_differ_and_sort_as_made() -> None:
    maker = MessageIdMaker(random.Random(1))
    ids = [maker.make(NOW_MS) for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert ids == sorted(ids)


def test_ids_of_later_ms_sort_after_earlier_ones() -> None:
    maker = MessageIdMaker(random.Random(1))
    ids = [maker.make(NOW_MS + step // 3) for step in range(300)]
    assert ids == sorted(set(ids))


def test_a_clock_set_back_repeats_no_id() -> None:
    maker = MessageIdMaker(random.Random(1))
    ids = [maker.make(NOW_MS + step) for step in (0, 1, 0, 1, 0)]
    assert len(set(ids)) == 5


def test_two_makers_of_one_ms_do_not_collide() -> None:
    first = MessageIdMaker(random.SystemRandom())
    second = MessageIdMaker(random.SystemRandom())
    assert first.make(NOW_MS)[:24] != second.make(NOW_MS)[:24]


def test_the_highest_draw_leaves_room_to_count_up() -> None:
    class Highest(random.Random):
        def getrandbits(self, k: int, /) -> int:
            return (1 << k) - 1

    maker = MessageIdMaker(Highest())
    ids = [maker.make(NOW_MS) for _ in range(4096)]
    assert ids == sorted(set(ids))
    assert {time_of(name) for name in ids} == {NOW_MS}
