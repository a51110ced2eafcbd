"""`delaywheel log`: look into the files of a data directory, check every byte, save what is whole.

All commands only read them; they work on a running server's directory as well as on a copy.
"""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import msgspec

from delaywheel.log.manifest import manifest
from delaywheel.log.salvage import salvage
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option

PATH_ARGUMENT = click.argument(
    "path",
    # What may not be read is named by those who read, with its owner and what to do.
    type=click.Path(exists=True, readable=False, path_type=Path),
    metavar="FILE|DATA_DIR",
)


@click.group()
def log() -> None:
    """Read log files, verify them, and salvage messages from damaged ones."""


log.add_command(manifest)
log.add_command(salvage)


@log.command()
@PATH_ARGUMENT
@option("--limit N>=1", "Stop after N lines.")
def dump(*, path: Path, limit: int | None) -> None:
    """Print a log file, or every file of a data directory: a JSON line for each batch.

    Ends with exit code 4 if anything that was to be printed is damaged, or is no log.

    \b
    Examples:
      delaywheel log dump data --limit 20
      delaywheel log dump data/schedule_log/20261121T1403Z.minute | jq .message_ids
    """
    from storage.tools.inspect import dump_files

    _print(path, itertools.islice(dump_files(path), limit), "place(s)")


@log.command()
@PATH_ARGUMENT
def verify(*, path: Path) -> None:
    """Check every CRC and length of a log file, or of every log of a data directory.

    Prints a JSON line for each file. Ends with exit code 4 if anything is damaged or missing, and
    names it; with 3 at the first file that this user may not read.

    \b
    Examples:
      delaywheel log verify data
      delaywheel log verify data/message_log | jq 'select(.damage != [])'
    """
    from storage.tools.inspect import verify_files

    _print(path, verify_files(path), "file(s)")


def _print(path: Path, records: Iterable[Mapping[str, object]], what: str) -> None:
    """Print records; raise Failure if any of them tells of damage."""
    damaged = 0
    for record in records:
        damaged += bool(record.get("damage"))
        click.echo(msgspec.json.encode(record, enc_hook=str))
    if damaged:
        raise Failure(f"{damaged} damaged {what} in {path}", ExitCode.LOGS)
