"""A directory that is given up lies aside as it was, or is in its place as it was."""

import random
from collections.abc import Callable

import pytest

from storage.disk.errors import StorageFullError
from storage.node.aside import ASIDE_DIRECTORY
from storage.node.store import Store
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, Death, Trap
from tests.storage.copying_rig import checkpoint, grow, unapplied
from tests.storage.store_rig import START_MS, limited

SMALL = limited(message_log_file_bytes_max=1500)
OF_THE_NODE = ("identity", "lock")


def grown(disk: SimDisk) -> Store:
    """Return a store with records, a checkpoint and a promise."""
    chance = random.Random(1)
    store = unapplied(disk, settings=SMALL)
    store.apply_tail(1, now_ms=START_MS)
    store.begin_epoch(1, now_ms=START_MS)
    grow(store, chance, 8)
    store.apply_tail(store.message_log.next_sequence, now_ms=START_MS)
    checkpoint(store)
    store.message_log.sync_durable_end()
    disk.open("promise", create=True).close()
    disk.sync_directory("")
    return store


def files_of(disk: SimDisk, prefix: str = "") -> dict[str, bytes]:
    """Return what lies below a directory of what a store has written."""
    return {
        path.removeprefix(prefix): data
        for path, data in disk.contents().items()
        if path.startswith(prefix) and path.removeprefix(prefix) not in OF_THE_NODE
    }


def aside_of(disk: SimDisk) -> dict[str, bytes]:
    found = files_of(disk, f"{ASIDE_DIRECTORY}/")
    return {path: data for path, data in found.items() if path not in {"until_whole", "replaced"}}


def died(disk: SimDisk, trap: Trap, act: Callable[[], object]) -> tuple[bool, SimDisk]:
    """Do something with a death at a call; return if it came, and the disk after it."""
    disk.arm(trap)
    try:
        act()
    except Death:
        return True, disk.revive()
    return False, disk.revive()


@pytest.mark.parametrize("action", [Action.KILL, Action.POWER_CUT])
def test_a_death_at_any_call_leaves_the_old_directory_or_an_empty_one_and_all_aside(
    action: Action,
) -> None:
    for at in range(1000):
        disk = SimDisk(random.Random(at), plan=HARSH)
        store = grown(disk)
        before, was = files_of(disk), store.identity

        def act(store: Store = store, disk: SimDisk = disk) -> None:
            store.give_up()
            unapplied(disk, settings=SMALL)

        went_off, disk = died(disk, Trap(action=action, skip=at), act)
        again = unapplied(disk, settings=SMALL)
        assert again.identity.incarnation > was.incarnation
        assert again.identity.log_uuid == was.log_uuid
        if again.identity.storage_uuid == was.storage_uuid:
            assert went_off
            assert again.has_records
            assert aside_of(disk) == {}
        else:
            assert not again.has_records
            assert again.replaces == was.storage_uuid
            assert aside_of(disk) == before
        if not went_off:
            assert at > 20
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize("action", [Action.KILL, Action.POWER_CUT])
def test_what_lies_aside_goes_and_a_death_at_any_call_leaves_it_to_the_next(action: Action) -> None:
    for at in range(1000):
        disk = SimDisk(random.Random(at), plan=HARSH)
        grown(disk).give_up()
        grown(disk).give_up()
        store = unapplied(disk, settings=SMALL)
        went_off, disk = died(disk, Trap(action=action, skip=at), store.remove_aside)
        again = unapplied(disk, settings=SMALL)
        assert again.identity.storage_uuid == store.identity.storage_uuid
        again.remove_aside()
        assert files_of(disk, f"{ASIDE_DIRECTORY}/") == {}
        assert not again.remove_aside()
        if not went_off:
            assert at > 5
            return
    raise AssertionError("it never ended")


def test_what_an_earlier_copy_left_stays_and_the_copy_itself_goes() -> None:
    disk = SimDisk(random.Random(1), plan=CALM)
    store = grown(disk)
    before = files_of(disk)
    store.give_up()
    copy = grown(disk)
    copy.keep_aside()
    copy.give_up()
    store = unapplied(disk, settings=SMALL)
    assert not store.has_records
    assert store.replaces == copy.identity.storage_uuid
    assert store.identity.incarnation == copy.identity.incarnation + 1
    assert not store.remove_aside()
    assert aside_of(disk) == before


def test_a_full_disk_leaves_the_directory_as_it_was() -> None:
    disk = SimDisk(random.Random(1), plan=CALM)
    store = grown(disk)
    disk.arm(Trap(action=Action.FULL, kinds={"make_directory"}))
    with pytest.raises(StorageFullError):
        store.give_up()
    again = unapplied(disk, settings=SMALL)
    assert again.identity.storage_uuid == store.identity.storage_uuid
    assert again.has_records
