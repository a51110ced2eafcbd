"""The store of the meta server: rows in SQLite or PostgreSQL, through SQLAlchemy Core.

A commit is one transaction: all of its changes with their audit, or none of them. Runs of changes
of one kind go to the database together; if a run does not find every row as expected, the commit is
tried once more one change at a time, to say which one it was.

Every transaction begins with a look at which store, of which version, this is: a server may be
replaced by another one.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Insert,
    Row,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import NoResultFound

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.controls import decode_controls, encode_controls
from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.known.errors import ConflictError, StoreUnusableError
from meta_server.known.model import (
    Audit,
    AuditEntry,
    AuditRow,
    Broker,
    BrokerGroup,
    Change,
    ClusterControls,
    Contents,
    DelayGroup,
    DelayNode,
    ForgetAudit,
    GroupKind,
    RaiseTimestamp,
    RemoveBroker,
    RemoveBrokerGroup,
    RemoveDelayGroup,
    RemoveDelayNode,
    RemoveRoute,
    RemoveSubject,
    Route,
    SaveBroker,
    SaveBrokerGroup,
    SaveControls,
    SaveDelayGroup,
    SaveDelayNode,
    SaveRoute,
    SaveSubject,
    Subject,
)
from meta_server.sql.databases import Database, DatabaseSettings, open_database
from meta_server.sql.schema import make_tables, store_of
from meta_server.sql.tables import (
    AUDIT,
    BROKER,
    BROKER_GROUP,
    CONTROLS,
    DELAY_GROUP,
    DELAY_GROUP_IN_SYNC,
    DELAY_NODE,
    LAST_TIMESTAMP,
    SUBJECT_INFO,
    SUBJECT_ROUTE,
)

Values = dict[str, Any]
"""A row as the database has it, by column."""


def open_store(settings: DatabaseSettings, *, now_ms: int, chance: random.Random) -> "SqlStore":
    """Return the store, looked through for damage, its tables made if there are none.

    now_ms: wall clock; chance: names a store that is new. Raises StoreUnavailableError,
    StoreUnusableError, OtherSchemaError.
    """
    database = open_database(settings)
    store_uuid = UUID(int=chance.getrandbits(128), version=4)
    try:
        with database.begin(alone=True) as connection:
            database.check(connection)
        with database.begin(alone=True) as connection:
            make_tables(connection, now_ms=now_ms, store_uuid=store_uuid)
            return SqlStore(database, store_uuid=store_of(connection))
    except BaseException:
        database.close()
        raise


class SqlStore:
    """The MetaStore of model.py in a database."""

    def __init__(self, database: Database, *, store_uuid: UUID) -> None:
        self._database = database
        self._store_uuid = store_uuid

    @property
    def uuid(self) -> UUID:
        """Which store it is."""
        return self._store_uuid

    def load(self) -> Contents:
        """Return everything, as of one moment; raise StoreUnavailableError, StoreUnusableError."""
        with self._begin(reads=True) as connection:

            def rows(table: Table) -> Iterable[Row[Any]]:
                return connection.execute(select(table))

            in_sync: dict[int, dict[str, UUID]] = {}
            for member in rows(DELAY_GROUP_IN_SYNC):
                in_sync.setdefault(member.delay_group_id, {})[member.node_id] = member.storage_uuid
            try:
                return Contents(
                    broker_groups=tuple(map(_broker_group, rows(BROKER_GROUP))),
                    brokers=tuple(map(_broker, rows(BROKER))),
                    subjects=tuple(map(_subject, rows(SUBJECT_INFO))),
                    routes=tuple(map(_route, rows(SUBJECT_ROUTE))),
                    delay_nodes=tuple(map(_delay_node, rows(DELAY_NODE))),
                    delay_groups=tuple(
                        _delay_group(row, in_sync.get(row.id, {})) for row in rows(DELAY_GROUP)
                    ),
                    controls=tuple(map(_controls, rows(CONTROLS))),
                    timestamp_ms=connection.execute(
                        select(LAST_TIMESTAMP.c.timestamp_ms)
                    ).scalar_one(),
                )
            except (ValueError, TypeError, NoResultFound) as error:
                # A number without a name, a text that is no JSON, no timestamp: not our doing.
                raise StoreUnusableError(f"a row of the store makes no sense: {error}") from error

    def commit(self, changes: Sequence[Change], /) -> None:
        """Make all of these durable in one transaction, or none of them.

        Raises ConflictError, StoreRefusedError (none is kept), StoreUnavailableError (all may be
        kept, or none), StoreUnusableError.
        """
        try:
            with self._begin() as connection:
                _apply(connection, changes, run_max=None)
        except _RunConflictError:
            self._name_conflict(changes)

    def read_audit(self, *, before: int | None = None, limit: int) -> tuple[AuditRow, ...]:
        """Return up to `limit` entries, newest first, those with a lower number than `before`."""
        query = select(AUDIT).order_by(AUDIT.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.number < before)
        with self._begin(reads=True) as connection:
            return tuple(
                AuditRow(
                    number=row.number,
                    entry=AuditEntry(
                        at_ms=row.at_ms,
                        actor=row.actor,
                        action=row.action,
                        target=row.target,
                        before=row.before_json,
                        after=row.after_json,
                    ),
                )
                for row in connection.execute(query)
            )

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    @contextmanager
    def _begin(self, *, reads: bool = False) -> Iterator[Connection]:
        """Begin a transaction in the very store that was opened."""
        with self._database.begin(reads=reads) as connection:
            found = store_of(connection)
            if found != self._store_uuid:
                raise StoreUnusableError(
                    f"the store is {found}, but the one opened was {self._store_uuid}"
                )
            yield connection

    def _name_conflict(self, changes: Sequence[Change]) -> None:
        """Raise the ConflictError of a commit of which a run failed."""
        with self._begin() as connection:
            _apply(connection, changes, run_max=1)
            # The other writer has taken its change back meanwhile.
            connection.rollback()
        raise ConflictError(what="commit", expected="rows as loaded", found="other rows")


class _RunConflictError(Exception):
    """One row of several was not as expected."""


def _apply(connection: Connection, changes: Sequence[Change], *, run_max: int | None) -> None:
    """Make the changes, up to `run_max` of one kind at once.

    Tables are taken one after another, each with its changes in order: no row depends on one of
    another table. So runs are long, and meta servers that commit at once meet in the same order.
    """
    steps = sorted(map(_step_of, changes), key=lambda one: one[0].table.name)
    for step, run in groupby(steps, key=itemgetter(0)):
        together = [row for _, row in run]
        size = run_max or len(together)
        for start in range(0, len(together), size):
            step.apply(connection, together[start : start + size])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """What one kind of change does to a table: a statement, run with the values of each row.

    statements: by the dialect's name. values: parameters of a row; those called `key_…` tell which
    row of the table is meant, and with which versions. what: the rows' name, for conflicts; empty
    where nothing can conflict. then: what else is to be done.
    """

    table: Table
    statements: Mapping[str, Executable]
    values: Callable[[Any], Values]
    what: str = ""
    keys: tuple[str, ...] = ()
    versions: tuple[str, ...] = ("version",)
    then: Callable[[Connection, Sequence[Any]], None] | None = None

    def apply(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Change these rows; raise ConflictError, or _RunConflictError if there are several."""
        parameters = [self.values(row) for row in rows]
        result = connection.execute(
            self.statements[connection.dialect.name],
            parameters,
            execution_options={"preserve_rowcount": True},
        )
        if self.what and result.rowcount != len(rows):
            if len(rows) > 1:
                raise _RunConflictError
            raise self._conflict(connection, parameters[0])
        if self.then is not None:
            self.then(connection, rows)

    def _conflict(self, connection: Connection, values: Values) -> ConflictError:
        names = [self.table.c[name] for name in self.versions]
        found = connection.execute(
            select(*names).where(*(self.table.c[key] == values[key] for key in self.keys))
        ).one_or_none()
        expected = [values.get(f"key_{name}") for name in self.versions]
        if found is None and None in expected:
            there = "another one that must not be there beside it"
        else:
            there = "none" if found is None else _text_of(self.versions, found)
        return ConflictError(
            what=f"{self.what} {' '.join(str(values[key]) for key in self.keys)!a}",
            expected="none" if None in expected else _text_of(self.versions, expected),
            found=there,
        )


