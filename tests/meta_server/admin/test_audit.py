"""The audit keeps what it is to keep, by age and by number, and lets go of the rest in steps."""

from dataclasses import replace

import pytest
import structlog
import trio

from meta_server.known.model import AuditEntry, AuditRow, ForgetAudit
from meta_server.settings.config import AuditConfig
from tests.meta_server.http_rig import Http
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import World, make_config, node, until

DAY_MS = 24 * 3_600_000
SETTINGS = AuditConfig(keep_ms=10 * DAY_MS, entries_max=2000, node_entries_max=300, look_ms=60_000)
ENTRY = AuditEntry(at_ms=0, actor="ops", action="route.set", target="a")


def fill(world: World, *ages_days: float, by_node: bool = False) -> None:
    """Put entries of these ages into the audit."""
    now_ms = world.clock.now_ms()
    for age in ages_days:
        world.medium.audit_numbers += 1
        entry = replace(ENTRY, at_ms=now_ms - int(age * DAY_MS), by_node=by_node)
        world.medium.audit.append(AuditRow(number=world.medium.audit_numbers, entry=entry))


def ages(world: World, *, by_node: bool = False) -> list[float]:
    """Return the ages of what is left, in days, oldest first."""
    now_ms = world.clock.now_ms()
    found = [row.entry.at_ms for row in world.medium.audit if row.entry.by_node is by_node]
    return [round((now_ms - at_ms) / DAY_MS, 2) for at_ms in sorted(found)]


async def test_what_is_older_than_it_may_be_is_forgotten_wherever_it_stands() -> None:
    world = World()
    fill(world, 9.9, 11, 3, 30, 10.1, 1)
    fill(world, 40, 2, by_node=True)
    async with world.serving(make_config(audit=SETTINGS)) as server:
        await until(lambda: server.audit.forgotten == 4)
        assert ages(world) == [9.9, 3, 1]
        assert ages(world, by_node=True) == [2]
        # The one of 9.9 days has 0.1 to go.
        await trio.sleep(0.1 * 86400 - 10)
        assert len(ages(world)) == 3
        await trio.sleep(140)
        assert len(ages(world)) == 2
        assert (server.audit.counts.asked, server.audit.counts.by_node) == (2, 1)


async def test_of_too_many_the_oldest_go_some_in_a_commit() -> None:
    world = World()
    fill(world, *(5 - number / 1000 for number in range(4500)))
    with structlog.testing.capture_logs() as lines:
        async with world.serving(make_config(audit=SETTINGS)) as server:
            await until(lambda: server.audit.forgotten == 2500)
            await trio.sleep(300)
    assert len(world.medium.audit) == 2000
    assert ages(world)[0] == 2.5
    steps = [
        sum(isinstance(change, ForgetAudit) for change in commit) for commit in world.medium.commits
    ]
    assert list(filter(None, steps)) == [500] * 5
    said = [line for line in lines if line["event"] == "old audit entries removed"]
    assert [(line["entries"], line["left"]) for line in said] == [(2500, 2000)]


async def test_servers_that_start_again_and_again_take_no_place_from_what_people_did() -> None:
    world = World()
    fill(world, *[1] * 2000)
    settings = replace(SETTINGS, node_entries_max=100)
    async with world.serving(make_config(audit=settings)) as server:
        peer = await world.connect()
        for incarnation in range(1, 400):
            await peer.node(node(incarnation=incarnation))
        assert len(ages(world, by_node=True)) == 399
        await trio.sleep(61)
        assert len(ages(world, by_node=True)) == 100
        assert len(ages(world)) == 2000
        newest = max(world.medium.audit, key=lambda row: row.number)
        assert '"incarnation":399' in newest.entry.after
        assert server.audit.counts.by_node == 100


async def test_a_clock_that_is_set_ahead_makes_nothing_older() -> None:
    world = World()
    fill(world, 1, 9)
    async with world.serving(make_config(audit=SETTINGS)) as server:
        await trio.sleep(61)
        world.clock.step(1000 * DAY_MS)
        await trio.sleep(3600)
        assert server.audit.forgotten == 0
        world.clock.step(-2000 * DAY_MS)
        await trio.sleep(3600)
        assert server.audit.forgotten == 0


async def test_a_store_that_fails_is_asked_again_later_and_nothing_else_is_lost() -> None:
    world = World()
    fill(world, *[5] * 2100)
    async with world.serving(make_config(audit=SETTINGS)) as server:
        world.medium.is_down = True
        await until(lambda: server.committer.failures or trio.current_time() > 30)
        await trio.sleep(120)
        world.medium.is_down = False
        world.medium.next_faults = [Fault.LOST]
        await until(lambda: len(world.medium.audit) == 2000, seconds=300)
        await until(lambda: not server.committer.is_stale)


async def test_pages_go_on_where_they_were_while_old_entries_are_forgotten() -> None:
    world = World()
    fill(world, *(5 - number / 10_000 for number in range(3000)))
    async with world.serving(make_config(audit=replace(SETTINGS, entries_max=500))) as server:
        http = Http(server)
        page = await http.get("/audit", limit=400)
        await until(lambda: server.audit.forgotten == 2500)
        rest = await http.get("/audit", limit=400, before=page["next"])
        numbers = [row["number"] for row in (*page["items"], *rest["items"])]
        assert numbers == list(range(3000, 2500, -1))
        assert rest["next"] is None


@pytest.mark.parametrize(
    "settings", [{"keep_ms": 0}, {"entries_max": 0}, {"node_entries_max": 1}, {"look_ms": 1}]
)
def test_bounds_that_would_keep_nothing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        AuditConfig(**settings)
