"""The ends of the message_log and of the journal, which no checkpoint has filed yet.

They are read once for a run and handed to tasks by filed minute: a task for each segment would
otherwise read all of it. It is what a node takes in between two checkpoints, seconds or some
hundred MB (`storage.checkpoint_interval_ms`), whatever the directory holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_tools.files.columns import FACT_COLUMNS, Facts, Names, Rows, facts_of, hour_of, sift
from spark_tools.judge.digests import Digest, add_digests, digests_by, hashes_of_rows
from spark_tools.judge.message_log import is_filed, read_records
from spark_tools.judge.tasks import Cover, LogRange, Loose, Node, Rules
from storage.batch.batches import Damage
from storage.disk.spans import DEAD_MINUTES_FROM
from storage.logs.dispatch_log import JOURNAL_DIRECTORY
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


def read_tail(node: Node, manifest: Manifest, logs: Sequence[LogRange], cover: Cover) -> Tail:
    """Read what no checkpoint has filed. logs, cover: by the manifest, for all minutes."""
    subjects, targets, files = Names(), Names(), Names()
    log_damages: list[Damage] = []
    lengths: dict[str, int] = {}
    rows: list[Rows] = []
    filed_hours: dict[int, Digest] = {}
    for log in logs:
        if log.next_sequence <= manifest.sequence + 1:
            continue
        file = files.number(log.file)
        lengths[log.file] = log.length
        end = LogRange(
            file=log.file,
            length=log.length,
            first_sequence=max(log.first_sequence, manifest.sequence + 1),
            next_sequence=log.next_sequence,
        )
        for found in read_records(node, end, subjects, file, log_damages):
            places = cover.places(found.minute)
            filed = is_filed(found.sequence, places, cover, manifest.sequence)
            rows.append(found.take(~filed))
            known = found.take(filed)
            add_digests(filed_hours, digests_by(hour_of(known.minute), hashes_of_rows(known)))
    facts, damages = _facts(node, manifest, targets, files)
    loose = Loose(
        rows=Rows.join(rows),
        facts=facts,
        subjects=tuple(subjects.all()),
        targets=tuple(targets.all()),
        files=tuple(files.all()),
        lengths=lengths,
        rows_are_missing=bool(log_damages) or manifest.has_fault(MESSAGE_LOG_DIRECTORY),
        facts_are_missing=bool(damages) or manifest.has_fault(JOURNAL_DIRECTORY),
    )
    return Tail(loose=loose, filed_hours=filed_hours, damages=(*log_damages, *damages))


def _facts(
    node: Node, manifest: Manifest, targets: Names, files: Names
) -> tuple[Facts, Sequence[Damage]]:
    damages: list[Damage] = []
    facts: list[Facts] = []
    for file, table in journal_tables(node, manifest, FACT_COLUMNS, damages):
        new = facts_of(table, files.number(file), targets)
        # Facts about dead letters are of no accepted message.
        facts.append(new.take(new.minute < DEAD_MINUTES_FROM))
    return Facts.join(facts), damages


def journal_tables(
    node: Node, manifest: Manifest, columns: Sequence[str], damages: list[Damage]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the facts that no checkpoint has filed, with the file of the journal they are in.

    damages: what cannot be read is added to it.
    """
    reader = ArrowReader(node.disk(), node.log_uuid, Kind.DISPATCH, columns)
    for one in manifest.journal:
        tables = reader.journal(
            one.file,
            length=one.length,
            first_number=one.first_number,
            next_number=one.next_number,
        )
        for table in sift(tables, damages):
            yield one.file, table
