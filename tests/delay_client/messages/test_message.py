"""Promise: a receipt tells the moment of delivery to the ms."""

from datetime import UTC, datetime

from delay_client import OutgoingMessage, Receipt


def test_due_at_is_due_ms_in_utc() -> None:
    receipt = Receipt("m", 1_700_000_060_789, "h:1", 1)
    assert receipt.due_at == datetime(2023, 11, 14, 22, 14, 20, 789000, tzinfo=UTC)
    assert not receipt.duplicate


def test_a_receipt_and_a_message_cannot_be_changed() -> None:
    for value in (Receipt("m", 1, "h:1", 1), OutgoingMessage("s")):
        assert hash(value) == hash(type(value)(*value))
