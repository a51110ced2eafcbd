"""Promise: messages go no faster than they may, few at once, and what became of each is told."""

import time
from collections.abc import Iterator, Sequence

import pytest

from delay_client import BlockingClient, ClientConfig, DelaywheelError, OutgoingItem, Receipt
from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delaywheel.shared.sending import send_at_rate
from tests.delay_client.conftest import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    found = ScriptedServer(lambda request: request.accept())
    yield found
    found.close()


def item(number: int) -> OutgoingItem:
    return OutgoingItem("s", encode_item(Item(FLAG_DELAY, 1, 100, "s", f"m{number:02}")))


def send(
    server: ScriptedServer, count: int, *, rate: int, goes_on: bool = True
) -> tuple[list[list[int]], float]:
    """Send; return the messages that answers were told of together, and the seconds it took."""
    told: list[list[int]] = []

    def on_answers(some: Sequence[int], answers: Sequence[Receipt | DelaywheelError]) -> bool:
        assert all(isinstance(one, Receipt) for one in answers)
        told.append(list(some))
        return goes_on

    with BlockingClient([server.address], config=ClientConfig()) as client:
        began = time.monotonic()
        send_at_rate(client, iter(range(count)), item, on_answers, rate=rate)
        return told, time.monotonic() - began


def test_messages_go_no_faster_than_they_may(server: ScriptedServer) -> None:
    told, seconds = send(server, 50, rate=20)
    assert told == [list(range(20)), list(range(20, 40)), list(range(40, 50))]
    assert 2.5 <= seconds < 4.5
    assert [name for one in server.requests for name in one.ids] == [
        f"m{number:02}" for number in range(50)
    ]


def test_few_bytes_are_on_their_way(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaywheel.shared.sending._BYTES_AT_ONCE", 3 * len(item(0).data))
    told, _ = send(server, 9, rate=10_000)
    assert [len(one) for one in told] == [3, 3, 3]


def test_it_ends_where_it_is_told_to(server: ScriptedServer) -> None:
    told, _ = send(server, 9, rate=2, goes_on=False)
    assert told == [[0, 1]]
    assert len([name for one in server.requests for name in one.ids]) == 2
