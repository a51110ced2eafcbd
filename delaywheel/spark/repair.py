"""`delaywheel spark repair`: lost messages go back in, with what their producers sent."""

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from delaywheel.shared.options import option
from delaywheel.shared.parameters import DELAY, MINUTE
from delaywheel.shared.sending import client_of, send_at_rate, to_servers
from delaywheel.spark.engines import EngineChoice, engine_options, running
from delaywheel.spark.sources import reading, sources_of
from delaywheel.spark.verdicts import Verdicts, extra_required

if TYPE_CHECKING:
    from delay_client import BlockingClient, DelaywheelError, OutgoingItem, Receipt
    from spark_tools.repair.repair import LeftOut, Message, Wanted
    from spark_tools.repaired.repair_audit import Audit
    from spark_tools.repaired.repairs import Repairs
    from spark_tools.run.plan import Request, Source
    from spark_tools.run.reconcile import Engine

_EXAMPLES = 5
"""Messages, reasons and unreadable findings that are shown."""
_SUBJECTS = 10


@click.command(cls=Verdicts)
@reading
@option("--from TIME", "Start of the range: filed minutes.", to="from_minute", type=MINUTE)
@option("--to TIME", "End of the range, exclusive.", to="to_minute", type=MINUTE)
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
@to_servers
@option("--send", "Send the messages. Without it they are only listed.")
@option(
    "--audit FILE",
    "The file that records the outcome of each message; needed to send. With the same "
    "file a repair that was stopped continues.",
    to="audit_file",
)
@option("--rate N>=1", "The most messages a second.", default=1000)
@option("--timeout", "How long a message is tried.  [default: 15s]", type=DELAY)
@engine_options
def repair(
    *,
    roots: tuple[str, ...],
    manifests: tuple[str, ...],
    from_minute: int | None,
    to_minute: int | None,
    missing: bool,
    final: bool,
    max_age: timedelta | None,
    servers: tuple[str, ...],
    metas: tuple[str, ...],
    send: bool,
    audit_file: Path | None,
    rate: int,
    timeout: timedelta | None,
    choice: EngineChoice,
) -> None:
    """Send lost messages again, with the same bytes, message id and due time.

    Reconciles first, as `spark reconcile` does, and sends what is lost.

    A lost message is due already, so a delay server delivers it at once. An overdue message is
    never sent, because its node will still deliver it. Without --send nothing is sent.

    \b
    Exit codes: 0 nothing is left to do, 1 some messages were not accepted, will still be delivered
    by their node, or the run was stopped: run it again with the same --audit, 2 some messages
    cannot be read, 3 error.

    \b
    Examples:
      delaywheel spark repair --root data
      delaywheel spark repair --root data --server 127.0.0.1:20801 --audit repairs.jsonl --send
      delaywheel spark reconcile --root data --repairs repairs.jsonl
    """
    if send:
        _require_ways_to_send(audit_file, servers, metas)
    with extra_required():
        from spark_tools.judge.tasks import FOREVER
        from spark_tools.repaired.repair_audit import Audit
        from spark_tools.repaired.repairs import KINDS, LOST
        from spark_tools.run.plan import Request

    request = Request(
        from_minute=from_minute or 0,
        to_minute=FOREVER if to_minute is None else to_minute,
        final=final,
    )
    client = client_of(servers, metas) if send else None
    told, sending = _Told(KINDS if missing else (LOST,), max_age), None
    # Before it is read: what another repair sends meanwhile would be sent twice.
    with Audit(audit_file) if send and audit_file else nullcontext() as audit:
        sources = sources_of(roots, manifests, request.from_minute, is_final=final)
        with running(choice) as engine:
            found = told.find(sources, request, engine, _before(audit_file))
        if client is None or audit is None:
            for one in found:
                told.add(one)
        else:
            sending = _Sending(told, audit)
            sending.run(client, found, rate=rate, timeout=timeout)
    told.print()
    if sending is None:
        click.echo("nothing was sent: add --send --audit FILE and --server or --meta to send")
    else:
        sending.print()
    sys.exit(told.exit_code(sending))


def _require_ways_to_send(
    audit_file: Path | None, servers: tuple[str, ...], metas: tuple[str, ...]
) -> None:
    """Refuse to send where a message could not be accounted for, or has no clear destination."""
    if audit_file is None:
        raise click.UsageError("--send needs --audit FILE, in which each message is accounted for")
    if bool(servers) == bool(metas):
        raise click.UsageError("--send needs either --server or --meta")


def _before(audit_file: Path | None) -> "Repairs":
    """Return what earlier runs with this audit have sent; warn of lines that are damaged."""
    from spark_tools.repaired.repairs import read_repairs

    found = read_repairs([audit_file] if audit_file and audit_file.exists() else [])
    if count := found.damaged_lines:
        said = f"{count:,} lines of {audit_file} are damaged: what they tell of may be sent again"
        click.echo(f"Warning: {said}", err=True)
    return found


