"""Whatever becomes of bytes at rest: it is named or harmless, never delivered, and costs no more.

A part of the campaign of `python -m tests.damage.run`, and what shows that its judge would notice.
"""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pytest

from storage.batch import dead_rows, walk
from storage.batch.file_header import decode_file_header
from storage.batch.item_formats import Int64s
from storage.readers import dead_reader, item_reader
from storage.schedule import dead_index, schedule_log
from storage.schedule.row_places import SequenceSet
from storage.state.checkpoint import read_checkpoint
from storage.tools import salvage
from storage.tools.inspect import verify_disk
from tests.damage.directory import populated
from tests.damage.injections import Injection, Kind, draw
from tests.damage.judgement import Judge, Verdict, ViolationError
from tests.damage.overlay import OverlayDisk
from tests.damage.run import campaign, file_kind
from tests.seeds import day
from tests.simulation import independent_reader as reader

FILE_KINDS = {
    "checkpoint",
    "controls",
    "day segment",
    "dead facts",
    "dead segment",
    "durable end",
    "filed facts",
    "hour segment",
    "identity",
    "lock",
    "message log",
    "minute segment",
    "quarantined",
    "retired",
    "seals",
}


def _nobody(_line: str) -> None:
    """Hear what a campaign tells."""


def test_a_populated_directory_has_every_kind_of_file() -> None:
    for seed in (1000, 1001, 1002):
        directory = populated(seed)
        kinds = {file_kind(directory, path) for path in directory.files}
        assert kinds == FILE_KINDS


def test_damage_is_named_or_harmless_and_the_rest_is_delivered() -> None:
    ledger = campaign(
        count=300, seed=day().toordinal(), directories=2, recover=0.1, salvage=0.1, tell=_nobody
    )
    assert ledger.failures == [], f"seed {day().toordinal()}"
    assert ledger.named.total() + ledger.harmless.total() + ledger.refused.total() >= 300


@pytest.mark.long
def test_more_damage_is_named_or_harmless_and_has_every_kind() -> None:
    ledger = campaign(count=1500, seed=1, directories=4, recover=0.06, salvage=0.05, tell=_nobody)
    assert ledger.failures == []
    assert set(ledger.injections) >= FILE_KINDS - {"lock"}
    assert set(ledger.kinds) == {kind.value for kind in Kind}
    assert ledger.named.total() + ledger.harmless.total() + ledger.refused.total() >= 1500
    assert ledger.lost.total() > 0
    assert ledger.again.total() > 0
    assert ledger.refused.total() > 0
    assert ledger.salvaged.total() > 40


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
    # What is requeued lies where it was before, too.
    requeued = {row.message.item for row in directory.dead.values()}
    expected = [item for item in judge.expected.values() if item not in requeued]
    path = next(
        path
        for path, data in sorted(directory.files.items())
        if path.endswith(".minute")
        and path.startswith("schedule_log")
        and any(item in data for item in expected)
    )
    data = directory.files[path]
    item = next(item for item in expected if item in data)
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


def test_the_judge_notices_rows_that_are_not_read() -> None:
    with mock.patch.object(walk, "find_batch", lambda *_, end, **__: end):
        assert broken_by(Kind.ZERO, "untouched and not handed out")


def strike_letters(judge: Judge, count: int, kinds: list[Kind]) -> Iterator[Verdict]:
    """Yield what became of damages to dead segments and the facts about them."""
    chance = random.Random(3)
    paths = [path for path in sorted(judge.directory.files) if path.endswith(".dead")]
    assert {path.partition("/")[0] for path in paths} == {"schedule_log", "dispatch_log"}
    for _ in range(count):
        injection = draw(judge.directory, chance.choice(paths), chance.choice(kinds), chance)
        # Two files may have been struck, of which the other one is any.
        if injection is not None and set(injection.struck) <= set(paths):
            yield judge.judge(injection, full=True)


@pytest.mark.long
def test_damage_to_dead_segments_and_their_facts_costs_no_more_than_it_struck() -> None:
    judge = Judge(populated(1000))
    verdicts = list(strike_letters(judge, 150, list(Kind)))
    assert not any(verdict.refused for verdict in verdicts)
    assert sum(verdict.lost for verdict in verdicts) > 10
    assert sum(verdict.again for verdict in verdicts) > 10
    assert any(not verdict.lost and not verdict.again for verdict in verdicts)


