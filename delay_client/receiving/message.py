"""Messages that were received, their verdicts, and their items when they are to come again."""

import json
import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self

from delay_client.messages.envelope import decode_envelope
from delay_client.messages.item_encoder import DUE_KEY, DUE_MS_MAX, delay_to_ms
from delay_client.messages.message import Delay, moment
from delay_client.receiving.errors import Reject, RetryLater
from delay_client.receiving.settings import RetryPolicy
from delay_protocol.basics.errors import LocalProtocolError, MalformedItemError
from delay_protocol.messages.items import FLAG_DELAY, Item, decode_item, encode_item
from delay_protocol.receivers.delivering import REFUSED_BYTES_MAX, Delivered, Verdict

logger = logging.getLogger("delaywheel.receiver")

TIMES_KEY: Final = "qmq_times"
"""The attribute that counts the tries before the last LATER."""

_TIMES_MAX: Final = 2**31 - 1


class Desk(Protocol):
    """Takes the verdicts of the messages of a connection."""

    retry: RetryPolicy
    chance: random.Random

    def now_ms(self) -> int:
        """Return the time, in ms since 1970 UTC, from which the delay of a LATER counts."""

    def settle(self, message: "ReceivedMessage", verdict: Verdict, rest: bytes = b"") -> None:
        """Take the verdict, unless the message has one or its connection was lost."""


class ReceivedMessage:
    """A message that is due. Its verdict is the first that is given; further ones are ignored.

    `async with message:` gives one by how the block ends: DONE, or as a handler of run() that
    raises. RetryLater and Reject end there, other exceptions pass on. Verdicts go out in the
    background, many in one request; leaving the receiver's block waits for their answers. A message
    without a verdict counts against the credit until the receiver's block is left.
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
    """Which try it is, from 1."""

    def __init__(self, desk: Desk, connection: int, delivered: Delivered, arrived_ms: int) -> None:
        """Only read() makes the fields above: a message that waits for its handler needs none."""
        self.desk = desk
        self.connection = connection
        """The number of the connection that it came by, the only one where a verdict counts."""
        self.sequence, self.tried, self.kept = delivered
        self.arrived_ms = arrived_ms
        """When it arrived, in ms since 1970 UTC."""
        self.is_settled = False
        """Whether it has its verdict."""

    def read(self) -> None:
        """Decode the item; raise MalformedItemError for one that no handler could use."""
        item = self.item = decode_item(self.kept)
        # Without the flag an item is due as soon as it is there, and has another time in the field.
        self.due_ms = item.due_ms if item.flag & FLAG_DELAY else item.create_ms
        if not 0 <= self.due_ms <= DUE_MS_MAX:
            raise MalformedItemError(f"due at {self.due_ms} ms")
        self.subject, self.id, self.tags = item.subject, item.message_id, item.tags
        self.attributes = item.attributes
        self.attempt = attempts_before(item.attributes) + self.tried
        self.body, self.headers, self.content_type = decode_envelope(item.attributes)

    @property
    def data(self) -> bytes:
        """The body in bytes, whichever it was sent as: those of text are UTF-8."""
        return self.body if isinstance(self.body, bytes) else self.body.encode()

    @property
    def due(self) -> datetime:
        """When it was due, in UTC; after a LATER, when it was due again."""
        return moment(self.due_ms)

    @property
    def lateness(self) -> float:
        """Seconds from when it was due to when it arrived here, by this machine's clock."""
        return (self.arrived_ms - self.due_ms) / 1000

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
        """Have the message come again after a delay, with one more in `attempt`."""
        self._come_again(delay_to_ms(delay))

    async def reject(self, reason: str) -> None:
        """Make the message a dead letter, with a reason of which 255 bytes are kept."""
        self.refuse(reason)

    def refuse(self, reason: str) -> None:
        """Do what reject() does."""
        self.desk.settle(self, Verdict.REFUSED, reason_of(reason))

    def failed(self, error: BaseException, retry: RetryPolicy | None = None) -> None:
        """Give the verdict after an exception: the error's own, or by the retry policy."""
        if isinstance(error, RetryLater):
            self._come_again(error.delay_ms)
        elif isinstance(error, Reject):
            self.refuse(error.reason)
        elif not isinstance(error, Exception):
            # It was cancelled, which is no try.
            self.desk.settle(self, Verdict.RELEASE)
        elif not self.is_settled:
            wait_s = (retry or self.desk.retry).wait_s(self.attempt, self.desk.chance)
            if wait_s is None:
                logger.error("%r: given up", self, exc_info=error)
                said = f"{type(error).__name__}: {error}"
                self.refuse(f"given up after {self.attempt} tries: {said}")
            else:
                logger.warning("%r: comes again in %.3g s", self, wait_s, exc_info=error)
                self._come_again(math.ceil(wait_s * 1000))

    def _come_again(self, delay_ms: int) -> None:
        due_ms = min(self.desk.now_ms() + delay_ms, DUE_MS_MAX)
        try:
            self.desk.settle(self, Verdict.LATER, later_item(self.item, due_ms))
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


def reason_of(text: str) -> bytes:
    """Return as much of a text as the reason of a REFUSED may have."""
    return text.encode(errors="replace")[:REFUSED_BYTES_MAX].decode(errors="ignore").encode()


def attempts_before(attributes: Mapping[str, str]) -> int:
    """Return how many tries an item counts; 0 where it says nothing that is a count."""
    try:
        return min(max(int(attributes.get(TIMES_KEY, "0")), 0), _TIMES_MAX)
    except ValueError:
        return 0


def later_item(item: Item, due_ms: int) -> bytes:
    """Return the item of a message that comes again: due then, and one more in `qmq_times`.

    Raises LocalProtocolError for an item that only others write: with a value of 40,000 bytes, say.
    """
    times = attempts_before(item.attributes) + 1
    attributes = {**item.attributes, DUE_KEY: str(due_ms), TIMES_KEY: str(times)}
    flag = item.flag | FLAG_DELAY
    return encode_item(replace(item, flag=flag, due_ms=due_ms, attributes=attributes))
