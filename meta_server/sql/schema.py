"""Makes the tables of a new store, and refuses a store of another version.

    schema_version  version: one row
    store_identity  id = 1, store_uuid, created_ms

The transactions of `Database.begin` exclude each other, so of several meta servers that start at
once one makes the tables.
"""

from typing import Final
from uuid import UUID

from sqlalchemy import Connection, insert, inspect, select

from meta_server.known.errors import OtherSchemaError, StoreUnusableError
from meta_server.sql.tables import LAST_TIMESTAMP, SCHEMA_VERSION, STORE_IDENTITY, TABLES

SCHEMA: Final = 9
"""The version of the tables. Whoever changes a table counts it up."""

_STATE: Final = select(
    select(SCHEMA_VERSION.c.version).order_by(SCHEMA_VERSION.c.version.desc()).limit(1)
    .scalar_subquery(),
    select(STORE_IDENTITY.c.store_uuid).where(STORE_IDENTITY.c.id == 1).scalar_subquery(),
)  # fmt: skip


def store_of(connection: Connection) -> UUID:
    """Return which store it is, looked up in this transaction.

    Raises OtherSchemaError, or StoreUnusableError where the store does not say it.
    """
    version, store_uuid = connection.execute(_STATE).one()
    if version is None or store_uuid is None:
        raise StoreUnusableError(
            "the store does not say which version it has, or which store it is"
        )
    if version != SCHEMA:
        raise OtherSchemaError(found=version, known=SCHEMA)
    found: UUID = store_uuid
    return found


def make_tables(connection: Connection, *, now_ms: int, store_uuid: UUID) -> None:
    """Make the tables if there are none; store_uuid: which store it will be.

    Raises StoreUnusableError for a database of somebody else; the transaction is the caller's.
    """
    there = set(inspect(connection).get_table_names())
    if SCHEMA_VERSION.name in there:
        return
    if there:
        raise StoreUnusableError(
            "the database has tables already, but none that says it is a meta server's store: "
            + ", ".join(sorted(there)[:5])
        )
    TABLES.create_all(connection, checkfirst=False)
    connection.execute(insert(SCHEMA_VERSION).values(version=SCHEMA))
    connection.execute(
        insert(STORE_IDENTITY).values(id=1, store_uuid=store_uuid, created_ms=now_ms)
    )
    connection.execute(insert(LAST_TIMESTAMP).values(id=1, timestamp_ms=0))
