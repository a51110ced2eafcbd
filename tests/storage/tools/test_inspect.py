"""Verify names every damage with file and position and says nothing about what is healthy."""

import os
import random
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.batch.batches import log_seed
from storage.batch.file_header import LogKind
from storage.disk.errors import DataDirectoryError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.schedule.seals import SealsEnd, SealsLog, columns_of_seals
from storage.schedule.segment import Segment
from storage.state.identity import decode_identity
from storage.tools.inspect import dump_records, verify_files
from tests.seeds import each_seed
from tests.simulation.faults import HARSH
from tests.storage.small_logs import LOG_UUID, disk_of
from tests.storage.small_segments import (
    EXAMPLE_SEAL,
    KEY,
    delivered,
    example_segment,
    segment_disk,
)
from tests.storage.starting import start
from tests.storage.store_rig import SETTINGS, START_MS, StoreRig, limited

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


def written(files: Mapping[str, bytes], root: Path) -> Path:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


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
    kinds = {str(record["kind"]) for record in verify_files(root)}
    assert kinds == {
        "IDENTITY",
        "CHECKPOINT",
        "DURABLE_END",
        "MESSAGE_LOG",
        "SCHEDULE_LOG",
        "DISPATCH_LOG",
        "SEALS",
    }


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
    gone = {name: data for name, data in files.items() if name != path}
    assert damage_in(written(gone, tmp_path / "gone")) == {path: ["0: the file is gone"]}
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


@pytest.mark.parametrize("path", ["identity", "checkpoint/checkpoint"])
def test_what_no_directory_is_without_is_missed(path: str, tmp_path: Path) -> None:
    files = lived_in().disk.contents()
    left = {name: data for name, data in files.items() if name != path}
    assert damage_in(written(left, tmp_path / "left"))[path] == ["0: the file is gone"]
    assert damage_in(written({"identity": files["identity"]}, tmp_path / "new")) == {}
    for size in (0, 10, 63):
        cut = files | {path: files[path][:size]}
        assert path in damage_in(written(cut, tmp_path / str(size)))


def missing_behind(rig: StoreRig, records: range) -> str:
    """Return what verify says of records that are in no file of the message_log."""
    unfiled = records.stop - max(records.start, rig.store.checkpoint.sequence + 1)
    again = f"; up to {unfiled} messages may be sent again" if unfiled > 0 else ""
    return f"{records.start} to {records.stop - 1} are missing{again}"


def test_a_file_of_the_message_log_that_is_missing_is_named_by_the_one_before_it(
    tmp_path: Path,
) -> None:
    rig = lived_in()
    for place in range(120):
        rig.commit([rig.now_ms + place])
        rig.file()
        rig.load(steps=10)
        rig.now_ms += 200
        rig.deliver()
        rig.state_facts()
    files = rig.disk.contents()
    *_, before, gone, last = numbered_files(files, "message_log")
    found = damage_in(without(files, gone, tmp_path))
    records = range(int(gone[-24:-4]), int(last[-24:-4]))
    assert records.start > rig.store.checkpoint.sequence
    assert [text.partition(": ")[2] for text in found.pop(before)] == [missing_behind(rig, records)]
    assert found == {}


def test_the_first_files_of_the_message_log_are_missed(tmp_path: Path) -> None:
    rig = lived_in()
    last = max(numbered_files(rig.disk.contents(), "message_log"))
    while max(numbered_files(rig.disk.contents(), "message_log")) == last:
        rig.commit([rig.now_ms])
    files = rig.disk.contents()
    numbered = numbered_files(files, "message_log")
    filed = rig.store.checkpoint.sequence
    # A start would replay some of the first, and none of the second.
    for first_left, is_needed in ((numbered[-1], True), (numbered[1], False)):
        first = int(first_left[-24:-4])
        assert (filed + 1 < first) is is_needed
        left = {
            path: data for path, data in files.items() if path not in numbered or path >= first_left
        }
        assert damage_in(written(left, tmp_path / str(first))) == {
            first_left: [f"0: {missing_behind(rig, range(1, first))}"]
        }


