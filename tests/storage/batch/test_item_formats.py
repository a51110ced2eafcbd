"""An item passes only if it is whole and due when its row says; nothing else is taken for it."""

from hypothesis import given
from hypothesis import strategies as st

from storage.batch.item_formats import qmq_item_fault, qmq_message_id
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import flipped

ITEM = qmq_item(1_385_510_400_000, b"boarding", b"UA-1523")


def test_a_whole_item_passes_at_its_own_time_only() -> None:
    assert qmq_item_fault(ITEM, 1_385_510_400_000) is None
    assert qmq_item_fault(memoryview(ITEM), 1_385_510_400_000) is None
    assert "one that is due at 1385510400000" in str(qmq_item_fault(ITEM, 1_385_510_400_001))


@given(st.integers(0, len(ITEM) * 8 - 1))
def test_any_flipped_bit_is_found(bit: int) -> None:
    assert qmq_item_fault(flipped(ITEM, bit), 1_385_510_400_000) is not None


@given(st.integers(0, len(ITEM) - 1), st.binary(max_size=40))
def test_a_cut_or_prolonged_item_is_no_item(end: int, more: bytes) -> None:
    assert qmq_item_fault(ITEM[:end], 1_385_510_400_000) is not None
    if more:
        assert qmq_item_fault(ITEM + more, 1_385_510_400_000) is not None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_neither_item_nor_trouble(data: bytes) -> None:
    assert qmq_item_fault(data, 0) is not None
    qmq_message_id(data)


def test_the_message_id_is_read_and_empty_where_the_item_is_cut() -> None:
    assert qmq_message_id(ITEM) == b"UA-1523"
    assert qmq_message_id(ITEM[:30]) == b""
