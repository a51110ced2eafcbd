"""The store of the meta server: rows in SQLite or PostgreSQL, through SQLAlchemy Core.

A commit is one transaction: all of its changes with their audit, or none of them. Runs of changes
of one kind go to the database together; the sentence of a conflict names the first rows of the run
that did not find every row as expected.

Every transaction begins with a look at which store, of which version, this is: a server may be
replaced by another one.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import URL, Connection, Executable, bindparam, delete, insert, select, text, update

from meta_server.known import model
from meta_server.known.errors import ConflictError, StoreUnusableError
from meta_server.sql.databases import STATEMENT_MS_MAX, Database, open_database
from meta_server.sql.tables import AUDIT, ROW, STORE, make_tables, store_of

Values = dict[str, Any]
"""Parameters of a statement."""

_ROWS_AT_ONCE: Final = 500
"""Rows that are fetched together: one by one they take a tenth longer."""

_NAMED_MAX: Final = 5
"""Keys that the sentence of a conflict names at most."""


def open_store(
    url: URL, *, chance: random.Random, statement_ms: int = STATEMENT_MS_MAX
) -> "SqlStore":
    """Return the store, looked through for damage, its tables made if there are none.

    chance: names a store that is new. Raises StoreUnavailableError,
    StoreUnusableError, OtherSchemaError.
    """
    database = open_database(url, statement_ms=statement_ms)
    store_uuid = UUID(int=chance.getrandbits(128), version=4)
    try:
        with database.begin(alone=True) as connection:
            database.check(connection)
        with database.begin(alone=True) as connection:
            make_tables(connection, store_uuid=store_uuid)
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

    def load(self) -> model.Contents:
        """Return everything, as of one moment; raise StoreUnavailableError, StoreUnusableError."""
        with self._begin(reads=True) as connection:
            found = connection.execute(select(ROW.c.kind, ROW.c.key, ROW.c.version, ROW.c.body))
            return model.Contents(
                rows=tuple(_row(*row) for some in found.partitions(_ROWS_AT_ONCE) for row in some),
                timestamp_ms=connection.execute(select(STORE.c.timestamp_ms)).scalar_one(),
            )

    def commit(self, changes: Sequence[model.Change], /, *, becomes: UUID | None = None) -> None:
        """Make all of these durable in one transaction, or none of them.

        becomes: the store is this one from then on, and who has opened it before is refused. Raises
        ConflictError, StoreRefusedError (none is kept), StoreUnavailableError (all may be kept, or
        none), StoreUnusableError.
        """
        with self._begin() as connection:
            # One kind after another, each with its changes in order: so runs are long, and meta
            # servers that commit at once meet in the same order.
            steps = sorted(map(_step_of, changes), key=lambda step: step.kind)
            for _, run in groupby(steps, key=lambda step: (step.kind, id(step.statement))):
                _make(connection, list(run))
            if becomes is not None:
                connection.execute(update(STORE).values(store_uuid=becomes))
        self._store_uuid = becomes or self._store_uuid

    def read_audit(self, *, before: int | None = None, limit: int) -> tuple[model.AuditRow, ...]:
        """Return up to `limit` entries, newest first, those with a lower number than `before`."""
        query = select(AUDIT.c.number, AUDIT.c.body).order_by(AUDIT.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.number < before)
        with self._begin(reads=True) as connection:
            return tuple(
                model.AuditRow(number=number, entry=_decoded(ENTRY, "audit", body))
                for number, body in connection.execute(query)
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


class _Step(NamedTuple):
    """A change as the database makes it."""

    kind: str
    """By which steps are ordered: no row depends on one of another kind."""
    statement: Executable
    values: Values


def _make(connection: Connection, steps: Sequence[_Step]) -> None:
    """Make steps of one kind and statement together; raise ConflictError."""
    kind, statement, _ = steps[0]
    if statement is _ADD and connection.dialect.name == "sqlite":
        rows = msgspec.json.encode([step.values for step in steps])
        connection.execute(_ADD_ALL, {"rows": rows.decode()})
        return
    result = connection.execute(
        statement,
        [step.values for step in steps],
        execution_options={"preserve_rowcount": True},
    )
    if statement in (_REPLACE, _REMOVE) and result.rowcount != len(steps):
        keys = ", ".join(step.values["its_key"] for step in steps[:_NAMED_MAX])
        raise ConflictError(
            f"{kind} {keys}: {result.rowcount} of {len(steps)} rows are in the version expected"
        )


# Rows as the database has them, and back.

DECODERS: Final = {kind.KIND: msgspec.json.Decoder(kind) for kind in model.KINDS}
ENTRY: Final = msgspec.json.Decoder(model.AuditEntry)


def _row(kind: str, key: str, version: str, body: str) -> model.Row:
    decoder = DECODERS.get(kind)
    if decoder is None:
        raise StoreUnusableError(f"a row of the store makes no sense: there is no kind {kind!a}")
    row: model.Row = _decoded(decoder, key, body)
    if row.etag != version or _json(row.key) != key:
        raise StoreUnusableError(
            f"a row of the store makes no sense: {kind} {key} {version} has {row.key} {row.etag}"
        )
    return row


def _decoded(decoder: msgspec.json.Decoder[Any], key: str, body: str) -> Any:  # noqa: ANN401
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise StoreUnusableError(f"a row of the store makes no sense: {key}: {error}") from error


def _json(value: model.Key | model.Row | model.AuditEntry) -> str:
    return msgspec.json.encode(value).decode()


_ITS_ROW: Final = (
    ROW.c.kind == bindparam("its_kind"),
    ROW.c.key == bindparam("its_key"),
    ROW.c.version == bindparam("its_version"),
)


_ADD: Final = insert(ROW)
_FIELDS: Final = ", ".join(f"json_extract(value, '$.{column.name}')" for column in ROW.c)
_ADD_ALL: Final = text(
    f"INSERT INTO {ROW.name} ({', '.join(ROW.c.keys())}) SELECT {_FIELDS} FROM json_each(:rows)"  # noqa: S608 (names of ours)
)
"""The same of many rows in one step: after each the store's thread waits for its turn again, which
beside a busy loop takes half a millisecond."""
_REPLACE: Final = update(ROW).where(*_ITS_ROW)
_REMOVE: Final = delete(ROW).where(*_ITS_ROW)
_RAISE_TIMESTAMP: Final = update(STORE).where(STORE.c.timestamp_ms < bindparam("its_timestamp_ms"))
_AUDIT: Final = insert(AUDIT)
_FORGET_AUDIT: Final = delete(AUDIT).where(AUDIT.c.at_ms < bindparam("its_at_ms"))


def _step_of(change: model.Change) -> _Step:
    """Return what a change does in the database."""
    match change:
        case model.Save(row):
            expected = change.expected
            claim = row.claim
            values: Values = {
                "kind": row.KIND,
                "key": _json(row.key),
                "version": row.etag,
                "claim": None if claim is None else _json(claim),
                "body": _json(row),
            }
            if expected is None:
                return _Step(row.KIND, _ADD, values)
            its = {"its_kind": row.KIND, "its_key": values["key"], "its_version": expected}
            return _Step(row.KIND, _REPLACE, values | its)
        case model.Remove(row):
            its = {"its_kind": row.KIND, "its_key": _json(row.key), "its_version": row.etag}
            return _Step(row.KIND, _REMOVE, its)
        case model.Audit(entry):
            return _Step(AUDIT.name, _AUDIT, {"at_ms": entry.at_ms, "body": _json(entry)})
        case model.ForgetAudit(before_ms):
            return _Step(AUDIT.name, _FORGET_AUDIT, {"its_at_ms": before_ms})
        case model.RaiseTimestamp(timestamp_ms):
            values = {"timestamp_ms": timestamp_ms, "its_timestamp_ms": timestamp_ms}
            return _Step(STORE.name, _RAISE_TIMESTAMP, values)
