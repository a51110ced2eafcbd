"""All messages of a filter, cancelled, moved, dropped or counted by an operator over HTTP."""

import pytest
import trio
from structlog.testing import capture_logs

from delay_server.admin import changes
from delay_server.admin.http import application
from delay_server.server import DelayServer
from storage.batch.facts import Outcome
from tests.delay_server.dead_rig import Caller
from tests.delay_server.server_rig import MINUTE_MS, World, make_item, until

HOUR_MS = 60 * MINUTE_MS


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SLICE_ROWS", 7)


async def keep(world: World, count: int = 40) -> int:
    """Have messages of two subjects kept, due from soon to days from now; return the first time."""
    begin_ms = world.now_ms + 30_000
    items = [
        make_item(f"{subject}{n}", begin_ms + n * HOUR_MS * 2, subject=f"{subject}.x")
        for subject in ("a", "b")
        for n in range(count)
    ]
    await world.keep(*items)
    return begin_ms


async def change_all(operator: Caller, **body: object) -> tuple[dict[str, int], int]:
    """Ask until there is no more; return the sum of the states, and how often was asked."""
    states: dict[str, int] = {}
    asked, after = 0, None
    while True:
        asked += 1
        code, answer = await operator.ask("POST", "/messages/change-all", {**body, "after": after})
        assert code == 200, answer
        for state, count in answer["states"].items():
            states[state] = states.get(state, 0) + count
        after = answer["next"]
        if after is None:
            return states, asked


def operator_of(server: DelayServer) -> Caller:
    """Return who asks."""
    return Caller(application(server.administered()))


async def test_a_dry_run_counts_and_a_run_cancels_what_the_filter_takes() -> None:
    world = World()
    async with world.serving() as server:
        begin_ms, operator = await keep(world), operator_of(server)
        wanted = {
            "subject": "a.*",
            "due_from": begin_ms + 1,
            "due_to": begin_ms + 200 * HOUR_MS,
        }
        counted, _ = await change_all(operator, dry_run=True, **wanted)
        assert counted == {"pending": 39}
        with capture_logs() as logs:
            done, asked = await change_all(operator, **wanted)
        assert done == {"cancelled": 39}
        assert asked >= 6
        assert any(one["event"] == "changed messages of a filter" for one in logs)
        await until(lambda: server.node.store.schedule.pending == 41)
        assert (await change_all(operator, dry_run=True, subject="a.*"))[0] == {"pending": 1}
        assert (await change_all(operator, dry_run=True, subject="b.x"))[0] == {"pending": 40}


async def test_what_is_moved_is_moved_once_however_many_slices_there_are() -> None:
    world = World()
    async with world.serving() as server:
        begin_ms, operator = await keep(world), operator_of(server)
        done, _ = await change_all(operator, subject="a.x", by_ms=2 * HOUR_MS)
        assert done == {"moved": 40}
        before = {"dry_run": True, "subject": "a.x", "due_to": begin_ms + 2 * HOUR_MS}
        assert (await change_all(operator, **before))[0] == {}
        assert (await change_all(operator, dry_run=True, subject="a.x"))[0] == {"pending": 40}
        far = await change_all(operator, subject="b.x", by_ms=730 * 24 * HOUR_MS)
        assert far[0] == {}
        back = await change_all(operator, subject="b.x", by_ms=-2 * HOUR_MS)
        assert back[0] == {"moved": 39}


async def test_what_waits_for_a_name_is_dropped() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    async with world.serving() as server:
        await world.keep(
            make_item("m", due_ms, subject="%RETRY%a.b%mail"),
            make_item("m", due_ms, subject="%RETRY%a.b%sms"),
            make_item("m", due_ms, subject="a.b"),
        )
        done, _ = await change_all(operator_of(server), name="mail", drop=True)
        assert done == {"cancelled": 1}
        assert server.master.fact_recorder.outcomes[Outcome.DROPPED] == 1
        await trio.sleep(3700)
        assert len(world.broker.ids) == 2


async def test_named_messages_are_changed_over_http_and_bad_input_is_refused() -> None:
    world = World()
    due_ms = world.now_ms + HOUR_MS
    async with world.serving() as server:
        operator = operator_of(server)
        await world.keep(make_item("m", due_ms), make_item("n", due_ms))
        items = [
            {"subject": "a.b", "id": "m", "due_ms": due_ms},
            {"subject": "a.b", "id": "n", "due_ms": due_ms, "to_ms": due_ms + 1},
            {"subject": "a.b", "id": "o"},
        ]
        code, answer = await operator.ask("POST", "/messages/change", {"items": items})
        assert code == 200
        told = [(one["item"], one["state"]) for one in answer["results"]]
        assert told == [(0, "cancelled"), (1, "moved"), (2, "unknown")]
        for path, body in (
            ("/messages/change", {"items": [{"subject": "a.b", "id": "n", "to_ms": 1}]}),
            ("/messages/change", {"items": []}),
            ("/messages/change-all", {}),
            ("/messages/change-all", {"subject": "*"}),
            ("/messages/change-all", {"subject": "a.b", "after": "x"}),
            ("/messages/change-all", {"subject": "a.b", "by_ms": 1, "drop": True}),
        ):
            assert (await operator.ask("POST", path, body))[0] == 400