def test_what_damaged_records_may_cost_is_told_if_no_checkpoint_covers_them(
    tmp_path: Path,
) -> None:
    rig = lived_in()
    filed = rig.store.checkpoint.sequence
    rig.commit([rig.now_ms + place for place in range(7)])
    rig.commit([rig.now_ms])
    files = rig.disk.contents()
    path = max(numbered_files(files, "message_log"))
    begin = files[path].rindex(b"DWB1", 0, files[path].rindex(b"DWB1"))
    struck = bytearray(files[path])
    struck[begin + 90] ^= 1
    damage, lost = damage_in(written(files | {path: bytes(struck)}, tmp_path / "one"))[path]
    assert damage.startswith(f"{begin}: ")
    assert lost == f"{begin}: {missing_behind(rig, range(filed + 1, filed + 8))}"
    assert "up to 7 messages" in lost
    cut = damage_in(written(files | {path: files[path][:begin]}, tmp_path / "cut"))[path]
    assert cut[0] == f"{begin}: {missing_behind(rig, range(filed + 1, filed + 9))}"


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


def test_what_lies_beyond_what_is_vouched_for_is_a_tail(tmp_path: Path) -> None:
    files = lived_in().disk.contents()
    last = max(name for name in files if name.startswith("message_log/0"))
    for number, tail in enumerate((b"\0" * 5000, b"DWB1garbage" * 100, b"x")):
        root = written(files | {last: files[last] + tail}, tmp_path / str(number))
        assert damage_in(root) == {}
        [record] = [record for record in verify_files(root) if record["file"] == last]
        assert record["tail bytes"] == len(tail)


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


def test_dump_shows_every_record(tmp_path: Path) -> None:
    rig = lived_in()
    records = list(dump_records(written(rig.disk.contents(), tmp_path)))
    assert not [record for record in records if "damage" in record]
    messages = {record["sequence"] for record in records if record.get("kind") == "MESSAGE"}
    assert messages == rig.memory.accepted.keys()
    rows = [record["sequence"] for record in records if record.get("kind") == "ROWS"]
    assert set(rows) == rig.memory.accepted.keys()
    facts = [record for record in records if record.get("kind") == "FACTS"]
    stated = {record["of"]: record["sequence"] for record in facts if "sequence" in record}
    assert stated.keys() == rig.memory.durable_facts
    assert rig.memory.accepted.keys().isdisjoint(stated.values())
    filed = {record["of"] for record in facts if "fact" in record}
    assert filed == rig.memory.durable_facts
    assert {record["outcome"] for record in facts} == {"delivered"}
    seals = [record for record in records if "seal" in record]
    assert len({(seal["start minute"], seal["span"]) for seal in seals}) == len(rig.seals())
    assert {seal["span"] for seal in seals} == {"minute"}
    segments = {record["segment"] for record in records if "facts bytes" in record}
    assert segments == {state.key.name for state in rig.store.checkpoint.segments}
    assert {record["kind"] for record in records if {"epoch", "kind"} <= record.keys()} == {
        "EPOCH_START",
        "FLOOR",
    }


def test_dump_shows_a_fact_of_an_outcome_that_it_does_not_know(tmp_path: Path) -> None:
    disk = segment_disk()
    segment = Segment.new(disk, LOG_UUID, KEY)
    facts = replace(delivered([2]), outcome=np.array([99], np.uint8))
    segment.append_facts(facts, epoch=1, append_ms=0)
    [record] = dump_records(written(disk.contents(), tmp_path) / KEY.facts_path)
    assert (record["fact"], record["of"]) == (1, 2)
    assert record["outcome"] == "unknown (99)"


def test_a_batch_of_a_newer_version_ends_the_dump_of_its_file_and_of_no_other(
    tmp_path: Path,
) -> None:
    files = lived_in().disk.contents()
    [path, *_] = [path for path in files if path.startswith("message_log/0")]
    data = bytearray(files[path])
    data[64 + 8] = 1
    identity = decode_identity(files["identity"], path="identity")
    seed = log_seed(identity.log_uuid, LogKind.MESSAGE_LOG)
    data[64 + 76 : 64 + 80] = zlib.crc32(data[64 : 64 + 76], seed).to_bytes(4, "little")
    records = list(dump_records(written(files | {path: bytes(data)}, tmp_path)))
    [damage] = [record for record in records if "damage" in record]
    assert (damage["file"], damage["position"]) == (path, 64)
    assert "newer delaywheel" in str(damage["damage"])
    assert [record for record in records if "seal" in record]