def _text_of(names: Sequence[str], numbers: Iterable[object]) -> str:
    return " ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))


def _same(statement: Executable) -> Mapping[str, Executable]:
    return {"sqlite": statement, "postgresql": statement}


def _add(table: Table) -> Mapping[str, Executable]:
    """Return what adds a row unless there is one that it must not be beside."""
    return {
        "sqlite": sqlite.insert(table).on_conflict_do_nothing(),
        "postgresql": postgresql.insert(table).on_conflict_do_nothing(),
    }


def _named(table: Table, *names: str) -> ColumnElement[bool]:
    """Return the condition that these columns are as the parameters `key_…` say."""
    return and_(*(table.c[name] == bindparam(f"key_{name}") for name in names))


def _keys_of(row: Values, *names: str) -> Values:
    return {f"key_{name}": row[name] for name in names}


@dataclass(frozen=True, slots=True)
class _Versioned:
    """A table whose rows have a version, and the steps that add, replace and remove one."""

    add: _Step
    replace: _Step
    remove: _Step

    def saving(self, row: Any) -> tuple[_Step, Any]:  # noqa: ANN401 - a row of the table
        """Return the step that saves a row, and the row: the first version is added."""
        return (self.add if row.version == 1 else self.replace), row


def _versioned(
    table: Table, what: str, keys: tuple[str, ...], row_of: Callable[[Any], Values]
) -> _Versioned:
    def replacing(row: Any) -> Values:  # noqa: ANN401 - a row of the table
        values = row_of(row)
        return values | _keys_of(values, *keys) | {"key_version": values["version"] - 1}

    def removing(row: Any) -> Values:  # noqa: ANN401 - a row of the table
        values = row_of(row)
        return {name: values[name] for name in keys} | _keys_of(values, *keys, "version")

    key = _named(table, *keys, "version")
    return _Versioned(
        add=_Step(table=table, statements=_add(table), values=row_of, what=what, keys=keys),
        replace=_Step(
            table=table,
            statements=_same(update(table).where(key)),
            values=replacing,
            what=what,
            keys=keys,
        ),
        remove=_Step(
            table=table,
            statements=_same(delete(table).where(key)),
            values=removing,
            what=what,
            keys=keys,
        ),
    )


