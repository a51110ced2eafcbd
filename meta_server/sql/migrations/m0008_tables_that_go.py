"""Version 8: what nobody reads any more goes."""

from typing import Final

STATEMENTS: Final = (
    "DROP TABLE client_offline_state",
    # What was set for all subjects is in the row of the group.
    """
    UPDATE broker_group SET is_read_only = TRUE WHERE group_name IN (
        SELECT broker_group FROM readonly_broker_group_setting WHERE subject = '*'
    )
    """,
    "DROP TABLE readonly_broker_group_setting",
    "DROP TABLE limit_setting",
    "DROP TABLE client_meta_info",
    "DROP INDEX audit_age",
    "ALTER TABLE audit DROP COLUMN by_node",
    "CREATE INDEX audit_age ON audit (at_ms)",
)
