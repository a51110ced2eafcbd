"""Exit codes, and which error ends in which.

The table is the edge where typed errors of all packages become one sentence on standard error and a
number for scripts. What is not in it is a bug, and keeps its traceback.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import click


class ExitCode(IntEnum):
    """Exit codes of all commands; 0 is success, 1 an unexpected error."""

    USAGE = 2
    """A wrong option or setting. Correct it."""

    DATA_DIRECTORY = 3
    """The data directory is in use, belongs to another node, or this user may not read and write
    it, or the meta server refuses the node that it is. Look at what else runs there, and at owners
    and modes."""

    LOGS = 4
    """The logs are damaged, contradictory or of a newer version, or a meta server's store is. Run
    `delaywheel log verify` on logs."""

    DISK = 5
    """The disk failed or is full, or a meta server's store cannot be reached. Look at the machine;
    restarting recovers."""

    NETWORK = 6
    """An address cannot be listened on or reached."""

    REFUSED = 7
    """The server refused messages, or did not answer in time for them; or a meta server refused
    what an administrator asked."""


class Failure(click.ClickException):
    """The end of a command that failed for a known reason."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        # click declares one code per class of exceptions; ours are in a table instead.
        self.exit_code = exit_code  # type: ignore[misc]


def failure_of(error: Exception) -> Failure | None:
    """Return how an error ends the command, or None if it has no place in the table.

    What others sent and an error repeats is escaped, so that no terminal takes it for commands.

    Of a group (a nursery's way to report) every leaf must have one: nothing unknown is hidden.
    """
    from delay_protocol.basics.printable import printable

    failures: list[Failure] = []
    for leaf in _leaves(error):
        code = _exit_code(leaf)
        if code is None:
            return None
        failures.append(Failure(printable(str(leaf)), code))
    return failures[0]


def _exit_code(error: BaseException) -> ExitCode | None:
    # Imported here: a command that goes well needs none of it.
    import delay_client
    from delay_server.settings.errors import NodeRefusedError
    from delay_transport.seams.errors import AddressError, ConfigError, TransportError
    from meta_server.known.errors import StoreError, StoreUnavailableError
    from replication.core.follower import CutRefusedError
    from storage.disk.errors import (
        DataDirectoryError,
        FatalDiskError,
        StorageError,
        StorageFullError,
    )

    table: tuple[tuple[type[Exception], ExitCode], ...] = (
        (ConfigError, ExitCode.USAGE),
        (DataDirectoryError, ExitCode.DATA_DIRECTORY),
        (NodeRefusedError, ExitCode.DATA_DIRECTORY),
        (StorageFullError, ExitCode.DISK),
        (FatalDiskError, ExitCode.DISK),
        (StorageError, ExitCode.LOGS),
        (CutRefusedError, ExitCode.LOGS),
        (StoreUnavailableError, ExitCode.DISK),
        (StoreError, ExitCode.LOGS),
        (delay_client.Unavailable, ExitCode.NETWORK),
        (delay_client.DelaywheelError, ExitCode.REFUSED),
        (AddressError, ExitCode.USAGE),
        (TransportError, ExitCode.NETWORK),
    )
    return next((code for kind, code in table if isinstance(error, kind)), None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group: BaseExceptionGroup[Any] = error
        for inner in group.exceptions:
            yield from _leaves(inner)
    else:
        yield error