# Rows as the database has them, and back.


def _values_of_broker_group(group: BrokerGroup) -> Values:
    return {
        "group_name": group.name,
        "kind": int(group.kind),
        "master_address": group.master,
        "broker_state": int(group.state),
        "tag": group.tag,
        "ext": json.dumps(dict(group.ext)),
        "weight": group.weight,
        "is_read_only": group.is_read_only,
        "is_retired": group.is_retired,
        "updated_ms": group.updated_ms,
        "version": group.version,
    }


def _broker_group(row: Row[Any]) -> BrokerGroup:
    return BrokerGroup(
        name=row.group_name,
        kind=GroupKind(row.kind),
        master=row.master_address,
        state=BrokerState(row.broker_state),
        tag=row.tag,
        ext=json.loads(row.ext),
        weight=row.weight,
        is_read_only=row.is_read_only,
        is_retired=row.is_retired,
        updated_ms=row.updated_ms,
        version=row.version,
    )


def _values_of_broker(broker: Broker) -> Values:
    return {
        "group_name": broker.group,
        "hostname": broker.hostname,
        "ip": broker.ip,
        "role": int(broker.role),
        "serve_port": broker.serve_port,
        "sync_port": broker.sync_port,
        "version": broker.version,
    }


def _broker(row: Row[Any]) -> Broker:
    return Broker(
        hostname=row.hostname,
        serve_port=row.serve_port,
        ip=row.ip,
        group=row.group_name,
        role=BrokerRole(row.role),
        sync_port=row.sync_port,
        version=row.version,
    )


def _values_of_subject(subject: Subject) -> Values:
    return {
        "name": subject.name,
        "tag": subject.tag,
        "created_ms": subject.created_ms,
        "version": subject.version,
    }


def _subject(row: Row[Any]) -> Subject:
    return Subject(name=row.name, tag=row.tag, created_ms=row.created_ms, version=row.version)


def _values_of_route(route: Route) -> Values:
    return {
        "subject_info": route.name,
        "is_prefix": route.is_prefix,
        "broker_group_json": json.dumps(list(route.groups)),
        "is_chosen": route.is_chosen,
        "is_brought": route.is_brought,
        "version": route.version,
    }


