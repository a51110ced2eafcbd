"""What was committed is there, all of it or none, whatever database it is in and whatever happens.

Each test runs on SQLite and on PostgreSQL, but for those that are about one of them.
"""

import os
import random
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import event, inspect, text

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.known import model
from meta_server.known.errors import (
    ConflictError,
    OtherSchemaError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)
from meta_server.sql.databases import Database, DatabaseSettings, open_database
from meta_server.sql.schema import SCHEMA
from meta_server.sql.store import SqlStore, open_store
from meta_server.sql.tables import TABLES
from tests.meta_server.memory_store import Medium, MemoryStore
from tests.meta_server.private_postgresql import PrivatePostgresql
from tests.seeds import examples

NOW_MS: Final = 1_700_000_000_000


@dataclass(frozen=True)
class Place:
    """Where a test's store is."""

    kind: str
    url: str
    path: Path
    """Of the file, if it is one."""
    server: PrivatePostgresql | None = None
    database: str = ""

    def settings(self, **changed: int) -> DatabaseSettings:
        return DatabaseSettings(url=self.url, **changed)

    def open(self, *, seed: int = 0, **changed: int) -> SqlStore:
        chance = random.Random(seed)
        return open_store(self.settings(**changed), now_ms=NOW_MS, chance=chance)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement behind the store's back."""
        if self.server is not None:
            return self.server.execute(statement, database=self.database)
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()


ON_POSTGRESQL = [pytest.mark.process, pytest.mark.long]
"""What SQLite does a PostgreSQL most likely does too: `make test` asks only where they differ."""

on_both = pytest.mark.parametrize(
    "place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.process)], indirect=True
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=ON_POSTGRESQL)])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(
        "file_place" if request.param == "sqlite" else "server_place"
    )
    return found


def _file_place(folder: Path) -> Place:
    path = folder / "meta.db"
    return Place("sqlite", f"sqlite:///{path}", path)


@pytest.fixture
def file_place(tmp_path: Path) -> Place:
    return _file_place(tmp_path)


@pytest.fixture
def server_place(postgresql: PrivatePostgresql, tmp_path: Path) -> Iterator[Place]:
    with postgresql.database() as name:
        yield Place("postgresql", postgresql.url(name), tmp_path / "none", postgresql, name)


@pytest.fixture
def store(place: Place) -> Iterator[SqlStore]:
    with closing(place.open()) as opened:
        yield opened


# What is kept

GROUP = model.BrokerGroup(
    name="g1",
    kind=model.GroupKind.DELAY,
    master="10.0.0.5:20801",
    state=BrokerState.R,
    tag="t",
    ext={"room": "r1", "é": ""},
    weight=7,
    is_read_only=True,
    is_retired=True,
    updated_ms=NOW_MS,
)
BROKER = model.Broker(
    hostname="h", serve_port=20881, ip="10.0.0.1", group="g1", role=BrokerRole.SLAVE, sync_port=1
)
SUBJECT = model.Subject(name="boarding", tag="t", created_ms=NOW_MS)
ROUTE = model.Route(name="boarding", groups=("g2", "g1"), is_chosen=False)
NODE = model.DelayNode(
    cluster="c",
    group="dg",
    node_id="n1",
    log_uuid=UUID(int=1),
    storage_uuid=UUID(int=2**128 - 1),
    incarnation=2**62,
    boot_id=UUID(int=2**127 + 3),
    last_sequence=2**63 - 1,
    last_epoch=3,
    address="h:1",
    http_address="h:3",
    software="0.1",
    registered_ms=NOW_MS,
)
RECORD = GroupRecord(
    epoch=1,
    version=1,
    master=Master(node_id="n1", incarnation=2**63 - 1),
    in_sync={"n1": UUID(int=5), "n2": UUID(int=6)},
    min_isr=2,
    phase=Phase.ACTIVE,
)
DELAY_GROUP = model.DelayGroup(name="dg", cluster="c", log_uuid=UUID(int=1), record=RECORD)
ENTRY = model.AuditEntry(
    at_ms=NOW_MS, actor="ops", action="route.set", target="boarding", before="", after='{"a":1}'
)

CONTROLS: Final = model.ClusterControls(
    cluster="c1",
    controls=Controls(version=1, subjects={"täg.*": SubjectControl(paused=True)}),
)

EVERYTHING: Final[tuple[model.Change, ...]] = (
    model.SaveBrokerGroup(GROUP),
    model.SaveBroker(BROKER),
    model.SaveSubject(SUBJECT),
    model.SaveRoute(ROUTE),
    model.SaveRoute(replace(ROUTE, is_prefix=True, is_brought=True)),
    model.SaveDelayNode(NODE),
    model.SaveDelayGroup(DELAY_GROUP, expected=None),
    model.RaiseTimestamp(NOW_MS),
    model.SaveControls(CONTROLS),
    model.Audit(ENTRY),
)

