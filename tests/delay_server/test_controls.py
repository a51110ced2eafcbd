"""What an operator closed is durable when it is answered, whatever happens; who did it is kept."""

import random
from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest

from delay_protocol.controls import Controls, SubjectControl
from delay_server.controls import (
    CONTROLS_PATH,
    Audit,
    AuditEntry,
    ControlsStore,
    read_controls,
    write_controls,
)
from storage import DamagedError, StorageFullError
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


def store_on(disk: SimDisk, *, file_bytes_max: int = 4096, files_max: int = 3) -> ControlsStore:
    audit = Audit(disk, file_bytes_max=file_bytes_max, files_max=files_max)
    return ControlsStore(disk, log_uuid=LOG, audit=audit)


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed), plan=HARSH if seed else CALM)


def test_without_a_file_there_never_was_a_change() -> None:
    assert store_on(new_disk()).controls == Controls()


def test_the_file_is_laid_out_as_its_page_says() -> None:
    disk = new_disk()
    log_uuid = UUID("6a0f3c52-9d1e-4b7a-8c35-2f1e0d9c8b7a")
    write_controls(disk, log_uuid, Controls().with_subject("order.*", PAUSED))
    assert worked_examples("controls.md") == [disk.contents()[CONTROLS_PATH]]


@pytest.mark.parametrize("seed", range(1, 60))
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
        told = [line.version for line in store_on(disk).audit.entries(1000)]
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
        with pytest.raises(DamagedError, match=CONTROLS_PATH):
            read_controls(disk, uuid)


def test_the_audit_keeps_its_newest_entries_and_is_bounded_by_its_files() -> None:
    disk = new_disk()
    audit = Audit(disk, file_bytes_max=1000, files_max=3)
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
    entries = audit.entries(10)
    assert [one.version for one in entries] == list(range(199, 189, -1))
    assert (entries[0].who, entries[0].target, bytes(entries[0].before)) == (
        "bob",
        "s199",
        b'{"paused":true}',
    )
    total = len(audit.entries(1000))
    assert 15 < total < 40
    assert len(Audit(disk, file_bytes_max=1000, files_max=3).entries(1000)) == total
