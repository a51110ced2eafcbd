"""RECEIVER_REGISTER (1044): a receiver asks a meta server where to attach. Ours, not QMQ's.

    receiver                                       meta server
    RECEIVER_REGISTER {name, told: 0}      ---->
                                           <----   {masters}, at once
    RECEIVER_REGISTER {name, told: 7}      ---->   … nothing until there is something new
                                           <----   {masters}, or the same after HOLD_S
    RECEIVER_REGISTER …                    ---->

One such request waits at a time. The first makes the name, and adds its patterns to the subjects of
the name, where the cluster lets that be; else `waits` says what an operator is to do. A client that
cancels or moves messages asks without a name: it is told of the masters alone.

Bodies are msgpack maps; keys that a reader does not know are skipped.
"""

from typing import Annotated, Final

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.basics.levels import LEVELS_MAX
from delay_protocol.nodes.packed import codec_of
from delay_protocol.nodes.registration import COUNTED_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX, Name

HOLD_S: Final = 20.0
"""Seconds after which a meta server answers that nothing has changed."""
REGISTER_BYTES_MAX: Final = 32 * 1024
"""Bytes of a request; a larger one is refused unread."""
REPLY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of an answer: a thousand groups fit."""
PATTERNS_MAX: Final = 64
"""Patterns of one receiver."""
PATTERN_LENGTH_MAX: Final = 255
MASTERS_MAX: Final = 1000

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=PATTERN_LENGTH_MAX)]
"""A subject, or the beginning of subjects with a `*` behind it."""


class ReceiverRegister(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A receiver says its name and what it wants to receive, and asks for the masters."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
    """Empty of a client that receives nothing, and needs no token."""
    patterns: Annotated[tuple[Pattern, ...], msgspec.Meta(max_length=PATTERNS_MAX)] = ()
    """Subjects that its name is to get, if nothing is in the way."""
    token: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """A receiver's token, where the cluster has a secret."""
    told: Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)] = 0
    """The version of the last answer on this connection; 0: none."""

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"<ReceiverRegister of {self.name!a}>"


class MasterInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delay group, and where its master takes receivers."""

    group: Name
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
    """host:port, that of producers."""


Tries = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Waits = Annotated[str, msgspec.Meta(max_length=1000)]
Level = Annotated[int, msgspec.Meta(ge=1, le=LEVELS_MAX)]


class Retries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The retry policy that an operator set for a name; what is not set is the receiver's own."""

    tries: Tries | None = None
    """Times that a handler has a message before it is a dead letter."""
    waits: Waits = ""
    """Delays after each try, as a table of levels has them, such as `10s 30s 1m`."""
    first_level: Level | None = None
    """In their place: the level of the first wait, of the table that `/meta/address` tells."""
    unsettled_tries: Tries | None = None
    """Receivers that end with a message before it is a dead letter."""


class ReceiverRegistered(msgspec.Struct, frozen=True, kw_only=True, tag="registered"):
    """Where to attach."""

    version: Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX)]
    """Another one with each answer that says something else."""
    masters: Annotated[tuple[MasterInfo, ...], msgspec.Meta(max_length=MASTERS_MAX)]
    waits: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)] = ""
    """Why messages of some pattern do not come, and what an operator has to do; empty if all do."""
    retries: Retries = Retries()


class ReceiverRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", gc=False):
    """It may not receive under this name."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]


ReceiverReply = ReceiverRegistered | ReceiverRefused

_REPLY: Decoder[ReceiverReply] = Decoder(ReceiverReply)

encode_receiver_register, decode_receiver_register = codec_of(
    Decoder(ReceiverRegister), REGISTER_BYTES_MAX
)
"""Body of a RECEIVER_REGISTER."""
encode_receiver_reply, decode_receiver_reply = codec_of(_REPLY, REPLY_BYTES_MAX)
"""Body of its answer."""
