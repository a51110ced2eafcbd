"""The status says what the server has done and what it lacks, in plain values."""

import dataclasses

import msgspec
import trio

from delay_server.admin.status import failing_checks, status_of
from tests.delay_server.server_rig import World, make_config, make_item, until


async def test_a_server_that_has_not_opened_its_data_yet_says_so() -> None:
    world = World()
    server = world.server(make_config())
    assert failing_checks(server.observe()) == ["recovery has not finished"]
    status = status_of(server.observe())
    assert status["ready"] is False
    assert status["failing"] == ["recovery has not finished"]
    assert status["listen"] is None
    assert "pending" not in status
    msgspec.json.encode(status)


async def test_a_status_has_what_is_no_number_beside_the_numbers() -> None:
    world = World()
    node = dataclasses.replace(make_config().node, cluster="c1", group="dg1", node_id="n1")
    async with world.serving(make_config(node=node)) as server:
        producer = await world.connect()
        now_ms = world.now_ms
        await producer.send(
            *(make_item(f"m{n}", now_ms + 500, subject="s1") for n in range(5)),
            make_item("near", now_ms + 50_000, subject="s2"),
            make_item("far", now_ms + 86_400_000),
            make_item("never", now_ms + 10 * 365 * 86_400_000),
        )
        await until(lambda: len(world.broker.deliveries) == 5)
        await trio.sleep(5)
        status = status_of(server.observe())
        assert status["ready"] is True
        assert status["failing"] == []
        assert status["listen"] == "127.0.0.1:20801"
        assert (status["cluster"], status["group"], status["node_id"]) == ("c1", "dg1", "n1")
        assert status["incarnation"] == 1
        assert status["epoch"] == 1
        assert status["last_sequence"] == 8 + 5, "messages, and facts"
        assert status["checkpoint_sequence"] == 13
        assert status["next_due_ms"] == now_ms + 50_000
        lateness = status["lateness_ms"]
        assert 0 <= lateness["p50"] <= lateness["p99"] <= 10
        assert 0 <= lateness["max"] <= 10
        assert status["brokers"]["g1"]["state"] == "up"
        assert status["uptime_ms"] == world.now_ms - server.started_ms
        assert status["damages"] == []
        assert msgspec.json.decode(msgspec.json.encode(status)) == status


async def test_what_a_broker_does_not_take_is_late_and_its_group_says_why() -> None:
    world = World()
    async with world.serving(has_broker=False) as server:
        await world.keep(make_item("m1", world.now_ms + 1000))
        await trio.sleep(10)
        status = status_of(server.observe())
        assert status["late"] == 1
        assert status["pending"] == 1
        assert "dispatched" not in status
        assert status["lateness_ms"] == {"p50": None, "p99": None, "max": None}
        assert "refused" in str(status["brokers"]["g1"]["last_end"])
        assert status["ready"] is True


async def test_each_start_is_a_new_incarnation_of_the_same_node() -> None:
    world = World()
    seen = []
    for _ in range(3):
        async with world.serving() as server:
            status = status_of(server.observe())
            seen.append((status["log_uuid"], status["node_id"], status["incarnation"]))
    assert len({(uuid, node) for uuid, node, _ in seen}) == 1
    assert [incarnation for _, _, incarnation in seen] == [1, 2, 3]


async def test_what_keeps_messages_out_or_in_is_named() -> None:
    world = World()
    world.clock.is_synchronised = False
    async with world.serving() as s:
        assert failing_checks(s.observe()) == []
        s.node.upkeep.disk_is_full = True
        assert failing_checks(s.observe()) == [
            "free disk is below its floor: messages are refused, delivery goes on"
        ]
        s.node.upkeep.disk_is_full = False
        world.clock.step(3_600_000)
        assert not s.pacer.runs()
        [reason] = failing_checks(s.observe())
        assert (
            "the clock is not trusted, delivery is held: the wall clock gained 3600.0 s" in reason
        )
        assert status_of(s.observe())["clock_held"] is True
        s.pacer.accept()
        assert failing_checks(s.observe()) == []
        s.stopping = True
        assert failing_checks(s.observe()) == ["the server is stopping"]
