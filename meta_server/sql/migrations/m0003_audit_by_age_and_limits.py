"""Entries of the audit can be found by their age; limits that operators set are kept."""

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE audit ADD COLUMN by_node BOOLEAN NOT NULL DEFAULT FALSE",
    "UPDATE audit SET by_node = TRUE WHERE action = 'node.register'",
    "CREATE INDEX audit_age ON audit (by_node, at_ms, number)",
    """
    CREATE TABLE limit_setting (
        name TEXT NOT NULL PRIMARY KEY,
        value_json TEXT NOT NULL
    )
    """,
)
