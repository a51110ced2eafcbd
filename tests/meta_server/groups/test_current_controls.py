"""Rules at the meta server: stored, audited, told at once, and shown by node."""

from uuid import UUID

import msgspec
import pytest
import trio

from delay_protocol.nodes.controls import Controls, ControlsId, SubjectControl, id_of
from delay_protocol.nodes.group_changes import (
    WATCH_S,
    read_document,
)
from delay_protocol.nodes.registration import AppliedControls
from meta_server.server import MetaServer
from tests.asgi import JSON
from tests.kit.operator import Operator, refusal_of
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import Peer, World, asking, node, until

PAUSED = SubjectControl(paused=True)


async def applies(peer: Peer, applied: ControlsId | None, keeps: str = "") -> None:
    """Register a node again with the controls that it applies."""
    await peer.register_again(controls=AppliedControls(id=applied, keeps=keeps))


async def sent(peer: Peer) -> Controls | None:
    """Return the controls of the next answer that has some; None: it is one without any."""
    while (reply := await peer.watch()).controls is None and reply.news is not None:
        pass
    news = reply.controls
    if news is None or news.document is None:
        return None
    return read_document(news.document, news.id)


async def apply(peer: Peer) -> Controls | None:
    """Let a node apply the controls that are sent next, and say so; return them."""
    controls = await sent(peer)
    if controls is not None:
        await applies(peer, id_of(controls))
    return controls


async def test_a_change_is_told_at_once_to_every_node_of_its_cluster_and_to_no_other() -> None:
    world = World()
    async with world.serving() as server, trio.open_nursery() as nursery:
        operator = Operator(server)
        ours = await world.registered(node())
        other = await world.registered(node(group="d2", log=2, storage=102, cluster="c2"))
        assert await sent(ours) == Controls(version=0, store=world.medium.uuid)
        await sent(other)
        heard: list[tuple[float, Controls | None]] = []

        async def wait(one: Peer) -> None:
            told = await sent(one)
            heard.append((trio.current_time(), told))

        nursery.start_soon(wait, ours)
        nursery.start_soon(wait, other)
        await until(lambda: len(server.handlers.held) == 2)
        changed_at = trio.current_time()
        shown = await operator.change_rule("c1", "subjects", subject="order.*", paused=True)
        assert (shown["version"], shown["subjects"]["order.*"]["paused"]) == (1, True)
        await until(lambda: heard)
        [(at, told)] = heard
        assert at - changed_at < 0.1
        assert told == Controls(version=1, subjects={"order.*": PAUSED}, store=world.medium.uuid)
        # Whoever waits for news is answered after a while that there are none.
        await until(lambda: len(heard) == 2, seconds=2 * WATCH_S)
        assert heard[1][1] is None
        assert WATCH_S - 0.5 < heard[1][0] - changed_at < WATCH_S + 0.5


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b'"nan"'])
async def test_a_number_that_is_none_takes_no_limit_and_no_weight_away(
    world: World, operator: Operator, number: bytes
) -> None:
    await world.registered(node())
    for name in ("rate_per_s", "weight"):
        await operator.change_rule("c1", "groups", group="a", **{name: 7})
        before = await operator.controls("c1")
        raw = b'{"%s":%s}' % (name.encode(), number)
        answer = await operator.ask("PUT", "/api/v1/group-rule/c1/a", raw=raw, headers=JSON)
        assert answer.code == 400
        assert (await operator.controls("c1")) == before


async def test_it_is_shown_by_which_version_each_node_goes_or_why_by_none(
    world: World, operator: Operator
) -> None:
    one = await world.registered(node())
    [shown] = (await operator.controls("c1"))["nodes"]
    assert (shown["controls_version"], shown["controls_note"]) == (None, "")
    await operator.change_rule("c1", "groups", group="g1", weight=3)
    assert await apply(one) is not None
    [shown] = (await operator.controls("c1"))["nodes"]
    assert (shown["controls_version"], shown["controls_note"]) == (1, "")
    [group] = (await operator.topology())["delay_groups"]
    assert (group["controls_version"], group["nodes"][0]["controls_version"]) == (1, 1)
    await operator.change_rule("c1", "groups", group="g1", weight=4)
    [shown] = (await operator.controls("c1"))["nodes"]
    assert shown["controls_note"] == "it applies version 1, the version here is 2"
    await applies(one, ControlsId(store=UUID(int=9), version=4, crc=0), "stricter rules")
    [shown] = (await operator.controls("c1"))["nodes"]
    assert (shown["controls_version"], shown["controls_note"]) == (None, "stricter rules")


async def test_controls_that_a_node_applies_are_named_and_not_sent_again(
    world: World, operator: Operator
) -> None:
    one = await world.registered(node())
    await operator.change_rule("c1", "groups", group="g1", weight=3)
    applied = await apply(one)
    assert applied is not None
    again = await world.registered(one.registered)
    news = (await again.watch()).controls
    assert news is not None
    assert (news.id, news.document) == (id_of(applied), None)
    # The same version with other rules: the store was restored meanwhile.
    other = await world.registered(one.registered)
    await applies(other, id_of(msgspec.structs.replace(applied, groups={})))
    assert await sent(other) == applied