ALL_OF_IT: Final = model.Contents(
    broker_groups=(GROUP,),
    brokers=(BROKER,),
    subjects=(SUBJECT,),
    routes=(ROUTE, replace(ROUTE, is_prefix=True, is_brought=True)),
    delay_nodes=(NODE,),
    delay_groups=(DELAY_GROUP,),
    controls=(CONTROLS,),
    timestamp_ms=NOW_MS,
)


def entries_of(store: model.MetaStore) -> list[model.AuditEntry]:
    return [row.entry for row in reversed(store.read_audit(limit=1000))]


def electing(epoch: int, version: int, **in_sync: UUID) -> model.DelayGroup:
    record = GroupRecord(
        epoch=epoch,
        version=version,
        master=None,
        in_sync=in_sync,
        min_isr=1,
        phase=Phase.ELECTING,
    )
    return replace(DELAY_GROUP, record=record)


def test_a_new_store_has_nothing(store: SqlStore) -> None:
    assert store.load() == model.Contents()
    assert store.read_audit(limit=10) == ()


@on_both
def test_everything_comes_back_as_it_was_also_from_a_store_opened_anew(place: Place) -> None:
    with closing(place.open()) as store:
        store.commit(EVERYTHING)
        assert store.load() == ALL_OF_IT
    with closing(place.open(seed=1)) as store:
        assert store.load() == ALL_OF_IT
        assert entries_of(store) == [ENTRY]


@examples(
    25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=4, max_size=4))
@on_both
def test_texts_come_back_whatever_is_in_them(store: SqlStore, texts: list[str]) -> None:
    first, second, third, fourth = texts
    broker = model.Broker(
        hostname=first, serve_port=1, ip=second, group=third, role=BrokerRole.SLAVE
    )
    group = model.BrokerGroup(
        name=first, kind=model.GroupKind.NORMAL, master=second, ext={third: fourth}
    )
    route = model.Route(name=first, groups=(first, second))
    store.commit([model.SaveBroker(broker), model.SaveBrokerGroup(group), model.SaveRoute(route)])
    found = store.load()
    assert (found.brokers, found.broker_groups, found.routes) == ((broker,), (group,), (route,))
    later = replace(group, version=2)
    store.commit(
        [model.SaveBrokerGroup(later), model.RemoveBroker(broker), model.RemoveRoute(route)]
    )
    assert store.load() == model.Contents(broker_groups=(later,))
    store.commit([model.SaveBrokerGroup(replace(later, version=3, name=first))])
    empty(store)


def test_a_group_of_receivers_comes_back_with_its_routes(place: Place) -> None:
    group = model.BrokerGroup(
        name="r1", kind=model.GroupKind.RECEIVER, master="", state=BrokerState.RW, updated_ms=7
    )
    route = model.Route(name="orders.", is_prefix=True, groups=("r1",), is_chosen=False)
    with closing(place.open()) as store:
        store.commit([model.SaveBrokerGroup(group), model.SaveRoute(route)])
    with closing(place.open(seed=1)) as store:
        assert store.load() == model.Contents(broker_groups=(group,), routes=(route,))


def empty(store: SqlStore) -> None:
    """Take every row away, but for what tells which store it is."""
    with store._begin() as connection:
        for table in reversed(TABLES.sorted_tables):
            if table.name not in {"schema_version", "store_identity", "last_timestamp"}:
                connection.execute(table.delete())
        connection.execute(text("UPDATE last_timestamp SET timestamp_ms = 0"))


@pytest.mark.parametrize("name", ["a\0b", "\0", "\\", "\\0", "\\\\0\0\\", "%s", ":name", "'", '"'])
def test_texts_that_mean_something_to_a_database_mean_nothing_to_the_store(
    store: SqlStore, name: str
) -> None:
    store.commit([model.SaveSubject(model.Subject(name=name))])
    store.commit([model.SaveSubject(model.Subject(name=name, tag=name, version=2))])
    assert store.load().subjects == (model.Subject(name=name, tag=name, version=2),)


@on_both
def test_names_are_compared_byte_for_byte(store: SqlStore) -> None:
    names = ["a", "A", "a ", "\u00e1", "a\u0301", "ß", "ss", ""]
    store.commit([model.SaveSubject(model.Subject(name=name)) for name in names])
    assert {subject.name for subject in store.load().subjects} == set(names)


# Compare and set


def test_a_delay_group_is_replaced_by_epoch_and_version(store: SqlStore) -> None:
    store.commit([model.SaveDelayGroup(DELAY_GROUP, expected=None)])
    with pytest.raises(ConflictError, match="expected none, found epoch 1 version 1"):
        store.commit([model.SaveDelayGroup(DELAY_GROUP, expected=None)])
    later = electing(2, 1, n2=UUID(int=6), n3=UUID(int=7))
    for expected in ((1, 2), (2, 1), (0, 1), (1, 0)):
        with pytest.raises(ConflictError, match="found epoch 1 version 1"):
            store.commit([model.SaveDelayGroup(later, expected=expected)])
    assert store.load().delay_groups == (DELAY_GROUP,)
    store.commit([model.SaveDelayGroup(later, expected=(1, 1))])
    assert store.load().delay_groups == (later,)
    alone = electing(2, 2)
    store.commit([model.SaveDelayGroup(alone, expected=(2, 1))])
    assert store.load().delay_groups == (alone,)


