"""Roles are given once, epochs only rise, and no two processes are ever master of one epoch."""

import msgspec
import pytest
from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.registration import Master, NodeRegister, NodeRole, Phase
from meta_server.groups.roles import (
    NODES_PER_GROUP_MAX,
    Registered,
    check_belongs,
    plan_end,
    plan_node,
)
from meta_server.known import model
from meta_server.known.errors import NotNowError, RefusedError
from meta_server.known.registry import Registry
from tests.meta_server.memory_store import contents_of
from tests.meta_server.meta_rig import node, uuid

changed = msgspec.structs.replace

NOW_MS = 1_700_000_000_000


def planned(
    registry: Registry,
    request: NodeRegister,
    *,
    is_heard: bool = False,
    is_present: bool = False,
    groups_max: int = 100,
) -> Registered:
    check_belongs(registry, request, groups_max=groups_max)
    return plan_node(registry, request, is_heard=is_heard, is_present=is_present, now_ms=NOW_MS)


def registered(registry: Registry, *requests: NodeRegister) -> Registered:
    """Register one after another; return what the last was told."""
    results = []
    for request in requests:
        results.append(planned(registry, request))
        registry.apply(results[-1].changes)
    return results[-1]


def registry_of(*requests: NodeRegister) -> Registry:
    """Return a registry with which these have registered, one after another."""
    registry = Registry(model.Contents())
    if requests:
        registered(registry, *requests)
    return registry


def refused(registry: Registry, request: NodeRegister, *, is_heard: bool = False) -> str:
    with pytest.raises(RefusedError) as caught:
        planned(registry, request, is_heard=is_heard)
    return str(caught.value)


def slave(number: int, **more: object) -> NodeRegister:
    return node(
        **{  # type: ignore[arg-type]
            "node_id": f"n{number}",
            "storage": 100 + number,
            "last_sequence": 0,
            "address": f"10.0.1.{number}:20801",
            **more,
        }
    )


def test_a_new_group_begins_with_itself_in_sync_and_min_isr_1() -> None:
    registry = Registry(model.Contents())
    result = registered(registry, node())
    assert result.role is NodeRole.MASTER
    record = result.record
    assert (record.epoch, record.version, record.min_isr) == (1, 1, 1)
    assert record.phase is Phase.ACTIVE
    assert record.in_sync == {"n1": uuid(101)}
    assert record.master is not None
    assert (record.master.node_id, record.master.incarnation) == ("n1", 1)
    shown = registry.groups["d1"]
    assert (shown.kind, shown.state) == (model.GroupKind.DELAY, BrokerState.NRW)


def test_a_group_that_the_meta_server_has_forgotten_begins_above_its_logs_epoch() -> None:
    assert registered(Registry(model.Contents()), node(last_epoch=7)).record.epoch == 8


def test_that_an_epoch_has_begun_is_kept_at_once_and_further_records_when_asked_to() -> None:
    registry = registry_of(node(last_sequence=0))
    begun = planned(registry, node(last_epoch=1))
    [change] = begun.changes
    assert isinstance(change, model.Save)
    assert isinstance(change.row, model.DelayNode)
    assert (change.row.last_epoch, change.row.last_sequence) == (1, 1)
    assert plan_end(registry, node(last_epoch=1, last_sequence=9)) == ()
    registry.apply(begun.changes)
    more = node(last_epoch=1, last_sequence=9)
    assert planned(registry, more).changes == ()
    registry.apply(plan_end(registry, more))
    [row] = registry.nodes.values()
    assert (row.last_epoch, row.last_sequence, row.version) == (1, 9, 3)
    # Only what is higher, and only of the start that is registered.
    for other in (
        more,
        node(last_epoch=1, last_sequence=8),
        node(last_epoch=1, last_sequence=20, boot=7),
        node(last_epoch=1, last_sequence=20, incarnation=2),
        node(last_epoch=1, last_sequence=20, storage=9),
        node("n9", last_epoch=1, last_sequence=20),
    ):
        assert plan_end(registry, other) == ()


