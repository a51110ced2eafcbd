"""What an operator closed is durable when it is answered, whatever happens."""

import random
from uuid import UUID

import pytest

from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_server.controls.controls_store import ControlsStore, read_controls, write_controls
from storage.disk.errors import DamagedError, StorageFullError
from storage.state.controls_file import CONTROLS_PATH
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import CALM, HARSH, Action, Death, Trap
from tests.storage.worked_examples import worked_examples

LOG = UUID(int=7)
PAUSED = SubjectControl(paused=True)


def store_on(disk: SimDisk) -> ControlsStore:
    return ControlsStore(disk, log_uuid=LOG)


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
    """And one that was not is there as a whole or not at all."""
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
                store.take(tried)
                answered = store.controls
                assert answered == tried
        except Death:
            pass
        disk = disk.revive()
        found = read_controls(disk, LOG)
        assert found in (answered, tried)
        answered = found


def test_without_space_nothing_has_changed() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.take(before := Controls().with_subject("a", PAUSED))
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageFullError):
        store.take(before.with_subject("b", PAUSED))
    assert store.controls == before == read_controls(disk, LOG)
    disk.capacity_bytes = 1 << 30
    store.take(after := before.with_subject("c", PAUSED))
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
