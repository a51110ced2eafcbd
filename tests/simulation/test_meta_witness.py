"""The judge lets pass what may have been right, and complains of everything else."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerRequestType,
    BrokerState,
    ClientRegisterReply,
    ClientType,
    OnlineState,
)
from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_protocol.nodes.registration import (
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Phase,
)
from meta_server.known.model import (
    Audit,
    AuditEntry,
    BrokerGroup,
    ClusterControls,
    DelayGroup,
    DelayNode,
    GroupKind,
    Route,
    SaveBrokerGroup,
    SaveControls,
    SaveDelayGroup,
    SaveDelayNode,
    SaveRoute,
)
from tests.simulation.meta_store import Medium
from tests.simulation.meta_witness import CLUSTER, MetaWitness, Rules, Use

CONSUMER = Use(ClientType.CONSUMER, "s", "desk", "c")
DELAYED = Use(ClientType.DELAY_PRODUCER, "s", "", "c")


def witness() -> MetaWitness:
    return MetaWitness(
        Medium(),
        Rules(
            delay_groups_per_subject=1,
            groups_per_subject=1,
            groups_per_subject_max=2,
            broker_timeout_s=30,
            new_subjects_per_second=1,
            new_subjects_burst=2,
        ),
    )


def group(
    name: str,
    version: int = 1,
    *,
    state: BrokerState = BrokerState.RW,
    kind: GroupKind = GroupKind.NORMAL,
) -> SaveBrokerGroup:
    row = BrokerGroup(name=name, kind=kind, master=f"{name}:1", state=state, version=version)
    return SaveBrokerGroup(row)


def reply(*names: str, at_ms: int = 5, state: BrokerState = BrokerState.RW) -> ClientRegisterReply:
    return ClientRegisterReply(
        timestamp_ms=at_ms,
        subject="s",
        consumer_group="desk",
        online_state=OnlineState.ONLINE,
        client_type=ClientType.CONSUMER,
        groups=tuple(
            BrokerGroupInfo(name=name, master=f"{name}:1", updated_ms=0, state=state)
            for name in names
        ),
    )


def run(body: Callable[[], Awaitable[None]]) -> None:
    trio.run(body, clock=MockClock(autojump_threshold=0))


def test_an_answer_is_right_if_it_was_at_a_moment_after_the_question() -> None:
    async def body() -> None:
        seen = witness()
        seen.medium.commit([group("g"), SaveRoute(Route(name="s", groups=("g",)))])
        await trio.sleep(10)
        asked_s = trio.current_time()
        await trio.sleep(1)
        seen.medium.commit([group("g", 2, state=BrokerState.NRW)])
        await trio.sleep(1)
        for answer in (reply("g"), reply()):
            seen.answered(CONSUMER, answer, since_s=asked_s, floor_ms=0, pushed=False)
        assert seen.complaints == []
        seen.answered(
            CONSUMER, reply("g"), since_s=trio.current_time() - 0.5, floor_ms=0, pushed=False
        )
        seen.answered(CONSUMER, reply("x"), since_s=asked_s, floor_ms=0, pushed=False)
        seen.answered(
            CONSUMER, reply("g", state=BrokerState.R), since_s=asked_s, floor_ms=0, pushed=False
        )
        assert [one.partition(":")[0] for one in seen.complaints] == ["right"] * 3

    run(body)


def test_timestamps_do_not_fall_below_what_anybody_had_seen() -> None:
    async def body() -> None:
        seen = witness()
        await trio.sleep(1)
        since_s = trio.current_time()
        seen.answered(CONSUMER, reply(at_ms=7), since_s=since_s, floor_ms=7, pushed=False)
        assert seen.latest_ms == 7
        assert seen.complaints == []
        seen.answered(CONSUMER, reply(at_ms=6), since_s=since_s, floor_ms=7, pushed=False)
        assert seen.complaints[0].startswith("time")

    run(body)


@pytest.mark.parametrize(("then", "flaps"), [(("b",), True), (("a",), False)])
def test_a_group_that_goes_is_replaced_for_its_own_subjects_only(
    then: tuple[str, ...], flaps: bool
) -> None:
    async def body() -> None:
        seen = witness()
        seen.medium.commit([group(name, kind=GroupKind.DELAY) for name in "abc"])
        for answer, gone in ((reply("a"), "c"), (reply(*then), "")):
            await trio.sleep(1)
            since_s = trio.current_time() - 0.5
            seen.answered(DELAYED, answer, since_s=since_s, floor_ms=0, pushed=False)
            if gone:
                seen.medium.commit([group(gone, 2, kind=GroupKind.DELAY, state=BrokerState.NRW)])
        assert any(one.startswith("stable") for one in seen.complaints) is flaps

    run(body)


def test_a_group_is_silent_only_after_the_time_out_and_dead_not_long_after_it() -> None:
    async def body() -> None:
        for silent_s, gone, wrong in ((31, False, ""), (20, False, "alive"), (60, True, "dead")):
            seen = witness()
            seen.starts_s.append(trio.current_time())
            seen.be_calm(calm=True)
            said = seen.broker_says("g", BrokerRequestType.ONLINE, BrokerState.RW, "g:1")
            seen.medium.commit([group("g")])
            seen.broker_heard("g", said)
            gone_s = trio.current_time()
            await trio.sleep(silent_s)
            if gone:
                seen.gone("g", gone_s, trio.current_time())
            else:
                seen.medium.commit([group("g", 2, state=BrokerState.NRW)])
            seen.judge_store()
            assert [one.partition(":")[0] for one in seen.complaints] == [wrong] * bool(wrong)

    run(body)


def node(node_id: str = "n1", incarnation: int = 1) -> NodeRegister:
    return NodeRegister(
        cluster="c",
        group="d",
        node_id=node_id,
        log_uuid=UUID(int=1),
        storage_uuid=UUID(int=2),
        incarnation=incarnation,
        boot_id=UUID(int=1000 + incarnation),
        last_sequence=0,
        address="d:1",
        http_address="",
        version="1",
    )


def registered(request: NodeRegister, *, epoch: int, version: int) -> NodeRegistered:
    record = GroupRecord(
        epoch=epoch,
        version=version,
        master=Master(node_id=request.node_id, incarnation=request.incarnation),
        in_sync={request.node_id: request.storage_uuid},
        min_isr=1,
        phase=Phase.ACTIVE,
    )
    return NodeRegistered(role=NodeRole.MASTER, record=record, again_ms=5000)


def test_an_epoch_has_one_master_and_nobody_is_told_less_than_anybody_was() -> None:
    async def body() -> None:
        seen = witness()
        first, second = node(), node(incarnation=2)
        for request, epoch, version in ((first, 1, 1), (second, 1, 2), (second, 0, 9)):
            reply = registered(request, epoch=epoch, version=version)
            before = seen.medium.rows["delay_groups"].get("d")
            expected = before and (before.record.epoch, before.record.version)
            row = DelayGroup(name="d", cluster="c", log_uuid=UUID(int=1), record=reply.record)
            seen.medium.commit([SaveDelayGroup(row, expected), SaveDelayNode(_row(request, seen))])
            seen.node_registered(
                "process",
                request,
                reply,
                sent_s=trio.current_time() - 0.5,
                floor=seen.told.get("d", (0, 0)),
            )
        assert len(seen.complaints) == 2
        assert "has two masters" in seen.complaints[0]
        assert "after (1, 2) was told" in seen.complaints[1]

    run(body)


def _row(request: NodeRegister, seen: MetaWitness) -> DelayNode:
    before = seen.medium.rows["delay_nodes"].get(("c", "d", request.node_id))
    return DelayNode(
        cluster="c",
        group="d",
        node_id=request.node_id,
        log_uuid=request.log_uuid,
        storage_uuid=request.storage_uuid,
        incarnation=request.incarnation,
        boot_id=request.boot_id,
        last_sequence=0,
        address=request.address,
        version=1 if before is None else before.version + 1,
    )


NODE = (CLUSTER, "d", "n1")


def save_controls(seen: MetaWitness, *, version: int = 0, audited: bool = True) -> Controls:
    """Store the next version of the controls; return it as it is told."""
    medium = seen.medium
    before = medium.controls_at(CLUSTER, len(medium.commits))
    controls = Controls(
        version=version or before.version + 1,
        subjects={"a": SubjectControl(paused=before.version % 2 == 0)},
    )
    entry = AuditEntry(
        at_ms=0, actor="operator", action="controls.subject.set", target=f"{CLUSTER}/a"
    )
    row = ClusterControls(cluster=CLUSTER, controls=controls)
    medium.commit([SaveControls(row), *([Audit(entry)] if audited else [])])
    return medium.controls_at(CLUSTER, len(medium.commits))


def tell(
    seen: MetaWitness, told: Controls | None, *, before: Controls | None, since_s: float, floor: int
) -> list[str]:
    """Have a node be told this; return what is complained of."""
    count = len(seen.complaints)
    seen.controls_told(
        NODE, told, before=before, storage_uuid=UUID(int=2), sent_s=since_s, floor=floor
    )
    return seen.complaints[count:]


def with_node() -> MetaWitness:
    """Return a witness of a store that has a node."""
    seen = witness()
    row = DelayNode(
        cluster=CLUSTER,
        group="d",
        node_id="n1",
        log_uuid=UUID(int=1),
        storage_uuid=UUID(int=2),
        incarnation=1,
        boot_id=UUID(int=3),
        last_sequence=0,
        address="d:1",
    )
    seen.medium.commit([SaveDelayNode(row)])
    return seen


def test_a_node_is_told_what_the_store_said_since_it_asked_and_nothing_else() -> None:
    async def body() -> None:
        seen = with_node()
        await trio.sleep(1)
        first = save_controls(seen)
        await trio.sleep(1)
        asked_s = trio.current_time()
        assert tell(seen, first, before=None, since_s=asked_s, floor=0) == []
        assert tell(seen, None, before=first, since_s=asked_s, floor=1) == []
        second = save_controls(seen)
        await trio.sleep(1)
        assert tell(seen, second, before=first, since_s=asked_s, floor=1) == []
        assert seen.controls_version == 2
        # It was so when it asked, and somebody else had been told of the second by then.
        assert tell(seen, first, before=None, since_s=asked_s, floor=2)
        late_s = trio.current_time()
        third = Controls(version=3, store=first.store)
        for told, before in ((first, None), (third, second), (None, first), (second, second)):
            assert tell(seen, told, before=before, since_s=late_s, floor=0), (told, before)
        # Of another node nothing is known.
        count = len(seen.complaints)
        seen.controls_told(
            (CLUSTER, "d", "n2"),
            second,
            before=None,
            storage_uuid=UUID(int=2),
            sent_s=late_s,
            floor=0,
        )
        assert "not registered" in seen.complaints[count]

    run(body)


@pytest.mark.parametrize(("late_s", "wrong"), [(0.5, False), (1.5, True)])
def test_a_node_is_told_within_a_second_while_nothing_is_amiss(late_s: float, wrong: bool) -> None:
    async def body() -> None:
        seen = with_node()
        first = save_controls(seen)
        seen.be_calm(calm=True)
        await trio.sleep(100)
        asked_s = trio.current_time()
        await trio.sleep(1)
        second = save_controls(seen)
        await trio.sleep(late_s)
        assert bool(tell(seen, second, before=first, since_s=asked_s, floor=1)) is wrong
        assert not seen.has_controls(first, trio.current_time() - 0.3)
        assert seen.has_controls(second, trio.current_time())
        seen.controls_unanswered("n1", trio.current_time() - 22)
        assert seen.complaints[-1].startswith("answered")

    run(body)


def test_a_change_of_controls_that_was_acknowledged_is_in_the_store_with_its_entry() -> None:
    async def body() -> None:
        seen = with_node()
        since_s = trio.current_time()
        save_controls(seen)
        seen.controls_changed(CLUSTER, "pause", lambda rules: "a" in rules.subjects, since_s=0)
        seen.judge_controls()
        assert seen.complaints == []
        seen.controls_changed(
            CLUSTER, "pause", lambda rules: "b" in rules.subjects, since_s=since_s
        )
        save_controls(seen, audited=False)
        seen.judge_controls()
        assert [one.partition(":")[0] for one in seen.complaints] == ["kept", "kept"]

    run(body)
