"""A node that was drained stays at rest over crashes, until it is undone or stopped in order."""

import pytest
import trio

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_server.admin.http import application
from delay_server.server import DelayServer
from storage.state.controls_file import DRAINED_PATH
from tests.delay_server.admin.test_admin_http import Caller
from tests.delay_server.meta_stub import FakeMeta, RealMeta, meta_config
from tests.delay_server.server_rig import World, make_item, until
from tests.simulation.faults import PowerCut


def operator_of(server: DelayServer) -> Caller:
    """Return an operator at a node."""
    return Caller(application(server))


async def drained_and_cut(world: World, *, undone: bool = False) -> None:
    """Have a node with a message drained, and cut its power as soon as that is answered."""
    with trio.CancelScope() as life:
        async with world.serving() as server:
            producer = await world.connect()
            assert await producer.send(make_item("m1", world.now_ms + 5000)) == {}
            operator = operator_of(server)
            assert (await operator.ask("POST", "/drain", {"seconds": 0}))[0] == 200
            if undone:
                assert (await operator.ask("DELETE", "/drain"))[0] == 200
            world.network.cut("server", PowerCut("at the answer"))
            world.disk.power_cut()
            life.cancel()


async def test_a_node_that_was_drained_is_at_rest_after_a_power_cut_until_that_is_undone() -> None:
    world = World()
    await drained_and_cut(world)
    async with world.serving() as server:
        operator = operator_of(server)
        assert (await operator.ask("GET", "/readyz"))[1]["failing"] == [
            "the node is being drained: `delaywheel drain --undo` ends that"
        ]
        _, report = await operator.ask("GET", "/drain")
        assert (report["phase"], report["done"]) == ("resting", True)
        producer = await world.connect()
        opaque = await producer.post(make_item("m2", world.now_ms + 100))
        await until(lambda: server.ingest.held_requests == 1)
        # A producer tries again, until somebody undoes it.
        assert (await producer.answer(opaque)).code == ResponseCode.BROKER_ERROR
        await trio.sleep(8)
        assert world.broker.ids == []
        _, status = await operator.ask("GET", "/status")
        assert (status["controls"]["planned_stop"], status["undelivered"]["stopping"]) == (
            "resting",
            1,
        )
        assert not server.ready.is_set()
        assert (await operator.ask("DELETE", "/drain"))[1]["phase"] == "running"
        assert await producer.send(make_item("m2", world.now_ms + 100)) == {}
        assert (await operator.ask("GET", "/readyz"))[0] == 200
        assert server.ready.is_set()
        await until(lambda: world.broker.taken == {"m1", "m2"})
    async with world.serving() as server:
        assert server.ready.is_set()


async def test_an_undone_drain_stays_undone_after_a_power_cut() -> None:
    world = World()
    await drained_and_cut(world, undone=True)
    async with world.serving() as server:
        assert server.ready.is_set()
        await until(lambda: world.broker.ids == ["m1"])


async def test_the_stop_that_a_drain_was_for_ends_it_and_the_audit_says_so() -> None:
    world = World()
    await drained_and_cut(world)
    async with world.serving() as server:
        assert server.is_resting
    assert DRAINED_PATH not in world.disk.contents(durable=True)
    async with world.serving() as server:
        await until(lambda: world.broker.ids == ["m1"])
        _, audit = await operator_of(server).ask("GET", "/controls/audit")
        assert [(row["action"], row["who"]) for row in audit["items"]] == [
            ("end drain", "stop"),
            ("drain", "loopback"),
        ]


async def test_a_disk_without_any_space_does_not_keep_a_stop_from_ending_a_drain() -> None:
    world = World()
    async with world.serving() as server:
        await operator_of(server).ask("POST", "/drain", {"seconds": 0})
        capacity_bytes = world.disk.capacity_bytes
        world.disk.capacity_bytes = world.disk.used_bytes
    world.disk.capacity_bytes = capacity_bytes
    async with world.serving() as server:
        assert not server.is_resting


async def test_with_a_meta_server_clients_go_elsewhere_after_the_crash_too() -> None:
    world = World()
    async with RealMeta(world).running():
        with trio.CancelScope() as life:
            async with world.serving(meta_config()) as server:
                await operator_of(server).ask("POST", "/drain", {"seconds": 5})
                world.network.cut("server", PowerCut("at the answer"))
                world.disk.power_cut()
                life.cancel()
        async with world.serving(meta_config()) as server:
            producer = await world.connect()
            refused = await producer.send(make_item("m1", world.now_ms))
            assert [code for code, _ in refused.values()] == [ItemCode.BROKER_READ_ONLY]
            operator = operator_of(server)
            assert "drained" in (await operator.ask("GET", "/readyz"))[1]["failing"][0]
            await operator.ask("DELETE", "/drain")
            assert await producer.send(make_item("m1", world.now_ms)) == {}
            await until(lambda: world.broker.ids == ["m1"])


async def test_a_node_that_ends_since_another_is_master_stays_drained() -> None:
    """Nobody has stopped it: whoever starts it again did not mean to have it take messages."""
    world = World()
    meta = FakeMeta(world)
    async with meta.running():
        with pytest.RaisesGroup(Exception, flatten_subgroups=True, allow_unwrapped=True):
            async with world.serving(meta_config()) as server:
                await operator_of(server).ask("POST", "/drain", {"seconds": 0})
                meta.changed(epoch=server.store.message_log.last_epoch + 1)
                await trio.sleep(60)
        assert server.ended_by is not None
        assert DRAINED_PATH in world.disk.contents(durable=True)


async def test_a_node_at_rest_that_is_drained_once_more_sends_nothing_meanwhile() -> None:
    world = World()
    await drained_and_cut(world)
    async with world.serving() as server:
        operator = operator_of(server)
        # Its client does not go, so all of the time is waited for.
        await world.connect()
        await trio.sleep(8)
        for seconds in (0, 5):
            _, report = await operator.ask("POST", "/drain", {"seconds": seconds})
            assert (report["phase"], report["held"]) == ("resting", 1)
        assert world.broker.ids == []


@pytest.mark.parametrize("found_at_rest", [True, False])
async def test_what_is_asked_while_a_start_is_under_way_holds_when_it_is_over(
    found_at_rest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    await drained_and_cut(world, undone=not found_at_rest)
    asked: list[str] = []
    tell_untold = DelayServer.tell_untold

    async def ask(server: DelayServer) -> None:
        operator = operator_of(server)
        if found_at_rest:
            _, report = await operator.ask("DELETE", "/drain")
        else:
            _, report = await operator.ask("POST", "/drain", {"seconds": 0})
        asked.append(report["phase"])
        await tell_untold(server)

    monkeypatch.setattr(DelayServer, "tell_untold", ask)
    async with world.serving() as server:
        await trio.sleep(60)
        assert asked == ["running" if found_at_rest else "resting"]
        assert world.broker.ids == (["m1"] if found_at_rest else [])
        assert server.ready.is_set() is found_at_rest


async def test_a_drain_that_nobody_waits_for_any_more_comes_to_its_end() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        assert await producer.send(make_item("m1", world.now_ms + 5000)) == {}
        with trio.move_on_after(1):
            await operator_of(server).ask("POST", "/drain", {"seconds": 30})
        await trio.sleep(8)
        assert (server.planned_stop.report()["phase"], world.broker.ids) == ("resting", [])
