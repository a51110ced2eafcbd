"""The journal keeps every fact that was made durable, in order, through any crash."""

import contextlib
import random

import pytest

from storage.batch.facts import FactBlock
from storage.disk.errors import FatalDiskError, LogStateError, StorageFullError
from storage.logs.dispatch_log import (
    JOURNAL_DIRECTORY,
    JOURNAL_END_PATH,
    FactsJournal,
    JournalRecovery,
)
from storage.state.durable_end import DurableEnd, DurableEndFile
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.simulation.faults import HARSH, Action, Death, Stage, Trap
from tests.storage.small_logs import LOG_UUID
from tests.storage.small_segments import delivered, example_files, new_journal, segment_disk
from tests.storage.worked_examples import worked_examples

FIRST = f"{JOURNAL_DIRECTORY}/00000000000000000001.log"


def recover(disk: SimDisk, filed_number: int = 0) -> tuple[FactsJournal, JournalRecovery]:
    return FactsJournal.recover(disk, LOG_UUID, filed_number=filed_number, file_bytes_max=1000)


def journal_files(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(JOURNAL_DIRECTORY) if name.endswith(".log")]


def sequences(blocks: list[FactBlock]) -> list[int]:
    return [sequence for block in blocks for sequence in block.sequence.tolist()]


def put(journal: FactsJournal, *numbers: int) -> tuple[FactBlock, int]:
    return journal.append([delivered([number]) for number in numbers], append_ms=1, epoch=1)


def test_facts_come_back_in_order_with_their_numbers() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    assert put(journal, 7, 8)[1] == 2
    facts, number = put(journal, 9)
    assert (sequences([facts]), number) == ([9], 3)
    again, found = recover(disk)
    assert sequences(found.facts) == [7, 8, 9]
    assert again.next_number == 4
    assert found.damages == found.torn == []


def test_facts_that_were_durable_and_cannot_be_read_are_damage_not_a_torn_write() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    put(journal, 7, 8)
    place = len(disk.contents()[FIRST])
    put(journal, 9)
    disk.sync_directory(JOURNAL_DIRECTORY)
    disk.damage(FIRST, place + 100, b"\xff\xff")
    again, found = recover(disk)
    assert sequences(found.facts) == [7, 8]
    [damage] = found.damages
    assert (damage.path, damage.position) == (FIRST, place)
    assert (damage.first_sequence, damage.next_sequence) == (3, 4)
    assert "facts 3 to 3 were durable and cannot be read" in damage.reason
    assert found.torn == []
    # The number of what was lost is not given to another fact.
    assert put(again, 10)[1] == 4


@pytest.mark.parametrize("end_is_behind", [True, False])
@pytest.mark.parametrize("kind", ["open_read", "open", "read"])
def test_a_disk_that_fails_to_read_the_newest_file_fails_the_start_and_forgets_nothing(
    kind: str, end_is_behind: bool
) -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    end = b""
    for number in range(5):
        put(journal, number)
        end = end or disk.contents()[JOURNAL_END_PATH]
    if end_is_behind:
        # As a power cut leaves it, which the facts have survived.
        disk.open(JOURNAL_END_PATH).write_at(0, [end])

    def of_the_newest(_kind: str, path: str, _label: str) -> bool:
        return path == FIRST

    # As often as it is tried.
    disk.arm(*[Trap(action=Action.EIO, kinds={kind}, when=of_the_newest)] * 10)
    with pytest.raises(FatalDiskError, match=FIRST):
        recover(disk)
    disk.disarm()
    again, found = recover(disk)
    assert sequences(found.facts) == [0, 1, 2, 3, 4]
    assert found.damages == found.torn == []
    assert put(again, 5)[1] == 6