class _Sending:
    """Sends messages, writes down what became of each, and counts it."""

    def __init__(self, told: "_Told", audit: "Audit") -> None:
        self.counts: Counter[str] = Counter()
        self.stopped = ""
        """Why it stopped before the end; empty if it did not."""
        self._told = told
        self._audit = audit
        self._reasons: Counter[str] = Counter()
        self._who = f"{os.environ.get('USER') or f'uid {os.getuid()}'}@{socket.gethostname()}"

    def run(
        self,
        client: "BlockingClient",
        messages: Iterator["Message"],
        *,
        rate: int,
        timeout: timedelta | None,
    ) -> None:
        """Send. A signal stops it after the requests in flight, a second one at once."""
        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            with client:
                send_at_rate(
                    *(client, messages, self._item, self._note),
                    rate=rate,
                    timeout_s=None if timeout is None else timeout.total_seconds(),
                )
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
        from spark_tools.repair.repair import answer_of

        pairs = zip(messages, answers, strict=True)
        lines = [answer_of(*both, who=self._who, at_ms=_now_ms()) for both in pairs]
        self._audit.append(lines)
        results = Counter(line.result for line in lines)
        self.counts.update(results)
        self._reasons.update(line.reason for line in lines if line.reason is not None)
        if results["unanswered"] == len(lines):
            self.stopped = self.stopped or "nobody takes messages"
        return not self.stopped

    def print(self) -> None:
        """Print what became of the messages."""
        from delay_protocol.basics.printable import printable

        click.echo(", ".join(f"{n:,} {name}" for name, n in self.counts.items()) or "none sent")
        for reason, count in self._reasons.most_common(_EXAMPLES):
            click.echo(printable(f"{count:,} times: {reason}"), err=True)
        if self.stopped:
            click.echo(f"stopped: {self.stopped}; run it again with the same --audit", err=True)


class _Told:
    """A summary of a repair."""

    def __init__(self, kinds: Sequence[str], max_age: timedelta | None) -> None:
        """kinds: classes of findings to send, those due in the last `max_age`."""
        self._kinds = kinds
        age_ms = None if max_age is None else max_age // timedelta(milliseconds=1)
        self._due_from_ms = None if age_ms is None else _now_ms() - age_ms
        self.count = 0
        self.size = 0
        self.kinds: Counter[str] = Counter()
        self.subjects: Counter[str] = Counter()
        self.examples: list[Message] = []
        self.left_out: Counter[str] = Counter()
        self.is_owed = False
        self.unreadable = 0

    def find(
        self, sources: "Sequence[Source]", request: "Request", engine: "Engine", before: "Repairs"
    ) -> Iterator["Message"]:
        """Reconcile, and return the messages to send; count what is left out as they are read."""
        from spark_tools.repair.repair import found_in, messages_of

        result, findings = found_in(sources, request, engine, before)
        totals = [group.account.totals for group in result.groups]
        if sent := sum(one["repaired"] + one["repaired_records"] for one in totals):
            self.left_out["were acknowledged before, by the audit"] = sent
        if owed := result.findings["overdue"]:
            self.is_owed = True
            self.left_out["are still owed by their node, which will deliver them"] = owed
        return self._without_left_out(
            messages_of(sources, result, findings, kinds=self._kinds, due_from_ms=self._due_from_ms)
        )

    def _without_left_out(self, found: Iterator["Message | LeftOut"]) -> Iterator["Message"]:
        from delay_protocol.basics.printable import printable
        from spark_tools.repair.repair import LeftOut, Why

        for one in found:
            if not isinstance(one, LeftOut):
                yield one
            elif one.why is Why.UNREADABLE:
                self.unreadable += 1
                if self.unreadable <= _EXAMPLES:
                    said = f"cannot be read: {_place(one.wanted)}: {one.detail}"
                    click.echo(printable(said), err=True)
            else:
                self.left_out[one.why.value] += 1

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
        from spark_tools.files.times import time_text

        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items())
        click.echo(
            f"{self.count:,} messages to send, {self.size:,} bytes{': ' if kinds else ''}{kinds}"
        )
        for subject, count in self.subjects.most_common(_SUBJECTS):
            click.echo(f"  {count:>10,}  {printable(subject)}")
        if len(self.subjects) > _SUBJECTS:
            click.echo(f"  and {len(self.subjects) - _SUBJECTS:,} more subjects")
        for message in self.examples:
            said = (
                f"{message.message_id}, {message.subject}, due {time_text(message.wanted.due_ms)}"
            )
            click.echo(printable(f"{_place(message.wanted)}: {said}"))
        if self.count > len(self.examples):
            click.echo(f"and {self.count - len(self.examples):,} more")
        for why, count in sorted(self.left_out.items()):
            click.echo(f"left out: {count:,} {why}")
        if self.unreadable > _EXAMPLES:
            more = self.unreadable - _EXAMPLES
            click.echo(f"and {more:,} more that cannot be read", err=True)


def _place(wanted: "Wanted") -> str:
    return (
        f"{wanted.kind} {wanted.cluster}.{wanted.group} {wanted.node} sequence {wanted.sequence}, "
        f"{wanted.file} at {wanted.position}"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
