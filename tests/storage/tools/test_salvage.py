"""What lies whole in its place is found; of each message is told what is known, no more."""

from collections.abc import Iterable

import pytest

from storage.disk.spans import MINUTE_MS
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.node.store import DURABLE_END_PATH
from storage.state.checkpoint import CHECKPOINT_PATH
from storage.state.identity import IDENTITY_PATH
from storage.tools.salvage import IN_DOUBT, PENDING, Salvage, SalvagedItem, SequenceSet
from tests.damage.overlay import OverlayDisk
from tests.storage.store_rig import START_MS, StoreRig

HOUR_MS = 60 * MINUTE_MS


def lived_in() -> tuple[StoreRig, dict[str, bytes]]:
    """Return a store in which some messages were delivered, some are pending near and far."""
    rig = StoreRig(3)
    rig.open()
    rig.split()
    for place in range(12):
        near, far = START_MS + place, START_MS + 100 * HOUR_MS + place
        rig.commit([near, near, START_MS + 3 * MINUTE_MS, far])
        rig.file()
        rig.load(steps=10)
        rig.now_ms += 100
        rig.deliver()
        rig.cross_off()
    rig.checkpoint()
    rig.commit([rig.now_ms + 10, rig.now_ms + 20])
    rig.file()
    rig.flush()
    rig.sync_durable_end()
    rig.load(steps=10)
    rig.now_ms += 50
    rig.deliver(1)
    rig.cross_off()
    return rig, rig.disk.contents()


def salvaged(
    rig: StoreRig, files: dict[str, bytes], paths: list[str] | None = None
) -> tuple[dict[int, SalvagedItem], Salvage]:
    """Return what was found, by sequence, and the salvage."""
    disk = OverlayDisk(files, {})
    work = Salvage(disk, paths, now_ms=rig.now_ms)
    found = list(work.items())
    assert disk.changed == []
    known = {item.sequence: item for item in found}
    assert len(known) == len(found)
    for sequence, item in known.items():
        assert item.data == rig.memory.accepted[sequence].item
    return known, work


def struck(files: dict[str, bytes], path: str, position: int, data: bytes) -> dict[str, bytes]:
    before = files[path]
    return files | {path: before[:position] + data + before[position + len(data) :]}


def undelivered(rig: StoreRig) -> set[int]:
    return rig.memory.accepted.keys() - rig.memory.durable_facts


def test_of_an_undamaged_directory_everything_is_found_once_and_nothing_is_in_doubt() -> None:
    rig, files = lived_in()
    known, work = salvaged(rig, files)
    assert known.keys() == rig.memory.accepted.keys()
    assert work.gaps == []
    assert {seq for seq, item in known.items() if item.state == PENDING} == undelivered(rig)
    assert {item.state for item in known.values()} == {PENDING, "delivered"}
    for sequence, item in known.items():
        message = rig.memory.accepted[sequence]
        assert (item.due_ms, item.subject) == (message.due_ms, message.subject)
        assert item.message_id in message.item
        assert files[item.path][item.position :].startswith(b"DWB1")


@pytest.mark.parametrize("path", [IDENTITY_PATH, CHECKPOINT_PATH, "message_log/durable_end"])
def test_a_directory_whose_node_refuses_to_start_is_salvaged_nevertheless(path: str) -> None:
    rig, files = lived_in()
    known, _ = salvaged(rig, files | {path: b"\xff" * len(files[path])})
    assert known.keys() == rig.memory.accepted.keys()
    assert {seq for seq, item in known.items() if item.is_wanted} == undelivered(rig)
    left = {name: data for name, data in files.items() if name != path}
    assert salvaged(rig, left)[0].keys() == rig.memory.accepted.keys()


def minute_file(rig: StoreRig) -> str:
    states = [state for state in rig.store.checkpoint.segments if state.span == 1]
    return max(states, key=lambda state: state.rows).key.path


@pytest.mark.parametrize("at", [4, 90, -1])
def test_items_of_a_batch_that_is_not_whole_are_found_in_another_file_only(at: int) -> None:
    rig, files = lived_in()
    path = minute_file(rig)
    known, _ = salvaged(rig, files, [path])
    begin = files[path].index(b"DWB1")
    place = files[path].index(b"DWB1", begin + 1) - 1 if at < 0 else begin + at
    bad = struck(files, path, place, b"\xff")
    left, work = salvaged(rig, bad, [path])
    assert left.keys() < known.keys()
    [gap] = work.gaps
    assert (gap.path, gap.position) == (path, begin)
    assert salvaged(rig, bad)[0].keys() == rig.memory.accepted.keys()


def last_log_file(files: dict[str, bytes]) -> str:
    return max(path for path in files if path.startswith(f"{MESSAGE_LOG_DIRECTORY}/0"))


def due_of(rig: StoreRig, sequences: Iterable[int]) -> set[int]:
    return {seq for seq in sequences if rig.memory.accepted[seq].due_ms <= rig.now_ms}


def test_what_facts_may_have_told_of_is_in_doubt_when_they_are_damaged() -> None:
    rig, files = lived_in()
    log = last_log_file(files)
    last = files[log].rindex(b"DWB1")
    known, _ = salvaged(rig, struck(files, log, last + 90, b"\xff"))
    doubtful = {seq for seq, item in known.items() if item.state == IN_DOUBT}
    due = due_of(rig, undelivered(rig))
    # What is not due yet was not sent, whatever the facts said.
    assert due < doubtful <= due_of(rig, rig.memory.accepted)
    assert {seq for seq, item in known.items() if item.state == PENDING} == undelivered(rig) - due


