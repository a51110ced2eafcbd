"""The databases a store can be in: how each is reached, what its transactions are, how it fails.

    sqlite:///var/lib/delaywheel/meta.db                 a file; WAL, synchronous=FULL
    postgresql+psycopg://user:password@host:5432/name    a server

A transaction that was committed is on disk, whatever the database was told elsewhere. What a
driver raises becomes one of the errors of errors.py by its code, never by its text.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, StatementError
from sqlalchemy.pool import QueuePool

from meta_server.known import errors

_ADVISORY_LOCK: Final = 0x64656C6179  # "delay"
"""Lock of PostgreSQL: shared by every transaction, held alone by who makes tables."""

_READS: Final = "delaywheel_reads"

_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that the write-ahead log of a file keeps when all of it is in the file: somebody who reads
for long (a backup) makes it longer, and it would stay so."""

_CONNECT_S: Final = 5
"""To wait for a connection to a server."""


StoreUrl = URL
"""Where a store is; whoever has one needs to know nothing else of SQL."""

STATEMENT_MS_MAX: Final = 10_000
"""Milliseconds that a statement may take, waiting for other writers included. A change that waits
longer is refused; known routes are served all the while."""


def read_url(text: str) -> URL:
    """Return the URL of a store; raise ValueError for what is no database we know."""
    try:
        url = make_url(text)
    except ArgumentError:
        # Not quoted: there may be a password in it.
        raise ValueError(
            "url is no database URL: sqlite:///PATH or postgresql+psycopg://…"
        ) from None
    if url.drivername not in _KINDS:
        raise ValueError(f"url names {url.drivername}, but a store is one of {sorted(_KINDS)}")
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ValueError("url names no file; a store cannot be in memory only")
    return url


def file_of(url: URL) -> Path | None:
    """Return the file of a store; None where there is a database server."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


class Database(ABC):
    """One database, connected to as needed. Used by one thread at a time."""

    def __init__(self, engine: Engine, *, name: str) -> None:
        self._engine = engine
        self._name = name

    @contextmanager
    def begin(self, *, reads: bool = False, alone: bool = False) -> Iterator[Connection]:
        """Begin a transaction: committed at the end of the context, rolled back by an exception.

        reads: it changes nothing, and sees everything as of one moment. alone: no transaction of
        any meta server goes on meanwhile. Whatever the database does wrong in it is raised as a
        StoreError; after StoreUnavailableError the next one connects anew.
        """
        try:
            with self._connect(reads=reads) as connection:
                with connection.begin():
                    self._prepare(connection, alone=alone)
                    yield connection
                self._check_place(connection)
        except (StatementError, OverflowError, UnicodeError) as error:
            fault = self._fault_of(error)
            if isinstance(fault, errors.StoreUnavailableError):
                self.close()
            raise fault from error
        except errors.StoreUnavailableError:
            self.close()
            raise

    def close(self) -> None:
        """Close what is open; the next transaction connects anew."""
        self._engine.dispose()

    @abstractmethod
    def _connect(self, *, reads: bool) -> Connection:
        """Return a connection, for a transaction that changes nothing or one that does."""

    @abstractmethod
    def _prepare(self, connection: Connection, *, alone: bool) -> None:
        """Do what comes first in every transaction."""

    @abstractmethod
    def check(self, connection: Connection) -> None:
        """Raise StoreUnusableError if what is kept is damaged, as far as that can be seen soon."""

    def _check_place(self, connection: Connection) -> None:
        """Raise StoreUnavailableError if what was committed is not where it is looked for."""
        del connection

    @abstractmethod
    def _kind_of(self, error: BaseException) -> type[errors.StoreError] | None:
        """Return what a driver's error means, or None if nothing is known of it."""

    def _fault_of(self, error: StatementError | OverflowError | UnicodeError) -> errors.StoreError:
        if not isinstance(error, DBAPIError):
            # No word of the database: a value that cannot even be handed to it.
            return errors.StoreRefusedError(str(error))
        cause = error.orig or error
        if error.connection_invalidated:
            return errors.StoreUnavailableError(_text_of(cause))
        kind = self._kind_of(cause) or errors.StoreUnavailableError
        what = _text_of(cause)
        return kind(self._damaged(what) if kind is errors.StoreUnusableError else what)

    def _damaged(self, what: str) -> str:
        """Return what is wrong with the database, and what is to be done about it."""
        return (
            f"{self._name} is damaged, or not a store: {what}. Move it away, keep it, and put a "
            "copy in its place: docs/meta-server.md says how, and what to do without one"
        )


def open_database(url: URL, *, statement_ms: int) -> Database:
    """Return the database of a URL; nothing is connected to yet.

    Raises StoreUnusableError where its driver is not installed.
    """
    try:
        return _KINDS[url.drivername](url, statement_ms)
    except ImportError as error:
        raise errors.StoreUnusableError(
            f"the database's driver is missing ({error}): install the extra `postgresql` into this "
            "environment, with pip install 'psycopg[binary]>=3.3'"
        ) from error


