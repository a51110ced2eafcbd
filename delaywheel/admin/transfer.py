"""`delaywheel admin export` and `import`: all rows of a store as JSON lines, and back.

They work on the store and not through a server: what is exported is of one moment and nothing comes
after it, since no meta server may run on the file, and what is imported passes no rule, which only
an empty store allows.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import click

from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option

if TYPE_CHECKING:
    from meta_server.sql.store import SqlStore

_STORE = option(
    "--store URL",
    "The store (store.url); DELAYWHEEL_STORE, if there is a password in it.",
    to="url",
    envvar="DELAYWHEEL_STORE",
    required=True,
)


@click.command("export", short_help="Print all rows of a store, as JSON lines.")
@_STORE
@click.argument("file", type=click.File("wb", lazy=True), default="-")
def export_rows(*, url: str, file: BinaryIO) -> None:
    """Write all rows of a store to FILE, as JSON lines, with the audit. Stop the meta server first.

    \b
    Examples:
      delaywheel admin export --store sqlite:///var/lib/delaywheel/meta.db rows.jsonl
    """
    from meta_server.sql.transfer import exported

    with _opened(url, is_there=True) as store:
        file.writelines(exported(store))


@click.command("import", short_help="Take all rows of an export into an empty store.")
@_STORE
@click.argument("file", type=click.File("rb"), default="-")
def import_rows(*, url: str, file: BinaryIO) -> None:
    """Take all rows of FILE into an empty store, or none of them. No meta server may run on it.

    The store becomes the one that was exported: delay servers go on with its rules. Let no meta
    server run on both.

    \b
    Examples:
      delaywheel admin import --store postgresql+psycopg://user@host:5432/meta rows.jsonl
    """
    from meta_server.known.errors import StateError
    from meta_server.sql.transfer import import_into, read_export

    store_uuid, changes = read_export(file)
    with _opened(url, is_there=False) as store:
        try:
            count = import_into(store, store_uuid, changes)
        except StateError as error:
            raise Failure(str(error), ExitCode.REFUSED) from error
    click.echo(f"{count} rows and entries of the audit are stored")


@contextlib.contextmanager
def _opened(url: str, *, is_there: bool) -> "Iterator[SqlStore]":
    """Open a store of which no meta server has the file; is_there: none is made.

    Files made from then on are for this user alone.
    """
    import random

    from meta_server.sql.databases import file_of, read_url
    from meta_server.sql.store import open_store
    from storage.disk.disk import DirectoryDisk, make_private_directory

    try:
        store_url = read_url(url)
    except ValueError as error:
        raise click.UsageError(f"--store: {error}") from error
    os.umask(0o077)
    with contextlib.ExitStack() as opened:
        file = file_of(store_url)
        if file is not None:
            if is_there and not file.exists():
                raise Failure(f"there is no store at {file}", ExitCode.USAGE)
            directory = file.parent
            if not directory.exists():
                make_private_directory(directory, group_may_read=False, own=())
            opened.enter_context(DirectoryDisk(directory).lock("lock"))
        store = open_store(store_url, chance=random.SystemRandom())
        yield opened.enter_context(contextlib.closing(store))
