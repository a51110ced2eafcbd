"""CHANGE (1050): a client takes messages back, or has them at another time. Ours, not QMQ's.

    client                                         delay server, at the port of producers
    CHANGE {items}                         ---->   each is found, then a record is committed
                                           <----   {results, facts_since_ms}, once all is

An item names a message by its subject, its id, and when it is due. A master answers for what it
has; a server that is no master answers 51 with the address of the master, as to a SEND_MESSAGE.

Bodies are msgpack maps of arrays; keys that a reader does not know are skipped.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.nodes.packed import codec_of
from delay_protocol.nodes.registration import COUNTED_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX

CHANGES_MAX: Final = 1024
"""Messages that one request changes."""
CHANGE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a request; a larger one is refused unread."""
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of an answer: each message may have one for each of sixteen names."""

Ms = Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=32_767)]


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that is cancelled, or moved to another time."""

    subject: Text
    message_id: Text
    due_ms: Ms | None = None
    """When it was due as it was sent; None: it is looked for at all times, which takes longer."""
    to_ms: Ms | None = None
    """When it is to be due; None: it is cancelled."""


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages to be changed."""

    items: Annotated[tuple[Change, ...], msgspec.Meta(min_length=1, max_length=CHANGES_MAX)]


class ChangeState(StrEnum):
    """Answers to one change; of several rows of one name the first of these is told.

    Those but IN_DOUBT are a server's.
    """

    CANCELLED = "cancelled"
    """It is committed that nobody gets it."""
    MOVED = "moved"
    """It is committed that it comes at another time, with the same id and bytes."""
    SENDING = "being sent"
    """It is in a request to a broker, or with a receiver: to be asked again."""
    DELIVERED = "already delivered"
    DEAD = "dead letter"
    CHANGED_BEFORE = "already cancelled or moved"
    UNKNOWN = "unknown"
    """This group has no such message, and no fact of it as far back as it keeps facts."""
    IN_DOUBT = "in doubt"
    """A group did not answer: a client's word, when all others answered UNKNOWN."""


class ChangeResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one message, for one name where several names receive it."""

    item: Annotated[int, msgspec.Meta(ge=0, lt=CHANGES_MAX)]
    """Its place in the request."""
    state: ChangeState
    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    """The name of receivers whose copy it is; empty where it was not copied."""
    due_ms: Ms | None = None
    """When it is due, or was; of MOVED the new time."""
    at_ms: Ms | None = None
    """When it was delivered or changed before; since when it is being sent."""
    to: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    """The group of brokers, or the name of receivers, of a delivery."""
    retry_after_ms: Ms | None = None
    """Of SENDING: when to ask again."""
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)] = ""
    """What to know beside it, for people."""


class ChangeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all messages of a request: one result each, or one for each name."""

    results: tuple[ChangeResult, ...]
    facts_since_ms: Ms
    """How far back the server knows what became of messages: what it calls unknown may have been
    delivered before."""


encode_change, decode_change = codec_of(Decoder(ChangeRequest), CHANGE_BYTES_MAX)
"""Body of a CHANGE."""
encode_change_reply, decode_change_reply = codec_of(Decoder(ChangeReply), REPLY_BYTES_MAX)
"""Body of an answer to CHANGE."""
