"""Verify names every damage with file and position and says nothing about what is healthy."""

import os
import random
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.errors import DataDirectoryError
from storage.disk.spans import MINUTE_MS
from storage.node.store import DURABLE_END_PATH
from storage.state.checkpoint import CHECKPOINT_PATH
from storage.state.identity import IDENTITY_PATH, decode_identity
from storage.tools.inspect import dump_files, verify_files
from tests.golden.directory import written
from tests.kit.dumped import records_of
from tests.seeds import each_seed
from tests.simulation.faults import HARSH
from tests.storage.small_segments import KEY, example_segment, segment_disk
from tests.storage.store_rig import START_MS, StoreRig, limited

HOUR_MS = 60 * MINUTE_MS


def lived_in() -> StoreRig:
    """Return a running store with several batches in a file of every kind."""
    rig = StoreRig(1)
    rig.open()
    rig.split()
    for place in range(40):
        rig.commit([START_MS + place, START_MS + 3 * MINUTE_MS, START_MS + 100 * HOUR_MS])
        rig.file()
        rig.load(steps=10)
        rig.now_ms += 100
        rig.deliver()
        rig.cross_off()
        rig.checkpoint()
        rig.sync_durable_end()
    for minutes in (2, 3):
        rig.now_ms += minutes * MINUTE_MS
        rig.split()
        rig.load(steps=10)
        rig.deliver()
        rig.cross_off()
        rig.commit_floor()
        rig.file()
        rig.checkpoint()
    for place in range(3):
        rig.commit([rig.now_ms + place + 10])
        rig.file()
        rig.checkpoint()
    rig.load(steps=10)
    rig.now_ms += 12
    rig.deliver(2)
    rig.cross_off()
    rig.checkpoint()
    return rig


def damage_in(root: Path) -> dict[str, list[str]]:
    """Return what verify finds, by file."""
    found = {}
    for record in verify_files(root):
        damage = record["damage"]
        assert isinstance(damage, list)
        if damage:
            found[str(record["file"])] = damage
    return found


def test_a_running_directory_is_healthy_and_everything_is_looked_at(tmp_path: Path) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    root = written(files, tmp_path)
    assert damage_in(root) == {}
    looked_at = {str(record["file"]) for record in verify_files(root)}
    assert looked_at == files.keys() - {"lock"}


@each_seed(12)
def test_a_directory_is_healthy_after_any_step_and_after_recovery(
    seed: int, tmp_path: Path
) -> None:
    rig = StoreRig(seed, plan=HARSH)
    rig.open()
    for life in range(3):
        for step in range(6):
            for _ in range(20):
                rig.random_step()
            root = written(rig.disk.contents(), tmp_path / f"{life}-{step}")
            assert damage_in(root) == {}
        rig.disk.power_cut()
        rig.reopen()
        assert damage_in(written(rig.disk.contents(), tmp_path / f"{life}")) == {}


def test_damage_in_every_kind_of_file_is_named_with_its_position(tmp_path: Path) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    needed = sorted(files.keys() - {"lock", *(file.path for file in rig.store.checkpoint.retired)})
    chance = random.Random(5)
    struck = set()
    for number in range(250):
        path = chance.choice(needed)
        data = bytearray(files[path])
        if path.endswith("/durable_end"):
            position = chance.choice([0, 512]) + chance.randrange(80)
        else:
            position = chance.randrange(len(data))
        data[position] ^= 1 << chance.randrange(8)
        root = written(files | {path: bytes(data)}, tmp_path / str(number))
        found = damage_in(root)
        assert path in found, (path, position)
        where = int(found[path][0].partition(":")[0])
        assert where < len(data)
        if path.endswith((".log", ".minute", ".day", ".hour")):
            assert where in {0, files[path].rfind(b"DWB1", 0, position + 4)}
        struck.add(path.split("/")[0])
        others = found.keys() - {path}
        # Without identity or checkpoint less is known of the others.
        assert not others or path == "identity", (path, found)
    assert struck == {
        "identity",
        "checkpoint",
        "message_log",
        "schedule_log",
        "dispatch_log",
        "seals",
    }


def test_files_that_are_gone_short_or_swapped_are_named(tmp_path: Path) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    state = next(state for state in rig.store.checkpoint.segments if state.facts_length)
    path, facts_path = state.key.path, state.key.facts_path
    assert damage_in(without(files, path, tmp_path / "gone")) == {path: ["0: the file is gone"]}
    short = files | {path: files[path][: state.length - 1]}
    assert path in damage_in(written(short, tmp_path / "short"))
    other = next(name for name in files if name.startswith("schedule_log") and name != path)
    swapped = files | {path: files[other]}
    assert "this is the file of" in damage_in(written(swapped, tmp_path / "swap"))[path][0]
    mixed = files | {facts_path: files[path]}
    assert "SCHEDULE_LOG file where" in damage_in(written(mixed, tmp_path / "mix"))[facts_path][0]


def numbered_files(files: Mapping[str, bytes], directory: str) -> list[str]:
    return sorted(
        name for name in files if name.startswith(f"{directory}/0") and name.endswith(".log")
    )


def without(files: Mapping[str, bytes], name: str, root: Path) -> Path:
    return written({path: data for path, data in files.items() if path != name}, root)


