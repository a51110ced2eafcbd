"""Sends messages of old logs again, a few at a time, and writes down what became of each.

    intents on disk -> sent -> answers on disk -> the next ones

So a kill at any moment leaves an audit that names everything that may have been sent. What was
acknowledged is never sent again; what has an intent and no answer is: the delay server, or a
consumer, can tell by the message id that it is the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.to_thread

from delay_client import Client, DelaywheelError, FatalError, OutgoingItem, Receipt
from spark_tools.repair.repair import LeftOut, Message, Sent
from spark_tools.repaired.repair_audit import (
    ACCEPTED,
    KNOWN,
    REFUSED,
    UNANSWERED,
    Answer,
    Audit,
    Begin,
    End,
    Intent,
    Line,
)
from spark_tools.repaired.repairs import LogName

RATE: Final = 1000
"""Messages a second by default."""
_AT_ONCE: Final = 500
"""Messages that are sent, and not answered yet, at the most."""
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of these, beyond which no further one is added."""
_SLICE_S: Final = 0.1
"""Messages of so long go together, by the rate; of as long as the last ones took if that is more,
up to a second, so that slow answers do not make it slower still."""
_REASONS_MAX: Final = 100
"""Different reasons that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a repair: its sender, its rate, and `timeout_s` for each message."""

    run: str
    who: str
    to: Sequence[str]
    kinds: Sequence[str]
    details: str
    rate: int = RATE
    timeout_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """The outcome of a run; counts: messages by result."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why messages were not accepted."""
    stopped: str = ""
    """Why the run stopped before the end; empty if it did not."""

    def note(self, reason: str) -> None:
        """Count a reason, unless there are very many of them."""
        if reason in self.reasons or len(self.reasons) < _REASONS_MAX:
            self.reasons[reason] += 1


class Stop:
    """Asks a run to stop, which it does after the requests in flight."""

    def __init__(self) -> None:
        self.why = ""
        """Why the run is to stop; empty while it is not."""
        self._asked = anyio.Event()

    def ask(self, why: str) -> None:
        """Ask; the first reason counts."""
        self.why = self.why or why
        self._asked.set()

    async def pause(self, seconds: float) -> None:
        """Sleep so long, or until somebody asks."""
        with anyio.move_on_after(max(seconds, 0)):
            await self._asked.wait()