def test_facts_that_are_not_filed_are_read_from_the_message_log() -> None:
    rig, files = lived_in()
    told = rig.memory.durable_facts
    left = {path: data for path, data in files.items() if not path.startswith("dispatch_log/")}
    known, _ = salvaged(rig, left)
    assert {seq for seq, item in known.items() if item.state == "delivered"} == told
    # And the other way round, but for what no checkpoint has filed.
    left = {path: data for path, data in files.items() if not path.startswith("message_log/0")}
    known, _ = salvaged(rig, left)
    delivered = {seq for seq, item in known.items() if item.state == "delivered"}
    assert delivered < told
    assert told - delivered <= {seq for seq, item in known.items() if item.state == IN_DOUBT}


def test_the_newest_facts_gone_are_noticed_by_the_durable_end() -> None:
    rig, files = lived_in()
    log = last_log_file(files)
    cut = files | {log: files[log][: files[log].rindex(b"DWB1")]}
    assert IN_DOUBT in {item.state for item in salvaged(rig, cut)[0].values()}
    del cut[DURABLE_END_PATH]
    # Nobody knows whether any are gone.
    assert IN_DOUBT in {item.state for item in salvaged(rig, cut)[0].values()}


def test_where_nothing_was_ever_delivered_nothing_is_in_doubt() -> None:
    rig = StoreRig(4)
    rig.open()
    rig.commit([START_MS, START_MS + 5])
    rig.file()
    rig.checkpoint()
    rig.now_ms += 60_000
    known, _ = salvaged(rig, files := rig.disk.contents())
    assert {item.state for item in known.values()} == {PENDING}
    assert len(known) == 2
    # Where the log is gone, and how long it was, there may have been facts.
    gone = {path: data for path, data in files.items() if not path.startswith("message_log/")}
    assert {item.state for item in salvaged(rig, gone)[0].values()} == {IN_DOUBT}


def test_a_file_alone_is_salvaged_with_everything_that_is_due_in_doubt() -> None:
    rig, files = lived_in()
    path = minute_file(rig)
    known, _ = salvaged(rig, {"copy.minute": files[path]}, ["copy.minute"])
    assert known
    states = {item.state for item in known.values() if item.due_ms <= rig.now_ms}
    assert states <= {IN_DOUBT}


def test_a_set_of_sequences_keeps_what_was_added() -> None:
    known = SequenceSet()
    numbers = [1, 7, 8, 65_535, 65_536, 10**12]
    assert [known.add(number) for number in numbers] == [True] * 6
    assert [known.add(number) for number in numbers] == [False] * 6
    assert [number for number in (*numbers, 2, 65_537, 10**12 + 1) if number in known] == numbers


def test_what_the_node_delivers_itself_is_told_from_what_it_cannot_deliver() -> None:
    rig, files = lived_in()
    known, _ = salvaged(rig, files)
    assert all(item.is_served for item in known.values() if item.is_wanted)
    path = next(
        state.key.path
        for state in rig.store.checkpoint.segments
        if state.span == 1 and not state.facts
    )
    victim = next(iter(salvaged(rig, files, [path])[0].values()))
    bad = struck(files, path, victim.position + len(victim.data) - 1, b"\xff")
    known, _ = salvaged(rig, bad)
    stuck = [item for item in known.values() if item.is_wanted and not item.is_served]
    assert [item.sequence for item in stuck] == [victim.sequence]
    assert stuck[0].path.startswith("message_log/")
    # A node without a checkpoint delivers nothing.
    refusing = files | {CHECKPOINT_PATH: b"junk"}
    assert not any(item.is_served for item in salvaged(rig, refusing)[0].values())


@pytest.mark.parametrize("log", ["message_log/", "schedule_log/"])
def test_what_is_gone_whole_is_told(log: str) -> None:
    rig, files = lived_in()
    left = {path: data for path, data in files.items() if not path.startswith(log)}
    known, work = salvaged(rig, left)
    named = [gap for gap in work.gaps if gap.path.startswith(log.removesuffix("/"))]
    assert named
    assert {gap.reason.partition(" ")[0] for gap in named} <= {"no", "the"}
    assert known.keys() == rig.memory.accepted.keys()


def test_filed_facts_that_are_damaged_put_in_doubt_what_is_due() -> None:
    rig, files = lived_in()
    path = next(state.key.facts_path for state in rig.store.checkpoint.segments if state.facts)
    gone = {name: data for name, data in files.items() if name != path}
    for bad in (struck(files, path, 64 + 100, b"\xff"), gone):
        known, _ = salvaged(rig, bad)
        wanted = [item for item in known.values() if item.is_wanted]
        due = {item.sequence for item in wanted if item.due_ms <= rig.now_ms}
        assert {item.sequence for item in wanted if item.state == IN_DOUBT} == due
        assert due


def test_what_was_sealed_is_not_wanted_though_its_facts_are_gone() -> None:
    rig = StoreRig(4)
    rig.open()
    rig.commit([START_MS + 3 * MINUTE_MS] * 2)
    rig.seal_everything()
    [seal] = rig.seals().values()
    files = rig.disk.contents()
    assert {item.state for item in salvaged(rig, files)[0].values()} == {"delivered"}
    facts = files.pop(seal.key.facts_path)
    left = {path: data for path, data in files.items() if not path.startswith("message_log/0")}
    for bad in (left, left | {seal.key.facts_path: facts[:64]}):
        assert {item.state for item in salvaged(rig, bad)[0].values()} == {"sealed"}
