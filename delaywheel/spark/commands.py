"""`delaywheel spark`: prove from the logs what became of every message."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.shared.options import option
from delaywheel.shared.parameters import MINUTE
from delaywheel.spark.engines import EngineChoice, engine_options, running
from delaywheel.spark.hours import hours
from delaywheel.spark.page import page
from delaywheel.spark.repair import repair
from delaywheel.spark.sources import RESULT, judged, knowing_repairs, reading, sources_of
from delaywheel.spark.verdicts import Verdicts, extra_required

if TYPE_CHECKING:
    from spark_tools.run.plan import Plan, Request
    from spark_tools.run.reconcile import Result


@click.group()
def spark() -> None:
    """Reconcile the logs of a cluster: what was accepted, and what became of it."""


spark.add_command(hours)
spark.add_command(page)
spark.add_command(repair)


@spark.command(cls=Verdicts)
@reading
@option("--from TIME", "Start of the range: filed minutes.", to="from_minute", type=MINUTE)
@option("--to TIME", "End of the range, exclusive.", to="to_minute", type=MINUTE)
@option("--final", "No node runs any more: overdue is lost.")
@judged
@option(
    "--output FILE",
    "The JSON file for the result.",
    type=RESULT,
)
@option(
    "--details DIR",
    "The directory for Parquet files with every finding and all tables.",
    type=RESULT,
)
@option(
    "--page FILE",
    "The HTML file for the result with plots.",
    to="page_file",
    type=RESULT,
)
@option(
    "--check-payload",
    "Also read and check the items of the messages, in the segments of the range, in "
    "dead letters and in the whole message_log. A damaged item makes the input "
    "incomplete.",
)
@knowing_repairs
@engine_options
def reconcile(
    *,
    roots: tuple[str, ...],
    manifests: tuple[str, ...],
    from_minute: int | None,
    to_minute: int | None,
    final: bool,
    asked: "Callable[..., Request]",
    output: Path | None,
    details: Path | None,
    page_file: Path | None,
    audits: tuple[Path, ...],
    check_payload: bool,
    choice: EngineChoice,
) -> None:
    """Compare all accepted messages with their outcomes, message by message.

    It reads the directories of running servers, or copies of them on disk or in an object store,
    and writes nothing into them.

    \b
    Exit codes: 0 no findings, 1 findings (lost, overdue, duplicate, phantom, early, misfiled, ...),
    2 no findings, but the input is incomplete, 3 error: there is no result.

    \b
    Examples:
      delaywheel spark reconcile --root data --from 2026-11-21T14:00Z --to 2026-11-21T15:00Z
      delaywheel spark reconcile --manifest a.json=/backup/a --manifest b.json=/backup/b \\
        --output result.json --details result
      delaywheel spark reconcile --manifest s3://logs/a.json=s3://logs/a --page result.html
    """
    with extra_required():
        from spark_tools.judge.tasks import FOREVER
        from spark_tools.run.plan import make_plan
    request = asked(
        from_minute=from_minute or 0,
        to_minute=FOREVER if to_minute is None else to_minute,
        final=final,
        check_payload=check_payload,
    )
    sources = sources_of(roots, manifests, request.from_minute, is_final=request.final)
    plan = make_plan(sources, request)
    result = _carry_out(
        plan, choice, audits=audits, output=output, details=details, page_file=page_file
    )
    _print_summary(result)
    click.echo(f"{choice.engine}: {result.verdict.name.lower()}")
    sys.exit(int(result.verdict))


def _carry_out(
    plan: "Plan",
    choice: EngineChoice,
    *,
    audits: tuple[Path, ...],
    output: Path | None,
    details: Path | None,
    page_file: Path | None,
) -> "Result":
    """Reconcile by a plan and write the files that are wanted: all of them, or none.

    Raises ReconcileError, SparkFailedError or OSError.
    """
    with extra_required():
        from spark_tools.files.outputs import Output
        from spark_tools.page.page import page as html_of
        from spark_tools.repaired.repairs import read_repairs
        from spark_tools.run.document import document_of
        from spark_tools.run.reconcile import reconcile as run
        from spark_tools.run.report import Details, encode_report, report
    with (
        Output(output) as json_file,
        Output(page_file) as html_file,
        Details(details) as kept,
        running(choice) as engine,
    ):
        result = run(plan, engine, kept.add, read_repairs(audits))
        kept.add_tables(result)
        document = report(result)
        json_file.write(encode_report(document))
        if page_file is not None:
            html_file.write(html_of(document_of(document)).encode())
    return result


def _print_summary(result: "Result") -> None:
    from spark_tools.run.report import summary

    for name, text in summary(result):
        click.echo(f"{name}: {text}")
    for _, group, node, problem in result.problems[:10]:
        click.echo(f"not complete: {group} {node}: {problem}", err=True)
