"""A manifest is one moment of a data directory, whatever the server does while it is read."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from storage.batch.batches import Damage
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError, DataDirectoryError, UnsupportedFormatError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_name
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.manifest import (
    MANIFEST_SCHEMA,
    Manifest,
    SealedSegment,
    UnsealedSegment,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from storage.schedule.seals import read_last_seals
from storage.state.checkpoint import CHECKPOINT_PATH, read_checkpoint
from storage.state.durable_end import SLOT_POSITIONS
from storage.state.identity import read_identity
from storage.state.promise_file import PROMISE_PATH
from tests.damage.directory import populated
from tests.seeds import each_seed
from tests.simulation.disk import SimFile
from tests.storage.dead_rig import DeadRig
from tests.storage.small_logs import disk_of, flipped
from tests.storage.starting import start
from tests.storage.store_rig import GRACE_MS, SETTINGS, SWEPT, StoreRig

Segments = UnsealedSegment | SealedSegment
END_PATH = "message_log/durable_end"


class StirredDisk:
    """A rig's disk as a reader has it: the server goes on before whatever the reader does."""

    def __init__(self, rig: StoreRig, *, share: float, dies: bool) -> None:
        """share: of moments in which the server does something; dies: whether it is also killed."""
        self._rig = rig
        self._share = share
        self._dies = dies
        self._until_ms = rig.now_ms + rig.settings.limits.retired_grace_ms

    def stir(self, *, may_die: bool = False) -> None:
        """Let the server do something; the clock stays within the grace of what was read first."""
        rig = self._rig
        while rig.chance.random() < self._share:
            if may_die and self._dies and rig.chance.random() < 0.05:
                rig.disk.kill()
                rig.reopen()
            now_ms = rig.now_ms
            if rig.chance.random() < 0.15 and now_ms + 1000 < self._until_ms:
                # What took the server a while, all between two reads.
                rig.commit([now_ms, now_ms + 500, now_ms + 5 * MINUTE_MS])
                rig.commit_floor()
                rig.file(10**6)
                rig.file_and_deliver()
                rig.split(10)
                rig.checkpoint()
            else:
                rig.random_step()
            if rig.now_ms >= self._until_ms:
                rig.now_ms = now_ms

    def open_read(self, path: str) -> "StirredFile":
        self.stir(may_die=True)
        return StirredFile(self, self._rig.disk.open_read(path))

    def exists(self, path: str) -> bool:
        self.stir(may_die=True)
        return self._rig.disk.exists(path)

    def list(self, directory: str) -> Sequence[str]:
        self.stir(may_die=True)
        return self._rig.disk.list(directory)


class StirredFile:
    def __init__(self, disk: StirredDisk, file: SimFile) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        self.close = file.close

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.stir()
        return self._file.read_at(position, size)

    def size(self) -> int:
        self._disk.stir()
        return self._file.size()


@dataclass(frozen=True, slots=True)
class Known:
    """What a rig knew at one moment."""

    accepted: frozenset[int]
    facts: frozenset[int]
    dead: frozenset[int]

    @classmethod
    def of(cls, rig: StoreRig) -> "Known":
        dead = rig.dead.rows if isinstance(rig, DeadRig) else {}
        return cls(
            frozenset(rig.memory.accepted), frozenset(rig.memory.durable_facts), frozenset(dead)
        )


