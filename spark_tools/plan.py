"""From manifests and a range to tasks.

Nodes of the same cluster and group are replicas. The one that got furthest is the authority: what
is counted is its own. The others are compared with it, never added.

What no checkpoint has filed yet, the ends of the message_log and of the journal, is read here once
and handed to the tasks by filed minute: a task for each segment would otherwise read all of it. It
is what a node takes in between two checkpoints, seconds or some hundred MB
(`storage.checkpoint_interval_ms`), whatever the directory holds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from spark_tools.account import Account, GroupName
from spark_tools.columns import (
    FACT_COLUMNS,
    Facts,
    Int64s,
    Mask,
    Names,
    Rows,
    facts_of,
    sift,
)
from spark_tools.errors import ReconcileError
from spark_tools.message_log import BlocksTask, Expecting, LogTask, is_filed, read_records
from spark_tools.segments import SegmentTask
from spark_tools.tasks import FOREVER, Cover, Extent, LogRange, Loose, Node, Rules
from storage.arrow import ArrowReader, Kind
from storage.batches import Damage
from storage.manifest import Manifest, SealedSegment, UnsealedSegment
from storage.spans import DEAD_MINUTES_FROM, key_of_name

GRACE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Source:
    """A manifest, and where the files are that it names."""

    manifest: Manifest
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a run."""

    from_minute: int = 0
    """First filed minute of the range, since 1970."""
    to_minute: int = FOREVER
    """The minute behind its last one."""
    grace_ms: int = GRACE_MS
    """A message should have a fact so long after it was due, before the manifest was made."""
    final: bool = False
    """Nothing runs any more: what is overdue is lost."""
    max_late_ms: int | None = None
    """Lateness beyond it is a finding; None: no lateness is."""
    expected_groups: tuple[str, ...] = ()
    """Groups without which the input is not complete."""
    subjects_max: int = 100_000
    """Subjects of a group that have rows of their own; others are one, by the name `(other)`."""
    examples: int = 20
    """Findings of each class that are shown in the result."""


@dataclass(slots=True)
class GroupPlan:
    """What is to be done for one group, and what is known before it begins."""

    name: GroupName
    authority: Source
    node: Node
    replicas: list[tuple[Node, Manifest]]
    rules: Rules
    cover: Cover
    extents: list[Extent]
    """Segments of the authority that have minutes of the range, and are there."""
    logs: list[LogRange]
    loose: Loose
    account: Account
    deleted: dict[str, int] = field(default_factory=dict)
    """By the seals of the range whose files are gone: segments, rows, and facts by outcome."""
    pending_before: int = 0
    """Messages without a fact in unsealed segments before the range."""
    uncompared_hours: set[int] = field(default_factory=set)
    """Hours of which a replica has no files any more."""
    unsealed_hours: set[int] = field(default_factory=set)
    """Hours in which a replica may still lack facts."""
    tasks: list[SegmentTask | LogTask] = field(default_factory=list)

    def blocks_task(self, blocks: Sequence[int]) -> BlocksTask:
        """Return the task that looks into some blocks of sequences."""
        return BlocksTask(
            expecting=_expecting(self),
            blocks=tuple(blocks),
            logs=tuple(self.logs),
            extents=tuple(self.extents),
            loose=self.loose.rows,
        )


@dataclass(slots=True)
class Plan:
    """All groups of a run."""

    request: Request
    watermark_ms: int
    groups: list[GroupPlan]
    problems: list[str]
    """Why the input is not complete, as far as no group is to blame."""


