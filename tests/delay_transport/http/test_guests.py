"""Who comes is let in; who is being answered stays; those from where most come have to go."""

import random

import pytest

from delay_transport.http.guests import Guest, Guests


class Room:
    """Guests, and what became of each."""

    def __init__(self, connections_max: int) -> None:
        self.guests = Guests(connections_max)
        self.gone: list[Guest] = []

    def come(self, where: str, *, is_answered: bool = False) -> Guest | None:
        guest = self.guests.admit(where)
        if guest is not None:
            guest.go = lambda: self.gone.append(guest)
            guest.is_answered = lambda: is_answered
        return guest


async def test_for_one_too_many_the_oldest_of_those_from_where_most_come_has_to_go() -> None:
    room = Room(5)
    few = [room.come("few") for _ in range(2)]
    many = [room.come("many") for _ in range(3)]
    for _ in range(3):
        assert room.come("other") is not None
        assert len(room.guests) == 5
    # Of two places from where as many come it is the one that is known for longer.
    assert room.gone == [many[0], few[0], many[1]]
    assert room.guests.shown_out == 3


async def test_who_is_being_answered_stays_and_where_all_are_nobody_else_is_let_in() -> None:
    room = Room(3)
    answered = [room.come("a", is_answered=True) for _ in range(2)]
    waiting = room.come("b")
    assert room.come("c", is_answered=True) is not None
    assert room.gone == [waiting]
    assert room.come("d") is None
    assert room.guests.refused == 1
    assert answered[0] is not None
    room.guests.leave(answered[0])
    assert room.come("d") is not None


@pytest.mark.parametrize("seed", range(5))
async def test_there_are_never_too_many_and_none_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    room = Room(20)
    inside: set[Guest] = set()
    busy: set[Guest] = set()
    for _ in range(2000):
        if inside and chance.random() < 0.3:
            leaving = chance.choice(sorted(inside, key=id))
            room.guests.leave(leaving)
            # What ended by itself may be told of twice.
            room.guests.leave(leaving)
            inside.discard(leaving)
        else:
            is_answered = chance.random() < 0.5
            guest = room.come(chance.choice("abc"), is_answered=is_answered)
            inside -= set(room.gone)
            if guest is None:
                assert inside <= busy
            else:
                inside.add(guest)
                busy |= {guest} if is_answered else set()
        assert len(room.guests) == len(inside) <= 20
    assert not busy & set(room.gone)
    assert len(room.gone) == room.guests.shown_out > 0