def _route(row: Row[Any]) -> Route:
    return Route(
        name=row.subject_info,
        is_prefix=row.is_prefix,
        groups=tuple(json.loads(row.broker_group_json)),
        is_chosen=row.is_chosen,
        is_brought=row.is_brought,
        version=row.version,
    )


def _values_of_controls(row: ClusterControls) -> Values:
    return {
        "cluster": row.cluster,
        "document_json": encode_controls(row.controls).decode(),
        "version": row.version,
    }


def _controls(row: Row[Any]) -> ClusterControls:
    controls = decode_controls(row.document_json.encode())
    if controls.version != row.version:
        raise ValueError(f"the controls of {row.cluster} are of another version than their row")
    return ClusterControls(cluster=row.cluster, controls=controls)


def _values_of_delay_node(node: DelayNode) -> Values:
    return {
        "cluster": node.cluster,
        "group_name": node.group,
        "node_id": node.node_id,
        "log_uuid": node.log_uuid,
        "storage_uuid": node.storage_uuid,
        "incarnation": node.incarnation,
        "boot_id": node.boot_id,
        "last_sequence": node.last_sequence,
        "last_epoch": node.last_epoch,
        "address": node.address,
        "http_address": node.http_address,
        "software": node.software,
        "registered_ms": node.registered_ms,
        "version": node.version,
    }


def _delay_node(row: Row[Any]) -> DelayNode:
    return DelayNode(
        cluster=row.cluster,
        group=row.group_name,
        node_id=row.node_id,
        log_uuid=row.log_uuid,
        storage_uuid=row.storage_uuid,
        incarnation=row.incarnation,
        boot_id=row.boot_id,
        last_sequence=row.last_sequence,
        last_epoch=row.last_epoch,
        address=row.address,
        http_address=row.http_address,
        software=row.software,
        registered_ms=row.registered_ms,
        version=row.version,
    )


def _values_of_delay_group(group: DelayGroup) -> Values:
    record = group.record
    return {
        "name": group.name,
        "cluster": group.cluster,
        "log_uuid": group.log_uuid,
        "epoch": record.epoch,
        "version": record.version,
        "master_node_id": None if record.master is None else record.master.node_id,
        "master_incarnation": None if record.master is None else record.master.incarnation,
        "min_isr": record.min_isr,
        "phase": record.phase.value,
    }


def _delay_group(row: Row[Any], in_sync: dict[str, UUID]) -> DelayGroup:
    master = None
    if row.master_node_id is not None:
        master = Master(node_id=row.master_node_id, incarnation=row.master_incarnation)
    return DelayGroup(
        name=row.name,
        cluster=row.cluster,
        log_uuid=row.log_uuid,
        record=GroupRecord(
            epoch=row.epoch,
            version=row.version,
            master=master,
            in_sync=in_sync,
            min_isr=row.min_isr,
            phase=Phase(row.phase),
        ),
    )


# Steps


def _delay_group_of(change: SaveDelayGroup) -> Values:
    values = _values_of_delay_group(change.group)
    if change.expected is None:
        return values
    epoch, version = change.expected
    return values | {"key_name": values["name"], "key_epoch": epoch, "key_version": version}


def _replace_in_sync(connection: Connection, changes: Sequence[SaveDelayGroup]) -> None:
    for change in changes:
        connection.execute(_FORGET_IN_SYNC, {"key_name": change.group.name})
        members = [
            {"key_name": change.group.name, "node_id": node_id, "storage_uuid": storage_uuid}
            for node_id, storage_uuid in change.group.record.in_sync.items()
        ]
        if members:
            connection.execute(_ADD_IN_SYNC, members)


_GROUP_ID: Final = (
    select(DELAY_GROUP.c.id)
    .where(DELAY_GROUP.c.name == bindparam("key_name", type_=DELAY_GROUP.c.name.type))
    .scalar_subquery()
)
_FORGET_IN_SYNC: Final = delete(DELAY_GROUP_IN_SYNC).where(
    DELAY_GROUP_IN_SYNC.c.delay_group_id == _GROUP_ID
)
_ADD_IN_SYNC: Final[Insert] = insert(DELAY_GROUP_IN_SYNC).values(
    delay_group_id=_GROUP_ID,
    node_id=bindparam("node_id", type_=DELAY_GROUP_IN_SYNC.c.node_id.type),
    storage_uuid=bindparam("storage_uuid", type_=DELAY_GROUP_IN_SYNC.c.storage_uuid.type),
)


