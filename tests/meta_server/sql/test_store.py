"""What was committed is there, all of it or none, whatever database it is in and whatever happens.

Each test runs on SQLite and on PostgreSQL, but for those that are about one of them.
"""

import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import replace
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
from meta_server.sql.databases import open_database, read_url
from meta_server.sql.store import SqlStore, open_store
from meta_server.sql.tables import AUDIT, ROW, SCHEMA, STORE
from tests.meta_server.memory_store import Medium, MemoryStore
from tests.meta_server.meta_rig import record
from tests.meta_server.private_postgresql import PrivatePostgresql
from tests.seeds import examples
from tests.simulation import meta_store

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

    def open(self, *, seed: int = 0, **changed: int) -> SqlStore:
        chance = random.Random(seed)
        return open_store(read_url(self.url), chance=chance, **changed)

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
    speaker="é",
    weight=7,
    is_read_only=True,
    is_retired=True,
    updated_ms=NOW_MS,
)
BROKER = model.Broker(
    hostname="h", serve_port=20881, ip="10.0.0.1", group="g1", role=BrokerRole.SLAVE, sync_port=1
)
SUBJECT = model.Subject(name="boarding", created_ms=NOW_MS)
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

RECEIVER = model.Receiver(name="billing", patterns=("boarding", "o.*"), tries=3, waits="1s 2m")
EVERYTHING: Final[tuple[model.Change, ...]] = (
    model.Save(GROUP),
    model.Save(BROKER),
    model.Save(SUBJECT),
    model.Save(ROUTE),
    model.Save(replace(ROUTE, is_prefix=True)),
    model.Save(RECEIVER),
    model.Save(NODE),
    model.Save(DELAY_GROUP),
    model.RaiseTimestamp(NOW_MS),
    model.Save(CONTROLS),
    model.Audit(ENTRY),
)

ALL_OF_IT: Final = model.Contents(
    rows=tuple(change.row for change in EVERYTHING if isinstance(change, model.Save)),
    timestamp_ms=NOW_MS,
)


def entries_of(store: model.MetaStore) -> list[model.AuditEntry]:
    return [row.entry for row in reversed(store.read_audit(limit=1000))]


def electing(epoch: int, version: int, **in_sync: UUID) -> model.DelayGroup:
    return replace(DELAY_GROUP, record=record(epoch, version, master=None, min_isr=1, **in_sync))


@on_both
def test_everything_comes_back_as_it_was_also_from_a_store_opened_anew(place: Place) -> None:
    with closing(place.open()) as store:
        store.commit(EVERYTHING)
        assert sorted_rows(store.load()) == sorted_rows(ALL_OF_IT)
    with closing(place.open(seed=1)) as store:
        assert sorted_rows(store.load()) == sorted_rows(ALL_OF_IT)
        assert entries_of(store) == [ENTRY]


