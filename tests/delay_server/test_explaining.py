"""Why a message was not delivered, where it is a dead letter or becomes one."""

import trio

from delay_server.http import application
from tests.delay_server.dead_rig import bury, explained, fill_disk, refuse_all, send
from tests.delay_server.server_rig import World, until
from tests.delay_server.test_admin_http import Caller


async def test_a_dead_letter_is_explained_by_its_id_and_by_both_its_numbers() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m")
        (row,) = await explained(operator, "id=m")
        assert (row["reason"], row["subject"], row["dead_letter"]) == ("dead", "s", True)
        code, letter = await operator.ask("GET", f"/dead/{row['sequence']}")
        assert (code, letter["message_id"]) == (200, "m")
        assert letter["of_sequence"] == row["of_sequence"] != row["sequence"]
        for number in (row["sequence"], row["of_sequence"]):
            assert await explained(operator, f"sequence={number}") == [row]
        _, status = await operator.ask("GET", "/status")
        assert status["undelivered"]["dead"] == 1
        await operator.ask("POST", "/dead/requeue", {"sequences": [row["sequence"]]})
        await until(lambda: world.broker.ids == ["m"])
        await trio.sleep(5)
        for query in ("id=m", f"sequence={row['of_sequence']}"):
            assert {one["reason"] for one in await explained(operator, query)} == {"done"}
        assert server.dead_letters.pending == 0


async def test_what_is_given_up_and_finds_no_space_says_so_and_keeps_a_drain_from_its_end() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server))
        refuse_all(world)
        world.broker.answer_after_s = 0.5
        await send(world, "m")
        await until(lambda: len(world.broker.requests) == 1)
        capacity_bytes = world.disk.capacity_bytes
        fill_disk(world)
        await until(lambda: server.burying.count == 1)
        (row,) = await explained(operator, "id=m")
        assert (row["reason"], row["dead_letter"]) == ("dead_being_recorded", False)
        _, status = await operator.ask("GET", "/status")
        found = status["undelivered"]
        assert (found["dead_being_recorded"], sum(found.values()), status["late"]) == (1, 1, 1)
        _, answer = await operator.ask("POST", "/drain", {"seconds": 2})
        assert (answer["phase"], answer["done"], answer["dead_being_recorded"]) == (
            "resting",
            False,
            1,
        )
        assert answer["waits_for"][-1] == "1 dead letters to be recorded: there is no free disk"
        world.disk.capacity_bytes = capacity_bytes
        _, answer = await operator.ask("POST", "/drain", {"seconds": 5})
        assert (answer["done"], answer["dead_being_recorded"]) == (True, 0)
        assert server.dead_letters.pending == 1
        assert (await explained(operator, "id=m"))[0]["reason"] == "dead"
