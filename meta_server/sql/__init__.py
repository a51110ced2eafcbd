"""Rows in a database.

    databases    SQLite and PostgreSQL
    store        rows to statements
    tables       the tables
    migrations   a version of the tables each

Imported by settings and the server.
"""