class Resender:
    """One run that sends."""

    def __init__(
        self, run: Run, client: Client, audit: Audit, sent: Sent, now_ms: Callable[[], int]
    ) -> None:
        """sent: grows by what is acknowledged."""
        self._run = run
        self._client = client
        self._audit = audit
        self._sent = sent
        self._now_ms = now_ms
        self.outcome = Outcome()

    async def send(
        self,
        found: Iterator[Message | LeftOut],
        *,
        on_left_out: Callable[[LeftOut], None],
        on_progress: Callable[[Outcome], None],
        stop: Stop,
    ) -> Outcome:
        """Send all messages, or those before `stop` was asked for."""
        run = self._run
        await self._write(
            [
                Begin(
                    at_ms=self._now_ms(),
                    what="begin",
                    run=run.run,
                    who=run.who,
                    to=list(run.to),
                    kinds=list(run.kinds),
                    rate=run.rate,
                    details=run.details,
                )
            ]
        )
        is_all, took_s, unanswered = False, 0.0, 0
        while not is_all and not stop.why:
            began = anyio.current_time()
            most = int(run.rate * min(max(_SLICE_S, took_s), 1.0))
            some, is_all = await anyio.to_thread.run_sync(self._gather, found, on_left_out, most)
            if not some:
                continue
            results = await self._send_some(some)
            on_progress(self.outcome)
            took_s = anyio.current_time() - began
            is_in_vain = results[UNANSWERED] == len(some)
            unanswered = unanswered + len(some) if is_in_vain else 0
            if unanswered and (is_all or unanswered >= min(_AT_ONCE, run.rate)):
                stop.ask("nobody takes messages")
            elif not is_all:
                await stop.pause(began + len(some) / run.rate - anyio.current_time())
        self.outcome.stopped = stop.why
        why = stop.why or "done"
        counts = dict(self.outcome.counts)
        await self._write(
            [End(at_ms=self._now_ms(), what="end", run=run.run, why=why, counts=counts)]
        )
        return self.outcome

    def _gather(
        self,
        found: Iterator[Message | LeftOut],
        on_left_out: Callable[[LeftOut], None],
        most: int,
    ) -> tuple[list[Message], bool]:
        """Return the next messages, at most so many, but one; and whether there are no more."""
        some: list[Message] = []
        size = 0
        for one in found:
            if isinstance(one, LeftOut):
                on_left_out(one)
                continue
            some.append(one)
            size += len(one.item)
            if len(some) >= min(_AT_ONCE, most) or size >= _BYTES_AT_ONCE:
                return some, False
        return some, True

    async def _send_some(self, some: list[Message]) -> Counter[str]:
        """Send messages; return how many came to which result."""
        await self._write([self._intent(one) for one in some])
        items = [OutgoingItem(one.subject, one.item) for one in some]
        outcomes = await self._client.send_items(items, timeout=self._run.timeout_s)
        answers = [self._answer(one, outcome) for one, outcome in zip(some, outcomes, strict=True)]
        await self._write(answers)
        for one, answer in zip(some, answers, strict=True):
            self.outcome.counts[answer.result] += 1
            if answer.result == ACCEPTED:
                self._sent.add(one.log, one.wanted.kind, one.wanted.sequence)
            elif answer.reason is not None:
                self.outcome.note(answer.reason)
        return Counter(answer.result for answer in answers)

    async def _write(self, lines: Sequence[Line]) -> None:
        # Not to be cut off: what was sent must be told.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._audit.append, lines)

    def _intent(self, one: Message) -> Intent:
        wanted = one.wanted
        return Intent(
            at_ms=self._now_ms(),
            what="intent",
            run=self._run.run,
            kind=wanted.kind,
            cluster=wanted.cluster,
            group=wanted.group,
            log_uuid=one.log_uuid,
            sequence=wanted.sequence,
            filed_minute=wanted.filed_minute,
            message_id=one.message_id,
            subject=one.subject,
            due_ms=wanted.due_ms,
            size=len(one.item),
            node=wanted.node,
            file=wanted.file,
            position=wanted.position,
        )

    def _answer(self, one: Message, outcome: Receipt | DelaywheelError) -> Answer:
        wanted, reason = one.wanted, None
        if isinstance(outcome, Receipt):
            result = KNOWN if outcome.duplicate else ACCEPTED
            if outcome.duplicate:
                reason = "the node says that it has the message, which may be the lost one"
        else:
            result = REFUSED if isinstance(outcome, FatalError) else UNANSWERED
            reason = str(outcome)
        return Answer(
            at_ms=self._now_ms(),
            what="answer",
            run=self._run.run,
            kind=wanted.kind,
            cluster=wanted.cluster,
            group=wanted.group,
            log_uuid=one.log_uuid,
            sequence=wanted.sequence,
            filed_minute=wanted.filed_minute,
            message_id=one.message_id,
            result=result,
            by=outcome.server,
            tries=outcome.attempts,
            reason=reason,
        )


def read_sent(lines: Iterator[Line | None]) -> tuple[Sent, Counter[str]]:
    """Return the messages that an audit says were acknowledged, and its lines by kind."""
    sent = Sent()
    counts: Counter[str] = Counter()
    for line in lines:
        if line is None:
            counts["damaged"] += 1
        elif isinstance(line, Intent):
            counts["intents"] += 1
        elif isinstance(line, Answer):
            counts["answers"] += 1
            if line.result == ACCEPTED:
                log = LogName(line.cluster, line.group, line.log_uuid)
                sent.add(log, line.kind, line.sequence)
    return sent, counts
