"""Dead letters over HTTP: listed, shown, requeued and dropped; what makes no sense is refused."""

import pytest

from delay_server.admin.api import SEQUENCES_MAX
from delay_server.admin.http import application
from tests.delay_server.dead_rig import Caller, bury, fill_disk, refuse_all, send
from tests.delay_server.server_rig import World, until


async def test_a_list_shows_the_first_with_their_reasons_and_says_how_many_there_are() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m0", "m1", "m2")
        refuse_all(world)
        await send(world, "other", subject="t")
        await until(lambda: server.master.dead_letters.pending == 4)
        code, page = await operator.ask("GET", "/dead?limit=2")
        assert (code, page["pending"], page["matched"], len(page["items"])) == (200, 4, 4, 2)
        row = page["items"][0]
        assert (row["message_id"], row["code_name"], row["tries"]) == (
            "m0",
            "subject_not_assigned",
            3,
        )
        assert row["refusals"][0]["group"] == "g1"
        _, rest = await operator.ask("GET", f"/dead?limit=2&after={page['next']}")
        assert ([row["message_id"] for row in rest["items"]], rest["next"]) == (
            ["m2", "other"],
            None,
        )
        for query, count in (("subject=t", 1), ("group=g1", 4), ("subject=s&group=g2", 0)):
            _, page = await operator.ask("GET", f"/dead?{query}&limit=1")
            assert (page["matched"], len(page["items"])) == (count, min(count, 1))


async def test_one_is_shown_with_its_item_and_its_bytes_only_if_asked_for() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m")
        _, page = await operator.ask("GET", "/dead")
        sequence = page["items"][0]["sequence"]
        code, shown = await operator.ask("GET", f"/dead/{sequence}")
        assert (code, shown["attributes"], shown["tries"]) == (200, {"k": "v"}, 3)
        assert "payload" not in shown
        assert (await operator.ask("GET", f"/dead/{sequence}?payload=1"))[1]["payload"]
        await operator.ask("POST", "/dead/drop", {"sequences": [sequence]})
        for gone in (sequence, 2**63 - 1):
            code, answer = await operator.ask("GET", f"/dead/{gone}")
            assert (code, answer["code"]) == (404, "unknown")


async def test_a_change_is_for_those_of_a_subject_or_a_group_or_for_some_by_name() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, *(f"m{number}" for number in range(5)))
        rows = (await operator.ask("GET", "/dead"))[1]["items"]
        named = [rows[3]["sequence"], 10**6, rows[1]["sequence"]]
        for verb, body, done in (
            ("requeue", {"sequences": named}, 2),
            ("drop", {"sequences": named}, 0),
            ("drop", {"subject": "t"}, 0),
            ("requeue", {"group": "g1"}, 3),
        ):
            code, answer = await operator.ask("POST", f"/dead/{verb}", body)
            assert (code, answer["done"], answer["damaged"]) == (200, done, [])
            missing = named if verb == "drop" and "sequences" in body else [10**6]
            assert answer["missing"] == (sorted(missing) if "sequences" in body else [])
        await until(lambda: len(world.broker.deliveries) == 5)
        assert server.master.dead_letters.pending == 0


async def test_below_the_floor_of_free_disk_requeueing_is_refused_and_dropping_is_not() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, "m0", "m1")
        fill_disk(world)
        code, answer = await operator.ask("POST", "/dead/requeue", {"subject": "s"})
        assert (code, answer["code"]) == (507, "disk")
        assert server.master.dead_letters.pending == 2
        code, answer = await operator.ask("POST", "/dead/drop", {"subject": "s"})
        assert (code, answer["done"]) == (200, 2)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sequences": [1], "subject": "s"},
        {"subject": "s", "group": "g"},
        {"color": "red"},
        {"sequences": ["one"]},
        {"sequences": list(range(SEQUENCES_MAX + 1))},
        {"sequences": [2**63]},
        {"sequences": [10**400]},
        {"group": 1},
        [],
    ],
)
async def test_a_change_that_makes_no_sense_is_refused_with_a_sentence(body: object) -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        for verb in ("drop", "requeue"):
            code, answer = await operator.ask("POST", f"/dead/{verb}", body)
            assert code == 400
            assert len(answer["detail"]) > 10


@pytest.mark.parametrize(
    "asked",
    [
        *(f"/{number}" for number in (str(2**63), "9" * 5000, "x", "-1")),
        *("?limit=x", "?limit=0", "?colour=red"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(asked: str) -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("GET", f"/dead{asked}")
        assert code == 400
        assert len(answer["detail"]) > 10


async def test_a_damaged_place_counts_once_however_often_it_is_looked_at() -> None:
    world = World()
    async with world.serving() as server:
        operator = await bury(world, server, *(f"m{number}" for number in range(6)))
        await server.node.checkpoints.write()
        path = next(p for p in world.disk.contents(durable=True) if p.endswith(".dead"))
        data = world.disk.contents(durable=True)[path]
        world.disk.damage(path, data.index(b"m4"), b"M")
        for _ in range(3):
            code, page = await operator.ask("GET", "/dead")
            assert (code, len(page["items"])) == (200, 6)
        code, answer = await operator.ask("POST", "/dead/requeue", {"group": "g1"})
        assert (code, len(answer["damaged"]), answer["done"]) == (200, 1, 5)
        assert server.damages.count == len(server.damages.first) == 1
