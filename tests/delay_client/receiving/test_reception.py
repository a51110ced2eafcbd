"""Promise: the reception says when it is to be looked at again, and never for nothing."""

import logging
import math
import random
import traceback
from typing import Any

import pytest

from delay_client import ClientConfig, ReceiverConfig
from delay_client.receiving.attachment import Attachment
from delay_client.receiving.reception import Reception
from delay_protocol.receivers.masters import MasterInfo, ReceiverRegistered


def new_reception(*servers: str, meta: str | None = None, **changes: Any) -> Reception:  # noqa: ANN401 (also bad ones)
    arguments: dict[str, Any] = {"name": "r", "subjects": (), "token": "", "weight": 100}
    arguments["config"] = ReceiverConfig()
    return Reception(
        **(arguments | changes),
        servers=None if meta else list(servers),
        meta=meta,
        chance=random.Random(1),
        ring=lambda: None,
        ends_task=lambda _: False,
    )


def test_it_looks_again_when_a_lost_server_may_be_tried() -> None:
    reception = new_reception("h:1")
    [line] = reception.lines
    assert reception.wants_connection(line, 0)
    line.connect()
    reception.poll(0)
    # A line after a second without a server.
    assert reception.wake_at == 1
    reception.lost(line, "refused", 0.5)
    assert 0.5 < line.retry_at < 0.6
    assert reception.wake_at == line.retry_at
    assert not reception.wants_connection(line, 0.5)


def test_one_that_stops_wakes_nobody_for_what_is_not_connected() -> None:
    reception = new_reception("h:1", "h:2")
    reception.stop()
    reception.poll(100)
    assert reception.wake_at == math.inf
    assert not any(reception.wants_connection(line, 100) for line in reception.lines)
    reception.resume()
    assert not any(reception.wants_connection(line, 100) for line in reception.lines)


def test_why_there_are_no_messages_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reception = new_reception("h:1")
    [line] = reception.lines
    line.connect()
    for now in (0, 0.9, 1, 2, 10):
        reception.poll(now)
    [record] = caplog.records
    assert record.getMessage() == (
        "receiver r: not attached to any delay server yet; h:1: nothing came"
    )


def test_masters_come_and_go_and_one_that_is_no_address_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    reception = new_reception(meta="m:1")
    before = reception.lines
    names = ("h:1", "nowhere", "h:2")
    masters = tuple(MasterInfo(group=f"g{name}", address=name) for name in names)
    reception._registered(ReceiverRegistered(version=1, masters=masters, waits="approve r"))
    assert reception.lines is not before
    servers = [line.server for line in reception.lines if isinstance(line, Attachment)]
    assert servers == ["h:1", "h:2"]
    reception._registered(ReceiverRegistered(version=2, masters=masters[2:], waits="approve r"))
    reception.poll(0)
    assert [line.server for line in reception.lines[1:]] == ["h:2"]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "receiver r: approve r"
    assert said[1].startswith("receiver r: 'nowhere' is not an address")
    assert len(said) == 2


def test_the_delays_of_levels_are_those_of_the_settings_until_a_meta_server_tells_them() -> None:
    reception = new_reception(
        meta="m:1", config=ReceiverConfig(connecting=ClientConfig(levels="3s"))
    )
    assert reception._shared.levels_ms == (3000,)
    [line] = reception.lines
    line.connect()
    reception.connected(line, 0)
    line.take_outgoing()
    page = b"HTTP/1.1 200 \r\nDelaywheel-Levels: 7s 9s\r\ncontent-length: 3\r\n\r\nm:9"
    reception.received(line, page, 0)
    reception.lost(line, "closed by the server", 0)
    masters = (MasterInfo(group="g", address="h:1"),)
    reception._registered(ReceiverRegistered(version=1, masters=masters))
    attachment = reception.lines[1]
    assert isinstance(attachment, Attachment)
    assert attachment.levels_ms == (7000, 9000)


def test_after_a_standstill_it_asks_for_more_each_time_that_somebody_takes() -> None:
    reception = new_reception("h:1")
    shared = reception._shared
    assert (shared.backlog, shared.room) == (64, 64)
    reception.expect(50)
    assert shared.room == 100
    shared.room = 0
    rooms = []
    for _ in range(8):
        reception.take()
        rooms.append(shared.room)
    assert rooms == [1, 3, 7, 15, 31, 63, 100, 100]
    # Two batches.
    reception.expect(500, least=1)
    assert shared.backlog == 1000


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""}, {"name": "x" * 256}, {"subjects": [""]}, {"subjects": ["x" * 256]},
        {"subjects": ["s"] * 65}, {"subjects": [7]}, {"weight": 0}, {"weight": 1001},
        {"weight": "1"}, {"token": "a-token" * 200},
    ],
)  # fmt: skip
def test_what_is_beyond_a_limit_is_refused_and_no_text_has_the_token(bad: dict[str, Any]) -> None:
    good = {"name": "x" * 255, "subjects": ["x" * 255] * 64, "weight": 1000, "token": "a-token"}
    with pytest.raises(ValueError, match="at most 64 subjects of 1 to 255") as found:
        new_reception(meta="m:1", **(good | bad))
    assert "a-token" not in str(found.value)
    assert "a-token" not in "".join(traceback.format_exception(found.value))
    reception = new_reception(meta="m:1", **good)
    assert "a-token" not in repr(reception._shared)
    assert "a-token" not in repr(reception._talk._register)
