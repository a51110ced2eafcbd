"""Messages that were received, their verdicts, and their items when they are to come again."""

import json
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self

from delay_client.messages.due_times import due_at
from delay_client.messages.envelope import decode_envelope
from delay_client.messages.item_encoder import DUE_MS_MAX, delay_to_ms
from delay_client.messages.message import Delay, moment
from delay_client.receiving.errors import ENDS_PROGRAM, Reject, RetryLater, text_of
from delay_client.receiving.settings import RetryPolicy
from delay_client.receiving.tracebacks import Tracebacks
from delay_protocol.basics.errors import LocalProtocolError, MalformedItemError
from delay_protocol.basics.printable import printable
from delay_protocol.basics.subjects import real_subject
from delay_protocol.messages.items import FLAG_DELAY, Item, decode_item
from delay_protocol.messages.origin import (
    APP_KEY,
    FIRST_DUE_KEY,
    TIMES_KEY,
    count_of,
    first_due_ms,
)
from delay_protocol.receivers.delivering import REFUSED_BYTES_MAX, Delivered, Verdict

logger = logging.getLogger("delaywheel.receiver")

PUT_OFF_KEY: Final = "dw_putOff"
"""The attribute that counts how often a message was put off, which is no try."""

_PUT_OFF_MS: Final = (100, 200, 400, 800, 1600, 3200, 5000)
"""The least waits of a message that is put off for the second time, the third, … without end."""


class Desk(Protocol):
    """Takes the verdicts of the messages of a connection."""

    chance: random.Random
    tracebacks: Tracebacks
    ends_task: Callable[[BaseException], bool]

    @property
    def retry(self) -> RetryPolicy:
        """When a message comes again whose handler failed."""

    @property
    def levels_ms(self) -> Sequence[int]:
        """The delays of levels in ms."""

    def begin(self) -> None:
        """Note that a handler has begun a message."""

    def now_ms(self) -> int:
        """Return the server's time, in ms since 1970 UTC: the delay of a LATER counts from it."""

    def settle(self, message: "ReceivedMessage", verdict: Verdict, rest: bytes = b"") -> None:
        """Take the verdict, unless the message has one or its connection was lost."""