def test_a_populated_directory_has_dead_letters_in_every_state() -> None:
    for seed in (1000, 1001, 1002):
        judge = Judge(populated(seed))
        directory = judge.directory
        pending = directory.dead.keys() - directory.settled
        assert pending
        assert pending == judge.letters.keys()
        disk = OverlayDisk(directory.files, {})
        identity = decode_file_header(directory.files["identity"], path="identity")
        checkpoint = read_checkpoint(disk, identity.log_uuid)
        assert checkpoint is not None
        keys = {state.key for state in checkpoint.segments}
        dead = {row: one for row, one in directory.dead.items() if row in directory.settled}
        assert any(one.key in keys for one in dead.values()), "settled, and not sealed"
        assert any(one.key not in keys for one in dead.values()), "sealed"
        given_up = {row.old for row in directory.dead.values()}
        assert directory.crossed_off > given_up
        assert not given_up & judge.expected.keys()
        items = {row.message.item for row in directory.dead.values()}
        assert items & set(judge.expected.values()), "requeued, and still to be delivered"


def test_a_populated_directory_has_facts_in_files_and_in_the_log_only() -> None:
    for seed in (1000, 1001, 1002):
        files = populated(seed).files
        checkpoint = reader.read_checkpoint(files["checkpoint/checkpoint"])
        last_facts = {(one.start, one.span): one.last_fact for one in checkpoint.segments}
        filed: set[int] = set()
        waiting: set[int] = set()
        for path in files:
            if path.startswith("message_log/0"):
                for batch in reader.read_batches(files[path]):
                    for fact in reader.facts_of(batch):
                        keys = reader.segments_of(fact.minute)
                        last_fact = max(last_facts.get(key, 0) for key in keys)
                        if fact.record > max(checkpoint.sequence, last_fact):
                            waiting.add(batch.kind)
                        elif fact.record > checkpoint.sequence:
                            filed.add(batch.kind)
        assert waiting == {reader.FACTS, reader.DEAD, reader.MOVE, reader.CANCEL}
        assert filed, "a replay comes by them"


class Agreeable(int):
    """A CRC that is always the one that was expected."""

    def __ne__(self, _other: object) -> bool:
        """Say that it is."""
        return False

    __eq__, __hash__ = int.__eq__, int.__hash__


@pytest.mark.long
def test_the_judge_notices_dead_letters_that_are_not_as_they_were() -> None:
    judge = Judge(populated(1000))
    flips = [Kind.FLIP, Kind.ZERO]
    with (
        mock.patch.object(dead_rows, "zlib", SimpleNamespace(crc32=lambda x: Agreeable(crc32(x)))),
        pytest.raises(ViolationError, match="no such dead letter"),
    ):
        list(strike_letters(judge, 400, flips))
    with (
        mock.patch.object(dead_reader, "qmq_item_fault", return_value=None),
        pytest.raises(ViolationError, match="no such dead letter"),
    ):
        list(strike_letters(judge, 100, flips))
    with (
        mock.patch.object(dead_index, "SequenceSet", return_value=SequenceSet([])),
        pytest.raises(ViolationError, match="sent again"),
    ):
        list(strike_letters(judge, 1, flips))
    with (
        mock.patch.object(schedule_log, "facts_stated", return_value=None),
        pytest.raises(ViolationError, match="sent again"),
    ):
        list(strike_letters(judge, 1, flips))


def test_the_judge_notices_when_salvage_sends_what_was_given_up() -> None:
    judge = Judge(populated(1000))
    with (
        mock.patch.object(salvage, "facts_stated", return_value=None),
        pytest.raises(ViolationError, match=r"delivered, but called pending|settled, but called"),
    ):
        judge.judge_salvage(None)
    with (
        mock.patch.object(salvage, "DEAD_MINUTES_FROM", 1 << 40),
        pytest.raises(ViolationError, match="given up, but called"),
    ):
        judge.judge_salvage(None)