def test_two_starts_with_one_incarnation_are_never_both_taken() -> None:
    registry = registry_of(node(incarnation=6, boot=1))
    for address in ("10.0.0.5:20801", "10.0.0.9:20801"):
        for is_heard in (True, False):
            copy = node(incarnation=6, boot=2, address=address)
            assert "by another start" in refused(registry, copy, is_heard=is_heard)
    assert registered(registry, node(incarnation=6, boot=1)).record.epoch == 1


@pytest.mark.parametrize(
    ("epoch", "sequence", "why"),
    [(2, 8, "1 records that it had are missing"), (1, 9, "it lacks that epoch"), (0, 0, "9 rec")],
)
def test_a_directory_in_sync_that_lacks_what_was_noted_is_refused_with_what_to_do(
    epoch: int, sequence: int, why: str
) -> None:
    registry = registry_of(node(), node(incarnation=2, last_epoch=2, last_sequence=9))
    older = node(incarnation=3, last_epoch=epoch, last_sequence=sequence)
    reason = refused(registry, older)
    assert "this directory is an older copy: n1 had record 9 in epoch 2" in reason
    assert why in reason
    assert "delaywheel admin approve d1 n1 --lose-messages" in reason
    assert registered(registry, node(incarnation=3, last_epoch=2, last_sequence=9)).changes
    assert registered(registry, node(incarnation=4, last_epoch=3, last_sequence=50)).changes


def test_where_others_are_in_sync_an_older_directory_waits_until_the_master_has_dropped_it() -> (
    None
):
    registry = registry_of(node(), changed(slave(2, last_sequence=9), last_epoch=2, committed=9))
    alone = registry.delay_groups["d1"]
    in_sync_with(registry, slave(2))
    older = changed(slave(2, incarnation=2, last_sequence=4), last_epoch=1)
    with pytest.raises(NotNowError, match=r"older copy: n2 had record 9.* has dropped it$"):
        planned(registry, older)
    registry.apply([model.Save(alone, over=registry.delay_groups["d1"].etag)])
    assert registered(registry, older).role is NodeRole.SLAVE


def test_a_node_outside_the_in_sync_set_may_come_with_any_log() -> None:
    registry = registry_of(node(), slave(2, last_sequence=7, last_epoch=1))
    assert registered(registry, slave(2, incarnation=2)).role is NodeRole.SLAVE


def test_what_speaks_over_a_connection_is_not_replaced_for_now() -> None:
    registry = registry_of(node())
    later = node(incarnation=2)
    with pytest.raises(NotNowError, match="is connected, by an earlier start"):
        planned(registry, later, is_heard=True, is_present=True)
    # It is the same start over another connection, or the connection is closed.
    assert planned(registry, node(), is_heard=True, is_present=True).changes == ()
    assert planned(registry, later, is_heard=True).record.epoch == 2


def test_a_restarted_sole_master_gets_the_next_epoch() -> None:
    registry = registry_of(node())
    shown = registry.groups["d1"]
    result = registered(registry, node(incarnation=2, last_epoch=1))
    assert (result.role, result.record.epoch, result.record.version) == (NodeRole.MASTER, 2, 2)
    assert registry.groups["d1"] is shown, "clients see no other state"
    registered(registry, node(incarnation=3, last_epoch=2, address="10.0.0.9:20801"))
    assert registry.groups["d1"].master == "10.0.0.9:20801"


def test_a_record_that_was_set_back_rises_above_the_log_again() -> None:
    registry = registry_of(node())
    result = registered(registry, node(last_epoch=5))
    assert result.record.epoch == 6


def test_a_disk_that_took_the_place_of_a_living_one_registers_unless_that_has_the_only_copy() -> (
    None
):
    registry = registry_of(node(), slave(2))
    again = slave(2, storage=202, replaces=102)
    assert "is alive" in refused(registry, slave(2, storage=202, replaces=7), is_heard=True)
    assert planned(registry, again, is_heard=True).role is NodeRole.SLAVE
    alone = node(storage=201, replaces=101, last_sequence=0)
    assert "bring that directory back" in refused(registry, alone, is_heard=True)


