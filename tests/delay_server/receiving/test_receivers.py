"""Receivers at a delay server in virtual time: what they get, and what becomes of it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import decode_item
from delay_protocol.nodes.auth import receiver_token
from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_protocol.receivers.attaching import (
    CREDIT_ITEMS_MAX,
    LEASE_S,
    UNSETTLED_TRIES,
    Attach,
    Attached,
    AttachRefused,
    Flow,
    encode_attach,
    encode_flow,
)
from delay_protocol.receivers.delivering import Settled, Verdict, encode_settle
from delay_protocol.wire.frames import encode_one_way, encode_request
from delay_server.admin.explain import explain_subject
from delay_server.server import DelayServer, serve
from delay_server.settings.config import (
    DelayServerConfig,
    MetaConfig,
    StorageConfig,
)
from delay_transport.connections.limits import ConnectionLimits
from sender.settings.config import SenderConfig
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, make_config, make_item, until
from tests.receiver_peer import ReceiverPeer, later_item

NAME = "reminders"
MINUTE_MS = 60_000


def receiving_config(**sections: object) -> DelayServerConfig:
    """Return settings of a server that delivers to receivers alone."""
    return make_config(brokers={NAME: "attached"}, **sections)


def serving(world: World, **sections: object) -> AbstractAsyncContextManager[DelayServer]:
    """Serve receivers alone."""
    return world.serving(receiving_config(**sections), has_broker=False)


@asynccontextmanager
async def peer_of(world: World) -> AsyncIterator[ReceiverPeer]:
    """Connect a receiver; it is gone at the end."""
    stream = await world.dial()
    peer = ReceiverPeer(stream, world.clock.now_ms)
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        yield peer
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)


@asynccontextmanager
async def attached_to(
    world: World, *, items: int = 100, unsettled_tries: int = UNSETTLED_TRIES
) -> AsyncIterator[ReceiverPeer]:
    """Connect a receiver and attach it; it takes so many messages at a time."""
    async with peer_of(world) as peer:
        await peer.begin(NAME, items, unsettled_tries=unsettled_tries)
        yield peer


@asynccontextmanager
async def attached(
    world: World, *, items: int = 100, **sections: object
) -> AsyncIterator[tuple[DelayServer, ReceiverPeer]]:
    """Serve receivers alone, with one that is attached; it takes so many messages at a time."""
    async with serving(world, **sections) as server, attached_to(world, items=items) as peer:
        yield server, peer


@asynccontextmanager
async def killed_at_the_end(world: World) -> AsyncIterator[DelayServer]:
    """Serve during the block, and end as by kill -9."""
    server = world.server(receiving_config())
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: serve(server, trio.Event(), task_status=task_status)
        )
        yield server
        nursery.cancel_scope.cancel()


async def send_some(world: World, count: int, *, after_ms: int = 500, name: str = "m") -> None:
    """Have the server keep messages m0, m1 and so on, which are due at once, so much later."""
    due_ms = world.now_ms + after_ms
    await world.keep(*(make_item(f"{name}{n}", due_ms) for n in range(count)))


async def deliver(world: World, peer: ReceiverPeer, count: int) -> None:
    """Have the server keep so many messages, and the receiver get them."""
    await send_some(world, count)
    await until(lambda: len(peer.delivered) == count)


def pending(server: DelayServer) -> int:
    """Return how many messages have no outcome, as far as it is filed."""
    return server.node.store.schedule.pending


async def test_messages_come_when_due_and_are_done_when_the_receiver_says_so() -> None:
    world = World()
    items = [make_item(f"m{n}", world.now_ms + 2000 + n, subject=f"s{n % 3}") for n in range(50)]
    async with serving(world) as server, peer_of(world) as peer:
        reply = await peer.begin(NAME)
        assert reply == Attached(
            group=reply.group,
            epoch=server.node.store.message_log.last_epoch,
            lease_s=LEASE_S,
            now_ms=world.now_ms,
        )
        await world.keep(*items)
        await until(lambda: len(peer.delivered) == len(items))
        assert sorted(one.item for _, one in peer.delivered) == sorted(items)
        assert {one.attempt for _, one in peer.delivered} == {1}
        for at_ms, one in peer.delivered:
            assert 0 <= at_ms - decode_item(one.item).due_ms <= 5
        assert server.master.sender.unsent().in_flight == 50
        assert await peer.done(peer.sequences) == 0
        assert await peer.done(peer.sequences) == 50, "each is unknown the second time"
        await until(lambda: pending(server) == 0)
    # A start finds nothing that is left.
    async with attached(world) as (server, peer):
        await trio.sleep(20)
        assert not peer.delivered


async def test_nothing_comes_early_or_beyond_the_credit() -> None:
    world = World()
    due_ms = world.now_ms + 5000
    async with attached(world, items=7) as (server, peer):
        await world.keep(*(make_item(f"m{n}", due_ms) for n in range(20)))
        await trio.sleep(4.9)
        assert not peer.delivered
        await until(lambda: len(peer.delivered) == 7)
        assert all(at_ms >= due_ms for at_ms, _ in peer.delivered)
        await trio.sleep(5)
        assert len(peer.delivered) == 7
        # In any order.
        assert await peer.done([peer.sequences[5], peer.sequences[0]]) == 0
        await until(lambda: len(peer.delivered) == 9)
        await peer.flow(0, reason="the database is away")
        assert await peer.done(peer.sequences) == 2
        await trio.sleep(5)
        assert len(peer.delivered) == 9
        status = server.master.sender.status()[0]
        assert status.why_none.endswith("takes more now: the database is away")
        await peer.flow(100)
        await until(lambda: len(peer.delivered) == 20)
        assert len(set(peer.ids)) == 20


async def test_a_clock_that_is_set_back_holds_messages_back() -> None:
    world = World()
    due_ms = world.now_ms + 1000
    async with attached(world, items=0) as (server, peer):
        await world.keep(make_item("m", due_ms))
        await until(lambda: server.master.sender.unsent().queued)
        world.clock.step(-20_000)
        await peer.flow(10)
        await until(lambda: peer.delivered)
        assert peer.delivered[0][0] >= due_ms
        assert await peer.done(peer.sequences) == 0


async def test_bytes_are_a_credit_as_well() -> None:
    """4 MiB are taken at the least; four items of 1.5 MiB are more."""
    world = World()
    text = {f"k{n}": "x" * 30_000 for n in range(50)}
    items = [make_item(f"m{n}", world.now_ms + 1000, attributes=text) for n in range(4)]
    async with attached(world) as (_, peer):
        for item in items:
            await world.keep(item)
        await until(lambda: len(peer.delivered) == 2)
        await trio.sleep(3)
        assert len(peer.delivered) == 2
        await peer.done(peer.sequences)
        await until(lambda: len(peer.delivered) == 4)


async def test_a_verdict_counts_only_on_the_connection_that_has_the_message() -> None:
    world = World()
    async with attached(world) as (server, owner), peer_of(world) as other:
        await deliver(world, owner, 1)
        await other.begin(NAME)
        assert await other.done(owner.sequences) == 1
        await trio.sleep(5)
        assert pending(server) == 1
        assert server.master.sender.unsent().in_flight == 1
        assert await owner.done(owner.sequences) == 0


async def test_a_lease_that_ends_gives_everything_to_others() -> None:
    world = World()
    async with attached(world) as (_, silent), peer_of(world) as other:
        await deliver(world, silent, 3)
        await other.begin(NAME)
        for _ in range(2):
            await trio.sleep(LEASE_S / 3)
            await other.flow(100)
        await trio.sleep(LEASE_S / 3 - 2)
        assert not other.delivered
        assert not silent.is_closed
        await other.flow(100)
        await until(lambda: len(other.delivered) == 3, seconds=5)
        assert silent.is_closed


async def test_release_gives_back_and_counts_as_no_attempt() -> None:
    world = World()
    async with attached(world) as (server, first), peer_of(world) as second:
        await deliver(world, first, 5)
        await second.begin(NAME)
        before = server.node.store.message_log.next_sequence
        await first.flow(0, reason="it stops")
        assert await first.settle(Settled(one, Verdict.RELEASE) for one in first.sequences) == 0
        await until(lambda: len(second.delivered) == 5, seconds=0.1)
        assert {one.attempt for _, one in second.delivered} == {1}
        assert server.node.store.message_log.next_sequence == before, "nothing is written"


async def test_attempt_counts_what_was_lost_and_not_what_was_released_until_a_later() -> None:
    world = World()

    async def attempt(verdict: Verdict | None) -> tuple[int, int]:
        """Return qmq_times and attempt of the message, whose receiver leaves with a verdict."""
        async with attached_to(world) as peer:
            await until(lambda: peer.delivered)
            ((_, one),) = peer.delivered
            if verdict is not None:
                # It takes no more, or what it releases would come again at once.
                await peer.flow(0, reason="it stops")
                rest = later_item(one.item, world.now_ms) if verdict is Verdict.LATER else b""
                assert await peer.settle([Settled(one.sequence, verdict, rest)]) == 0
        return int(decode_item(one.item).attributes.get("qmq_times", "0")), one.attempt

    async with serving(world):
        await send_some(world, 1)
        found = [
            await attempt(verdict)
            for verdict in (None, Verdict.RELEASE, None, None, Verdict.LATER, None, None)
        ]
    assert found == [(0, 1), (0, 2), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]


async def test_an_attempt_begins_anew_when_the_subject_was_paused_meanwhile() -> None:
    """What is paused goes back to disk, where nothing is known of its tries."""
    world = World()
    paused = Controls(version=1, subjects={"*": SubjectControl(paused=True)})
    async with serving(world) as server:
        async with attached_to(world) as first:
            await deliver(world, first, 1)
        await server.node.have_controls(paused)
        await trio.sleep(5)
        await server.node.have_controls(Controls(version=2))
        async with attached_to(world) as second:
            await until(lambda: second.delivered)
            assert [one.attempt for _, one in second.delivered] == [1]


async def test_later_comes_again_at_its_time_also_after_a_crash() -> None:
    world = World()
    async with killed_at_the_end(world) as server, attached_to(world) as peer:
        await deliver(world, peer, 4)
        again_ms = world.now_ms + 90_000
        settled = [
            Settled(one.sequence, Verdict.LATER, later_item(one.item, again_ms))
            for _, one in peer.delivered[:3]
        ]
        assert await peer.settle([*settled, Settled(10**9, Verdict.LATER, b"x")]) == 1
        assert await peer.done(peer.sequences) == 3
        await until(lambda: pending(server) == 3)
        assert server.master.moves.unfiled.count == 0
        for _ in range(6):
            await trio.sleep(10)
            await peer.flow(100)
        assert len(peer.delivered) == 4
    async with attached(world) as (server, peer):
        await trio.sleep(20)
        await peer.flow(100)
        assert not peer.delivered
        await until(lambda: len(peer.delivered) == 3)
        assert all(again_ms <= at_ms for at_ms, _ in peer.delivered)
        assert sorted(one.item for _, one in peer.delivered) == sorted(one.rest for one in settled)
        await trio.sleep(10)
        assert await peer.done(peer.sequences) == 0
        await until(lambda: pending(server) == 0)


async def test_a_later_is_answered_once_it_is_durable() -> None:
    world = World()
    async with attached(world) as (_, peer):
        await deliver(world, peer, 1)
        item = later_item(peer.delivered[0][1].item, world.now_ms + 90_000)
        asked_s = trio.current_time()
        assert await peer.settle([Settled(peer.sequences[0], Verdict.LATER, item)]) == 0
        assert trio.current_time() >= asked_s + 0.001, "each call of the disk takes a millisecond"
        durable = world.disk.contents(durable=True)
        assert any(item in data for path, data in durable.items() if "message_log" in path)


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.LATER, Verdict.REFUSED])
async def test_a_verdict_that_is_not_committed_is_never_answered(verdict: Verdict) -> None:
    world = World()
    async with attached(world) as (server, peer):
        await deliver(world, peer, 1)
        ((_, one),) = peer.delivered
        server.node.commit_point.is_sole = False
        rest = later_item(one.item, world.now_ms + 90_000) if verdict is Verdict.LATER else b""
        async with trio.open_nursery() as nursery:

            async def settle() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await peer.settle([Settled(one.sequence, verdict, rest)])

            nursery.start_soon(settle)
            await trio.sleep(5)
            # Other verdicts than these need no record.
            assert await peer.settle([Settled(10**9, Verdict.RELEASE)]) == 1
            server.receivers.drop()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"message_id": "other"}, "another id"),
        ({"subject": "other"}, "another subject"),
        ({"create_ms": -1}, "a time is negative"),
        ({"flag": 64}, "malformed"),
    ],
)
async def test_a_later_that_is_not_its_message_is_refused_whole(
    changes: dict[str, object], reason: str
) -> None:
    world = World()
    async with attached(world) as (server, peer):
        await world.keep(make_item("a", world.now_ms), make_item("b", world.now_ms))
        await until(lambda: len(peer.delivered) == 2)
        first, second = (one for _, one in peer.delivered)
        wrong = later_item(first.item, world.now_ms + 1000, **changes)
        body = encode_settle(
            [
                Settled(second.sequence, Verdict.DONE),
                Settled(first.sequence, Verdict.LATER, wrong),
            ]
        )
        answer = await peer.ask(CommandCode.SETTLE, body)
        assert answer.code == ResponseCode.PARAM_ERROR
        assert reason in answer.body.decode()
        assert server.master.sender.unsent().in_flight == 2
        assert await peer.done(peer.sequences) == 0


async def test_refused_is_a_dead_letter_with_its_reason() -> None:
    world = World()
    async with attached(world) as (server, peer):
        await deliver(world, peer, 3)
        refused = [
            Settled(one, Verdict.REFUSED, f"no order {n}".encode())
            for n, one in enumerate(peer.sequences)
        ]
        assert await peer.settle(refused) == 0
        await until(lambda: server.master.dead_letters.pending == 3)
        await until(lambda: pending(server) == 0)
        await server.master.dead_letters.until_read()
        letters = server.master.dead_letters
        texts = await letters.read(letters.listed(), lambda _, item: item.reason)
        assert sorted("no order" in (text or "") for text in texts) == [True] * 3


async def test_a_stop_waits_for_what_is_unsettled_and_what_is_put_off_comes_at_its_time() -> None:
    world = World()
    async with serving(world) as server:
        async with attached_to(world, items=5) as peer:
            await send_some(world, 8)
            await until(lambda: len(peer.delivered) == 5)
            due_ms = world.now_ms + 30_000
            rest = later_item(peer.delivered[0][1].item, due_ms)
            server.begin_stop(10)
            await trio.sleep(2)
            later, *done = peer.sequences
            assert await peer.settle([Settled(later, Verdict.LATER, rest)]) == 0
            assert await peer.done(done) == 0
            assert len(peer.delivered) == 5
        came = peer.ids
    async with attached(world) as (_, peer):
        await until(lambda: len(peer.delivered) == 4)
        await trio.sleep(10)
        assert sorted(came + peer.ids[:3]) == [f"m{n}" for n in range(8)]
        ((at_ms, one),) = peer.delivered[3:]
        assert (one.item, at_ms >= due_ms) == (rest, True)


async def test_who_may_not_attach_hears_why() -> None:
    world = World()
    async with world.serving(), peer_of(world) as peer:
        refused = await peer.attach("g1")
        assert isinstance(refused, AttachRefused)
        assert "is a group of brokers" in refused.reason
        answer = await peer.ask(CommandCode.SETTLE, encode_settle([]))
        assert answer.code == ResponseCode.PARAM_ERROR
        assert b"not attached" in answer.body
        answer = await peer.ask(CommandCode.ATTACH, b"\xc1")
        assert answer.code == ResponseCode.PARAM_ERROR


async def test_where_there_is_a_secret_an_attach_needs_the_token_of_its_name() -> None:
    world = World()
    config = receiving_config(meta=MetaConfig(secret_file="not read"))  # noqa: S106 (a path)
    async with world.serving(config, has_broker=False) as server, peer_of(world) as peer:
        secrets = (b"s" * 32, b"t" * 32)
        # As long as the file was not read nobody knows whether a token is right.
        refused = await peer.attach(NAME, token=receiver_token(secrets[1], NAME))
        assert isinstance(refused, AttachRefused)
        assert not refused.is_final
        # Until the file was looked for.
        await trio.sleep(0.1)
        server._secret.entries = secrets
        for token in ("", "x", receiver_token(secrets[0], "other"), receiver_token(b"u", NAME)):
            refused = await peer.attach(NAME, token=token)
            assert isinstance(refused, AttachRefused)
            assert refused.is_final
            assert "the token is not that of receivers of 'reminders'" in refused.reason
        assert isinstance(await peer.attach(NAME, token=receiver_token(secrets[1], NAME)), Attached)


async def test_while_a_secret_is_exchanged_both_tokens_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    old, new = b"s" * 32, b"t" * 32
    config = receiving_config(meta=MetaConfig(secret_file=str(file)))
    world = World()
    taken = []
    async with world.serving(config, has_broker=False):
        for secrets in ((old,), (old, new), (new, old), (new,)):
            file.write_bytes(b"\n".join(secrets))
            file.chmod(0o600)
            await trio.sleep(3)
            for secret in (old, new):
                async with peer_of(world) as peer:
                    reply = await peer.attach(NAME, token=receiver_token(secret, NAME))
                    taken.append(isinstance(reply, Attached))
    assert taken == [True, False, True, True, True, True, False, True]


async def test_the_file_of_the_secret_is_read_before_anybody_can_attach(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"s" * 32)
    file.chmod(0o600)
    world = World()
    config = receiving_config(meta=MetaConfig(secret_file=str(file)))
    async with world.serving(config, has_broker=False), peer_of(world) as peer:
        assert isinstance(await peer.attach(NAME, token=receiver_token(b"s" * 32, NAME)), Attached)


async def test_instances_share_by_weight() -> None:
    world = World()
    async with serving(world), peer_of(world) as light, peer_of(world) as heavy:
        for peer, weight in ((light, 100), (heavy, 300)):
            await peer.attach(NAME, weight=weight)
            await peer.flow(1000)
        for part in range(10):
            await send_some(world, 100, name=f"m{part}-")
        await until(lambda: len(light.delivered) + len(heavy.delivered) == 1000)
        assert 2 < len(heavy.delivered) / len(light.delivered) < 4


async def test_a_later_that_finds_no_disk_space_comes_again() -> None:
    world = World()
    storage = StorageConfig(disk_free_bytes_min=0)
    async with attached(world, storage=storage) as (server, peer):
        await deliver(world, peer, 1)
        item = later_item(peer.delivered[0][1].item, world.now_ms + 50)
        world.disk.capacity_bytes = world.disk.medium.used
        assert await peer.settle([Settled(peer.sequences[0], Verdict.LATER, item)]) == 0
        await until(lambda: len(peer.delivered) == 2)
        assert peer.delivered[0][1].item == peer.delivered[1][1].item
        world.disk.capacity_bytes = 1 << 40
        await trio.sleep(10)
        assert server.master.moves.unfiled.count == 0
        assert await peer.done(peer.sequences[1:]) == 0


async def test_explain_says_that_nobody_is_attached_and_since_when() -> None:
    world = World()
    async with serving(world) as server:
        await world.keep(make_item("m", world.now_ms + 100, subject="orders"))
        await trio.sleep(5)
        about = await explain_subject(server.administered().parts(), "orders")
        assert about["reason"] == "group_down"
        assert about["receivers"] == [status_of_group(server)]
        assert "nobody is attached to reminders since 20" in status_of_group(server)
        async with attached_to(world) as peer:
            await until(lambda: peer.delivered)
            assert status_of_group(server) == ""


def status_of_group(server: DelayServer) -> str:
    """Return why the group of receivers gets nothing."""
    return server.master.sender.status()[0].why_none


async def test_a_credit_beyond_all_bounds_is_taken_as_what_may_be() -> None:
    world = World()
    async with serving(world) as server, peer_of(world) as peer:
        await peer.attach(NAME)
        await peer.flow(2**62, size=2**62)
        await deliver(world, peer, 50)
        (status,) = server.master.sender.status()
        assert status.queue_items == CREDIT_ITEMS_MAX - 50


@pytest.mark.parametrize(
    ("says_flow", "gone_s", "reason"),
    [
        (True, ConnectionLimits().send_seconds_max, "answers not taken"),
        (False, LEASE_S, f"no FLOW for {LEASE_S} s: what it has not settled goes to others"),
    ],
    ids=["the network is full", "its lease ends"],
)
async def test_a_receiver_that_reads_a_byte_a_second_is_let_go_and_delays_only_what_it_had(
    says_flow: bool, gone_s: float, reason: str
) -> None:
    """It says that it takes all there is, and waits for no answer: to read one takes it a minute.

    What it gets of small messages is in the buffers of the network, and its lease ends.
    """
    world = World()
    sent, text = 300, {"k": "x" * (30_000 if says_flow else 10)}
    brokers = {NAME: "attached", "other": "attached"}
    hello = Attach(name=NAME, instance=b"s" * 16, weight=100, token="")
    greed = encode_flow(Flow(items=2**62, bytes=2**62, reason=""))

    async with (
        world.serving(make_config(brokers=brokers), has_broker=False) as server,
        attached_to(world) as twin,
        peer_of(world) as other,
        trio.open_nursery() as nursery,
    ):
        await other.begin("other")
        await settle_all(nursery, twin, other)
        slow = await world.dial()
        await slow.send_all(
            encode_request(code=CommandCode.ATTACH, opaque=1, body=encode_attach(hello))
            + encode_one_way(CommandCode.FLOW, greed)
        )
        nursery.start_soon(read_a_byte_a_second, slow)
        if says_flow:
            nursery.start_soon(say_flow, slow, greed)
        await until(
            lambda: (
                {one.name: one.address for one in server.master.sender.status()}
                == {NAME: "2 attached", "other": "1 attached"}
            )
        )
        due_ms = world.now_ms + 1000
        await world.keep(*(make_item(f"m{n}", due_ms, attributes=text) for n in range(sent)))
        await trio.sleep(5)
        group = {one.name: one for one in server.master.sender.status()}[NAME]
        its = group.in_flight
        assert 0 < its < sent // 2
        assert group.in_flight_bytes <= (1 << 20) + SenderConfig().batch_bytes
        assert len(twin.delivered) + len(other.delivered) == sent - its, "all the rest came"
        await until(lambda: pending(server) == 0, seconds=gone_s + 5)
        status = {one.name: one for one in server.master.sender.status()}[NAME]
        assert status.address == "1 attached"
        assert status.last_end == reason
        came = twin.delivered + other.delivered
        assert sorted(name for peer in (twin, other) for name in peer.ids) == sorted(
            f"m{number}" for number in range(sent)
        )
        late = [one.attempt for at_ms, one in came if at_ms > due_ms + 100]
        assert late == [2] * its
        nursery.cancel_scope.cancel()


async def settle_all(nursery: trio.Nursery, *peers: ReceiverPeer) -> None:
    """Have receivers be done with all that comes, and say each ten seconds that they are there."""

    async def settle(peer: ReceiverPeer) -> None:
        done = 0
        while True:
            if sequences := peer.sequences[done:]:
                assert await peer.done(sequences) == 0
                done += len(sequences)
            await trio.sleep(0.01)

    async def flow(peer: ReceiverPeer) -> None:
        while True:
            await trio.sleep(10)
            await peer.flow(100)

    for peer in peers:
        nursery.start_soon(settle, peer)
        nursery.start_soon(flow, peer)


async def read_a_byte_a_second(stream: trio.abc.Stream) -> None:
    """Read so slowly until the server closes."""
    with suppress(trio.BrokenResourceError):
        while True:
            await trio.sleep(1)
            if not await stream.receive_some(1):
                return


async def say_flow(stream: trio.abc.Stream, body: bytes) -> None:
    """Say the same each ten seconds until the server closes."""
    with suppress(trio.BrokenResourceError):
        while True:
            await trio.sleep(10)
            await stream.send_all(encode_one_way(CommandCode.FLOW, body))


async def test_who_finds_too_many_of_its_name_is_taken_when_one_has_left() -> None:
    world = World()
    async with (
        attached(world, sender=SenderConfig(receivers_max=2)) as (server, first),
        peer_of(world) as third,
    ):
        async with attached_to(world):
            refused = await third.attach(NAME)
            assert isinstance(refused, AttachRefused)
            assert not refused.is_final
            assert refused.reason == (
                "2 receivers of reminders are attached here (sender.receivers_max)"
            )
        assert not first.is_closed
        await until(lambda: server.master.sender.status()[0].address == "1 attached")
        await third.begin(NAME)


async def test_a_settle_that_names_a_sequence_twice_does_nothing() -> None:
    world = World()
    async with attached(world) as (_, peer):
        await deliver(world, peer, 1)
        twice = [Settled(peer.sequences[0], verdict) for verdict in (Verdict.DONE, Verdict.RELEASE)]
        answer = await peer.ask(CommandCode.SETTLE, encode_settle(twice))
        assert answer.code == ResponseCode.PARAM_ERROR
        assert b"a SETTLE names a sequence twice" in answer.body
        assert await peer.done(peer.sequences) == 0


async def test_who_settles_nothing_holds_up_nobody_else() -> None:
    """Receivers take an eighth of what the sender may hold; the others go on with the rest."""
    world = World()
    brokers = {NAME: "attached", **make_config().brokers}
    config = make_config(brokers=brokers, sender=SenderConfig(entries_max=40))
    async with world.serving(config) as server, attached_to(world, items=1000) as peer:
        await send_some(world, 200)
        await until(lambda: peer.delivered)
        await until(lambda: pending(server) == len(peer.delivered), seconds=20)
        assert len(peer.delivered) == 5
        status = {one.name: one for one in server.master.sender.status()}
        assert status[NAME].why_none.endswith(f"have not settled {len(peer.delivered)} messages")
        assert await peer.done(peer.sequences) == 0


async def test_all_of_a_large_credit_is_used_without_another_word() -> None:
    """More waits than the queue of a group has: it is filled again as it is handed out."""
    world = World()
    sender = SenderConfig(queue_items_max=64, turn_items=16, batch_items=16)
    async with attached(world, items=1000, sender=sender) as (_, peer):
        await send_some(world, 500, after_ms=100)
        await until(lambda: len(peer.delivered) == 500, seconds=1)


async def test_names_that_nothing_leads_to_leave_their_places_to_those_that_messages_go_to() -> (
    None
):
    world = RouteWorld(1)
    config = routed_config(sender=SenderConfig(groups_max=3))
    async with world.routing(config) as (server, _), AsyncExitStack() as stack:
        squatters = [await stack.enter_async_context(peer_of(world)) for _ in range(4)]
        replies = [await peer.attach(f"squat{n}") for n, peer in enumerate(squatters)]
        assert [isinstance(reply, Attached) for reply in replies] == [True, True, True, False]
        assert isinstance(replies[3], AttachRefused)
        assert "there are 3 groups here, and no message for 'squat3'" in replies[3].reason
        await world.keep(make_item("m", world.now_ms + 100))
        await until(lambda: world.brokers[0].ids == ["m"])
        assert all(peer.is_closed for peer in squatters[:3])
        assert [group.name for group in server.master.sender.status()] == ["g0"]
        # An empty one leaves its place to the next.
        for number in range(5):
            async with peer_of(world) as peer:
                assert isinstance(await peer.attach(f"more{number}"), Attached)
        refused = await squatters[3].attach("a\nb")
        assert isinstance(refused, AttachRefused)
        assert refused.is_final


async def test_a_configured_group_stays_though_others_attach_and_a_name_beside_it_is_refused() -> (
    None
):
    world = World()
    async with serving(world), peer_of(world) as peer:
        refused = await peer.attach("remainders")
        assert isinstance(refused, AttachRefused)
        assert refused.reason == "this server delivers to reminders alone"
        await peer.begin(NAME)
        await deliver(world, peer, 1)
