"""Messages, receipts and outcomes.

Messages and receipts are named tuples, not dataclasses: a load generator makes a million of each,
and a frozen dataclass takes three times as long to make.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from delay_client.messages.cancel_tokens import Place, encode_token
from delay_client.messages.errors import DelaywheelError

Body = str | bytes | Mapping[str, Any] | list[Any]
"""Text or bytes, which travel as envelope.py says: text, and bytes that are UTF-8, of up to 32,767
bytes as the attribute `body`. Or a mapping or list, which travels as the text of its JSON."""

Delay = timedelta | float
"""How long to wait before delivery: a timedelta, or seconds."""


def moment(time_ms: int) -> datetime:
    """Return a time in ms since 1970 as a datetime in UTC."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)


class OutgoingMessage(NamedTuple):
    """One message for send_many(); the fields are those of send()."""

    subject: str
    """The subject that consumers subscribe to."""
    body: Body = ""
    """The body: text, bytes, or a mapping or list, which is sent as JSON."""
    delay: Delay | None = None
    """Deliver this long after now. Exactly one of `delay`, `at` and `level` is given."""
    at: datetime | None = None
    """Deliver at this moment, a datetime with a time zone; one in the past, however far, means at
    once."""
    message_id: str | None = None
    """At most 100 characters; one is made if you give none. Give your own so that the same message
    is known by it when a second send_many(), after a crash, sends it again."""
    tags: Sequence[str] = ()
    """At most 10; consumers can filter by them."""
    headers: Mapping[str, str] | None = None
    """Text by name, for receivers; names are in lower case there."""
    content_type: str | None = None
    """The type of the body, for receivers; of a mapping or list `application/json` by itself."""
    attributes: Mapping[str, str] | None = None
    """Attributes beside the body, which consumers of QMQ's read, but those that are set here: no
    `body`, and no name that begins with `qmq_`, `dw_`, `h:` or `body#`."""
    level: int | None = None
    """Deliver after the delay of this level, by the meta server's table (`delay.levels`), else by
    `ClientConfig.levels`. 0 means at once, and what is above the last level is the last one."""


class OutgoingItem(NamedTuple):
    """One message for send_items(), as the bytes that it travels as: of a log, say."""

    subject: str
    data: bytes
    """The whole item, as `delay_protocol.encode_item()` makes them; it goes out byte for byte."""


class Receipt(NamedTuple):
    """The proof that a server keeps a message: it is on its disk."""

    message_id: str
    due_ms: int
    """When it is due, in ms since 1970 UTC; of a duplicate the first message."""
    server: str
    """Address of the server that accepted it."""
    attempts: int
    """How many times it was put on the wire; 1 unless something went wrong."""
    duplicate: bool = False
    """True if the server has the message from before, by the same id and in all else the same: it
    keeps and delivers the first one. That is a success too."""
    elsewhere: bool = False
    """Whether another group has it than the one that its id names, because that one took nothing.
    A copy that was sent before may be with that one. Only of messages whose id you gave."""
    past_due: bool = False
    """Whether it was due before it was sent, by this machine's clock: it is delivered at once."""
    subject: str = ""
    """The subject that it was sent to."""
    cluster: int = 0
    """Hash of the name of the cluster that has it; 0 where the server did not say."""

    @property
    def cancel_token(self) -> str:
        """A text by which it can be cancelled or moved. It is no secret."""
        return encode_token(Place(self.cluster, self.due_ms, self.subject, self.message_id))

    @property
    def due_at(self) -> datetime:
        """When it is due, in UTC."""
        return moment(self.due_ms)


Outcome = Receipt | DelaywheelError
"""The result of one message; accepted if `isinstance(outcome, Receipt)`."""
