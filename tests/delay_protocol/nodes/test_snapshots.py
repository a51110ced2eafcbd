"""A slave that is far behind asks for a snapshot, and reads it in pieces."""

import msgspec
import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.following import FollowRefused
from delay_protocol.nodes.snapshots import (
    CHECKPOINT_NAME,
    READ_BYTES_MAX,
    SnapshotBegun,
    SnapshotBytes,
    SnapshotRead,
    decode_read_reply,
    decode_snapshot_read,
    decode_snapshot_reply,
    encode_read_reply,
    encode_snapshot_read,
    encode_snapshot_reply,
)
from tests.storage.worked_examples import worked_examples

READ = SnapshotRead(path=CHECKPOINT_NAME, position=0, size=700)
BEGUN = SnapshotBegun(sequence=18203, size=700)
BYTES = SnapshotBytes(data=b"\x01\x02")
REFUSED = FollowRefused(reason="the master cannot read its log")


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    begun, read, data = worked_examples("replication_wire.md")[6:]
    assert encode_snapshot_reply(BEGUN) == begun
    assert encode_snapshot_read(READ) == read
    assert encode_read_reply(BYTES) == data


def test_each_comes_back_as_it_was() -> None:
    assert decode_snapshot_read(encode_snapshot_read(READ)) == READ
    for begun in (BEGUN, REFUSED):
        assert decode_snapshot_reply(encode_snapshot_reply(begun)) == begun
    for read in (BYTES, REFUSED, SnapshotBytes(data=bytes(READ_BYTES_MAX))):
        assert decode_read_reply(encode_read_reply(read)) == read


@pytest.mark.parametrize(
    "asked",
    [
        msgspec.structs.replace(READ, path=""),
        msgspec.structs.replace(READ, path="x" * 257),
        msgspec.structs.replace(READ, position=-1),
        msgspec.structs.replace(READ, size=0),
        msgspec.structs.replace(READ, size=READ_BYTES_MAX + 1),
    ],
)
def test_what_is_out_of_bounds_is_neither_asked_nor_taken(asked: SnapshotRead) -> None:
    with pytest.raises(LocalProtocolError):
        encode_snapshot_read(asked)
    with pytest.raises(MalformedMetaError):
        decode_snapshot_read(msgspec.msgpack.encode(asked))


def test_an_answer_beyond_its_bounds_is_refused() -> None:
    for body in (b"", b"\xc1", bytes(READ_BYTES_MAX * 2)):
        with pytest.raises(MalformedMetaError):
            decode_read_reply(body)
        with pytest.raises(MalformedMetaError):
            decode_snapshot_reply(body)
    with pytest.raises(MalformedMetaError):
        decode_snapshot_reply(msgspec.msgpack.encode(msgspec.structs.replace(BEGUN, size=2**40)))
    with pytest.raises(MalformedMetaError):
        decode_read_reply(msgspec.msgpack.encode(SnapshotBytes(data=b"")))
