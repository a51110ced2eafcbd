"""A data directory on a simulated disk, driven step by step through as many lives as it takes.

`StoreRig` does what the server does with a Store, in any order and with any fault in between, and
remembers what nobody may forget: which messages were accepted, and which facts were durable. All
that it hears is checked at once; `check_rows` and `finish` check the rest.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import Columns, RecordKind
from storage.batch.entries import ENTRY, Entries
from storage.batch.facts import FactBlock, facts_stated, join_facts
from storage.batch.file_header import decode_file_header
from storage.disk.errors import DamagedError, FatalDiskError, StorageFullError
from storage.disk.spans import MINUTE_MS, Span, key_of_minute, key_of_name
from storage.limits import StorageLimits
from storage.logs.message_log import Draft
from storage.node.store import CheckpointWork, RecoverySummary, Store, StoreSettings
from storage.readers.item_reader import ItemReader
from storage.schedule.loading import LoadJob
from storage.schedule.seals import Seal, SealsEnd, seals_end
from storage.schedule.segment import Segment
from storage.state.checkpoint import Checkpoint, EpochStart, read_checkpoint
from tests.kit.seals import read_seals
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Death, FaultPlan
from tests.storage.qmq_items import qmq_item
from tests.storage.small_segments import delivered
from tests.storage.starting import start

START_MS = 29_000_000 * MINUTE_MS
GRACE_MS = 60 * MINUTE_MS
_NEVER_MS = 10**14
SETTINGS = StoreSettings(
    limits=StorageLimits(
        minute_horizon_minutes=2,
        hour_horizon_minutes=180,
        gather_bytes_max=6000,
        open_files_max=8,
        message_log_file_bytes_max=4000,
        retired_grace_ms=GRACE_MS,
        message_log_keep_ms=_NEVER_MS,
        segments_keep_ms=_NEVER_MS,
        seals_keep_ms=_NEVER_MS,
    )
)
"""Nothing leaves for its age."""


def limited(settings: StoreSettings = SETTINGS, **limits: int) -> StoreSettings:
    """Return settings with some other limits."""
    return replace(settings, limits=replace(settings.limits, **limits))


SWEPT = limited(
    seals_file_bytes_max=1500,
    retired_grace_ms=10 * MINUTE_MS,
    message_log_keep_ms=20 * MINUTE_MS,
    duplicate_window_ms=5 * MINUTE_MS,
    segments_keep_ms=30 * MINUTE_MS,
    seals_keep_ms=100 * MINUTE_MS,
)
"""Everything that can leave does so within the time that a test plays."""
_SUBJECTS = (b"boarding", b"gate", b"delay")


@dataclass(frozen=True, slots=True)
class Message:
    """An accepted message, as it must be found wherever it is."""

    due_ms: int
    minute: int
    subject: bytes
    item: bytes


@dataclass(slots=True)
class Memory:
    """What holds over all lives."""

    accepted: dict[int, Message] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    """Items whose append found no space: they must not be there."""
    attempted_facts: set[int] = field(default_factory=set)
    durable_facts: set[int] = field(default_factory=set)
    deliveries: Counter[int] = field(default_factory=Counter)
    given_up: set[int] = field(default_factory=set)
    """Accepted ones that a DEAD record names."""
    appended_ms: dict[int, int] = field(default_factory=dict)
    epochs: list[EpochStart] = field(default_factory=list)
    sealed: dict[str, Seal] = field(default_factory=dict)
    """The last seal of each segment that a durable checkpoint told of."""
    was_short: bool = False
    """Whether ages were cut short for want of free disk."""
    deleted: Counter[str] = field(default_factory=Counter)
    """Files deleted in good order, by directory."""
    made: int = 0


class StoreRig:
    """One data directory; see the module's docstring."""

    def __init__(
        self,
        seed: int,
        *,
        settings: StoreSettings = SETTINGS,
        plan: FaultPlan | None = None,
        damage_expected: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1), plan=plan)
        self.settings = settings
        self.memory = Memory()
        self.now_ms = START_MS
        self.lives = 0
        self.damages: list[Damage] = []
        self._damage_expected = damage_expected
        self.store: Store
        self.summary: RecoverySummary

    # -- lives -------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin a life; what the life before left in memory is gone."""
        self.lives += 1
        self.wheel: dict[int, tuple[int, ...]] = {}
        self._in_wheel: set[int] = set()
        self._backlog: list[Callable[[], Entries]] = []
        self._outcomes: list[FactBlock] = []
        self._load: LoadJob | None = None
        self.work: CheckpointWork | None = None
        self._is_open = False
        self._watch_unlinks()
        self.store, self.summary = start(
            self.disk,
            self.settings,
            chance=random.Random(self.lives),
            now_ms=self.now_ms,
            on_damage=self._damaged,
        )
        self._is_open = True
        self.handout = self.store.schedule.hand_out()
        self._reader = ItemReader(self.disk, self._damaged)
        self._floor = max(
            self.store.schedule.floor_minute, self.store.message_log.last_floor_minute
        )
        self.remember_seals()
        self._learn_messages()
        self._learn_facts()

    def _damaged(self, damage: Damage) -> None:
        self.damages.append(damage)
        assert self._damage_expected, damage

    def reopen(self, *, plan: FaultPlan | None = None) -> None:
        """End this life, if it has not ended, and begin the next."""
        self.disk = self.disk.revive(plan)
        self.open()

    def survive(self, steps: Iterable[Callable[[], object]]) -> bool:
        """Do steps until the disk ends this life; say whether it did not."""
        try:
            for step in steps:
                step()
        except (Death, FatalDiskError):
            return False
        return True

    def _learn_messages(self) -> None:
        """Compare the message_log with what was accepted; adopt what was on its way at the end."""
        found: dict[int, Message] = {}
        log = self.store.message_log
        first = log.first_sequence
        assert first - 1 <= self.store.checkpoint.sequence
        epochs = [start for start in self.memory.epochs if start.first_sequence < first]
        for batch in log.read(1):
            if isinstance(batch, Damage):
                assert self._damage_expected, batch
                continue
            header = batch.header
            if header.kind is RecordKind.EPOCH_START:
                epochs.append(EpochStart(header.epoch, header.base_sequence))
            self.learn_record(batch)
            if header.kind not in {RecordKind.MESSAGE, RecordKind.MOVE}:
                continue
            begin = 0
            arrays = batch.columns.arrays
            for place in range(header.count):
                due_ms, size = int(arrays["due_ms"][place]), int(arrays["size"][place])
                found[header.base_sequence + place] = Message(
                    due_ms=due_ms,
                    minute=max(due_ms // MINUTE_MS, header.floor_minute),
                    subject=batch.columns.names[int(arrays["subject"][place])],
                    item=bytes(batch.blob[begin : begin + size]),
                )
                begin += size
        assert not self.memory.refused & {message.item for message in found.values()}
        if not self._damage_expected:
            accepted = self.memory.accepted
            gone = {sequence: accepted[sequence] for sequence in accepted if sequence < first}
            found |= gone
            assert accepted.items() <= found.items()
            self.memory.accepted = found
            assert self.store.schedule.epochs == epochs
            assert self.store.schedule.epoch == log.last_epoch == epochs[-1].epoch
            assert log.next_sequence > max(found, default=0)
        self.memory.epochs = epochs
        self.epoch = epochs[-1].epoch if epochs else 1

    def learn_record(self, batch: LogBatch) -> None:
        """Take note of a batch of the message_log, at a start."""

    # -- steps -------------------------------------------------------------------------------

    def commit(self, due_ms: list[int] | None = None) -> None:
        """Accept some messages; they are filed later."""
        if due_ms is None:
            spread = self.chance.choice([2_000, 5 * MINUTE_MS, 150 * MINUTE_MS, 3000 * MINUTE_MS])
            due_ms = [
                self.now_ms + self.chance.randrange(-MINUTE_MS, spread)
                for _ in range(self.chance.randrange(1, 9))
            ]
        log, schedule = self.store.message_log, self.store.schedule
        floor = max(self._floor, min(self.now_ms // MINUTE_MS, schedule.hour_mark - 1))
        items, subjects = [], []
        for due in due_ms:
            subjects.append(self.memory.made % 3)
            self.memory.made += 1
            name = b"m%d" % self.memory.made
            body = bytes(self.chance.randrange(200))
            items.append(qmq_item(due, _SUBJECTS[subjects[-1]], name, body))
        columns = Columns(
            names=list(_SUBJECTS),
            arrays={
                "due_ms": np.array(due_ms, np.int64),
                "id_hash": np.arange(len(due_ms), dtype=np.uint64),
                "size": np.array([len(item) for item in items], np.uint32),
                "subject": np.array(subjects, np.uint16),
            },
        )
        draft = Draft(
            kind=RecordKind.MESSAGE,
            count=len(items),
            names=columns.names,
            arrays=columns.arrays,
            blob=items,
        )
        try:
            [batch] = log.append([draft], floor_minute=floor, append_ms=self.now_ms)
        except StorageFullError:
            self.memory.refused.update(items)
            return
        self._floor, header = floor, batch.header
        for sequence in range(header.base_sequence, header.next_sequence):
            self.memory.appended_ms[sequence] = self.now_ms
        for place, (due, item) in enumerate(zip(due_ms, items, strict=True)):
            self.memory.accepted[header.base_sequence + place] = Message(
                due_ms=due,
                minute=max(due // MINUTE_MS, floor),
                subject=_SUBJECTS[subjects[place]],
                item=item,
            )
        self.apply_later(batch)

    def start_epoch(self) -> None:
        """Append EPOCH_START, as a master does that was elected anew."""
        try:
            batch = self.store.message_log.start_epoch(self.epoch + 1, append_ms=self.now_ms)
        except StorageFullError:
            return
        self.epoch += 1
        self.memory.epochs.append(EpochStart(self.epoch, batch.header.base_sequence))
        self.memory.appended_ms[batch.header.base_sequence] = self.now_ms
        self.apply_later(batch)

    def commit_floor(self) -> None:
        """Append a FLOOR record of the present minute."""
        schedule = self.store.schedule
        floor = max(self._floor, min(self.now_ms // MINUTE_MS, schedule.hour_mark - 1))
        draft = Draft(kind=RecordKind.FLOOR, count=1)
        log = self.store.message_log
        try:
            [batch] = log.append([draft], floor_minute=floor, append_ms=self.now_ms)
        except StorageFullError:
            return
        self._floor = floor
        self.memory.appended_ms[batch.header.base_sequence] = self.now_ms
        self.apply_later(batch)

    def apply_later(self, batch: LogBatch) -> None:
        """Have a batch, durable by now, be applied after those before it."""
        schedule, now_ms = self.store.schedule, self.now_ms
        facts = facts_stated(batch.header, batch.columns)
        if facts is not None:
            self.memory.attempted_facts.update(facts.sequence.tolist())
            self.memory.durable_facts.update(facts.sequence.tolist())
        self._backlog.append(lambda: schedule.apply(batch, now_ms=now_ms).entries)

    def file(self, count: int = 1) -> None:
        """File the next committed batches."""
        for _ in range(min(count, len(self._backlog))):
            self._take(self._backlog.pop(0)())
        schedule = self.store.schedule
        if schedule.full:
            self._take(schedule.flush_near(self.now_ms))
        if schedule.pile_is_full:
            schedule.flush(self.now_ms)

    def flush(self) -> None:
        """Write what waits in memory."""
        self.store.schedule.flush(self.now_ms)

    def split(self, steps: int = 1) -> None:
        """Go on with the split that is due."""
        for _ in range(steps):
            job = self.store.schedule.splits.begin(self.now_ms)
            if job is None:
                return
            try:
                job.step(self.now_ms)
            except StorageFullError:
                return

    def load(self, *, ahead_ms: int = 2 * MINUTE_MS, rows_max: int = 10**9, steps: int = 1) -> None:
        """Go on with loading."""
        for _ in range(steps):
            if self._load is None:
                self._load = self.handout.begin_load(
                    self.now_ms + ahead_ms, rows_max=rows_max, now_ms=self.now_ms
                )
            if self._load is None:
                return
            entries, done = self._load.step(self.chance.choice([1, 20, 1000]))
            self._take(entries)
            if done:
                self._load = None

    def _take(self, entries: Entries) -> None:
        for entry in entries.tolist():
            sequence, due_ms, _position, _size, minute, subject, _row = entry
            message = self.memory.accepted[sequence]
            assert sequence not in self._in_wheel, f"{sequence} entered the wheel twice"
            self._in_wheel.add(sequence)
            assert (due_ms, minute) == (message.due_ms, message.minute)
            assert self.store.schedule.subjects.names[subject] == message.subject
            assert sequence not in self.memory.durable_facts, f"{sequence} was crossed off"
            self.wheel[sequence] = entry

    def deliver(self, count: int = 10**9) -> None:
        """Send what is due; the outcomes wait to become facts."""
        due = [entry for entry in self.wheel.values() if entry[1] <= self.now_ms][:count]
        if not due:
            return
        entries = np.array(due, ENTRY)
        items, damaged = self._reader.read(entries)
        if damaged is not None:
            assert self._damage_expected
        sent = []
        for place, entry in enumerate(due):
            sequence = entry[0]
            del self.wheel[sequence]
            if damaged is not None and damaged[place]:
                continue
            assert bytes(items[place]) == self.memory.accepted[sequence].item
            self.memory.deliveries[sequence] += 1
            sent.append(place)
            assert sequence not in self.memory.given_up, "sent, though it was given up"
        self._outcomes.append(facts_of(entries[sent], self.now_ms))

    def state_facts(self) -> None:
        """Make the outcomes durable; they are applied later."""
        if not self._outcomes:
            return
        facts = join_facts(self._outcomes)
        self.memory.attempted_facts.update(facts.sequence.tolist())
        draft = Draft(
            kind=RecordKind.FACTS, count=len(facts), names=facts.targets, arrays=facts.arrays
        )
        try:
            [batch] = self.store.message_log.append([draft], append_ms=self.now_ms)
        except StorageFullError:
            return
        self._outcomes = []
        for sequence in range(batch.header.base_sequence, batch.header.next_sequence):
            self.memory.appended_ms[sequence] = self.now_ms
        self.apply_later(batch)

    def cross_off(self) -> None:
        """Make the outcomes durable, and apply them and what was committed before."""
        self.state_facts()
        self.file(10**9)

    def file_and_deliver(self) -> None:
        """File a batch, and cross off all that is due a second later."""
        self.file()
        self.load(steps=100)
        self.now_ms += 1000
        self.deliver()
        self.cross_off()

    def sync_durable_end(self) -> None:
        """Make the durable end itself durable."""
        self.store.message_log.sync_durable_end()

    def prepare_checkpoint(self, free_bytes_wanted: int | None = None) -> None:
        """Begin a checkpoint."""
        if self.work is None:
            self.memory.was_short |= free_bytes_wanted is not None
            self.work = self.store.prepare_checkpoint(self.now_ms, free_bytes_wanted)

    def write_checkpoint(self) -> None:
        """Write the checkpoint that was begun, and finish it."""
        work, self.work = self.work, None
        if work is None:
            return
        try:
            work.write()
        except StorageFullError:
            self.store.abandon_checkpoint(work)
            return
        for seal in work.seals:
            assert seal.key.end <= work.checkpoint.floor_minute
            self._check_seal(seal)
        self.store.finish_checkpoint(work)
        self.remember_seals()

    def checkpoint(self) -> None:
        """Write a checkpoint in one go."""
        self.prepare_checkpoint()
        self.write_checkpoint()

    def random_step(self) -> None:
        """Do something that the server might do now."""
        chance = self.chance
        match chance.randrange(20):
            case 0 | 1 | 2:
                self.commit()
            case 3 | 4 | 5:
                self.file(chance.choice([1, 1, 5]))
            case 6:
                self.now_ms += chance.choice([100, 20_000, 20 * MINUTE_MS, 90 * MINUTE_MS])
            case 7 | 8:
                self.split(chance.choice([1, 3, 30]))
            case 9 | 10:
                rows_max = chance.choice([3, 50, 10**6])
                self.load(ahead_ms=chance.choice([1, 30_000, 120_000]), rows_max=rows_max, steps=2)
            case 11 | 12:
                self.deliver(chance.choice([1, 5, 100]))
            case 13:
                self.state_facts()
            case 14:
                self.file()
            case 15:
                self.sync_durable_end()
            case 16:
                self.prepare_checkpoint(self._free_bytes_wanted())
            case 17 | 18:
                self.write_checkpoint()
            case _ if chance.random() < 0.2:
                self.start_epoch()
            case _:
                self.commit_floor()

    def _free_bytes_wanted(self) -> int | None:
        """Return what shall be free: nothing said, a little more than is, or everything."""
        if self.settings is not SWEPT or self.chance.random() < 0.7:
            return None
        return self.disk.free_bytes()[0] + self.chance.choice([-1, 1, 2000, 10**9])

    # -- what must be true -------------------------------------------------------------------

    def _check_seal(self, seal: Seal) -> None:
        """A seal covers exactly the accepted rows of its minutes, each of them crossed off."""
        if seal.key.span is Span.DEAD:
            return
        rows = {
            sequence
            for sequence, message in self.memory.accepted.items()
            if seal.key.start <= message.minute < seal.key.end
        }
        assert seal.rows == seal.distinct == len(rows)
        assert rows <= self.memory.attempted_facts

    def rows_on_disk(self) -> Counter[int]:
        """Count each sequence over all segments that count, sealed ones included; check places."""
        schedule = self.store.schedule
        found: Counter[int] = Counter()
        segments = list(schedule.of_time())
        for seal in self.seals().values():
            if seal.deleted or seal.key.span is Span.DEAD:
                continue
            sealed = Segment.new(self.disk, self.store.identity.log_uuid, seal.key)
            sealed.file.length = seal.length
            assert len(self.disk.contents()[seal.key.path]) == seal.length, "a sealed segment grew"
            segments.append(sealed)
        for segment in segments:
            for batch in segment.read_rows(self.disk, segment.file.length):
                if isinstance(batch, Damage):
                    self._damaged(batch)
                    continue
                minutes = batch.minutes().tolist()
                for sequence, minute in zip(batch.sequence.tolist(), minutes, strict=True):
                    found[sequence] += 1
                    assert self.memory.accepted[sequence].minute == minute
        return found

    def seals(self) -> dict[str, Seal]:
        """Return the seals that count by segment name."""
        uuid, checkpoint = self.store.identity.log_uuid, self.store.checkpoint
        seals: dict[str, Seal] = {}
        for seal in read_seals(self.disk, uuid, seals_end(checkpoint)):
            if isinstance(seal, Damage):
                assert self._damage_expected, seal
                continue
            before = seals.get(seal.key.name, replace(seal, deleted=False))
            assert before != seal or seal.key.name not in seals, "sealed twice"
            assert not before.deleted, "sealed again"
            assert before == replace(seal, deleted=False), "sealed differently"
            seals[seal.key.name] = seal
        return seals

    def remember_seals(self) -> None:
        """Take note of what a durable checkpoint says; no seal leaves too early."""
        seals, sealed = self.seals(), self.memory.sealed
        if not self._damage_expected:
            for name in sealed.keys() - seals.keys():
                assert sealed[name].deleted, "the files are there, the seal is not"
                age_ms = self.now_ms - sealed[name].sealed_ms
                assert age_ms >= self.settings.limits.seals_keep_ms
        sealed |= seals

    def is_deleted(self, sequence: int) -> bool:
        """Say whether the segment of a message was marked as deleted."""
        minute = self.memory.accepted[sequence].minute
        for span in (Span.MINUTE, Span.HOUR, Span.DAY):
            seal = self.memory.sealed.get(key_of_minute(minute, span).name)
            if seal is not None and seal.deleted:
                return True
        return False

    def expected_rows(self) -> Counter[int]:
        """Return how often each accepted sequence has to be found in segments."""
        left = [sequence for sequence in self.memory.accepted if not self.is_deleted(sequence)]
        gone = self.memory.accepted.keys() - set(left)
        assert gone <= self.memory.attempted_facts, "deleted undelivered"
        return Counter(left)

    def check_rows(self) -> None:
        """Every accepted message is filed exactly once, and the spans do not overlap."""
        self.file(10**9)
        assert self.store.schedule.flush(self.now_ms)
        self.check_pending()
        assert self.rows_on_disk() == self.expected_rows()
        taken: set[int] = set()
        for segment in self.store.schedule.of_time():
            minutes = set(range(segment.key.start, segment.key.end))
            assert not taken & minutes, "live segments overlap"
            taken |= minutes

    def check_pending(self) -> None:
        """What is filed and has no fact is counted."""
        if not self._damage_expected:
            expected = self.memory.accepted.keys() - self.facts_known()
            assert self.store.schedule.pending == len(expected)

    def facts_known(self) -> set[int]:
        """Return the sequences that the store takes for crossed off, sealed segments included."""
        schedule = self.store.schedule
        known = {
            sequence
            for segment in schedule.segments.values()
            for block in segment.read_facts(self.disk)
            if isinstance(block, FactBlock)
            for sequence in block.sequence.tolist()
        }
        known |= {seq for block in schedule.facts._unfiled for seq in block.sequence.tolist()}
        sealed = [seal for seal in self.memory.sealed.values() if seal.key.span is not Span.DEAD]
        known |= self.sealed_dead()
        known |= {
            sequence
            for sequence, message in self.memory.accepted.items()
            if any(seal.key.start <= message.minute < seal.key.end for seal in sealed)
        }
        return known

    def sealed_dead(self) -> set[int]:
        """Return the rows of dead segments that are sealed."""
        return set()

    def check_facts(self) -> None:
        """No durable fact is forgotten, none is invented."""
        known = self.facts_known()
        assert self._damage_expected or self.memory.durable_facts <= known
        assert known <= self.memory.attempted_facts

    def _learn_facts(self) -> None:
        """Compare the facts with what was made durable; adopt what was on its way at the end."""
        self.check_facts()
        self.memory.durable_facts = self.facts_known()

    def check_names(self) -> None:
        """Every segment file on the disk is named by checkpoint, seals or retired list."""
        checkpoint = self.store.checkpoint
        named = {file.path for file in checkpoint.retired}
        for state in checkpoint.segments:
            named |= {state.key.path} if state.length else set()
            named |= {state.key.facts_path} if state.facts_length else set()
        for seal in self.seals().values():
            if not seal.deleted:
                named |= {seal.key.path, seal.key.facts_path}
        there = {
            path
            for path in self.disk.contents()
            if path.endswith((".minute", ".hour", ".day", ".dead"))
        }
        assert named - there <= {file.path for file in checkpoint.retired}
        made_since = {
            file.path
            for segment in self.store.schedule.segments.values()
            for file in (segment.file, segment.facts_file)
        }
        assert there <= named | made_since

    def finish(self) -> None:
        """Let time pass until all is delivered, sealed and, where it is old, gone; check it."""
        self.seal_everything()
        self.see_files_leave()
        self.disk.power_cut()
        self.reopen()
        assert self.rows_on_disk() == self.expected_rows()
        self.check_names()
        assert not self.summary.orphans
        checkpoint = read_checkpoint(self.disk, self.store.identity.log_uuid)
        assert checkpoint is not None
        assert checkpoint.segments == ()

    def seal_everything(self) -> None:
        """Let time pass until everything is delivered, crossed off and sealed."""
        left: set[int] = set(self.memory.accepted)
        for _ in range(3000):
            self.split(10**6)
            self.file(10**9)
            self.load(ahead_ms=MINUTE_MS, steps=10**6)
            self.deliver()
            self.cross_off()
            self.write_checkpoint()
            schedule = self.store.schedule
            left = self.memory.accepted.keys() - self.memory.durable_facts
            if not left:
                break
            times = [self.handout.next_load_ms(), schedule.splits.next_ms()]
            times += [entry[1] for entry in self.wheel.values()]
            known = [time for time in times if time is not None]
            self.now_ms = max(self.now_ms + 1, min(known, default=self.now_ms + MINUTE_MS))
        assert not left, f"never left: {sorted(left)[:10]} of {len(left)}"
        sent = set(self.memory.deliveries)
        assert sent | self.memory.given_up == set(self.memory.accepted)
        self.now_ms += 2 * MINUTE_MS
        self.split(10**6)
        self.now_ms = max(
            [self.now_ms, *((m.minute + 2) * MINUTE_MS for m in self.memory.accepted.values())]
        )
        self.split(10**6)
        self.commit_floor()
        self.check_rows()
        self.checkpoint()
        self.sync_durable_end()
        assert not list(self.store.schedule.of_time()), (
            "everything is delivered, yet not all is sealed"
        )
        assert self.store.schedule.pending == 0

    # -- what leaves -------------------------------------------------------------------------

    def see_files_leave(self) -> None:
        """Follow the timer until nothing waits for its time; see that everything did leave."""
        for _ in range(1000):
            next_ms = self.store.retention.next_ms
            if next_ms is None or next_ms >= _NEVER_MS:
                break
            assert not self.store.needs_checkpoint(next_ms - 1) or next_ms <= self.now_ms
            self.now_ms = max(self.now_ms, next_ms)
            assert self.store.needs_checkpoint(self.now_ms)
            self.checkpoint()
        else:
            raise AssertionError("something has its time and does not leave")
        assert not self.store.checkpoint.retired
        assert not self.store.needs_checkpoint(self.now_ms)
        if self.settings is not SWEPT:
            return
        left = [path for path in self.disk.contents() if key_of_name(path.rpartition("/")[2])]
        assert left == [], "segments did not leave"
        for directory in ("message_log", "seals"):
            files = [name for name in self.disk.list(directory) if name.endswith(".log")]
            assert len(files) <= 1, f"files of the {directory} did not leave"
        assert self.seals().keys() <= self.memory.sealed.keys()

    def _watch_unlinks(self) -> None:
        """Hold every deletion of this life against what is durable in its moment."""
        unlink = self.disk.unlink

        def watched(path: str) -> None:
            self._check_unlink(path)
            unlink(path)

        self.disk.unlink = watched  # type: ignore[method-assign]

    def _check_unlink(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        if name.endswith(".tmp") or self._damage_expected:
            return
        durable = self.disk.contents(durable=True)
        data = durable.get("checkpoint/checkpoint")
        checkpoint = msgspec.json.decode(data[72:], type=Checkpoint) if data else Checkpoint()
        assert path not in checkpoint.quarantined
        is_listed = path in {file.path for file in checkpoint.retired}
        key = key_of_name(name)
        if key is not None:
            assert is_listed or not self._is_open, "deleted unlisted"
            assert key not in {s.key for s in checkpoint.segments if directory != "dispatch_log"}
            seals = _seals_in(durable, seals_end(checkpoint))
            assert seals.get(key.name, True), "deleted without a mark"
        elif directory == "message_log":
            first = int(name.removesuffix(".log"))
            is_failed = first >= self._next_sequence()
            assert is_failed or first < checkpoint.first_sequence <= checkpoint.sequence + 1
            assert is_listed or is_failed or not self._is_open
            if is_listed:
                rules = self.settings.limits
                keep_ms = 0 if self.memory.was_short else rules.message_log_keep_ms
                last = max(s for s in self.memory.appended_ms if s < checkpoint.first_sequence)
                age_ms = self.now_ms - self.memory.appended_ms[last]
                assert age_ms >= max(keep_ms, rules.duplicate_window_ms)
        self.memory.deleted[directory] += is_listed

    def _next_sequence(self) -> int:
        return max(self.memory.appended_ms, default=0) + 1


def _seals_in(files: dict[str, bytes], end: SealsEnd) -> dict[str, bool]:
    """Return of each segment that the seals in these files tell of whether it is deleted."""
    disk = SimDisk(random.Random(0))
    disk.make_directory("seals")
    log_uuid = None
    for path, data in files.items():
        if path.startswith("seals/") and len(data) > 64:
            disk.open(path, create=True).write_at(0, [data])
            with contextlib.suppress(DamagedError):  # Of one that no checkpoint counts yet.
                log_uuid = decode_file_header(data, path=path).log_uuid
    if log_uuid is None:
        return {}
    seals = [seal for seal in read_seals(disk, log_uuid, end) if isinstance(seal, Seal)]
    return {seal.key.name: seal.deleted for seal in seals}


def facts_of(entries: Entries, at_ms: int) -> FactBlock:
    """Return the facts that these entries were delivered."""
    minutes: list[int] = entries["minute"].tolist()
    return delivered(entries["sequence"].tolist(), minute=minutes, at_ms=at_ms)
