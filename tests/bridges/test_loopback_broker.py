"""Promise: to a delay server it is a QMQ broker, and it tells the truth about what it received."""

import contextlib
import json
import random
import re
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from bridges import LoopbackBroker, LoopbackBrokerConfig, run_broker
from delay_protocol.messages.items import Item, encode_item
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_protocol.wire.hello import Hello, decode_hello, encode_hello
from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import Runtime, TcpNetwork, ThreadExecutor

NOW_MS = 1_700_000_000_000


class FixedClock:
    """A wall clock that stands still."""

    def now_ms(self) -> int:
        return NOW_MS

    def boot_ms(self) -> int:
        return 0

    def boot_id(self) -> str:
        return "boot 1"

    def synchronised(self) -> bool:
        return True


@dataclass
class Peer:
    """A delay server as far as the broker can see."""

    stream: trio.abc.Stream
    opaque: int = 0

    def __post_init__(self) -> None:
        self.decoder = FrameDecoder(frame_bytes_max=1 << 20)
        self.answers: list[Frame] = []

    async def write(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self) -> Frame:
        while not self.answers:
            data = await self.stream.receive_some(65536)
            assert data, "the broker closed the connection"
            self.decoder.feed(data)
            self.answers += self.decoder.frames()
        return self.answers.pop(0)

    async def ask(self, code: int, body: bytes, version: int = 7) -> Frame:
        self.opaque += 1
        await self.write(encode_request(code=code, opaque=self.opaque, body=body, version=version))
        answer = await self.answer()
        assert (answer.opaque, answer.version, answer.flag) == (self.opaque, version, 1)
        assert answer.request_code == code
        return answer

    async def deliver(self, *items: bytes) -> dict[str, int]:
        """Return the item codes of the refused ones."""
        answer = await self.ask(10, b"".join(items))
        assert answer.code == 0
        return {name.decode(): code for name, (code, _) in decode_send_reply(answer.body).items()}

    async def hello(self, group: str, epoch: int) -> Frame:
        return await self.ask(1001, encode_hello(Hello(group=group, epoch=epoch, node_id="n1")))


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[LoopbackBroker]:  # noqa: ANN401
    runtime = Runtime(
        clock=FixedClock(),
        network=TcpNetwork(),
        executor=ThreadExecutor(),
        chance=random.Random(1),
    )
    config = LoopbackBrokerConfig(listen=("127.0.0.1", 0), **settings)
    async with trio.open_nursery() as nursery:
        broker: LoopbackBroker = await nursery.start(run_broker, config, runtime)
        yield broker
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def connected(broker: LoopbackBroker) -> AsyncIterator[Peer]:
    async with await trio.open_tcp_stream(*broker.address) as stream:
        yield Peer(stream)


def item(name: str, *, subject: str = "s", due_ms: int = NOW_MS, flag: int = 2) -> bytes:
    return encode_item(Item(flag, NOW_MS - 5, due_ms, subject, name, (), {"body": f"of {name}"}))


