"""A data directory is one node's for ever: its identity is never guessed, changed or made anew."""

import random
import struct
import zlib
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.disk import Disk
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.state.identity import (
    Identity,
    decode_identity,
    encode_identity,
    open_identity,
    read_identity,
)
from tests.seeds import seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, PowerCut, Trap
from tests.storage.small_logs import LOG_UUID, disk_of, flipped, new_disk
from tests.storage.worked_examples import worked_examples

IDENTITY = Identity(
    cluster="airport",
    group="delay-1",
    node_id="node-a",
    log_uuid=LOG_UUID,
    storage_uuid=UUID("1b2c3d4e-5f60-4718-8293-a4b5c6d7e8f9"),
    incarnation=3,
)


def start(
    disk: Disk,
    *,
    cluster: str | None = None,
    group: str | None = None,
    node_id: str | None = None,
    seed: int = 1,
) -> Identity:
    return open_identity(
        disk, cluster=cluster, group=group, node_id=node_id, chance=random.Random(seed)
    )


@given(
    st.builds(
        Identity,
        cluster=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        group=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        node_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        log_uuid=st.uuids(),
        storage_uuid=st.uuids(),
        incarnation=st.integers(1, 2**63),
    )
)
def test_what_was_encoded_is_decoded(identity: Identity) -> None:
    assert decode_identity(encode_identity(identity), path="identity") == identity


def test_any_flipped_bit_is_damage() -> None:
    data = encode_identity(IDENTITY)
    for bit in range(len(data) * 8):
        with pytest.raises(DamagedError):
            decode_identity(flipped(data, bit), path="identity")


def test_an_identity_cut_off_anywhere_or_with_bytes_behind_it_is_damage() -> None:
    data = encode_identity(IDENTITY)
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            decode_identity(data[:size], path="identity")
    with pytest.raises(DamagedError):
        decode_identity(data + b"\0", path="identity")


def test_the_first_start_makes_it_and_every_other_counts_up() -> None:
    disk = new_disk()
    first = start(disk, cluster="c", group="g", node_id="n")
    assert first.incarnation == 1
    assert first.log_uuid != first.storage_uuid
    assert start(disk, seed=2) == replace(first, incarnation=2)
    assert start(disk, cluster="c", group="g", node_id="n", seed=3) == replace(first, incarnation=3)
    assert read_identity(disk) == replace(first, incarnation=3)


def test_without_names_the_first_start_takes_defaults_that_stay() -> None:
    disk = new_disk()
    first = start(disk)
    assert (first.cluster, first.group) == ("delaywheel", "default")
    assert first.node_id == f"node-{first.storage_uuid.hex[:8]}"
    assert start(disk, node_id=first.node_id).incarnation == 2


def test_all_chance_comes_from_the_argument() -> None:
    assert start(new_disk(), seed=5) == start(new_disk(), seed=5)
    assert start(new_disk(), seed=5).log_uuid != start(new_disk(), seed=6).log_uuid


@pytest.mark.parametrize("what", ["cluster", "group", "node_id"])
def test_another_name_is_refused_in_a_sentence_and_counts_nothing(what: str) -> None:
    disk = new_disk()
    start(disk, cluster="c", group="g", node_id="n")
    sentence = f"made for {what.replace('_', ' ')} '{what[0]}', not 'other'; it is fixed"
    names: dict[str, str] = {what: "other"}
    with pytest.raises(DataDirectoryError, match=sentence):
        start(disk, **names)  # type: ignore[arg-type]  # a name, not the seed
    found = read_identity(disk)
    assert found is not None
    assert found.incarnation == 1


def test_a_name_has_to_have_bytes_but_not_too_many() -> None:
    for name in ("", "ä" * 128):
        with pytest.raises(DataDirectoryError, match="1 to 255 bytes"):
            start(new_disk(), group=name)
    assert start(new_disk(), group="ä" * 127).group == "ä" * 127


@pytest.mark.parametrize(
    "name", ["message_log", "schedule_log", "dispatch_log", "seals", "checkpoint"]
)
def test_logs_without_an_identity_are_never_given_a_new_one(name: str) -> None:
    disk = new_disk()
    disk.make_directory(name)
    with pytest.raises(DataDirectoryError, match=f"there is a {name} but no identity file"):
        start(disk)
    assert not disk.exists("identity")


def test_a_damaged_identity_is_refused_and_left_as_it_is() -> None:
    data = flipped(encode_identity(IDENTITY), 700)
    disk = disk_of({"identity": data})
    with pytest.raises(DamagedError, match="identity"):
        start(disk)
    assert disk.contents()["identity"] == data


@pytest.mark.parametrize(
    ("place", "byte", "words"),
    [(96, 0xFF, "no text"), (88, 0, "names of"), (89, 1, "names of")],
    ids=["a name that is no UTF-8", "names that end early", "names that end late"],
)
def test_an_identity_whose_crc_is_right_but_whose_names_are_none_is_damage(
    place: int, byte: int, words: str
) -> None:
    data = bytearray(encode_identity(IDENTITY))
    data[place] = byte
    crc = zlib.crc32(data[64:-4], log_seed(IDENTITY.log_uuid, LogKind.IDENTITY))
    data[-4:] = struct.pack("<I", crc)
    with pytest.raises(DamagedError, match=words):
        decode_identity(bytes(data), path="identity")


def test_a_newer_version_is_refused_in_a_clear_sentence() -> None:
    header = struct.pack("<4sHH", b"DWLG", 3, 64) + bytes(52)
    data = header + struct.pack("<I", zlib.crc32(header)) + bytes(60)
    with pytest.raises(UnsupportedFormatError, match=r"version 3.*newer delaywheel"):
        start(disk_of({"identity": data}))


def test_a_full_disk_leaves_the_old_identity() -> None:
    disk = disk_of({"identity": encode_identity(IDENTITY)})
    disk.arm(Trap(action=Action.FULL, kinds={"write"}))
    with pytest.raises(StorageFullError):
        start(disk)
    assert read_identity(disk) == IDENTITY
    assert start(disk).incarnation == 4


@seeds_in_parts(150)
def test_a_power_cut_at_any_operation_leaves_one_identity_that_counts_up(seeds: range) -> None:
    for seed in seeds:
        disk = SimDisk(random.Random(seed), plan=HARSH)
        last: Identity | None = None
        for life in range(6):
            disk.arm(
                Trap(action=Action.POWER_CUT, skip=random.Random(seed * 7 + life).randrange(24))
            )
            try:
                identity = start(disk, seed=seed + life)
                if last is not None:
                    assert replace(identity, incarnation=0) == replace(last, incarnation=0)
                    assert identity.incarnation > last.incarnation
                last = identity
                disk.power_cut()
            except PowerCut:
                pass
            disk = disk.revive()
        found = read_identity(disk)
        assert last is None or (found is not None and found.incarnation >= last.incarnation)


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("identity.md") == [encode_identity(IDENTITY)]


def test_an_identity_that_the_disk_cannot_read_is_damaged() -> None:
    disk = new_disk()
    start(disk)
    disk.arm(Trap(action=Action.EIO, kinds={"read"}))
    with pytest.raises(DamagedError, match="cannot be read"):
        read_identity(disk)