@pytest.mark.parametrize("place_of_it", [0, 57, 99])
@on_both
def test_of_a_commit_with_a_conflict_nothing_is_kept_and_the_row_is_named(
    store: SqlStore, place_of_it: int
) -> None:
    store.commit([model.SaveSubject(model.Subject(name=f"s{place_of_it}")), model.Audit(ENTRY)])
    before = store.load()
    with pytest.raises(ConflictError) as refused:
        store.commit(
            [
                *EVERYTHING,
                *(model.SaveSubject(model.Subject(name=f"s{number}")) for number in range(100)),
                model.Audit(ENTRY),
            ]
        )
    assert refused.value.what == f"subject 's{place_of_it}'"
    assert store.load() == before
    assert entries_of(store) == [ENTRY]
    store.commit(EVERYTHING)


def test_one_of_many_rows_replaced_that_has_another_version_is_named(store: SqlStore) -> None:
    rows = [replace(SUBJECT, name=f"s{number}") for number in range(20)]
    store.commit([model.SaveSubject(row) for row in rows])
    store.commit([model.SaveSubject(replace(rows[7], version=2))])
    with pytest.raises(ConflictError, match="subject 's7': expected version 1, found version 2"):
        store.commit([model.SaveSubject(replace(row, version=2)) for row in rows])
    assert {row.version for row in store.load().subjects if row.name != "s7"} == {1}


def test_the_timestamp_only_rises(store: SqlStore) -> None:
    for raised, expected in ((5, 5), (3, 5), (5, 5), (9, 9), (-1, 9)):
        store.commit([model.RaiseTimestamp(raised)])
        assert store.load().timestamp_ms == expected
    store.commit([model.RaiseTimestamp(20), model.RaiseTimestamp(12)])
    assert store.load().timestamp_ms == 20


def test_the_audit_is_read_newest_first_and_page_by_page(store: SqlStore) -> None:
    for start in range(0, 25, 5):
        store.commit([model.Audit(replace(ENTRY, at_ms=start + place)) for place in range(5)])
    found: list[int] = []
    before = None
    while page := store.read_audit(before=before, limit=7):
        assert len(page) == min(7, 25 - len(found))
        numbers = [row.number for row in page]
        assert numbers == sorted(numbers, reverse=True)
        found += [row.entry.at_ms for row in page]
        before = numbers[-1]
    assert found == list(range(24, -1, -1))


def test_entries_that_are_older_are_forgotten(store: SqlStore) -> None:
    store.commit([model.Audit(replace(ENTRY, at_ms=at_ms)) for at_ms in (5, 3, 9, 4, 8, 6, 7)])
    store.commit([model.ForgetAudit(7), model.ForgetAudit(2)])
    assert [row.at_ms for row in entries_of(store)] == [9, 8, 7]
    # A number is given out once.
    newest = max(row.number for row in store.read_audit(limit=9))
    store.commit([model.ForgetAudit(10)])
    store.commit([model.Audit(ENTRY)])
    [row] = store.read_audit(limit=9)
    assert row.number > newest


def test_a_look_for_old_entries_goes_by_the_index(store: SqlStore, place: Place) -> None:
    store.commit([model.Audit(replace(ENTRY, at_ms=at_ms)) for at_ms in range(2000)])
    query = "DELETE FROM audit WHERE at_ms < 5"
    if place.kind == "sqlite":
        assert "INDEX audit_age" in str(place.execute(f"EXPLAIN QUERY PLAN {query}"))
    else:
        place.execute("ANALYZE audit")
        assert "audit_age" in str(place.execute(f"EXPLAIN {query}"))


def test_the_audit_of_a_commit_that_fails_is_not_kept(store: SqlStore) -> None:
    with pytest.raises(ConflictError):
        store.commit(
            [model.Audit(ENTRY), model.SaveSubject(replace(SUBJECT, version=2)), model.Audit(ENTRY)]
        )
    assert entries_of(store) == []


# The registry applies in memory what the store has kept: both must mean the same

