"""The target for what a slave is told of a snapshot, and asks of its master."""

from collections.abc import Callable
from typing import Any, Final

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.snapshots import (
    READ_BYTES_MAX,
    decode_read_reply,
    decode_snapshot_read,
    decode_snapshot_reply,
    encode_read_reply,
    encode_snapshot_read,
    encode_snapshot_reply,
)
from storage.disk.errors import CopyRefusedError
from storage.node.snapshot import decode_copy, encode_copy, files_of
from tests.fuzz.target import attempt, target
from tests.storage.small_logs import LOG_UUID

_BODIES: Final[tuple[tuple[Callable[[bytes], Any], Callable[[Any], bytes]], ...]] = (
    (decode_snapshot_reply, encode_snapshot_reply),
    (decode_snapshot_read, encode_snapshot_read),
    (decode_read_reply, encode_read_reply),
)


@target(
    decoders=(*(decode for decode, _ in _BODIES), decode_copy),
    packages=("delay_protocol", "storage.node.snapshot"),
    size_max=2048,
)
def snapshots(data: bytes) -> None:
    """What is said comes back as it was; a checkpoint of a copy names files of segments alone."""
    for decode, encode in _BODIES:
        found = attempt(MalformedMetaError, decode, data)
        if found is not None:
            assert getattr(found, "size", 1) >= 1
            assert len(getattr(found, "data", b"")) <= READ_BYTES_MAX
            again = attempt(LocalProtocolError, encode, found)
            assert again is None or decode(again) == found
    checkpoint = attempt(CopyRefusedError, decode_copy, data)
    if checkpoint is not None:
        assert decode_copy(encode_copy(checkpoint)) == checkpoint
        assert not checkpoint.retired
        assert not checkpoint.quarantined
        for file in files_of(checkpoint, LOG_UUID):
            assert file.path.rpartition("/")[0] in {"schedule_log", "dispatch_log"}
            assert file.length > 0