def test_a_group_has_no_more_nodes_than_allowed() -> None:
    registry = registry_of(node(), *(slave(number) for number in range(2, NODES_PER_GROUP_MAX + 1)))
    assert "limit" in refused(registry, slave(99))


@pytest.mark.parametrize(
    ("request_", "is_heard", "reason"),
    [
        (node(storage=102), True, "is alive, with another data directory"),
        (node(storage=102), False, "is in sync with the storage"),
        (node(incarnation=2), False, "after this one"),
        (node(incarnation=3, address="10.0.0.9:1"), False, "same incarnation"),
        (node(incarnation=3, address="10.0.0.9:1", boot=5), False, "same incarnation"),
        (node(incarnation=4, last_sequence=0), False, "is an older copy"),
        (node(incarnation=4, address="10.0.0.9:1"), True, "wait until it has been silent"),
        (slave(2, storage=101), False, "cannot be copied"),
        (node(group="d2", storage=9), False, "is that of the group d1"),
        (slave(2, log=2, last_sequence=5), False, "the group's is"),
        (node(incarnation=4, log=2, last_sequence=0), False, "the group's is"),
        (slave(2, cluster="c2"), False, "belongs to the cluster c1"),
        (node("n 1"), False, "blanks"),
        (node(address="nowhere"), False, "host:port"),
        (changed(node(), http_address="a\0b:5"), False, "is not a host name"),
    ],
)
def test_who_does_not_belong_is_refused(
    request_: NodeRegister, is_heard: bool, reason: str
) -> None:
    registry = registry_of(node(incarnation=3))
    before = contents_of(registry)
    assert reason in refused(registry, request_, is_heard=is_heard)
    assert contents_of(registry) == before


def in_sync_with(
    registry: Registry, *requests: NodeRegister, min_isr: int = 1, **more: object
) -> None:
    """Let the disks of these be in sync beside the master's."""
    group = registry.delay_groups["d1"]
    record = changed(
        group.record,
        version=group.record.version + 1,
        in_sync=group.record.in_sync | {one.node_id: one.storage_uuid for one in requests},
        min_isr=min_isr,
        **more,
    )
    registry.apply([model.Save(replace(group, record=record), over=group.etag)])


def test_a_master_that_is_started_again_with_others_in_sync_is_a_slave_until_it_is_elected() -> (
    None
):
    registry = registry_of(node(), slave(2))
    in_sync_with(registry, slave(2))
    result = registered(registry, node(incarnation=2, last_epoch=1, address="10.0.0.9:20801"))
    assert (result.role, result.record) == (NodeRole.SLAVE, registry.delay_groups["d1"].record)
    assert (result.record.epoch, result.record.version) == (1, 2)
    assert registry.groups["d1"].master == "10.0.0.5:20801", "it moves with the record"
    # Neither does the other one become anything by coming.
    assert registered(registry, slave(2, incarnation=2)).role is NodeRole.SLAVE


def test_who_is_master_follows_from_the_record() -> None:
    registry = registry_of(node(), slave(2))
    in_sync_with(registry, slave(2), master=Master(node_id="n2", incarnation=1))
    assert registered(registry, slave(2)).role is NodeRole.MASTER
    assert registry.groups["d1"].master == "10.0.1.2:20801"
    assert registered(registry, node()).role is NodeRole.SLAVE
    in_sync_with(registry, master=None, phase=Phase.ELECTING)
    assert registered(registry, slave(2)).role is NodeRole.SLAVE


