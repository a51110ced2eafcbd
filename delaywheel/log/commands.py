"""`delaywheel log`: look into the files of a data directory, check every byte, save what is whole.

All commands only read them; they work on a running server's directory as well as on a copy.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
import msgspec

from delaywheel.log.manifest import manifest
from delaywheel.log.salvage import salvage
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.terminal import cell, wide_console

_ROWS_AT_A_TIME = 1000
"""Rows of one table: widths are fitted to these, and nothing is printed before they are read."""

PATH_ARGUMENT = click.argument(
    "path",
    # What may not be read is named by those who read, with its owner and what to do.
    type=click.Path(exists=True, readable=False, path_type=Path),
    metavar="FILE|DATA_DIR",
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group()
def log() -> None:
    """Read log files, verify them, and salvage messages from damaged ones."""


log.add_command(manifest)
log.add_command(salvage)


@log.command()
@PATH_ARGUMENT
@JSON_OPTION
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
def dump(*, path: Path, as_json: bool, limit: int | None) -> None:
    """Print the records of a log file, or of every log of a data directory.

    Ends with exit code 4 if anything that was to be printed is damaged, or is no log.

    \b
    Examples:
      delaywheel log dump data --limit 20
      delaywheel log dump data/schedule_log/20261121T1403Z.minute --json
    """
    from storage.tools.inspect import dump_records

    _print(path, itertools.islice(dump_records(path), limit), "place(s)", as_json=as_json)


@log.command()
@PATH_ARGUMENT
@JSON_OPTION
def verify(*, path: Path, as_json: bool) -> None:
    """Check every CRC, length and order of a log file, or of every log of a data directory.

    Ends with exit code 4 if anything is damaged or missing, and names it; with 3 at the first file
    that this user may not read.

    \b
    Examples:
      delaywheel log verify data
      delaywheel log verify data/message_log --json
    """
    from storage.tools.inspect import verify_files

    _print(path, verify_files(path), "file(s)", as_json=as_json)


def _print(
    path: Path, records: Iterable[Mapping[str, object]], what: str, *, as_json: bool
) -> None:
    """Print records; raise Failure if any of them tells of damage."""
    damaged = 0

    def counted() -> Iterator[Mapping[str, object]]:
        nonlocal damaged
        for record in records:
            damaged += bool(record.get("damage"))
            yield record

    if as_json:
        _print_json(counted())
    else:
        _print_tables(counted())
    if damaged:
        raise Failure(f"{damaged} damaged {what} in {path}", ExitCode.LOGS)


def _print_json(records: Iterable[Mapping[str, object]]) -> None:
    for record in records:
        click.echo(msgspec.json.encode(record, enc_hook=str))


def _print_tables(records: Iterable[Mapping[str, object]]) -> None:
    """Print records of alike columns below one another."""
    from rich.table import Table

    console = wide_console()
    rest = iter(records)
    while rows := list(itertools.islice(rest, _ROWS_AT_A_TIME)):
        for keys, group in itertools.groupby(rows, key=tuple):
            table = Table(*keys, box=None)
            for row in group:
                table.add_row(*(cell(_text(value)) for value in row.values()))
            console.print(table)


def _text(value: object) -> str:
    match value:
        case None | [] | {}:
            return ""
        case bytes():
            return value.decode(errors="backslashreplace")
        case list():
            return "; ".join(_text(inner) for inner in value)
        case dict():
            return ", ".join(f"{key}={_text(inner)}" for key, inner in value.items())
        case _:
            return str(value)
