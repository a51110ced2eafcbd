"""SNAPSHOT (1024) and SNAPSHOT_READ (1025): a slave that is far behind copies files. Ours.

    slave                                              master, at its port
    FOLLOW …                                   ---->
                                               <----   {behind}
    SNAPSHOT: a FOLLOW again                   ---->   writes a checkpoint, and keeps what it names
                                               <----   {begun: sequence, size of the checkpoint};
                                                       or {refused}
    SNAPSHOT_READ {path, position, size}       ---->
                                               <----   {bytes}; or {refused}

The checkpoint is read first, under CHECKPOINT_NAME; it names the other files and their lengths. All
is asked and answered one at a time, on one connection; the master keeps nothing for it any more
once that is closed. Where there is a secret each is sealed as FOLLOW is. Bodies are msgpack maps;
keys that a reader does not know are skipped.
"""

from typing import Annotated, Final

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.nodes.following import FOLLOW_BYTES_MAX, FollowRefused, Sequence
from delay_protocol.nodes.packed import codec_of
from delay_protocol.nodes.registration import COUNTED_MAX

CHECKPOINT_NAME: Final = "checkpoint"
"""What the checkpoint of a snapshot is read under; all files lie in directories."""
READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a file in one answer."""
CHECKPOINT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a checkpoint: as many as a node reads of its own."""
_PATH_LENGTH_MAX: Final = 256


class SnapshotBegun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """A checkpoint can be copied."""

    sequence: Sequence
    """The last record that it covers; the log of the copy goes on behind it."""
    size: Annotated[int, msgspec.Meta(ge=1, le=CHECKPOINT_BYTES_MAX)]
    """Bytes of the checkpoint."""


class SnapshotRead(msgspec.Struct, frozen=True, kw_only=True):
    """Which bytes are asked for."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=_PATH_LENGTH_MAX)]
    position: Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)]
    size: Annotated[int, msgspec.Meta(ge=1, le=READ_BYTES_MAX)]


class SnapshotBytes(msgspec.Struct, frozen=True, kw_only=True, tag="bytes"):
    """Bytes, as many as were asked for."""

    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=READ_BYTES_MAX)]


SnapshotReply = SnapshotBegun | FollowRefused
ReadReply = SnapshotBytes | FollowRefused

_BEGUN: Decoder[SnapshotReply] = Decoder(SnapshotReply)
_BYTES: Decoder[ReadReply] = Decoder(ReadReply)

encode_snapshot_reply, decode_snapshot_reply = codec_of(_BEGUN, FOLLOW_BYTES_MAX)
"""Body of an answer to SNAPSHOT."""
encode_snapshot_read, decode_snapshot_read = codec_of(Decoder(SnapshotRead), FOLLOW_BYTES_MAX)
"""Body of a SNAPSHOT_READ."""
encode_read_reply, decode_read_reply = codec_of(_BYTES, READ_BYTES_MAX + FOLLOW_BYTES_MAX)
"""Body of an answer to SNAPSHOT_READ."""