async def test_a_vote_does_not_wait_for_controls_that_do_not_fit_beside_it(
    world: World, server: MetaServer, operator: Operator
) -> None:
    one = await world.registered(node())
    for number in range(49):
        rule = {"subject": f"{number:03}{'x' * 1950}", "paused": True}
        await operator.change_rule("c1", "subjects", **rule)
    group = server.registry.delay_groups["d1"]
    for number in range(2, 8):
        name, address = f"n{number:02}" * 80, f"{('h' * 60 + '.') * 3}h{number}:20801"
        await world.registered(node(name, storage=number, last_sequence=0, address=address))
    assert len(server.registry.nodes) == 7
    first, second = await one.watch(), await one.watch()
    assert first.news is not None
    assert first.news.record.epoch == group.record.epoch
    assert first.controls is None
    assert second.news is None
    assert second.controls is not None
    assert second.controls.document is not None


async def test_changes_count_the_version_name_it_if_wanted_and_are_audited(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await world.registered(node())
    rule = ("c1", "groups")
    await operator.change_rule(*rule, group="g1", weight=3, paused=True)
    await operator.change_rule(*rule, group="g1", paused=False, version=1)
    shown = await operator.change_rule(*rule, group="g1", paused=False)
    assert (shown["version"], shown["groups"]["g1"]["weight"]) == (3, 3)
    code, error = await refusal_of(operator.change_rule("c9", "groups", group="g1", weight=2))
    assert (code, "there are: c1" in error["message"]) == (404, True)
    code, error = await refusal_of(operator.change_rule(*rule, group="g1", weight=0))
    assert (code, error["field"]) == (400, "weight")
    code, _ = await refusal_of(operator.remove_rule(*rule, group="g2"))
    assert code == 404
    none = await operator.ask("GET", "/api/v1/group-rule/c1/g2")
    assert (none.code, none.json["version"], none.json["paused"]) == (200, 0, False)
    assert (await operator.remove_rule(*rule, group="g1", version=3))["groups"] == {}
    for _ in range(2):
        await operator.change_rule("c1", "subjects", subject="a", paused=True)
    shown = await operator.remove_rule("c1", "subjects", subject="a")
    assert (shown["version"], shown["subjects"]) == (7, {})
    rows = [row for row in (await operator.audit())["items"] if "-rule." in row["action"]]
    assert [(row["action"], row["target"]) for row in rows[::-1]] == [
        ("group-rule.add", "c1/g1"),
        ("group-rule.change", "c1/g1"),
        ("group-rule.change", "c1/g1"),
        ("group-rule.remove", "c1/g1"),
        ("subject-rule.add", "c1/a"),
        ("subject-rule.change", "c1/a"),
        ("subject-rule.remove", "c1/a"),
    ]
    assert (rows[1]["before"], rows[1]["after"]) == ({"paused": True}, {"paused": True})
    [shown] = (await operator.clusters())["items"]
    assert (shown["name"], shown["version"], shown["rules"]) == ("c1", 7, 0)
    assert server.registry.controls_of("c1") == Controls(version=7)


async def test_a_pause_that_is_there_already_is_answered_once_the_store_has_said_so(
    world: World, server: MetaServer, operator: Operator
) -> None:
    await world.registered(node())
    for body in ({"subject": "a", "paused": True}, {"group": "g1", "paused": True}):
        kind = "subjects" if "subject" in body else "groups"
        await operator.change_rule("c1", kind, **body)
        commits = len(world.medium.commits)
        await operator.change_rule("c1", kind, **body)
        assert len(world.medium.commits) == commits + 1
        world.medium.next_faults = [Fault.LOST]
        assert (await refusal_of(operator.change_rule("c1", kind, **body)))[0] == 503
        await until(lambda: not server.committer.is_stale)


async def test_rules_that_no_node_could_be_told_are_refused(
    world: World, operator: Operator
) -> None:
    await world.registered(node())
    path = "/api/v1/subject-rule/c1"
    answers = [
        await operator.ask("PUT", f"{path}/{number:03}{'x' * 1900}", {"paused": True})
        for number in range(60)
    ]
    codes = [answer.code for answer in answers]
    assert (codes[:45], codes[-1]) == ([200] * 45, 400)
    assert "all rules together" in answers[-1].error["message"]


async def test_what_the_store_did_not_keep_is_told_to_nobody(
    world: World, server: MetaServer, operator: Operator
) -> None:
    one = await world.registered(node())
    await one.watch()
    world.medium.next_faults.append(Fault.LOST)
    body = {"subject": "a", "paused": True}
    assert (await refusal_of(operator.change_rule("c1", "subjects", **body)))[0] == 503
    await until(lambda: not server.committer.is_stale)
    assert await sent(one) is None
    # What it kept without saying so reaches a node that waits, once everything is loaded anew.
    async with asking(lambda: sent(one)) as found:
        await until(lambda: len(server.handlers.held) == 1)
        world.medium.next_faults.append(Fault.KEPT)
        assert (await refusal_of(operator.change_rule("c1", "subjects", **body)))[0] == 503
        await until(lambda: found, seconds=2)
    assert found[0] is not None
    assert found[0].subjects == {"a": PAUSED}


async def test_a_store_that_was_set_back_takes_no_change_while_a_node_has_newer_rules(
    world: World, operator: Operator
) -> None:
    one = await world.registered(node())
    await applies(one, ControlsId(store=world.medium.uuid, version=7, crc=0))
    body = {"subject": "a", "paused": True}
    code, error = await refusal_of(operator.change_rule("c1", "subjects", **body))
    assert (code, "n1 of d1 has newer controls" in error["message"]) == (409, True)
    assert await apply(one) is not None
    await operator.change_rule("c1", "subjects", **body)