def _text_of(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class SqliteDatabase(Database):
    """A file, and its write-ahead log beside it.

    The file is made by the first transaction, and only by that one: when it is gone later on, an
    empty one in its place would be taken for a store that knows of no route. One process has it:
    whoever opens it has locked its directory.
    """

    def __init__(self, url: URL, statement_ms: int) -> None:
        self._path = os.path.abspath(url.database or "")
        self._wait_ms = statement_ms
        self._may_make = True
        super().__init__(
            create_engine(
                "sqlite+pysqlite://",
                creator=self._open,
                poolclass=QueuePool,
                pool_size=1,
                max_overflow=0,
                hide_parameters=True,
            ),
            name=self._path,
        )
        event.listen(self._engine, "begin", self._begin)

    def _open(self) -> sqlite3.Connection:
        mode = "rwc" if self._may_make else "rw"
        connection = sqlite3.connect(
            f"file:{quote(self._path)}?mode={mode}",
            uri=True,
            timeout=self._wait_ms / 1000,
            # Transactions are begun below, not guessed by the driver; calls come one at a time, but
            # from whichever thread the executor has.
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES_MAX}")
            (journal,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except BaseException:
            connection.close()
            raise
        if journal != "wal":
            connection.close()
            raise errors.StoreUnusableError(
                f"{self._path} cannot have a write-ahead log, only {journal}"
            )
        return connection

    def _connect(self, *, reads: bool) -> Connection:
        return self._engine.connect().execution_options(**{_READS: reads})

    @staticmethod
    def _begin(connection: Connection) -> None:
        # Asking for the write lock at once: a transaction that asks later may have to be given up.
        reads = connection.get_execution_options().get(_READS)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    def _prepare(self, connection: Connection, *, alone: bool) -> None:
        """Note which files these are. Writers exclude each other anyway."""
        del alone
        connection.info.setdefault("files", self._files())

    def check(self, connection: Connection) -> None:
        """Look at every page, of tables and indexes that are seldom read as well.

        Bytes inside of a value are not noticed, nor an index without rows of its table.
        """
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if found != "ok":
            raise errors.StoreUnusableError(self._damaged(" ".join(found.split())))

    def _check_place(self, connection: Connection) -> None:
        """Look whether the files are still those that were opened.

        A file that was moved away or deleted can be written on, and nobody will ever find it.
        """
        self._may_make = False
        if connection.info["files"] != self._files():
            connection.invalidate()
            raise errors.StoreUnavailableError(f"{self._path}, or its log, was moved or replaced")

    def _files(self) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for path in (self._path, f"{self._path}-wal"):
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino))
        return found

    def _kind_of(self, error: BaseException) -> type[errors.StoreError] | None:
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _SQLITE_FAULTS.get(code & 0xFF)


_SQLITE_FAULTS: Final[dict[int, type[errors.StoreError]]] = {
    sqlite3.SQLITE_CONSTRAINT: errors.ConflictError,
    sqlite3.SQLITE_CORRUPT: errors.StoreUnusableError,
    sqlite3.SQLITE_NOTADB: errors.StoreUnusableError,
    sqlite3.SQLITE_ERROR: errors.StoreUnusableError,
    sqlite3.SQLITE_TOOBIG: errors.StoreRefusedError,
    sqlite3.SQLITE_MISMATCH: errors.StoreRefusedError,
}
"""By the primary result code. SQLITE_ERROR is a table or column that is not there; whatever is not
listed (full, read-only, locked, I/O) may pass."""


class PostgresqlDatabase(Database):
    """A server. Other meta servers may be using it at the same time."""

    def __init__(self, url: URL, statement_ms: int) -> None:
        super().__init__(
            create_engine(
                url,
                pool_size=1,
                max_overflow=0,
                # A connection that died while nothing was asked is replaced, not reported.
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args={
                    "connect_timeout": _CONNECT_S,
                    # Of a server that is silent, not gone.
                    "tcp_user_timeout": statement_ms,
                    "keepalives_idle": 5,
                    "application_name": "delaywheel meta-server",
                    # Durable commits, whatever the server's default is.
                    "options": "-c synchronous_commit=on "
                    f"-c statement_timeout={statement_ms} "
                    f"-c idle_in_transaction_session_timeout={statement_ms}",
                },
            ),
            name="the database",
        )

    def _connect(self, *, reads: bool) -> Connection:
        level = "REPEATABLE READ" if reads else "READ COMMITTED"
        return self._engine.connect().execution_options(isolation_level=level)

    def _prepare(self, connection: Connection, *, alone: bool) -> None:
        """Wait for who makes tables, or for everybody else."""
        suffix = "" if alone else "_shared"
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{suffix}({_ADVISORY_LOCK})")

    def check(self, connection: Connection) -> None:
        """Look at its encoding: the server checks its own pages."""
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            raise errors.StoreUnusableError(
                f"the database has encoding {encoding}, but must have UTF8"
            )

    def _kind_of(self, error: BaseException) -> type[errors.StoreError] | None:
        state = getattr(error, "sqlstate", None) or ""
        return _SQLSTATE_FAULTS.get(state) or _SQLSTATE_FAULTS.get(state[:2])


_SQLSTATE_FAULTS: Final[dict[str, type[errors.StoreError]]] = {
    "23": errors.ConflictError,
    "40": errors.ConflictError,
    "22": errors.StoreRefusedError,
    "54": errors.StoreRefusedError,
    "42": errors.StoreUnusableError,
    "42501": errors.StoreUnavailableError,
    "XX001": errors.StoreUnusableError,
    "XX002": errors.StoreUnusableError,
}
"""By SQLSTATE, or its class. 42 is a table or column that is not there, but for 42501, a right that
is missing; whatever is not listed (connection, resources, shutting down, read-only) may pass."""

_KINDS: Final[dict[str, Callable[[URL, int], Database]]] = {
    "sqlite": SqliteDatabase,
    "postgresql+psycopg": PostgresqlDatabase,
}
"""By the name of the URL's driver."""
