"""The books of a round tell what is lost, early, damaged, invented, and twice without excuse."""

from pathlib import Path

import pytest

from tests.crash.ledger import Death, Ledger, Sent

SECOND_NS = 1_000_000_000


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    (tmp_path / "deliveries").touch()
    books = Ledger(record=tmp_path / "deliveries")
    books.sent = {"m": Sent(due_ms=1000, crc=7), "n": Sent(due_ms=1000, crc=7)}
    books.acknowledged = {"m", "n"}
    return books


def told(ledger: Ledger, *deliveries: str) -> list[str]:
    with ledger.record.open("a") as record:
        record.writelines(f"{line}\n" for line in deliveries)
    return [text.split(":")[0] for text in ledger.read()]


def test_a_message_that_came_once_in_time_is_right(ledger: Ledger) -> None:
    assert told(ledger, f"1 {SECOND_NS} 1000 1000 7 1 m") == []
    assert ledger.undelivered() == {"n"}


@pytest.mark.parametrize(
    ("delivery", "wrong"),
    [
        ("1 0 999 1000 7 1 m", ["early"]),
        ("1 0 1000 1000 8 1 m", ["damaged"]),
        ("1 0 1000 1000 7 0 m", ["damaged"]),
        ("1 0 1001 1001 7 1 m", ["damaged"]),
        ("1 0 1000 1000 7 1 x", ["invented"]),
    ],
)
def test_what_is_wrong_is_named(ledger: Ledger, delivery: str, wrong: list[str]) -> None:
    assert told(ledger, delivery) == wrong


def test_twice_is_excused_by_a_death_soon_after_the_first_and_by_nothing_else(
    ledger: Ledger,
) -> None:
    first = f"1 {10 * SECOND_NS} 1000 1000 7 1"
    again = f"2 {99 * SECOND_NS} 9000 1000 7 1"
    assert told(ledger, f"{first} m", f"{first} n") == []
    ledger.deaths = [Death(at_ns=10 * SECOND_NS + SECOND_NS // 5, window_s=0.25)]
    assert told(ledger, f"{again} m") == []
    assert ledger.oldest_twice_s == pytest.approx(0.2)
    ledger.deaths = [Death(at_ns=10 * SECOND_NS + SECOND_NS // 5, window_s=0.15)]
    assert told(ledger, f"{again} n") == ["twice"]
    assert ledger.twice == 2


def test_twice_in_one_life_has_no_excuse(ledger: Ledger) -> None:
    ledger.deaths = [Death(at_ns=0, window_s=1)]
    assert told(ledger, "1 0 1000 1000 7 1 m", "1 0 1000 1000 7 1 m") == ["twice"]
