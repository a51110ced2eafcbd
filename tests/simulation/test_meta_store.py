"""The model of the store takes and refuses what the real one does, and fails as it is told to."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from meta_server.known import model
from meta_server.known.errors import (
    StoreUnavailableError,
)
from tests.simulation.meta_store import Medium, Outcome, SimStore, StoreFaults

NOW_S = 7.0
GROUP = model.BrokerGroup(name="g", kind=model.GroupKind.NORMAL, master="h:1")


class Rig:
    """A store that fails as told."""

    def __init__(self, **chances: float) -> None:
        self.medium = Medium()
        self.faults = StoreFaults(
            chances={Outcome[name]: chance for name, chance in chances.items()}
        )
        self.taken_s: list[float] = []
        self.later: list[Callable[[], None]] = []
        self.store = SimStore(
            self.medium,
            self.faults,
            random.Random(1),
            take_time=self.taken_s.append,
            tally=Counter(),
            later=lambda _, call: self.later.append(call),
        )

    def save(self) -> None:
        self.store.load()
        self.store.commit([model.Save(GROUP)])

    @property
    def is_kept(self) -> bool:
        return "g" in self.medium.rows[model.BrokerGroup]


@pytest.mark.parametrize(("outcome", "kept"), [("LOST", False), ("KEPT", True), ("LATE", False)])
def test_a_commit_that_fails_is_kept_or_not_as_drawn(outcome: str, kept: bool) -> None:
    async def body() -> None:
        rig = Rig(**{outcome: 1.0})
        with pytest.raises(StoreUnavailableError):
            rig.save()
        assert rig.is_kept is kept
        for call in rig.later:
            call()
        assert rig.is_kept is (outcome != "LOST")

    trio.run(body, clock=MockClock())


def test_the_history_says_how_a_row_was_after_each_commit_and_what_must_be_known() -> None:
    times = [1.0]
    medium = Medium(now=lambda: times[-1])
    medium.commit([model.Save(GROUP)])
    times.append(2.0)
    second = model.BrokerGroup(name="g", kind=model.GroupKind.NORMAL, master="h:2", version=2)
    medium.hide(0.5)
    medium.commit([model.Save(second)])
    assert [medium.row_at(model.BrokerGroup, "g", number) for number in range(3)] == [
        None,
        GROUP,
        second,
    ]
    assert medium.changed_in(model.BrokerGroup, "g", 0, 1) == [1]
    assert medium.changed_in(model.BrokerGroup, "g", 0, 2) == [1, 2]
    assert [medium.number_at(at_s) for at_s in (0.5, 1.0, 2.0)] == [0, 1, 2]
    # An answer that is slow, and what may be known before it: nothing of the second commit.
    assert [medium.known_at(at_s) for at_s in (0.5, 1.5, 2.3, 2.6)] == [0, 1, 1, 2]
    times.append(3.0)
    medium.hide()
    times.append(9.0)
    assert medium.known_at(9.0) == 2
    medium.commit([])
    assert medium.known_at(9.5) == 2
    medium.loaded()
    assert medium.known_at(9.5) == 3


def test_a_store_that_is_set_back_is_what_it_was_and_ends_the_connections_of_before() -> None:
    async def body() -> None:
        rig = Rig()
        rig.save()
        second = replace(GROUP, master="h:2", version=2)
        other = model.BrokerGroup(name="other", kind=model.GroupKind.NORMAL, master="h:3")
        entry = model.AuditEntry(at_ms=1, actor="a", action="b", target="c", before="", after="")
        rig.store.commit([model.Save(second), model.Save(other), model.Audit(entry)])
        rig.store.commit([model.RaiseTimestamp(7)])
        medium = rig.medium
        medium.set_back(1)
        assert medium.rows[model.BrokerGroup] == {"g": GROUP}
        assert (medium.timestamp_ms, medium.audit) == (0, [])
        assert [medium.row_at(model.BrokerGroup, "g", number) for number in (1, 2, 4)] == [
            *(GROUP, second, GROUP)
        ]
        assert medium.row_at(model.BrokerGroup, "other", 4) is None
        with pytest.raises(StoreUnavailableError, match="older"):
            rig.store.commit([model.RaiseTimestamp(8)])
        assert rig.store.load().of(model.BrokerGroup) == (GROUP,)
        rig.store.commit([model.Save(second)])
        assert medium.rows[model.BrokerGroup] == {"g": second}
        medium.set_back(0)
        assert medium.rows[model.BrokerGroup] == {}

    trio.run(body, clock=MockClock())