@pytest.mark.parametrize("path", [IDENTITY_PATH, CHECKPOINT_PATH])
def test_what_no_directory_is_without_is_missed(path: str, tmp_path: Path) -> None:
    files = lived_in().disk.contents()
    [fault] = damage_in(without(files, path, tmp_path / "left"))[path]
    assert "no identity file" in fault or "the file is gone" in fault
    assert damage_in(written({"identity": files["identity"]}, tmp_path / "new")) == {}
    for size in (0, 10, 63):
        cut = files | {path: files[path][:size]}
        assert path in damage_in(written(cut, tmp_path / str(size)))


def test_a_retired_file_before_one_that_is_deleted_already_is_no_damage(tmp_path: Path) -> None:
    # A power cut after files were deleted may bring back the first of them and not the next.
    rig = StoreRig(1, settings=limited(message_log_keep_ms=0, duplicate_window_ms=0))
    rig.open()
    for place in range(200):
        rig.commit([rig.now_ms + place])
        rig.file()
    rig.checkpoint()
    rig.checkpoint()
    files = rig.disk.contents()
    retired = sorted(x.path for x in rig.store.checkpoint.retired)
    assert len(retired) > 2
    assert retired == numbered_files(files, "message_log")[: len(retired)]
    assert damage_in(without(files, retired[1], tmp_path)) == {}


def test_what_lies_beyond_what_counts_is_no_damage(tmp_path: Path) -> None:
    files = lived_in().disk.contents()
    last = max(name for name in files if name.startswith("message_log/0"))
    for number, tail in enumerate((b"\0" * 5000, b"DWB1garbage" * 100, b"x")):
        root = written(files | {last: files[last] + tail}, tmp_path / str(number))
        assert damage_in(root) == {}


def test_a_single_file_can_be_verified_in_its_place_and_elsewhere(tmp_path: Path) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    root = written(files, tmp_path / "data")
    path = rig.store.checkpoint.segments[0].key.path
    [record] = verify_files(root / path)
    assert (record["file"], record["damage"]) == (path, [])
    alone = written({"copy.minute": files[path]}, tmp_path / "alone")
    [record] = verify_files(alone / "copy.minute")
    assert record["damage"] == []
    assert record["records"] == rig.store.checkpoint.segments[0].rows


def test_dump_shows_every_batch_and_every_small_file(tmp_path: Path) -> None:
    rig = lived_in()
    lines = list(dump_files(written(rig.disk.contents(), tmp_path)))
    assert not [line for line in lines if "damage" in line]
    records = list(records_of(lines))
    messages = {one["sequence"] for one in records if one["kind"] == "MESSAGE"}
    assert messages == rig.memory.accepted.keys()
    assert {one["sequence"] for one in records if one["kind"] == "ROWS"} == messages
    facts = [one for one in records if one["kind"] == "FACTS"]
    assert {one["sequence"] for one in facts} == rig.memory.durable_facts
    contents = {str(line["file"]) for line in lines if "content" in line}
    assert contents == {IDENTITY_PATH, CHECKPOINT_PATH, DURABLE_END_PATH}


def test_a_batch_of_a_newer_version_ends_the_dump_of_its_file_and_of_no_other(
    tmp_path: Path,
) -> None:
    files = lived_in().disk.contents()
    [path, *_] = numbered_files(files, "message_log")
    data = bytearray(files[path])
    data[64 + 8] = 1
    identity = decode_identity(files["identity"], path="identity")
    seed = log_seed(identity.log_uuid, LogKind.MESSAGE_LOG)
    data[64 + 76 : 64 + 80] = zlib.crc32(data[64 : 64 + 76], seed).to_bytes(4, "little")
    lines = list(dump_files(written(files | {path: bytes(data)}, tmp_path)))
    [damage] = [line for line in lines if "damage" in line]
    assert (damage["file"], damage["position"]) == (path, 64)
    assert "unknown feature bits" in str(damage["damage"])
    assert [line for line in lines if line.get("kind") == "SEALS"]


def test_a_file_named_by_digits_that_are_no_number_is_told(tmp_path: Path) -> None:
    disk = segment_disk()
    example_segment(disk)
    other = tmp_path / "\u00b2\u00b2.log"
    other.write_bytes(disk.contents()[KEY.facts_path])
    assert [record["damage"] for record in verify_files(other)] == [[]]


def test_dump_shows_damage_in_its_place_and_goes_on(tmp_path: Path) -> None:
    files = lived_in().disk.contents()
    path = min(numbered_files(files, "message_log"))
    data = bytearray(files[path])
    place = data.index(b"DWB1", 64 + 100)
    data[place + 90] ^= 1
    lines = list(dump_files(written(files | {path: bytes(data)}, tmp_path)))
    [damage] = [line for line in lines if "damage" in line]
    assert (damage["file"], damage["position"]) == (path, place)
    assert len([line for line in lines if line.get("kind") == "MESSAGE"]) > 20


def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    root = written(lived_in().disk.contents(), tmp_path)
    os.mkfifo(root / "schedule_log" / "20301121T2210Z.minute")
    (root / "message_log" / "00000000000000009999.log").mkdir()
    found = damage_in(root)
    assert "is a FIFO" in found["schedule_log/20301121T2210Z.minute"][0]
    assert "is a directory" in found["message_log/00000000000000009999.log"][0]
    assert len(list(dump_files(root))) > 100


def test_a_directory_without_any_log_is_not_called_healthy(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataDirectoryError, match="is no data directory"):
        list(verify_files(tmp_path / "empty"))