def test_a_seal_of_no_segment_is_damage_to_verify_and_shown_by_dump(tmp_path: Path) -> None:
    disk = segment_disk()
    log, _ = SealsLog.recover(disk, LOG_UUID, end=SealsEnd(), file_bytes_max=100_000)
    odd = replace(EXAMPLE_SEAL, key=SegmentKey(61, Span.HOUR))
    log.append(columns_of_seals([odd]), append_ms=0)
    log.append(columns_of_seals([EXAMPLE_SEAL]), append_ms=0)
    path = written(disk.contents(), tmp_path) / "seals/00000000000000000001.log"
    assert "span 2 from minute 61" in str(damage_in(path))
    first, second = dump_records(path)
    assert (first["span"], first["start minute"]) == ("hour", "1970-01-01T01:01:00.000Z")
    assert (second["seal"], second["span"]) == (2, EXAMPLE_SEAL.key.span.name.lower())


def test_a_file_named_by_digits_that_are_no_number_is_told(tmp_path: Path) -> None:
    disk = segment_disk()
    example_segment(disk)
    other = tmp_path / "\u00b2\u00b2.log"
    other.write_bytes(disk.contents()[KEY.facts_path])
    assert [record["damage"] for record in verify_files(other)] == [[]]


def test_dump_shows_damage_in_its_place_and_goes_on(tmp_path: Path) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    path = min(name for name in files if name.startswith("message_log/0"))
    data = bytearray(files[path])
    place = data.index(b"DWB1", 64 + 100)
    data[place + 90] ^= 1
    records = list(dump_records(written(files | {path: bytes(data)}, tmp_path)))
    [damage] = [record for record in records if "damage" in record]
    assert (damage["file"], damage["position"]) == (path, place)
    assert len([record for record in records if record.get("kind") == "MESSAGE"]) > 20


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_that_is_gone_whole_is_reported_as_the_server_does(
    whole: bool, tmp_path: Path
) -> None:
    rig = lived_in()
    gone = "message_log/" if whole else "message_log/0"
    last, filed = rig.store.message_log.next_sequence - 1, rig.store.checkpoint.sequence
    rig.commit([rig.now_ms] * 5)
    left = {path: data for path, data in rig.disk.contents().items() if not path.startswith(gone)}
    found = damage_in(written(left, tmp_path))
    _, summary = start(
        disk_of(left),
        SETTINGS,
        chance=random.Random(1),
        now_ms=rig.now_ms,
        on_damage=lambda _: None,
    )
    [said] = [damage for damage in summary.damages if damage.path == "message_log"]
    # Without the durable end nobody knows of what was committed since the checkpoint.
    last += 0 if whole else 5
    again = f"; up to {last - filed} messages may be sent again" if last > filed else ""
    assert said.reason == f"no file is left of a log that had {last} records"
    assert found["message_log"] == [f"0: {said.reason}{again}"]


def test_records_that_the_checkpoint_knows_must_be_there_with_the_durable_end_gone_too(
    tmp_path: Path,
) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    *_, before, last = sorted(path for path in files if path.startswith("message_log/0"))
    del files[last], files["message_log/durable_end"]
    first, after = int(last[-24:-4]), rig.store.checkpoint.sequence
    assert first <= after
    found = damage_in(written(files, tmp_path))
    assert [text.partition(": ")[2] for text in found[before]] == [
        f"{first} to {after} are missing"
    ]


def test_an_empty_file_amid_the_records_of_another_is_no_part_of_the_log(tmp_path: Path) -> None:
    rig = lived_in()
    files = rig.disk.contents()
    host, *_ = sorted(path for path in files if path.startswith("message_log/0"))
    stray = f"message_log/{int(host[-24:-4]) + 1:020d}.log"
    found = damage_in(written(files | {stray: b""}, tmp_path))
    [reason] = found.pop(stray)
    assert host in reason
    assert reason.endswith("it is no part of the log, move it away")
    assert found == {}


def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    root = written(lived_in().disk.contents(), tmp_path)
    os.mkfifo(root / "schedule_log" / "20301121T2210Z.minute")
    (root / "message_log" / "00000000000000009999.log").mkdir()
    found = damage_in(root)
    assert "is a FIFO" in found["schedule_log/20301121T2210Z.minute"][0]
    assert "is a directory" in found["message_log/00000000000000009999.log"][0]
    assert len(list(dump_records(root))) > 100


def test_a_directory_without_any_log_is_not_called_healthy(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataDirectoryError, match="is no data directory"):
        list(verify_files(tmp_path / "empty"))


def test_a_checkpoint_is_missed_wherever_a_log_is_left(tmp_path: Path) -> None:
    files = lived_in().disk.contents()
    kept = {path: data for path, data in files.items() if path.startswith(("seals", "schedule"))}
    found = damage_in(written(kept, tmp_path))
    assert found["checkpoint/checkpoint"] == ["0: the file is gone"]
    assert found["identity"] == ["0: the file is gone"]
