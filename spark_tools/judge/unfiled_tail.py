"""The end of the message_log, of which the files of segments do not have all rows and facts yet.

It is read once for a run and handed to tasks by filed minute: a task for each segment would
otherwise read all of it. It is what a node takes in between two checkpoints, seconds or some
hundred MB (`storage.checkpoint_interval_ms`), whatever the directory holds.

Some of its rows, and of its facts, are filed already: each segment says up to which record. A fact
about a minute that no unsealed segment covers counts if rows of that minute are nowhere but in the
tail either. Else their segment is sealed, and has all the facts that it needed, or is lost.

Where the file of a segment's facts is gone, or has fewer than there are rows, all that is kept of
the message_log is read for them: what it still states is no loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import (
    FACT_COLUMNS,
    Facts,
    Int64s,
    Mask,
    Names,
    Rows,
    facts_of,
    hour_of,
    ints,
    sift,
)
from spark_tools.judge.digests import Digest, add_digests, digests_by, hashes_of_rows
from spark_tools.judge.message_log import is_filed, read_records
from spark_tools.judge.tasks import Cover, Extent, LogRange, Loose, Node, Rules
from storage.batch.batches import Damage
from storage.disk.spans import DEAD_MINUTES_FROM
from storage.logs.message_log import MESSAGE_LOG_DIRECTORY
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What is in no segment yet, and what else was read to find it.

    filed_hours: digests, by hour, of those records that are in segments already.
    """

    loose: Loose
    filed_hours: dict[int, Digest]
    damages: tuple[Damage, ...]

    def of_range(self, rules: Rules) -> Loose:
        """Return what is loose of a range; all facts, as they may be of rows of other minutes."""
        rows = self.loose.rows
        return replace(self.loose, rows=rows.take(rules.covers(rows.minute)))


