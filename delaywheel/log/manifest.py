"""`delaywheel log manifest`: what a data directory commits at this moment, for its readers."""

import time
from pathlib import Path

import click

from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option

_DELETED_DAYS = 30
_DAY_MINUTES = 24 * 60
_FAULTS_SHOWN = 10


@click.command()
@click.argument(
    "data",
    # What may not be read is named by those who read, with its owner and what to do.
    type=click.Path(exists=True, file_okay=False, readable=False, path_type=Path),
    metavar="DATA_DIR",
)
@option("--output FILE", "Write to this file, replaced as a whole, instead of printing.")
@option(
    "--deleted-days N>=0",
    "List segments whose files were deleted if their time ended within this many days.",
    default=_DELETED_DAYS,
)
def manifest(*, data: Path, output: Path | None, deleted_days: int) -> None:
    """Print which files of a data directory count now, and how much of each, as JSON.

    The server may run; nothing is written into its directory. The listed files stay for the
    retirement grace (an hour), so that readers can read them again. Ends with exit code 4 if
    something is missing or damaged: the manifest names it and is incomplete.

    \b
    Examples:
      delaywheel log manifest data --output manifest.json
      delaywheel log manifest data | jq '.sealed | length'
    """
    from spark_tools.files.errors import OutputError
    from spark_tools.files.outputs import write_whole
    from storage.disk.disk import DirectoryDisk
    from storage.readers.manifest import encode_manifest, read_manifest
    from storage.tools.inspect import is_data_directory

    if not is_data_directory(data):
        raise Failure(f"{data} is no data directory", ExitCode.DATA_DIRECTORY)
    now_ms = int(time.time() * 1000)
    found = read_manifest(
        DirectoryDisk(data),
        now_ms=now_ms,
        deleted_from_minute=now_ms // 60_000 - deleted_days * _DAY_MINUTES,
    )
    text = encode_manifest(found)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            write_whole(output, text)
        except OutputError as error:
            raise Failure(str(error), ExitCode.USAGE) from error
    for fault in found.faults[:_FAULTS_SHOWN]:
        click.echo(f"{fault.file} at {fault.position}: {fault.reason}", err=True)
    if found.faults:
        raise Failure(
            f"the manifest of {data} is not complete, {len(found.faults)} fault(s); run "
            "`delaywheel log verify`",
            ExitCode.LOGS,
        )