@pytest.mark.parametrize("gone", [True, False])
def test_the_newest_file_gone_or_cut_short_is_damage(gone: bool) -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    put(journal, 7, 8)
    size = len(disk.contents()[FIRST])
    put(journal, 9)
    if gone:
        disk.unlink(FIRST)
    else:
        disk.open(FIRST).truncate(size)
    _, found = recover(disk)
    [damage] = found.damages
    assert damage.path == FIRST
    assert (damage.first_sequence, damage.next_sequence) == ((1 if gone else 3), 4)
    assert ("the file is gone" if gone else "ends before them") in damage.reason


def test_what_a_crash_tore_beyond_the_durable_end_is_no_damage() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    put(journal, 7, 8)
    disk.arm(Trap(action=Action.POWER_CUT, kinds={"sync"}, stage=Stage.BEFORE))
    with pytest.raises(Death):
        put(journal, 9)
    disk = disk.revive()
    again, found = recover(disk)
    assert sequences(found.facts)[:2] == [7, 8]
    assert found.damages == []
    assert again.next_number == 3 + len(sequences(found.facts)) - 2


def test_an_end_that_cannot_be_read_is_damage_and_hides_no_fact() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    for number in range(200):
        put(journal, number)
    disk.sync_directory(JOURNAL_DIRECTORY)
    for slot in (0, 512):
        disk.open(JOURNAL_END_PATH).write_at(slot + 20, [b"\xff\xff"])
    _, found = recover(disk)
    assert sequences(found.facts) == list(range(200))
    [damage] = found.damages
    assert damage.path == JOURNAL_END_PATH


@pytest.mark.parametrize("how", ["gone", "empty", "zeros", "short", "a slot of zeros"])
def test_a_lost_end_is_damage_and_so_is_what_cannot_be_read_at_the_end_then(how: str) -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    for number in range(200):
        put(journal, number)
    path = f"{JOURNAL_DIRECTORY}/{journal_files(disk)[-1]}"
    last = disk.contents()[path].rindex(b"DWB1")
    disk.open(path).write_at(last + 90, [b"\xff\xff\xff"])
    end = disk.contents()[JOURNAL_END_PATH]
    disk.unlink(JOURNAL_END_PATH)
    left = {"empty": b"", "zeros": bytes(1024), "short": end[:600], "a slot of zeros": end[:512]}
    if how in left:
        disk.open(JOURNAL_END_PATH, create=True).write_at(0, [left[how]])
    if how == "a slot of zeros":
        disk.open(JOURNAL_END_PATH).truncate(1024)
    journal, found = recover(disk)
    assert sequences(found.facts) == list(range(199))
    assert [damage.path for damage in found.damages] == [JOURNAL_END_PATH, path]
    assert found.torn == []
    put(journal, 7)
    _, found = recover(disk)
    assert sequences(found.facts) == [*range(199), 7]
    assert JOURNAL_END_PATH not in [damage.path for damage in found.damages]


def test_a_journal_has_its_end_before_its_first_file() -> None:
    disk = segment_disk()
    disk.arm(Trap(action=Action.FULL, kinds={"create"}))
    journal = new_journal(disk)
    assert JOURNAL_END_PATH not in disk.contents()
    disk.arm(Trap(action=Action.FULL, kinds={"create"}))
    with pytest.raises(StorageFullError):
        put(journal, 7)
    assert journal_files(disk) == []
    put(journal, 7)
    assert recover(disk)[1].damages == []
    for skip in range(20):
        disk = segment_disk()
        disk.arm(Trap(action=Action.POWER_CUT, skip=skip))
        with contextlib.suppress(Death):
            journal = new_journal(disk)
            put(journal, 7)
        disk = disk.revive()
        disk.make_directory(JOURNAL_DIRECTORY)
        assert recover(disk)[1].damages == []


