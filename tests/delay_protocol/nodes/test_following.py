"""A slave asks where its log goes on, and batches follow that nobody takes for others."""

from typing import Any

import msgspec
import pytest

from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes import following
from delay_protocol.nodes.auth import SEAL_SIZE
from delay_protocol.nodes.registration import COUNTED_MAX
from delay_protocol.wire.frames import FRAME_OVERHEAD, Frame, FrameDecoder, encode_one_way
from storage.batch.batches import BATCH_BYTES_MAX
from tests.delay_protocol.nodes.bodies import (
    BATCHES,
    HEAD,
    said,
)
from tests.storage.worked_examples import worked_examples


def test_the_example_of_the_documentation_is_what_is_written() -> None:
    batches = worked_examples("replication_wire.md")[3]
    assert (
        encode_one_way(CommandCode.BATCHES, following.encode_batches_head(HEAD), BATCHES) == batches
    )


def test_who_promises_nothing_echoes_nothing() -> None:
    silent = following.Acknowledged(end=1, applied=1)
    assert msgspec.msgpack.decode(following.encode_acknowledged(silent)) == {
        "end": 1,
        "applied": 1,
        "echo_ms": None,
        "now_ms": None,
    }
    assert following.decode_acknowledged(said(silent, echo_ms=..., now_ms=...)) == silent


def test_batches_are_not_copied_to_be_looked_at() -> None:
    body = following.encode_batches_head(HEAD) + BATCHES
    _, rest = following.decode_batches(body)
    assert rest.obj is body


# Batches


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"first": 0}, "a count below 1, or above"),
        ({"first": -1}, "a count below 1, or above"),
        ({"committed": 0}, "a count below 1, or above"),
        ({"committed": COUNTED_MAX + 1}, "a count below 1, or above"),
        ({"behind": COUNTED_MAX + 1}, "a count below 1, or above"),
        ({"time_ms": -1}, "a time below 0, or above"),
        ({"time_ms": COUNTED_MAX + 1}, "a time below 0, or above"),
        ({"behind": 1000}, "batches that end before they begin"),
    ],
)
def test_a_head_that_counts_what_cannot_be_is_neither_read_nor_written(
    changed: dict[str, Any], sentence: str
) -> None:
    head = HEAD._replace(**changed)
    body = b"".join(number.to_bytes(8, "big", signed=True) for number in head[:4]) + b"\1" + BATCHES
    with pytest.raises(MalformedMetaError, match=sentence):
        following.decode_batches(body)
    with pytest.raises(LocalProtocolError, match=sentence):
        following.encode_batches_head(head)


def test_a_head_that_is_cut_is_refused() -> None:
    body = following.encode_batches_head(HEAD)
    for size in range(following.HEAD_SIZE):
        with pytest.raises(
            MalformedMetaError, match=f"of {size} bytes, its head alone has {following.HEAD_SIZE}"
        ):
            following.decode_batches(body[:size])


def test_records_come_with_bytes_and_bytes_with_records() -> None:
    with pytest.raises(MalformedMetaError, match="0 bytes of batches with"):
        following.decode_batches(following.encode_batches_head(HEAD))
    empty = HEAD._replace(behind=HEAD.first)
    with pytest.raises(MalformedMetaError, match="13 bytes of batches with"):
        following.decode_batches(following.encode_batches_head(empty) + BATCHES)
    assert following.decode_batches(following.encode_batches_head(empty))[0] == empty


def test_the_largest_batch_fits_into_a_frame_with_room_for_another_before_it() -> None:
    sealed = FRAME_OVERHEAD + SEAL_SIZE + following.HEAD_SIZE + BATCH_BYTES_MAX
    assert sealed < following.FOLLOW_FRAME_BYTES_MAX
    batch = memoryview(bytes(BATCH_BYTES_MAX))
    data = encode_one_way(CommandCode.BATCHES, following.encode_batches_head(HEAD), batch)
    decoder = FrameDecoder(frame_bytes_max=following.FOLLOW_FRAME_BYTES_MAX)
    decoder.feed(data)
    [frame] = decoder.frames()
    assert isinstance(frame, Frame)
    assert (frame.code, frame.is_one_way, frame.is_response) == (1021, True, False)
    head, batches = following.decode_batches(frame.body)
    assert (head, batches) == (HEAD, batch)
