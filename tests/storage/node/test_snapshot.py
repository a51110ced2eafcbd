"""A copy of a checkpoint is as good as what it was made of, and until it is whole nothing."""

import random
from collections.abc import Callable

import msgspec
import pytest

from storage.batch.batches import Damage
from storage.disk.errors import CopyRefusedError
from storage.limits import StorageLimits
from storage.node.retention import AgedFile, Hold, hold_on
from storage.node.snapshot import (
    CopyWriter,
    checkpoint_of_copy,
    decode_copy,
    encode_copy,
    files_of,
)
from storage.node.store import Store
from storage.readers.manifest import read_manifest
from storage.state.checkpoint import Checkpoint
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, PowerCut, Trap
from tests.storage.copying_rig import checkpoint, grow, told_of, unapplied
from tests.storage.store_rig import START_MS, limited

PIECE = 700
SMALL = limited(message_log_file_bytes_max=1500)


def master_of(seed: int, *, steps: int = 30) -> Store:
    """Return a store of which all is applied and checkpointed, but for a tail."""
    chance = random.Random(seed)
    store = unapplied(SimDisk(chance, plan=CALM), settings=SMALL)
    store.apply_tail(1, now_ms=START_MS)
    store.begin_epoch(1, now_ms=START_MS)
    grow(store, chance, steps)
    store.apply_tail(store.message_log.next_sequence, now_ms=START_MS)
    checkpoint(store)
    assert store.whole_checkpoint is store.checkpoint
    grow(store, chance, 10)
    return store


def document_of(master: Store) -> bytes:
    crc = master.message_log.crc_before(master.checkpoint.sequence + 1)
    assert crc is not None
    return encode_copy(checkpoint_of_copy(master.checkpoint, crc))


def new_slave(master: Store, disk: SimDisk) -> Store:
    """Return an empty store with the log of the master."""
    store = unapplied(disk, settings=SMALL)
    if store.identity.log_uuid != master.identity.log_uuid:
        store.adopt_log(master.identity.log_uuid)
        store = unapplied(disk, settings=SMALL)
    return store


def write_files(slave: Store, master: Store, document: bytes) -> tuple[Checkpoint, list[Damage]]:
    """Copy all files; return the checkpoint, and what is wrong with what was copied."""
    wanted, damages = decode_copy(document), []
    writer = CopyWriter(slave.disk)
    writer.begin()
    try:
        for file in files_of(wanted, slave.identity.log_uuid):
            source = master.disk.open_read(file.path)
            for position in range(0, file.length, PIECE):
                data = source.read_at(position, min(PIECE, file.length - position))
                writer.write(file.path, position, data)
            damages += writer.finish(file)
        writer.sync_names()
    finally:
        writer.close()
    return wanted, damages


def copy_of(master: Store, disk: SimDisk) -> Store:
    """Return a store that has become a copy, opened again."""
    slave = new_slave(master, disk)
    wanted, damages = write_files(slave, master, document_of(master))
    assert not damages
    slave.become(wanted)
    return unapplied(disk, settings=SMALL)


def follow(slave: Store, master: Store) -> None:
    """Copy the rest of the log, and apply it."""
    while (first := slave.message_log.next_sequence) < master.message_log.next_sequence:
        raw = master.message_log.read_raw(first, bytes_max=2000)
        slave.message_log.append_copied(raw.data)
    slave.apply_tail(slave.message_log.next_sequence, now_ms=START_MS)


def said(store: Store) -> dict[str, object]:
    """Return what two stores with the same records have alike."""
    told = told_of(store)
    del told["files"]
    crossed = {}
    for segment in store.schedule.segments.values():
        crossed_off = store.schedule.crossed_off(segment)
        assert crossed_off is not None
        crossed[segment.key.code] = (segment.rows, sorted(set(crossed_off.tolist())))
    return told | {"segments": crossed}


def applied(store: Store) -> Store:
    store.apply_tail(store.message_log.next_sequence, now_ms=START_MS)
    return store


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_is_pending_what_the_master_is_and_goes_on_by_following(seed: int) -> None:
    master = master_of(seed)
    slave = copy_of(master, SimDisk(random.Random(seed), plan=CALM))
    assert slave.message_log.next_sequence == master.checkpoint.sequence + 1
    assert slave.message_log.files() == ()
    follow(slave, master)
    assert said(slave) == said(applied(master))
    for store in (slave, master):
        checkpoint(store)
        store.close()
    opened = [unapplied(store.disk, settings=SMALL) for store in (slave, master)]
    assert said(opened[0]) == said(opened[1])


