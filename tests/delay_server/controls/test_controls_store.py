"""What an operator closed is durable when it is answered, whatever happens; who did it is kept."""

import random
from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest

from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_server.controls.controls_store import (
    Audit,
    AuditEntry,
    ControlsStore,
    read_controls,
    write_controls,
)
from storage.batch.batches import Damage
from storage.disk.errors import DamagedError, StorageFullError
from storage.state.audit_file import audit_path
from storage.state.controls_file import CONTROLS_PATH
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, Death, Trap
from tests.storage.worked_examples import worked_examples

LOG = UUID(int=7)
PAUSED = SubjectControl(paused=True)


def entry(_before: Controls, after: Controls) -> AuditEntry:
    return AuditEntry(
        at_ms=1, who="alice", peer="", action="set", target="t", version=after.version
    )


def pausing(name: str) -> Callable[[Controls], Controls]:
    """Return a change that pauses a subject."""
    return lambda before: before.with_subject(name, PAUSED)


def audit_on(
    disk: SimDisk,
    damages: list[Damage] | None = None,
    *,
    file_bytes_max: int = 4096,
    files_max: int = 3,
) -> Audit:
    told = [] if damages is None else damages
    return Audit(disk, file_bytes_max=file_bytes_max, files_max=files_max, on_damage=told.append)


def store_on(disk: SimDisk, damages: list[Damage] | None = None) -> ControlsStore:
    told = [] if damages is None else damages
    return ControlsStore(disk, log_uuid=LOG, audit=audit_on(disk, told), on_damage=told.append)


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed), plan=HARSH if seed else CALM)


def test_without_a_file_there_never_was_a_change() -> None:
    assert store_on(new_disk()).controls == Controls()


def test_the_file_is_laid_out_as_its_page_says() -> None:
    disk = new_disk()
    log_uuid = UUID("6a0f3c52-9d1e-4b7a-8c35-2f1e0d9c8b7a")
    write_controls(disk, log_uuid, Controls().with_subject("order.*", PAUSED))
    assert worked_examples("controls.md") == [disk.contents()[CONTROLS_PATH]]


@each_seed(59, first=1)
def test_a_change_that_was_answered_survives_a_crash_at_any_operation(seed: int) -> None:
    """And one that was not is there as a whole or not at all; so is its line in the audit."""
    chance = random.Random(seed)
    disk = new_disk(seed)
    answered = Controls()
    for life in range(6):
        disk.arm(
            Trap(
                action=chance.choice([Action.POWER_CUT, Action.KILL]),
                skip=chance.randint(0, 40),
            )
        )
        tried = answered
        try:
            store = store_on(disk)
            assert store.controls == answered
            for number in range(10):
                name = f"s{life}.{number}"
                tried = answered.with_subject(name, PAUSED)
                answered = store.change(pausing(name), entry)
                assert answered == tried
        except Death:
            pass
        disk = disk.revive()
        found = read_controls(disk, LOG)
        assert found in (answered, tried)
        answered = found
        told = [line.version for line in store_on(disk).audit.look(1000).items]
        # Of each change that holds there is a line; the last may be of one that came to nothing.
        assert told[:1] in ([], [answered.version], [answered.version + 1])
        assert set(range(max(answered.version - 15, 1), answered.version + 1)) <= set(told)


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    disk = new_disk()
    store = store_on(disk)
    first = store.change(lambda before: before.with_subject("a", PAUSED), entry)
    files = disk.contents()
    assert store.change(lambda before: before.with_subject("a", PAUSED), entry) is first
    assert disk.contents() == files


def test_without_space_nothing_has_changed() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.change(lambda before: before.with_subject("a", PAUSED), entry)
    before = store.controls
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageFullError):
        store.change(lambda controls: controls.with_subject("b", PAUSED), entry)
    assert store.controls == before == read_controls(disk, LOG)
    disk.capacity_bytes = 1 << 30
    after = store.change(lambda controls: controls.with_subject("c", PAUSED), entry)
    assert read_controls(disk, LOG) == after


@pytest.mark.parametrize("kind", ["flip", "cut", "other", "empty", "not ours"])
def test_a_damaged_file_is_refused_with_what_to_do(kind: str) -> None:
    """Forgetting a pause could flood the broker that somebody protected."""
    disk = new_disk()
    write_controls(disk, LOG, Controls(version=3, subjects={"a": PAUSED}))
    data = disk.contents()[CONTROLS_PATH]
    uuid = LOG
    bad = {
        "flip": [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))],
        "cut": [data[:size] for size in range(1, len(data))],
        "other": [data],
        "empty": [b""],
        "not ours": [b"paused: a\n" * 20],
    }[kind]
    if kind == "other":
        uuid = UUID(int=8)
    for case in bad:
        disk.unlink(CONTROLS_PATH)
        file = disk.open(CONTROLS_PATH, create=True)
        file.write_at(0, [case])
        file.close()
        with pytest.raises(DamagedError, match=CONTROLS_PATH) as caught:
            read_controls(disk, uuid)
        assert "move it away" in str(caught.value)