def test_the_durable_end_of_the_message_log_is_not_taken_for_the_journals() -> None:
    disk = segment_disk()
    other = DurableEndFile(disk, JOURNAL_DIRECTORY, log_uuid=LOG_UUID)
    for number in (1, 2):
        other.write(
            DurableEnd(
                next_sequence=50 + number,
                file_sequence=1,
                position=100,
                last_crc=1,
                epoch=1,
                floor_minute=0,
            )
        )
        other.sync()
    journal, found = recover(disk)
    assert journal.next_number == 1
    assert [damage.path for damage in found.damages] == [JOURNAL_END_PATH]


def test_facts_that_are_filed_are_not_told_again() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    put(journal, 7, 8, 9)
    put(journal, 10, 11)
    assert sequences(recover(disk, 2)[1].facts) == [9, 10, 11]
    assert sequences(recover(disk, 5)[1].facts) == []
    assert recover(disk, 9)[0].next_number == 10


def test_more_facts_than_a_batch_holds_become_several_batches() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    facts, number = journal.append([delivered(list(range(250_000)))], append_ms=1, epoch=1)
    assert (len(facts), number) == (250_000, 250_000)
    assert [len(block) for block in recover(disk)[1].facts] == [100_000, 100_000, 50_000]


def test_a_file_is_closed_when_it_is_large_and_forgotten_when_it_is_filed() -> None:
    disk = segment_disk()
    journal, _ = recover(disk)
    for number in range(40):
        put(journal, number)
    files = journal_files(disk)
    assert len(files) > 3
    second = int(files[1].removesuffix(".log"))
    assert journal.forget_below(second - 2) == []
    assert journal.forget_below(second - 1) == [FIRST]
    assert len(journal.forget_below(40)) == len(files) - 2
    assert journal.forget_below(40) == []


def test_every_start_begins_a_file_of_its_own() -> None:
    disk = segment_disk()
    put(new_journal(disk), 1)
    journal, _ = recover(disk)
    put(journal, 2)
    assert len(journal_files(disk)) == 2
    assert sequences(recover(disk)[1].facts) == [1, 2]