def make_plan(sources: Sequence[Source], request: Request) -> Plan:
    """Return what is to be done; reads the ends of the logs.

    Raises ReconcileError for manifests that do not belong together.
    """
    if not sources:
        raise ReconcileError("there is no manifest: name one at least")
    if request.from_minute >= request.to_minute:
        raise ReconcileError("the range is empty: it must end behind its beginning")
    _refuse_twice(sources)
    groups: dict[GroupName, list[Source]] = defaultdict(list)
    for source in sources:
        manifest = source.manifest
        groups[GroupName(manifest.cluster, manifest.group)].append(source)
    authorities: dict[GroupName, tuple[Source, list[Source]]] = {}
    for name, members in sorted(groups.items()):
        if len({one.manifest.log_uuid for one in members}) > 1:
            raise ReconcileError(
                f"nodes of group {name.group} of cluster {name.cluster} have logs of their own, "
                "which are not copies of each other: reconcile them apart"
            )
        first, *others = sorted(members, key=_rank, reverse=True)
        authorities[name] = first, others
    made_ms = min(first.manifest.made_ms for first, _ in authorities.values())
    watermark_ms = made_ms - request.grace_ms
    rules = Rules(
        from_minute=request.from_minute,
        to_minute=request.to_minute,
        watermark_ms=watermark_ms,
        final=request.final,
        max_late_ms=request.max_late_ms,
    )
    there = {name.group for name in authorities}
    problems = [
        f"group {group} is expected, and none of the manifests is of it"
        for group in request.expected_groups
        if group not in there
    ]
    plans = [
        _Planning(name, first, others, rules).run() for name, (first, others) in authorities.items()
    ]
    return Plan(request, watermark_ms, plans, problems)


def _rank(source: Source) -> tuple[int, int, str]:
    manifest = source.manifest
    return manifest.log_next_sequence, manifest.journal_next_number, manifest.node_id


def _refuse_twice(sources: Sequence[Source]) -> None:
    times = Counter(source.manifest.storage_uuid for source in sources)
    twice = [one for one in sources if times[one.manifest.storage_uuid] > 1]
    if twice:
        where = ", ".join(sorted(source.root for source in twice))
        raise ReconcileError(f"the same data directory is there more than once: {where}")


def _expecting(plan: GroupPlan) -> Expecting:
    manifest = plan.authority.manifest
    return Expecting(
        node=plan.node,
        rules=plan.rules,
        cover=plan.cover,
        filed_sequence=manifest.sequence,
        deleted_from_minute=manifest.deleted_from_minute,
    )


def _node(source: Source) -> Node:
    manifest = source.manifest
    return Node(
        name=GroupName(manifest.cluster, manifest.group),
        node_id=manifest.node_id,
        root=source.root,
        log_uuid=UUID(manifest.log_uuid),
    )


def _extents(manifest: Manifest) -> list[Extent]:
    """Return all segments of accepted messages that a manifest tells of."""
    unsealed = [_extent(one) for one in manifest.segments]
    return unsealed + [_extent(one) for one in manifest.sealed]


def _extent(segment: UnsealedSegment | SealedSegment) -> Extent:
    key = key_of_name(segment.file.rpartition("/")[2])
    if key is None or key.path != segment.file or key.facts_path != segment.facts_file:
        raise ReconcileError(f"{segment.file} in a manifest is no segment")
    if isinstance(segment, SealedSegment):
        facts, is_deleted = sum(segment.outcomes.values()), segment.deleted
    else:
        facts, is_deleted = segment.facts, False
    return Extent(
        start=key.start,
        end=key.end,
        file=segment.file,
        facts_file=segment.facts_file,
        length=segment.length,
        facts_length=segment.facts_length,
        rows=segment.rows,
        facts=facts,
        last_sequence=segment.last_sequence,
        is_sealed=isinstance(segment, SealedSegment),
        is_deleted=is_deleted,
    )


