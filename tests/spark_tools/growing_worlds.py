"""Logs of one node at several moments of its life, with faults put into them on purpose.

What is wrong with a message is drawn once; how much of it there is to be seen depends on the
moment. So hours fill up, close and are sealed, coarse segments are split, facts arrive, files of
the message_log leave and segments are deleted, while runs by hour look on.
"""

import random
from dataclasses import dataclass, field, replace

import msgspec

from storage.batch.columns import RecordKind
from storage.batch.facts import Outcome
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_minute
from tests.spark_tools.worlds import NAMING, SUBJECTS, T0, TARGETS, Builder, Fact, Message, World

HOURS = 5
"""That close while the node lives."""
FAULTS = (
    "no_fact",
    "duplicate",
    "repeated",
    "other",
    "phantom",
    "early",
    "strayed",
    "misfiled",
    "doubled",
    "missing",
    "unlogged",
    "altered",
    "stuck",
    "deleted",
    "trimmed_log",
    "lagging",
)
"""What can be wrong. stuck: a segment stays open for some hours; lagging: what has come in last is
not filed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row, the minute into whose segment it was filed, and what was told of it."""

    message: Message
    minute: int
    facts: tuple[Fact, ...]


@dataclass(slots=True)
class Life:
    """A node from T0 on. `at` returns what there is of it so many minutes later."""

    seed: int
    faults: frozenset[str] = frozenset()
    share: float = 0.12
    before: int = 0
    """Minutes before T0 in which messages came as well."""
    rows: list[Row] = field(default_factory=list)
    batches: list[tuple[int, int, list[Message]]] = field(default_factory=list)
    stuck: dict[int, int] = field(default_factory=dict)
    """Minutes whose segment stays open, and until when."""
    _chance: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._live()

    def _struck(self, fault: str) -> bool:
        return fault in self.faults and self._chance.random() < self.share

    def _live(self) -> None:
        chance, sequence = self._chance, 2
        for minute in range(T0 - self.before, T0 + HOURS * 60 + 60, 7):
            if (lot := chance.random()) < 0.3:
                kind = RecordKind.FACTS if lot < 0.15 else RecordKind.FLOOR
                self.batches.append((kind, minute, []))
                control = sequence
                sequence += 1
                if self._struck("unlogged"):
                    due_ms = (minute + chance.randrange(5, 90)) * MINUTE_MS
                    message = Message(control, due_ms, minute, b"gate", 1, b"x")
                    self._file(message, due_ms // MINUTE_MS)
            batch = []
            for _ in range(chance.randrange(1, 4)):
                delay = chance.choice([-3, 0, 2, 10, 40, 70, 130, 200, 4000])
                due_ms = (minute + delay) * MINUTE_MS + chance.randrange(MINUTE_MS)
                batch.append(
                    Message(
                        sequence,
                        due_ms,
                        minute,
                        chance.choice(SUBJECTS),
                        chance.getrandbits(63),
                        bytes(chance.randrange(20)),
                    )
                )
                sequence += 1
            self.batches.append((RecordKind.MESSAGE, minute, batch))
            for message in batch:
                self._accept(message)
        for minute in {row.minute for row in self.rows}:
            if self._struck("stuck"):
                self.stuck[minute] = minute + chance.choice([30, 100, 200, 10_000])

    def _accept(self, message: Message) -> None:
        chance, minute = self._chance, message.minute
        if self._struck("missing"):
            return
        if self._struck("misfiled"):
            minute = max(minute + chance.choice([-70, -2, -1, 1, 2, 60, 120]), message.floor)
        row = message
        if self._struck("altered"):
            row = chance.choice(
                [
                    replace(message, due_ms=message.due_ms + 1),
                    replace(message, id_hash=message.id_hash ^ 1),
                    replace(message, body=message.body + b"x"),
                ]
            )
        self._file(row, minute)
        if self._struck("doubled"):
            for _ in range(chance.choice([1, 1, 2])):
                other = message.minute + chance.choice([0, 1, 55, 60, 130])
                self._file(row, max(other, message.floor))

    def _file(self, row: Message, minute: int) -> None:
        self.rows.append(Row(row, minute, tuple(self._told(row, minute))))

    def _told(self, row: Message, minute: int) -> list[Fact]:
        chance = self._chance
        if self._struck("no_fact"):
            return []
        at_ms = max(row.due_ms, minute * MINUTE_MS) + chance.choice([0, 1, 300, 50_000])
        if self._struck("early"):
            at_ms = row.due_ms - chance.choice([1, 500])
        outcome = Outcome.DELIVERED
        if chance.random() < 0.2:
            outcome = chance.choice(list(Outcome))
        first = Fact(row.sequence, minute, at_ms, chance.choice(TARGETS), outcome)
        if outcome in NAMING:
            first = replace(first, target=b"")
        told = [first]
        if self._struck("duplicate"):
            told.append(replace(first, at_ms=at_ms + 3, outcome=Outcome.DELIVERED))
        if self._struck("other"):
            told.append(replace(first, at_ms=at_ms + 5, outcome=chance.choice(list(Outcome))))
        if self._struck("repeated"):
            told.append(first)
        if self._struck("phantom"):
            told.append(replace(first, sequence=max(row.sequence - chance.choice([1, 7]), 1)))
        chance.shuffle(told)
        return told

    def at(self, minutes: int, *, trimmed: int = 0) -> World:
        """Return what there is so many minutes after T0. trimmed: files of the message_log gone."""
        chance, now = random.Random(self.seed * 1000 + minutes), T0 + minutes
        batches = [one for one in self.batches if one[1] <= now]
        builder = Builder(chance, grows=True)
        builder.batches = batches
        builder.log_next = 2 + sum(len(batch) or 1 for _, _, batch in batches)
        unfiled = chance.randrange(4) if "lagging" in self.faults else 0
        filed = batches[: len(batches) - unfiled]
        builder.filed_sequence = 1 + sum(len(batch) or 1 for _, _, batch in filed)
        floor = filed[-1][1] if filed else 0
        ahead = {
            key_of(row.minute, now): chance.randrange(builder.log_next)
            for row in self.rows
            if chance.random() < 0.3
        }
        owing: set[SegmentKey] = set()
        """Segments of which some fact is still to come."""
        for row in self.rows:
            key = key_of(row.minute, now)
            if row.message.sequence > max(builder.filed_sequence, ahead.get(key, 0)):
                continue
            builder.rows[key].append(row.message)
            for fact in row.facts:
                if fact.at_ms <= now * MINUTE_MS:
                    builder.filed[key].append(fact)
                else:
                    owing.add(key)
        for key, rows in list(builder.rows.items()):
            rows.sort(key=lambda one: one.sequence)
            held = max(self.stuck.get(minute, 0) for minute in range(key.start, key.end))
            above = any(one.sequence > builder.filed_sequence for one in rows)
            if key.end <= floor and not above and now >= held and key not in owing:
                builder.sealed.add(key)
                is_old = key.end <= now - 100
                lot = random.Random(self.seed + key.start).random()
                if "deleted" in self.faults and is_old and lot < 0.3:
                    builder.deleted.add(key)
                continue
            # Of what is open some is only in the message_log, or was not told yet.
            told, builder.filed[key] = builder.filed[key], []
            for fact in told:
                if held > now and chance.random() < 0.5:
                    continue
                if chance.random() < 0.5:
                    builder.filed[key].append(fact)
                else:
                    builder.unfiled.append(fact)
        for key in [key for key, facts in builder.filed.items() if not facts]:
            del builder.filed[key]
        builder.trimmed = trimmed if "trimmed_log" in self.faults else 0
        world = builder.build(made_ms=now * MINUTE_MS + 70_000)
        world.manifest = msgspec.structs.replace(
            world.manifest, floor_minute=floor, hour_mark=now + 90, day_mark=now + 1440
        )
        return world


def key_of(minute: int, now: int) -> SegmentKey:
    """Return the segment that covers a minute at a moment: what is near is in minutes."""
    if minute < (now + 90) // 60 * 60:
        return SegmentKey(minute, Span.MINUTE)
    if minute < (now + 1440) // 1440 * 1440:
        return key_of_minute(minute, Span.HOUR)
    return key_of_minute(minute, Span.DAY)