@examples(
    25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sets(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
@on_both
def test_texts_come_back_whatever_is_in_them(store: SqlStore, texts: set[str]) -> None:
    # Compared byte for byte, and nothing of it means anything to a database.
    texts |= {"a", "A", "a ", "\u00e1", "a\u0301", "ß", "ss", "", "a\0b", "\\0", "%s", ":n", "'"}
    empty(store)
    groups = [replace(GROUP, name=text, speaker=text, version=1) for text in sorted(texts)]
    store.commit([model.Save(group) for group in groups])
    later = [replace(group, master=group.name, version=2) for group in groups]
    store.commit([model.Save(group) for group in later])
    assert sorted_rows(store.load()) == sorted_rows(model.Contents(rows=tuple(later)))


def empty(store: SqlStore) -> None:
    """Take every row away, but for what tells which store it is."""
    with store._begin() as connection:
        connection.execute(ROW.delete())
        connection.execute(AUDIT.delete())
        connection.execute(STORE.update().values(timestamp_ms=0))


# Compare and set


def test_a_delay_group_is_replaced_by_epoch_and_version(store: SqlStore) -> None:
    store.commit([model.Save(DELAY_GROUP)])
    with pytest.raises(ConflictError, match="row"):
        store.commit([model.Save(DELAY_GROUP)])
    later = electing(2, 1, n2=UUID(int=6), n3=UUID(int=7))
    for expected in ("1.2", "2.1", "0.1", "1.0"):
        with pytest.raises(ConflictError, match='delay-group "dg": 0 of 1 rows'):
            store.commit([model.Save(later, over=expected)])
    assert store.load().of(model.DelayGroup) == (DELAY_GROUP,)
    store.commit([model.Save(later, over="1.1")])
    assert store.load().of(model.DelayGroup) == (later,)
    alone = electing(2, 2)
    store.commit([model.Save(alone, over="2.1")])
    assert store.load().of(model.DelayGroup) == (alone,)


@pytest.mark.parametrize("place_of_it", [0, 57, 99])
@on_both
def test_of_a_commit_with_a_conflict_nothing_is_kept_and_the_row_is_named(
    store: SqlStore, place_of_it: int
) -> None:
    store.commit([model.Save(model.Subject(name=f"s{place_of_it}")), model.Audit(ENTRY)])
    before = store.load()
    with pytest.raises(ConflictError) as refused:
        store.commit(
            [
                *EVERYTHING,
                *(model.Save(model.Subject(name=f"s{number}")) for number in range(100)),
                model.Audit(ENTRY),
            ]
        )
    named = (
        f"s{place_of_it}" if store._database._engine.name == "postgresql" else "row.kind, row.key"
    )
    assert named in str(refused.value)
    assert store.load() == before
    assert entries_of(store) == [ENTRY]
    store.commit(EVERYTHING)


@on_both
def test_at_most_one_row_of_a_kind_has_a_claim_also_when_it_is_replaced(store: SqlStore) -> None:
    other = replace(BROKER, role=BrokerRole.MASTER)
    master = replace(other, hostname="other")
    store.commit([model.Save(BROKER), model.Save(master)])
    for taken in (replace(BROKER, role=BrokerRole.BACKUP), replace(other, version=2)):
        with pytest.raises(ConflictError):
            store.commit([model.Save(taken)])
    assert sorted_rows(store.load())["rows"] == sorted(map(repr, (BROKER, master)))
    # Once it is free it may be had.
    store.commit([model.Remove(BROKER)])
    store.commit([model.Save(replace(other, version=2))])


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
    # A number is given out once.
    newest = store.read_audit(limit=1)[0].number
    store.commit([model.ForgetAudit(25), model.Audit(ENTRY)])
    [row] = store.read_audit(limit=9)
    assert row.number > newest


# The registry applies in memory what the store has kept: both must mean the same

names = st.sampled_from(["a", "b", "\0"])
numbers = st.integers(1, 3)
rows = st.one_of(
    st.builds(model.Subject, name=names, version=numbers),
    st.builds(lambda name, version: replace(GROUP, name=name, version=version), names, numbers),
    st.builds(
        lambda name, group, role, version: replace(
            BROKER, hostname=name, group=group, role=role, version=version
        ),
        *(names, names, st.sampled_from([BrokerRole.MASTER, BrokerRole.SLAVE]), numbers),
    ),
    st.builds(
        model.Route,
        name=names,
        is_prefix=st.booleans(),
        groups=st.lists(names, min_size=1, max_size=2, unique=True).map(tuple),
        version=numbers,
    ),
    st.builds(
        lambda name, group, version: replace(NODE, node_id=name, group=group, version=version),
        *(names, names, numbers),
    ),
    st.builds(
        lambda name, log, epoch, version: replace(
            electing(epoch, version), name=name, log_uuid=UUID(int=log)
        ),
        *(names, st.integers(0, 2), numbers, numbers),
    ),
    st.builds(
        lambda cluster, version: replace(
            CONTROLS, cluster=cluster, controls=Controls(version=version)
        ),
        *(names, numbers),
    ),
)
etags = st.none() | st.sampled_from(["1", "2", "1.1", "1.2", "2.1"])
changes = st.one_of(
    rows.map(model.Save),
    rows.map(model.Remove),
    st.builds(lambda row, over: model.Save(row, over=over), rows, etags),
    st.just(model.RaiseTimestamp(7)),
    st.builds(lambda at_ms: model.Audit(replace(ENTRY, at_ms=at_ms)), numbers),
    numbers.map(model.ForgetAudit),
)


def sorted_rows(contents: model.Contents) -> dict[str, object]:
    return {"rows": sorted(map(repr, contents.rows)), "timestamp_ms": contents.timestamp_ms}


@examples(
    60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.lists(changes, max_size=6), max_size=10))
def test_a_database_and_the_registry_take_and_refuse_the_same_commits(
    store: SqlStore, commits: list[list[model.Change]]
) -> None:
    empty(store)
    memory, simulated = MemoryStore(Medium()), meta_store.Medium(now=lambda: 7.0)

    def is_kept(commit: Callable[[list[model.Change]], None], several: list[model.Change]) -> bool:
        try:
            commit(several)
        except ConflictError:
            return False
        return True

    for several in commits:
        kept = is_kept(store.commit, several)
        assert kept == is_kept(memory.commit, several) == is_kept(simulated.commit, several)
        found = sorted_rows(store.load())
        assert found == sorted_rows(memory.load()) == sorted_rows(simulated.contents())
    audit = [row.entry for row in reversed(simulated.audit)]
    for one in (store, memory):
        assert [row.entry for row in one.read_audit(limit=100)] == audit


# Several at once


@on_both
def test_what_is_loaded_is_of_one_moment_whatever_is_committed_meanwhile(place: Place) -> None:
    with closing(place.open()) as store, closing(place.open(seed=1)) as other:
        other.commit([model.Save(SUBJECT)])
        number = 0

        def commit_more(*_: object) -> None:
            nonlocal number
            number += 1
            name = f"s{number}"
            route = model.Save(model.Route(name=name, groups=("g",)))
            other.commit([model.Save(model.Subject(name=name)), route])

        # After each table that is read.
        event.listen(store._database._engine, "after_cursor_execute", commit_more)
        found = store.load()
        event.remove(store._database._engine, "after_cursor_execute", commit_more)
        assert number > 2
        subjects = {subject.name for subject in found.of(model.Subject)} - {SUBJECT.name}
        assert subjects == {route.name for route in found.of(model.Route)}
        assert len(store.load().of(model.Subject)) == number + 1


def test_stores_that_are_opened_at_once_make_the_tables_once(server_place: Place) -> None:
    place = server_place
    barrier = threading.Barrier(4)

    def open_one(seed: int) -> SqlStore:
        barrier.wait()
        return place.open(seed=seed)

    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(open_one, range(4)))
    assert len({store.uuid for store in opened}) == 1
    for store in opened:
        store.close()
    assert place.execute("SELECT schema_version FROM store") == [(SCHEMA,)]