class _Planning:
    """The plan of one group in the making."""

    def __init__(
        self, name: GroupName, first: Source, others: Sequence[Source], rules: Rules
    ) -> None:
        self._name = name
        self._rules = rules
        self._first = first
        self._others = others
        self._account = Account()

    def run(self) -> GroupPlan:
        """Return the plan."""
        manifest, node = self._first.manifest, _node(self._first)
        everything = _extents(manifest)
        extents = [one for one in everything if self._rules.wants(one) and not one.is_deleted]
        cover = Cover.of(everything, self._rules)
        if (cover.start[1:] < cover.end[:-1]).any():
            raise ReconcileError(f"segments of node {node.node_id} overlap: no manifest says that")
        logs = _logs(manifest)
        plan = GroupPlan(
            name=self._name,
            authority=self._first,
            node=node,
            replicas=[(_node(one), one.manifest) for one in self._others],
            rules=self._rules,
            cover=cover,
            extents=extents,
            logs=logs,
            loose=self._loose(node, manifest, cover),
            account=self._account,
        )
        self._look_at(manifest, node.node_id)
        self._look_at_deleted(plan, everything)
        plan.pending_before = sum(
            max(one.rows - one.facts, 0)
            for one in everything
            if one.end <= self._rules.from_minute and not one.is_sealed
        )
        shared_next = 0
        if self._others:
            found = [manifest, *(one.manifest for one in self._others)]
            shared_next = min(one.log_next_sequence for one in found)
        plan.uncompared_hours |= _hours_of(
            [one for one in everything if one.is_deleted and self._rules.wants(one)]
        )
        plan.tasks += self._segment_tasks(
            node,
            manifest,
            extents=extents,
            cover=cover,
            loose=plan.loose,
            shared_next=shared_next,
            is_authority=True,
        )
        plan.tasks += [LogTask(expecting=_expecting(plan), log=log) for log in logs]
        for source in self._others:
            self._add_replica(plan, source, shared_next)
        plan.unsealed_hours |= _hours_of([one for one in extents if not one.is_sealed])
        return plan

    def _look_at(self, manifest: Manifest, node_id: str) -> None:
        """Take down why the manifest is not all there was."""
        problems = [
            f"{fault.file} at {fault.position}: {fault.reason}" for fault in manifest.faults
        ]
        problems += [
            f"{path} was put aside with damaged batches: run `delaywheel log salvage`"
            for path in manifest.quarantined
        ]
        if manifest.deleted_from_minute > self._rules.from_minute:
            problems.append(
                "the manifest does not tell of segments that were deleted and ended before minute "
                f"{manifest.deleted_from_minute}: make it with more --deleted-days"
            )
        self._account.problems |= {(node_id, problem) for problem in problems}

    def _look_at_deleted(self, plan: GroupPlan, everything: Sequence[Extent]) -> None:
        gone = {one.file for one in everything if one.is_deleted and self._rules.wants(one)}
        if not gone:
            return
        totals: Counter[str] = Counter()
        for seal in self._first.manifest.sealed:
            if seal.file in gone:
                totals["segments"] += 1
                totals["rows"] += seal.rows
                totals.update(seal.outcomes)
        plan.deleted = dict(totals)
        self._account.problems.add(
            (
                plan.node.node_id,
                f"{totals['segments']} sealed segment(s) of {totals['rows']} messages were deleted",
            )
        )

    def _add_replica(self, plan: GroupPlan, source: Source, shared_next: int) -> None:
        manifest, node = source.manifest, _node(source)
        self._look_at(manifest, node.node_id)
        everything = _extents(manifest)
        wanted = [one for one in everything if self._rules.wants(one)]
        plan.uncompared_hours |= _hours_of([one for one in wanted if one.is_deleted])
        extents = [one for one in wanted if not one.is_deleted]
        plan.unsealed_hours |= _hours_of([one for one in extents if not one.is_sealed])
        cover = Cover.of(everything, self._rules)
        loose = self._loose(node, manifest, cover)
        plan.tasks += self._segment_tasks(
            node,
            manifest,
            extents=extents,
            cover=cover,
            loose=loose,
            shared_next=shared_next,
            is_authority=False,
        )

    def _segment_tasks(
        self,
        node: Node,
        manifest: Manifest,
        *,
        extents: Sequence[Extent],
        cover: Cover,
        loose: Loose,
        shared_next: int,
        is_authority: bool,
    ) -> Iterator[SegmentTask]:
        """Yield a task for each segment, and for each hour of minutes that no segment covers."""
        for start, end, extent in _spans(extents, cover, loose):
            yield SegmentTask(
                node=node,
                rules=self._rules,
                start=start,
                end=end,
                extent=extent,
                loose=_part_of(loose, start, end, cover, is_covered=extent is not None),
                filed_sequence=manifest.sequence,
                log_first=manifest.first_sequence,
                log_next=manifest.log_next_sequence,
                shared_next=shared_next,
                is_authority=is_authority,
            )

    # -- what is in no segment ---------------------------------------------------------------

    def _loose(self, node: Node, manifest: Manifest, cover: Cover) -> Loose:
        subjects, targets, files = Names(), Names(), Names()
        damages: list[Damage] = []
        lengths: dict[str, int] = {}
        rows: list[Rows] = []
        for log in _logs(manifest):
            if log.next_sequence <= manifest.sequence + 1:
                continue
            file = files.number(log.file)
            lengths[log.file] = log.length
            tail = LogRange(
                file=log.file,
                length=log.length,
                first_sequence=max(log.first_sequence, manifest.sequence + 1),
                next_sequence=log.next_sequence,
            )
            for found in read_records(node, tail, subjects, file, damages):
                filed = is_filed(found, cover.places(found.minute), cover, manifest.sequence)
                wanted = ~filed & self._rules.covers(found.minute)
                rows.append(found.take(wanted))
        rows_are_missing = bool(damages) or _has_fault(manifest, "message_log")
        self._damaged(node, damages)
        damages = []
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
        self._damaged(node, damages)
        return Loose(
            rows=Rows.join(rows),
            facts=Facts.join(facts),
            subjects=tuple(subjects.all()),
            targets=tuple(targets.all()),
            files=tuple(files.all()),
            lengths=lengths,
            rows_are_missing=rows_are_missing,
            facts_are_missing=bool(damages) or _has_fault(manifest, "dispatch_log/journal"),
        )

    def _damaged(self, node: Node, damages: Sequence[Damage]) -> None:
        self._account.damages |= {(node.node_id, damage) for damage in damages}


