"""A data directory on a simulated disk, driven step by step through as many lives as it takes.

`StoreRig` does what the server does with a Store, in any order and with any fault in between, and
remembers what nobody may forget: which messages were accepted, and which facts were durable. All
that it hears is checked at once; `check_rows` and `finish` check the rest.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from storage.batches import Damage
from storage.checkpoint import read_checkpoint
from storage.columns import Columns, RecordKind
from storage.entries import ENTRY, Entries
from storage.errors import FatalDiskError, StorageFullError
from storage.facts import FactBlock, Outcome
from storage.item_reader import ItemReader
from storage.message_log import Append
from storage.schedule_log import LoadJob, ScheduleLimits
from storage.seals import Seal, read_seals
from storage.segment import Segment
from storage.spans import MINUTE_MS
from storage.store import CheckpointWork, RecoverySummary, Store, StoreSettings
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Death, FaultPlan
from tests.storage.qmq_items import qmq_item

START_MS = 29_000_000 * MINUTE_MS
GRACE_MS = 60 * MINUTE_MS
SETTINGS = StoreSettings(
    schedule=ScheduleLimits(
        minute_horizon_minutes=2,
        hour_horizon_minutes=180,
        gather_bytes_max=6000,
        open_files_max=8,
    ),
    message_log_file_bytes_max=4000,
    journal_file_bytes_max=1500,
    retired_grace_ms=GRACE_MS,
)
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
    sealed: dict[str, Seal] = field(default_factory=dict)
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
        self.journalled: list[tuple[FactBlock, int]] = []
        self._load: LoadJob | None = None
        self.work: CheckpointWork | None = None
        self.store, self.summary = Store.open(
            self.disk,
            self.settings,
            chance=random.Random(self.lives),
            now_ms=self.now_ms,
            on_damage=self._damaged,
        )
        self._reader = ItemReader(
            self.disk, lambda *what: self._damaged(Damage(what[0], what[1], 0, what[2]))
        )
        self._floor = max(
            self.store.schedule.floor_minute, self.store.message_log.last_floor_minute
        )
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
        for batch in self.store.message_log.read(1):
            if isinstance(batch, Damage):
                assert self._damage_expected, batch
                continue
            header = batch.header
            if header.kind is not RecordKind.MESSAGE:
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
            assert self.memory.accepted.items() <= found.items()
            self.memory.accepted = found

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
        append = Append(
            kind=RecordKind.MESSAGE,
            count=len(items),
            floor_minute=floor,
            names=columns.names,
            arrays=columns.arrays,
            blob=items,
        )
        try:
            [header] = log.append([append], append_ms=self.now_ms)
        except StorageFullError:
            self.memory.refused.update(items)
            return
        self._floor = floor
        for place, (due, item) in enumerate(zip(due_ms, items, strict=True)):
            self.memory.accepted[header.base_sequence + place] = Message(
                due_ms=due,
                minute=max(due // MINUTE_MS, floor),
                subject=_SUBJECTS[subjects[place]],
                item=item,
            )
        append_ms = self.now_ms
        self._backlog.append(
            lambda: schedule.file(
                base_sequence=header.base_sequence,
                floor_minute=floor,
                epoch=1,
                columns=columns,
                blob=b"".join(items),
                append_ms=append_ms,
            )
        )

    def commit_floor(self) -> None:
        """Append a FLOOR record of the present minute."""
        schedule = self.store.schedule
        floor = max(self._floor, min(self.now_ms // MINUTE_MS, schedule.hour_mark - 1))
        append = Append(kind=RecordKind.FLOOR, count=1, floor_minute=floor, arrays={})
        try:
            [header] = self.store.message_log.append([append], append_ms=self.now_ms)
        except StorageFullError:
            return
        self._floor = floor
        now_ms = self.now_ms

        def file() -> Entries:
            schedule.file_control(
                sequence=header.base_sequence, floor_minute=floor, epoch=1, now_ms=now_ms
            )
            return np.empty(0, ENTRY)

        self._backlog.append(file)

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
            job = self.store.schedule.begin_split(self.now_ms)
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
                self._load = self.store.schedule.begin_load(
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
            sequence, due_ms, _position, _size, minute, subject = entry
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
        self._outcomes.append(facts_of(entries[sent], self.now_ms))

    def journal(self) -> None:
        """Make the outcomes durable."""
        if not self._outcomes:
            return
        told = {sequence for block in self._outcomes for sequence in block.sequence.tolist()}
        self.memory.attempted_facts |= told
        try:
            block, number = self.store.journal.append(
                self._outcomes, append_ms=self.now_ms, epoch=1
            )
        except StorageFullError:
            return
        self._outcomes = []
        self.memory.durable_facts |= told
        self.journalled.append((block, number))

    def note(self) -> None:
        """Tell the schedule_log of durable facts."""
        for block, number in self.journalled:
            self.store.note_facts(block, number)
        self.journalled = []

    def sync_durable_end(self) -> None:
        """Make the durable end itself durable."""
        self.store.message_log.sync_durable_end()

    def prepare_checkpoint(self) -> None:
        """Begin a checkpoint."""
        if self.work is None:
            self.work = self.store.prepare_checkpoint(self.now_ms)
            schedule = self.store.schedule
            for seal in self.work.seals:
                assert seal.key.end <= schedule.floor_minute
                self._check_seal(seal)

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
        self.store.finish_checkpoint(work, self.now_ms)

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
                self.journal()
            case 14:
                self.note()
            case 15:
                self.sync_durable_end()
            case 16:
                self.prepare_checkpoint()
            case 17 | 18:
                self.write_checkpoint()
            case _:
                self.commit_floor()

    # -- what must be true -------------------------------------------------------------------

    def _check_seal(self, seal: Seal) -> None:
        """A seal covers exactly the accepted rows of its minutes, each of them crossed off."""
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
        segments = list(schedule.segments.values())
        for seal in self.seals().values():
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
        for seal in read_seals(self.disk, uuid, checkpoint.seals_length):
            if isinstance(seal, Damage):
                assert self._damage_expected, seal
                continue
            assert seals.setdefault(seal.key.name, seal) == seal, "sealed twice, differently"
        return seals

    def check_rows(self) -> None:
        """Every accepted message is filed exactly once, and the spans do not overlap."""
        self.file(10**9)
        assert self.store.schedule.flush(self.now_ms)
        assert self.rows_on_disk() == Counter(dict.fromkeys(self.memory.accepted, 1))
        taken: set[int] = set()
        for segment in self.store.schedule.segments.values():
            minutes = set(range(segment.key.start, segment.key.end))
            assert not taken & minutes, "live segments overlap"
            taken |= minutes

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
        known |= {seq for block in schedule._unfiled for seq in block.sequence.tolist()}
        sealed = self.seals().values()
        known |= {
            sequence
            for sequence, message in self.memory.accepted.items()
            if any(seal.key.start <= message.minute < seal.key.end for seal in sealed)
        }
        return known

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
            named |= {seal.key.path, seal.key.facts_path}
        there = {
            path for path in self.disk.contents() if path.endswith((".minute", ".hour", ".day"))
        }
        assert named - there <= {file.path for file in checkpoint.retired}
        made_since = {
            file.path
            for segment in self.store.schedule.segments.values()
            for file in (segment.file, segment.facts_file)
        }
        assert there <= named | made_since

    def finish(self) -> None:
        """Let time pass until everything is delivered, crossed off and sealed; check all of it."""
        left: set[int] = set(self.memory.accepted)
        for _ in range(3000):
            self.split(10**6)
            self.file(10**9)
            self.load(ahead_ms=MINUTE_MS, steps=10**6)
            self.deliver()
            self.journal()
            self.note()
            self.write_checkpoint()
            schedule = self.store.schedule
            left = self.memory.accepted.keys() - self.memory.durable_facts
            if not left:
                break
            times = [schedule.next_load_ms(), schedule.next_split_ms()]
            times += [entry[1] for entry in self.wheel.values()]
            known = [time for time in times if time is not None]
            self.now_ms = max(self.now_ms + 1, min(known, default=self.now_ms + MINUTE_MS))
        assert not left, f"never left: {sorted(left)[:10]} of {len(left)}"
        assert set(self.memory.deliveries) == set(self.memory.accepted)
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
        assert not self.store.schedule.segments, "everything is delivered, yet not all is sealed"
        assert self.store.schedule.pending == 0
        self.now_ms += GRACE_MS
        for _ in range(2):
            self.commit_floor()
            self.file()
            self.checkpoint()
        assert not self.store._retired
        self.disk.power_cut()
        self.reopen()
        assert self.rows_on_disk() == Counter(dict.fromkeys(self.memory.accepted, 1))
        self.check_names()
        # Nobody synced the names of deleted files; nothing else may have been without a name.
        assert all(path.endswith((".hour", ".day")) for path in self.summary.orphans)
        checkpoint = read_checkpoint(self.disk, self.store.identity.log_uuid)
        assert checkpoint is not None
        assert checkpoint.segments == ()


def facts_of(entries: Entries, at_ms: int) -> FactBlock:
    """Return the facts that these entries were delivered."""
    count = len(entries)
    return FactBlock(
        sequence=entries["sequence"].copy(),
        minute=entries["minute"].copy(),
        at_ms=np.full(count, at_ms, np.int64),
        target=np.zeros(count, np.uint16),
        outcome=np.full(count, Outcome.DELIVERED, np.uint8),
        targets=[b"g1"],
    )
