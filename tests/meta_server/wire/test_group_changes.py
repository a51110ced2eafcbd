"""Masters and in-sync sets over the wire: stored before they are told, and told at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes import group_changes
from delay_protocol.nodes.registration import (
    GroupRecord,
    Master,
    NodeRegister,
    NodeRole,
    Phase,
    Stands,
)
from meta_server.known.model import Audit, BrokerGroup, Change, DelayGroup, saved
from meta_server.server import MetaServer
from meta_server.settings.config import RegistrationConfig
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import (
    Peer,
    World,
    asking,
    broker,
    make_config,
    node,
    until,
    uuid,
)


def start(number: int, incarnation: int = 1, **more: Any) -> NodeRegister:  # noqa: ANN401
    """Return how a start of one of three nodes registers."""
    values: dict[str, Any] = {
        "node_id": f"n{number}",
        "storage": 100 + number,
        "incarnation": incarnation,
        "last_sequence": 0 if incarnation == 1 and number > 1 else 10,
        "last_epoch": 0 if incarnation == 1 else 1,
        "address": f"10.0.0.{number}:20801",
    }
    return node(**(values | more))


def vote(epoch: int, end: int, *, last_epoch: int = 1) -> group_changes.Vote:
    return group_changes.Vote(epoch=epoch, last_epoch=last_epoch, end=end, applied=end)


class Trio:
    """Three nodes of one group, all of them in sync."""

    def __init__(self, server: MetaServer, members: list[Peer]) -> None:
        self.server = server
        self.members = members

    @property
    def record(self) -> GroupRecord:
        return self.server.registry.delay_groups["d1"].record

    async def alter(self, *numbers: int, by: int = 1) -> group_changes.ChangeReply:
        record = self.record
        in_sync = {f"n{number}": uuid(100 + number) for number in numbers}
        wanted = group_changes.Alter(epoch=record.epoch, version=record.version, in_sync=in_sync)
        return await self.members[by - 1].change(wanted)

    async def die(self, number: int) -> None:
        await self.members[number - 1].stream.aclose()
        sessions = self.server.handlers.sessions
        await until(lambda: sessions.of_node(("c1", "d1", f"n{number}")) is None)


@asynccontextmanager
async def three(
    world: World, *, elect: Literal["automatic", "operator"] = "automatic"
) -> AsyncIterator[Trio]:
    config = make_config(registration=RegistrationConfig(elect=elect))
    async with world.serving(config) as server:
        members = [await world.registered(start(number)) for number in (1, 2, 3)]
        group = Trio(server, members)
        await members[0].register_again(last_epoch=1)
        assert not (await group.alter(1, 2, 3)).refusal
        yield group


@pytest.fixture
async def group(world: World) -> AsyncIterator[Trio]:
    async with three(world) as group:
        yield group


async def test_the_record_names_the_master_and_all_learn_of_one_another(
    world: World, group: Trio
) -> None:
    one, two, three_ = [await member.register_again() for member in group.members]
    assert one.role is NodeRole.MASTER
    assert [reply.role for reply in (two, three_)] == [NodeRole.SLAVE] * 2
    assert two.log_uuid == uuid(1)
    assert list(two.members) == ["n1", "n2", "n3"]
    assert two.members["n3"].address == "10.0.0.3:20801"
    assert two.members["n3"].storage_uuid == uuid(103)
    # An empty one is told the log of its group, and takes it.
    empty = await world.registered(start(4, log=77))
    assert (await empty.register_again()).log_uuid == uuid(1)
    await empty.register_again(log_uuid=uuid(1), last_sequence=5)
    assert group.server.registry.nodes["c1", "d1", "n4"].log_uuid == uuid(1)


async def test_another_in_sync_set_is_stored_and_then_told_to_all(
    world: World, group: Trio
) -> None:
    assert group.record.in_sync == {f"n{number}": uuid(100 + number) for number in (1, 2, 3)}
    before = await group.members[1].news()
    assert before.record == group.record
    async with asking(group.members[1].news) as told:
        await until(lambda: len(group.server.handlers.held))
        reply = await group.alter(1, 2)
        assert (reply.refusal, sorted(reply.record.in_sync)) == ("", ["n1", "n2"])
        assert world.medium.tables.delay_groups["d1"].record == reply.record
    assert [news.record for news in told] == [reply.record]
    actions = [row.entry.action for row in world.medium.audit]
    assert actions.count("delay-group.in-sync") == 2


async def test_a_wish_that_is_refused_says_why_and_counts_the_version_up(group: Trio) -> None:
    version = group.record.version
    reply = await group.alter(2, 3)
    assert reply.refusal == "the master is always in sync"
    assert reply.record.version == version + 1
    assert sorted(reply.record.in_sync) == ["n1", "n2", "n3"]
    old = group_changes.Alter(epoch=1, version=version, in_sync={"n1": uuid(101)})
    late = await group.members[0].change(old)
    assert late.refusal == f"the record is that of epoch 1, version {version + 1}"
    assert late.record == reply.record
    assert "the record is that" in (await group.alter(2, by=2)).refusal


async def test_a_master_that_is_started_again_begins_an_election_that_votes_end(
    world: World, group: Trio
) -> None:
    await group.members[0].state("RW")
    await group.die(1)
    again = await world.registered(start(1, 2))
    await until(lambda: group.record.phase is Phase.ELECTING, seconds=0.1)
    assert (group.record.epoch, group.record.master) == (2, None)
    assert group.server.registry.groups["d1"].state is BrokerState.NRW
    for member in (again, *group.members[1:]):
        reply = await member.register_again()
        assert reply.role is NodeRole.SLAVE
        news = await member.news()
        assert (news.vote_epoch, news.gone) == (2, 1)
    kept = len(world.medium.commits)
    for number, (member, end) in enumerate(
        ((again, 11), (group.members[1], 12), (group.members[2], 11)), start=1
    ):
        reply_ = await member.change(vote(2, end))
        assert (reply_.refusal, reply_.record.epoch) == ("", 2)
        assert group.record.phase is Phase.ELECTING or number == 3
    await until(lambda: group.record.phase is Phase.ACTIVE, seconds=0.3)
    assert group.record.master == Master(node_id="n2", incarnation=1)
    # Record, address and audit are one commit.
    named = [one for one in world.medium.commits[kept:] if _names_master(one)]
    [changes] = named
    [shown] = saved(changes, BrokerGroup)
    assert (shown.master, shown.state) == ("10.0.0.2:20801", BrokerState.NRW)
    [entry] = [one.entry for one in changes if isinstance(one, Audit)]
    assert (entry.action, entry.target) == ("delay-group.elect", "c1/d1")
    reply = await group.members[1].register_again()
    assert reply.role is NodeRole.MASTER
    await _only_the_master_speaks_for_the_group(world, group, again)


def _names_master(changes: tuple[Change, ...]) -> bool:
    return any(group.record.master for group in saved(changes, DelayGroup))


async def _only_the_master_speaks_for_the_group(world: World, group: Trio, old: Peer) -> None:
    """The old master gives one state or another: nothing changes."""
    client = await world.connect()
    await group.members[1].state("RW")
    for state in ("NRW", "R"):
        assert (await old.register_again(state=state)).state is None
        await trio.sleep(0.1)
        assert group.server.registry.groups["d1"].state is BrokerState.RW
    routes = await client.register("a.b", 4)
    assert [(info.name, info.master) for info in routes.groups] == [("d1", "10.0.0.2:20801")]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.KEPT, Fault.REFUSED])
async def test_a_master_that_the_store_did_not_keep_is_elected_anew(
    world: World, group: Trio, fault: Fault
) -> None:
    await group.die(1)
    members = [await world.registered(start(1, 2)), *group.members[1:]]
    await until(lambda: group.record.phase is Phase.ELECTING)
    for member in members:
        assert (await member.news()).vote_epoch == 2
    world.medium.next_faults = [fault]
    for member in members:
        await member.change(vote(2, 11))
    for _ in range(20):
        if group.record.phase is Phase.ACTIVE:
            break
        await trio.sleep(0.5)
        for member in members:
            await member.register_again()
            await member.change(vote(2, 11))
    assert group.record.phase is Phase.ACTIVE
    assert world.medium.tables.delay_groups["d1"].record == group.record


async def test_votes_are_asked_for_again_when_everything_is_loaded_anew(
    world: World, group: Trio
) -> None:
    await group.die(1)
    await world.registered(start(1, 2))
    await until(lambda: group.record.phase is Phase.ELECTING)
    member = group.members[1]
    assert (await member.news()).vote_epoch == 2
    await member.change(vote(2, 11))
    assert (await member.news()).vote_epoch == 0
    world.medium.next_faults = [Fault.LOST]
    stranger = await world.connect()
    assert (await stranger.broker(broker("g9"))).code == 51
    await until(lambda: not group.server.committer.is_stale, seconds=1)
    assert group.record.phase is Phase.ELECTING
    assert (await member.news()).vote_epoch == 2


async def test_a_master_that_falls_silent_is_replaced_within_seconds(
    world: World, group: Trio
) -> None:
    await group.members[0].register_again(stands=Stands(may_send=True))
    began = trio.current_time()
    for pause_s in (0.9, 0.9, 0.9, 0.0):
        for member in group.members[1:]:
            await member.register_again()
        await trio.sleep(pause_s)
    # Time alone begins it, before anybody speaks again.
    await until(lambda: group.record.phase is Phase.ELECTING, seconds=0.6)
    assert 3 < trio.current_time() - began < 3.3
    assert (await group.members[1].news()).gone == 0
    for member in group.members[1:]:
        await member.change(vote(2, 11))
    await until(lambda: group.record.phase is Phase.ACTIVE, seconds=0.5)
    [first, *_] = [row.entry for row in world.medium.audit if "elect" in row.entry.action]
    assert first.actor == "the meta server"
    # Why, and who voted how, is in the audit.
    begun, chosen = (
        msgspec.json.decode(row.entry.after)
        for row in world.medium.audit
        if "elect" in row.entry.action
    )
    assert begun["why"] == chosen["why"] == "n1 was not heard for 3.0 s"
    voted = "record 10 of epoch 1; fit"
    assert chosen["votes"] == {"n2": voted, "n3": voted}
    assert group.server.handlers.group_changes.begun == {("d1", "silent"): 1}


async def test_where_an_operator_elects_only_a_restart_begins_an_election() -> None:
    world = World()
    async with three(world, elect="operator") as group:
        for _ in range(100):
            for member in group.members[1:]:
                await member.register_again()
            await trio.sleep(0.05)
        assert group.record.phase is Phase.ACTIVE
        await group.die(1)
        await world.registered(start(1, 2))
        await until(lambda: group.record.phase is Phase.ELECTING)


async def test_the_routes_of_a_master_stay_while_a_slave_hears_that_it_may_send(
    group: Trio,
) -> None:
    await group.members[0].state("RW")
    hears = Stands(hears=1, hears_sender=True, vote_in_s=3.0)
    for _ in range(100):
        await group.members[1].register_again(stands=hears)
        await trio.sleep(1)
    assert group.record.phase is Phase.ACTIVE
    assert group.server.registry.groups["d1"].state is BrokerState.RW
    await trio.sleep(40)
    assert group.server.registry.groups["d1"].state is not BrokerState.RW


@pytest.mark.parametrize("elect", ["automatic", "operator"])
async def test_an_unfit_master_is_asked_to_hand_over_also_where_an_operator_elects(
    elect: Literal["automatic", "operator"],
) -> None:
    world = World()
    async with three(world, elect=elect) as group:
        for member in group.members:
            await member.register_again()
        assert (await group.members[0].news()).hand_over_to == ""
        why = "files of it are damaged"
        await group.members[0].register_again(stands=Stands(may_send=True, unfit=why))
        news = await group.members[0].news()
        assert (news.hand_over_to, news.hand_over_why) == ("n3", why)
        record = group.record
        wish = group_changes.HandOver(epoch=record.epoch, version=record.version, target="n3")
        refused = await group.members[1].change(wish)
        assert "the record is that" in refused.refusal
        reply = await group.members[0].change(wish)
        assert (reply.refusal, sorted(reply.record.in_sync)) == ("", ["n2", "n3"])
        assert group.server.registry.groups["d1"].master == "10.0.0.3:20801"
        assert (await group.members[0].register_again()).role is NodeRole.SLAVE
        entry = world.medium.audit[-1].entry
        assert entry.action == "delay-group.handover"
        assert msgspec.json.decode(entry.after)["why"] == why
        assert group.server.handlers.group_changes.begun == {("d1", "unfit"): 1}
        assert (await group.members[2].register_again(last_epoch=2)).role is NodeRole.MASTER
        assert (await group.members[2].news()).hand_over_to == "", "the next one is not asked"


async def test_a_node_that_registers_is_news_to_the_others(world: World, group: Trio) -> None:
    await group.members[1].news()
    await group.die(3)
    await world.registered(start(3, 2))
    news = await group.members[1].news()
    assert news.members["n3"].incarnation == 2
    assert news.record == group.record


async def test_who_has_not_registered_on_a_connection_learns_and_changes_nothing(
    world: World, group: Trio
) -> None:
    stranger = await world.connect()
    before = group.record
    wish = group_changes.Alter(epoch=1, version=before.version, in_sync={"n1": uuid(101)})
    for code, body in (
        (CommandCode.NODE_WATCH, group_changes.encode_node_watch(group_changes.NodeWatch())),
        (CommandCode.GROUP_CHANGE, group_changes.encode_group_change(wish)),
        (CommandCode.GROUP_CHANGE, group_changes.encode_group_change(vote(1, 5))),
    ):
        answer = await stranger.ask(code, body)
        assert answer.code == 51
        assert b"register a delay server on this connection first" in answer.body
    # Nor does the connection of a start that another one has followed.
    slow = group.members[2]
    await trio.sleep(6)
    await world.registered(start(3, 2))
    answer = await slow.ask(CommandCode.GROUP_CHANGE, group_changes.encode_group_change(vote(1, 5)))
    assert answer.code == 51
    assert b"n3 has registered with another start since" in answer.body
    assert group.record == before