def tables(rig: StoreRig, disk: Disk, manifest: Manifest, kind: Kind) -> list[dict[str, Any]]:
    """Return all rows of a kind that the manifest commits; none of them may be damaged.

    Of facts those that are filed, and all that the message_log states.
    """
    reader = ArrowReader(disk, rig.store.identity.log_uuid, kind)
    found: list[Any] = []
    if kind is Kind.MESSAGE:
        for log in manifest.message_log:
            found += reader.messages(
                log.file,
                length=log.length,
                first_sequence=log.first_sequence,
                next_sequence=log.next_sequence,
            )
    elif kind is Kind.DISPATCH:
        for segment in there(manifest, dead=None):
            found += reader.filed_facts(segment.facts_file, length=segment.facts_length)
        for log in manifest.message_log:
            found += reader.stated_facts(
                log.file,
                length=log.length,
                first_sequence=log.first_sequence,
                next_sequence=log.next_sequence,
            )
    else:
        for segment in there(manifest, dead=kind is Kind.DEAD):
            before = len(found)
            found += reader.rows(segment.file, length=segment.length)
            assert segment.rows == sum(table.num_rows for table in found[before:])
    assert not [one for one in found if isinstance(one, Damage)]
    return [row for table in found for row in table.to_pylist()]


def there(manifest: Manifest, *, dead: bool | None) -> Iterator[Segments]:
    """Yield the segments whose files are there: of dead messages, of others, or all."""
    if dead is not True:
        yield from manifest.segments
        yield from (seal for seal in manifest.sealed if not seal.deleted)
    if dead is not False:
        yield from manifest.dead_segments
        yield from (seal for seal in manifest.dead_sealed if not seal.deleted)


def key_of(segment: Segments) -> SegmentKey:
    key = key_of_name(segment.file.rpartition("/")[2])
    assert key is not None
    assert key.facts_path == segment.facts_file
    assert (key.start, key.span.name.lower()) == (segment.start_minute, segment.span)
    return key


def unsealed(manifest: Manifest) -> dict[int, UnsealedSegment]:
    """Return the unsealed segment of each filed minute."""
    return {
        minute: segment
        for segment in (*manifest.segments, *manifest.dead_segments)
        for minute in range(*key_of(segment).filed_minutes)
    }


def check(rig: StoreRig, disk: Disk, manifest: Manifest, before: Known) -> None:
    """Hold a manifest against what the rig knew before it was read, and what it knows now."""
    assert manifest.faults == ()
    after = Known.of(rig)
    accepted: list[Segments] = [*manifest.segments, *manifest.sealed]
    spans = [key_of(one) for one in accepted]
    minutes = Counter(minute for key in spans for minute in range(key.start, key.end))
    assert set(minutes.values()) <= {1}, "segments overlap"
    deleted = {
        minute
        for seal in manifest.sealed
        if seal.deleted
        for minute in range(key_of(seal).start, key_of(seal).end)
    }
    # As the rig knows it: the manifest does not tell of those whose seals are gone, too.
    dead_deleted = any(
        seal.deleted and seal.key.span is Span.DEAD for seal in rig.memory.sealed.values()
    )
    open_segments = unsealed(manifest)
    log = tables(rig, disk, manifest, Kind.MESSAGE)
    told = tables(rig, disk, manifest, Kind.DISPATCH)
    records = {row["sequence"] for row in log} | {row["record"] for row in told} - {None}
    assert records == set(range(manifest.message_log[0].first_sequence, manifest.log_next_sequence))
    assert manifest.message_log[0].first_sequence <= manifest.sequence + 1
    unfiled = [
        row
        for row in log
        if row["sequence"] > manifest.sequence
        and (
            (home := open_segments.get(row["filed_minute"])) is None
            or row["sequence"] > home.last_sequence
        )
    ]
    # Messages: each one once.
    rows = Counter(row["sequence"] for row in tables(rig, disk, manifest, Kind.SCHEDULE))
    rows.update(row["sequence"] for row in unfiled if row["kind"] in {"message", "move"})
    gone = {
        sequence
        for sequence, message in rig.memory.accepted.items()
        if message.minute in deleted and sequence < manifest.log_next_sequence
    }
    assert sum(seal.rows for seal in manifest.sealed if seal.deleted) == len(gone)
    assert set(rows.values()) <= {1}
    forgotten = {sequence for sequence in rig.memory.accepted if rig.is_deleted(sequence)} - gone
    assert before.accepted <= rows.keys() | gone | forgotten
    assert rows.keys() | gone <= after.accepted
    assert not rows.keys() & gone
    assert max(rows, default=0) < manifest.log_next_sequence
    # Those that were given up.
    dead = Counter(row["sequence"] for row in tables(rig, disk, manifest, Kind.DEAD))
    dead.update(row["sequence"] for row in unfiled if row["kind"] == "dead")
    assert set(dead.values()) <= {1}
    if not dead_deleted:
        assert before.dead <= dead.keys() <= after.dead
    # Facts: each one once, and of a message that the manifest knows.
    waiting = {row["filed_minute"] for row in unfiled}
    facts = Counter(row["sequence"] for row in told if row["is_filed"])
    facts.update(
        row["sequence"]
        for row in told
        if not row["is_filed"]
        and row["record"] > manifest.sequence
        and (
            row["filed_minute"] in waiting
            if (home := open_segments.get(row["filed_minute"])) is None
            else row["record"] > home.last_fact
        )
    )
    assert set(facts.values()) <= {1}
    assert facts.keys() <= rig.memory.attempted_facts
    if not dead_deleted:
        assert before.facts <= facts.keys() | gone | forgotten
        assert facts.keys() <= rows.keys() | dead.keys()
    assert not facts.keys() & gone
    # Seals: as they say.
    for seal in manifest.sealed:
        assert seal.rows == seal.distinct == sum(seal.outcomes.values())
    assert decode_manifest(encode_manifest(manifest), path="m") == manifest