def child(*arguments: str) -> subprocess.Popen[str]:
    """Start a process of store_processes, and wait until it has opened the store."""
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.meta_server.store_processes", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.process
@on_both
def test_of_two_processes_that_compare_and_set_one_wins_each_time(place: Place) -> None:
    with closing(place.open()) as store:
        store.commit([model.Save(DELAY_GROUP)])
        racers = [child("race", place.url, node_id, "60") for node_id in ("n1", "n2")]
        won: list[tuple[int, int]] = []
        try:
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
        [group] = store.load().of(model.DelayGroup)
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
            subjects = sorted(int(subject.name[1:]) for subject in found.of(model.Subject))
            routes = sorted(int(route.name[1:]) for route in found.of(model.Route))
            audited = [row.entry.at_ms for row in reversed(store.read_audit(limit=100_000))]
        kept = len(subjects)
        assert subjects == routes == audited == list(range(kept))
        # One more may be durable of which nobody was told.
        assert acknowledged < kept <= acknowledged + 2
    assert kept > 200


# A store that fails


@on_both
def test_a_writer_that_waits_too_long_for_another_one_is_told_so(place: Place) -> None:
    with closing(place.open()) as holder, closing(place.open(statement_ms=200)) as store:
        holder.commit([model.Save(SUBJECT)])
        with holder._begin() as connection:
            connection.execute(text("UPDATE row SET body = 'held'"))
            with pytest.raises(StoreUnavailableError):
                store.commit([model.Save(replace(SUBJECT, version=2))])
            # Readers do not wait for writers.
            assert store.load().of(model.Subject) == (SUBJECT,)
        store.commit([model.Save(replace(SUBJECT, version=2))])
        assert store.load().of(model.Subject) == (replace(SUBJECT, version=2),)


def test_a_number_or_text_that_no_database_takes_is_refused_and_nothing_is_kept(
    store: SqlStore,
) -> None:
    for impossible in (
        model.Audit(replace(ENTRY, at_ms=2**63)),
        model.Save(replace(SUBJECT, name="\ud800")),
    ):
        with pytest.raises(StoreRefusedError):
            store.commit([model.Save(BROKER), impossible])
    assert store.load() == model.Contents()


