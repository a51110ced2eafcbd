"""The ends of the message_log and of the journal, which no checkpoint has filed yet.

They are read once for a run and handed to tasks by filed minute: a task for each segment would
otherwise read all of it. It is what a node takes in between two checkpoints, seconds or some
hundred MB (`storage.checkpoint_interval_ms`), whatever the directory holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_tools.columns import FACT_COLUMNS, Facts, Names, Rows, facts_of, hour_of, sift
from spark_tools.digests import Digest, add_digests, digests_by, hashes_of_rows
from spark_tools.message_log import is_filed, read_records
from spark_tools.tasks import Cover, LogRange, Loose, Node, Rules
from storage.arrow import ArrowReader, Kind
from storage.batches import Damage
from storage.manifest import Manifest
from storage.spans import DEAD_MINUTES_FROM


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What is in no segment yet, and what else was read to find it.

    subjects, targets, files: the names that numbers stand for; lengths: of the files of the
    message_log; filed_hours: digests, by hour, of those records that are in segments already;
    rows_are_missing, facts_are_missing: some could not be read.
    """

    rows: Rows
    facts: Facts
    subjects: tuple[str, ...]
    targets: tuple[str, ...]
    files: tuple[str, ...]
    lengths: dict[str, int]
    filed_hours: dict[int, Digest]
    damages: tuple[Damage, ...]
    rows_are_missing: bool
    facts_are_missing: bool

    def loose(self, rules: Rules) -> Loose:
        """Return what is loose of a range; all facts, as they may be of rows of other minutes."""
        return Loose(
            rows=self.rows.take(rules.covers(self.rows.minute)),
            facts=self.facts,
            subjects=self.subjects,
            targets=self.targets,
            files=self.files,
            lengths=self.lengths,
            rows_are_missing=self.rows_are_missing,
            facts_are_missing=self.facts_are_missing,
        )


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
    return Tail(
        rows=Rows.join(rows),
        facts=facts,
        subjects=tuple(subjects.all()),
        targets=tuple(targets.all()),
        files=tuple(files.all()),
        lengths=lengths,
        filed_hours=filed_hours,
        damages=(*log_damages, *damages),
        rows_are_missing=bool(log_damages) or _has_fault(manifest, "message_log"),
        facts_are_missing=bool(damages) or _has_fault(manifest, "dispatch_log/journal"),
    )


def _facts(
    node: Node, manifest: Manifest, targets: Names, files: Names
) -> tuple[Facts, Sequence[Damage]]:
    damages: list[Damage] = []
    facts: list[Facts] = []
    reader = ArrowReader(node.disk(), node.log_uuid, Kind.DISPATCH, FACT_COLUMNS)
    for one in manifest.journal:
        file = files.number(one.file)
        tables = reader.journal(
            one.file,
            length=one.length,
            first_number=one.first_number,
            next_number=one.next_number,
        )
        for table in sift(tables, damages):
            new = facts_of(table, file, targets)
            # Facts about dead letters are of no accepted message.
            facts.append(new.take(new.minute < DEAD_MINUTES_FROM))
    return Facts.join(facts), damages


def _has_fault(manifest: Manifest, directory: str) -> bool:
    return any(fault.file.startswith(directory) for fault in manifest.faults)
