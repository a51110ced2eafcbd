"""`delaywheel spark repair`: lost messages go back in, with what their producers sent."""

import getpass
import os
import signal
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.shared.failures import Failure, failure_of
from delaywheel.shared.options import option
from delaywheel.shared.parameters import DELAY
from delaywheel.shared.sending import client_of
from delaywheel.spark.sources import RootType, sources_of
from delaywheel.spark.verdicts import ERROR, Verdicts, extra_required

if TYPE_CHECKING:
    from spark_tools.repair.repair import LeftOut, Message, RepairRequest, Sent
    from spark_tools.repair.resender import Outcome, Run

_EXAMPLES = 5
"""Messages, reasons and unreadable findings that are shown."""
_SUBJECTS = 10
_PROGRESS_S = 5.0


@click.command(cls=Verdicts)
@option(
    "--details DIR",
    "The directory of `spark reconcile --details`, with the findings to repair.",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@option(
    "--root DATA_DIR...",
    "The data directory of a node with findings, or the URI of a copy.",
    to="roots",
    type=RootType(),
)
@option(
    "--manifest FILE[=DATA_DIR]...",
    "A manifest of such a directory, as for `spark reconcile`.",
    to="manifests",
)
@option("--missing", "Also send records of the message_log that have no row in the schedule_log.")
@option(
    "--final",
    "No node runs on these directories any more, so messages lost in unsealed segments "
    "are sent too. A node that is started on them later delivers these a second time.",
)
@option(
    "--max-age",
    "Leave out messages that were due longer ago: 6h, 2d.  [default: no limit]",
    type=DELAY,
)
@option(
    "--node HOST:PORT...",
    "A delay server to send to. May be given several times: the messages are shared out.",
    to="nodes",
)
@option(
    "--meta HOST:PORT...",
    "The HTTP port of a meta server that names the delay servers, in place of --node. "
    "May be given several times.",
    to="metas",
)
@option("--send", "Send the messages. Without it they are only listed.")
@option(
    "--audit FILE",
    "The file that records the outcome of each message; needed to send. With the same "
    "file a repair that was stopped continues.",
    to="audit_file",
)
@option("--rate N>=1", "The most messages a second.", default=1000)
@option("--timeout", "How long a message is tried.  [default: 15s]", type=DELAY)
def repair(
    *,
    details: Path,
    roots: tuple[str, ...],
    manifests: tuple[str, ...],
    missing: bool,
    final: bool,
    max_age: timedelta | None,
    nodes: tuple[str, ...],
    metas: tuple[str, ...],
    send: bool,
    audit_file: Path | None,
    rate: int,
    timeout: timedelta | None,
) -> None:
    """Send lost messages again, with the same bytes, message id and due time.

    A lost message is due already, so a delay server delivers it at once. An overdue message is
    never sent, because its node will still deliver it. Each message is read again and checked, and
    left out if it has a fact by now. Without --send nothing is sent.

    \b
    Exit codes: 0 nothing is left to do, 1 some messages were not accepted, will still be delivered
    by their node, or the run was stopped: run it again with the same --audit, 2 some messages
    cannot be read, 3 error.

    \b
    Examples:
      delaywheel spark repair --details result --root data
      delaywheel spark repair --details result --root data --node 127.0.0.1:20801 \\
        --audit repairs.jsonl --send
      delaywheel spark reconcile --root data --repairs repairs.jsonl
    """
    if send:
        _require_ways_to_send(audit_file, nodes, metas)
    if not roots and not manifests:
        raise click.UsageError("give --root or --manifest: messages are read again from the logs")
    with extra_required():
        from spark_tools.files.errors import ReconcileError
        from spark_tools.repair.repair import Repair
    from storage.disk.errors import StorageError

    request = _request(missing=missing, final=final, max_age=max_age)
    told = _Told()
    try:
        sent = _sent_before(audit_file)
        sources = sources_of(roots, manifests, 0, is_final=request.final)
        found = Repair(sources, request, sent).messages(details)
        if not send:
            _list(found, told)
            sys.exit(told.exit_code())
        assert audit_file is not None
        run = _run_of(details, request, to=metas or nodes, rate=rate, timeout=timeout)
        outcome = _send(run, audit_file, sent, found, told, is_meta=bool(metas))
    except (ReconcileError, StorageError, OSError) as error:
        failure = failure_of(error)
        raise Failure(failure.message if failure else str(error), ERROR) from error
    told.print()
    _print_outcome(outcome)
    sys.exit(told.exit_code(outcome))


def _require_ways_to_send(
    audit_file: Path | None, nodes: tuple[str, ...], metas: tuple[str, ...]
) -> None:
    """Refuse to send where a message could not be accounted for, or has no clear destination."""
    if audit_file is None:
        raise click.UsageError("--send needs --audit FILE, in which each message is accounted for")
    if bool(nodes) == bool(metas):
        raise click.UsageError("--send needs either --node or --meta")


def _request(*, missing: bool, final: bool, max_age: timedelta | None) -> "RepairRequest":
    """Return which findings are wanted: those due in the last `max_age`, by the clock as it is."""
    from spark_tools.repair.repair import RepairRequest
    from spark_tools.repaired.repairs import KINDS, LOST

    now_ms = _now_ms()
    return RepairRequest(
        kinds=KINDS if missing else (LOST,),
        final=final,
        due_from_ms=None if max_age is None else now_ms - int(max_age.total_seconds() * 1000),
    )


def _run_of(
    details: Path,
    request: "RepairRequest",
    *,
    to: tuple[str, ...],
    rate: int,
    timeout: timedelta | None,
) -> "Run":
    """Return a new run, as the audit will know it."""
    from spark_tools.repair.resender import Run

    return Run(
        run=str(uuid.uuid4()),
        who=_who(),
        to=to,
        kinds=tuple(request.kinds),
        details=str(details),
        rate=rate,
        timeout_s=None if timeout is None else timeout.total_seconds(),
    )


def _list(found: Iterator["Message | LeftOut"], told: "_Told") -> None:
    """Print what would be sent."""
    for one in found:
        told.add(one)
    told.print()
    click.echo("nothing was sent: add --send --audit FILE and --node or --meta to send")


def _sent_before(audit_file: Path | None) -> "Sent":
    """Return what earlier runs with this audit have sent; warn of lines that are damaged."""
    from spark_tools.repair.resender import read_sent
    from spark_tools.repaired.repair_audit import read_audit

    lines = read_audit(audit_file) if audit_file is not None and audit_file.exists() else iter(())
    sent, counts = read_sent(lines)
    if counts["damaged"]:
        click.echo(
            f"Warning: {counts['damaged']:,} lines of {audit_file} are damaged: what they tell "
            "of may be sent again",
            err=True,
        )
    return sent


def _send(
    run: "Run",
    audit_file: Path,
    sent: "Sent",
    found: Iterator["Message | LeftOut"],
    told: "_Told",
    *,
    is_meta: bool,
) -> "Outcome":
    """Send the messages. A signal stops it after the requests in flight, a second one at once."""
    import anyio

    from spark_tools.repair.resender import Resender, Stop
    from spark_tools.repaired.repair_audit import Audit

    servers, metas, hint = ((), run.to, "--meta") if is_meta else (run.to, (), "--node")
    client = client_of(servers, metas, hint)

    def each() -> Iterator["Message | LeftOut"]:
        for one in found:
            told.add(one)
            yield one

    progress = _Progress()

    async def watch(scope: anyio.CancelScope, stop: Stop) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                if stop.why:
                    scope.cancel()
                stop.ask(signal.Signals(number).name)
                click.echo("stopping after the requests in flight; once more stops now", err=True)

    async def main() -> "Outcome":
        resender, stop = Resender(run, client, audit, sent, _now_ms), Stop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope, stop)
            async with client:
                await resender.send(
                    each(), on_left_out=lambda _: None, on_progress=progress.show, stop=stop
                )
            tasks.cancel_scope.cancel()
        resender.outcome.stopped = stop.why
        return resender.outcome

    with Audit(audit_file) as audit:
        return anyio.run(main)


