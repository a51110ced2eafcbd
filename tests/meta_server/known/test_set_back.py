"""Tests of set_back: what shows that a store was set back, and when a group goes on."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from delay_protocol.nodes.registration import GroupRecord, NodeRegister, Phase, Stands, Told
from meta_server.known.errors import NotFoundError, NotNowError, RefusedError, StateError
from meta_server.known.model import Audit, Contents, DelayGroup, Save
from meta_server.known.record_file import VERSIONS_SKIPPED
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from tests.meta_server import meta_rig
from tests.meta_server.meta_rig import node

A, B, C, LOG = (UUID(int=one) for one in (101, 102, 103, 1))
SENDS = Stands(may_send=True)


def record(
    epoch: int, version: int, master: str = "a", *, min_isr: int = 1, **in_sync: UUID
) -> GroupRecord:
    """Return a record of a group; of a and b in sync, if nothing is said."""
    disks = in_sync or {"a": A, "b": B}
    return meta_rig.record(epoch, version, master=master, min_isr=min_isr, **disks)


STORED = record(1, 5)
NEWER = record(3, 9)


class Rig:
    """A store with a record, or an empty one, and nodes that speak."""

    def __init__(self, stored: GroupRecord | None = STORED, *, is_suspect: bool = False) -> None:
        groups = () if stored is None else (self.group(stored),)
        self.registry = Registry(Contents(rows=groups))
        unproven = ["d1"] if is_suspect else []
        self.set_backs = SetBacks(self.registry, unproven=unproven, groups_max=3)

    @staticmethod
    def group(found: GroupRecord) -> DelayGroup:
        return DelayGroup(name="d1", cluster="c1", log_uuid=LOG, record=found)

    def says(self, name: str, told: GroupRecord | None, **changed: Any) -> str:  # noqa: ANN401
        """Let a node speak; return what is waited for."""
        said: NodeRegister = node(name, storage=101 + "abc".index(name))
        nodes = changed.pop("nodes", ("a", "b"))
        told_it = None if told is None else Told(record=told, nodes=nodes)
        return self.set_backs.told(msgspec.structs.replace(said, told=told_it, **changed))

    def healed(self) -> GroupRecord | None:
        """Return the record that is taken, if one is, and take it."""
        changes = self.set_backs.plan_heal("d1", now_ms=7)
        if not changes:
            return None
        save, audit = changes
        assert isinstance(save, Save)
        assert isinstance(save.row, DelayGroup)
        assert isinstance(audit, Audit)
        self.registry.apply(changes)
        self.set_backs.stored(save.row)
        assert self.set_backs.why_behind("d1") == ""
        return save.row.record


def raised(newest: GroupRecord, above: int = 0) -> GroupRecord:
    return msgspec.structs.replace(newest, version=max(newest.version, above) + VERSIONS_SKIPPED)


def test_a_store_that_knows_what_nodes_were_told_is_as_it_is() -> None:
    rig = Rig()
    assert rig.says("a", STORED) == ""
    assert rig.says("b", record(1, 3)) == ""
    assert rig.says("c", None) == ""
    assert rig.healed() is None
    assert rig.set_backs.all_behind() == {}


@pytest.mark.parametrize(
    "told",
    [NEWER, record(1, 6), record(1, 5, "b"), record(1, 5, a=A)],
    ids=["epoch", "version", "another master", "another set"],
)
def test_what_a_node_was_told_and_the_store_has_not_shows_it(told: GroupRecord) -> None:
    rig = Rig()
    sentence = rig.says("b", told)
    assert f"b was told epoch {told.epoch}, version {told.version}, and this store" in sentence
    assert "these have spoken: a; or" in sentence
    assert rig.healed() is None
    # What is said later by others does not end that.
    assert rig.set_backs.all_behind() == {"d1": sentence}


def test_the_master_that_may_send_by_the_newest_record_is_enough() -> None:
    rig = Rig()
    assert rig.says("a", NEWER, stands=SENDS) != ""
    assert rig.healed() == raised(NEWER)
    rig = Rig(record(2, 40))
    rig.says("a", NEWER, stands=SENDS)
    assert rig.healed() == raised(NEWER, 40), "the version is above the store's, too"


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (NEWER, {}),
        (NEWER, {"stands": SENDS, "incarnation": 2}),
        (NEWER, {"stands": SENDS, "storage_uuid": UUID(int=7)}),
        (record(3, 8), {"stands": SENDS}),
    ],
    ids=["may not send", "another start", "another disk", "an older record"],
)
def test_what_else_a_master_says_is_not(told: GroupRecord, changed: dict[str, Any]) -> None:
    rig = Rig()
    rig.says("b", NEWER, nodes=("a", "b", "c"))
    rig.says("a", told, **changed)
    assert rig.healed() is None


def test_all_nodes_are_enough_those_in_sync_with_the_same_disks() -> None:
    rig = Rig()
    rig.says("b", NEWER, nodes=("a", "b", "c"))
    assert "these have spoken: a, c; or" in rig.says("b", NEWER, nodes=("a", "b", "c"))
    rig.says("c", None)
    rig.says("a", STORED, storage_uuid=UUID(int=7))
    assert rig.healed() is None, "the disk in sync may know more than the one in its place"
    rig.says("a", STORED)
    assert rig.healed() == raised(NEWER)


def test_a_set_that_was_stored_and_told_to_nobody_is_waited_for() -> None:
    # {a} was told; {a, b} was stored, and b elected alone: only b knows.
    rig = Rig(None)
    alone = record(1, 5, a=A)
    rig.says("a", alone, nodes=("a", "b"), incarnation=2)
    assert rig.healed() is None
    rig.says("b", record(2, 8, "b", b=B), stands=SENDS)
    assert rig.healed() == raised(record(2, 8, "b", b=B))


def test_an_empty_store_gets_the_group_of_whoever_was_told() -> None:
    rig = Rig(None)
    assert rig.says("c", None) == "", "nobody has spoken of such a group"
    assert "this store has nothing" in rig.says("b", NEWER)
    rig.says("a", STORED)
    assert rig.healed() == raised(NEWER)
    assert rig.registry.delay_groups["d1"].log_uuid == LOG


def test_a_record_that_nothing_proves_is_proven_by_its_master() -> None:
    rig = Rig(is_suspect=True)
    assert "has no file that shows" in rig.says("b", STORED)
    assert rig.healed() is None
    rig.says("a", STORED, stands=SENDS)
    assert rig.healed() == raised(STORED)


def test_what_was_told_of_another_log_does_not_count() -> None:
    rig = Rig()
    assert rig.says("a", NEWER, log_uuid=UUID(int=8), stands=SENDS) == ""


def test_groups_that_are_spoken_of_are_bounded() -> None:
    rig = Rig(None)
    for name in ("d1", "d2", "d3"):
        rig.says("a", NEWER, group=name)
    with pytest.raises(NotNowError, match="3 groups"):
        rig.says("a", NEWER, group="d4")


def test_an_operator_goes_on_without_those_who_are_missing() -> None:
    rig = Rig()
    with pytest.raises(StateError, match="has its newest record"):
        recover(rig)
    rig.says("b", NEWER)
    with pytest.raises(StateError, match="a have not spoken: start them"):
        rig.set_backs.plan_recover("d1", lose_messages=False, actor="sre", now_ms=7)
    found = recover(rig)
    assert (found.epoch, found.version) == (3 + VERSIONS_SKIPPED, 9 + VERSIONS_SKIPPED)
    assert (found.master, found.phase, found.in_sync) == (None, Phase.ELECTING, {"b": B})
    assert rig.set_backs.all_behind() == {}
    with pytest.raises(NotFoundError):
        rig.set_backs.plan_recover("d2", lose_messages=True, actor="sre", now_ms=7)


def test_where_nobody_in_sync_has_spoken_the_group_begins_again() -> None:
    rig = Rig(None)
    rig.says("b", record(1, 5, min_isr=2, a=A))
    found = recover(rig)
    assert (found.in_sync, found.min_isr, found.phase) == ({}, 1, Phase.ELECTING)


def test_what_no_store_could_hold_is_refused() -> None:
    with pytest.raises(RefusedError, match="no group reaches"):
        Rig().says("b", record(2**63 - 1, 1))


def recover(rig: Rig) -> GroupRecord:
    changes = rig.set_backs.plan_recover("d1", lose_messages=True, actor="sre", now_ms=7)
    rig.registry.apply(changes)
    return rig.registry.delay_groups["d1"].record