RULES = replace(SWEPT)
"""As SWEPT, but for the rig's never running out of disk, which cuts graces short."""


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("rig_class", [StoreRig, DeadRig])
@each_seed(8, quick=2)
def test_a_manifest_that_is_read_while_the_server_goes_on_contradicts_nothing(
    seed: int, rig_class: type[StoreRig], dies: bool
) -> None:
    rig = rig_class(seed, settings=RULES if seed % 3 else SETTINGS)
    rig.open()
    for _ in range(6):
        for _ in range(rig.chance.randrange(100)):
            rig.random_step()
        rig.checkpoint()
        before = Known.of(rig)
        stir = StirredDisk(rig, share=rig.chance.choice([0.05, 0.2, 0.4]), dies=dies)
        manifest = read_manifest(cast("Disk", stir), now_ms=rig.now_ms)
        for _ in range(20):
            stir.stir()
        check(rig, rig.disk, manifest, before)


# -- the rest --------------------------------------------------------------------------------


@pytest.fixture(name="files")
def files_fixture() -> dict[str, bytes]:
    return dict(populated(3).files)


def manifest_of(files: dict[str, bytes]) -> Manifest:
    return read_manifest(disk_of(files), now_ms=1)


def test_it_says_whose_data_this_is_and_what_the_checkpoint_does(files: dict[str, bytes]) -> None:
    disk = disk_of(files)
    manifest, identity = manifest_of(files), read_identity(disk)
    assert identity is not None
    checkpoint = read_checkpoint(disk, identity.log_uuid)
    assert checkpoint is not None
    assert manifest.faults == ()
    assert (manifest.schema, manifest.made_ms) == (MANIFEST_SCHEMA, 1)
    assert (manifest.cluster, manifest.group, manifest.node_id) == (
        identity.cluster,
        identity.group,
        identity.node_id,
    )
    assert UUID(manifest.log_uuid) == identity.log_uuid
    assert UUID(manifest.storage_uuid) == identity.storage_uuid
    for name in (
        "written_ms",
        "sequence",
        "first_sequence",
        "floor_minute",
        "hour_mark",
        "day_mark",
        "quarantined",
    ):
        assert getattr(manifest, name) == getattr(checkpoint, name)
    assert manifest.quarantined
    assert manifest.retired == tuple(file.path for file in checkpoint.retired)
    names = {state.key.name for state in checkpoint.segments}
    segments = (*manifest.segments, *manifest.dead_segments)
    assert {key_of(one).name for one in segments} == names
    assert not names & {key_of(one).name for one in manifest.sealed}