def _has_fault(manifest: Manifest, directory: str) -> bool:
    return any(fault.file.startswith(directory) for fault in manifest.faults)


def _logs(manifest: Manifest) -> list[LogRange]:
    return [
        LogRange(
            file=one.file,
            length=one.length,
            first_sequence=max(one.first_sequence, manifest.first_sequence),
            next_sequence=one.next_sequence,
        )
        for one in manifest.message_log
    ]


def _hours_of(extents: Sequence[Extent]) -> set[int]:
    return {hour for one in extents for hour in range(one.start // 60 * 60, one.end, 60)}


def _spans(
    extents: Sequence[Extent], cover: Cover, loose: Loose
) -> Iterator[tuple[int, int, Extent | None]]:
    """Yield the minutes of each segment, and the hours of what is loose and in none."""
    for extent in extents:
        yield extent.start, extent.end, extent
    minutes = np.concatenate([loose.rows.minute, loose.facts.minute])
    for hour in np.unique(minutes[cover.is_open(minutes)] // 60).tolist():
        yield hour * 60, hour * 60 + 60, None


def _part_of(loose: Loose, start: int, end: int, cover: Cover, *, is_covered: bool) -> Loose:
    """Return what is loose of some minutes; without a segment, of those that no other covers."""

    def chosen(minute: Int64s) -> Mask:
        mine = (minute >= start) & (minute < end)
        return mine if is_covered else mine & cover.is_open(minute)

    return Loose(
        rows=loose.rows.take(chosen(loose.rows.minute)),
        facts=loose.facts.take(chosen(loose.facts.minute)),
        subjects=loose.subjects,
        targets=loose.targets,
        files=loose.files,
        lengths=loose.lengths,
        rows_are_missing=loose.rows_are_missing,
        facts_are_missing=loose.facts_are_missing,
    )