def test_the_audit_keeps_its_newest_entries_and_is_bounded_by_its_files() -> None:
    disk = new_disk()
    audit = audit_on(disk, file_bytes_max=1000)
    for number in range(200):
        before = msgspec.Raw(b'{"paused":true}')
        audit.append(
            AuditEntry(
                at_ms=number,
                who="bob",
                peer="127.0.0.1",
                action="set subject",
                target=f"s{number}",
                version=number,
                before=before,
            )
        )
    files = {path: data for path, data in disk.contents().items() if path.startswith("audit/")}
    assert len(files) == 3
    assert max(map(len, files.values())) <= 1000
    entries = audit.look(10).items
    assert [one.version for one in entries] == list(range(199, 189, -1))
    assert (entries[0].who, entries[0].target, bytes(entries[0].before)) == (
        "bob",
        "s199",
        b'{"paused":true}',
    )
    total = len(audit.look(1000).items)
    assert 15 < total < 40
    assert len(audit_on(disk, file_bytes_max=1000).look(1000).items) == total


def rewritten(disk: SimDisk, path: str, data: bytes) -> None:
    """Have a file hold these bytes."""
    disk.unlink(path)
    file = disk.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    file.close()


def audited(count: int) -> SimDisk:
    """Return a disk with an audit of so many changes."""
    disk = new_disk()
    store = store_on(disk)
    for number in range(count):
        store.change(pausing(f"s{number}"), entry)
    return disk


@each_seed(40)
def test_whatever_byte_of_the_audit_is_damaged_its_own_line_is_skipped_and_told(
    seed: int,
) -> None:
    """Of a newline also the line behind it; what is written next goes behind them."""
    chance = random.Random(seed)
    disk = audited(5)
    data = bytearray(disk.contents()[audit_path(1)])
    ends = [at for at, byte in enumerate(data) if byte == ord(b"\n")]
    at = chance.choice([chance.randrange(len(data)), *ends])
    data[at] ^= 1 << chance.randrange(8)
    rewritten(disk, audit_path(1), bytes(data))
    struck = next(n for n, end in enumerate(ends, start=1) if at <= end)
    whole = {1, 2, 3, 4, 5} - {struck, struck + (at in ends)}
    damages: list[Damage] = []
    page = audit_on(disk, damages).look(100)
    assert {one.version for one in page.items} == whole
    if at < len(data) - 1:
        assert damages == page.damages
        assert all(one.path == audit_path(1) for one in damages)
        assert any(one.position <= at <= one.position + one.size for one in damages)
    store = store_on(disk)
    store.change(pausing("next"), entry)
    assert {one.version for one in store.audit.look(100).items} == whole | {6}


def test_what_a_crash_has_left_of_a_line_is_no_damage_and_gives_way() -> None:
    disk = audited(2)
    data = disk.contents()[audit_path(1)]
    for size in range(data.index(b"\n") + 1, len(data)):
        rewritten(disk, audit_path(1), data[:size])
        damages: list[Damage] = []
        audit = audit_on(disk, damages)
        told = [one.version for one in audit.look(9).items]
        # A line that is whole but for its newline is read until the next one takes its place.
        assert told == ([2, 1] if size == len(data) - 1 else [1])
        audit.append(entry(Controls(), Controls(version=7)))
        assert [one.version for one in audit.look(9).items] == [7, 1]
        assert damages == []


def test_controls_that_are_gone_though_the_audit_tells_of_them_are_told_once() -> None:
    """They may have been moved away; nothing else would say that nothing is paused any more."""
    for count in (1, 2, 3):
        disk = new_disk()
        store = store_on(disk)
        for number in range(count):
            store.change(
                pausing(f"s{number}"),
                lambda before, after: msgspec.structs.replace(
                    entry(before, after), action="set subject"
                ),
            )
        disk.unlink(CONTROLS_PATH)
        damages: list[Damage] = []
        store = store_on(disk, damages)
        # The line of a first change may be of one that never came to be.
        assert [one.path for one in damages] == [CONTROLS_PATH] * (count > 1)
        assert store.controls.subjects == {}
        assert store.controls.version == (count if count > 1 else 0)
        damages.clear()
        assert store_on(disk, damages).controls == store.controls
        assert damages == []
