"""A node goes by what is paused at its meta server, and lets nothing flow that nobody asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest
import trio

from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_server.admin.http import application
from delay_server.admin.status import status_of
from delay_server.controls.controls_store import read_controls
from delay_server.controls.meta_sync import ControlsSync, why_kept
from delay_server.server import DelayServer
from meta_server.server import MetaServer
from storage.disk.errors import StorageFullError
from tests.delay_server.dead_rig import Caller
from tests.delay_server.meta_stub import FakeMeta, RealMeta, meta_config
from tests.delay_server.server_rig import World, have_rules, make_config, make_item, until
from tests.kit.operator import Operator, refusal_of
from tests.simulation.faults import Kill

A, B = UUID(int=0xA), UUID(int=0xB)
PAUSED = SubjectControl(paused=True)


def controls(version: int, *paused: str, store: UUID | None = None) -> Controls:
    """Return rules that pause these, of a store or of the node itself."""
    found = Controls(version=version, subjects=dict.fromkeys(paused, PAUSED))
    return found if store is None else msgspec.structs.replace(found, store=store)


@pytest.mark.parametrize(
    ("present", "told", "reason"),
    [
        (controls(7, "a", store=A), controls(8, store=A), ""),
        (controls(7, "a", store=A), controls(7, "a", store=A), ""),
        (controls(7, store=A), controls(6, store=A), "told version 6, which is not newer"),
        (controls(7, "a", store=A), controls(7, "a", "b", store=A), "which is not newer"),
        (controls(7, "a", store=A), controls(0, store=B), "another store's rules stay in force"),
        (controls(7, "a", store=A), controls(9, "*", store=B), "another store's rules stay"),
        (controls(7, store=A), controls(1, "a", store=B), ""),
        (controls(0), controls(0, store=B), ""),
        (controls(3, "a"), controls(9, "a", store=B), "the node's own rules stay in force"),
    ],
)
def test_what_is_told_is_believed_if_it_is_newer_or_there_are_no_rules_yet(
    present: Controls, told: Controls, reason: str
) -> None:
    found = why_kept(present, told)
    assert reason in found
    assert bool(reason) == bool(found)


async def pause(meta: MetaServer, subject: str, *, paused: bool = True) -> int:
    body = {"subject": subject, "paused": paused}
    shown = await Operator(meta).change_rule("delaywheel", "subjects", **body)
    version: int = shown["version"]
    return version


async def send(world: World, name: str) -> None:
    await world.keep(make_item(name, world.now_ms, subject="s"))


@asynccontextmanager
async def both(world: World) -> AsyncIterator[tuple[MetaServer, DelayServer]]:
    async with RealMeta(world).running() as meta, world.serving(meta_config()) as server:
        yield meta, server


async def test_a_pause_at_the_meta_server_holds_at_the_node_within_a_second_and_is_shown() -> None:
    world = World()
    async with both(world) as (meta, server):
        at = trio.current_time()
        version = await pause(meta, "s")
        await until(lambda: server.master.outlet.applied.version == version, seconds=1)
        assert trio.current_time() - at < 0.5
        await send(world, "m")
        await trio.sleep(60)
        assert world.broker.ids == []
        assert server.master.outlet.applied == read_controls(
            world.disk, server.node.store.identity.log_uuid
        )
        [node] = (await Operator(meta).controls("delaywheel"))["nodes"]
        assert (node["controls_version"], node["controls_note"]) == (1, "")
        found = status_of(server.observe())["controls"]
        assert (found["version"], found["meta"]["told_version"]) == (1, 1)
        assert found["meta"]["store"] == str(meta.store.uuid)
        await pause(meta, "s", paused=False)
        await until(lambda: world.broker.ids == ["m"], seconds=1)


async def test_weights_and_pauses_of_groups_reach_the_sender() -> None:
    world = World()
    async with both(world) as (meta, server):
        [group] = server.master.sender.status()
        body = {"group": group.name, "weight": 3, "paused": True}
        await Operator(meta).change_rule("delaywheel", "groups", **body)
        await until(lambda: server.master.sender.status()[0].weight == 3, seconds=1)
        assert server.master.sender.status()[0].rule.paused


async def test_what_was_paused_while_a_node_was_down_holds_before_it_delivers_anything() -> None:
    world = World()
    async with RealMeta(world).running() as meta:
        async with world.serving(meta_config()):
            producer = await world.connect()
            due_ms = world.now_ms + 30_000
            await producer.send(make_item("m", due_ms, subject="s"))
        await pause(meta, "s")
        await trio.sleep(60)
        async with world.serving(meta_config()) as server:
            assert server.master.outlet.applied.version == 1
            await trio.sleep(60)
            assert world.broker.ids == []
            await pause(meta, "s", paused=False)
            await until(lambda: world.broker.ids == ["m"], seconds=1)


@pytest.mark.parametrize(("late_s", "received"), [(1.5, []), (60.0, ["m"])])
async def test_a_node_that_starts_waits_a_moment_for_what_is_paused_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, late_s: float, received: list[str]
) -> None:
    world = World()
    hear = ControlsSync.hear

    async def hear_late(controls_sync: ControlsSync, told: Controls) -> None:
        await trio.sleep(late_s)
        await hear(controls_sync, told)

    async with RealMeta(world).running() as meta:
        async with world.serving(meta_config()):
            await world.keep(make_item("m", world.now_ms + 30_000, subject="s"))
        await pause(meta, "s")
        await trio.sleep(60)
        monkeypatch.setattr(ControlsSync, "hear", hear_late)
        began = trio.current_time()
        async with world.serving(meta_config()) as server:
            assert trio.current_time() - began < 3
            await trio.sleep(30)
            assert world.broker.ids == received
            await until(lambda: server.master.outlet.applied.version == 1, seconds=60)


async def test_a_pause_survives_a_crash_and_a_meta_server_that_tells_no_controls() -> None:
    world = World()
    async with RealMeta(world).running() as meta:
        with trio.CancelScope() as life:
            async with world.serving(meta_config()) as server:
                await pause(meta, "s")
                await until(lambda: server.master.outlet.applied.version == 1)
                await send(world, "m")
                world.network.cut("server", Kill("told to"))
                life.cancel()
    async with FakeMeta(world).running(), world.serving(meta_config()) as server:
        assert server.master.outlet.applied.subjects == {"s": PAUSED}
        found = status_of(server.observe())["controls"]["meta"]
        assert (found["told_version"], bool(found["trouble"])) == (None, True)
        await trio.sleep(60)
        assert world.broker.ids == []


async def test_a_node_that_gets_a_meta_server_keeps_its_own_pauses_until_it_is_told_to_follow() -> (
    None
):
    world = World()
    async with world.serving() as server:
        await have_rules(server, "s")
        operator = Caller(application(server.administered()))
        assert (await operator.ask("POST", "/controls/follow", {}))[0] == 409
        await send(world, "m")
    async with FakeMeta(world).running(), world.serving(meta_config()) as server:
        operator = Caller(application(server.administered()))
        code, answer = await operator.ask("POST", "/controls/follow", {})
        assert (code, answer["code"]) == (409, "not-told")
    async with both(world) as (meta, server):
        await pause(meta, "t")
        await trio.sleep(60)
        assert world.broker.ids == []
        assert server.master.outlet.applied.subjects == {"s": PAUSED}
        [node] = (await Operator(meta).controls("delaywheel"))["nodes"]
        assert node["controls_version"] is None
        operator = Caller(application(server.administered()))
        assert (await operator.ask("POST", "/controls/follow", {})) == (200, {"version": 1})
        await until(lambda: world.broker.ids == ["m"], seconds=1)
        await until(lambda: not meta.handlers.group_changes.ahead("delaywheel"))
        await pause(meta, "s")
        await until(lambda: server.master.outlet.applied.version == 2, seconds=1)


async def test_a_store_that_takes_the_place_of_another_ends_no_pause_until_somebody_says_so() -> (
    None
):
    world = World()
    async with both(world) as (meta, server):
        await pause(meta, "s")
        await until(lambda: server.master.outlet.applied.version == 1)
        await send(world, "m")
    real = RealMeta(world)
    real.medium.uuid = B
    async with real.running() as meta, world.serving(meta_config()) as server:
        await until(lambda: server.node.controls_sync and server.node.controls_sync.told)
        await pause(meta, "s")
        await pause(meta, "s", paused=False)
        await trio.sleep(60)
        assert world.broker.ids == []
        keeps = status_of(server.observe())["controls"]["meta"]["keeps"]
        assert keeps.startswith("another store's rules stay in force: run")
        operator = Caller(application(server.administered()))
        # As at a slave, which would deliver by the rules of the other store once it is the master.
        server._mastership, kept = None, server.master
        assert (await operator.ask("POST", "/controls/follow", {})) == (200, {"version": 2})
        server._mastership = kept
        await until(lambda: world.broker.ids == ["m"], seconds=1)


async def test_a_store_that_was_set_back_is_not_believed() -> None:
    world = World()
    real = RealMeta(world)
    async with real.running() as meta, world.serving(meta_config()) as server:
        for subject in ("t", "s"):
            await pause(meta, subject)
        await until(lambda: server.master.outlet.applied.version == 2)
        real.kill()
        row = real.medium.tables.controls["delaywheel"]
        older = msgspec.structs.replace(row.controls, version=1, subjects={"t": PAUSED})
        real.medium.tables.controls["delaywheel"] = type(row)(cluster="delaywheel", controls=older)
        async with real.running() as again:
            await until(lambda: server.node.controls_sync and server.node.controls_sync.keeps)
            assert server.master.outlet.applied.version == 2
            code, error = await refusal_of(
                Operator(again).change_rule("delaywheel", "subjects", subject="s", paused=True)
            )
            assert (code, "was set back" in error["message"]) == (409, True)
            operator = Caller(application(server.administered()))
            assert (await operator.ask("POST", "/controls/follow", {}))[1] == {"version": 1}


async def test_a_node_that_keeps_its_own_rules_asks_no_more_often_than_any_other() -> None:
    world = World()
    async with world.serving() as server:
        await have_rules(server, "s")
    async with both(world) as (meta, _):
        await trio.sleep(300)
        assert meta.handlers.dispatcher.requests["NODE_WATCH"] < 30


async def test_a_document_that_could_not_be_kept_does_not_hold_and_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with both(world) as (meta, server):
        await until(lambda: len(meta.handlers.held))
        with monkeypatch.context() as patched:

            def full(*_: object) -> None:
                raise StorageFullError("told to be full")

            patched.setattr(server.node.controls, "take", full)
            await pause(meta, "s")
            await until(lambda: server.node.controls_sync and server.node.controls_sync.trouble)
            assert server.master.outlet.applied.version == 0
        await until(lambda: server.master.outlet.applied.version == 1, seconds=10)
        assert status_of(server.observe())["controls"]["meta"]["trouble"] == ""


async def test_a_node_without_a_meta_server_is_its_own_authority() -> None:
    world = World()
    async with world.serving(make_config()) as server:
        assert status_of(server.observe())["controls"]["meta"] is None
