"""`delaywheel spark repair`: lost messages go back in, with what their producers sent."""

import getpass
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from delaywheel.shared.failures import Failure, failure_of
from delaywheel.shared.options import option
from delaywheel.shared.parameters import DELAY
from delaywheel.shared.sending import client_of, send_at_rate
from delaywheel.spark.sources import RootType, sources_of
from delaywheel.spark.verdicts import ERROR, Verdicts, extra_required

if TYPE_CHECKING:
    from delay_client import Client, DelaywheelError, OutgoingItem, Receipt
    from spark_tools.repair.repair import LeftOut, Message, RepairRequest
    from spark_tools.repaired.repair_audit import Answer, Audit
    from spark_tools.repaired.repairs import Repairs

_EXAMPLES = 5
"""Messages, reasons and unreadable findings that are shown."""
_SUBJECTS = 10


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
        from spark_tools.repair.repair import Repair, Sent
        from spark_tools.repaired.repair_audit import Audit
    from storage.disk.errors import StorageError

    request = _request(missing=missing, final=final, max_age=max_age)
    told = _Told()
    try:
        before = _before(audit_file)
        sources = sources_of(roots, manifests, 0, is_final=request.final)
        found = Repair(sources, request, Sent.of(before)).messages(details)
        to_send = _to_send(found, told)
        if not send:
            for one in to_send:
                told.add(one)
            told.print()
            click.echo("nothing was sent: add --send --audit FILE and --node or --meta to send")
            sys.exit(told.exit_code())
        assert audit_file is not None
        client = client_of(nodes, metas, "--meta" if metas else "--node")
        with Audit(audit_file) as audit:
            sending = _Sending(told, audit)
            sending.run(client, to_send, rate=rate, timeout=timeout)
    except (ReconcileError, StorageError, OSError) as error:
        failure = failure_of(error)
        raise Failure(failure.message if failure else str(error), ERROR) from error
    told.print()
    sending.print()
    sys.exit(told.exit_code(sending))


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


def _before(audit_file: Path | None) -> "Repairs":
    """Return what earlier runs with this audit have sent; warn of lines that are damaged."""
    from spark_tools.repaired.repairs import read_repairs

    is_there = audit_file is not None and audit_file.exists()
    found = read_repairs([audit_file] if audit_file is not None and is_there else [])
    if found.damaged_lines:
        click.echo(
            f"Warning: {found.damaged_lines:,} lines of {audit_file} are damaged: what they tell "
            "of may be sent again",
            err=True,
        )
    return found


def _to_send(found: Iterator["Message | LeftOut"], told: "_Told") -> Iterator["Message"]:
    """Yield the messages to send, and count what is left out."""
    from spark_tools.repair.repair import LeftOut

    for one in found:
        if isinstance(one, LeftOut):
            told.leave_out(one)
        else:
            yield one


class _Sending:
    """Sends messages, writes down what became of each, and counts it."""

    def __init__(self, told: "_Told", audit: "Audit") -> None:
        self.counts: Counter[str] = Counter()
        self.stopped = ""
        """Why it stopped before the end; empty if it did not."""
        self._told = told
        self._audit = audit
        self._reasons: Counter[str] = Counter()
        self._who = _who()

    def run(
        self,
        client: "Client",
        messages: Iterator["Message"],
        *,
        rate: int,
        timeout: timedelta | None,
    ) -> None:
        """Send. A signal stops it after the requests in flight, a second one at once."""
        import anyio

        async def main() -> None:
            async with client:
                await send_at_rate(
                    client,
                    messages,
                    self._item,
                    self._note,
                    rate=rate,
                    timeout_s=None if timeout is None else timeout.total_seconds(),
                )

        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            anyio.run(main)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.stopped = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)
        click.echo("stopping after the requests in flight; once more stops now", err=True)

    def _item(self, message: "Message") -> "OutgoingItem":
        from delay_client import OutgoingItem

        self._told.add(message)
        return OutgoingItem(message.subject, message.item)

    def _note(
        self, messages: Sequence["Message"], answers: "Sequence[Receipt | DelaywheelError]"
    ) -> bool:
        """Write down what became of messages; return whether to go on."""
        lines = [self._answer(*both) for both in zip(messages, answers, strict=True)]
        self._audit.append(lines)
        results = Counter(line.result for line in lines)
        self.counts.update(results)
        self._reasons.update(line.reason for line in lines if line.reason is not None)
        if results["unanswered"] == len(lines):
            self.stopped = self.stopped or "nobody takes messages"
        return not self.stopped

    def _answer(self, message: "Message", outcome: "Receipt | DelaywheelError") -> "Answer":
        from delay_client import FatalError, Receipt
        from spark_tools.repaired.repair_audit import (
            ACCEPTED,
            KNOWN,
            REFUSED,
            UNANSWERED,
            Answer,
        )

        wanted, reason = message.wanted, None
        if isinstance(outcome, Receipt):
            result = KNOWN if outcome.duplicate else ACCEPTED
            if outcome.duplicate:
                reason = "the node says that it has the message, which may be the lost one"
        else:
            result = REFUSED if isinstance(outcome, FatalError) else UNANSWERED
            reason = str(outcome)
        return Answer(
            at_ms=_now_ms(),
            who=self._who,
            kind=wanted.kind,
            cluster=wanted.cluster,
            group=wanted.group,
            log_uuid=message.log_uuid,
            sequence=wanted.sequence,
            filed_minute=wanted.filed_minute,
            message_id=message.message_id,
            subject=message.subject,
            due_ms=wanted.due_ms,
            result=result,
            by=outcome.server,
            reason=reason,
        )

    def print(self) -> None:
        """Print what became of the messages."""
        from delay_protocol.basics.printable import printable

        results = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        click.echo(results or "none sent")
        for reason, count in self._reasons.most_common(_EXAMPLES):
            click.echo(printable(f"{count:,} times: {reason}"), err=True)
        if self.stopped:
            click.echo(f"stopped: {self.stopped}; run it again with the same --audit", err=True)


class _Told:
    """A summary of a repair."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.kinds: Counter[str] = Counter()
        self.subjects: Counter[str] = Counter()
        self.examples: list[Message] = []
        self.left_out: Counter[str] = Counter()
        self.is_owed = False
        self.unreadable = 0
        self.unreadable_examples: list[LeftOut] = []

    def leave_out(self, one: "LeftOut") -> None:
        """Count a message that is not to be sent."""
        from spark_tools.repair.repair import Why

        if one.why is Why.UNREADABLE:
            self.unreadable += 1
            if self.unreadable <= _EXAMPLES:
                self.unreadable_examples.append(one)
        else:
            self.left_out[one.why.value] += 1
            self.is_owed |= not one.why.is_done

    def add(self, one: "Message") -> None:
        """Count a message that is to be sent."""
        self.count += 1
        self.size += len(one.item)
        self.kinds[one.wanted.kind] += 1
        self.subjects[one.subject] += 1
        if self.count <= _EXAMPLES:
            self.examples.append(one)

    def exit_code(self, sending: _Sending | None = None) -> int:
        """Return the exit code of the command."""
        if self.unreadable:
            return 2
        if sending is not None and (sending.stopped or sending.counts["accepted"] < self.count):
            return 1
        return 1 if self.is_owed else 0

    def print(self) -> None:
        """Print it."""
        from delay_protocol.basics.printable import printable

        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items())
        click.echo(
            f"{self.count:,} messages to send, {self.size:,} bytes{': ' if kinds else ''}{kinds}"
        )
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z"


def _who() -> str:
    user = f"uid {os.getuid()}"
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"
