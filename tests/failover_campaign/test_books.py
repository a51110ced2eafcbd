"""The books of a campaign tell how long nothing came, and what came wrongly."""

import json
from pathlib import Path

import pytest

from tests.crash.ledger import Ledger
from tests.failover_campaign.books import Books, longest_gap_ms

S = 1_000_000


def read(folder: Path, books: Books, *, sent: str = "", delivered: str = "") -> None:
    """Append lines to what a producer and a broker wrote down, and read it."""
    paths = folder / "sent-a", folder / "delivered-g"
    for path, text in zip(paths, (sent, delivered), strict=True):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    books.read([paths[0]], [paths[1]], [])


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(Ledger(record=tmp_path / "nothing"))


def came(name: str, due_ms: int, at_ms: int) -> str:
    return json.dumps({"message_id": name, "due_ms": due_ms, "received_ms": at_ms}) + "\n"


def test_the_longest_time_in_which_nothing_came() -> None:
    moments = [1 * S, 2 * S, 5 * S, 6 * S, 20 * S]
    assert longest_gap_ms(moments, 2 * S + 1, 7 * S) == 3000
    assert longest_gap_ms(moments, 5 * S, 6 * S + 1) == 3000
    # It is still silent when the time ends; the last moments may not be written down yet.
    assert longest_gap_ms(moments, 5 * S, 15 * S) == 9000
    assert longest_gap_ms([], 5 * S, 15 * S) == 0


def test_what_comes_before_its_producer_has_written_it_down_is_judged_then(
    tmp_path: Path, books: Books
) -> None:
    read(tmp_path, books, delivered=came("a-1", 1000, 1001))
    assert books.delivered_us["brokers"] == []
    read(tmp_path, books, sent="s a-1 1000 500000\na a-1 600000 1 n1\n")
    assert books.delivered_us["brokers"] == [1_001_000]
    assert (books.answered_us, books.faults) == ([600_000], [])
    assert not books.ledger.undelivered()


def test_what_was_never_sent_is_told_at_the_end(tmp_path: Path, books: Books) -> None:
    read(tmp_path, books, delivered=came("a-9", 1000, 1001))
    books.finish()
    assert [fault.split(":")[0] for fault in books.faults] == ["invented"]


def test_what_comes_again_is_excused_only_just_before_a_fault(tmp_path: Path, books: Books) -> None:
    read(tmp_path, books, sent="s a-1 1000 1\ns a-2 9000 1\n")
    books.strike(9_200_000)
    read(tmp_path, books, delivered=came("a-1", 1000, 1001) + came("a-2", 9000, 9001))
    read(tmp_path, books, delivered=came("a-1", 1000, 12_000) + came("a-2", 9000, 12_000))
    assert [fault.split(" in ")[0] for fault in books.faults] == ["twice: a-1"]
    assert books.repeated_us == [12_000_000, 12_000_000]


def test_a_failed_send_says_whether_it_may_be_kept(tmp_path: Path, books: Books) -> None:
    line = "s a-1 1000 1\nf a-1 2000000 1 TimedOut: not accepted in time\nc 51 1500000\n"
    read(tmp_path, books, sent=line)
    assert books.failed == {"a-1": (True, "TimedOut: not accepted in time")}
    assert books.refused == [(1_500_000, 51)]