def test_a_copy_that_nothing_was_added_to_is_opened_again_and_again() -> None:
    master = master_of(3)
    disk = SimDisk(random.Random(1), plan=CALM)
    slave = copy_of(master, disk)
    before = said(slave)
    for _ in range(2):
        slave.apply_tail(slave.message_log.next_sequence, now_ms=START_MS)
        checkpoint(slave)
        slave.close()
        slave = unapplied(disk, settings=SMALL)
        assert said(slave) == before
    manifest = read_manifest(disk, now_ms=START_MS)
    assert manifest.faults == ()
    follow(slave, master)
    assert said(slave) == said(applied(master))


def crash_in(disk: SimDisk, at: int, act: Callable[[], object]) -> tuple[bool, SimDisk]:
    """Do something with a power cut at a call; return whether it came, and the disk after it."""
    disk.arm(Trap(action=Action.POWER_CUT, skip=at))
    try:
        act()
    except PowerCut:
        return True, disk.revive()
    disk.power_cut()
    return False, disk.revive()


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_call_leaves_a_copy_that_is_whole_or_nothing(seed: int) -> None:
    master = master_of(seed, steps=12)
    whole = copy_of(master, SimDisk(random.Random(0), plan=CALM))
    wanted, at = said(whole), 0
    while True:
        disk = SimDisk(random.Random(100 * seed + at), plan=HARSH)
        slave = new_slave(master, disk)

        def act(slave: Store = slave) -> None:
            found, _ = write_files(slave, master, document_of(master))
            slave.become(found)

        went_off, disk = crash_in(disk, at, act)
        again = unapplied(disk, settings=SMALL)
        if again.has_records:
            assert said(again) == wanted
        else:
            assert [
                name for name in disk.contents() if "_log/" in name and "durable" not in name
            ] == []
            found, damages = write_files(again, master, document_of(master))
            assert not damages
            again.become(found)
            assert said(unapplied(disk, settings=SMALL)) == wanted
        if not went_off:
            break
        at += 1
    assert at > 10


def test_a_batch_that_is_damaged_at_the_master_is_named_and_copied_as_it_is() -> None:
    master = master_of(5)
    state = max(master.checkpoint.segments, key=lambda state: state.length)
    disk = master.disk
    assert isinstance(disk, SimDisk)
    file = disk.open(state.key.path)
    file.write_at(state.length - 3, [b"\xff\x00\xff"])
    slave = new_slave(master, SimDisk(random.Random(1), plan=CALM))
    _, damages = write_files(slave, master, document_of(master))
    assert {damage.path for damage in damages} == {state.key.path}


def test_only_the_checkpoint_of_a_copy_is_taken_for_one() -> None:
    master = master_of(6)
    document = document_of(master)
    wanted = decode_copy(document)
    one = wanted.segments[0]
    for other in (
        b"{}",
        b"\xff",
        encode_copy(master.checkpoint),
        encode_copy(msgspec.structs.replace(wanted, first_sequence=1)),
        encode_copy(msgspec.structs.replace(wanted, quarantined=("../identity",))),
        encode_copy(msgspec.structs.replace(wanted, format=2)),
        encode_copy(msgspec.structs.replace(wanted, epochs=())),
        encode_copy(
            msgspec.structs.replace(
                wanted, segments=(*wanted.segments, msgspec.structs.replace(one, length=0))
            )
        ),
        encode_copy(
            msgspec.structs.replace(
                wanted, segments=(msgspec.structs.replace(one, last_sequence=2**40),)
            )
        ),
        encode_copy(
            msgspec.structs.replace(
                wanted, segments=(msgspec.structs.replace(one, start=1, span=3),)
            )
        ),
    ):
        with pytest.raises(CopyRefusedError):
            decode_copy(other)


def test_records_that_a_slave_has_still_to_copy_stay_but_below_the_floor_of_free_disk() -> None:
    limits = StorageLimits(message_log_keep_ms=0, duplicate_window_ms=0, duplicate_window_items=0)
    file = AgedFile("message_log/1.log", last_sequence=10, newest_ms=0, messages_behind=5)

    def hold(copied_from: int | None) -> Hold | None:
        return hold_on(file, limits, now_ms=1000, replayed_sequence=100, copied_from=copied_from)

    assert [hold(None), hold(10), hold(11)] == [None, Hold.SLAVE, None]
