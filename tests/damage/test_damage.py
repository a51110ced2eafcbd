"""Whatever becomes of bytes at rest: it is named or harmless, never delivered, and costs no more.

A part of the campaign of `python -m tests.damage.run`, and what shows that its judge would notice.
"""

import contextlib
import random
from dataclasses import replace
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from storage import chained_file, item_reader
from storage.dead_reader import DeadFilter, DeadItems, DeadSearch
from storage.errors import DamagedError, StorageError
from storage.inspect import verify_disk
from storage.item_formats import Int64s
from storage.spans import MINUTE_MS
from storage.store import Store
from tests.damage.directory import populated
from tests.damage.injections import Injection, Kind, draw
from tests.damage.judgement import Judge, ViolationError
from tests.damage.overlay import OverlayDisk
from tests.damage.run import campaign, file_kind
from tests.golden.directory import dead_directory
from tests.storage.store_rig import SETTINGS, START_MS

FILE_KINDS = {
    "audit",
    "checkpoint",
    "controls",
    "day segment",
    "durable end",
    "filed facts",
    "hour segment",
    "identity",
    "journal",
    "journal end",
    "lock",
    "message log",
    "minute segment",
    "quarantined",
    "retired",
    "seals",
}


def test_a_populated_directory_has_every_kind_of_file() -> None:
    for seed in (1000, 1001, 1002):
        directory = populated(seed)
        kinds = {file_kind(directory, path) for path in directory.files}
        assert kinds == FILE_KINDS


def test_damage_is_named_or_harmless_and_the_rest_is_delivered() -> None:
    ledger = campaign(
        count=1500, seed=1, directories=4, recover=0.06, salvage=0.05, tell=lambda _line: None
    )
    assert ledger.failures == []
    assert set(ledger.injections) >= FILE_KINDS - {"lock"}
    assert set(ledger.kinds) == {kind.value for kind in Kind}
    assert ledger.named.total() + ledger.harmless.total() + ledger.refused.total() >= 1500
    assert ledger.lost.total() > 0
    assert ledger.again.total() > 0
    assert ledger.refused.total() > 0
    assert ledger.salvaged.total() > 40


def test_a_sector_of_the_log_in_the_place_of_its_newest_durable_end_is_not_a_torn_write() -> None:
    judge = Judge(populated(1000))
    files = judge.directory.files
    log, path = last_log(judge), "message_log/durable_end"
    end = files[path]
    newest = max((0, 512), key=lambda slot: int.from_bytes(end[slot + 8 : slot + 16], "little"))
    struck = {
        path: end[:newest] + files[log][-512:] + end[newest + 512 :],
        log: files[log][:-512] + end[newest : newest + 512],
    }
    verdict = judge.judge(
        Injection(Kind.SWAP_BETWEEN, struck, "the newest slot and a tail"), full=True
    )
    assert (verdict.named, verdict.refused) == (True, True)


def last_log(judge: Judge) -> str:
    """Return the path of the message_log's last file."""
    return max(path for path in judge.directory.files if path.startswith("message_log/0"))


LOST = {"gone": None, "empty": b"", "zeros": bytes(1024), "short": b"DWDE", "other": b"x" * 1024}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_durable_end_and_a_bad_byte_in_the_log_are_named_and_cut_nothing(how: str) -> None:
    judge = Judge(populated(1000))
    end, log = "message_log/durable_end", last_log(judge)
    data = judge.directory.files[log]
    alone = judge.judge(Injection(Kind.GONE, {end: LOST[how]}, f"{end} {how}"), full=True)
    assert (alone.named, alone.refused, alone.lost) == (True, False, 0)
    refused = 0
    for position in range(64, len(data), 293):
        struck = data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :]
        verdict = judge.judge(
            Injection(Kind.WITH_END, {end: LOST[how], log: struck}, f"{end} {how}, {position}"),
            full=True,
        )
        assert verdict.named
        refused += verdict.refused
    assert refused


@pytest.mark.slow
def test_more_damage_is_named_or_harmless() -> None:
    ledger = campaign(
        count=2000, seed=2, directories=8, recover=0.2, salvage=0.1, tell=lambda _line: None
    )
    assert ledger.failures == []


def test_a_directory_as_it_is_has_nothing_to_report_but_what_is_quarantined() -> None:
    directory = populated(1000)
    disk = OverlayDisk(directory.files, {})
    damaged = {str(report["file"]) for report in verify_disk(disk) if report["damage"]}
    assert damaged == directory.quarantined
    assert disk.changed == []