def _delay_group_step(statements: Mapping[str, Executable]) -> _Step:
    return _Step(
        table=DELAY_GROUP,
        statements=statements,
        values=_delay_group_of,
        what="delay group",
        keys=("name",),
        versions=("epoch", "version"),
        then=_replace_in_sync,
    )


_ADD_DELAY_GROUP: Final = _delay_group_step(_add(DELAY_GROUP))
_REPLACE_DELAY_GROUP: Final = _delay_group_step(
    _same(update(DELAY_GROUP).where(_named(DELAY_GROUP, "name", "epoch", "version")))
)
_REMOVE_DELAY_GROUP: Final = _Step(
    table=DELAY_GROUP,
    statements=_same(delete(DELAY_GROUP).where(_named(DELAY_GROUP, "name", "epoch", "version"))),
    values=lambda group: {
        "name": group.name,
        "key_name": group.name,
        "key_epoch": group.record.epoch,
        "key_version": group.record.version,
    },
    what="delay group",
    keys=("name",),
    versions=("epoch", "version"),
)

_BROKER_GROUPS: Final = _versioned(
    BROKER_GROUP, "broker group", ("group_name",), _values_of_broker_group
)
_BROKERS: Final = _versioned(BROKER, "broker", ("hostname", "serve_port"), _values_of_broker)
_SUBJECTS: Final = _versioned(SUBJECT_INFO, "subject", ("name",), _values_of_subject)
_ROUTES: Final = _versioned(SUBJECT_ROUTE, "route", ("subject_info", "is_prefix"), _values_of_route)
_DELAY_NODES: Final = _versioned(
    DELAY_NODE, "delay node", ("cluster", "group_name", "node_id"), _values_of_delay_node
)
_CONTROLS: Final = _versioned(CONTROLS, "controls", ("cluster",), _values_of_controls)

_RAISE_TIMESTAMP: Final = _Step(
    table=LAST_TIMESTAMP,
    statements=_same(
        update(LAST_TIMESTAMP).where(LAST_TIMESTAMP.c.timestamp_ms < bindparam("key_timestamp_ms"))
    ),
    values=lambda timestamp_ms: {
        "timestamp_ms": timestamp_ms,
        "key_timestamp_ms": timestamp_ms,
    },
)
_AUDIT: Final = _Step(
    table=AUDIT,
    statements=_same(insert(AUDIT)),
    values=lambda entry: {
        "at_ms": entry.at_ms,
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "before_json": entry.before,
        "after_json": entry.after,
    },
)
_FORGET_AUDIT: Final = _Step(
    table=AUDIT,
    statements=_same(delete(AUDIT).where(AUDIT.c.at_ms < bindparam("key_at_ms"))),
    values=lambda before_ms: {"key_at_ms": before_ms},
)


def _step_of(change: Change) -> tuple[_Step, Any]:  # noqa: C901, PLR0911, PLR0912 - a table
    """Return what a change does, and the row it does it to."""
    match change:
        case SaveBrokerGroup(group):
            return _BROKER_GROUPS.saving(group)
        case RemoveBrokerGroup(group):
            return _BROKER_GROUPS.remove, group
        case SaveBroker(broker):
            return _BROKERS.saving(broker)
        case RemoveBroker(broker):
            return _BROKERS.remove, broker
        case SaveSubject(subject):
            return _SUBJECTS.saving(subject)
        case RemoveSubject(subject):
            return _SUBJECTS.remove, subject
        case SaveRoute(route):
            return _ROUTES.saving(route)
        case RemoveRoute(route):
            return _ROUTES.remove, route
        case SaveDelayNode(node):
            return _DELAY_NODES.saving(node)
        case RemoveDelayNode(node):
            return _DELAY_NODES.remove, node
        case SaveDelayGroup(expected=None):
            return _ADD_DELAY_GROUP, change
        case SaveDelayGroup():
            return _REPLACE_DELAY_GROUP, change
        case RemoveDelayGroup(group):
            return _REMOVE_DELAY_GROUP, group
        case RaiseTimestamp(timestamp_ms):
            return _RAISE_TIMESTAMP, timestamp_ms
        case Audit(entry):
            return _AUDIT, entry
        case ForgetAudit(before_ms):
            return _FORGET_AUDIT, before_ms
        case SaveControls(row):
            return _CONTROLS.saving(row)
