"""A request is answered only when what it brought is durable, and what cannot be taken is held."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import starmap

import pytest
import trio
import trio.testing

from delay_protocol.basics.codes import ItemCode
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.wire.frames import Frame, encode_frame
from delay_server.accepting.admission import Admission, AdmissionConfig
from delay_server.accepting.commits import Work
from delay_server.accepting.duplicates import Duplicate, Sifted
from delay_server.accepting.ingest import Ingest
from delay_server.accepting.intake import MessageBatch
from delay_server.duty import DISK_FULL_REMARK, Situation, duty_of
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import Server
from delay_transport.seams.outbox import Wakeup
from storage.batch.columns import RecordKind
from storage.limits import DAY_MS
from storage.logs.message_log import Draft
from tests.delay_server.server_rig import ids_of, make_item
from tests.delay_transport.peers import (
    ADDRESS,
    StreamNetwork,
    receive_frames,
    request_bytes,
    serving,
)
from tests.simulation.clock import SimClock

HORIZON_MS = 10 * DAY_MS
FSYNC_S = 0.5
LATER_MS = 1_788_220_800_000 + 60_000
TRUSTED_MS = LATER_MS - 61_000


class SlowLog:
    """Stands in for the commit: it takes half a second, and keeps what it was given."""

    def __init__(self) -> None:
        self.kept: list[list[Draft]] = []
        self.is_full = False
        self.error: Exception | None = None
        self.done = 0
        self._submitted: list[tuple[Callable[[], Work], Callable[[bool], None]]] = []
        self._more = Wakeup()

    def submit(self, take: Callable[[], Work], on_end: Callable[[bool], None]) -> None:
        self._submitted.append((take, on_end))
        self._more.wake()

    async def run(self) -> None:
        while True:
            if not self._submitted:
                await self._more.sleep()
                continue
            take, on_end = self._submitted.pop(0)
            drafts = take().drafts()
            await trio.sleep(FSYNC_S)
            if self.error is not None:
                raise self.error
            self.done += 1
            if not self.is_full:
                self.kept.append(list(drafts))
            on_end(not self.is_full)

    @property
    def bodies(self) -> list[bytes]:
        """What each commit made durable."""
        return [b"".join(b"".join(draft.blob) for draft in drafts) for drafts in self.kept]

    @property
    def ids(self) -> list[bytes]:
        """Ids of all that is durable, in order."""
        return [message_id for body in self.bodies for message_id in ids_of(body)]


MASTER = Situation(is_master=True, is_recovered=True)
SERVING, HOLDING = duty_of(MASTER), duty_of(Situation())
FULL = duty_of(replace(MASTER, disk_is_full=True))
ELSEWHERE = duty_of(Situation(master_elsewhere="n2 at h:1"))


@dataclass
class Bench:
    """An Ingest behind a listener, and the log it commits to."""

    ingest: Ingest
    log: SlowLog
    server: Server
    network: StreamNetwork

    async def connect(self) -> trio.abc.Stream:
        return await self.network.connect(*ADDRESS)


@asynccontextmanager
async def bench(
    *,
    limits: AdmissionConfig | None = None,
    connection_limits: ConnectionLimits | None = None,
    is_serving: bool = True,
) -> AsyncIterator[Bench]:
    log = SlowLog()
    ingest = Ingest(
        admission=Admission(AdmissionConfig(horizon_days=10)),
        limits=limits or AdmissionConfig(),
        clock=SimClock(),
        trusted_ms=lambda: TRUSTED_MS,
        why_not=lambda: "it is a slave " + "x" * 1000,
    )
    async with (
        trio.open_nursery() as nursery,
        serving(ingest, connection_limits) as (server, network),
    ):
        nursery.start_soon(log.run)
        ingest.commit_by(log.submit)
        nursery.start_soon(ingest.run_expiry)
        if is_serving:
            ingest.follow(SERVING)
        yield Bench(ingest, log, server, network)
        nursery.cancel_scope.cancel()


async def nothing_comes(stream: trio.abc.Stream, seconds: float) -> None:
    with trio.move_on_after(seconds):
        data = await stream.receive_some()
        pytest.fail(f"received {len(data)} bytes")


async def test_an_answer_waits_for_the_commit() -> None:
    async with bench() as b:
        stream = await b.connect()
        item = make_item("m1", LATER_MS)
        await stream.send_all(request_bytes(7, item))
        await nothing_comes(stream, FSYNC_S - 0.01)
        assert b.log.done == 0
        (answer,) = await receive_frames(stream, 1)
        assert b.log.done == 1
        assert trio.current_time() == FSYNC_S
        assert (answer.code, answer.opaque, answer.body) == (0, 7, b"")
        assert b.log.bodies == [item]


async def test_what_is_due_at_once_is_due_by_the_time_that_is_trusted() -> None:
    async with bench() as b:
        stream = await b.connect()
        body = make_item("at once", LATER_MS, flag=0) + make_item("later", LATER_MS)
        await stream.send_all(request_bytes(1, body))
        await receive_frames(stream, 1)
    [draft] = b.log.kept[0]
    assert draft.arrays["due_ms"].tolist() == [TRUSTED_MS, LATER_MS]


async def test_requests_that_come_during_a_commit_share_the_next_one() -> None:
    async with bench() as b:
        streams = [await b.connect() for _ in range(3)]
        await streams[0].send_all(request_bytes(1, make_item("first", LATER_MS)))
        await trio.sleep(0.1)
        for number, stream in enumerate(streams):
            for opaque in (10, 11):
                item = make_item(f"{number}-{opaque}", LATER_MS)
                await stream.send_all(request_bytes(opaque, item))
        for stream, count in zip(streams, (3, 2, 2), strict=True):
            frames = await receive_frames(stream, count)
            assert [frame.code for frame in frames] == [0] * count
        assert trio.current_time() == pytest.approx(2 * FSYNC_S)
        assert [sum(draft.count for draft in drafts) for drafts in b.log.kept] == [1, 6]
        assert b.ingest.counts.accepted == 7


async def test_what_was_sent_before_is_told_with_its_first_time_and_not_kept() -> None:
    def sift(batches: Sequence[MessageBatch]) -> Sifted:
        # The second request's first item, and the first of the fourth.
        (batch,) = batches
        assert len(batch) == 5
        return list(batches), [Duplicate(2, b"2-0", 77), Duplicate(3, b"3-0", 78)]

    async with bench() as b:
        b.ingest.commit_by(b.log.submit, sift)
        stream = await b.connect()
        far = make_item("3-0", LATER_MS + HORIZON_MS + 1)
        bodies = [
            b"".join(make_item(f"1-{n}", LATER_MS) for n in range(2)),
            make_item("2-0", LATER_MS),
            b"",
            make_item("3-0", LATER_MS) + make_item("3-1", LATER_MS) + far,
        ]
        await stream.send_all(b"".join(starmap(request_bytes, enumerate(bodies))))
        answers = {f.opaque: f for f in await receive_frames(stream, 4)}
        assert b.ingest.counts.duplicates == 2
        assert b.ingest.counts.accepted == 3
    assert [answers[n].code for n in range(4)] == [0] * 4
    assert [answers[n].body for n in (0, 2)] == [b"", b""]
    assert decode_send_reply(answers[1].body) == {b"2-0": (ItemCode.MESSAGE_DUPLICATE, "77")}
    # That another item of its id was refused counts for more.
    assert decode_send_reply(answers[3].body)[b"3-0"][0] == ItemCode.BLOCK


async def test_repeats_alone_are_confirmed_with_a_record_that_says_nothing() -> None:
    async with bench() as b:
        b.ingest.commit_by(b.log.submit, lambda _: ([], [Duplicate(0, b"a", 9)]))
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("a", LATER_MS)))
        await receive_frames(stream, 1)
        assert b.ingest.counts.accepted == 0
    # A master that was replaced gets no record into the log, and so confirms nothing.
    assert [[draft.kind for draft in drafts] for drafts in b.log.kept] == [[RecordKind.FLOOR]]


async def test_requests_that_are_admitted_together_are_told_apart() -> None:
    async with bench() as b:
        b.ingest.commit_by(b.log.submit, lambda found: (list(found), [Duplicate(3, b"c", 9)]))
        stream = await b.connect()
        bodies = [
            make_item("a", LATER_MS) + make_item("b0", LATER_MS),
            make_item("b", LATER_MS),
            make_item("c", LATER_MS) + make_item("d", LATER_MS),
        ]
        await stream.send_all(b"".join(starmap(request_bytes, enumerate(bodies))))
        answers = {f.opaque: f.body for f in await receive_frames(stream, 3)}
    assert (answers[0], answers[1]) == (b"", b"")
    assert decode_send_reply(answers[2]) == {b"c": (ItemCode.MESSAGE_DUPLICATE, "9")}


async def test_bad_items_are_refused_by_their_own_code_and_their_neighbours_kept() -> None:
    good = [make_item("g1", LATER_MS), make_item("g2", LATER_MS)]
    far = make_item("far", LATER_MS + HORIZON_MS + 1)
    slash = make_item("slash", LATER_MS, subject="a/b")
    async with bench() as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, b"".join([good[0], far, slash, good[1]])))
        (answer,) = await receive_frames(stream, 1)
        results = decode_send_reply(answer.body)
        assert {name: code for name, (code, _) in results.items()} == {
            b"far": ItemCode.BLOCK,
            b"slash": ItemCode.SUBJECT_NOT_ASSIGNED,
        }
        assert b.log.bodies == [b"".join(good)]
        assert b.ingest.counts.refused == {"BLOCK": 1, "SUBJECT_NOT_ASSIGNED": 1}


@pytest.mark.parametrize("items", [[], [make_item("m1", LATER_MS + 2 * HORIZON_MS)]])
async def test_a_request_of_which_nothing_is_kept_is_answered_at_once(items: list[bytes]) -> None:
    async with bench() as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, b"".join(items)))
        (answer,) = await receive_frames(stream, 1)
        assert trio.current_time() == 0
        assert answer.code == 0
        assert len(decode_send_reply(answer.body)) == len(items)
        await trio.sleep(5)
        assert b.log.done == 0


async def test_a_body_that_is_no_items_gets_51_and_the_connection_goes_on() -> None:
    async with bench() as b:
        stream = await b.connect()
        item = make_item("m1", LATER_MS)
        await stream.send_all(
            request_bytes(1, item + b"\x01" * 9) + request_bytes(2, make_item("m2", LATER_MS))
        )
        answers = await receive_frames(stream, 2)
        assert [(frame.opaque, frame.code, frame.body) for frame in answers] == [
            (1, 51, b""),
            (2, 0, b""),
        ]
        assert b.log.ids == [b"m2"]
        assert b.server.open_connections == 1


async def test_who_asks_who_it_is_is_told_and_nothing_is_slowed_by_it() -> None:
    async with bench() as b:
        stream = await b.connect()
        hello = encode_frame(Frame(1001, 9, 1, 0, 1001, b""))
        await stream.send_all(hello)
        (starting,) = await receive_frames(stream, 1)
        assert (starting.code, starting.body) == (51, b"")
        b.ingest.hello = lambda: b"who it is"
        await stream.send_all(hello)
        (answer,) = await receive_frames(stream, 1)
        assert (answer.code, answer.body) == (52, b"who it is")
        assert trio.current_time() == 0
        assert b.server.counts.faults == 0


async def test_a_failed_append_refuses_every_item_and_the_next_one_goes_on() -> None:
    async with bench() as b:
        one, two = await b.connect(), await b.connect()
        b.log.is_full = True
        await one.send_all(
            request_bytes(1, make_item("a", LATER_MS) + make_item("b", LATER_MS))
            + encode_frame(Frame(10, 9, 2, 2, 10, make_item("c", LATER_MS)))
        )
        await two.send_all(request_bytes(3, make_item("d", LATER_MS)))
        (first,) = await receive_frames(one, 1)
        assert first.code == 0
        assert decode_send_reply(first.body) == {
            b"a": (ItemCode.BROKER_READ_ONLY, DISK_FULL_REMARK),
            b"b": (ItemCode.BROKER_READ_ONLY, DISK_FULL_REMARK),
        }
        (second,) = await receive_frames(two, 1)
        assert list(decode_send_reply(second.body)) == [b"d"]
        assert b.ingest.counts.accepted == 0
        b.log.is_full = False
        await two.send_all(request_bytes(4, make_item("d", LATER_MS)))
        (again,) = await receive_frames(two, 1)
        assert (again.code, again.body) == (0, b"")
        assert b.log.ids == [b"d"]
        assert b.server.held_bytes == 0


async def test_with_the_disk_at_its_floor_items_get_4_until_there_is_space_again() -> None:
    async with bench() as b:
        b.ingest.follow(FULL)
        stream = await b.connect()
        body = make_item("a", LATER_MS) + make_item("b", LATER_MS)
        await stream.send_all(request_bytes(1, body) + request_bytes(2) + request_bytes(3, b"zzz"))
        answers = await receive_frames(stream, 3)
        assert trio.current_time() == 0
        assert set(decode_send_reply(answers[0].body)) == {b"a", b"b"}
        assert answers[0].code == 0
        assert (answers[1].code, answers[1].body) == (0, b"")
        assert answers[2].code == 51
        assert b.ingest.counts.refused == {"BROKER_READ_ONLY": 2}
        b.ingest.follow(SERVING)
        await stream.send_all(request_bytes(4, body))
        (answer,) = await receive_frames(stream, 1)
        assert answer.body == b""
        assert b.log.ids == [b"a", b"b"]


async def test_requests_that_come_while_the_server_starts_are_held_and_kept_in_order() -> None:
    async with bench(is_serving=False) as b:
        stream = await b.connect()
        for number in range(20):
            await stream.send_all(request_bytes(number, make_item(f"m{number}", LATER_MS)))
        await nothing_comes(stream, 2)
        assert b.ingest.held_requests == 20
        b.ingest.follow(SERVING)
        assert b.ingest.held_requests == 0
        frames = await receive_frames(stream, 20)
        assert [frame.opaque for frame in frames] == list(range(20))
        assert {frame.code for frame in frames} == {0}
        assert b.log.ids == [f"m{number}".encode() for number in range(20)]
        assert b.ingest.counts.expired == 0


async def test_a_request_held_too_long_gets_51_after_the_time_it_was_promised() -> None:
    async with bench(is_serving=False, limits=AdmissionConfig(hold_ms=4000)) as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("m1", LATER_MS)))
        await trio.sleep(1)
        await stream.send_all(request_bytes(2, make_item("m2", LATER_MS)))
        (first,) = await receive_frames(stream, 1)
        assert (first.opaque, first.code) == (1, 51)
        assert first.body.startswith(b"it is a slave xxx")
        assert len(first.body) == 500
        assert trio.current_time() == 4
        await trio.sleep(0.5)
        b.ingest.follow(SERVING)
        (second,) = await receive_frames(stream, 1)
        assert (second.opaque, second.code) == (2, 0)
        assert b.log.ids == [b"m2"]
        assert b.ingest.counts.expired == 1
        assert b.server.held_bytes == 0


async def test_what_other_commands_ask_is_answered_while_requests_are_held() -> None:
    async with bench(is_serving=False) as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("m1", LATER_MS)))
        await stream.send_all(request_bytes(2, code=100) + request_bytes(3, code=11))
        answers = await receive_frames(stream, 2)
        assert [(frame.opaque, frame.code) for frame in answers] == [(2, 0), (3, 3)]


async def test_a_full_intake_holds_what_follows_and_nothing_overtakes() -> None:
    item = make_item("0", LATER_MS, attributes={"k": "v" * 1000})
    async with bench(limits=AdmissionConfig(pending_bytes_max=3 * len(item))) as b:
        streams = [await b.connect() for _ in range(3)]
        expected = []
        for number in range(30):
            name = f"m{number}"
            expected.append(name.encode())
            # Every third is small: it would fit where its larger neighbours do not.
            value = "v" if number % 3 == 2 else "v" * 1000
            data = make_item(name, LATER_MS, attributes={"k": value})
            await streams[number % 3].send_all(request_bytes(number, data))
            await trio.testing.wait_all_tasks_blocked()
            if number == 20:
                # The rest comes while a commit is under way and others are held.
                assert b.ingest.held_requests > 10
                await trio.sleep(1.5 * FSYNC_S)
        assert b.ingest.held_requests > 10
        for stream in streams:
            frames = await receive_frames(stream, 10)
            assert {frame.code for frame in frames} == {0}
        assert b.log.ids == expected
        assert max(len(body) for body in b.log.bodies) < 5 * len(item)
        assert b.ingest.held_requests == 0


async def test_held_requests_count_against_their_connection() -> None:
    item = make_item("m", LATER_MS)
    limits = ConnectionLimits(in_flight_requests_max=5)
    async with bench(is_serving=False, connection_limits=limits) as b:
        stream = await b.connect()

        async def flood() -> None:
            for number in range(1000):
                await stream.send_all(request_bytes(number, item))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await trio.sleep(1)
            assert b.server.counts.pauses == 1
            held = b.ingest.held_requests
            await trio.sleep(1)
            assert b.ingest.held_requests == held
            nursery.cancel_scope.cancel()


async def test_what_a_closed_connection_left_held_is_not_kept() -> None:
    async with bench(is_serving=False, limits=AdmissionConfig(hold_ms=20_000)) as b:
        gone, here = await b.connect(), await b.connect()
        await gone.send_all(request_bytes(1, make_item("gone", LATER_MS)))
        await here.send_all(request_bytes(2, make_item("here", LATER_MS)))
        await trio.sleep(1)
        await trio.aclose_forcefully(gone)
        await trio.sleep(ConnectionLimits().drain_seconds_max + 1)
        assert b.server.open_connections == 1
        b.ingest.follow(SERVING)
        (answer,) = await receive_frames(here, 1)
        assert answer.code == 0
        assert b.log.ids == [b"here"]
        assert b.server.held_bytes == 0


async def test_what_was_admitted_is_kept_though_its_connection_is_gone() -> None:
    async with bench() as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("m1", LATER_MS)))
        await trio.sleep(FSYNC_S / 2)
        await trio.aclose_forcefully(stream)
        await trio.sleep(10)
        assert b.log.ids == [b"m1"]
        assert b.ingest.counts.accepted == 1
        assert b.server.held_bytes == 0


async def test_stop_answers_all_that_was_admitted_and_admits_no_more() -> None:
    async with bench() as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("m1", LATER_MS)))
        await trio.sleep(FSYNC_S / 2)
        await stream.send_all(request_bytes(2, make_item("m2", LATER_MS)))
        await trio.testing.wait_all_tasks_blocked()
        b.ingest.follow(HOLDING)
        await b.ingest.stop()
        assert trio.current_time() == pytest.approx(2 * FSYNC_S)
        assert b.log.ids == [b"m1", b"m2"]
        assert len(await receive_frames(stream, 2)) == 2
        await stream.send_all(request_bytes(3, make_item("m3", LATER_MS)))
        (late,) = await receive_frames(stream, 1)
        assert (late.opaque, late.code) == (3, 51)
        assert b.log.ids == [b"m1", b"m2"]


async def test_stop_with_nothing_under_way_returns_at_once() -> None:
    async with bench() as b:
        await trio.sleep(1)
        await b.ingest.stop()
        assert trio.current_time() == 1


async def test_an_error_of_the_log_ends_the_commits_and_nothing_is_answered() -> None:
    broken = RuntimeError("the disk is gone")

    def is_ours(error: BaseException) -> bool:
        return error is broken

    with (
        trio.fail_after(100),
        pytest.RaisesGroup(pytest.RaisesExc(check=is_ours), flatten_subgroups=True),
    ):
        async with bench() as b:
            stream = await b.connect()
            b.log.error = broken
            await stream.send_all(request_bytes(1, make_item("m1", LATER_MS)))
            assert await stream.receive_some() == b""


async def test_what_is_held_by_a_word_is_answered_when_the_word_is_taken_back() -> None:
    async with bench() as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("admitted", LATER_MS)))
        await trio.sleep(0.1)
        b.ingest.follow(HOLDING)
        assert not b.ingest.is_serving
        await stream.send_all(request_bytes(2, make_item("held", LATER_MS)))
        [first] = await receive_frames(stream, 1)
        assert (first.opaque, first.code) == (1, 0)
        await nothing_comes(stream, 2)
        assert b.log.ids == [b"admitted"]
        b.ingest.follow(SERVING)
        [second] = await receive_frames(stream, 1)
        assert (second.opaque, second.code) == (2, 0)
        assert b.log.ids == [b"admitted", b"held"]


async def test_what_is_dropped_is_not_acknowledged_whatever_became_durable() -> None:
    async with bench() as b:
        stream, other = await b.connect(), await b.connect()
        await stream.send_all(request_bytes(1, make_item("written", LATER_MS)))
        await trio.sleep(0.1)
        await stream.send_all(request_bytes(2, make_item("gathered", LATER_MS)))
        await other.send_all(request_bytes(3, make_item("gathered too", LATER_MS)))
        await trio.sleep(0.1)
        b.ingest.drop()
        b.ingest.follow(ELSEWHERE)
        # What was not appended is answered with the new address, what was perhaps never.
        [answer] = await receive_frames(stream, 1)
        assert (answer.opaque, answer.code, answer.body) == (2, 51, b"n2 at h:1")
        assert not await stream.receive_some()
        [answer] = await receive_frames(other, 1)
        assert (answer.opaque, answer.code, answer.body) == (3, 51, b"n2 at h:1")
        await trio.sleep(1)
        assert b.log.ids == [b"written"]
        assert b.ingest.counts.accepted == 0
        # The next mastership admits again.
        b.ingest.follow(SERVING)
        await other.send_all(request_bytes(4, make_item("again", LATER_MS)))
        [last] = await receive_frames(other, 1)
        assert (last.opaque, last.code) == (4, 0)
        assert b.log.ids == [b"written", b"again"]


async def test_what_nobody_says_the_end_of_is_not_answered() -> None:
    """A stop that has no more time, while replicas are waited for."""
    async with bench() as b:
        stream = await b.connect()
        await stream.send_all(request_bytes(1, make_item("written", LATER_MS)))
        await trio.sleep(0.1)
        b.ingest.commit_by(None)
        assert not await stream.receive_some()
        await trio.sleep(FSYNC_S)
        assert b.log.ids == [b"written"]
