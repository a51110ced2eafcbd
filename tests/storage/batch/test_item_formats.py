"""An item passes only if it is whole and due when its row says; nothing else is taken for it."""

from storage.batch.item_formats import qmq_item_fault, qmq_message_id
from tests.storage.qmq_items import qmq_item

ITEM = qmq_item(1_385_510_400_000, b"boarding", b"UA-1523")


def test_a_whole_item_passes_at_its_own_time_only() -> None:
    assert qmq_item_fault(ITEM, 1_385_510_400_000) is None
    assert qmq_item_fault(memoryview(ITEM), 1_385_510_400_000) is None
    assert "one that is due at 1385510400000" in str(qmq_item_fault(ITEM, 1_385_510_400_001))


def test_the_message_id_is_read_and_empty_where_the_item_is_cut() -> None:
    assert qmq_message_id(ITEM) == b"UA-1523"
    assert qmq_message_id(ITEM[:30]) == b""