def flipped_item() -> tuple[Judge, Injection]:
    """Return a flipped bit in the last byte of an item that is to be delivered."""
    judge = Judge(populated(1000))
    directory = judge.directory
    path = next(
        path
        for path, data in sorted(directory.files.items())
        if path.endswith(".minute")
        and path.startswith("schedule_log")
        and any(item in data for item in judge.expected.values())
    )
    data = directory.files[path]
    item = next(item for item in judge.expected.values() if item in data)
    place = data.index(item) + len(item) - 1
    struck = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    return judge, Injection(Kind.FLIP, {path: struck}, f"{path}: a bit of an item")


def test_the_judge_passes_a_flipped_item_and_notices_when_it_is_delivered() -> None:
    judge, injection = flipped_item()
    verdict = judge.judge(injection, full=True)
    assert (verdict.named, verdict.lost) == (True, 1)
    with (
        mock.patch.object(item_reader, "join_qmq_items", _join_unchecked),
        pytest.raises(ViolationError, match="handed out other bytes"),
    ):
        judge.judge(injection, full=True)


def _join_unchecked(
    view: memoryview, positions: Int64s, sizes: Int64s, _due_ms: Int64s
) -> tuple[memoryview, npt.NDArray[np.bool_]]:
    places = zip(positions.tolist(), sizes.tolist(), strict=True)
    joined = b"".join([view[at : at + size] for at, size in places])
    return memoryview(joined), np.zeros(len(sizes), np.bool_)


def broken_by(kind: Kind, match: str) -> bool:
    """Say whether damages of this kind to segments make the judge complain like that."""
    judge = Judge(populated(1000))
    chance = random.Random(1)
    paths = [path for path in sorted(judge.directory.files) if path.startswith("schedule_log/")]
    for _ in range(400):
        injection = draw(judge.directory, chance.choice(paths), kind, chance)
        if injection is None:
            continue
        try:
            judge.judge(injection, full=True)
        except ViolationError as error:
            if match in str(error):
                return True
    return False


class AllFree(chained_file.TakenRecords):
    """Of which everything may be taken again."""

    def is_free(self, _wanted: range) -> bool:
        """Say so."""
        return True


class NoneFree(chained_file.TakenRecords):
    """Of which nothing may be taken."""

    def is_free(self, _wanted: range) -> bool:
        """Say so."""
        return False


def test_the_judge_notices_rows_that_are_read_twice_or_not_at_all() -> None:
    with mock.patch.object(chained_file, "TakenRecords", AllFree):
        assert broken_by(Kind.REPEAT, "handed out twice")
    with mock.patch.object(chained_file, "TakenRecords", NoneFree):
        assert broken_by(Kind.ZERO, "untouched and not handed out")


def letters_of(disk: OverlayDisk, now_ms: int) -> dict[int, tuple[bytes, bool]] | None:
    """Return item and pendency of each dead letter that can be read; None if a start is refused."""
    try:
        store, _ = Store.open(
            disk, SETTINGS, chance=random.Random(1), now_ms=now_ms, on_damage=lambda _: None
        )
    except StorageError:
        return None
    found = {}
    search = DeadSearch(
        disk,
        store.identity.log_uuid,
        store.schedule.dead_extents(),
        wanted=DeadFilter(settled=True),
        on_damage=lambda _: None,
    )
    reader = DeadItems(disk, store.identity.log_uuid)
    while not search.is_done:
        for row in search.step(100, 1000):
            with contextlib.suppress(DamagedError):
                found[row.sequence] = (reader.read(row), row.is_pending)
    store.close()
    return found


def test_damage_to_dead_segments_and_their_facts_is_named_or_harmless() -> None:
    """A letter is its own bytes or none, and damage in one file hides only what it has struck."""
    files = dead_directory()
    directory = replace(populated(1000), files=files, older={})
    now_ms = START_MS + 3 * 24 * 60 * MINUTE_MS
    whole = letters_of(OverlayDisk(files, {}), now_ms)
    assert whole
    assert {pending for _, pending in whole.values()} == {False, True}
    paths = [path for path in sorted(files) if path.endswith(".dead")]
    assert {path.partition("/")[0] for path in paths} == {"schedule_log", "dispatch_log"}
    chance, missed = random.Random(3), 0
    for _ in range(300):
        injection = draw(directory, chance.choice(paths), chance.choice(list(Kind)), chance)
        if injection is None:
            continue
        disk = OverlayDisk(files, injection.struck)
        named = any(report["damage"] for report in verify_disk(disk))
        found = letters_of(disk, now_ms)
        assert named or found == whole, injection.what
        for sequence, (item, _) in (found or {}).items():
            assert whole[sequence][0] == item, injection.what
        missed += found is None or len(found) < len(whole)
    assert missed > 10