@pytest.mark.parametrize(
    "statement",
    [
        """UPDATE row SET body = replace(body, '"kind":"d', '"kind":"x')""",
        """UPDATE row SET body = replace(body, '"groups":[', '"groups":[1,')""",
        "UPDATE row SET body = substr(body, 2) WHERE kind = 'subject'",
        "UPDATE row SET key = '\"other\"' WHERE kind = 'subject'",
        "UPDATE row SET version = '2' WHERE kind = 'subject'",
        "UPDATE row SET kind = 'client' WHERE kind = 'subject'",
        "DELETE FROM store",
        "DROP TABLE row",
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
    place.execute(f"UPDATE store SET store_uuid = '{other.hex}'")  # noqa: S608
    for use in (store.load, lambda: store.commit([model.Save(SUBJECT)])):
        with pytest.raises(StoreUnusableError, match=str(other)):
            use()
    assert place.execute("SELECT count(*) FROM row") == [(0,)]


# SQLite


def move(path: Path, target: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{ending}").rename(f"{target}{ending}")


def test_a_file_that_is_moved_away_is_missed_and_used_again_when_it_is_back(
    file_place: Place,
) -> None:
    aside = file_place.path.with_name("aside.db")
    with closing(file_place.open()) as store:
        store.commit([model.Save(SUBJECT)])
        move(file_place.path, aside)
        for use in (
            lambda: store.commit([model.Save(replace(SUBJECT, name="lost"))]),
            lambda: store.commit([model.Save(replace(SUBJECT, name="lost too"))]),
            store.load,
        ):
            with pytest.raises(StoreUnavailableError):
                use()
        # An empty file in its place would be a store that knows of no route.
        assert not file_place.path.exists()
        move(aside, file_place.path)
        assert SUBJECT in store.load().of(model.Subject)
        store.commit([model.Save(replace(SUBJECT, version=2))])
        # Its log alone is missed as well.
        Path(f"{file_place.path}-wal").unlink()
        with pytest.raises(StoreUnavailableError, match="was moved or replaced"):
            store.commit([model.Save(replace(SUBJECT, name="lost at last"))])


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(file_place: Place) -> None:
    file_place.path.write_bytes(b"minutes of a meeting\n" * 400)
    with pytest.raises(StoreUnusableError, match="not a database") as caught:
        file_place.open()
    assert str(file_place.path) in str(caught.value)
    assert file_place.path.read_bytes() == b"minutes of a meeting\n" * 400


@pytest.mark.parametrize(("kind", "table"), [("table", "audit"), ("index", "row")])
def test_damage_where_nobody_reads_at_the_start_is_found_then(
    file_place: Place, kind: str, table: str
) -> None:
    with closing(file_place.open()) as store:
        store.commit([model.Save(SUBJECT), model.Audit(ENTRY)])
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


def ask(store: SqlStore, pragma: str) -> object:
    """Run a pragma on the connection of the store."""
    with store._begin(reads=True) as connection:
        return connection.exec_driver_sql(f"PRAGMA {pragma}").scalar()


def test_a_full_disk_is_a_typed_error_and_what_was_taken_before_is_kept(
    file_place: Place,
) -> None:
    taken = []
    with closing(file_place.open()) as store:
        settings = ("journal_mode", "synchronous", "busy_timeout", "journal_size_limit")
        assert [ask(store, name) for name in settings] == ["wal", 2, 10_000, 16 << 20]
        ask(store, "max_page_count=120")
        with suppress(StoreUnavailableError):
            for number in range(1000):
                subject = model.Subject(name=f"{number}" + "x" * 4000)
                store.commit([model.Save(subject), model.Audit(ENTRY)])
                taken.append(subject)
        assert 5 < len(taken) < 1000
        assert store.load().of(model.Subject) == tuple(taken)
        assert len(entries_of(store)) == len(taken)
        # The next connection has room again.
        store.commit([model.Save(SUBJECT)])


# PostgreSQL


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
            for use in (store.load, lambda: store.commit([model.Save(SUBJECT)])):
                for _ in range(2):
                    with pytest.raises(StoreUnavailableError):
                        use()
            with pytest.raises(StoreUnavailableError):
                server_place.open()
        finally:
            server.start()
        assert sorted_rows(store.load()) == sorted_rows(ALL_OF_IT)
        store.commit([model.Save(replace(SUBJECT, version=2))])


@pytest.mark.process
def test_a_connection_that_is_cut_in_mid_commit_is_a_typed_error(server_place: Place) -> None:
    server_place.execute(f"ALTER DATABASE {server_place.database} SET synchronous_commit = off")
    with closing(server_place.open()) as store:
        # Between two calls nobody notices.
        store.load()
        cut_off(server_place)
        with store._begin() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"

        def commit() -> None:
            with store._begin() as connection:
                connection.execute(text("UPDATE store SET timestamp_ms = 2"))
                cut_off(server_place)

        with pytest.raises(StoreUnavailableError):
            commit()
        store.commit([model.Save(SUBJECT)])
    assert server_place.execute("SELECT timestamp_ms FROM store") == [(0,)]


def cut_off(place: Place) -> None:
    place.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.mark.process
def test_a_name_that_no_index_of_the_server_holds_is_refused_and_nothing_is_kept(
    server_place: Place,
) -> None:
    with closing(server_place.open()) as store:
        name = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=9000))
        with pytest.raises(StoreRefusedError):
            store.commit([model.Save(BROKER), model.Save(model.Subject(name=name))])
        assert store.load() == model.Contents()


@pytest.mark.process
def test_a_database_that_is_not_there_or_cannot_hold_every_letter_is_refused(
    postgresql: PrivatePostgresql,
) -> None:
    with postgresql.database("ENCODING LATIN1") as name:
        for database, error, said in (
            ("missing", StoreUnavailableError, "does not exist"),
            (name, StoreUnusableError, "LATIN1"),
        ):
            url = read_url(postgresql.url(database))
            with pytest.raises(error, match=said):
                open_store(url, chance=random.Random(0))


@pytest.mark.process
def test_two_commits_that_lock_each_other_out_end_with_a_conflict_of_one(
    server_place: Place,
) -> None:
    met = threading.Barrier(2)
    lock = text("UPDATE row SET body = '' WHERE key = :row")

    def is_kept(store: SqlStore, rows: tuple[str, str]) -> bool:
        try:
            with store._begin() as connection:
                connection.execute(lock, {"row": rows[0]})
                met.wait(10)
                connection.execute(lock, {"row": rows[1]})
        except ConflictError:
            return False
        return True

    with closing(server_place.open()) as one, closing(server_place.open()) as other:
        one.commit([model.Save(replace(SUBJECT, name=name)) for name in "ab"])
        with ThreadPoolExecutor(2) as threads:
            orders = ('"a"', '"b"'), ('"b"', '"a"')
            assert sorted(threads.map(is_kept, (one, other), orders)) == [False, True]


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
        read_url(url)


def test_a_driver_that_is_not_installed_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnusableError, match=r"pip install 'psycopg\[binary\]>=3.3'"):
        open_database(read_url("postgresql+psycopg://h/x"), statement_ms=1)


