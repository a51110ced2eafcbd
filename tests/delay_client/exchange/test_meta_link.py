"""The line to the meta server: discovery and talk, one connection at a time, and what ends it."""

import random

import pytest
from msgspec.structs import replace

from delay_client import ClientConfig
from delay_client.exchange.links import IllegalLinkMoveError, LinkState
from delay_client.exchange.meta_link import MetaLink
from delay_client.exchange.talks import RouteTalk
from delay_protocol.basics.codes import CommandCode
from delay_protocol.basics.levels import DEFAULT_LEVELS, parse_levels
from delay_protocol.meta.requests import ClientType, decode_client_register
from delay_protocol.meta.session import MetaSessionConfig
from delay_protocol.wire.frames import FrameDecoder, encode_request, encode_response

CONFIG = ClientConfig(meta_answer_timeout_s=5, meta_backoff_min_s=1, meta_backoff_max_s=8)
DEFAULT_MS = parse_levels(DEFAULT_LEVELS)
ADDRESS = b"HTTP/1.1 200 \r\ncontent-length: 7\r\n\r\nother:9"


def new_link(*addresses: str, seed: int = 1) -> tuple[MetaLink, RouteTalk]:
    session = RouteTalk(
        client_type=ClientType.DELAY_PRODUCER,
        client_id="h@@1",
        config=MetaSessionConfig(answer_timeout_s=5),
        chance=random.Random(seed),
    )
    link = MetaLink(addresses or ("m:8080",), session, config=CONFIG, chance=random.Random(seed))
    return link, session


def connect(link: MetaLink, now: float) -> None:
    assert link.wants_connection(now)
    link.connect()
    assert not link.wants_connection(now)
    link.connected(now)


def talking() -> tuple[MetaLink, RouteTalk]:
    link, session = new_link()
    session.want("s", 0)
    connect(link, 0)
    link.take_outgoing()
    link.received(ADDRESS, 0)
    link.lost("condemned", 0)
    connect(link, 0)
    return link, session


def test_it_asks_where_the_meta_server_listens_and_then_talks_there() -> None:
    link, session = new_link()
    assert not link.wants_connection(0), "nothing is wanted"
    session.want("s", 0)
    assert (link.host, link.port) == ("m", 8080)
    connect(link, 0)
    assert link.take_outgoing().startswith(b"GET /meta/address ")
    for piece in (ADDRESS[:30], ADDRESS[30:]):
        link.received(piece, 0)
        assert link.condemned is None
    link.lost("closed by the server", 0)
    assert (link.host, link.port) == ("other", 9)
    connect(link, 0)
    decoder = FrameDecoder(frame_bytes_max=1 << 16)
    decoder.feed(link.take_outgoing())
    [frame] = decoder.frames()
    assert decode_client_register(frame.body).subject == "s"
    assert link.trouble is None


def test_an_answer_that_ends_with_the_connection_is_one() -> None:
    link, session = new_link()
    session.want("s", 0)
    connect(link, 0)
    link.received(b"HTTP/1.0 200 OK\r\n\r\nother:9", 0)
    assert link.condemned is None
    link.lost("closed by the server", 0)
    assert (link.host, link.port) == ("other", 9)
    assert link.wants_connection(0)


def test_before_a_meta_server_was_asked_no_delays_of_levels_are_known() -> None:
    assert new_link()[0].levels_ms is None


def test_the_delays_of_levels_are_those_that_a_meta_server_told_last() -> None:
    link, session = new_link()
    session.want("s", 0)
    told = b"HTTP/1.0 200 OK\r\nDelaywheel-Levels: 7s\r\n\r\nother:9"
    for number, (answer, levels_ms) in enumerate(
        [(told, (7000,)), (told.replace(b"7s", b"8s 9s"), (8000, 9000)), (ADDRESS, DEFAULT_MS)]
    ):
        now = 100.0 * number
        connect(link, now)
        link.received(answer, now)
        link.lost("closed by the server", now)
        assert link.levels_ms == levels_ms
        connect(link, now)
        link.lost("closed by the server", now)
        assert link.levels_ms == levels_ms, "it outlives the connection"


def test_an_answer_that_is_cut_off_is_none() -> None:
    link, session = new_link()
    session.want("s", 0)
    connect(link, 0)
    link.received(ADDRESS[:-1], 0)
    link.lost("closed by the server", 0)
    assert link.trouble == "m:8080: closed the connection before its answer was complete"
    assert (link.host, link.port) == ("m", 8080)