def test_a_wiped_member_is_a_new_replica_where_others_are_in_sync() -> None:
    registry = registry_of(node(), slave(2))
    in_sync_with(registry, slave(2))
    wiped = slave(2, storage=999, log=77)
    assert "another data directory" in refused(registry, wiped, is_heard=True)
    result = registered(registry, wiped)
    assert result.role is NodeRole.SLAVE
    assert result.record.in_sync == {"n1": uuid(101), "n2": uuid(102)}, "the other disk is named"
    # Its incarnation is no word of the recorded master, also if that was this node.
    in_sync_with(registry, master=Master(node_id="n2", incarnation=1))
    assert registered(registry, wiped).role is NodeRole.SLAVE
    # Its log is the group's from then on.
    assert registered(registry, slave(2, storage=999, last_sequence=5)).role is NodeRole.SLAVE
    assert registry.nodes["c1", "d1", "n2"].log_uuid == uuid(1)
    # The disk that is in sync comes back.
    assert registered(registry, slave(2)).role is NodeRole.MASTER


def test_a_member_may_cut_its_log_but_has_what_it_knew_to_be_committed() -> None:
    registry = registry_of(node(), slave(2))
    in_sync_with(registry, slave(2))

    def member(incarnation: int, end: int, epoch: int, committed: int = 0) -> NodeRegister:
        request = slave(2, incarnation=incarnation, last_sequence=end, last_epoch=epoch)
        return changed(request, committed=committed)

    said = member(1, 120, 3, committed=90)
    registered(registry, member(1, 120, 3), said)
    registry.apply(plan_end(registry, said))
    assert registry.nodes["c1", "d1", "n2"].last_sequence == 90
    assert registered(registry, member(2, 100, 2, committed=50)).role is NodeRole.SLAVE
    row = registry.nodes["c1", "d1", "n2"]
    assert (row.last_epoch, row.last_sequence) == (2, 90)
    assert "1 records that it had are missing" in refused(registry, member(3, 89, 2))


def test_the_nodes_of_a_retired_group_go_on_and_no_others_come() -> None:
    registry = registry_of(node())
    shown = registry.groups["d1"]
    retired = replace(shown, is_retired=True, version=shown.version + 1)
    registry.apply([model.Save(retired)])
    assert registered(registry, node(incarnation=2, last_epoch=1)).role is NodeRole.MASTER
    assert "no further nodes" in refused(registry, slave(2))


def test_a_group_of_another_kind_or_of_qmqs_servers_is_not_taken_over() -> None:
    normal = model.BrokerGroup(name="d1", kind=model.GroupKind.NORMAL, master="10.0.0.1:20881")
    assert "real-time" in refused(Registry(model.Contents(rows=(normal,))), node())
    retired = model.BrokerGroup(name="d1", kind=model.GroupKind.DELAY, master="", is_retired=True)
    assert "retired" in refused(Registry(model.Contents(rows=(retired,))), node())
    theirs = model.BrokerGroup(name="d1", kind=model.GroupKind.DELAY, master="10.0.0.1:20801")
    assert "as QMQ does" in refused(Registry(model.Contents(rows=(theirs,))), node())
    entered = model.Broker(
        hostname="h", serve_port=1, ip="10.0.0.5", group="d1", role=BrokerRole.DELAY_MASTER
    )
    registry = Registry(model.Contents(rows=(theirs, entered)))
    assert "entered as" in refused(registry, node(address="10.0.0.1:20801"))


def test_every_change_of_a_role_is_in_the_audit() -> None:
    registry = Registry(model.Contents())
    changes = planned(registry, node()).changes
    [entry] = [change.entry for change in changes if isinstance(change, model.Audit)]
    assert (entry.action, entry.target) == ("node.register", "c1/d1/n1")
    assert '"epoch":1' in entry.after


def test_a_slave_that_starts_again_and_again_does_not_fill_the_audit() -> None:
    registry = registry_of(node(), slave(2))
    changes = planned(registry, slave(2, incarnation=2)).changes
    assert changes
    assert not [change for change in changes if isinstance(change, model.Audit)]
    wiped = planned(registry, slave(2, storage=999)).changes
    assert [change for change in wiped if isinstance(change, model.Audit)]
