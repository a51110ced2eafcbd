"""Logs of one node with faults put into them on purpose, made by storage's own writers.

What is written is drawn from a seed. A `World` is the files and a manifest of them; what is wrong
with it nobody needs to say: `tests/spark_tools/oracle.py` finds out by itself.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from spark_tools.files.columns import ORIGINS
from spark_tools.judge.account import FACT_CLASSES, STATES
from spark_tools.run.plan import Source
from storage.batch.batches import COPIES
from storage.batch.columns import Array, RecordKind
from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock, Outcome
from storage.batch.rows import Origin, RowBlock
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_minute
from storage.logs.message_log import Draft, MessageLog
from storage.readers.manifest import (
    Manifest,
    MessageLogFile,
    SealedSegment,
    UnsealedSegment,
)
from storage.schedule.segment import Segment
from tests.simulation.disk import SimDisk
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import LOG_UUID, NOW_MS, recover
from tests.storage.small_segments import segment_disk

T0 = NOW_MS // MINUTE_MS
"""A midnight."""
CLOCKS = 23_057_640
"""3 November 2013, 6:00: in New York it is 1:00 once more."""
DAY_MINUTES = 24 * 60
CLOCK_AHEAD = 75
"""Minutes by which a clock was wrong until it was set back."""
SUBJECTS = (b"boarding", b"gate", b"caf\xe9")
TARGETS = (b"g1", b"g2")
FAULTS = (
    "no_fact",
    "duplicate",
    "repeated",
    "other",
    "phantom",
    "future_fact",
    "early",
    "strayed",
    "misfiled",
    "doubled",
    "missing",
    "unlogged",
    "altered",
    "deleted",
    "trimmed_log",
    "clock_set",
)
"""What can be wrong."""
NAMING = frozenset({Outcome.CANCELLED, Outcome.DEAD})
"""Told by records that name a message, where there is no target."""
TOTALS = (
    *ORIGINS,
    *STATES,
    "facts",
    *FACT_CLASSES,
    "early",
    "sent_past_due",
    "misfiled",
    "misfiled_in_log",
    "doubled",
    "missing",
    "unlogged",
    "altered",
    "unchecked",
)
"""What is counted of a group, by runs and by `tests/spark_tools/oracle.py`."""


@dataclass(slots=True)
class Message:
    """A message, as its record tells of it."""

    sequence: int
    due_ms: int
    floor: int
    subject: bytes
    id_hash: int
    body: bytes
    origin: Origin = Origin.ACCEPTED

    @property
    def minute(self) -> int:
        return max(self.due_ms // MINUTE_MS, self.floor)

    @property
    def item(self) -> bytes:
        return qmq_item(self.due_ms, self.subject, b"id-%d" % self.sequence, self.body)


@dataclass(slots=True)
class Fact:
    sequence: int
    minute: int
    at_ms: int
    target: bytes
    outcome: Outcome


@dataclass(slots=True)
class World:
    """The files of a node, and the manifest of what counts."""

    files: dict[str, bytes]
    manifest: Manifest

    def written(self, root: Path) -> Source:
        """Write the files below a directory, and return what a plan takes."""
        for path, data in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        root.mkdir(parents=True, exist_ok=True)
        return Source(self.manifest, str(root))


def span_of(minute: int, begin: int) -> SegmentKey:
    """Return the segment of a world that covers a minute: minutes, then hours, then days."""
    if minute < begin + 60:
        return SegmentKey(minute, Span.MINUTE)
    days_from = (begin // DAY_MINUTES + 1) * DAY_MINUTES
    return key_of_minute(minute, Span.HOUR if minute < days_from else Span.DAY)


@dataclass(slots=True)
class Builder:
    """Makes a world; each step may be left out, or changed, by a test."""

    chance: random.Random
    faults: frozenset[str] = frozenset()
    share: float = 0.15
    begin: int = T0
    """The minute at which it begins, a full hour: what is due before is due by now."""
    messages: list[Message] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)
    """Sequences of records that are no messages."""
    rows: dict[SegmentKey, list[Message]] = field(default_factory=lambda: defaultdict(list))
    filed: dict[SegmentKey, list[Fact]] = field(default_factory=lambda: defaultdict(list))
    unfiled: list[Fact] = field(default_factory=list)
    """Facts that are in no file of a segment: only records at the end of the message_log."""
    sealed: set[SegmentKey] = field(default_factory=set)
    deleted: set[SegmentKey] = field(default_factory=set)
    filed_sequence: int = 0
    grows: bool = False
    """Whether a later world has other records where this one states facts, at the end of its log:
    so none of them counts as filed, and what is sealed is left out."""
    trimmed: int = 0
    """Files of the message_log that are gone."""
    log_next: int = 0
    batches: list[tuple[int, int, list[Message]]] = field(default_factory=list)
    """Kind, floor minute and messages of each batch of the message_log."""
    more: list[Draft] = field(default_factory=list)
    """What comes behind these, before the facts."""

    def struck(self, fault: str) -> bool:
        return fault in self.faults and self.chance.random() < self.share

    def accept(self, count: int) -> None:
        """Accept messages, batch by batch, with control records in between."""
        chance, sequence, floor = self.chance, 2, self.begin - 5
        while len(self.messages) < count:
            if (lot := chance.random()) < 0.2:
                kind = RecordKind.FACTS if lot < 0.1 else RecordKind.FLOOR
                self.batches.append((kind, floor, []))
                self.controls.append(sequence)
                sequence += 1
                continue
            floor += chance.choice([0, 0, 1])
            floor = min(floor, self.begin + 5)
            if "clock_set" in self.faults and len(self.messages) >= count // 2:
                # The clock was ahead for a while, and then set back; the floor never goes back.
                floor = self.begin + CLOCK_AHEAD
            batch = []
            for _ in range(chance.randrange(1, 7)):
                ahead = chance.choice([-10, 0, 3, 3, 8, 20, 100, 500, 3000])
                due_ms = (self.begin - 5) * MINUTE_MS + chance.randrange(
                    -MINUTE_MS, ahead * MINUTE_MS + 600_000
                )
                batch.append(
                    Message(
                        sequence,
                        due_ms,
                        floor,
                        chance.choice(SUBJECTS),
                        chance.getrandbits(64),
                        bytes(chance.randrange(40)),
                        Origin.COPY if len(self.batches) % 5 == 0 else Origin.ACCEPTED,
                    )
                )
                sequence += 1
            self.messages += batch
            self.batches.append((RecordKind.MESSAGE, floor, batch))
        self.log_next = sequence

    def file(self) -> None:
        """Put rows into segments; some of the last messages are in the message_log only."""
        chance = self.chance
        self.filed_sequence = chance.choice([self.log_next - 1, chance.randrange(1, self.log_next)])
        beyond: dict[SegmentKey, int] = {}
        for message in self.messages:
            key = span_of(message.minute, self.begin)
            more = beyond.setdefault(key, chance.choice([0, 0, chance.randrange(self.log_next)]))
            if message.sequence > max(self.filed_sequence, more):
                continue
            if self.struck("missing"):
                continue
            if self.struck("misfiled"):
                key = span_of(message.minute + chance.choice([-2, -1, 1, 2, 70]), self.begin)
            if self.struck("altered"):
                message = chance.choice(  # noqa: PLW2901
                    [
                        replace(message, due_ms=message.due_ms + 1),
                        replace(message, id_hash=message.id_hash ^ 1),
                        replace(message, body=message.body + b"x"),
                        replace(message, origin=Origin.RETRY),
                    ]
                )
            self.rows[key].append(message)
            if self.struck("doubled"):
                other = span_of(message.minute + chance.choice([0, 1, 3]), self.begin)
                self.rows[other].append(message)
            if self.struck("unlogged") and self.controls:
                sequence = chance.choice(self.controls)
                if sequence < message.sequence:
                    self.rows[key].insert(
                        -1,
                        Message(sequence, message.due_ms, message.floor, b"gate", 1, b"x"),
                    )
        for key, rows in self.rows.items():
            rows.sort(key=lambda one: one.sequence)
            above = [one for one in rows if one.sequence > self.filed_sequence]
            if not above and chance.random() < (0.75 if key.end <= self.begin else 0.2):
                self.sealed.add(key)
            if key in self.sealed and "deleted" in self.faults and chance.random() < 0.4:
                self.deleted.add(key)

    def tell(self) -> None:
        """Tell what became of most messages."""
        chance = self.chance
        where = [(key, message) for key, rows in sorted(self.rows.items()) for message in rows]
        in_rows = {message.sequence for _, message in where}
        where += [
            (span_of(one.minute, self.begin), one)
            for one in self.messages
            if one.sequence not in in_rows
        ]
        for key, message in where:
            minute = message.minute if key.start <= message.minute < key.end else key.start
            if key not in self.sealed and (
                message.due_ms > self.begin * MINUTE_MS or chance.random() < 0.1
            ):
                continue
            if self.struck("no_fact"):
                continue
            if self.struck("strayed"):
                minute = chance.randrange(key.start, key.end)
            at_ms = message.due_ms + chance.choice([0, 1, 7, 8, 300, 50_000])
            if self.struck("early"):
                at_ms = message.due_ms - chance.choice([1, 1, 500])
            if self.struck("clock_set"):
                at_ms -= CLOCK_AHEAD * MINUTE_MS
            outcome = Outcome.DELIVERED
            if chance.random() < 0.2:
                outcome = chance.choice(list(Outcome))
            first = Fact(message.sequence, minute, at_ms, chance.choice(TARGETS), outcome)
            if outcome in NAMING:
                first.target = b""
            told = [first]
            if self.struck("duplicate"):
                told.append(
                    Fact(
                        message.sequence,
                        minute,
                        at_ms + chance.choice([0, 3]),
                        chance.choice(TARGETS),
                        Outcome.DELIVERED,
                    )
                )
            if self.struck("other"):
                later = at_ms + chance.choice([-5, 0, 5])
                told.append(
                    Fact(
                        message.sequence, minute, later, first.target, chance.choice(list(Outcome))
                    )
                )
            if self.struck("repeated"):
                told.append(first)
            if self.struck("phantom"):
                told.append(
                    Fact(message.sequence + chance.choice([1, 1000]), minute, at_ms, b"g1", outcome)
                )
            if self.struck("future_fact"):
                told.append(Fact(self.log_next + 10**6, minute, at_ms, b"g3", outcome))
            chance.shuffle(told)
            for fact in told:
                if key in self.sealed or chance.random() < 0.7:
                    self.filed[key].append(fact)
                else:
                    self.unfiled.append(fact)
        for facts in self.filed.values():
            chance.shuffle(facts)
        if "trimmed_log" in self.faults:
            self.trimmed = chance.randrange(4)

    def build(self, *, node: str = "n1", group: str = "g", made_ms: int | None = None) -> World:
        """Write everything, and return it. made_ms: 30 s behind the beginning if None."""
        now_ms = self.begin * MINUTE_MS
        disk = segment_disk()
        disk.make_directory("message_log")
        log, records, sequence = self._write_log(disk)
        next_sequence = log[-1].next_sequence
        segments = self._write_segments(disk, records)
        unsealed, sealed = [], []
        for key in sorted(segments):
            segment = segments[key]
            common: dict[str, object] = {
                "file": key.path,
                "facts_file": key.facts_path,
                "start_minute": key.start,
                "span": key.span.name.lower(),
                "length": segment.file.length,
                "rows": segment.rows,
                "last_sequence": segment.last_sequence,
                "facts_length": segment.facts_file.length,
            }
            if key not in self.sealed:
                more: dict[str, object] = {
                    "earliest_due_ms": segment.earliest_due_ms,
                    "facts": segment.facts,
                    "last_fact": segment.last_fact,
                }
                unsealed.append(msgspec.convert({**common, **more}, UnsealedSegment))
                continue
            outcomes: dict[str, int] = defaultdict(int)
            for fact in self.filed[key]:
                outcomes[fact.outcome.name.lower()] += 1
            more = {
                "distinct": segment.rows,
                "digest": "0" * 32,
                "facts_digest": "0" * 32,
                "outcomes": dict(outcomes),
                "sealed_ms": now_ms,
                "deleted": key in self.deleted,
            }
            sealed.append(msgspec.convert({**common, **more}, SealedSegment))
        files = disk.contents()
        for key in self.deleted:
            files.pop(key.path, None)
            files.pop(key.facts_path, None)
        needed = sum(one.first_sequence <= sequence + 1 for one in log) - 1
        kept = log[min(self.trimmed, needed) :]
        manifest = Manifest(
            made_ms=now_ms + 30_000 if made_ms is None else made_ms,
            cluster="c",
            group=group,
            node_id=node,
            log_uuid=str(LOG_UUID),
            storage_uuid=f"{group}-{node}",
            written_ms=now_ms,
            sequence=sequence,
            first_sequence=kept[0].first_sequence,
            floor_minute=self.begin,
            hour_mark=self.begin + 60,
            day_mark=(self.begin // DAY_MINUTES + 1) * DAY_MINUTES,
            log_next_sequence=next_sequence,
            durable_next_sequence=next_sequence,
            deleted_from_minute=0,
            segments=tuple(unsealed),
            dead_segments=(),
            sealed=tuple(sealed),
            dead_sealed=(),
            message_log=tuple(kept),
            retired=(),
            quarantined=(),
            faults=(),
        )
        return World(files, manifest)

    def _write_log(
        self, disk: SimDisk
    ) -> tuple[list[MessageLogFile], dict[SegmentKey, list[int]], int]:
        """Write the message_log.

        Return its files, the records that state the filed facts of each segment, and up to which
        record all is filed.
        """
        log, _ = recover(disk, file_bytes_max=1500)
        for kind, floor, batch in self.batches:
            draft = Draft(kind=RecordKind.FLOOR, count=1)
            if kind is RecordKind.MESSAGE:
                draft = _messages(batch)
            elif kind is RecordKind.FACTS:
                # About a minute that no segment covers: it was sealed, and is forgotten.
                draft = _facts([Fact(1, 1, 1, b"g1", Outcome.DELIVERED)])
            log.append([draft], floor_minute=floor, append_ms=self.begin * MINUTE_MS)
        floor = max((floor for _, floor, _ in self.batches), default=0)
        for draft in self.more:
            log.append([draft], floor_minute=floor, append_ms=self.begin * MINUTE_MS)
        records, unfiled = self._state_facts(log, floor)
        sequence = self.filed_sequence
        if sequence == self.log_next - 1 and not self.grows:
            sequence = min([log.next_sequence, *unfiled]) - 1
        contents = disk.contents()
        files = log.files()
        nexts = [*(one.first_sequence for one in files[1:]), log.next_sequence]
        found = [
            MessageLogFile(
                file=one.path,
                first_sequence=one.first_sequence,
                next_sequence=after,
                length=len(contents[one.path]),
            )
            for one, after in zip(files, nexts, strict=True)
        ]
        return found, records, sequence

    def _state_facts(
        self, log: MessageLog, floor: int
    ) -> tuple[dict[SegmentKey, list[int]], list[int]]:
        """Append all facts; return the records of the filed ones by segment, and of the others.

        Of each segment those that are filed come first; segments are mixed, alike on replicas.
        """
        chance = random.Random(len(self.messages))
        queues: dict[SegmentKey | None, list[tuple[bool, Fact]]] = defaultdict(list)
        for key, facts in sorted(self.filed.items()):
            if not (self.grows and key in self.sealed):
                queues[key] += [(True, fact) for fact in facts]
        keys = sorted({*self.rows, *self.filed})
        for fact in self.unfiled:
            covering = (one for one in keys if one.start <= fact.minute < one.end)
            queues[next(covering, None)].append((False, fact))
        records: dict[SegmentKey, list[int]] = defaultdict(list)
        unfiled: list[int] = []
        queues = {key: queue for key, queue in queues.items() if queue}
        while queues:
            turn = chance.choice(list(queues))
            queue = queues[turn]
            part = [queue.pop(0)]
            draft = _naming(part[0][1])
            if draft is None:
                while queue and _naming(queue[0][1]) is None and chance.random() < 0.7:
                    part.append(queue.pop(0))
                draft = _facts([fact for _, fact in part])
            for record, (is_filed, _) in enumerate(part, start=log.next_sequence):
                (records[turn] if is_filed and turn is not None else unfiled).append(record)
            log.append([draft], floor_minute=floor, append_ms=part[0][1].at_ms)
            if not queue:
                del queues[turn]
        return records, unfiled

    def _write_segments(
        self, disk: SimDisk, records: dict[SegmentKey, list[int]]
    ) -> dict[SegmentKey, Segment]:
        table, found = SubjectTable(), {}
        for key in sorted({*self.rows, *self.filed}):
            segment = Segment.new(disk, LOG_UUID, key)
            rows = self.rows.get(key, [])
            while rows:
                # A sequence that is there twice must be in one batch: readers drop it elsewhere.
                count = self.chance.randrange(1, len(rows) + 1)
                while count < len(rows) and rows[count].sequence == rows[count - 1].sequence:
                    count += 1
                part, rows = rows[:count], rows[count:]
                items = [one.item for one in part]
                block = RowBlock(
                    sequence=np.array([one.sequence for one in part], np.int64),
                    due_ms=np.array([one.due_ms for one in part], np.int64),
                    id_hash=np.array([one.id_hash for one in part], np.uint64),
                    size=np.array([len(item) for item in items], np.uint32),
                    subject=table.numbers([one.subject for one in part]),
                    origin=np.array([one.origin for one in part], np.uint8),
                    minute=np.zeros(len(part), np.int64),
                    blob=b"".join(items),
                )
                segment.append(block, table, epoch=1, append_ms=self.begin * MINUTE_MS)
            facts = self.filed.get(key, [])
            stated = records.get(key, [0] * len(facts))
            while facts:
                count = self.chance.randrange(1, len(facts) + 1)
                segment.append_facts(
                    block_of(facts[:count], stated[:count]),
                    epoch=1,
                    append_ms=self.begin * MINUTE_MS,
                )
                facts, stated = facts[count:], stated[count:]
            found[key] = segment
        return found


def _messages(batch: list[Message]) -> Draft:
    names = sorted({one.subject for one in batch})
    items = [one.item for one in batch]
    return Draft(
        kind=RecordKind.MESSAGE,
        count=len(batch),
        names=names,
        arrays={
            "due_ms": np.array([one.due_ms for one in batch], np.int64),
            "id_hash": np.array([one.id_hash for one in batch], np.uint64),
            "size": np.array([len(item) for item in items], np.uint32),
            "subject": np.array([names.index(one.subject) for one in batch], np.uint16),
        },
        blob=items,
        features=COPIES if batch[0].origin is Origin.COPY else 0,
    )


def _facts(facts: list[Fact]) -> Draft:
    block = block_of(facts, [0] * len(facts))
    return Draft(kind=RecordKind.FACTS, count=len(block), names=block.targets, arrays=block.arrays)


def _naming(fact: Fact) -> Draft | None:
    """Return the record that names the message of a fact, None if it is no such fact.

    A dead letter has some item.
    """
    if fact.target or fact.outcome not in NAMING:
        return None
    arrays: dict[str, Array] = {
        "old_sequence": np.array([fact.sequence], np.int64),
        "old_minute": np.array([fact.minute], np.uint32),
    }
    if fact.outcome is Outcome.CANCELLED:
        return Draft(kind=RecordKind.CANCEL, count=1, arrays=arrays)
    item = qmq_item(0, b"gate", b"dead", b"")
    arrays |= {
        "due_ms": np.array([0], np.int64),
        "id_hash": np.array([0], np.uint64),
        "size": np.array([len(item)], np.uint32),
        "subject": np.array([0], np.uint16),
        "reason": np.array([0], np.uint16),
    }
    return Draft(kind=RecordKind.DEAD, count=1, names=[b"gate"], arrays=arrays, blob=[item])


def block_of(facts: list[Fact], records: list[int]) -> FactBlock:
    """Return facts as a block. records: that state them."""
    targets = sorted({fact.target for fact in facts})
    return FactBlock(
        sequence=np.array([one.sequence for one in facts], np.int64),
        minute=np.array([one.minute for one in facts], np.uint32),
        at_ms=np.array([one.at_ms for one in facts], np.int64),
        target=np.array([targets.index(one.target) for one in facts], np.uint16),
        outcome=np.array([one.outcome for one in facts], np.uint8),
        record=np.array(records, np.int64),
        targets=targets,
    )


def builder_of(
    seed: int, faults: frozenset[str] = frozenset(), *, count: int = 60, begin: int = T0
) -> Builder:
    """Return a builder that has done all of its steps."""
    builder = Builder(random.Random(seed), faults, begin=begin)
    builder.accept(count)
    builder.file()
    builder.tell()
    return builder


def world_of(seed: int, faults: frozenset[str] = frozenset(), *, count: int = 60) -> World:
    """Return the world of a seed."""
    return builder_of(seed, faults, count=count).build()
