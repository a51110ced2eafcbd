"""What an operator has paused holds dead letters too."""

import trio

from sender.settings.config import SenderConfig
from tests.delay_server.dead_rig import bury, explained, refuse_all, send
from tests.delay_server.server_rig import World, have_rules, make_config, until


async def test_a_paused_subject_holds_what_is_requeued_until_it_is_resumed() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m")
        await have_rules(server, "s")
        _, answer = await operator.ask("POST", "/dead/requeue", {"subject": "s"})
        assert answer["done"] == 1
        await trio.sleep(60)
        assert world.broker.ids == []
        open_ones = [row for row in await explained(operator, "id=m") if row["reason"] != "done"]
        assert [row["reason"] for row in open_ones] == ["paused"]
        await have_rules(server)
        await until(lambda: world.broker.ids == ["m"])


async def test_a_pause_takes_back_what_was_refused_and_it_is_refused_as_often_afterwards() -> None:
    world = World()
    config = make_config(sender=SenderConfig(refused_base_s=5, refused_max_s=5))
    async with world.serving(config) as server:
        refuse_all(world)
        await send(world, "m")
        before = 2
        await until(lambda: len(world.broker.requests) == before)
        await until(lambda: not server.master.sender.in_flight)
        await have_rules(server, "s")
        await trio.sleep(600)
        assert server.master.sender.unsent().total == 0, "it waits on disk"
        assert (len(world.broker.requests), server.master.dead_letters.pending) == (before, 0)
        await have_rules(server)
        await until(lambda: server.master.dead_letters.pending == 1)
        assert len(world.broker.requests) == before + 3