class _Progress:
    """Prints the counts of a repair every few seconds."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def show(self, outcome: "Outcome") -> None:
        if time.monotonic() - self._told_s >= _PROGRESS_S:
            self._told_s = time.monotonic()
            click.echo(_results(outcome), err=True)


class _Told:
    """A summary of a repair."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.kinds: Counter[str] = Counter()
        self.subjects: Counter[str] = Counter()
        self.due: list[int] = []
        """The earliest and the latest due time."""
        self.examples: list[Message] = []
        self.left_out: Counter[str] = Counter()
        self.is_owed = False
        self.unreadable = 0
        self.unreadable_examples: list[LeftOut] = []

    def add(self, one: "Message | LeftOut") -> None:
        """Count a message that is to be sent, or was left out."""
        from spark_tools.repair.repair import LeftOut, Why

        if isinstance(one, LeftOut):
            if one.why is Why.UNREADABLE:
                self.unreadable += 1
                if self.unreadable <= _EXAMPLES:
                    self.unreadable_examples.append(one)
            else:
                self.left_out[one.why.value] += 1
                self.is_owed |= not one.why.is_done
            return
        self.count += 1
        self.size += len(one.item)
        self.kinds[one.wanted.kind] += 1
        self.subjects[one.subject] += 1
        self.due = [min([one.wanted.due_ms, *self.due]), max([one.wanted.due_ms, *self.due])]
        if self.count <= _EXAMPLES:
            self.examples.append(one)

    def exit_code(self, outcome: "Outcome | None" = None) -> int:
        """Return the exit code of the command."""
        if self.unreadable:
            return 2
        if outcome is not None and (outcome.stopped or outcome.counts["accepted"] < self.count):
            return 1
        return 1 if self.is_owed else 0

    def print(self) -> None:
        """Print it."""
        from delay_protocol.basics.printable import printable

        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items())
        click.echo(
            f"{self.count:,} messages to send, {self.size:,} bytes{': ' if kinds else ''}{kinds}"
        )
        if self.count:
            first, last = map(_time, self.due)
            click.echo(f"due {first} to {last}" if first != last else f"due {first}")
            for subject, count in self.subjects.most_common(_SUBJECTS):
                click.echo(f"  {count:>10,}  {printable(subject)}")
            if len(self.subjects) > _SUBJECTS:
                click.echo(f"  and {len(self.subjects) - _SUBJECTS:,} more subjects")
        for message in self.examples:
            wanted = message.wanted
            line = (
                f"{wanted.kind} {wanted.cluster}.{wanted.group} sequence {wanted.sequence}, "
                f"{message.message_id}, {message.subject}, due {_time(wanted.due_ms)}, "
                f"{wanted.file} at {wanted.position}"
            )
            click.echo(printable(line))
        if self.count > len(self.examples):
            click.echo(f"and {self.count - len(self.examples):,} more")
        for why, count in sorted(self.left_out.items()):
            click.echo(f"left out: {count:,} {why}")
        for one in self.unreadable_examples:
            wanted = one.wanted
            line = (
                f"cannot be read: {wanted.kind} {wanted.cluster}.{wanted.group} {wanted.node} "
                f"sequence {wanted.sequence}, {wanted.file} at {wanted.position}: {one.detail}"
            )
            click.echo(printable(line), err=True)
        if self.unreadable > len(self.unreadable_examples):
            more = self.unreadable - len(self.unreadable_examples)
            click.echo(f"and {more:,} more that cannot be read", err=True)


def _print_outcome(outcome: "Outcome") -> None:
    from delay_protocol.basics.printable import printable

    click.echo(_results(outcome))
    for reason, count in outcome.reasons.most_common(_EXAMPLES):
        click.echo(printable(f"{count:,} times: {reason}"), err=True)
    if outcome.stopped:
        click.echo(f"stopped: {outcome.stopped}; run it again with the same --audit", err=True)


def _results(outcome: "Outcome") -> str:
    return ", ".join(f"{count:,} {name}" for name, count in outcome.counts.items()) or "none sent"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
