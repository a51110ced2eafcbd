"""`delaywheel spark hours`: each hour once, as it closes; for cron."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.shared.failures import Failure
from delaywheel.shared.options import option
from delaywheel.spark.engines import EngineChoice, engine_options, running
from delaywheel.spark.sources import RESULT, judged, knowing_repairs, reading, sources_of
from delaywheel.spark.verdicts import ERROR, Verdicts, extra_required

if TYPE_CHECKING:
    from spark_tools.hours.by_hour import Outcome
    from spark_tools.hours.state_directory import HourEntry
    from spark_tools.hours.summary import Waiting
    from spark_tools.run.plan import Request


@click.command(cls=Verdicts)
@option(
    "--state DIR",
    "The directory for the results of all hours. The first run makes it.",
    required=True,
    type=RESULT,
)
@reading
@judged
@option("--back-hours N>=0", "How many hours back the first run starts.", default=48)
@option(
    "--keep-days N>=1",
    "Days after which an hour, with its result, is forgotten.",
    default=90,
)
@option(
    "--without-group GROUP...",
    "This group is gone for good, and later hours are complete without it.",
    to="without_groups",
)
@option("--quiet", "Print nothing if the exit code is 0, for cron, which mails all output.")
@option(
    "--check-payload",
    "Also read and check the items of the messages in the segments of the hours. A "
    "damaged item makes its hour incomplete.",
)
@knowing_repairs
@engine_options
def hours(
    *,
    state: Path,
    roots: tuple[str, ...],
    manifests: tuple[str, ...],
    asked: "Callable[..., Request]",
    back_hours: int,
    keep_days: int,
    without_groups: tuple[str, ...],
    quiet: bool,
    check_payload: bool,
    audits: tuple[Path, ...],
    choice: EngineChoice,
) -> None:
    """Reconcile each hour of filed minutes once, when it has closed, and keep the results.

    Run it every hour. A run reads the segments of the new hours, and what the message_log has got
    since the last run. It reads the directories of running servers, or copies of them, and writes
    nothing into them.

    \b
    Exit codes, of the hours of this run: 0 no findings (or no hours), 1 findings, 2 no findings,
    but the input is incomplete, 3 error: there is no result. Findings of earlier hours are in
    DIR/summary.json.

    \b
    Examples:
      delaywheel spark hours --state reconciled --root data
      delaywheel spark hours --state reconciled --manifest a.json=/backup/a --quiet
    """
    with extra_required():
        from spark_tools.hours.by_hour import HoursRequest, run_hours
        from spark_tools.hours.state_directory import StateDirectory
        from spark_tools.repaired.repairs import read_repairs
    from storage.disk.disk import make_data_directory
    from storage.tools.inspect import is_data_directory

    if is_data_directory(state):
        raise Failure(f"{state} is a data directory: give --state a directory of its own", ERROR)
    request = HoursRequest(
        request=asked(check_payload=check_payload),
        back_hours=back_hours,
        keep_days=keep_days,
        without_groups=without_groups,
    )
    now_ms = int(time.time() * 1000)
    first = (now_ms - request.request.grace_ms) // 60_000 - 60 * (back_hours + 1)
    make_data_directory(state)
    repairs = read_repairs(audits)
    with running(choice) as engine:
        outcome = run_hours(
            StateDirectory(state),
            lambda minute: sources_of(roots, manifests, first if minute is None else minute),
            request,
            engine,
            repairs=repairs,
        )
    if outcome.verdict or not quiet:
        _tell(outcome, choice.engine, repairs.damaged_lines)
    sys.exit(int(outcome.verdict))


def _tell(outcome: "Outcome", engine: str, damaged: int) -> None:
    for line in _done_lines(outcome.done):
        click.echo(line, err=line.startswith(" "))
    if damaged:
        click.echo(f"{damaged:,} line(s) of the audits cannot be read", err=True)
    for line in _waiting_lines(outcome.waiting):
        click.echo(line)
    summary = outcome.summary
    covered = summary["covered_from"]
    if outcome.segments_before:
        click.echo(f"{outcome.segments_before} segment(s) before {covered} are not covered")
    verdicts = dict(summary["hours"])
    if final := verdicts.pop("final"):
        click.echo(
            f"{final:,} hour(s) since {covered} are done for good, all before "
            f"{summary['done_until']}: {_counts(verdicts)}"
        )
    else:
        click.echo(f"no hour since {covered} is done for good")
    if found := _counts(summary["findings"]):
        click.echo(f"in all of them: {found}")
    click.echo(f"{engine}: {outcome.verdict.name.lower()}")


def _done_lines(done: "Sequence[HourEntry]") -> Iterator[str]:
    """Yield a line for each hour; clean ones without messages have one together."""
    idle = [one.hour for one in done if one.verdict == "clean" and not one.accepted]
    for entry in done:
        if entry.hour in idle:
            continue
        state = "" if entry.is_final else f" ({entry.state})"
        found = f": {_counts(entry.findings)}" if entry.findings else ""
        hour = _span([entry.hour])
        yield f"{hour}: {entry.verdict}{state}: accepted {entry.accepted:,}{found}"
        for problem in entry.problems:
            yield f"  not complete: {problem}"
    if idle:
        yield f"{_span(idle)}: {len(idle)} hour(s) without messages: clean"


def _waiting_lines(waiting: "Sequence[Waiting]") -> Iterator[str]:
    """Yield why hours are not closed, a line for all of one reason."""
    hours: dict[str, list[int]] = {}
    for one in waiting:
        late = ", though it should be" if one.is_late else ""
        hours.setdefault(f"not closed{late}: {one.reason}", []).append(one.hour)
    for said, found in hours.items():
        count = f" ({len(found)} hours)" if len(found) > 1 else ""
        yield f"{_span(found)}{count}: {said}"


def _span(hours: Sequence[int]) -> str:
    from spark_tools.files.times import minute_text

    first, last = minute_text(hours[0]), minute_text(hours[-1])
    return first if first == last else f"{first} to {last}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()) if count)
