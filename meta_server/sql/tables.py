"""The tables of the meta server's store.

Names are those of QMQ's meta server where a table says the same as there; whole numbers have 64
bits, times are wall clock in ms, and a `version` is what compare-and-set looks at. Tables without a
counterpart in QMQ: delay_node, delay_group, delay_group_in_sync, last_timestamp, audit,
controls, store_identity, schema_version. What is left out of QMQ's: dates of rows
that nobody reads, and the tables of clients and of what is read-only for one subject.
"""

import re
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.types import TypeDecorator

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class ExactText(TypeDecorator[str]):
    r"""Text that comes back byte for byte, whatever is in it.

    PostgreSQL has no place for a NUL in a text, and a peer may well send one: it is kept as `\0`,
    and a backslash as two.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Return what goes into the column."""
        if value is None or not ("\\" in value or "\0" in value):
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:  # noqa: ANN401, ARG002
        """Return what was put in."""
        if value is None or "\\" not in value:
            return value
        return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], value)


Number = BigInteger().with_variant(Integer, "sqlite")
"""64 bits on both; SQLite gives out row numbers only where a key is called INTEGER."""

TABLES = MetaData()


def _id() -> Column[int]:
    return Column("id", Number, primary_key=True, autoincrement=True)


def _text(name: str) -> Column[str]:
    return Column(name, ExactText, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, Number, nullable=False)


SCHEMA_VERSION = Table(
    "schema_version",
    TABLES,
    Column("version", Number, primary_key=True, autoincrement=False),
)
"""One row: the version of the tables."""

STORE_IDENTITY = Table(
    "store_identity",
    TABLES,
    Column("id", Number, primary_key=True, autoincrement=False),
    Column("store_uuid", Uuid, nullable=False),
    _number("created_ms"),
)
"""One row, by which an opened store is distinguished from another one in its place."""

BROKER_GROUP = Table(
    "broker_group",
    TABLES,
    _id(),
    _text("group_name"),
    _number("kind"),
    _text("master_address"),
    _number("broker_state"),
    _text("tag"),
    Column("ext", Text, nullable=False),
    _number("weight"),
    Column("is_read_only", Boolean, nullable=False),
    Column("is_retired", Boolean, nullable=False),
    _number("updated_ms"),
    _number("version"),
    Index("broker_group_key", "group_name", unique=True),
)

BROKER = Table(
    "broker",
    TABLES,
    _id(),
    _text("group_name"),
    _text("hostname"),
    _text("ip"),
    _number("role"),
    _number("serve_port"),
    _number("sync_port"),
    _number("version"),
    Index("broker_key", "hostname", "serve_port", unique=True),
    Index("broker_role", "group_name", "role", unique=True),
)

SUBJECT_INFO = Table(
    "subject_info",
    TABLES,
    _id(),
    _text("name"),
    _text("tag"),
    _number("created_ms"),
    _number("version"),
    Index("subject_info_key", "name", unique=True),
)

SUBJECT_ROUTE = Table(
    "subject_route",
    TABLES,
    _id(),
    _text("subject_info"),
    Column("is_prefix", Boolean, nullable=False),
    Column("broker_group_json", Text, nullable=False),
    Column("is_chosen", Boolean, nullable=False),
    _number("version"),
    Column("is_brought", Boolean, nullable=False),
    Index("subject_route_key", "subject_info", "is_prefix", unique=True),
)

DELAY_NODE = Table(
    "delay_node",
    TABLES,
    _id(),
    _text("cluster"),
    _text("group_name"),
    _text("node_id"),
    Column("log_uuid", Uuid, nullable=False),
    Column("storage_uuid", Uuid, nullable=False),
    _number("incarnation"),
    _number("last_sequence"),
    _number("last_epoch"),
    _text("address"),
    _text("http_address"),
    _text("software"),
    _number("registered_ms"),
    _number("version"),
    Column("boot_id", Uuid, nullable=False),
    Index("delay_node_key", "cluster", "group_name", "node_id", unique=True),
)

DELAY_GROUP = Table(
    "delay_group",
    TABLES,
    _id(),
    _text("name"),
    _text("cluster"),
    Column("log_uuid", Uuid, nullable=False),
    _number("epoch"),
    _number("version"),
    Column("master_node_id", ExactText, nullable=True),
    Column("master_incarnation", Number, nullable=True),
    _number("min_isr"),
    _text("phase"),
    Index("delay_group_key", "name", unique=True),
    Index("delay_group_log", "log_uuid", unique=True),
)

DELAY_GROUP_IN_SYNC = Table(
    "delay_group_in_sync",
    TABLES,
    Column(
        "delay_group_id", Number, ForeignKey("delay_group.id", ondelete="CASCADE"), primary_key=True
    ),
    Column("node_id", ExactText, primary_key=True),
    Column("storage_uuid", Uuid, nullable=False),
)

LAST_TIMESTAMP = Table(
    "last_timestamp",
    TABLES,
    Column("id", Number, primary_key=True, autoincrement=False),
    _number("timestamp_ms"),
)
"""One row, made with the table."""

AUDIT = Table(
    "audit",
    TABLES,
    Column("number", Number, primary_key=True, autoincrement=True),
    _number("at_ms"),
    _text("actor"),
    _text("action"),
    _text("target"),
    _text("before_json"),
    _text("after_json"),
    Index("audit_age", "at_ms"),
    sqlite_autoincrement=True,
)

CONTROLS = Table(
    "controls",
    TABLES,
    _id(),
    _text("cluster"),
    Column("document_json", Text, nullable=False),
    _number("version"),
    Index("controls_key", "cluster", unique=True),
)
"""JSON of `delay_protocol/nodes/controls.py::Controls`, for the delay servers of a cluster."""
