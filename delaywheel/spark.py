"""`delaywheel spark`: prove from the logs what became of every message."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.failures import Failure
from delaywheel.spark_page import page
from delaywheel.spark_repair import repair
from delaywheel.verdicts import ERROR, Verdicts

if TYPE_CHECKING:
    from spark_tools.plan import Source


@click.group()
def spark() -> None:
    """Reconcile the logs of a cluster: what was accepted, and what became of it."""


spark.add_command(page)
spark.add_command(repair)


class _Minute(click.ParamType[int]):
    """A UTC time of whole minutes, as minutes since 1970."""

    name = "time"

    def convert(
        self,
        value: Any,  # noqa: ANN401 (click's own)
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Return the minute."""
        if isinstance(value, int):
            return value
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time like 2026-11-21T14:00Z", param, ctx)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        seconds = when.timestamp()
        if seconds % 60 or seconds < 0:
            self.fail(f"{value!r} is no whole minute", param, ctx)
        return int(seconds) // 60


@spark.command(cls=Verdicts)
@click.option(
    "--root",
    "roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DATA_DIR",
    help="A node's data directory; what it commits now is reconciled. May be given several times.",
)
@click.option(
    "--manifest",
    "manifests",
    multiple=True,
    metavar="FILE[=DATA_DIR]",
    help="A manifest of `delaywheel log manifest`, and where the files are that it names (its own "
    "directory otherwise). May be given several times.",
)
@click.option(
    "--from", "from_minute", type=_Minute(), metavar="TIME", help="Begin of the range of due times."
)
@click.option("--to", "to_minute", type=_Minute(), metavar="TIME", help="End of it, exclusive.")
@click.option(
    "--grace-ms",
    type=click.IntRange(min=0),
    default=60_000,
    show_default=True,
    metavar="MS",
    help="What was due so long before the manifests were made should have left.",
)
@click.option("--final", is_flag=True, help="Nothing runs any more: what is overdue is lost.")
@click.option(
    "--max-late", type=click.IntRange(min=0), metavar="MS", help="Lateness beyond is a finding."
)
@click.option(
    "--expect-group",
    "expected_groups",
    multiple=True,
    metavar="GROUP",
    help="Say that the input is not complete without this group. May be given several times.",
)
@click.option(
    "--subjects-max",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Subjects with figures of their own; the others are shown as one.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Findings of each class that the result names.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the result here, as JSON.",
)
@click.option(
    "--details",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write every finding, and the tables, here as Parquet.",
)
@click.option(
    "--page",
    "page_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the result here, as one page of HTML with plots.",
)
@click.option(
    "--repairs",
    "audits",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="AUDIT",
    help="The audit of `spark repair`: what it says was sent again is `repaired`, not lost. May be "
    "given several times.",
)
@click.option(
    "--engine",
    type=click.Choice(["local"]),
    default="local",
    show_default=True,
    help="What works: processes of this machine.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many of them.",
)
def reconcile(
    *,
    roots: tuple[Path, ...],
    manifests: tuple[str, ...],
    from_minute: int | None,
    to_minute: int | None,
    grace_ms: int,
    final: bool,
    max_late: int | None,
    expected_groups: tuple[str, ...],
    subjects_max: int,
    examples: int,
    output: Path | None,
    details: Path | None,
    page_file: Path | None,
    audits: tuple[Path, ...],
    engine: str,
    processes: int,
) -> None:
    """Hold what was accepted against what became of it, message by message.

    Beside running servers, or on copies of their directories; nothing is written into them.

    \b
    Exit codes: 0 everything is as promised, 1 findings (lost, overdue, duplicate, phantom, early,
    misfiled, ...), 2 none, but the input is not complete, 3 error: nothing was found out.

    \b
    Examples:
      delaywheel spark reconcile --root data --from 2026-11-21T14:00Z --to 2026-11-21T15:00Z
      delaywheel spark reconcile --manifest a.json=/backup/a --manifest b.json=/backup/b \\
        --output result.json --details result
    """
    try:
        from spark_tools.document import document_of
        from spark_tools.errors import ReconcileError
        from spark_tools.local import local_engine
        from spark_tools.page import page as html_of
        from spark_tools.plan import Request, make_plan
        from spark_tools.reconcile import reconcile as run
        from spark_tools.repairs import read_repairs
        from spark_tools.report import Details, encode_report, report, summary
        from spark_tools.tasks import FOREVER
    except ModuleNotFoundError as error:
        raise Failure(
            f"{error.name} is missing: install delaywheel with its extra `spark`", ERROR
        ) from error
    request = Request(
        from_minute=from_minute or 0,
        to_minute=FOREVER if to_minute is None else to_minute,
        grace_ms=grace_ms,
        final=final,
        max_late_ms=max_late,
        expected_groups=expected_groups,
        subjects_max=subjects_max,
        examples=examples,
    )
    try:
        sources = [source_of_directory(root, request.from_minute) for root in roots]
        sources += [source_of_file(text) for text in manifests]
        plan = make_plan(sources, request)
        with Details(details) as kept:
            result = run(plan, local_engine(processes), kept.add, read_repairs(audits))
            kept.add_tables(result)
        document = report(result)
        if output is not None:
            output.write_bytes(encode_report(document))
        if page_file is not None:
            page_file.write_text(html_of(document_of(document)), encoding="utf-8")
    except (ReconcileError, OSError) as error:
        raise Failure(str(error), ERROR) from error
    for name, text in summary(result):
        click.echo(f"{name}: {text}")
    for _, group, node, problem in result.problems[:10]:
        click.echo(f"not complete: {group} {node}: {problem}", err=True)
    click.echo(f"{engine}: {result.verdict.name.lower()}")
    sys.exit(int(result.verdict))


def source_of_directory(root: Path, from_minute: int) -> "Source":
    """Return what a directory commits now."""
    from spark_tools.plan import Source
    from storage.disk import DirectoryDisk
    from storage.manifest import read_manifest

    manifest = read_manifest(
        DirectoryDisk(root), now_ms=int(time.time() * 1000), deleted_from_minute=from_minute
    )
    return Source(manifest, str(root))


def source_of_file(text: str) -> "Source":
    """Return what a manifest commits; text: FILE, or FILE=DATA_DIR."""
    from spark_tools.plan import Source
    from storage.manifest import decode_manifest

    file, _, root = text.partition("=")
    path = Path(file)
    manifest = decode_manifest(path.read_bytes(), path=file)
    return Source(manifest, root or str(path.parent))