def tail_of(manifest: Manifest, logs: Sequence[LogRange]) -> list[LogRange]:
    """Return the end of the message_log; logs: all that is kept of it."""
    found = (log.part(manifest.sequence + 1, manifest.log_next_sequence) for log in logs)
    return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class _Lacking:
    """Minutes of a segment whose file lacks facts; filed: the sequences of those that it has."""

    start: int
    end: int
    filed: Int64s

    @classmethod
    def of(cls, node: Node, extent: Extent) -> "_Lacking":
        """Return what the file of an extent has; what is damaged in it the extent's task tells."""
        reader = ArrowReader(node.disk(), node.log_uuid, Kind.DISPATCH, ["sequence"])
        found = sift(reader.filed_facts(extent.facts_file, length=extent.facts_length), [])
        parts = [np.empty(0, np.int64), *(ints(table, "sequence") for table in found)]
        return cls(extent.start, extent.end, np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Unfiled:
    """How to tell what of the tail is in no file; it can be pickled.

    logs: the records above `sequence`, up to which all are filed; fact_logs: those that may state
    facts that are in no file, all that is kept if segments lack some; cover: of the segments whose
    facts are asked for; lacks_segments: there may be others, of which nobody tells.
    """

    node: Node
    logs: tuple[LogRange, ...]
    fact_logs: tuple[LogRange, ...]
    lacking: tuple[_Lacking, ...]
    cover: Cover
    sequence: int
    lacks_segments: bool

    @classmethod
    def of(
        cls, node: Node, manifest: Manifest, logs: Sequence[LogRange], extents: list[Extent]
    ) -> "Unfiled":
        """Return the tail that a manifest commits; logs: as `tail_of` takes them."""
        ends = tuple(tail_of(manifest, logs))
        lacking = tuple(_Lacking.of(node, one) for one in extents if one.lacks_facts)
        fact_logs = tuple(logs) if lacking else ends
        cover = Cover.of(extents)
        return cls(
            node, ends, fact_logs, lacking, cover, manifest.sequence, manifest.lacks_segments
        )

    def has_row(self, sequence: Int64s, minute: Int64s) -> Mask:
        """Say which records make a row that is in no segment; minute: their filed minutes."""
        return ~is_filed(sequence, self.cover.places(minute), self.cover, self.sequence)

    def has_fact(self, record: Int64s, minute: Int64s, minutes: Int64s) -> Mask:
        """Say which records state a fact that counts and is in no file.

        minute: the filed minutes that the facts tell; minutes: those of rows that are in no
        segment, as `minutes` returns them. What becomes of a minute is not known if no segment
        covers it that is told of, and others may.
        """
        places = self.cover.places(minute)
        is_open = np.isin(minute, minutes) & (not self.lacks_segments)
        if not len(self.cover.start):
            return is_open
        return np.where(places >= 0, record > self.cover.last_fact[places], is_open)

    def minutes(self) -> Int64s:
        """Read the filed minutes of rows, dead letters included, that are in no segment."""
        reader = ArrowReader(
            self.node.disk(), self.node.log_uuid, Kind.MESSAGE, ["sequence", "filed_minute"]
        )
        found = [np.empty(0, np.int64)]
        for log in self.logs:
            tables = reader.messages(
                log.file,
                length=log.length,
                first_sequence=log.first_sequence,
                next_sequence=log.next_sequence,
            )
            # What is damaged is told by whoever reads the facts, which lie between these records.
            for table in sift(tables, []):
                rows = table.filter(pc.is_valid(table.column("filed_minute")))
                minute = ints(rows, "filed_minute")
                found.append(np.unique(minute[self.has_row(ints(rows, "sequence"), minute)]))
        return np.unique(np.concatenate(found))

    def facts(
        self, log: LogRange, columns: Sequence[str], minutes: Int64s
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the facts of one of `fact_logs` that count and are in no file, and the damage.

        The tables have `columns`, and perhaps more. minutes: as `has_fact` takes them.
        """
        asked = list(dict.fromkeys([*columns, "sequence", "filed_minute", "record"]))
        reader = ArrowReader(self.node.disk(), self.node.log_uuid, Kind.DISPATCH, asked)
        for found in reader.stated_facts(
            log.file,
            length=log.length,
            first_sequence=log.first_sequence,
            next_sequence=log.next_sequence,
        ):
            if isinstance(found, Damage):
                yield found
                continue
            record, minute = ints(found, "record"), ints(found, "filed_minute")
            counts = (record > self.sequence) & self.has_fact(record, minute, minutes)
            for one in self.lacking:
                mine = (minute >= one.start) & (minute < one.end)
                counts |= mine & ~np.isin(ints(found, "sequence"), one.filed)
            yield found.filter(pa.array(counts))


def read_tail(
    node: Node, manifest: Manifest, logs: Sequence[LogRange], extents: list[Extent]
) -> Tail:
    """Read the rows and facts that are in no file.

    logs: all that is kept of the message_log; extents: all segments of accepted messages.
    """
    unfiled = Unfiled.of(node, manifest, logs, extents)
    subjects, targets, files = Names(), Names(), Names()
    damages: list[Damage] = []
    rows, facts = list[Rows](), list[Facts]()
    filed_hours: dict[int, Digest] = {}
    for log in unfiled.logs:
        for found in read_records(node, log, subjects, files.number(log.file), damages):
            is_loose = unfiled.has_row(found.sequence, found.minute)
            rows.append(found.take(is_loose))
            known = found.take(~is_loose)
            add_digests(filed_hours, digests_by(hour_of(known.minute), hashes_of_rows(known)))
    loose = Rows.join(rows)
    minutes = np.unique(loose.minute)
    for log in unfiled.fact_logs:
        for table in sift(unfiled.facts(log, FACT_COLUMNS, minutes), damages):
            told = facts_of(table, files.number(log.file), targets)
            # Facts about dead letters are of no accepted message.
            facts.append(told.take(told.minute < DEAD_MINUTES_FROM))
    return Tail(
        loose=Loose(
            rows=loose,
            facts=Facts.join(facts),
            subjects=tuple(subjects.all()),
            targets=tuple(targets.all()),
            files=tuple(files.all()),
            lengths={log.file: log.length for log in unfiled.fact_logs},
            records_are_missing=bool(damages) or manifest.has_fault(MESSAGE_LOG_DIRECTORY),
        ),
        filed_hours=filed_hours,
        # What lies between records is damaged for both.
        damages=tuple(dict.fromkeys(damages)),
    )
