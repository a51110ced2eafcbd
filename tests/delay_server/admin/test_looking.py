"""What is pending is listed by pages and counted, as a gateway or an operator asks for it."""

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from delay_protocol.messages.items import decode_item
from delay_protocol.nodes.controls import GroupControl
from delay_server.admin.http import application
from delay_server.admin.looking import Takers
from delay_server.admin.looks import WAITING_MAX
from delay_server.sending.taken import TakenByMinute
from tests.delay_server.dead_rig import Caller
from tests.delay_server.server_rig import World, have_rules, make_item, until

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def listed(operator: Caller, query: str) -> dict[str, Any]:
    code, answer = await operator.ask("GET", f"/list?{query}")
    assert code == 200, answer
    found: dict[str, Any] = answer
    return found


async def counted(operator: Caller, query: str) -> dict[str, Any]:
    code, answer = await operator.ask("GET", f"/count?{query}")
    assert code == 200, answer
    found: dict[str, Any] = answer
    return found


def totals(answer: dict[str, Any]) -> dict[str, int]:
    rows = answer["rows"].items()
    return {name: row["before"] + sum(row["counts"]) + row["later"] for name, row in rows}


async def test_a_list_goes_on_where_the_page_before_ended_whatever_came_and_went() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        first_ms = world.now_ms
        dues = [first_ms + minute * 7 * MINUTE_MS for minute in range(1, 30)]
        await world.keep(*(make_item(f"m{due}", due, subject="orders.eu") for due in dues))
        await world.keep(make_item("other", dues[3], subject="order"))
        page = await listed(operator, "subject=orders.*&limit=10&ids=true")
        assert [row["message_id"] for row in page["items"]] == [f"m{due}" for due in dues[:10]]
        assert page["covered_to_ms"] == page["items"][-1]["due_ms"]
        assert page["as_of"] >= len(dues)
        # Some are delivered, and others come before and behind the place.
        await until(lambda: len(world.broker.ids) >= 4, seconds=3600, step_s=10)
        await world.keep(
            *(make_item(f"n{due}", due, subject="orders.us") for due in (dues[5] + 1, dues[15] + 1))
        )
        seen = []
        while page["next"] is not None:
            query = f"subject=orders.*&limit=10&after={page['next']}"
            page = await listed(operator, query)
            seen += [row["due_ms"] for row in page["items"]]
        assert seen == sorted([*dues[10:], dues[15] + 1])
        assert page["covered_to_ms"] is None
        assert page["complete"]


