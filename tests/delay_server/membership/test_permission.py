"""A node is the master only as a disk in sync, by a record of its own epoch that names it."""

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.nodes.registration import GroupRecord, Master, NodeRegistered, NodeRole, Phase
from delay_server.membership.permission import Permission, permission_of
from storage.state.identity import Identity

ME = Identity(
    cluster="c1",
    group="d1",
    node_id="n1",
    log_uuid=UUID(int=1),
    storage_uuid=UUID(int=2),
    incarnation=5,
)
RECORD = GroupRecord(
    epoch=8,
    version=3,
    master=Master(node_id="n1", incarnation=5),
    in_sync={"n1": ME.storage_uuid},
    min_isr=1,
    phase=Phase.ACTIVE,
)


def standing(
    *,
    role: NodeRole = NodeRole.MASTER,
    log_epoch: int = 7,
    own_epoch: int = 0,
    identity: Identity = ME,
    **changed: object,
) -> Permission:
    record = msgspec.structs.replace(RECORD, **changed)
    reply = NodeRegistered(role=role, record=record, again_ms=5000)
    return permission_of(reply, identity, log_epoch=log_epoch, own_epoch=own_epoch)


def test_the_master_of_the_record_accepts_and_delivers() -> None:
    for in_sync in (RECORD.in_sync, RECORD.in_sync | {"n2": UUID(int=4)}):
        found = standing(in_sync=in_sync)
        assert (found.delivers, found.reason) == (True, "")
        assert found.pair == (8, 3)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"phase": Phase.ELECTING}, "elects a master, in epoch 8"),
        ({"master": None}, "elects a master"),
        ({"master": Master(node_id="n2", incarnation=5)}, "no longer the master: the master of d1"),
        ({"master": Master(node_id="n1", incarnation=6)}, "another start of this node"),
        ({"master": Master(node_id="n1", incarnation=4)}, "another start of this node"),
        ({"role": NodeRole.SLAVE}, "this node is a slave, though"),
        ({"in_sync": {}}, "not in sync"),
        ({"in_sync": {"n2": UUID(int=2)}}, "not in sync"),
        ({"in_sync": {"n1": UUID(int=3)}}, "not in sync"),
        ({"log_epoch": 8}, "epoch 8 has ended: the log of this node has epoch 8"),
        ({"log_epoch": 9}, "epoch 8 has ended: the log of this node has epoch 9"),
        ({"log_epoch": 9, "own_epoch": 9}, "epoch 8 has ended"),
    ],
)
def test_anybody_else_does_neither_and_is_told_why(changed: dict[str, object], reason: str) -> None:
    found = standing(**changed)  # type: ignore[arg-type]
    assert not found.delivers
    assert reason in found.reason


def test_a_slave_learns_who_the_master_is() -> None:
    found = standing(role=NodeRole.SLAVE, identity=replace(ME, node_id="n2"))
    assert found.reason == "this node is a slave: the master of d1 in epoch 8 is n1"


def test_the_epoch_that_this_start_has_begun_goes_on() -> None:
    assert standing(log_epoch=8, own_epoch=8).delivers


names = st.sampled_from(["n1", "n2", "n3"])
uuids = st.integers(1, 3).map(lambda number: UUID(int=number))
records = st.builds(
    GroupRecord,
    epoch=st.integers(0, 4),
    version=st.integers(0, 4),
    master=st.none() | st.builds(Master, node_id=names, incarnation=st.integers(0, 2)),
    in_sync=st.dictionaries(names, uuids, max_size=3),
    min_isr=st.integers(1, 3),
    phase=st.sampled_from(Phase),
)
identities = st.builds(
    lambda node_id, storage_uuid, incarnation: replace(
        ME, node_id=node_id, storage_uuid=storage_uuid, incarnation=incarnation
    ),
    names,
    uuids,
    st.integers(1, 2),
)


@given(
    record=records,
    ones=st.lists(st.tuples(identities, st.sampled_from(NodeRole)), min_size=2, max_size=6),
    log_epoch=st.integers(0, 4),
)
def test_one_record_lets_one_disk_serve_at_most(
    record: GroupRecord, ones: list[tuple[Identity, NodeRole]], log_epoch: int
) -> None:
    serving = set()
    for identity, role in ones:
        found = permission_of(
            NodeRegistered(role=role, record=record, again_ms=1),
            identity,
            log_epoch=log_epoch,
            own_epoch=0,
        )
        if found.delivers:
            assert record.in_sync[identity.node_id] == identity.storage_uuid
            assert record.epoch > log_epoch
            serving.add((identity.node_id, identity.storage_uuid, identity.incarnation))
    assert len(serving) <= 1