def test_of_a_replica_only_what_its_checkpoint_has_applied_counts(files: dict[str, bytes]) -> None:
    sole = manifest_of(files)
    identity = read_identity(disk_of(files))
    assert identity is not None
    checkpoint = read_checkpoint(disk_of(files), identity.log_uuid)
    assert checkpoint is not None
    assert sole.log_next_sequence == sole.durable_next_sequence > checkpoint.last_known + 1
    manifest = manifest_of(files | {PROMISE_PATH: b"{}"})
    assert manifest.faults == ()
    assert manifest.durable_next_sequence == sole.durable_next_sequence
    assert manifest.log_next_sequence == checkpoint.last_known + 1
    assert manifest.message_log[-1].next_sequence == manifest.log_next_sequence
    assert manifest.segments == sole.segments
    kept = {one.file: one for one in manifest.message_log}
    for one in sole.message_log:
        if one.next_sequence <= manifest.log_next_sequence:
            assert kept[one.file] == one
        else:
            assert one.file not in kept or one.first_sequence < manifest.log_next_sequence


def test_what_is_durable_counts_when_no_node_of_the_group_runs_any_more(
    files: dict[str, bytes],
) -> None:
    replica = disk_of(files | {PROMISE_PATH: b"{}"})
    assert read_manifest(replica, now_ms=1).log_next_sequence < manifest_of(files).log_next_sequence
    assert read_manifest(replica, now_ms=1, is_final=True) == manifest_of(files)


def test_nothing_is_written_and_the_lock_is_left_alone(files: dict[str, bytes]) -> None:
    disk = disk_of(files)
    with disk.lock("lock"):
        before, operations = disk.contents(), set(disk.counts)
        read_manifest(disk, now_ms=1)
    assert disk.contents() == before
    assert set(disk.counts) - operations <= {"open_read", "read", "list", "exists", "size"}


def with_deleted_segments() -> StoreRig:
    """Return a store of six segments, all of them deleted for their age."""
    rig = StoreRig(5, settings=RULES)
    rig.open()
    rig.commit([rig.now_ms + place * MINUTE_MS for place in range(6)])
    rig.seal_everything()
    rig.now_ms += 2 * GRACE_MS
    rig.checkpoint()
    rig.checkpoint()
    return rig


def test_only_young_deleted_segments_are_told_of() -> None:
    rig = with_deleted_segments()
    everything = read_manifest(rig.disk, now_ms=rig.now_ms)
    assert everything.faults == ()
    assert [seal.deleted for seal in everything.sealed] == [True] * 6
    third = sorted(seal.start_minute for seal in everything.sealed)[2]
    young = read_manifest(rig.disk, now_ms=rig.now_ms, deleted_from_minute=third + 1)
    assert young.deleted_from_minute == third + 1
    assert {seal.start_minute for seal in young.sealed} == {third + 1, third + 2, third + 3}
    least = read_manifest(rig.disk, now_ms=rig.now_ms, deleted_from_minute=third - 2)
    assert least.sealed == everything.sealed
    assert least.deleted_from_minute == 0, "none was left out"


def test_where_nothing_was_deleted_all_deleted_segments_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = StoreRig(5)
    rig.open()
    rig.commit([rig.now_ms + place * MINUTE_MS for place in range(3)])
    none_sealed = read_manifest(rig.disk, now_ms=rig.now_ms, deleted_from_minute=9)
    assert none_sealed.deleted_from_minute == 0
    rig.seal_everything()
    late = rig.now_ms // MINUTE_MS + 1440
    found = read_manifest(rig.disk, now_ms=rig.now_ms, deleted_from_minute=late)
    assert (len(found.sealed), found.deleted_from_minute) == (3, 0)
    # Where old files of seals were not read, nobody knows what they tell of.
    monkeypatch.setattr(
        "storage.readers.manifest.read_last_seals",
        lambda *which, **how: read_last_seals(*which, **how)._replace(begin=2),
    )
    found = read_manifest(rig.disk, now_ms=rig.now_ms, deleted_from_minute=late)
    assert found.deleted_from_minute == late


