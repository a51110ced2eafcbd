"""The model of the store takes and refuses what the real one does, and fails as it is told to."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from trio.testing import MockClock

from meta_server.known import model
from meta_server.known.errors import (
    ConflictError,
    StoreUnavailableError,
)
from meta_server.sql.databases import DatabaseSettings
from meta_server.sql.store import SqlStore, open_store
from tests.meta_server.sql.test_store import changes, empty, sorted_rows
from tests.seeds import examples
from tests.simulation.meta_store import GROUPS, Medium, Outcome, SimStore, StoreFaults

NOW_S = 7.0
GROUP = model.BrokerGroup(name="g", kind=model.GroupKind.NORMAL, master="h:1")


@pytest.fixture
def sql_store(tmp_path: Path) -> Iterator[SqlStore]:
    where = DatabaseSettings(url=f"sqlite:///{tmp_path / 'meta.db'}")
    with closing(open_store(where, now_ms=0, chance=random.Random(0))) as store:
        yield store


audits = st.builds(
    model.Audit,
    st.builds(
        model.AuditEntry,
        at_ms=st.integers(0, 9),
        actor=st.just("ops"),
        action=st.sampled_from(["add", "remove"]),
        target=st.just("g"),
    ),
)


@examples(
    80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.lists(changes | audits, max_size=6), max_size=10))
def test_the_model_and_a_database_take_and_refuse_the_same_commits(
    sql_store: SqlStore, commits: list[list[model.Change]]
) -> None:
    empty(sql_store)
    medium = Medium(now=lambda: NOW_S)

    def outcome(commit: Callable[[list[model.Change]], None], several: list[model.Change]) -> str:
        try:
            commit(several)
        except ConflictError:
            return "conflict"
        return "kept"

    for several in commits:
        assert outcome(medium.commit, several) == outcome(sql_store.commit, several)
        assert sorted_rows(medium.contents()) == sorted_rows(sql_store.load())
    kept = [row.entry for row in sql_store.read_audit(limit=100)]
    assert [row.entry for row in reversed(medium.audit)] == kept


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
        self.store.commit([model.SaveBrokerGroup(GROUP)])

    @property
    def is_kept(self) -> bool:
        return "g" in self.medium.rows[GROUPS]


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
    medium.commit([model.SaveBrokerGroup(GROUP)])
    times.append(2.0)
    second = model.BrokerGroup(name="g", kind=model.GroupKind.NORMAL, master="h:2", version=2)
    medium.hide(0.5)
    medium.commit([model.SaveBrokerGroup(second)])
    assert [medium.row_at(GROUPS, "g", number) for number in range(3)] == [None, GROUP, second]
    assert medium.changed_in(GROUPS, "g", 0, 1) == [1]
    assert medium.changed_in(GROUPS, "g", 0, 2) == [1, 2]
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
        rig.store.commit(
            [model.SaveBrokerGroup(second), model.SaveBrokerGroup(other), model.Audit(entry)]
        )
        rig.store.commit([model.RaiseTimestamp(7)])
        medium = rig.medium
        medium.set_back(1)
        assert medium.rows[GROUPS] == {"g": GROUP}
        assert (medium.timestamp_ms, medium.audit) == (0, [])
        assert [medium.row_at(GROUPS, "g", number) for number in (1, 2, 4)] == [
            *(GROUP, second, GROUP)
        ]
        assert medium.row_at(GROUPS, "other", 4) is None
        with pytest.raises(StoreUnavailableError, match="older"):
            rig.store.commit([model.RaiseTimestamp(8)])
        assert rig.store.load().broker_groups == (GROUP,)
        rig.store.commit([model.SaveBrokerGroup(second)])
        assert medium.rows[GROUPS] == {"g": second}
        medium.set_back(0)
        assert medium.rows[GROUPS] == {}

    trio.run(body, clock=MockClock())