@each_seed(100)
def test_a_power_cut_forgets_no_durable_fact_and_invents_none(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk(random.Random(seed), plan=HARSH)
    disk.make_directory(JOURNAL_DIRECTORY)
    disk.sync_directory("")
    disk.sync_directory("dispatch_log")
    durable: list[int] = []
    tried: list[int] = []
    for _ in range(6):
        disk = disk.revive()
        disk.arm(
            Trap(
                action=chance.choice([Action.POWER_CUT, Action.KILL, Action.EIO]),
                kinds={"write", "sync", "create", "sync_directory", "unlink"},
                skip=chance.randrange(25),
            ),
            *[Trap(action=Action.FULL, skip=chance.randrange(20)) for _ in range(2)],
        )
        try:
            disk.sync_directory(JOURNAL_DIRECTORY)  # As Store.open does.
            journal, found = recover(disk)
            kept = sequences(found.facts)
            assert kept[: len(durable)] == durable
            assert set(kept) <= set(tried)
            assert found.damages == []
            durable = kept
            for _ in range(20):
                wanted = list(range(len(tried) + 1, len(tried) + chance.randrange(2, 30)))
                tried += wanted
                try:
                    put(journal, *wanted)
                except StorageFullError:
                    continue
                durable += wanted
        except (Death, FatalDiskError, StorageFullError):
            pass
        if chance.random() < 0.5:
            disk.power_cut()
    assert sequences(recover(disk.revive())[1].facts)[: len(durable)] == durable


def test_what_recovery_tells_survives_a_power_cut_right_after_it() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    put(journal, 1)
    disk.sync_directory(JOURNAL_DIRECTORY)
    disk.sync_directory("dispatch_log")
    disk.sync_directory("")
    disk.arm(Trap(action=Action.EIO, kinds={"sync"}))
    with pytest.raises(FatalDiskError):
        put(journal, 2)
    disk = disk.revive()
    told = sequences(recover(disk)[1].facts)
    disk.power_cut()
    assert sequences(recover(disk.revive())[1].facts) == told


def test_a_torn_tail_keeps_every_valid_batch() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    for number in range(5):
        put(journal, number)
    data = disk.contents()[FIRST]
    for size in range(len(data)):
        torn = segment_disk()
        new_journal(torn)
        torn.open(FIRST, create=True).write_at(0, [data[:size]])
        journal, found = recover(torn)
        kept = max((size - 64) // ((len(data) - 64) // 5), 0)
        assert sequences(found.facts) == list(range(kept))
        assert found.damages == []
        assert put(journal, 99)[1] == kept + 1
        assert sequences(recover(torn)[1].facts) == [*range(kept), 99]


def test_damage_before_good_batches_is_reported_and_hopped_over() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    for number in range(5):
        put(journal, number)
    size = (len(disk.contents()[FIRST]) - 64) // 5
    disk.damage(FIRST, 64 + size + 85, b"\xff\xff\xff")
    journal, found = recover(disk)
    assert sequences(found.facts) == [0, 2, 3, 4]
    assert [(damage.path, damage.position) for damage in found.damages] == [(FIRST, 64 + size)]
    assert journal.next_number == 6


def test_the_beginning_of_a_later_file_in_an_older_one_costs_no_fact_behind_it() -> None:
    disk = segment_disk()
    journal = new_journal(disk, file_bytes_max=2_000)
    for number in range(1, 31):
        put(journal, number)
    journal.close()
    older, newer = (f"{JOURNAL_DIRECTORY}/{name}" for name in journal_files(disk)[:2])
    begins = disk.contents()[older][:512], disk.contents()[newer][:512]
    disk.damage(older, 0, begins[1])
    disk.damage(newer, 0, begins[0])
    _, found = recover(disk)
    # The blocks hold four whole batches each.
    first = int(newer[-24:-4])
    known = sequences(found.facts)
    assert len(set(known)) == len(known)
    assert set(range(1, 31)) - set(known) <= {*range(1, 5), *range(first, first + 4)}
    assert any(damage.path == older and not damage.position for damage in found.damages)


def test_facts_that_are_missing_between_two_files_are_reported() -> None:
    disk = segment_disk()
    journal, _ = recover(disk)
    for number in range(40):
        put(journal, number)
    disk.unlink(f"{JOURNAL_DIRECTORY}/{journal_files(disk)[1]}")
    [damage] = recover(disk)[1].damages
    assert "are missing" in damage.reason
    assert damage.first_sequence is not None


def test_a_journal_that_is_gone_or_begins_too_late_is_not_taken_for_a_young_one() -> None:
    disk = segment_disk()
    journal, _ = recover(disk)
    for number in range(40):
        put(journal, number)
    disk.unlink(FIRST)
    with pytest.raises(LogStateError, match="facts are missing"):
        recover(disk)
    empty = segment_disk()
    damaged = [damage.path for damage in recover(empty, 3)[1].damages]
    assert damaged == [JOURNAL_END_PATH, JOURNAL_DIRECTORY]


def test_a_name_that_never_became_durable_is_made_again() -> None:
    disk = segment_disk()
    journal = new_journal(disk)
    disk.arm(Trap(action=Action.FULL, kinds={"create"}))
    with pytest.raises(StorageFullError):
        put(journal, 1)
    put(journal, 1)
    for name in ("", "dispatch_log"):
        disk.sync_directory(name)
    disk.power_cut()
    assert sequences(recover(disk.revive())[1].facts) == [1]


def test_files_of_other_names_are_left_alone() -> None:
    disk = segment_disk()
    disk.open(f"{JOURNAL_DIRECTORY}/notes.log", create=True)
    journal, found = recover(disk)
    put(journal, 1)
    assert found.damages == []
    assert f"{JOURNAL_DIRECTORY}/notes.log" in disk.contents()


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("dispatch_log.md") == [example_files()["dispatch_log.md"]]