names = st.sampled_from(["a", "b", "\0"])
versions = st.integers(1, 3)
hosts = st.builds(
    model.Broker,
    hostname=names,
    serve_port=st.just(1),
    ip=st.just(""),
    group=names,
    role=st.sampled_from([BrokerRole.MASTER, BrokerRole.SLAVE]),
    version=versions,
)
routes = st.builds(
    model.Route,
    name=names,
    is_prefix=st.booleans(),
    groups=st.lists(names, min_size=1, max_size=2, unique=True).map(tuple),
    version=versions,
)
nodes = st.builds(
    lambda name, group, version: replace(NODE, node_id=name, group=group, version=version),
    names,
    names,
    versions,
)
changes = st.one_of(
    st.builds(model.SaveSubject, st.builds(model.Subject, name=names, tag=names, version=versions)),
    st.builds(
        lambda name, version: model.SaveBrokerGroup(replace(GROUP, name=name, version=version)),
        names,
        versions,
    ),
    st.builds(
        lambda name, version: model.RemoveBrokerGroup(replace(GROUP, name=name, version=version)),
        names,
        versions,
    ),
    st.builds(
        lambda name, epoch, version: model.RemoveDelayGroup(
            replace(electing(epoch, version), name=name)
        ),
        names,
        st.integers(1, 2),
        st.integers(1, 2),
    ),
    hosts.map(model.SaveBroker),
    hosts.map(lambda broker: model.SaveBroker(replace(broker, version=1))),
    hosts.map(model.RemoveBroker),
    routes.map(model.SaveRoute),
    routes.map(model.RemoveRoute),
    st.builds(
        model.RemoveSubject, st.builds(model.Subject, name=names, tag=names, version=versions)
    ),
    nodes.map(model.SaveDelayNode),
    nodes.map(model.RemoveDelayNode),
    st.builds(
        lambda name, log, epoch, version, expected: model.SaveDelayGroup(
            replace(electing(epoch, version), name=name, log_uuid=UUID(int=log)),
            expected=expected,
        ),
        names,
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(1, 2),
        st.none() | st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ),
    st.just(model.RaiseTimestamp(7)),
    st.builds(
        lambda cluster, version: model.SaveControls(
            model.ClusterControls(cluster=cluster, controls=Controls(version=version))
        ),
        names,
        versions,
    ),
)


def sorted_rows(contents: model.Contents) -> dict[str, object]:
    return {
        field.name: sorted(map(repr, rows)) if isinstance(rows, tuple) else rows
        for field in fields(contents)
        for rows in [getattr(contents, field.name)]
    }


@examples(
    60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.lists(changes, max_size=6), max_size=10))
def test_a_database_and_the_registry_take_and_refuse_the_same_commits(
    store: SqlStore, commits: list[list[model.Change]]
) -> None:
    empty(store)
    memory = MemoryStore(Medium())
    for several in commits:
        outcomes = []
        for one in (memory, store):
            try:
                one.commit(several)
            except ConflictError:
                outcomes.append("conflict")
            else:
                outcomes.append("kept")
        assert outcomes[0] == outcomes[1]
        assert sorted_rows(store.load()) == sorted_rows(memory.load())


# Several at once


def test_two_stores_of_one_database_see_what_the_other_committed(place: Place) -> None:
    with closing(place.open()) as first, closing(place.open(seed=1)) as second:
        first.commit([model.SaveSubject(SUBJECT)])
        assert second.load().subjects == (SUBJECT,)
        second.commit([model.SaveSubject(replace(SUBJECT, version=2))])
        with pytest.raises(ConflictError, match="found version 2"):
            first.commit([model.SaveSubject(replace(SUBJECT, version=2))])


@on_both
def test_what_is_loaded_is_of_one_moment_whatever_is_committed_meanwhile(place: Place) -> None:
    with closing(place.open()) as store, closing(place.open(seed=1)) as other:
        other.commit([model.SaveSubject(SUBJECT)])
        number = 0

        def commit_more(*_: object) -> None:
            nonlocal number
            number += 1
            name = f"s{number}"
            route = model.SaveRoute(model.Route(name=name, groups=("g",)))
            other.commit([model.SaveSubject(model.Subject(name=name)), route])

        # After each table that is read.
        event.listen(store._database._engine, "after_cursor_execute", commit_more)
        found = store.load()
        event.remove(store._database._engine, "after_cursor_execute", commit_more)
        assert number > 9
        subjects = {subject.name for subject in found.subjects} - {SUBJECT.name}
        assert subjects == {route.name for route in found.routes}
        assert len(store.load().subjects) == number + 1


