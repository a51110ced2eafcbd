"""Messages that leave by a record are held until that record is filed."""

import random
from collections import deque

import numpy as np
import pytest

from delay_server.filing.unfiled import UnfiledRecords
from storage.batch.entries import ENTRY, Entries
from storage.batch.facts import FactBlock, Outcome


def entries_of(*sequences: int) -> Entries:
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    return entries


def facts_of(outcome: Outcome, *sequences: int) -> FactBlock:
    count = len(sequences)
    return FactBlock(
        sequence=np.array(sequences, np.int64),
        minute=np.zeros(count, np.uint32),
        at_ms=np.zeros(count, np.int64),
        target=np.zeros(count, np.uint16),
        outcome=np.full(count, outcome, np.uint8),
        record=np.zeros(count, np.int64),
        targets=[b""],
    )


def held_by(unfiled: UnfiledRecords) -> set[int]:
    return {int(one) for entries in unfiled.held() for one in entries["sequence"]}


def with_letters() -> tuple[UnfiledRecords, list[Entries]]:
    """Return an UnfiledRecords of dead letters, and where what it lets go comes to."""
    gone: list[Entries] = []
    return UnfiledRecords(Outcome.DEAD, gone.append), gone


def test_a_record_of_an_earlier_mastership_lets_nothing_go() -> None:
    """A new master files the tail of the one before it, once that is committed."""
    unfiled, gone = with_letters()
    unfiled.filed(facts_of(Outcome.DEAD, 1, 2))
    own = entries_of(5, 6)
    unfiled.begin(own)
    unfiled.filed(facts_of(Outcome.DEAD, 3))
    unfiled.durable(own)
    unfiled.filed(facts_of(Outcome.DEAD, 4))
    unfiled.filed(facts_of(Outcome.DEAD))
    # An operator cancels them meanwhile.
    unfiled.filed(facts_of(Outcome.CANCELLED, 5, 6))
    assert (gone, held_by(unfiled), unfiled.count) == ([], {5, 6}, 2)
    unfiled.filed(facts_of(Outcome.DEAD, 5, 6))
    assert (gone, list(unfiled.held()), unfiled.count) == ([own], [], 0)


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_held_from_its_append_to_its_filing(seed: int) -> None:
    chance = random.Random(seed)
    unfiled, gone = with_letters()
    appending: deque[Entries] = deque()
    durable: deque[Entries] = deque()
    following = 0
    for _ in range(300):
        step = chance.choice(["begin", "durable", "no space", "filed", "of another"])
        if step == "begin":
            count = chance.randint(1, 3)
            appending.append(entries_of(*range(following, following + count)))
            following += count
            unfiled.begin(appending[-1])
        elif step == "durable" and appending:
            durable.append(appending.popleft())
            unfiled.durable(durable[-1])
        elif step == "no space" and appending:
            unfiled.forget(appending.popleft())
        elif step == "filed" and durable:
            expected = durable.popleft()
            unfiled.filed(facts_of(Outcome.DEAD, *expected["sequence"]))
            assert gone.pop() is expected
        elif step == "of another":
            unfiled.filed(facts_of(Outcome.DEAD, following + 10))
        held = {int(one) for part in (*appending, *durable) for one in part["sequence"]}
        assert (held_by(unfiled), unfiled.count, gone) == (held, len(held), [])