def test_pauses_grow_and_are_drawn_from_nothing_to_all_of_the_span() -> None:
    drawn: list[list[float]] = [[] for _ in range(8)]
    for seed in range(60):
        link, session = new_link(seed=seed)
        session.want("s", 0)
        now = 0.0
        for failures in range(8):
            connect(link, now)
            link.lost("refused", now)
            drawn[failures].append(link.retry_at - now)
            now = link.retry_at
    for failures, pauses in enumerate(drawn):
        span = min(8, 2**failures)
        assert max(pauses) <= span
        assert max(pauses) > 0.8 * span
        assert min(pauses) < 0.2 * span


def test_of_several_meta_servers_each_gets_its_turn_before_pauses_grow() -> None:
    link, session = new_link("a:1", "b:2", "c:3")
    session.want("s", 0)
    now = 0.0
    tried = []
    for _ in range(6):
        tried.append(link.host)
        connect(link, now)
        link.lost("refused", now)
        assert link.retry_at - now <= (1 if len(tried) <= 3 else 2)
        now = link.retry_at
    assert sorted(tried[:3]) == ["a", "b", "c"]
    assert tried[:3] == tried[3:]


def test_clients_begin_with_different_meta_servers() -> None:
    assert {new_link("a:1", "b:2", "c:3", seed=seed)[0].host for seed in range(20)} == {
        "a",
        "b",
        "c",
    }


def test_discovery_is_asked_again_after_a_loss() -> None:
    link, _ = talking()
    link.lost("closed by the server", 1)
    assert (link.host, link.port) == ("m", 8080)


@pytest.mark.parametrize("data", [b"\x00" * 30, b"HTTP/1.1 200 \r\n", b"\xff" * 5])
def test_what_is_no_protocol_ends_the_talk(data: bytes) -> None:
    link, _ = talking()
    link.received(data + b"\xff" * 30, 1)
    assert link.condemned is not None
    assert "does not speak the protocol" in link.condemned
    assert link.received(b"more", 1) == []


def test_a_meta_server_that_answers_nothing_is_left() -> None:
    link, _ = talking()
    link.take_outgoing()
    assert link.next_event() == 5
    link.poll(5)
    assert link.condemned == "silent for 5 s"


def test_a_discovery_that_is_not_answered_is_given_up() -> None:
    link, session = new_link()
    session.want("s", 0)
    connect(link, 0)
    link.poll(4.9)
    assert link.condemned is None
    assert link.next_event() == 5
    link.poll(5)
    assert link.condemned == "no answer within 5 s"


def test_without_anything_wanted_the_connection_is_closed_without_a_grudge() -> None:
    link, session = talking()
    session.drop("s")
    link.poll(1)
    assert link.condemned == "unused"
    link.lost("unused", 1)
    assert (link.trouble, link.wants_connection(1)) == (None, False)
    session.want("t", 1)
    assert link.wants_connection(1)


def test_each_question_has_one_answer_and_other_frames_have_no_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, session = talking()
    decoder = FrameDecoder(frame_bytes_max=1 << 16)
    decoder.feed(link.take_outgoing())
    [frame] = decoder.frames()
    taken: list[str | None] = []
    monkeypatch.setattr(session, "take", lambda _frame, about, _now: taken.append(about))
    for opaque in (frame.opaque + 1, frame.opaque, frame.opaque, 0):
        link.received(encode_response(replace(frame, opaque=opaque), code=51), 0)
    link.received(encode_request(code=CommandCode.HELLO, opaque=frame.opaque, body=b""), 0)
    assert taken == [None, "s", None, None, None]


def test_what_the_socket_does_not_take_is_not_added_to() -> None:
    link, session = talking()
    size = len(link._outgoing)
    for number in range(1000):
        session.want(f"s{number}", 1)
        link.poll(1)
    assert len(link._outgoing) == size


def test_a_shell_that_reports_the_impossible_is_a_bug() -> None:
    link, _ = new_link()
    assert link.state is LinkState.IDLE
    with pytest.raises(IllegalLinkMoveError):
        link.connected(0)


@pytest.mark.parametrize("address", ["m", "m:0", "http://m:8080/meta/address", ""])
def test_an_impossible_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        new_link(address)