@on_both
def test_stores_that_are_opened_at_once_make_the_tables_once(place: Place) -> None:
    opened: list[SqlStore] = []
    barrier = threading.Barrier(4)

    def open_one(seed: int) -> None:
        barrier.wait()
        opened.append(place.open(seed=seed))

    threads = [threading.Thread(target=open_one, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    assert len({store._store_uuid for store in opened}) == 1
    for store in opened:
        store.close()
    assert place.execute("SELECT version FROM schema_version") == [(SCHEMA,)]


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.meta_server.store_processes", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


@pytest.mark.process
@on_both
def test_of_two_processes_that_compare_and_set_one_wins_each_time(place: Place) -> None:
    with closing(place.open()) as store:
        store.commit([model.SaveDelayGroup(DELAY_GROUP, expected=None)])
        racers = [child("race", place.url, node_id, "60") for node_id in ("n1", "n2")]
        won: list[tuple[int, int]] = []
        try:
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == "ready\n"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            for racer in racers:
                output, _ = racer.communicate(timeout=60)
                assert racer.returncode == 0
                for line in output.splitlines():
                    epoch, version = map(int, line.split())
                    won.append((epoch, version))
        finally:
            for racer in racers:
                racer.kill()
                racer.wait()
        assert sorted(won) == [(number, number) for number in range(1, 121)]
        [group] = store.load().delay_groups
        assert (group.record.epoch, group.record.version) == (121, 121)
        assert group.record.master is not None
        assert group.record.in_sync == {group.record.master.node_id: UUID(int=120)}
        # Nobody's audit is there without its change.
        assert [entry.target for entry in entries_of(store)] == [str(n) for n in range(2, 122)]


@pytest.mark.process
@on_both
def test_a_writer_that_is_killed_loses_nothing_that_it_was_told_is_durable(place: Place) -> None:
    kept = 0
    for cycle in range(6):
        writer = child("write", place.url, str(kept))
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        acknowledged = kept - 1
        for _ in range(10 + 13 * cycle):
            acknowledged = int(writer.stdout.readline())
        # In the middle of whatever it does now.
        with writer:
            writer.kill()
            # Not communicate(): that passes over lines which readline() has fetched ahead.
            rest = writer.stdout.read()
        acknowledged = max([acknowledged, *map(int, rest.split())])
        with closing(place.open()) as store:
            found = store.load()
            subjects = sorted(int(subject.name[1:]) for subject in found.subjects)
            routes = sorted(int(route.name[1:]) for route in found.routes)
            audited = [row.entry.at_ms for row in reversed(store.read_audit(limit=100_000))]
        kept = len(subjects)
        assert subjects == routes == audited == list(range(kept))
        # One more may be durable of which nobody was told.
        assert acknowledged < kept <= acknowledged + 2
    assert kept > 200


# A store that fails


@on_both
def test_a_writer_that_waits_too_long_for_another_one_is_told_so(place: Place) -> None:
    with closing(place.open()) as holder, closing(place.open(statement_ms_max=200)) as store:
        holder.commit([model.SaveSubject(SUBJECT)])
        with holder._begin() as connection:
            connection.execute(text("UPDATE subject_info SET tag = 'held'"))
            with pytest.raises(StoreUnavailableError):
                store.commit([model.SaveSubject(replace(SUBJECT, version=2))])
            # Readers do not wait for writers.
            assert store.load().subjects == (SUBJECT,)
        store.commit([model.SaveSubject(replace(SUBJECT, version=2))])
        assert store.load().subjects == (replace(SUBJECT, version=2),)


def test_a_number_or_text_that_no_database_takes_is_refused_and_nothing_is_kept(
    store: SqlStore,
) -> None:
    for impossible in (
        model.SaveSubject(replace(SUBJECT, created_ms=2**63)),
        model.SaveSubject(replace(SUBJECT, name="\ud800")),
    ):
        with pytest.raises(StoreRefusedError):
            store.commit([model.SaveBroker(BROKER), impossible])
    assert store.load() == model.Contents()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE broker_group SET kind = 9",
        "UPDATE broker_group SET ext = '{'",
        "UPDATE broker SET role = 99",
        "UPDATE delay_group SET phase = 'idle'",
        "UPDATE subject_route SET broker_group_json = '1'",
        "DELETE FROM store_identity",
        "DELETE FROM schema_version",
        "DROP TABLE broker",
        "DELETE FROM last_timestamp",
    ],
)
def test_rows_that_make_no_sense_make_the_store_unusable(
    place: Place, store: SqlStore, statement: str
) -> None:
    store.commit(EVERYTHING)
    place.execute(statement)
    with pytest.raises(StoreUnusableError):
        store.load()


def test_another_store_in_the_place_of_the_one_opened_is_not_taken_for_it(
    place: Place, store: SqlStore
) -> None:
    other = UUID(int=9)
    place.execute(f"UPDATE store_identity SET store_uuid = '{other.hex}'")  # noqa: S608
    for use in (store.load, lambda: store.commit([model.SaveSubject(SUBJECT)])):
        with pytest.raises(StoreUnusableError, match=str(other)):
            use()
    assert place.execute("SELECT count(*) FROM subject_info") == [(0,)]


# SQLite


def test_a_commit_to_a_file_is_synced_and_checked(file_place: Place) -> None:
    with closing(file_place.open()) as store, store._begin(reads=True) as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 10_000,
    }


