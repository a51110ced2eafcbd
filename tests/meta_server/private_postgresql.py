"""A PostgreSQL server of the tests' own: in a temporary directory, on a unix socket only."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

_START_S: Final = 30.0
_USER: Final = "delaywheel"


def binaries() -> Path | None:
    """Return where the server's programs are, of the newest version; None if there are none."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    # Debian keeps each version apart, and off the path.
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(found, key=lambda path: float(path.parts[-3]), default=None)
    return None if newest is None else newest.parent


class PrivatePostgresql:
    """One server; root is not allowed to run it, so another user does."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._as_user: Mapping[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._run("initdb", "-D", "data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-locale")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=True,
            **self._as_user,
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", "data", "-k", self._folder),
                    *("-c", "listen_addresses=", "-c", "max_connections=20"),
                    # What is tested is who is told what; not whether PostgreSQL keeps its promise.
                    *("-c", "fsync=off", "-c", "autovacuum=off"),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as_user,
            )
        until = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self._connection_text("postgres")).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self, *, restarts: bool = False) -> None:
        """Stop it, for good or to be started again; whoever is connected is cut off."""
        if self._process is not None:
            # Without a last checkpoint: nobody reads what it leaves.
            self._process.send_signal(signal.SIGINT if restarts else signal.SIGQUIT)
            self._process.wait(timeout=_START_S)
            self._process = None

    def execute(self, statement: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement by itself, and return its rows."""
        with psycopg.connect(self._connection_text(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, options: str = "") -> Iterator[str]:
        """Make an empty database, yield its name, and drop it."""
        self._databases += 1
        name = f"test{self._databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY FILE_COPY {options}")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def url(self, database: str) -> str:
        """Return what a store's settings say for a database."""
        return f"postgresql+psycopg://{_USER}@/{database}?host={self._folder}"

    def _connection_text(self, database: str) -> str:
        return f"host={self._folder} user={_USER} dbname={database} connect_timeout=5"


@contextmanager
def private_postgresql(programs: Path) -> Iterator[PrivatePostgresql]:
    """Run a server for as long as the context lasts; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="delaywheel-postgresql-"))
    try:
        server = PrivatePostgresql(programs, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