def test_a_new_directory_has_an_empty_manifest() -> None:
    rig = StoreRig(1)
    rig.open()
    manifest = read_manifest(rig.disk, now_ms=5)
    assert manifest.faults == ()
    assert (manifest.segments, manifest.sealed) == ((), ())
    assert [log.next_sequence for log in manifest.message_log] == [2], "EPOCH_START"


def test_a_start_that_was_killed_leaves_no_fault() -> None:
    # Before it made its first checkpoint, and before it wrote its first record.
    disk = disk_of({})
    store, _ = start(
        disk,
        replace(SETTINGS, begins_new_log=False),
        chance=random.Random(1),
        now_ms=5,
        on_damage=lambda damage: pytest.fail(f"{damage}"),
    )
    store.close()
    left = disk.contents()
    assert CHECKPOINT_PATH in left
    assert manifest_of(left).faults == ()
    for path in (CHECKPOINT_PATH, END_PATH):
        del left[path]
        assert manifest_of(left).faults == ()


_LOGS = ("checkpoint", "message_log", "dispatch_log", "schedule_log", "seals")


@pytest.mark.parametrize(
    "gone",
    [
        *((name,) for name in _LOGS),
        ("checkpoint", "seals", "message_log", "dispatch_log"),
        ("checkpoint", "seals", "schedule_log", "dispatch_log"),
    ],
)
def test_a_directory_of_which_a_part_is_there_has_faults(
    files: dict[str, bytes], gone: tuple[str, ...]
) -> None:
    left = {path: data for path, data in files.items() if not path.startswith(gone)}
    assert len(left) > 1
    found = manifest_of(left)
    assert found.faults
    assert found.lacks_segments is (not {"checkpoint", "seals"}.isdisjoint(gone))


def test_a_checkpoint_is_never_without_a_durable_end() -> None:
    rig = StoreRig(1)
    rig.open()
    files = rig.disk.contents()
    for gone in ("message_log", END_PATH):
        left = {path: data for path, data in files.items() if not path.startswith(gone)}
        assert END_PATH in [one.file for one in manifest_of(left).faults]


def test_a_directory_without_an_identity_or_a_readable_checkpoint_has_none(
    files: dict[str, bytes],
) -> None:
    with pytest.raises(DataDirectoryError, match="no data directory"):
        read_manifest(disk_of({}), now_ms=1)
    damaged = bytearray(files[CHECKPOINT_PATH])
    damaged[100] ^= 1
    with pytest.raises(DamagedError, match="checkpoint"):
        manifest_of(files | {CHECKPOINT_PATH: bytes(damaged)})


@pytest.mark.parametrize("directory", ["schedule_log", "dispatch_log", "message_log", "seals"])
def test_a_file_that_counts_and_is_gone_is_a_fault(files: dict[str, bytes], directory: str) -> None:
    whole = manifest_of(files)
    named = {segment.file for segment in there(whole, dead=None) if segment.length}
    named |= {one.facts_file for one in there(whole, dead=None) if one.facts_length}
    named |= {whole.message_log[0].file, whole.message_log[-1].file}
    named |= {path for path in files if path.startswith("seals/")}
    for path in sorted(name for name in named if name.startswith(directory)):
        found = manifest_of({name: data for name, data in files.items() if name != path})
        assert found.faults, path
        assert decode_manifest(encode_manifest(found), path="m") == found