def with_bad_crc(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


async def test_everything_accepted_is_answered_with_success_and_counted() -> None:
    async with running() as broker, connected(broker) as peer:
        assert await peer.deliver(item("m1"), item("m2", due_ms=NOW_MS - 7)) == {}
        assert await peer.deliver(item("m1")) == {}
        assert (broker.received, broker.requests) == (3, 2)
        assert max(broker.late_ms) == 7
        assert min(broker.late_ms, default=0) >= 0


@pytest.mark.parametrize("version", [4, 7, 8, 9])
async def test_every_version_of_the_request_is_understood(version: int) -> None:
    async with running() as broker, connected(broker) as peer:
        answer = await peer.ask(10, item("m1"), version)
        assert (answer.code, answer.body) == (0, b"")
        assert broker.received == 1


async def test_an_empty_request_succeeds_as_it_does_at_any_broker() -> None:
    async with running() as broker, connected(broker) as peer:
        assert (await peer.ask(10, b"")).code == 0
        assert broker.received == 0


async def test_many_requests_in_one_write_are_answered_in_order() -> None:
    async with running() as broker, connected(broker) as peer:
        await peer.write(
            b"".join(
                encode_request(code=10, opaque=n, body=item(f"m{n}"), version=7) for n in range(200)
            )
        )
        assert [(await peer.answer()).opaque for _ in range(200)] == list(range(200))
        assert broker.received == 200


async def test_a_one_way_request_gets_no_answer() -> None:
    async with running() as broker, connected(broker) as peer:
        request = bytearray(encode_request(code=10, opaque=77, body=item("m1")))
        request[18:22] = struct.pack(">i", 2)
        await peer.write(bytes(request))
        assert await peer.deliver(item("m2")) == {}
        assert broker.received == 2


async def test_a_bad_crc_is_refused_by_its_item_and_its_neighbours_are_not() -> None:
    async with running() as broker, connected(broker) as peer:
        refused = await peer.deliver(item("m1"), with_bad_crc(item("m2")), item("m3"))
        assert refused == {"m2": 6}
        assert broker.received == 2
        assert broker.refused == {"bad crc": 1}


@pytest.mark.parametrize("subject", ["a/b", "a b", "a\n"])
async def test_an_illegal_subject_is_refused_by_its_item(subject: str) -> None:
    async with running() as broker, connected(broker) as peer:
        for _ in range(2):
            assert await peer.deliver(item("m1"), item("m2", subject=subject)) == {"m2": 3}
        assert broker.received == 2


async def test_a_body_that_cannot_be_divided_is_51_and_the_connection_stays() -> None:
    async with running() as broker, connected(broker) as peer:
        assert (await peer.ask(10, item("m1")[:-1])).code == 51
        assert await peer.deliver(item("m2")) == {}
        assert broker.received == 1


async def test_an_unknown_request_is_answered_so() -> None:
    async with running() as broker, connected(broker) as peer:
        assert (await peer.ask(11, b"")).code == 3
        assert (await peer.ask(100, b"")).code == 0


async def test_an_early_message_shows() -> None:
    async with running() as broker, connected(broker) as peer:
        late = [item(f"late{n}", due_ms=NOW_MS - n) for n in (*range(1, 100), 99_000)]
        await peer.deliver(item("m1", due_ms=NOW_MS + 3), item("m2"), *late)
        assert (
            "early 1 (by up to 3 ms), lateness p50 49 ms, p99 99 ms, max 60000 ms"
            in broker.statistics()
        )


async def test_an_item_without_the_delay_bit_is_never_early() -> None:
    async with running() as broker, connected(broker) as peer:
        await peer.deliver(item("m1", due_ms=NOW_MS + 900_000, flag=0))
        assert broker.received == 1
        assert min(broker.late_ms, default=0) >= 0


# HELLO


async def test_hello_is_answered_with_the_newest_epoch() -> None:
    async with running(group="g1") as broker, connected(broker) as peer:
        answer = await peer.hello("dg", 4)
        assert answer.code == 0
        hello = decode_hello(answer.body)
        assert (hello.group, hello.epoch) == ("g1", 4)
        assert (await peer.hello("dg", 5)).code == 0
        assert broker.epochs == {"dg": 5}


async def test_an_older_epoch_is_refused_and_so_is_what_it_delivers() -> None:
    async with running() as broker, connected(broker) as new, connected(broker) as old:
        await new.hello("dg", 2)
        assert (await old.hello("dg", 1)).code == 52
        assert (await old.ask(10, item("m1"))).code == 52
        assert await new.deliver(item("m2")) == {}
        assert broker.received == 1


async def test_a_connection_that_was_welcome_is_refused_once_a_newer_epoch_came() -> None:
    async with running() as broker, connected(broker) as old, connected(broker) as new:
        await old.hello("dg", 1)
        assert await old.deliver(item("m1")) == {}
        await new.hello("dg", 2)
        assert (await old.ask(10, item("m2"))).code == 52
        assert broker.received == 1


async def test_epochs_of_other_groups_and_peers_without_hello_are_not_refused() -> None:
    async with running() as broker, connected(broker) as peer, connected(broker) as silent:
        await peer.hello("dg", 9)
        assert (await peer.hello("other", 1)).code == 0
        assert await silent.deliver(item("m1")) == {}


async def test_an_unreadable_hello_is_51() -> None:
    async with running() as broker, connected(broker) as peer:
        assert (await peer.ask(1001, b"\xff")).code == 51
        assert broker.epochs == {}


# Records and lines


async def test_what_is_answered_is_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "record"
    async with running(record=path) as broker, connected(broker) as peer:
        lines: list[dict[str, object]] = []
        for number in range(20):
            await peer.deliver(item(f"m{number}"), with_bad_crc(item("bad")))
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert [line["message_id"] for line in lines] == [f"m{n}" for n in range(number + 1)]
        assert lines[0] == {
            "message_id": "m0",
            "subject": "s",
            "due_ms": NOW_MS,
            "received_ms": NOW_MS,
        }
        assert broker.received == 20


async def test_without_the_delay_bit_a_message_was_due_when_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "record"
    async with running(record=path) as broker, connected(broker) as peer:
        await peer.deliver(item("m1", due_ms=NOW_MS + 900_000, flag=0))
    assert json.loads(path.read_text())["due_ms"] == NOW_MS - 5


async def test_a_line_for_people_is_printed_for_each_message() -> None:
    lines: list[str] = []
    async with running(print_line=lines.append) as broker, connected(broker) as peer:
        odd = _item_with_body(b"\x00")
        await peer.deliver(item("m1", due_ms=NOW_MS - 12), odd)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.000 s m1 \+12 ms 'of m1'", lines[0])
    assert "odd" in lines[1]


async def test_a_line_for_people_moves_no_cursor_whatever_the_message_is_called() -> None:
    lines: list[str] = []
    async with running(print_line=lines.append) as broker, connected(broker) as peer:
        await peer.deliver(item("a\nb\x1b[31m"))
    assert " s a\\nb\\x1b[31m " in lines[0]
    assert "\x1b" not in lines[0]


def _item_with_body(body: bytes) -> bytes:
    covered = (
        struct.pack(">Bqq", 2, NOW_MS, NOW_MS)
        + b"\x00\x01s\x00\x03odd"
        + struct.pack(">i", len(body))
        + body
    )
    return struct.pack(">q", zlib.crc32(covered)) + covered


# Starting and stopping


async def test_an_address_in_use_is_a_listen_error() -> None:
    async with running() as broker:
        config = LoopbackBrokerConfig(listen=broker.address)
        runtime = Runtime(
            clock=FixedClock(),
            network=TcpNetwork(),
            executor=ThreadExecutor(),
            chance=random.Random(1),
        )
        with pytest.RaisesGroup(ListenError):
            await run_broker(config, runtime)


async def test_stop_answers_what_was_received_and_ends() -> None:
    runtime = Runtime(
        clock=FixedClock(),
        network=TcpNetwork(),
        executor=ThreadExecutor(),
        chance=random.Random(1),
    )
    config = LoopbackBrokerConfig(listen=("127.0.0.1", 0))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            broker: LoopbackBroker = await nursery.start(run_broker, config, runtime)
            async with connected(broker) as peer:
                await peer.write(encode_request(code=100, opaque=6, body=b""))
                await peer.write(encode_request(code=10, opaque=7, body=item("m1")))
                while not broker.received:  # noqa: ASYNC110 (it has no event for that)
                    await trio.sleep(0.001)
                broker.stop()
                assert (await peer.answer()).opaque == 6
                assert (await peer.answer()).opaque == 7
                assert await peer.stream.receive_some(1) == b""


BROKER = (sys.executable, "-m", "delaywheel", "broker", "--listen", "127.0.0.1:0")


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*BROKER, "--record", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.process
@pytest.mark.parametrize(("how", "lines_printed"), [(("--quiet",), 0), ((), 1)])
async def test_as_a_process_it_says_ready_and_ends_at_sigterm_with_statistics(
    how: tuple[str, ...], lines_printed: int, tmp_path: Path
) -> None:
    path = tmp_path / "record"
    with process(str(path), *how) as child:
        assert child.stdout is not None
        ready = await trio.to_thread.run_sync(child.stdout.readline)
        found = re.fullmatch(r"ready 127\.0\.0\.1:(\d+)\n", ready)
        assert found
        async with await trio.open_tcp_stream("127.0.0.1", int(found[1])) as stream:
            assert await Peer(stream).deliver(item("m1")) == {}
            assert json.loads(path.read_text())["message_id"] == "m1"
            child.send_signal(signal.SIGTERM)
            rest = await trio.to_thread.run_sync(child.stdout.read)
        assert await trio.to_thread.run_sync(child.wait) == 0
    *lines, last = rest.splitlines()
    assert len(lines) == lines_printed
    assert last.startswith("received 1 messages in 1 requests, early 0, lateness p50 ")