@pytest.mark.parametrize(
    ("query", "blamed"),
    [
        ("limit=5", "give a subject"),
        ("subject=s&limit=0", "limit"),
        ("subject=s&limit=1001", "limit"),
        ("subject=s&due_from=5&due_to=5", "due_to"),
        ("subject=s&due_from=-1", "due_from"),
        ("subject=s&after=x", "after"),
        ("subject=s&after=1.2.3", "after"),
        ("subject=s&after=1.9223372036854775808", "after"),
        ("subject=s&after=%C2%B2.1", "after"),
        ("subject=s&after=" + "9" * 90, "after"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(query: str, blamed: str) -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("GET", f"/list?{query}")
        assert (code, answer["code"]) == (400, "bad-value")
        assert blamed in answer["detail"]


async def test_a_list_begins_behind_any_message_that_is_named() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        due_ms = world.now_ms + HOUR_MS
        await world.keep(*(make_item(f"m{n}", due_ms) for n in range(4)))
        rows = (await listed(operator, "subject=a.b"))["items"]
        for place, row in enumerate(rows):
            behind = await listed(operator, f"subject=a.b&after={due_ms}.{row['sequence']}")
            assert behind["items"] == rows[place + 1 :]
        # Of all that are due then, none or all come again.
        assert (await listed(operator, f"subject=a.b&after={due_ms}.0"))["items"] == rows
        last = 10**18 - 1
        assert (await listed(operator, f"subject=a.b&after={due_ms}.{last}"))["items"] == []
        # What is not asked for stays out.
        late = await listed(operator, f"subject=a.b&after=0.7&due_from={due_ms + 1}")
        assert late["items"] == []


async def test_a_list_over_two_years_is_a_page() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        days = [world.now_ms + day * 24 * HOUR_MS for day in range(1, 700, 7)]
        await world.keep(*(make_item(f"m{due}", due) for due in days))
        page = await listed(operator, f"due_from=0&due_to={world.now_ms + 731 * 24 * HOUR_MS}")
        assert [row["due_ms"] for row in page["items"]] == days
        assert page["next"] is None


async def test_copies_and_retries_are_shown_under_their_subject_with_the_name() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        due_ms = world.now_ms + HOUR_MS
        for subject in ("orders", "%RETRY%orders%billing", "%RETRY%orders%mail", "paid"):
            await world.keep(make_item(f"m {subject}", due_ms, subject=subject))
        page = await listed(operator, "subject=orders")
        assert [(row["subject"], row["name"]) for row in page["items"]] == [
            ("orders", None),
            ("orders", "billing"),
            ("orders", "mail"),
        ]
        page = await listed(operator, "subject=orders&name=mail")
        assert [row["name"] for row in page["items"]] == ["mail"]
        assert totals(await counted(operator, "by=subject")) == {"": 4, "orders": 3, "paid": 1}
        named = {"by=subject&name=billing": 1, "by=subject&name=&subject=o*": 1, "name=": 2}
        for query, number in named.items():
            assert totals(await counted(operator, query))[""] == number
        code, answer = await operator.ask("GET", "/find?id=m%20%25RETRY%25orders%25mail")
        assert (code, [row["name"] for row in answer["messages"]]) == (200, ["mail"])


async def test_counts_are_by_time_and_by_who_takes_and_say_at_which_rate() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await world.keep(*(make_item(f"now{n}", world.now_ms) for n in range(120)))
        await until(lambda: len(world.broker.ids) == 120)
        await trio.sleep(1)
        hour = world.now_ms - world.now_ms % HOUR_MS + 2 * HOUR_MS
        for n, hours in enumerate((0, 0, 1, 3, 99)):
            await world.keep(make_item(f"m{n}", hour + hours * HOUR_MS))
        query = f"by=group&step=hour&due_from={hour + 5}&due_to={hour + 4 * HOUR_MS}"
        answer = await counted(operator, query)
        rows = answer["rows"]
        assert rows.keys() == {"", "g1"}
        assert rows["g1"] == rows[""] | {"rate_per_s": 2.0}
        assert rows[""]["counts"] == [2, 1, 0, 1]
        assert (rows[""]["before"], rows[""]["later"]) == (0, 1)
        assert (rows["g1"]["rate_is_limit"], rows[""]["rate_per_s"]) == (False, None)
        assert (answer["begin_ms"], answer["column_ms"]) == (hour, HOUR_MS)
        await have_rules(server, groups={"g1": GroupControl(rate_per_s=5)})
        row = (await counted(operator, query))["rows"]["g1"]
        assert (row["rate_per_s"], row["rate_is_limit"]) == (5.0, True)
        answer = await counted(operator, "step=day")
        assert totals(answer) == {"": 5}
        assert len(answer["rows"][""]["counts"]) == 48
        _, about = await operator.ask("GET", "/explain?subject=a.b")
        assert about["due_later"] == 5


async def test_who_takes_a_subject_is_known_in_the_thread_of_a_look() -> None:
    async with World().serving() as server:
        takers = Takers(server.administered().parts(), ["g2", "g1"])
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(takers.names_of, b"a.b").result() == ("g1 g2",)


def test_the_best_minute_is_one_of_the_last_day() -> None:
    taken, now_ms = TakenByMinute(), 30_000_000 * MINUTE_MS
    for minutes, messages in ((1440, 900), (1439, 80), (30, 40), (30, 41), (0, 2)):
        taken.count("g", messages, now_ms - minutes * MINUTE_MS)
    assert taken.best("g", now_ms) == 81
    assert taken.best("g", now_ms + 2 * MINUTE_MS) == 81
    assert taken.best("g", now_ms + 1439 * MINUTE_MS) == 2
    assert (taken.best("g", now_ms + 1440 * MINUTE_MS), taken.best("h", now_ms)) == (0, 0)


async def test_a_count_of_too_many_columns_is_refused() -> None:
    async with World().serving() as server:
        operator = Caller(application(server.administered()))
        query = "step=minute&due_from=60000&due_to=60006000"
        code, answer = await operator.ask("GET", f"/count?{query}1")
        assert (code, answer["field"]) == (400, "step")
        code, answer = await operator.ask("GET", f"/count?{query}0")
        assert (code, answer["column_ms"]) == (200, MINUTE_MS)


async def test_of_a_thousand_looks_at_once_a_few_wait_and_the_others_are_refused() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await world.keep(make_item("m", world.now_ms + HOUR_MS))
        codes: list[int] = []

        async def look() -> None:
            code, answer = await operator.ask("GET", "/count")
            codes.append(code)
            assert code == 200 or answer["detail"]

        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(look)
        # 503: the port works on so many requests at a time.
        assert codes.count(200) == WAITING_MAX
        assert codes.count(429) > 0
        assert set(codes) <= {200, 429, 503}
        assert totals(await counted(operator, "")) == {"": 1}


async def test_a_look_ends_when_its_caller_leaves() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        await world.keep(make_item("m", world.now_ms + HOUR_MS))
        looks, codes = server._looks, []

        async def look() -> None:
            codes.append((await operator.ask("GET", "/count", leaves_after_s=2))[0])

        async with trio.open_nursery() as nursery, looks._turn:
            for _ in range(WAITING_MAX):
                nursery.start_soon(look)
            await until(lambda: looks._count == WAITING_MAX)
            await until(lambda: codes == [400] * WAITING_MAX)
            assert looks._count == 0
        assert totals(await counted(operator, "")) == {"": 1}


async def test_the_body_of_a_message_is_shown_to_who_asks_for_it() -> None:
    world = World()
    async with world.serving() as server:
        operator = Caller(application(server.administered()))
        item = make_item("m", world.now_ms + 50 * HOUR_MS)
        await world.keep(item)
        code, answer = await operator.ask("GET", "/find?id=m&body=true")
        (row,) = answer["messages"]
        assert code == 200
        assert decode_item(base64.b64decode(row["body"])).message_id == "m"
        assert (row["reason"], row["loaded"]) == ("waiting", False)
        await world.keep(make_item("near", world.now_ms + MINUTE_MS))
        await until(lambda: len(server.master.wheel))
        _, answer = await operator.ask("GET", "/find?id=near&subject=a.b")
        assert [one["loaded"] for one in answer["messages"]] == [True]
        _, answer = await operator.ask("GET", "/find?id=near&subject=a")
        assert answer["messages"] == []
