"""What is paused at the meta server: stored, audited, told at once, and shown by node."""

from pathlib import Path
from uuid import UUID

import pytest
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl
from delay_protocol.nodes.controls_exchange import (
    HOLD_S,
    ControlsId,
    NodeControls,
    decode_node_controls_reply,
    encode_node_controls,
    id_of,
)
from meta_server.server import MetaServer
from tests.asgi import JSON
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.admin.test_api import ADMIN, READER, with_tokens
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import Peer, World, make_config, node, until

PAUSED = SubjectControl(paused=True)


class Node:
    """A delay server that goes by what it is told."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.has: ControlsId | None = None
        self.told: ControlsId | None = None
        self.keeps = ""

    async def ask(self) -> Controls | None:
        asked = NodeControls(has=self.has, told=self.told, keeps=self.keeps)
        answer = await self.peer.ask(CommandCode.NODE_CONTROLS, encode_node_controls(asked))
        assert answer.code == 0, answer.body
        controls = decode_node_controls_reply(answer.body)
        if controls is not None:
            self.has = self.told = id_of(controls)
        return controls


async def registered(world: World, name: str = "n1", **fields: object) -> Node:
    peer = await world.connect()
    await peer.node(node(name, **fields))  # type: ignore[arg-type]
    return Node(peer)


async def test_a_change_is_told_at_once_to_every_node_of_its_cluster_and_to_no_other() -> None:
    world = World()
    async with world.serving() as server, trio.open_nursery() as nursery:
        operator = Operator(server)
        ours = await registered(world)
        other = await registered(world, group="d2", log=2, storage=102, cluster="c2")
        assert await ours.ask() == Controls(version=0, store=world.medium.uuid)
        await other.ask()
        heard: list[tuple[float, Controls | None]] = []

        async def wait(one: Node) -> None:
            heard.append((trio.current_time(), await one.ask()))
            heard[-1] = (trio.current_time(), heard[-1][1])

        nursery.start_soon(wait, ours)
        nursery.start_soon(wait, other)
        await until(lambda: server.telling.waiting == 2)
        changed_at = trio.current_time()
        shown = await operator.change_rule("c1", "subjects", subject="order.*", paused=True)
        assert (shown["version"], shown["subjects"]["order.*"]["paused"]) == (1, True)
        await until(lambda: heard)
        [(at, told)] = heard
        assert at - changed_at < 0.1
        assert told == Controls(version=1, subjects={"order.*": PAUSED}, store=world.medium.uuid)
        await until(lambda: len(heard) == 2, seconds=2 * HOLD_S)
        assert heard[1][1] is None
        assert server.telling.told == 3


async def test_an_answer_that_nothing_is_new_comes_after_a_while(served: World) -> None:
    one = await registered(served)
    await one.ask()
    began = trio.current_time()
    assert await one.ask() is None
    assert HOLD_S <= trio.current_time() - began < HOLD_S + 1


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b'"nan"'])
async def test_a_number_that_is_none_takes_no_limit_and_no_weight_away(
    world: World, operator: Operator, number: bytes
) -> None:
    await registered(world)
    for kind, key, name in (
        ("groups", "group", "rate_per_s"),
        ("groups", "group", "weight"),
    ):
        path = f"/controls/c1/{kind}"
        await operator.change_rule("c1", kind, **{key: "a", name: 7})
        before = await operator.controls("c1")
        raw = b'{"%s":"a","%s":%s}' % (key.encode(), name.encode(), number)
        answer = await operator.ask("PATCH", f"/api/v1{path}", raw=raw, headers=JSON)
        assert answer.code == 400
        assert (await operator.controls("c1")) == before


async def test_it_is_shown_by_which_version_each_node_goes_or_why_by_none(
    world: World, server: MetaServer, operator: Operator
) -> None:
    one = await registered(world)
    [shown] = (await operator.controls("c1"))["nodes"]
    assert (shown["version"], "not said yet" in shown["note"]) == (None, True)
    await one.ask()
    await operator.change_rule("c1", "groups", group="g1", weight=3)
    assert (await one.ask()) is not None
    [shown] = (await operator.controls("c1"))["nodes"]
    assert (shown["version"], shown["note"]) == (0, "it has controls version 0, not 1 yet")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.ask)
        await until(lambda: server.telling.waiting)
        [shown] = (await operator.controls("c1"))["nodes"]
        assert (shown["version"], shown["note"]) == (1, "")
        [group] = (await operator.topology())["delay_groups"]
        assert (group["controls_version"], group["nodes"][0]["controls_version"]) == (1, 1)
        nursery.cancel_scope.cancel()
    two = await registered(world)
    two.has, two.keeps = ControlsId(store=UUID(int=9), version=4), "stricter rules"
    await two.ask()
    [shown] = (await operator.controls("c1"))["nodes"]
    assert (shown["version"], shown["note"]) == (None, "stricter rules")


async def test_it_is_shown_which_nodes_deliver_so_that_others_need_not_go_by_anything(
    world: World, operator: Operator
) -> None:
    await registered(world)
    await registered(world, "n2", storage=2, last_sequence=0, address="10.0.0.6:20801")
    shown = (await operator.controls("c1"))["nodes"]
    assert {row["node_id"]: row["may_deliver"] for row in shown} == {"n1": True, "n2": False}
    [group] = (await operator.topology())["delay_groups"]
    assert [row["may_deliver"] for row in group["nodes"]] == [True, False]


async def test_changes_count_the_version_name_it_if_wanted_and_are_audited(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await registered(world)
    rule = ("c1", "groups")
    await operator.change_rule(*rule, group="g1", weight=3, paused=True)
    await operator.change_rule(*rule, group="g1", paused=False, version=1)
    shown = await operator.change_rule(*rule, group="g1", paused=False)
    assert (shown["version"], shown["groups"]["g1"]["weight"]) == (3, 3)
    code, error = await refusal_of(operator.change_rule(*rule, group="g1", weight=2, version=1))
    assert (code, "version 3, not 1" in error["message"]) == (409, True)
    code, error = await refusal_of(operator.change_rule(*rule, group="g1", weight=0))
    assert (code, error["field"]) == (400, "weight")
    code, _ = await refusal_of(operator.remove_rule(*rule, group="g2"))
    assert code == 404
    assert (await operator.remove_rule(*rule, group="g1", version=3))["groups"] == {}
    for _ in range(2):
        await operator.change_rule("c1", "subjects", subject="a", paused=True)
    shown = await operator.remove_rule("c1", "subjects", subject="a")
    assert (shown["version"], shown["subjects"]) == (7, {})
    rows = (await operator.audit(action="controls"))["items"]
    assert [(row["action"], row["target"]) for row in rows[::-1]] == [
        ("controls.group.set", "c1/g1"),
        ("controls.group.set", "c1/g1"),
        ("controls.group.set", "c1/g1"),
        ("controls.group.remove", "c1/g1"),
        ("controls.subject.set", "c1/a"),
        ("controls.subject.set", "c1/a"),
        ("controls.subject.remove", "c1/a"),
    ]
    assert (rows[1]["before"], rows[1]["after"]) == ({"paused": True}, {"paused": True})
    assert (await operator.clusters())["items"] == [{"cluster": "c1", "version": 7, "rules": 0}]
    assert server.registry.controls_of("c1") == Controls(version=7)


async def test_a_pause_that_is_there_already_is_answered_once_the_store_has_said_so(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await registered(world)
    for body in ({"subject": "a", "paused": True}, {"group": "g1", "paused": True}):
        kind = "subjects" if "subject" in body else "groups"
        await operator.change_rule("c1", kind, **body)
        commits = len(world.medium.commits)
        await operator.change_rule("c1", kind, **body)
        assert len(world.medium.commits) == commits + 1
        world.medium.next_faults = [Fault.LOST]
        assert (await refusal_of(operator.change_rule("c1", kind, **body)))[0] == 503
        await until(lambda: not server.committer.is_stale)


async def test_a_cluster_that_nobody_knows_is_a_slip_of_the_pen(
    world: World, operator: Operator
) -> None:
    await registered(world)
    body = {"subject": "a", "paused": True}
    code, error = await refusal_of(operator.change_rule("c9", "subjects", **body))
    assert (code, "there are: c1" in error["message"]) == (404, True)


async def test_rules_that_no_node_could_be_told_are_refused(
    world: World, operator: Operator
) -> None:
    await registered(world)
    codes = []
    body: dict[str, object] = {}
    for number in range(140):
        body = {"subject": f"{number:03}{'x' * 1900}", "paused": True}
        answer = await operator.ask("PATCH", "/api/v1/controls/c1/subjects", body)
        codes.append(answer.code)
    assert (codes[:130], codes[-1]) == ([200] * 130, 400)
    assert (
        "all rules together"
        in (await refusal_of(operator.change_rule("c1", "subjects", **body)))[1]["message"]
    )


async def test_whoever_may_only_read_changes_nothing(tmp_path: Path) -> None:
    world = World()
    async with world.serving(make_config(admin=with_tokens(tmp_path))) as server:
        await registered(world)
        reader, body = Operator(server, headers=READER), {"subject": "a", "paused": True}
        assert (await reader.controls("c1"))["version"] == 0
        assert (await refusal_of(reader.change_rule("c1", "subjects", **body)))[0] == 403
        await Operator(server, headers=ADMIN).change_rule("c1", "subjects", **body)
        assert world.medium.audit[-1].entry.actor == "alice"


async def test_what_the_store_did_not_keep_is_told_to_nobody(
    world: World, server: MetaServer, operator: Operator
) -> None:
    one = await registered(world)
    await one.ask()
    world.medium.next_faults.append(Fault.LOST)
    body = {"subject": "a", "paused": True}
    assert (await refusal_of(operator.change_rule("c1", "subjects", **body)))[0] == 503
    await until(lambda: not server.committer.is_stale)
    assert await one.ask() is None
    world.medium.next_faults.append(Fault.KEPT)
    assert (await refusal_of(operator.change_rule("c1", "subjects", **body)))[0] == 503
    told = await one.ask()
    assert told is not None
    assert told.subjects == {"a": PAUSED}


async def test_rules_outlive_the_meta_server() -> None:
    world = World()
    async with world.serving(kill=True) as server:
        await registered(world)
        await Operator(server).change_rule("c1", "groups", group="g1", paused=True)
    async with world.serving():
        told = await (await registered(world, incarnation=2)).ask()
    assert told is not None
    assert (told.version, told.groups) == (1, {"g1": GroupControl(paused=True)})


async def test_a_store_that_was_set_back_takes_no_change_while_a_node_has_newer_rules(
    world: World, server: MetaServer, operator: Operator
) -> None:
    one = await registered(world)
    one.has = one.told = ControlsId(store=world.medium.uuid, version=7)
    assert await one.ask() is not None
    body = {"subject": "a", "paused": True}
    code, error = await refusal_of(operator.change_rule("c1", "subjects", **body))
    assert (code, "n1 of d1 has newer controls" in error["message"]) == (409, True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.ask)
        await until(lambda: server.telling.waiting)
        await operator.change_rule("c1", "subjects", **body)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80"])
async def test_whoever_did_not_register_or_asks_nonsense_is_told_nothing(
    world: World, server: MetaServer, body: bytes
) -> None:
    peer = await world.connect()
    good = encode_node_controls(NodeControls(has=None, told=None))
    answer = await peer.ask(CommandCode.NODE_CONTROLS, good)
    assert (answer.code, b"register" in answer.body) == (51, True)
    one = await registered(world)
    assert (await one.peer.ask(CommandCode.NODE_CONTROLS, body)).code == 51
    assert await one.ask() is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.ask)
        await until(lambda: server.telling.waiting)
        nursery.cancel_scope.cancel()
    answer = await one.peer.ask(CommandCode.NODE_CONTROLS, good)
    assert (answer.code, b"waits" in answer.body) == (51, True)
    await one.peer.stream.aclose()
    await until(lambda: not server.telling.waiting)