def move(path: Path, target: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{ending}").rename(f"{target}{ending}")


def test_a_file_that_is_moved_away_is_missed_and_used_again_when_it_is_back(
    file_place: Place,
) -> None:
    aside = file_place.path.with_name("aside.db")
    with closing(file_place.open()) as store:
        store.commit([model.SaveSubject(SUBJECT)])
        move(file_place.path, aside)
        for use in (
            lambda: store.commit([model.SaveSubject(replace(SUBJECT, name="lost"))]),
            lambda: store.commit([model.SaveSubject(replace(SUBJECT, name="lost too"))]),
            store.load,
        ):
            with pytest.raises(StoreUnavailableError):
                use()
        # An empty file in its place would be a store that knows of no route.
        assert not file_place.path.exists()
        move(aside, file_place.path)
        assert SUBJECT in store.load().subjects
        store.commit([model.SaveSubject(replace(SUBJECT, version=2))])


def test_a_log_that_is_taken_away_from_its_file_is_missed(file_place: Place) -> None:
    with closing(file_place.open()) as store:
        store.commit([model.SaveSubject(SUBJECT)])
        Path(f"{file_place.path}-wal").unlink()
        with pytest.raises(StoreUnavailableError, match="was moved or replaced"):
            store.commit([model.SaveSubject(replace(SUBJECT, name="lost"))])


def test_a_folder_that_is_not_there_is_a_store_that_cannot_be_reached(tmp_path: Path) -> None:
    place = _file_place(tmp_path / "missing")
    with pytest.raises(StoreUnavailableError, match="unable to open"):
        place.open()
    place.path.parent.mkdir()
    place.open().close()


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(file_place: Place) -> None:
    file_place.path.write_bytes(b"minutes of a meeting\n" * 400)
    with pytest.raises(StoreUnusableError, match="not a database") as caught:
        file_place.open()
    assert str(file_place.path) in str(caught.value)
    assert ".backup" in str(caught.value)
    assert file_place.path.read_bytes() == b"minutes of a meeting\n" * 400


def test_a_file_with_bytes_gone_bad_is_unusable(file_place: Place) -> None:
    with closing(file_place.open()) as store:
        store.commit(
            [model.SaveSubject(model.Subject(name=f"s{number}")) for number in range(5000)]
        )
    with file_place.path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for at in range(4096, size, 4096):
            file.seek(at)
            file.write(b"\xff" * 100)
    with pytest.raises(StoreUnusableError, match=r"is damaged.*put a copy"):
        file_place.open()


@pytest.mark.parametrize(("kind", "table"), [("table", "audit"), ("index", "subject_info")])
def test_damage_where_nobody_reads_at_the_start_is_found_then(
    file_place: Place, kind: str, table: str
) -> None:
    with closing(file_place.open()) as store:
        store.commit([model.SaveSubject(SUBJECT), model.Audit(ENTRY)])
    query = f"SELECT rootpage FROM sqlite_master WHERE type = '{kind}' AND tbl_name = '{table}'"  # noqa: S608
    [[page], *_] = file_place.execute(query)
    [[page_bytes]] = file_place.execute("PRAGMA page_size")
    with file_place.path.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * 100)
    with pytest.raises(StoreUnusableError, match=r"is damaged.*put a copy") as caught:
        file_place.open()
    assert str(file_place.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_copy_made_while_the_server_writes_is_a_store_of_one_moment(
    file_place: Place, tmp_path: Path
) -> None:
    copy = _file_place(tmp_path / "copy")
    copy.path.parent.mkdir()
    with closing(file_place.open()) as store:
        for number in range(50):
            store.commit([model.SaveSubject(model.Subject(name=f"s{number}")), model.Audit(ENTRY)])
            if number == 30:
                with (
                    closing(sqlite3.connect(file_place.path)) as source,
                    closing(sqlite3.connect(copy.path)) as target,
                ):
                    source.backup(target)
    with closing(copy.open(seed=9)) as store:
        assert len(store.load().subjects) == len(entries_of(store)) == 31
        store.commit([model.SaveSubject(model.Subject(name="more"))])


def test_the_log_of_a_file_is_cut_when_a_long_reader_is_gone(file_place: Place) -> None:
    log = file_place.path.with_name("meta.db-wal")
    with closing(file_place.open()) as store:
        with closing(sqlite3.connect(file_place.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM audit").fetchone()
            big = model.Audit(replace(ENTRY, after="x" * 1_000_000))
            for _ in range(30):
                store.commit([big])
            assert log.stat().st_size > 25_000_000
        # Once all of it is in the file, the log begins anew, at what it may keep.
        for _ in range(3):
            store.commit([model.Audit(ENTRY)])
        assert log.stat().st_size <= 17_000_000
        # Without readers it stays small, however much is written.
        for _ in range(40):
            store.commit([big])
        assert log.stat().st_size <= 17_000_000


def test_what_is_forgotten_makes_room_for_what_comes(file_place: Place) -> None:
    with closing(file_place.open()) as store:
        sizes = []
        for turn in range(8):
            entry = replace(ENTRY, at_ms=turn, after="x" * 2000)
            store.commit([model.Audit(entry) for _ in range(1000)])
            store.commit([model.ForgetAudit(turn)])
            store._database._engine.dispose()
            sizes.append(file_place.path.stat().st_size)
        # The file has room for twice as many, at the most, and does not grow any more.
        assert sizes[-1] < sizes[2] * 1.05


@contextmanager
def pragma(store: SqlStore, setting: str) -> Iterator[None]:
    """Give the store's connection another setting, as long as it lives."""
    with store._begin(reads=True) as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
    driver.execute(f"PRAGMA {setting}")
    yield


def fill_up(store: SqlStore) -> list[str]:
    """Save subjects until there is no room; return those that were taken."""
    taken: list[str] = []
    for number in range(1000):
        name = f"{number}" + "x" * 4000
        try:
            store.commit([model.SaveSubject(model.Subject(name=name)), model.Audit(ENTRY)])
        except StoreUnavailableError:
            return taken
        taken.append(name)
    raise AssertionError("there is room without end")


def test_a_full_disk_is_a_typed_error_and_what_was_taken_before_is_kept(
    file_place: Place,
) -> None:
    with closing(file_place.open()) as store:
        with pragma(store, "max_page_count=120"):
            taken = fill_up(store)
        assert len(taken) > 5
        found = store.load()
        assert {subject.name for subject in found.subjects} == set(taken)
        assert len(entries_of(store)) == len(taken)
        # There is room again.
        store.commit([model.SaveSubject(SUBJECT)])


def test_a_write_that_fails_is_a_typed_error_and_what_was_taken_before_is_kept(
    file_place: Place,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(file_place.open()) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
        try:
            taken = fill_up(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(taken) > 5
        found = {subject.name for subject in store.load().subjects}
        assert set(taken) <= found
        store.commit([model.SaveSubject(SUBJECT)])
    with closing(file_place.open()) as store:
        assert {subject.name for subject in store.load().subjects} == found | {SUBJECT.name}


def test_a_read_only_file_is_read_and_changes_are_a_typed_error(file_place: Place) -> None:
    with closing(file_place.open()) as store:
        store.commit([model.SaveSubject(SUBJECT)])
        with pragma(store, "query_only=1"):
            assert store.load().subjects == (SUBJECT,)
            with pytest.raises(StoreUnavailableError, match="readonly"):
                store.commit([model.SaveSubject(replace(SUBJECT, version=2))])
        store.commit([model.SaveSubject(replace(SUBJECT, version=2))])


# PostgreSQL


@pytest.mark.process
def test_a_commit_to_a_server_is_synchronous_whatever_the_database_says(
    server_place: Place,
) -> None:
    server_place.execute(f"ALTER DATABASE {server_place.database} SET synchronous_commit = off")
    with closing(server_place.open()) as store, store._begin() as connection:
        found = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
    assert found == "on"


@pytest.mark.process
def test_a_server_that_goes_away_is_missed_and_used_again_when_it_is_back(
    server_place: Place,
) -> None:
    server = server_place.server
    assert server is not None
    with closing(server_place.open()) as store:
        store.commit(EVERYTHING)
        server.stop(restarts=True)
        try:
            for use in (store.load, lambda: store.commit([model.SaveSubject(SUBJECT)])):
                for _ in range(2):
                    with pytest.raises(StoreUnavailableError):
                        use()
            with pytest.raises(StoreUnavailableError):
                server_place.open()
        finally:
            server.start()
        assert store.load() == ALL_OF_IT
        store.commit([model.SaveSubject(replace(SUBJECT, version=2))])


@pytest.mark.process
def test_a_connection_that_was_cut_between_two_calls_is_made_anew(server_place: Place) -> None:
    with closing(server_place.open()) as store:
        store.commit([model.SaveSubject(SUBJECT)])
        cut_off(server_place)
        store.commit([model.SaveSubject(replace(SUBJECT, version=2))])
        cut_off(server_place)
        assert store.load().subjects == (replace(SUBJECT, version=2),)


@pytest.mark.process
def test_a_connection_that_is_cut_in_mid_commit_is_a_typed_error(server_place: Place) -> None:
    with closing(server_place.open()) as store:

        def commit() -> None:
            with store._begin() as connection:
                connection.execute(text("INSERT INTO last_timestamp VALUES (2, 2)"))
                cut_off(server_place)

        with pytest.raises(StoreUnavailableError):
            commit()
        store.commit([model.SaveSubject(SUBJECT)])
    assert server_place.execute("SELECT id FROM last_timestamp") == [(1,)]


def cut_off(place: Place) -> None:
    place.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.mark.process
def test_a_server_that_only_reads_is_read_and_changes_are_a_typed_error(
    server_place: Place,
) -> None:
    with closing(server_place.open()) as store:
        store.commit([model.SaveSubject(SUBJECT)])
        database = server_place.database
        server_place.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        cut_off(server_place)
        assert store.load().subjects == (SUBJECT,)
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.commit([model.SaveSubject(replace(SUBJECT, version=2))])


@pytest.mark.process
def test_a_database_that_is_not_there_or_not_ours_to_use_cannot_be_reached(
    server_place: Place,
) -> None:
    assert server_place.server is not None
    url = server_place.server.url("missing")
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        replace(server_place, url=url).open()
    with pytest.raises(StoreUnavailableError):
        replace(server_place, url="postgresql+psycopg://u:secret@127.0.0.1:1/x").open()


@pytest.mark.process
def test_a_database_that_cannot_hold_every_letter_is_refused(
    postgresql: PrivatePostgresql,
) -> None:
    with (
        postgresql.database("ENCODING LATIN1") as name,
        pytest.raises(StoreUnusableError, match="LATIN1"),
    ):
        open_store(DatabaseSettings(url=postgresql.url(name)), now_ms=0, chance=random.Random(0))


@pytest.mark.process
def test_a_name_that_no_index_of_the_server_holds_is_refused_and_nothing_is_kept(
    server_place: Place,
) -> None:
    with closing(server_place.open()) as store:
        name = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=9000))
        with pytest.raises(StoreRefusedError):
            store.commit([model.SaveBroker(BROKER), model.SaveSubject(model.Subject(name=name))])
        assert store.load() == model.Contents()


@pytest.mark.process
def test_two_commits_that_lock_each_other_out_end_with_a_conflict_of_one(
    server_place: Place,
) -> None:
    first, second = replace(SUBJECT, name="a"), replace(SUBJECT, name="b")
    with closing(server_place.open()) as one, closing(server_place.open()) as other:
        one.commit([model.SaveSubject(first), model.SaveSubject(second)])
        outcomes: list[str] = []
        met = threading.Barrier(2)
        lock = text("UPDATE subject_info SET tag = 't' WHERE name = :row")

        def change(store: SqlStore, *rows: str) -> None:
            try:
                with store._begin() as connection:
                    for row in rows:
                        connection.execute(lock, {"row": row})
                        if row == rows[0]:
                            met.wait(10)
            except ConflictError:
                outcomes.append("conflict")
            else:
                outcomes.append("kept")

        threads = [
            threading.Thread(target=change, args=(one, "a", "b")),
            threading.Thread(target=change, args=(other, "b", "a")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outcomes) == ["conflict", "kept"]


# Settings


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no database URL"),
        ("meta.db", "no database URL"),
        ("sqlite://", "no file"),
        ("sqlite:///:memory:", "no file"),
        ("mysql://h/x", "names mysql"),
        ("postgresql://h/x", "names postgresql"),
        ("sqlite+aiosqlite:///x", "names sqlite"),
    ],
)
def test_what_names_no_store_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DatabaseSettings(url=url)


def test_a_driver_that_is_not_installed_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnusableError, match=r"pip install 'psycopg\[binary\]>=3.3'"):
        open_database(DatabaseSettings(url="postgresql+psycopg://h/x"))


def test_a_password_is_in_no_error() -> None:
    reachable_by_nobody = DatabaseSettings(url="postgresql+psycopg://user:secret@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailableError) as refused:
        open_store(reachable_by_nobody, now_ms=0, chance=random.Random(0))
    assert "secret" not in str(refused.value)
    for url in ("mysql://user:secret@h/x", "user:secret@h"):
        with pytest.raises(ValueError, match="url") as unknown:
            DatabaseSettings(url=url)
        assert "secret" not in str(unknown.value)


# Tables


def database_of(place: Place) -> Database:
    return open_database(place.settings())


@pytest.mark.parametrize("version", [SCHEMA - 1, SCHEMA + 1])
def test_a_store_of_another_version_is_refused_and_left_as_it_is(
    version: int, place: Place
) -> None:
    with closing(place.open()) as store:
        place.execute(f"UPDATE schema_version SET version = {version}")  # noqa: S608
        for use in (store.load, lambda: store.commit([model.SaveSubject(SUBJECT)]), place.open):
            with pytest.raises(OtherSchemaError, match=f"version {version} and"):
                use()
        place.execute(f"UPDATE schema_version SET version = {SCHEMA}")  # noqa: S608
        assert store.load() == model.Contents()


def test_tables_that_cannot_be_made_leave_an_empty_database(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_of(_connection: object) -> UUID:
        raise StoreUnusableError("it dies")

    with monkeypatch.context() as patch:
        patch.setattr("meta_server.sql.store.store_of", store_of)
        with pytest.raises(StoreUnusableError, match="it dies"):
            place.open()
    with closing(database_of(place)) as database, database.begin(reads=True) as connection:
        assert inspect(connection).get_table_names() == []


def test_a_database_that_is_somebody_elses_is_refused_and_left_as_it_is(place: Place) -> None:
    place.execute("CREATE TABLE broker (id INTEGER)")
    with pytest.raises(StoreUnusableError, match="has tables already"):
        place.open()
    with closing(database_of(place)) as database, database.begin(reads=True) as connection:
        assert inspect(connection).get_table_names() == ["broker"]
