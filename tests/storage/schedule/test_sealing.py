"""A closed segment is read and sealed beside the filing of messages, never in its way."""

import hashlib
from collections.abc import Callable

import pytest

from storage.disk.spans import MINUTE_MS
from storage.schedule.seals import Seal
from storage.schedule.segment import Segment, SegmentBatch
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Trap, running
from tests.storage.store_rig import START_MS, StoreRig

_READING = frozenset({"open_read", "map", "size", "read"})
_WRITING = "CheckpointWork.write"


def on(*paths: str) -> Callable[[str, str, str], bool]:
    """Return a condition for `Trap.when`: it is about one of these files."""
    return lambda _kind, path, _label: path in paths


def closed_rig(*, minutes: int = 1, told: int = 10**9) -> StoreRig:
    """Return a rig with three messages in each of its minutes, all over and below the floor.

    told: how many have a fact.
    """
    rig = StoreRig(1)
    rig.open()
    rig.split()
    for minute in range(minutes):
        rig.commit([START_MS + minute * MINUTE_MS + 10 * place for place in range(3)])
        rig.file()
    rig.now_ms += minutes * MINUTE_MS
    rig.load(steps=100)
    rig.deliver(told)
    rig.cross_off()
    rig.now_ms += 2 * MINUTE_MS
    rig.commit_floor()
    rig.file()
    return rig


def segments(rig: StoreRig) -> list[Segment]:
    return sorted(rig.store.schedule.segments.values(), key=lambda segment: segment.key.start)


def named(rig: StoreRig) -> list[int]:
    """Return the first minutes of the segments that the durable checkpoint names."""
    return sorted(state.key.start for state in rig.store.checkpoint.segments)


def digest(data: bytes) -> tuple[int, int]:
    found = hashlib.blake2b(data, digest_size=16).digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little")


def expected_seal(disk: SimDisk, segment: Segment, sealed_ms: int) -> Seal:
    """Return the seal of a segment in which all was delivered once, as the manual says it."""
    columns: dict[str, bytes] = dict.fromkeys(("sequence", "due_ms", "size", "id_hash"), b"")
    sequences: list[int] = []
    for batch in segment.read_rows(disk, segment.file.length):
        assert isinstance(batch, SegmentBatch)
        sequences += batch.sequence.tolist()
        for name in columns:
            columns[name] += batch.columns.arrays[name].tobytes()
    parts = (hashlib.blake2b(column, digest_size=16).digest() for column in columns.values())
    told = b"".join(sequence.to_bytes(8, "little") for sequence in sorted(sequences))
    return Seal(
        key=segment.key,
        rows=segment.rows,
        distinct=segment.rows,
        last_sequence=segment.last_sequence,
        length=segment.file.length,
        facts_length=segment.facts_file.length,
        digest=digest(b"".join(parts)),
        facts_digest=digest(told),
        outcomes=(segment.rows, 0, 0, 0, 0, 0, 0),
        sealed_ms=sealed_ms,
    )


def test_where_messages_are_filed_no_segment_is_read_for_its_seal() -> None:
    rig = closed_rig(minutes=3)
    begun, ended = (
        Trap(action=Action.EIO, kinds=_READING, when=running(f"Store.{name}_checkpoint"))
        for name in ("prepare", "finish")
    )
    rig.disk.arm(begun, ended)
    rig.checkpoint()
    assert not rig.disk.fired
    assert rig.store.sealed == 3
    assert named(rig) == []


def test_a_seal_says_what_was_in_the_files_when_the_checkpoint_was_prepared() -> None:
    rig = closed_rig(minutes=2)
    rig.prepare_checkpoint()
    expected = {
        segment.key.name: expected_seal(rig.disk, segment, rig.now_ms) for segment in segments(rig)
    }
    assert rig.work is not None
    assert rig.work.seals == []
    assert [state.key.name for state in rig.work.checkpoint.segments] == list(expected)
    rig.now_ms += 1000
    rig.write_checkpoint()
    assert rig.seals() == expected
    assert named(rig) == []
    assert segments(rig) == []


@pytest.mark.parametrize("facts", [False, True], ids=["rows", "facts"])
@pytest.mark.parametrize("kind", ["open_read", "size", "read"])
def test_what_cannot_be_read_stays_unsealed_and_the_checkpoint_goes_on(
    kind: str, *, facts: bool
) -> None:
    rig = closed_rig(minutes=3)
    first, second, third = (segment.key for segment in segments(rig))
    path = second.facts_path if facts else second.path
    # A block is read once more.
    rig.disk.arm(*[Trap(action=Action.EIO, kinds={kind}, when=on(path))] * 2)
    rig.checkpoint()
    rig.disk.disarm()
    assert {fired.path for fired in rig.disk.fired} == {path}
    assert named(rig) == [second.start]
    assert rig.seals().keys() == {first.name, third.name}
    rig.disk.power_cut()
    rig.reopen()
    assert rig.store.schedule.pending == 0
    rig.checkpoint()
    assert named(rig) == []
    assert rig.store.sealed == 1