class ReceivedMessage:
    """A message that is due. Its verdict is the first that is given; further ones are ignored.

    `async with message:` gives one by how the block ends: DONE, or as a handler of run() that
    raises; cancelled, it puts the message off. RetryLater and Reject end there, other exceptions
    pass on. Verdicts go out in the background, many in one request; leaving the receiver's block
    waits for their answers. A message without a verdict counts against the credit until then.
    """

    subject: str
    """The subject that it was sent under."""
    id: str
    """The message id: copies of a message, and its tries, have the same."""
    tags: Sequence[str]
    """What the sender tagged it with."""
    attributes: Mapping[str, str]
    """All attributes of the item, those of the envelope and of QMQ (`qmq_…`) included."""
    body: str | bytes
    """The body: text, or bytes that are no UTF-8; empty where there are only attributes."""
    headers: Mapping[str, str]
    """The headers that it was sent with, by name in lower case."""
    content_type: str | None
    """The content type that it was sent with."""
    due_ms: int
    """When it was due, in ms since 1970 UTC; after a LATER, when it was due again."""
    attempt: int
    """Which try it is, from 1: the failed ones before it, of the receivers' policy, and those that
    the present master of its group made since it was due."""

    def __init__(self, desk: Desk, connection: int, delivered: Delivered, arrived_ms: int) -> None:
        """Only read() makes the fields above: a message that waits for its handler needs none."""
        self.desk = desk
        self.connection = connection
        """The number of the connection that it came by, the only one where a verdict counts."""
        self.sequence, self.tried, self.kept = delivered
        self.arrived_ms = arrived_ms
        """When it arrived, by the server's clock, in ms since 1970 UTC."""
        self.came_at = 0.0
        """The same, in the time of the event loop."""
        self.is_settled = False
        """Whether it has its verdict."""

    def read(self) -> None:
        """Decode the item; raise MalformedItemError for one that no handler could use."""
        item = self.item = decode_item(self.kept)
        # Without the flag an item is due as soon as it is there, and has another time in the field.
        self.due_ms = item.due_ms if item.flag & FLAG_DELAY else item.create_ms
        if not 0 <= self.due_ms <= DUE_MS_MAX:
            raise MalformedItemError(f"due at {self.due_ms} ms")
        self.subject = real_subject(item.subject.encode()).decode()
        self.id, self.tags = item.message_id, item.tags
        self.attributes = item.attributes
        self.attempt = count_of(item.attributes, TIMES_KEY) + self.tried
        self.body, self.headers, self.content_type = decode_envelope(item.attributes)

    @property
    def data(self) -> bytes:
        """The body in bytes, whichever it was sent as: those of text are UTF-8."""
        return self.body if isinstance(self.body, bytes) else self.body.encode()

    @property
    def put_offs(self) -> int:
        """How often it was put off, by RetryLater or later(); that is no part of `attempt`."""
        return count_of(self.attributes, PUT_OFF_KEY)

    @property
    def due(self) -> datetime:
        """When it was due, in UTC; after a LATER, when it was due again."""
        return moment(self.due_ms)

    @property
    def first_due(self) -> datetime:
        """When it was due at first, in UTC: no LATER and no requeue changes it."""
        return moment(first_due_ms(self.item))

    @property
    def app_code(self) -> str:
        """The application that sent it, as its `Client(app_code=…)` said; empty if it did not."""
        return self.attributes.get(APP_KEY, "")

    @property
    def lateness(self) -> float:
        """Seconds from when it was due to when it arrived here, by the delay server's clock.

        That clock is known to 1 ms, by which nothing is early.
        """
        late_ms = self.arrived_ms - self.due_ms
        return 0.0 if late_ms == -1 else late_ms / 1000

    def json(self) -> Any:  # noqa: ANN401 (whatever the sender sent)
        """Return what the body says as JSON; raise a ValueError where it is none."""
        return json.loads(self.body)

    async def done(self) -> None:
        """Say that the message is done with."""
        self.desk.settle(self, Verdict.DONE)

    async def release(self) -> None:
        """Give the message back as if it had not come: it goes to others, or comes again."""
        self.desk.settle(self, Verdict.RELEASE)

    async def later(self, delay: Delay) -> None:
        """Put the message off: it comes again after a delay, and that is no try.

        From the second time on it waits 100 ms at the least, then twice as long, up to 5 s.
        """
        self._put_off(delay_to_ms(delay))

    async def reject(self, reason: object) -> None:
        """Make the message a dead letter, with a reason of which up to 1,024 bytes are kept."""
        self.refuse(reason)

    def refuse(self, reason: object) -> None:
        """Do what reject() does."""
        self.desk.settle(self, Verdict.REFUSED, reason_of(reason))

    def failed(self, error: BaseException, retry: RetryPolicy | None = None) -> None:
        """Give the verdict after an exception: the error's own, or by the retry policy.

        A fault of the error or of the policy is a failure in its place, by the default policy: an
        exception from here would end the receiver.
        """
        try:
            self._judge(error, retry or self.desk.retry)
        except ENDS_PROGRAM:
            raise
        except BaseException as fault:  # noqa: BLE001 (errors and policies are the service's)
            self._judge(fault, RetryPolicy())

    def _judge(self, error: BaseException, retry: RetryPolicy) -> None:
        if isinstance(error, RetryLater):
            self._put_off(error.delay_ms)
        elif isinstance(error, Reject):
            self.refuse(error.reason)
        elif not self.is_settled:
            said = f"{type(error).__name__}: {text_of(error)}"
            policy = retry.by_levels(self.desk.levels_ms)
            wait_s = policy.wait_s(self.attempt, self.desk.chance)
            if wait_s is None:
                level, what = logging.ERROR, "given up"
                self.refuse(f"given up after {self.attempt} tries: {said}")
            else:
                level, what = logging.WARNING, f"comes again in {wait_s:.3g} s"
                self._come_again(math.ceil(wait_s * 1000), TIMES_KEY)
            is_due = self.desk.tracebacks.is_due(error, self.desk.now_ms())
            shown = printable(said[:REFUSED_BYTES_MAX])
            logger.log(level, "%r: %s: %s", self, what, shown, exc_info=error if is_due else None)

    def _put_off(self, delay_ms: int) -> None:
        least_ms = (0, *_PUT_OFF_MS)[min(self.put_offs, len(_PUT_OFF_MS))]
        self._come_again(max(delay_ms, least_ms), PUT_OFF_KEY)

    def _come_again(self, delay_ms: int, key: str) -> None:
        due_ms = min(self.desk.now_ms() + delay_ms, DUE_MS_MAX)
        try:
            self.desk.settle(self, Verdict.LATER, later_item(self.item, due_ms, key))
        except LocalProtocolError as error:
            self.refuse(f"given up, since it could not come again: {error}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Give the verdict by how the block ends, unless the message has one."""
        if error is None:
            self.desk.settle(self, Verdict.DONE)
        elif self.desk.ends_task(error):
            self._put_off(0)
        else:
            self.failed(error)
        return isinstance(error, RetryLater | Reject)

    def __repr__(self) -> str:
        return f"<message {self.id!a} of {self.subject!a}, attempt {self.attempt}>"


class MessageBatch(tuple[ReceivedMessage, ...]):
    """Some messages that came together; each may have a verdict of its own."""

    __slots__ = ()

    async def done(self) -> None:
        """Say that all are done with that have no verdict yet."""
        for message in self:
            message.desk.settle(message, Verdict.DONE)


def reason_of(thing: object) -> bytes:
    """Return as much of the text of anything as the reason of a REFUSED may have."""
    data = text_of(thing)[:REFUSED_BYTES_MAX].encode(errors="replace")
    return data[:REFUSED_BYTES_MAX].decode(errors="ignore").encode()


def later_item(item: Item, due_ms: int, key: str) -> bytes:
    """Return the item of a message that comes again: due then, and one more in an attribute.

    It keeps when it was due at first.

    Raises LocalProtocolError for an item that only others write: with a value of 40,000 bytes, say.
    """
    more = {key: str(count_of(item.attributes, key) + 1), FIRST_DUE_KEY: str(first_due_ms(item))}
    return due_at(item, due_ms, **more)
