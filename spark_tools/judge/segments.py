"""The task of one segment, or a part of it: rows and facts in, an account and findings out.

Memory is what their columns take, 49 bytes a row and 41 a fact, and about as much again while they
are sorted. What of the segment is in other parts is read and let go at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_tools.files.columns import (
    DELIVERED,
    FACT_COLUMNS,
    MAY_FOLLOW,
    ORIGINS,
    OUTCOMES,
    ROW_COLUMNS,
    Facts,
    Int64s,
    Mask,
    Names,
    Places,
    Rows,
    facts_of,
    hour_of,
    ints,
    rows_of,
    sift,
)
from spark_tools.judge.account import (
    FACT_CLASSES,
    LATEST,
    STATES,
    SUBJECT_MEASURES,
    TARGET_MEASURES,
    Account,
    ReplicaHour,
    TaskResult,
)
from spark_tools.judge.digests import digests_by, digests_of, hashes_of, hashes_of_rows
from spark_tools.judge.findings import FindingsMaker
from spark_tools.judge.hour_counts import Cells
from spark_tools.judge.lateness import buckets_of
from spark_tools.judge.tasks import Extent, Loose, Node, Part, Rules
from storage.batch.batches import Damage
from storage.disk.spans import MINUTE_MS
from storage.readers.arrow import ArrowReader, Kind

_WAITING, _OVERDUE, _LOST, _REPAIRED, _UNKNOWN = (
    STATES.index(name) for name in ("waiting", "overdue", "lost", "repaired", "unknown")
)
_FIRST, _DUPLICATE, _SETTLED_TWICE, _OTHER, _REPEATED, _PHANTOM, _UNEXPLAINED = range(
    len(FACT_CLASSES)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """Reconcile one part of a segment, with what is loose of its minutes.

    extent: None for minutes that no segment covers, from `start` to `end`; lacks_segment: there may
    be one all the same, of which nobody tells; part: of the segment's
    messages, those that are loose are of it; log_first, log_next: the
    sequences that the message_log can be asked about, the second exclusive; edges: the sequences
    at which digests of the rows of the range are cut, none without an index of the message_log;
    shared_next: sequences below it are compared with other replicas, 0 if there are none;
    is_authority: without, nothing but that is done; repaired: sequences of these minutes that were
    lost and sent again, ascending.
    """

    node: Node
    rules: Rules
    start: int
    end: int
    extent: Extent | None
    lacks_segment: bool
    part: Part
    loose: Loose
    filed_sequence: int
    log_first: int
    log_next: int
    edges: tuple[int, ...]
    shared_next: int
    is_authority: bool
    repaired: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def weight(self) -> int:
        """About how many bytes are read."""
        return 0 if self.extent is None else self.extent.length + self.extent.facts_length

    def __call__(self) -> TaskResult:
        """Run the task and return what it counted."""
        return _Segment(self).run()


def filed_minutes(due_ms: Int64s, start: int, end: int) -> Int64s:
    """Return the filed minute of rows of a segment; it is one of the segment, whatever is wrong."""
    return np.clip(due_ms // MINUTE_MS, start, end - 1)


def is_sent_past_due(rows: Rows) -> Mask:
    """Return which rows were sent when their due minute had passed: each is filed later."""
    past_due: Mask = rows.minute * MINUTE_MS > rows.due_ms
    return past_due


def read_rows(
    node: Node,
    extent: Extent,
    subjects: Names,
    file: int,
    damages: list[Damage],
    *,
    chosen: Callable[[Int64s], Mask],
) -> tuple[Rows, int]:
    """Return the rows of a segment that are chosen by sequence, and how many can be read at all."""
    reader = ArrowReader(node.disk(), node.log_uuid, Kind.SCHEDULE, ROW_COLUMNS)
    parts: list[Rows] = []
    count = 0
    for table in sift(reader.rows(extent.file, length=extent.length), damages):
        minute = filed_minutes(ints(table, "due_ms"), extent.start, extent.end)
        rows = rows_of(table, file, subjects, minute)
        count += len(rows)
        parts.append(rows.where(chosen(rows.sequence)))
    return Rows.join(parts), count


class _Segment:
    """One run of a task."""

    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._account = Account()
        self._subjects, self._targets, self._files = Names(), Names(), Names()
        for names, given in (
            (self._subjects, task.loose.subjects),
            (self._targets, task.loose.targets),
            (self._files, task.loose.files),
        ):
            for name in given:
                names.number(name)
        self._lengths = dict(task.loose.lengths)
        if task.extent is not None:
            self._lengths[task.extent.file] = task.extent.length
        self._rows_missing = task.lacks_segment
        """Whether rows of the segment could not be read."""
        extent = task.extent
        self._facts_missing = task.lacks_segment or (
            task.loose.records_are_missing and not (extent is not None and extent.has_all_facts)
        )

    def run(self) -> TaskResult:
        """Read everything, and judge it."""
        task = self._task
        rows, facts = self._read()
        self._account.totals["unread_segments"] += self._rows_missing and task.is_authority
        if (rows.sequence[1:] < rows.sequence[:-1]).any():
            rows = rows.take(np.argsort(rows.sequence, kind="stable"))
        facts = facts.take(self._order(facts))
        if task.shared_next:
            self._compare(rows, facts)
        if self._rows_missing or self._facts_missing:
            self._account.unread_hours |= set(range(hour_of(task.start), task.end, 60))
        maker = FindingsMaker(
            task.node,
            self._subjects.all(),
            self._targets.all(),
            self._files.all(),
            self._lengths,
        )
        if task.is_authority:
            _Judgement(task, self._account, rows, facts, maker).run(
                rows_missing=self._rows_missing,
                facts_missing=self._facts_missing,
                subjects=self._subjects.all(),
                targets=self._targets.all(),
            )
        return TaskResult(task.node.name, self._account, maker.table())

    def _read(self) -> tuple[Rows, Facts]:
        task, extent, loose = self._task, self._task.extent, self._task.loose
        if extent is None:
            return loose.rows, loose.facts
        damages: list[Damage] = []
        file = self._files.number(extent.file)
        rows, count = read_rows(
            task.node, extent, self._subjects, file, damages, chosen=task.part.holds
        )
        self._rows_missing = bool(damages)
        if count != extent.rows and not damages:
            self._rows_missing = True
            self._problem(f"{extent.file} has {count} rows, not {extent.rows}")
        self._damaged(damages)
        damages = []
        reader = ArrowReader(task.node.disk(), task.node.log_uuid, Kind.DISPATCH, FACT_COLUMNS)
        file = self._files.number(extent.facts_file)
        found = reader.filed_facts(extent.facts_file, length=extent.facts_length)
        parts: list[Facts] = []
        count = 0
        for table in sift(found, damages):
            facts = facts_of(table, file, self._targets)
            count += len(facts)
            parts.append(facts.where(task.part.holds(facts.sequence)))
        self._facts_missing |= bool(damages)
        if count != extent.facts and not damages:
            self._facts_missing = True
            self._problem(f"{extent.facts_file} has {count} facts, not {extent.facts}")
        self._damaged(damages)
        return Rows.join([rows, loose.rows]), Facts.join([*parts, loose.facts])

    def _damaged(self, damages: Sequence[Damage]) -> None:
        self._account.damages |= {(self._task.node.node_id, damage) for damage in damages}

    def _problem(self, text: str) -> None:
        self._account.problems.add((self._task.node.node_id, text))

    def _order(self, facts: Facts) -> Places:
        """Return the places of facts by sequence; of one message by what counts first.

        Deliveries before all else, then by time; outcome and name decide where even that is alike,
        so that it does not matter where they were read from.
        """
        ascending = np.argsort(facts.sequence, kind="stable")
        sequence = facts.sequence[ascending]
        if not (sequence[1:] == sequence[:-1]).any():
            return ascending
        rank = np.argsort(np.argsort(np.array(self._targets.all(), np.str_)))
        return np.lexsort(
            (
                rank[facts.target],
                facts.outcome,
                facts.at_ms,
                facts.outcome != DELIVERED,
                facts.sequence,
            )
        )

    def _compare(self, rows: Rows, facts: Facts) -> None:
        """Take down what replicas must have alike, by hour."""
        task = self._task
        node_id = task.node.node_id
        rows = rows.take((rows.sequence < task.shared_next) & task.rules.covers(rows.minute))
        columns = [rows.sequence, rows.due_ms, rows.size.astype(np.int64), rows.id_hash]
        for hour, digest in digests_by(hour_of(rows.minute), hashes_of(columns)).items():
            self._account.replicas.setdefault((node_id, hour), ReplicaHour()).rows.add(digest)
        # Names have other numbers elsewhere; facts told twice count once.
        targets = np.array([_number_of(name) for name in self._targets.all()], np.int64)
        minute = np.clip(facts.minute, task.start, task.end - 1)
        facts = facts.take(~_is_repeated(facts) & task.rules.covers(minute))
        minute = np.clip(facts.minute, task.start, task.end - 1)
        columns = [
            facts.sequence,
            facts.at_ms,
            facts.outcome.astype(np.int64),
            targets[facts.target] if len(facts) else np.empty(0, np.int64),
        ]
        for hour, digest in digests_by(hour_of(minute), hashes_of(columns)).items():
            self._account.replicas.setdefault((node_id, hour), ReplicaHour()).facts.add(digest)


def _number_of(name: str) -> int:
    """Return a number for a name that is the same everywhere."""
    import xxhash  # noqa: PLC0415 (only where replicas are compared)

    return int(xxhash.xxh3_64_intdigest(name.encode())) - 2**63


def _is_new(ascending: Int64s) -> Mask:
    """Say of each number whether it is the first like it."""
    new = np.ones(len(ascending), np.bool_)
    new[1:] = ascending[1:] != ascending[:-1]
    return new


def _is_repeated(facts: Facts) -> Mask:
    """Say of each fact, in order, whether the one before it is alike in everything."""
    repeated = ~_is_new(facts.sequence)
    for column in (facts.at_ms, facts.outcome, facts.target):
        repeated[1:] &= column[1:] == column[:-1]
    return repeated


class _Judgement:
    """What becomes of rows and facts that are in order, by sequence."""

    def __init__(
        self, task: SegmentTask, account: Account, rows: Rows, facts: Facts, maker: FindingsMaker
    ) -> None:
        self._task = task
        self._account = account
        self._maker = maker
        self._rows = rows
        self._facts = facts
        self._new_rows = _is_new(rows.sequence)
        self._owner = np.flatnonzero(self._new_rows)
        """The place of the first row of each sequence."""
        sequences = rows.sequence[self._owner]
        places = np.searchsorted(sequences, facts.sequence)
        places[places == len(sequences)] = 0
        self._is_matched = np.zeros(len(facts), np.bool_)
        if len(sequences):
            self._is_matched = sequences[places] == facts.sequence
        self._row_of = np.zeros(len(facts), np.intp)
        """Place of the row that each fact is about, where there is one."""
        if len(sequences):
            self._row_of = self._owner[places]

    def run(
        self,
        *,
        rows_missing: bool,
        facts_missing: bool,
        subjects: list[str],
        targets: list[str],
    ) -> None:
        """Judge, count, and name what is wrong."""
        task, rows, facts = self._task, self._rows, self._facts
        classes = self._classes(rows_missing=rows_missing)
        first = np.flatnonzero(classes == _FIRST)
        # Of a sequence that is there twice each row has the state that the facts tell.
        first_of = np.full(len(rows), -1, np.intp)
        first_of[self._row_of[first]] = first
        first_of = first_of[self._owner[np.cumsum(self._new_rows) - 1]]
        state = self._states(first_of, facts_missing=facts_missing)
        counted = task.rules.covers(rows.minute)
        if len(task.repaired):
            self._look_at_repairs(state, counted)
        fact_minute = np.clip(facts.minute, task.start, task.end - 1)
        if len(rows):
            fact_minute = np.where(self._is_matched, rows.minute[self._row_of], fact_minute)
        facts_counted = task.rules.covers(fact_minute)
        delivered = (state == DELIVERED - 1) & (first_of >= 0)
        lateness = np.zeros(len(rows), np.int64)
        lateness[delivered] = facts.at_ms[first_of[delivered]] - rows.due_ms[delivered]
        early = delivered & (lateness < 0)
        past_due = delivered & ~early & is_sent_past_due(rows)
        misfiled = rows.due_ms // MINUTE_MS >= task.end
        self._count_rows(
            state=state,
            early=early,
            past_due=past_due,
            misfiled=misfiled,
            counted=counted,
            first_of=first_of,
            subjects=subjects,
        )
        self._count_facts(
            classes=classes,
            first=first,
            early=early,
            minute=fact_minute,
            counted=facts_counted,
            targets=targets,
        )
        on_time = counted & delivered & ~early & ~past_due
        self._count_lateness(on_time, lateness, first_of, subjects, targets)
        self._remember(counted)
        for name, chosen in (
            ("lost", state == _LOST),
            ("overdue", state == _OVERDUE),
            ("early", early),
            ("misfiled", misfiled),
            ("late", self._too_late(on_time, lateness)),
        ):
            places = np.flatnonzero(chosen & counted)
            self._maker.add_rows(name, rows, places, facts, first_of[places])
        for number in (_DUPLICATE, _SETTLED_TWICE, _PHANTOM, _UNEXPLAINED):
            places = np.flatnonzero((classes == number) & facts_counted)
            known = np.where(self._is_matched[places], self._row_of[places], -1)
            self._maker.add_facts(FACT_CLASSES[number], facts, places, rows, known)
        if (facts.outcome[facts_counted] == 0).any():
            text = f"facts of an unknown outcome in minutes {task.start} to {task.end - 1}"
            self._account.problems.add((task.node.node_id, text))

    def _classes(self, *, rows_missing: bool) -> Int64s:
        """Return what each fact is."""
        facts, task = self._facts, self._task
        new = _is_new(facts.sequence)
        may_follow = np.isin(facts.outcome, MAY_FOLLOW)
        first_may = may_follow[np.flatnonzero(new)[np.cumsum(new) - 1]]
        classes = np.where(may_follow & first_may, _OTHER, _SETTLED_TWICE)
        classes[facts.outcome == DELIVERED] = _DUPLICATE
        classes[new] = _FIRST
        explained = facts.sequence < task.log_next
        if rows_missing:
            explained = np.zeros(len(facts), np.bool_)
        elif task.loose.records_are_missing:
            explained &= facts.sequence <= task.filed_sequence
        rowless = ~self._is_matched
        classes[rowless] = np.where(explained, _PHANTOM, _UNEXPLAINED)[rowless]
        classes[_is_repeated(facts) & (may_follow | rowless)] = _REPEATED
        return classes

    def _states(self, first_of: Places, *, facts_missing: bool) -> Int64s:
        """Return what each row is."""
        task, rows = self._task, self._rows
        is_sealed = task.extent is not None and task.extent.is_sealed
        due = rows.due_ms <= task.rules.watermark_ms
        given_up = _LOST if is_sealed or task.rules.final else _OVERDUE
        if facts_missing:
            given_up = _UNKNOWN
        state = np.where(due | is_sealed, given_up, _WAITING)
        known = first_of >= 0
        # What this version does not know (0) is the last state.
        state[known] = (self._facts.outcome[first_of[known]].astype(np.int64) - 1) % len(STATES)
        return state

    def _look_at_repairs(self, state: Int64s, counted: Mask) -> None:
        """Change the state of lost rows that were repaired; name those that are not lost."""
        rows = self._rows
        named = np.isin(rows.sequence, self._task.repaired)
        state[named & (state == _LOST)] = _REPAIRED
        named &= counted
        self._account.totals["repairs_found"] += len(np.unique(rows.sequence[named]))
        idle = named & (state != _REPAIRED)
        self._account.totals["repaired_not_lost"] += int(np.count_nonzero(idle))
        for number in np.unique(state[idle]).tolist():
            places = np.flatnonzero(idle & (state == number))
            nothing = np.full(len(places), -1, np.intp)
            note = f"it is {STATES[number]}"
            self._maker.add_rows("repaired_not_lost", rows, places, self._facts, nothing, note=note)

    def _too_late(self, on_time: Mask, lateness: Int64s) -> Mask:
        most = self._task.rules.max_late_ms
        if most is None:
            return np.zeros(len(on_time), np.bool_)
        return on_time & (lateness > most)

    # -- counting ----------------------------------------------------------------------------

    def _count_rows(
        self,
        *,
        state: Int64s,
        early: Mask,
        past_due: Mask,
        misfiled: Mask,
        counted: Mask,
        first_of: Places,
        subjects: list[str],
    ) -> None:
        places = np.flatnonzero(counted)
        rows = self._rows.take(places)
        totals = self._account.totals
        totals["rows"] += len(rows)
        known = first_of[places] >= 0
        totals["shared"] += int(np.count_nonzero(known & ~self._new_rows[places]))
        totals["unknown_outcomes"] += int(np.count_nonzero(known & (state[places] == _UNKNOWN)))
        cells = Cells(hour_of(rows.minute), rows.subject.astype(np.int64))
        by_origin = cells.counts(rows.origin.astype(np.int64), len(ORIGINS))
        by_state = cells.counts(state[places], len(STATES))
        measures = {
            **{name: by_origin[:, place] for place, name in enumerate(ORIGINS)},
            **{name: by_state[:, place] for place, name in enumerate(STATES)},
            "early": cells.counts(early[places].astype(np.int64), 2)[:, 1],
            "sent_past_due": cells.counts(past_due[places].astype(np.int64), 2)[:, 1],
            "misfiled": cells.counts(misfiled[places].astype(np.int64), 2)[:, 1],
            "bytes": cells.sums(rows.size.astype(np.int64)),
        }
        for name in SUBJECT_MEASURES:
            totals[name] += int(measures[name].sum())
        self._account.subjects.add(cells.table("subject", subjects, measures))

    def _count_facts(
        self,
        *,
        classes: Int64s,
        first: Places,
        early: Mask,
        minute: Int64s,
        counted: Mask,
        targets: list[str],
    ) -> None:
        places = np.flatnonzero(counted)
        facts = self._facts.take(places)
        is_early = np.zeros(len(self._facts), np.int64)
        is_early[first] = early[self._row_of[first]]
        totals = self._account.totals
        totals["facts"] += len(facts)
        cells = Cells(hour_of(minute[places]), facts.target.astype(np.int64))
        by_class = cells.counts(classes[places], len(FACT_CLASSES))
        by_outcome = cells.counts(facts.outcome.astype(np.int64), len(OUTCOMES) + 1)
        measures = {
            "facts": cells.counts(np.zeros(len(facts), np.int64), 1)[:, 0],
            **{name: by_class[:, place] for place, name in enumerate(FACT_CLASSES)},
            **{name: by_outcome[:, place] for place, name in enumerate(OUTCOMES, start=1)},
            "early": cells.counts(is_early[places], 2)[:, 1],
        }
        for name in FACT_CLASSES:
            totals[name] += int(measures[name].sum())
        assert measures.keys() == set(TARGET_MEASURES)
        self._account.targets.add(cells.table("target", targets, measures))

    def _count_lateness(
        self,
        on_time: Mask,
        lateness: Int64s,
        first_of: Places,
        subjects: list[str],
        targets: list[str],
    ) -> None:
        places = np.flatnonzero(on_time)
        if not len(places):
            return
        hour = hour_of(self._rows.minute[places])
        late = lateness[places]
        for key, numbers, names, tally in (
            ("subject", self._rows.subject[places], subjects, self._account.subject_lateness),
            (
                "target",
                self._facts.target[first_of[places]],
                targets,
                self._account.target_lateness,
            ),
        ):
            cells = Cells(hour, numbers.astype(np.int64))
            tally.add(cells.histogram(key, names, late, buckets_of, LATEST))

    def _remember(self, counted: Mask) -> None:
        """Take down what other segments, and the message_log, are held against."""
        task, rows = self._task, self._rows
        self._account.sequences.add(rows.sequence[counted])
        if task.extent is None:
            return
        # What is loose is of the message_log itself.
        mine = rows.file == len(task.loose.files)
        is_asked = mine & (rows.sequence >= task.log_first) & (rows.sequence < task.log_next)
        asked = rows.where(is_asked)
        self._account.filed = digests_of(asked, hashes_of_rows(asked))
        if task.edges:
            cut = rows.where(mine & counted)
            edges = np.array(task.edges, np.int64)
            places = np.searchsorted(edges, cut.sequence, side="right") - 1
            keys = edges[np.maximum(places, 0)]
            self._account.cuts = digests_by(keys, hashes_of_rows(cut))
