"""What a run has counted: accounts of single tasks, which are added up in any order.

Nothing in an account grows with the messages but its set of sequences, by some two bits each.
Findings are not in it: a task hands them on as a table of its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import ORIGINS, OUTCOMES
from spark_tools.judge.digests import Digest, add_digests
from spark_tools.judge.sequences import Sequences
from spark_tools.judge.tasks import GroupName
from storage.batch.batches import Damage

STATES: tuple[str, ...] = (*OUTCOMES, "waiting", "overdue", "lost", "repaired", "unknown")
"""Kinds of rows; each row is of exactly one."""
FACT_CLASSES: tuple[str, ...] = (
    "first",
    "duplicate",
    "settled_twice",
    "other",
    "repeated",
    "phantom",
    "unexplained",
)
"""What a fact can be; each is exactly one of them."""
OTHER_SUBJECTS = "(other)"
LATEST = "latest_ms"
"""The largest lateness of a bucket."""


FINDINGS_SCHEMA = pa.schema(
    [
        ("class", pa.string()),
        ("cluster", pa.string()),
        ("group", pa.string()),
        ("node", pa.string()),
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("subject", pa.string()),
        ("due_ms", pa.int64()),
        ("filed_minute", pa.int64()),
        ("at_ms", pa.int64()),
        ("target", pa.string()),
        ("outcome", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("note", pa.string()),
    ]
)
"""A row for each finding; position: of the batch in the file."""

SUBJECT_MEASURES: Final = (*ORIGINS, *STATES, "early", "sent_past_due", "misfiled", "bytes")
TARGET_MEASURES: tuple[str, ...] = ("facts", *FACT_CLASSES, *OUTCOMES, "early")


class Tally:
    """A table of counts by keys, added to part by part."""

    def __init__(
        self,
        keys: Mapping[str, pa.DataType],
        measures: Iterable[str],
        largest: Iterable[str] = (),
    ) -> None:
        """measures: are added up; largest: of these the largest stays."""
        self.keys = dict(keys)
        self.measures = tuple(measures)
        self.largest = tuple(largest)
        names = (*self.measures, *self.largest)
        self.schema = pa.schema([*self.keys.items(), *((name, pa.int64()) for name in names)])
        self._parts: list[pa.Table] = []
        self._rows = 0
        self._summed = 0

    def add(self, part: pa.Table) -> None:
        """Add counts; the same keys may be there many times."""
        if not part.num_rows:
            return
        self._parts.append(part.cast(self.schema))
        self._rows += part.num_rows
        if self._rows > 2 * self._summed + _PARTS_ROWS_MIN:
            self.table()

    def merge(self, other: "Tally") -> None:
        """Add another table of the same keys and measures."""
        for part in other._parts:  # noqa: SLF001
            self.add(part)

    def table(self) -> pa.Table:
        """Return the sums, by key in order."""
        if not self._parts:
            return self.schema.empty_table()
        if len(self._parts) > 1 or self._summed != self._rows:
            joined = pa.concat_tables(self._parts)
            how = [(name, "sum") for name in self.measures]
            how += [(name, "max") for name in self.largest]
            summed = joined.group_by(list(self.keys), use_threads=False).aggregate(how)
            names = [*self.keys, *(f"{name}_{what}" for name, what in how)]
            table = summed.select(names).rename_columns(self.schema.names).cast(self.schema)
            table = table.sort_by([(name, "ascending") for name in self.keys])
            self._parts, self._rows = [table], table.num_rows
            self._summed = self._rows
        return self._parts[0]

    def fold_subjects(self, most: int) -> None:
        """Keep the first `most` subjects by name, and add up the others as one.

        What is kept does not depend on when, and on the order in which parts came: a name that is
        left out has that many before it, now and later.
        """
        table = self.table()
        names = pc.unique(table["subject"]).drop_null()
        names = names.filter(pc.not_equal(names, OTHER_SUBJECTS))
        if len(names) <= most:
            return
        kept = names.sort()[:most]
        is_kept = pc.is_in(table["subject"], value_set=kept)
        folded = pc.if_else(is_kept, table["subject"], OTHER_SUBJECTS)
        place = table.schema.get_field_index("subject")
        self._parts = [table.set_column(place, "subject", folded)]
        self._summed = 0
        self.table()


_PARTS_ROWS_MIN = 100_000
_HOUR = {"hour": pa.int64()}
_SUBJECT = {**_HOUR, "subject": pa.string()}
_TARGET = {**_HOUR, "target": pa.string()}
_BUCKET = {"bucket": pa.int64()}


def _subjects() -> Tally:
    return Tally(_SUBJECT, SUBJECT_MEASURES)


def _missing() -> Tally:
    return Tally(_SUBJECT, ["missing"])


def _targets() -> Tally:
    return Tally(_TARGET, TARGET_MEASURES)


def _subject_lateness() -> Tally:
    return lateness_tally(_SUBJECT)


def _target_lateness() -> Tally:
    return lateness_tally(_TARGET)


def lateness_tally(keys: Mapping[str, pa.DataType]) -> Tally:
    """Return an empty table of deliveries by keys and bucket, and the latest of each, ms."""
    return Tally({**keys, **_BUCKET}, ["count"], [LATEST])


@dataclass(slots=True)
class ReplicaHour:
    """What a node has of one hour: rows, and facts that differ from each other."""

    rows: Digest = field(default_factory=Digest)
    facts: Digest = field(default_factory=Digest)

    def add(self, other: "ReplicaHour") -> None:
        """Add what another task has found of the same hour."""
        self.rows.add(other.rows)
        self.facts.add(other.facts)


@dataclass(slots=True)
class Account:
    """Everything that was counted of one group. `hour`: of the filed minute, minutes since 1970."""

    totals: Counter[str] = field(default_factory=Counter)
    """Rows and facts, each counted on its own and by what it is; see docs/reconciliation.md."""
    subjects: Tally = field(default_factory=_subjects)
    missing: Tally = field(default_factory=_missing)
    """Records without a row: accepted as well, but nothing is known of them, and no row counted."""
    targets: Tally = field(default_factory=_targets)
    subject_lateness: Tally = field(default_factory=_subject_lateness)
    target_lateness: Tally = field(default_factory=_target_lateness)
    sequences: Sequences = field(default_factory=Sequences)
    """Of the rows."""
    filed: dict[int, Digest] = field(default_factory=dict)
    """By block of sequences, rows that the message_log can be asked about."""
    logged: dict[int, Digest] = field(default_factory=dict)
    """By block of sequences, records of the message_log that must have a row."""
    cuts: dict[int, Digest] = field(default_factory=dict)
    """Rows of the range by where sequences are cut (`SegmentTask.edges`)."""
    pieces: list[pa.Table] = field(default_factory=list)
    """Rows of the message_log that were read for its index (`log_index.py`)."""
    replicas: dict[tuple[str, int], ReplicaHour] = field(default_factory=dict)
    """By node and hour."""
    unread_hours: set[int] = field(default_factory=set)
    """Hours of segments, of any node, that could not be read whole: they are not compared."""
    damages: set[tuple[str, Damage]] = field(default_factory=set)
    """What could not be read, by node."""
    problems: set[tuple[str, str]] = field(default_factory=set)
    """Why else the input is not complete: node, or nothing, and what is wrong."""

    def merge(self, other: "Account") -> None:
        """Add what another task has counted."""
        self.totals.update(other.totals)
        self.subjects.merge(other.subjects)
        self.missing.merge(other.missing)
        self.targets.merge(other.targets)
        self.subject_lateness.merge(other.subject_lateness)
        self.target_lateness.merge(other.target_lateness)
        self.sequences.merge(other.sequences)
        add_digests(self.filed, other.filed)
        add_digests(self.logged, other.logged)
        add_digests(self.cuts, other.cuts)
        self.pieces += other.pieces
        for key, hour in other.replicas.items():
            self.replicas.setdefault(key, ReplicaHour()).add(hour)
        self.unread_hours |= other.unread_hours
        self.damages |= other.damages
        self.problems |= other.problems

    def fold_subjects(self, most: int) -> None:
        """Bound the tables, whatever subjects there are."""
        self.subjects.fold_subjects(most)
        self.missing.fold_subjects(most)
        self.subject_lateness.fold_subjects(most)

    def books(self) -> list[tuple[str, int, int]]:
        """Return what must add up: what it is, what was found, and what it must be."""
        totals = self.totals
        sums = [
            ("rows by origin", sum(totals[one] for one in ORIGINS), totals["rows"]),
            ("rows by state", sum(totals[state] for state in STATES), totals["rows"]),
            ("facts by class", sum(totals[one] for one in FACT_CLASSES), totals["facts"]),
            (
                "rows with a fact, and first facts",
                sum(totals[state] for state in OUTCOMES) + totals["unknown_outcomes"],
                totals["first"] + totals["shared"],
            ),
        ]
        subjects, targets = self.subjects.table(), self.targets.table()
        for table, names in ((subjects, SUBJECT_MEASURES), (targets, TARGET_MEASURES)):
            for name in names:
                if name not in {"early", "bytes", *OUTCOMES} or table is subjects:
                    summed = pc.sum(table[name]).as_py() or 0
                    sums.append((f"{name} by hour", summed, totals[name]))
        missing = pc.sum(self.missing.table()["missing"]).as_py() or 0
        sums.append(("missing by hour", missing, totals["missing"]))
        for what, tally in (
            ("lateness, early and sent past due", self.subject_lateness),
            ("lateness by broker group, early and sent past due", self.target_lateness),
        ):
            late = pc.sum(tally.table()["count"]).as_py() or 0
            other = totals["early"] + totals["sent_past_due"]
            sums.append((what, late + other, totals["delivered"]))
        return sums

    def imbalances(self) -> list[str]:
        """Return what does not add up; nothing, or the result must not be believed."""
        return [
            f"{what}: {found}, not {wanted}"
            for what, found, wanted in self.books()
            if found != wanted
        ]


@dataclass(slots=True)
class TaskResult:
    """What a task hands back; findings: a table of FINDINGS_SCHEMA."""

    name: GroupName
    account: Account
    findings: pa.Table
