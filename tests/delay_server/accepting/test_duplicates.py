"""What a producer sends again is found while its original is one, and nothing else is taken out."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from delay_protocol.messages.items import decode_item
from delay_server.accepting import duplicates
from delay_server.accepting.admission import Admission, AdmissionConfig
from delay_server.accepting.duplicates import Duplicates, DuplicatesConfig
from delay_server.accepting.intake import Intake
from storage.batch.columns import RecordKind
from storage.batch.facts import Outcome
from storage.disk.spans import DEAD_MINUTES_FROM
from storage.logs.message_log import Draft, MessageLog
from storage.logs.recent_ids import WAYS
from tests.delay_server.server_rig import make_item
from tests.seeds import each_seed
from tests.simulation.disk import SimDisk
from tests.storage.small_logs import NOW_MS, new_disk, recover, unbegun

LATER_MS = NOW_MS + 3_600_000
CONFIG = DuplicatesConfig(window_ms=600_000, messages_max=1000)


class Rig:
    """A log, and the window of duplicates of a mastership over it."""

    def __init__(self, config: DuplicatesConfig = CONFIG, disk: SimDisk | None = None) -> None:
        self.now_ms = NOW_MS
        self.config = config
        self.disk = disk or new_disk()
        self.log: MessageLog = unbegun(self.disk, file_bytes_max=3000)
        self.log.start_epoch(1, append_ms=NOW_MS)
        self.begin()

    def begin(self) -> None:
        """Begin a mastership: all that is known comes from the log."""
        self.window = Duplicates(self.log, self.config, now_ms=lambda: self.now_ms)
        while not self.window.catch_up():
            pass

    def restart(self) -> None:
        """Open the log again."""
        self.log.close()
        self.log, _ = recover(self.disk, file_bytes_max=3000)
        self.begin()

    def append(self, *drafts: Draft) -> int:
        """Append records; return the first."""
        first = self.log.next_sequence
        self.window.note(self.log.append(drafts, append_ms=self.now_ms))
        return first

    def send(self, *items: bytes) -> list[tuple[int, str, int]]:
        """Commit items; return place, id and first due time of what is a repeat."""
        drafts, found = self.sift(items)
        self.append(*drafts)
        return found

    def sift(self, items: Sequence[bytes]) -> tuple[list[Draft], list[tuple[int, str, int]]]:
        intake = Intake(batch_bytes_max=4000)
        for item in items:
            Admission(AdmissionConfig()).admit(item, self.now_ms, intake)
        assert len(intake) == len(items)
        left, found = self.window.sift(intake.batches())
        return [one.draft() for one in left], [(p, i.decode(), d) for p, i, d in found]

    def kept(self) -> list[bytes]:
        """Return the items of all messages in the log."""
        items: list[bytes] = []
        for batch in self.log.read(1):
            batch = cast("Any", batch)
            if batch.header.kind is RecordKind.MESSAGE:
                edges = np.cumsum([0, *batch.columns.arrays["size"]]).tolist()
                items += [bytes(batch.blob[a:b]) for a, b in pairwise(edges)]
        return items

    def settle(self, outcome: Outcome, sequence: int) -> None:
        """Record what became of a message, as the server does."""
        minute = np.array([LATER_MS // 60_000], np.uint32)
        old = {"old_sequence": np.array([sequence]), "old_minute": minute}
        if outcome is Outcome.CANCELLED:
            self.append(Draft(kind=RecordKind.CANCEL, count=1, arrays=old))
        elif outcome is Outcome.DEAD:
            self.append(carrier(RecordKind.DEAD, b"a.b", make_item("m1", LATER_MS), sequence))
        else:
            arrays = {
                "sequence": np.array([sequence]),
                "at_ms": np.array([self.now_ms]),
                "minute": minute,
                "target": np.zeros(1, np.uint16),
                "outcome": np.array([outcome], np.uint8),
            }
            self.append(Draft(kind=RecordKind.FACTS, count=1, names=[b"g1"], arrays=arrays))

    def move(self, sequence: int, item: bytes, subject: bytes = b"a.b") -> int:
        """Append a MOVE of a message, and return it."""
        return self.append(carrier(RecordKind.MOVE, subject, item, sequence))


def carrier(kind: RecordKind, subject: bytes, item: bytes, old: int) -> Draft:
    """Return a record that names an older one and carries its item."""
    intake = Intake()
    Admission(AdmissionConfig()).admit(item, NOW_MS, intake)
    (draft,) = intake.drafts()
    arrays = {
        **draft.arrays,
        "old_sequence": np.array([old]),
        "old_minute": np.array([LATER_MS // 60_000], np.uint32),
    }
    names = [subject]
    if kind is RecordKind.DEAD:
        names.append(b"refused")
        arrays["reason"] = np.array([1], np.uint16)
    return Draft(kind=kind, count=1, names=names, arrays=arrays, blob=draft.blob)


def item(
    number: int = 1,
    *,
    due_ms: int = LATER_MS,
    subject: str = "a.b",
    attributes: dict[str, str] | None = None,
) -> bytes:
    return make_item(f"m{number}", due_ms, subject=subject, attributes=attributes)


def test_what_is_sent_again_gets_no_record_and_is_told_with_its_first_time() -> None:
    rig = Rig()
    assert rig.send(item(1), item(2)) == []
    assert rig.send(item(3), item(2), item(4)) == [(1, "m2", LATER_MS)]
    assert rig.send(item(1)) == [(0, "m1", LATER_MS)]
    assert rig.kept() == [item(n) for n in (1, 2, 3, 4)]


def test_it_is_found_within_one_commit_whatever_its_batches_are() -> None:
    rig = Rig()
    big = {"k": "x" * 1500}
    items = [item(n, attributes=big) for n in (1, 2, 1, 3, 2, 1)]
    assert [place for place, _, _ in rig.send(*items)] == [2, 4, 5]
    assert rig.kept() == [items[0], items[1], items[3]]
    # All of a commit may be repeats.
    assert len(rig.send(*items[:3])) == 3


@pytest.mark.parametrize(
    "other",
    [
        item(due_ms=LATER_MS + 1),
        item(attributes={"k": "w"}),
        item(attributes={"k": "v", "qmq_times": "2"}),
        item(subject="a.c"),
    ],
    ids=["time", "body", "count", "subject"],
)
def test_another_message_of_the_same_id_is_kept(other: bytes) -> None:
    rig = Rig()
    rig.send(item())
    assert rig.send(other) == []
    assert rig.send(other, item()) != []
    # Both are originals.
    assert len(rig.send(other, item())) == 2
    assert rig.kept() == [item(), other]


def test_a_hash_that_two_ids_share_takes_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delay_server.accepting.admission.xxh3_64_intdigest", lambda _: 7)
    rig = Rig()
    assert rig.send(item(1), item(2)) == []
    assert rig.send(item(3)) == []
    assert rig.send(item(2)) == [(0, "m2", LATER_MS)]


def test_the_same_delay_is_a_repeat_and_told_with_the_first_time() -> None:
    rig = Rig()
    delay = {"k": "v", "dw_delay": "3600000"}
    rig.send(item(attributes=delay))
    again = item(due_ms=LATER_MS + 900, attributes=delay)
    assert rig.send(again) == [(0, "m1", LATER_MS)]
    assert rig.kept() == [item(attributes=delay)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("outcome", "is_again"),
    [
        (Outcome.DELIVERED, True),
        (Outcome.KNOWN, True),
        (Outcome.CANCELLED, False),
        (Outcome.DEAD, False),
        (Outcome.EXPIRED, False),
        (Outcome.DROPPED, False),
    ],
)
def test_what_became_of_a_message_says_if_it_is_an_original(
    outcome: Outcome, is_again: bool, restarts: bool
) -> None:
    rig = Rig()
    first = rig.log.next_sequence
    rig.send(item(0), item(1))
    rig.settle(outcome, first + 1)
    if restarts:
        rig.restart()
    assert bool(rig.send(item(1))) is is_again
    # What was sent anew is an original in turn, and its neighbour is one all the time.
    assert len(rig.send(item(0), item(1))) == 2


def test_a_dead_letter_and_what_becomes_of_it_are_no_originals() -> None:
    rig = Rig()
    rig.send(item())
    rig.settle(Outcome.DEAD, 2)
    dead = rig.log.next_sequence - 1
    # A requeue.
    rig.move(dead, item())
    assert rig.send(item()) == []
    old = {"old_sequence": np.array([dead]), "old_minute": np.array([DEAD_MINUTES_FROM], np.uint32)}
    rig.append(Draft(kind=RecordKind.CANCEL, count=1, arrays=old))
    assert rig.send(item()) == [(0, "m1", LATER_MS)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_that_was_moved_is_an_original_until_what_took_its_place_is_gone(
    restarts: bool,
) -> None:
    rig = Rig()
    rig.send(item())
    moved = rig.move(2, item(due_ms=LATER_MS + 5, attributes={"k": "v", "qmq_times": "1"}))
    # A copy for the name G.
    moved = rig.move(moved, item(due_ms=LATER_MS + 6), b"%RETRY%a.b%G")
    if restarts:
        rig.restart()
    assert rig.send(item()) == [(0, "m1", LATER_MS)]
    # The moved item itself was sent by nobody.
    assert rig.send(item(due_ms=LATER_MS + 6)) == []
    rig.settle(Outcome.CANCELLED, moved)
    assert rig.send(item()) == []
    assert rig.send(item()) == [(0, "m1", LATER_MS)]


def test_copies_for_names_are_no_originals() -> None:
    rig = Rig()
    intake = Intake()
    Admission(AdmissionConfig()).admit(item(), NOW_MS, intake)
    (draft,) = intake.drafts()
    copy = Draft(
        kind=RecordKind.MESSAGE,
        count=1,
        names=[b"%RETRY%a.b%G"],
        arrays=draft.arrays,
        blob=draft.blob,
    )
    rig.append(copy)
    assert rig.send(item()) == []


def test_the_window_ends_after_its_time() -> None:
    rig = Rig()
    rig.send(item())
    rig.now_ms += 300_000
    rig.send(item(2))
    assert rig.window.oldest_ms == NOW_MS
    rig.now_ms += 299_000
    assert len(rig.send(item())) == 1
    rig.now_ms += 2_001
    assert rig.send(item()) == []
    assert len(rig.send(item(), item(2))) == 2
    assert rig.window.oldest_ms == NOW_MS + 300_000


@pytest.mark.parametrize("restarts", [False, True])
def test_the_window_ends_after_twice_as_many_records_as_messages(restarts: bool) -> None:
    rig = Rig(DuplicatesConfig(messages_max=20))
    rig.send(item())
    for number in range(2, 41):
        rig.send(item(number))
    if restarts:
        rig.restart()
    assert rig.send(item(1)) == [(0, "m1", LATER_MS)]
    rig.send(item(41))
    assert len(rig.send(item(3))) == 1
    assert rig.send(item(1)) == []


def test_a_start_reads_no_more_of_the_log_than_the_window() -> None:
    rig = Rig()
    for number in range(200):
        rig.now_ms += 10_000
        rig.send(item(number))
    since_ms = rig.now_ms - 600_000
    first = rig.log.first_since(since_ms)
    before = sum(1 for header, _ in rig.log.read_columns(first) if header.append_ms <= since_ms)
    assert 1 <= before <= 2
    rig.restart()
    assert len(rig.send(item(145))) == 1
    assert rig.send(item(130)) == []


def test_a_tail_that_is_read_in_pieces_beside_commits_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "_ROWS_AT_ONCE", 3)
    rig = Rig()
    for number in range(10):
        rig.send(item(number))
    rig.window = Duplicates(rig.log, CONFIG, now_ms=lambda: rig.now_ms)
    rounds = 0
    while not rig.window.catch_up():
        rounds += 1
        if rounds < 3:
            rig.settle(Outcome.CANCELLED, 2 + rounds)
    assert rounds > 3
    again = rig.send(*(item(number) for number in range(10)))
    assert [place for place, _, _ in again] == [0, 3, 4, 5, 6, 7, 8, 9]


def test_an_original_that_cannot_be_read_takes_nothing_out() -> None:
    rig = Rig()
    rig.send(item())
    rig.send(item(2))
    (file,) = rig.log.files()
    data = rig.disk.open(file.path)
    place = bytes(data.read_at(0, data.size())).index(b"m1")
    data.write_at(place, [b"??"])
    data.close()
    assert rig.send(item(), item(2)) == [(1, "m2", LATER_MS)]


def test_the_work_of_one_commit_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_READ_MAX", 3)
    rig = Rig()
    for number in range(6):
        rig.send(item(number))
    # What is not looked at is kept.
    assert len(rig.send(*(item(number) for number in range(6)))) == 3
    assert len(rig.send(*(item(number) for number in range(3)))) == 3
    monkeypatch.setattr(duplicates, "_IN_VAIN_MAX", 2)
    others = [item(9, attributes={"k": str(n)}) for n in range(4)]
    assert rig.send(*others, others[-1]) == []


def test_what_was_sent_one_by_one_is_found_when_it_comes_together() -> None:
    rig = Rig(DuplicatesConfig(window_ms=600_000, messages_max=10_000))
    sent = [item(number) for number in range(1000)]
    for one in sent:
        rig.send(one)
    random.Random(1).shuffle(sent)
    assert len(rig.send(*sent)) == 1000
    rig.restart()
    assert len(rig.send(*sent)) == 1000


def test_as_many_messages_of_an_id_as_a_bucket_holds_are_compared() -> None:
    rig = Rig()
    sent = [item(attributes={"k": f"{number:02}"}) for number in range(WAYS)]
    for one in sent:
        rig.send(one)
    assert [len(rig.send(one)) for one in sent] == [1] * WAYS


def test_what_is_due_when_it_comes_is_found_later() -> None:
    rig = Rig()
    at_once = make_item("m1", 0, flag=0)
    assert rig.send(at_once) == []
    first_ms, rig.now_ms = rig.now_ms, rig.now_ms + 5000
    assert rig.send(at_once) == [(0, "m1", first_ms)]


def test_an_id_that_comes_again_for_other_times_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    times = [LATER_MS + number * 86_400_000 for number in range(8)]
    with monkeypatch.context() as blind:
        blind.setattr(
            rig.log, "batches_of", lambda wanted: pytest.fail(str(wanted)) if wanted else ()
        )
        for due_ms in times:
            assert rig.send(item(due_ms=due_ms)) == []
    assert [rig.send(item(due_ms=due_ms)) for due_ms in times] == [[(0, "m1", x)] for x in times]


@each_seed(60, quick=20)
def test_any_story_keeps_one_row_of_each_message_and_swallows_none(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig()
    live: dict[bytes, int] = {}
    """The record of each item that is an original."""
    for _ in range(60):
        if chance.random() < 0.1:
            rig.restart()
        if live and chance.random() < 0.3:
            gone = chance.choice(list(live))
            outcome = chance.choice(list(Outcome))
            if outcome is Outcome.MOVED:
                moved = make_item(decode_item(gone).message_id, LATER_MS, attributes={"k": "moved"})
                live[gone] = rig.move(live[gone], moved)
            else:
                rig.settle(outcome, live[gone])
                if outcome not in {Outcome.DELIVERED, Outcome.KNOWN}:
                    del live[gone]
        sent = [
            item(
                chance.randrange(4),
                due_ms=LATER_MS + chance.randrange(2),
                attributes={"k": chance.choice("vw")},
            )
            for _ in range(chance.randrange(1, 4))
        ]
        first = rig.log.next_sequence
        found = {place for place, _, _ in rig.send(*sent)}
        for place, one in enumerate(sent):
            assert (place in found) is (one in live)
            if one not in live:
                live[one] = first
                first += 1