@pytest.mark.parametrize("full", ["seals/", "checkpoint/"])
def test_a_checkpoint_without_space_is_taken_back_and_the_next_one_seals(full: str) -> None:
    rig = closed_rig(minutes=2)
    keys = [segment.key.start for segment in segments(rig)]
    rig.prepare_checkpoint()
    before = rig.store.schedule.states()
    rig.disk.arm(
        Trap(
            action=Action.FULL,
            kinds=frozenset({"create"}),
            when=lambda _kind, path, _label: path.startswith(full),
        )
    )
    rig.write_checkpoint()
    assert rig.disk.fired
    assert rig.store.sealed == 0
    assert rig.store.schedule.states() == before
    assert rig.store.schedule.pending == 0
    assert not len(rig.store.seals_log.live)
    rig.prepare_checkpoint()
    assert rig.work is not None
    assert [one.key.start for one in rig.work.candidates] == keys
    rig.write_checkpoint()
    assert rig.store.sealed == 2
    rig.disk.power_cut()
    rig.reopen()
    assert segments(rig) == []


def twice_told_rig() -> StoreRig:
    """Return a rig whose closed minute has three rows, of which one has two facts, another none."""
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS + 10 * place for place in range(3)])
    rig.file()
    rig.now_ms += MINUTE_MS
    rig.load(steps=100)
    rig.deliver(1)
    tell_again(rig)
    rig.deliver(1)
    rig.cross_off()
    rig.now_ms += 2 * MINUTE_MS
    rig.commit_floor()
    rig.file()
    return rig


def tell_again(rig: StoreRig) -> None:
    """Cross off what was delivered just now, twice."""
    outcomes = list(rig._outcomes)
    rig.cross_off()
    rig._outcomes = outcomes
    rig.cross_off()


@pytest.mark.parametrize("full", [False, True], ids=["written", "taken back"])
def test_an_incomplete_segment_is_not_read_again_before_it_has_more_facts(*, full: bool) -> None:
    rig = twice_told_rig()
    assert rig.store.schedule.pending == 0
    if full:
        rig.disk.arm(Trap(action=Action.FULL, kinds=frozenset({"create"}), when=running(_WRITING)))
    rig.checkpoint()
    assert bool(rig.disk.fired) is full
    assert rig.store.schedule.pending == 1
    [segment] = segments(rig)
    rig.prepare_checkpoint()
    assert rig.work is not None
    assert rig.work.candidates == []
    rig.write_checkpoint()
    assert named(rig) == [segment.key.start]
    rig.deliver()
    rig.cross_off()
    rig.checkpoint()
    assert named(rig) == []
    assert rig.store.schedule.pending == 0


def test_a_fact_that_comes_while_its_segment_is_read_has_the_next_checkpoint_seal_it() -> None:
    rig = twice_told_rig()
    [segment] = segments(rig)
    rig.prepare_checkpoint()
    rig.deliver()
    rig.cross_off()
    rig.write_checkpoint()
    assert named(rig) == [segment.key.start]
    assert rig.store.schedule.pending == 0
    rig.checkpoint()
    assert rig.store.sealed == 1
    assert rig.store.schedule.pending == 0
    rig.disk.power_cut()
    rig.reopen()
    rig.finish()


def test_a_fact_told_again_while_its_segment_is_sealed_is_needed_by_nobody() -> None:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([START_MS, START_MS + 10])
    rig.file()
    rig.now_ms += MINUTE_MS
    rig.load(steps=100)
    rig.deliver()
    outcomes = list(rig._outcomes)
    rig.cross_off()
    rig.now_ms += 2 * MINUTE_MS
    rig.commit_floor()
    rig.file()
    rig.prepare_checkpoint()
    rig._outcomes = outcomes
    rig.cross_off()
    assert rig.store.schedule.facts.oldest_unfiled() is not None
    rig.write_checkpoint()
    assert rig.store.sealed == 1
    assert rig.store.schedule.pending == 0
    [seal] = rig.seals().values()
    assert seal.outcomes[0] == 2
    rig.checkpoint()
    assert rig.store.schedule.facts.oldest_unfiled() is None
    assert len(rig.disk.contents()[seal.key.facts_path]) == seal.facts_length
    rig.disk.power_cut()
    rig.reopen()
    rig.finish()


def test_a_segment_with_a_damaged_row_stays_open_and_the_checkpoint_goes_on() -> None:
    rig = closed_rig(minutes=2)
    first, second = segments(rig)
    rig.prepare_checkpoint()
    assert rig.work is not None
    rig.disk.sync_files(rig.work.files)
    rig.disk.damage(first.file.path, 150, b"\xff" * 8)
    rig.write_checkpoint()
    assert named(rig) == [first.key.start]
    assert rig.seals().keys() == {second.key.name}
    rig.prepare_checkpoint()
    assert rig.work is not None
    assert rig.work.candidates == []