def test_a_durable_end_that_is_gone_or_damaged_is_a_fault(files: dict[str, bytes]) -> None:
    assert manifest_of({name: files[name] for name in files if name != END_PATH}).faults
    assert manifest_of(files | {END_PATH: bytes(1024)}).faults


@pytest.mark.parametrize("slot", SLOT_POSITIONS)
def test_a_flipped_bit_in_a_slot_of_a_durable_end_is_a_fault(
    files: dict[str, bytes], slot: int
) -> None:
    """It may have been the newest one: what was durable behind the other is named nowhere then."""
    found = manifest_of(files | {END_PATH: flipped(files[END_PATH], (slot + 40) * 8)})
    [fault] = found.faults
    assert (fault.file, fault.position) == (END_PATH, slot)
    assert "may have been the newest end" in fault.reason


def test_a_slot_that_was_just_being_written_is_looked_at_again(files: dict[str, bytes]) -> None:
    path, disk = END_PATH, disk_of(files)
    torn, open_whole, looks = disk_of({path: flipped(files[path], 40 * 8)}), disk.open_read, 0

    def open_read(name: str) -> SimFile:
        nonlocal looks
        looks += name == path
        return torn.open_read(name) if name == path and looks < 3 else open_whole(name)

    disk.open_read = open_read  # type: ignore[method-assign, assignment]
    assert read_manifest(disk, now_ms=1).faults == ()
    assert looks == 3


def test_a_file_that_is_gone_in_the_middle_of_a_log_is_missed_by_who_reads_the_one_before(
    files: dict[str, bytes],
) -> None:
    logs = manifest_of(files).message_log
    assert len(logs) > 2
    del files[logs[1].file]
    manifest = manifest_of(files)
    assert manifest.message_log[0].next_sequence == logs[2].first_sequence
    reader = ArrowReader(disk_of(files), UUID(manifest.log_uuid), Kind.MESSAGE, ["sequence"])
    found = reader.messages(
        logs[0].file,
        length=logs[0].length,
        first_sequence=1,
        next_sequence=logs[2].first_sequence,
    )
    [damage] = [one for one in found if isinstance(one, Damage)]
    missing = (logs[1].first_sequence, logs[1].next_sequence)
    assert (damage.first_sequence, damage.next_sequence) == missing


def test_a_manifest_of_another_schema_or_of_other_bytes_is_refused(files: dict[str, bytes]) -> None:
    text = encode_manifest(manifest_of(files))
    newer = text.replace(b'"schema":4', b'"schema":5')
    with pytest.raises(UnsupportedFormatError, match="schema 5"):
        decode_manifest(newer, path="m")
    for bad in (b"", b"[]", text[:-5], text.replace(b'"rows"', b'"lines"'), b"\xff", b"{}"):
        with pytest.raises(DamagedError):
            decode_manifest(bad, path="m")


def test_a_manifest_that_was_changed_is_refused(files: dict[str, bytes]) -> None:
    manifest = manifest_of(files)
    text = encode_manifest(manifest)
    assert decode_manifest(text, path="m") == manifest
    number = str(manifest.log_next_sequence).encode()
    for before, after in (
        (b'"log_next_sequence":' + number, b'"log_next_sequence":1'),
        (b'\n"digest":"', b'\n"digest":"0'),
        (b'\n"made_ms"', b' "made_ms"'),
        (b'\n"digest"', b'\n"digests"'),
    ):
        assert text.count(before) == 1
        with pytest.raises(DamagedError, match="changed since it was made"):
            decode_manifest(text.replace(before, after), path="m")


def test_each_file_has_a_line_of_its_own(files: dict[str, bytes]) -> None:
    manifest = manifest_of(files)
    lines = encode_manifest(manifest).decode().splitlines()
    assert msgspec.json.decode("\n".join(lines))["schema"] == MANIFEST_SCHEMA
    for segment in there(manifest, dead=None):
        assert sum(f'"file":"{segment.file}"' in line for line in lines) == 1