def test_a_password_is_in_no_error() -> None:
    reachable_by_nobody = read_url("postgresql+psycopg://user:secret@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailableError) as refused:
        open_store(reachable_by_nobody, chance=random.Random(0))
    assert "secret" not in str(refused.value)
    for url in ("mysql://user:secret@h/x", "user:secret@h"):
        with pytest.raises(ValueError, match="url") as unknown:
            read_url(url)
        assert "secret" not in str(unknown.value)


# Tables


@pytest.mark.parametrize("version", [SCHEMA - 1, SCHEMA + 1])
def test_a_store_of_another_version_is_refused_and_left_as_it_is(
    version: int, place: Place
) -> None:
    with closing(place.open()) as store:
        place.execute(f"UPDATE store SET schema_version = {version}")  # noqa: S608
        for use in (store.load, lambda: store.commit([model.Save(SUBJECT)]), place.open):
            with pytest.raises(OtherSchemaError, match=f"version {version} and"):
                use()
        place.execute(f"UPDATE store SET schema_version = {SCHEMA}")  # noqa: S608
        assert store.load() == model.Contents()


def tables_of(place: Place) -> list[str]:
    with (
        closing(open_database(read_url(place.url), statement_ms=1000)) as database,
        database.begin(reads=True) as connection,
    ):
        return inspect(connection).get_table_names()


def test_tables_that_cannot_be_made_leave_an_empty_database(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("meta_server.sql.store.store_of", lambda connection: connection.missing)
        with pytest.raises(AttributeError):
            place.open()
    assert tables_of(place) == []


def test_a_database_that_is_somebody_elses_is_refused_and_left_as_it_is(place: Place) -> None:
    place.execute("CREATE TABLE broker (id INTEGER)")
    with pytest.raises(StoreUnusableError, match="has tables already"):
        place.open()
    assert tables_of(place) == ["broker"]
