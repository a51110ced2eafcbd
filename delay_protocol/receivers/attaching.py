"""ATTACH (1040) and FLOW (1043): a receiver attaches to a delay server. Ours, not QMQ's.

    receiver                                       delay server, at the port of producers
    ATTACH {name, instance, patterns}      ---->
                                           <----   {attached: group, epoch, lease, clock}; or
                                                   {refused}
    FLOW {items, bytes}                    ---->   one-way, again at least each FLOW_S
                                           <----   DELIVER …   one-way, as messages fall due
    SETTLE …                               ---->
                                           <----   how many it did not know, once all is durable,
                                                   and what its clock shows

A connection is attached once. What a FLOW says stands until the next: as many items, with as many
bytes, may be unsettled on this connection at a time. So it is no count that runs down, and a FLOW
that comes late changes nothing for the worse. Each FLOW renews the lease of all that is unsettled.

Bodies are msgpack maps; keys that a reader does not know are skipped.
"""

from typing import Annotated, Final

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.nodes.packed import codec_of
from delay_protocol.nodes.registration import COUNTED_MAX, REASON_LENGTH_MAX, Name
from delay_protocol.receivers.masters import PATTERNS_MAX, REGISTER_BYTES_MAX, Pattern, Tries

ATTACH_BYTES_MAX: Final = REGISTER_BYTES_MAX
"""Bytes of any body here; a larger one is refused unread. It has the patterns of a registration."""
FLOW_S: Final = 10.0
"""Seconds after which a receiver repeats its FLOW at the latest."""
LEASE_S: Final = 30
"""Seconds without a FLOW after which all that is unsettled on a connection goes to others."""
CREDIT_ITEMS_MAX: Final = 100_000
"""Items that may be unsettled on one connection at the most, whatever a FLOW says: each takes some
200 bytes of the server."""
CREDIT_BYTES_MIN: Final = 4 * 1024 * 1024
"""Bytes that a receiver takes at the least, where it takes anything: the largest item fits."""
CREDIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""The same at the most, whatever a FLOW says."""
INSTANCE_BYTES: Final = 16
ALONE_AFTER: Final = 2
"""Receivers that had a message and left without a verdict, after which it goes out alone."""
UNSETTLED_TRIES: Final = 8
"""The same after which it is a dead letter, unless an ATTACH says otherwise."""
UNSETTLED_REASON: Final = "a receiver ended, or lost its connection, and had not settled it"
"""Why it is one."""


class Attach(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A receiver attaches under a name, beside others of this name."""

    name: Name
    """Of the group that it is a member of."""
    instance: Annotated[bytes, msgspec.Meta(min_length=INSTANCE_BYTES, max_length=INSTANCE_BYTES)]
    """Drawn at random at its start: the same on all its connections."""
    patterns: Annotated[tuple[Pattern, ...], msgspec.Meta(max_length=PATTERNS_MAX)] = ()
    """It gets only subjects that these take; none: all that is routed to its name."""
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    """Its share against others of its name, while all have credit."""
    unsettled_tries: Tries = UNSETTLED_TRIES
    """A message with which so many receivers ended is a dead letter once this one ends with it."""
    token: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """A receiver's token, where the cluster has a secret."""

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"<Attach of {self.name!a}>"


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached", gc=False):
    """It is attached; messages come once a FLOW has said how many."""

    group: Name
    """The delay group of the server."""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)]
    """Of the server's mastership. A receiver that has seen a newer one of the group leaves."""
    lease_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)]
    """Seconds without a FLOW after which what is unsettled goes to others."""
    now_ms: Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)] | None = None
    """The wall clock by which the server delivers."""


class AttachRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", gc=False):
    """It may not attach here, or not now; asking again later is right unless `is_final`."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
    is_final: bool = False
    """Whether the same request would be refused again."""


AttachReply = Attached | AttachRefused


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a receiver takes from now on."""

    items: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """Messages that may be unsettled on this connection at a time; 0: none for now."""
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = CREDIT_BYTES_MAX
    """Bytes of their items, CREDIT_BYTES_MIN at the least where `items` is not 0."""
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)] = ""
    """Why it takes nothing, for people."""


_REPLY: Decoder[AttachReply] = Decoder(AttachReply)

encode_attach, decode_attach = codec_of(Decoder(Attach), ATTACH_BYTES_MAX)
"""Body of an ATTACH."""
encode_attach_reply, decode_attach_reply = codec_of(_REPLY, ATTACH_BYTES_MAX)
"""Body of an answer to ATTACH."""
encode_flow, decode_flow = codec_of(Decoder(Flow), ATTACH_BYTES_MAX)
"""Body of a FLOW."""
