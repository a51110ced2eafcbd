"""Version 1: broker groups, subjects, routes, clients, delay groups, the audit."""

from typing import Final

STATEMENTS: Final = (
    """
    CREATE TABLE broker_group (
        id {row_number},
        group_name TEXT NOT NULL,
        kind {number} NOT NULL,
        master_address TEXT NOT NULL,
        broker_state {number} NOT NULL,
        tag TEXT NOT NULL,
        ext TEXT NOT NULL,
        weight {number} NOT NULL,
        is_read_only BOOLEAN NOT NULL,
        is_retired BOOLEAN NOT NULL,
        updated_ms {number} NOT NULL,
        version {number} NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX broker_group_key ON broker_group (group_name)",
    """
    CREATE TABLE broker (
        id {row_number},
        group_name TEXT NOT NULL,
        hostname TEXT NOT NULL,
        ip TEXT NOT NULL,
        role {number} NOT NULL,
        serve_port {number} NOT NULL,
        sync_port {number} NOT NULL,
        version {number} NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX broker_key ON broker (hostname, serve_port)",
    "CREATE UNIQUE INDEX broker_role ON broker (group_name, role)",
    """
    CREATE TABLE subject_info (
        id {row_number},
        name TEXT NOT NULL,
        tag TEXT NOT NULL,
        created_ms {number} NOT NULL,
        version {number} NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX subject_info_key ON subject_info (name)",
    """
    CREATE TABLE subject_route (
        id {row_number},
        subject_info TEXT NOT NULL,
        is_prefix BOOLEAN NOT NULL,
        broker_group_json TEXT NOT NULL,
        is_chosen BOOLEAN NOT NULL,
        version {number} NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX subject_route_key ON subject_route (subject_info, is_prefix)",
    """
    CREATE TABLE client_meta_info (
        key_hash {octets} NOT NULL PRIMARY KEY,
        subject_info TEXT NOT NULL,
        client_type {number} NOT NULL,
        consumer_group TEXT NOT NULL,
        client_id TEXT NOT NULL,
        app_code TEXT NOT NULL,
        room TEXT NOT NULL,
        seen_ms {number} NOT NULL
    )
    """,
    """
    CREATE TABLE client_offline_state (
        id {row_number},
        client_id TEXT NOT NULL,
        subject_info TEXT NOT NULL,
        consumer_group TEXT NOT NULL
    )
    """,
    """
    CREATE UNIQUE INDEX client_offline_state_key
        ON client_offline_state (client_id, subject_info, consumer_group)
    """,
    """
    CREATE TABLE readonly_broker_group_setting (
        id {row_number},
        subject TEXT NOT NULL,
        broker_group TEXT NOT NULL
    )
    """,
    """
    CREATE UNIQUE INDEX readonly_broker_group_setting_key
        ON readonly_broker_group_setting (subject, broker_group)
    """,
    """
    CREATE TABLE delay_node (
        id {row_number},
        cluster TEXT NOT NULL,
        group_name TEXT NOT NULL,
        node_id TEXT NOT NULL,
        role TEXT NOT NULL,
        log_uuid {uuid} NOT NULL,
        storage_uuid {uuid} NOT NULL,
        incarnation {number} NOT NULL,
        last_sequence {number} NOT NULL,
        last_epoch {number} NOT NULL,
        address TEXT NOT NULL,
        http_address TEXT NOT NULL,
        software TEXT NOT NULL,
        registered_ms {number} NOT NULL,
        version {number} NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX delay_node_key ON delay_node (cluster, group_name, node_id)",
    """
    CREATE TABLE delay_group (
        id {row_number},
        name TEXT NOT NULL,
        cluster TEXT NOT NULL,
        log_uuid {uuid} NOT NULL,
        epoch {number} NOT NULL,
        version {number} NOT NULL,
        master_node_id TEXT,
        master_incarnation {number},
        min_isr {number} NOT NULL,
        phase TEXT NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX delay_group_key ON delay_group (name)",
    "CREATE UNIQUE INDEX delay_group_log ON delay_group (log_uuid)",
    """
    CREATE TABLE delay_group_in_sync (
        delay_group_id {number} NOT NULL REFERENCES delay_group (id) ON DELETE CASCADE,
        node_id TEXT NOT NULL,
        storage_uuid {uuid} NOT NULL,
        PRIMARY KEY (delay_group_id, node_id)
    )
    """,
    """
    CREATE TABLE last_timestamp (
        id {number} NOT NULL PRIMARY KEY,
        timestamp_ms {number} NOT NULL
    )
    """,
    "INSERT INTO last_timestamp (id, timestamp_ms) VALUES (1, 0)",
    """
    CREATE TABLE audit (
        number {row_number},
        at_ms {number} NOT NULL,
        actor TEXT NOT NULL,
        action TEXT NOT NULL,
        target TEXT NOT NULL,
        before_json TEXT NOT NULL,
        after_json TEXT NOT NULL
    )
    """,
)
"""`{number}` and its kind are for the runner: each database has its own names for them."""
