"""Rows in a database.

    databases    SQLite and PostgreSQL
    store        changes to statements
    tables       the tables, and which version they have
    transfer     all rows as JSON lines, and back

Imported by settings, the server and the command.
"""
