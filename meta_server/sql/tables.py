"""The tables of the meta server's store: made if there are none, refused if of another version.

    row      kind, key, version, claim, body: every row of every kind of known/model.py
    audit    number, at_ms, body
    store    which store it is, of which version, and its timestamp: one row

Key and claim are JSON, since PostgreSQL has no place for a NUL in a text; a body is the row as
JSON. The version is text: of a delay group it is epoch and version.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

from meta_server.known.errors import OtherSchemaError, StoreUnusableError

SCHEMA: Final = 12
"""The version of the tables and of the bodies. Whoever changes either so that rows that are there
cannot be read any more counts it up."""

TABLES: Final = sa.MetaData()

# 64 bits on both; SQLite gives out row numbers only where a key is called INTEGER.
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")

ROW: Final = sa.Table(
    "row",
    TABLES,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("claim", sa.Text),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("row_claim", "kind", "claim", unique=True),
)

AUDIT: Final = sa.Table(
    "audit",
    TABLES,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("at_ms", _NUMBER, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("audit_age", "at_ms"),
    sqlite_autoincrement=True,
)

STORE: Final = sa.Table(
    "store",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("schema_version", _NUMBER, nullable=False),
    sa.Column("store_uuid", sa.Uuid, nullable=False),
    sa.Column("timestamp_ms", _NUMBER, nullable=False),
)


def store_of(connection: sa.Connection) -> UUID:
    """Return which store it is, looked up in this transaction.

    Raises OtherSchemaError, or StoreUnusableError where the store does not say it.
    """
    found = connection.execute(sa.select(STORE.c.schema_version, STORE.c.store_uuid)).one_or_none()
    if found is None:
        raise StoreUnusableError(
            "the store does not say which version it has, or which store it is"
        )
    if found.schema_version != SCHEMA:
        raise OtherSchemaError(found=found.schema_version, known=SCHEMA)
    store_uuid: UUID = found.store_uuid
    return store_uuid


def make_tables(connection: sa.Connection, *, store_uuid: UUID) -> None:
    """Make the tables if there are none; store_uuid: which store it will be.

    Raises StoreUnusableError for a database of somebody else; the transaction is the caller's. The
    transactions of `Database.begin` exclude each other, so of several meta servers that start at
    once one makes the tables.
    """
    there = set(sa.inspect(connection).get_table_names())
    if STORE.name in there:
        return
    if there:
        raise StoreUnusableError(
            f"the database has tables already, but not {STORE.name!r}, by which this delaywheel "
            "knows a meta server's store: begin with a new database, or run the delaywheel that "
            f"wrote this one. It has {', '.join(sorted(there)[:5])}"
        )
    TABLES.create_all(connection, checkfirst=False)
    connection.execute(
        sa.insert(STORE).values(id=1, schema_version=SCHEMA, store_uuid=store_uuid, timestamp_ms=0)
    )
