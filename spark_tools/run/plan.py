"""From manifests and a range to tasks.

Nodes of the same cluster and group are replicas. The one that got furthest is the authority: what
is counted is its own. The others are compared with it, never added.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

import numpy as np

from spark_tools.files.columns import Int64s, Mask, hour_of
from spark_tools.files.errors import ReconcileError
from spark_tools.files.times import minute_text
from spark_tools.judge.account import Account
from spark_tools.judge.digests import Digest
from spark_tools.judge.log_index import Known
from spark_tools.judge.message_log import BlocksTask, Expecting, LogTask
from spark_tools.judge.payload import PayloadTask
from spark_tools.judge.segment_parts import ROWS_AT_ONCE, parts_of
from spark_tools.judge.segments import SegmentTask
from spark_tools.judge.tasks import (
    FOREVER,
    WHOLE,
    Cover,
    Extent,
    GroupName,
    LogRange,
    Loose,
    Node,
    Rules,
)
from spark_tools.judge.unfiled_tail import Tail, read_tail
from storage.batch.batches import Damage
from storage.disk.spans import MINUTE_MS, key_of_name
from storage.readers.manifest import Manifest, SealedSegment, UnsealedSegment

GRACE_MS = 60_000
_DAY_MINUTES = 24 * 60
_EVERY_RECORD = 2**63 - 1
"""No record is above it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A manifest, and where the files are that it names."""

    manifest: Manifest
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is known of one node whatever range is asked for.

    extents: of all segments of accepted messages that the manifest tells of; tail: what is in none
    of them.
    """

    node: Node
    manifest: Manifest
    extents: list[Extent]
    tail: Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The nodes of one group: the authority, and its replicas."""

    name: GroupName
    authority: View
    others: list[View]

    @property
    def views(self) -> list[View]:
        """All of them."""
        return [self.authority, *self.others]


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
    rows_at_once: int = ROWS_AT_ONCE
    """Larger segments are cut into several tasks; it does not change what is found."""
    check_payload: bool = False
    """Whether what is in the messages is read, and checked, too."""


@dataclass(slots=True)
class GroupPlan:
    """What is to be done for one group, and what is known before it begins."""

    members: Members
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
    uncompared_nodes: set[str] = field(default_factory=set)
    """Of which nobody knows all segments, or all of the end of the message_log."""
    unsealed_hours: set[int] = field(default_factory=set)
    """Hours in which a replica may still lack facts."""
    known: Known | None = None
    """All that is known of the message_log; None: this run reads all that is kept."""
    tasks: list[SegmentTask | LogTask | PayloadTask] = field(default_factory=list)

    @property
    def name(self) -> GroupName:
        """Whose messages these are."""
        return self.members.name

    @property
    def authority(self) -> View:
        """The node whose messages are counted."""
        return self.members.authority

    @property
    def node(self) -> Node:
        """Where its files are."""
        return self.members.authority.node

    @property
    def replicas(self) -> list[tuple[Node, Manifest]]:
        """The nodes that are compared with it."""
        return [(one.node, one.manifest) for one in self.members.others]

    def log_tasks(self) -> list[LogTask]:
        """Return the tasks that read the message_log as far as it is kept."""
        return [LogTask(expecting=_expecting(self), log=log) for log in self.logs]

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
    return plan_of(members_of(sources), request)


def members_of(sources: Sequence[Source]) -> list[Members]:
    """Return the groups, by name; reads the ends of the logs.

    Raises ReconcileError for manifests that do not belong together.
    """
    if not sources:
        raise ReconcileError("there is no manifest: give at least one --root or --manifest")
    members = []
    for name, nodes in by_group(sources).items():
        first, *others = (_view(one) for one in nodes)
        members.append(Members(name=name, authority=first, others=others))
    return members


def by_group(sources: Sequence[Source]) -> dict[GroupName, list[Source]]:
    """Return the nodes of each group, the authority first; groups are in order.

    Raises ReconcileError for a directory that is there twice, and for nodes that are no replicas.
    """
    _refuse_twice(sources)
    groups: dict[GroupName, list[Source]] = defaultdict(list)
    for source in sources:
        manifest = source.manifest
        groups[GroupName(manifest.cluster, manifest.group)].append(source)
    for name, members in groups.items():
        if len({one.manifest.log_uuid for one in members}) > 1:
            raise ReconcileError(
                f"nodes of group {name.group} of cluster {name.cluster} have logs of their own, "
                "which are not copies of each other: reconcile them apart"
            )
    return {name: sorted(groups[name], key=_rank, reverse=True) for name in sorted(groups)}


def watermark_of(groups: Sequence[Members], grace_ms: int) -> int:
    """Return up to when what was due should have a fact, wall ms."""
    return min(one.authority.manifest.made_ms for one in groups) - grace_ms


def plan_of(
    groups: Sequence[Members],
    request: Request,
    known: Mapping[GroupName, Known] = MappingProxyType({}),
) -> Plan:
    """Return what is to be done.

    known: of groups whose message_log was read by earlier runs; then the range is one hour. Raises
    ReconcileError for a range without minutes.
    """
    if request.from_minute >= request.to_minute:
        raise ReconcileError("the range is empty: its end must be after its start")
    rules = Rules(
        from_minute=request.from_minute,
        to_minute=request.to_minute,
        watermark_ms=watermark_of(groups, request.grace_ms),
        final=request.final,
        max_late_ms=request.max_late_ms,
    )
    there = {one.name.group for one in groups}
    problems = [
        f"group {group} is expected, and none of the manifests is of it"
        for group in request.expected_groups
        if group not in there
    ]
    plans = [
        _Planning(one, rules, request.rows_at_once, known.get(one.name)).run() for one in groups
    ]
    if request.check_payload:
        for plan in plans:
            plan.tasks += _payload_tasks(plan)
    return Plan(request, rules.watermark_ms, plans, problems)


def _payload_tasks(plan: GroupPlan) -> Iterator[PayloadTask]:
    """Yield what checks the items of the range, and all of message_log and dead letters.

    By the hour of the segments only: each hour would read all of it anew.
    """
    for view in plan.members.views:
        extents = [one for one in view.extents if plan.rules.wants(one)]
        if plan.known is None:
            extents += dead_extents_of(view.manifest)
            for log in logs_of(view.manifest):
                yield PayloadTask(node=view.node, file=log)
        for extent in extents:
            if not extent.is_deleted:
                yield PayloadTask(node=view.node, file=extent)


def _rank(source: Source) -> tuple[int, str]:
    manifest = source.manifest
    return manifest.log_next_sequence, manifest.node_id


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
        lacks_segments=manifest.lacks_segments,
    )


def node_of(source: Source) -> Node:
    """Return the node whose manifest this is."""
    manifest = source.manifest
    return Node(
        name=GroupName(manifest.cluster, manifest.group),
        node_id=manifest.node_id,
        root=source.root,
        log_uuid=UUID(manifest.log_uuid),
    )


def _view(source: Source) -> View:
    node, manifest = node_of(source), source.manifest
    extents = extents_of(manifest)
    cover = Cover.of(extents)
    if (cover.start[1:] < cover.end[:-1]).any():
        raise ReconcileError(f"segments of node {node.node_id} overlap: its manifest is wrong")
    tail = read_tail(node, manifest, logs_of(manifest), extents)
    return View(node=node, manifest=manifest, extents=extents, tail=tail)


def extents_of(manifest: Manifest) -> list[Extent]:
    """Return all segments of accepted messages that a manifest tells of."""
    unsealed = [extent_of(one, manifest) for one in manifest.segments]
    return unsealed + [extent_of(one, manifest) for one in manifest.sealed]


def dead_extents_of(manifest: Manifest) -> list[Extent]:
    """Return the same of dead letters."""
    unsealed = [extent_of(one, manifest) for one in manifest.dead_segments]
    return unsealed + [extent_of(one, manifest) for one in manifest.dead_sealed]


def extent_of(segment: UnsealedSegment | SealedSegment, manifest: Manifest) -> Extent:
    """Return what counts of a segment of a manifest. Raises ReconcileError if it is none."""
    key = key_of_name(segment.file.rpartition("/")[2])
    if key is None or key.path != segment.file:
        raise ReconcileError(f"{segment.file} is not the name of a segment")
    if key.facts_path != segment.facts_file:
        raise ReconcileError(
            f"{segment.facts_file} is not the facts file of {segment.file}, which is "
            f"{key.facts_path}"
        )
    if isinstance(segment, SealedSegment):
        facts, is_deleted = sum(segment.outcomes.values()), segment.deleted
        last_fact = _EVERY_RECORD
        lacks_facts = facts < segment.rows
    else:
        facts, is_deleted = segment.facts, False
        last_fact, lacks_facts = segment.last_fact, False
    start, end = key.filed_minutes
    return Extent(
        start=start,
        end=end,
        file=segment.file,
        facts_file=segment.facts_file,
        length=segment.length,
        facts_length=segment.facts_length,
        rows=segment.rows,
        facts=facts,
        last_sequence=segment.last_sequence,
        last_fact=last_fact,
        is_sealed=isinstance(segment, SealedSegment),
        is_deleted=is_deleted,
        lacks_facts=not is_deleted and (lacks_facts or manifest.has_fault(segment.facts_file)),
    )


class _Planning:
    """The plan of one group in the making."""

    def __init__(
        self, members: Members, rules: Rules, rows_at_once: int, known: Known | None
    ) -> None:
        self._members = members
        self._rules = rules
        self._rows_at_once = rows_at_once
        self._account = Account()
        self._known = known
        self._edges: tuple[int, ...] = ()
        """Where the message_log is cut for comparing it."""
        if known is not None:
            view = members.authority
            manifest, filed = view.manifest, view.tail.filed_hours
            self._known = known.with_tail(
                manifest.sequence + 1,
                manifest.log_next_sequence,
                filed.get(rules.from_minute, Digest()),
            )
            self._edges = self._known.edges()

    def run(self) -> GroupPlan:
        """Return the plan."""
        first, others = self._members.authority, self._members.others
        extents = [one for one in first.extents if self._rules.wants(one) and not one.is_deleted]
        plan = GroupPlan(
            members=self._members,
            rules=self._rules,
            cover=Cover.of(first.extents, self._rules),
            extents=extents,
            logs=logs_of(first.manifest),
            loose=self._loose(first),
            account=self._account,
            known=self._known,
        )
        self._look_at(first)
        self._account.totals["unread_segments"] += first.manifest.lacks_segments
        self._look_at_deleted(plan)
        plan.uncompared_nodes |= {
            one.node.node_id
            for one in self._members.views
            if one.manifest.lacks_segments or one.tail.loose.records_are_missing
        }
        plan.pending_before = sum(
            max(one.rows - one.facts, 0)
            for one in first.extents
            if one.end <= self._rules.from_minute and not one.is_sealed
        )
        shared_next = 0
        if others:
            shared_next = min(one.manifest.log_next_sequence for one in self._members.views)
        plan.uncompared_hours |= _hours_of(
            [one for one in first.extents if one.is_deleted and self._rules.wants(one)]
        )
        plan.tasks += self._segment_tasks(
            first,
            extents=extents,
            cover=plan.cover,
            loose=plan.loose,
            shared_next=shared_next,
            is_authority=True,
        )
        if self._known is None:
            plan.tasks += plan.log_tasks()
        else:
            self._account.damages |= self._known.damages
        for other in others:
            self._add_replica(plan, other, shared_next)
        plan.unsealed_hours |= _hours_of([one for one in extents if not one.is_sealed])
        return plan

    def _look_at(self, view: View) -> None:
        """Take down why the manifest is not all there was."""
        manifest = view.manifest
        problems = [text for _, text in faults_of(manifest)]
        if manifest.deleted_from_minute > self._rules.from_minute:
            problems.append(_untold(manifest, self._rules.from_minute))
            self._account.totals["unread_segments"] += 1
        self._account.problems |= {(view.node.node_id, problem) for problem in problems}

    def _look_at_deleted(self, plan: GroupPlan) -> None:
        extents = self._members.authority.extents
        gone = {one.file for one in extents if one.is_deleted and self._rules.wants(one)}
        if not gone:
            return
        totals: Counter[str] = Counter()
        for seal in plan.authority.manifest.sealed:
            if seal.file in gone:
                totals["segments"] += 1
                totals["rows"] += seal.rows
                totals.update(seal.outcomes)
        plan.deleted = dict(totals)
        self._account.totals["unread_segments"] += totals["segments"]
        self._account.problems.add(
            (
                plan.node.node_id,
                f"{totals['segments']} sealed segment(s) of {totals['rows']} messages were deleted",
            )
        )

    def _add_replica(self, plan: GroupPlan, view: View, shared_next: int) -> None:
        self._look_at(view)
        wanted = [one for one in view.extents if self._rules.wants(one)]
        plan.uncompared_hours |= _hours_of([one for one in wanted if one.is_deleted])
        extents = [one for one in wanted if not one.is_deleted]
        plan.unsealed_hours |= _hours_of([one for one in extents if not one.is_sealed])
        plan.tasks += self._segment_tasks(
            view,
            extents=extents,
            cover=Cover.of(view.extents, self._rules),
            loose=self._loose(view),
            shared_next=shared_next,
            is_authority=False,
        )

    def _segment_tasks(
        self,
        view: View,
        *,
        extents: Sequence[Extent],
        cover: Cover,
        loose: Loose,
        shared_next: int,
        is_authority: bool,
    ) -> Iterator[SegmentTask]:
        """Yield tasks for each segment, and one for each hour of minutes that no segment covers."""
        node, manifest = view.node, view.manifest
        for start, end, extent in _spans(extents, cover, loose, self._rules):
            mine = _part_of(loose, start, end, cover, is_covered=extent is not None)
            parts = [WHOLE]
            if extent is not None:
                parts = parts_of(node, extent, self._rows_at_once)
            for part in parts:
                yield SegmentTask(
                    node=node,
                    rules=self._rules,
                    start=start,
                    end=end,
                    extent=extent,
                    lacks_segment=extent is None and manifest.lacks_segments,
                    part=part,
                    loose=replace(
                        mine,
                        rows=mine.rows.where(part.holds(mine.rows.sequence)),
                        facts=mine.facts.where(part.holds(mine.facts.sequence)),
                    ),
                    filed_sequence=manifest.sequence,
                    log_first=manifest.first_sequence,
                    log_next=manifest.log_next_sequence,
                    edges=self._edges if is_authority else (),
                    shared_next=shared_next,
                    is_authority=is_authority,
                )

    def _loose(self, view: View) -> Loose:
        """Return what is in no segment of the range; what could not be read of it is damage."""
        self._damaged(view.node, view.tail.damages)
        return view.tail.of_range(self._rules)

    def _damaged(self, node: Node, damages: Sequence[Damage]) -> None:
        self._account.damages |= {(node.node_id, damage) for damage in damages}


def _untold(manifest: Manifest, from_minute: int) -> str:
    """Say what a manifest does not tell of a range, and what to do."""
    days = -(-(manifest.made_ms // MINUTE_MS - from_minute) // _DAY_MINUTES)
    since = minute_text(manifest.deleted_from_minute)
    return (
        f"the manifest does not tell of segments that were deleted and ended by {since}: make it "
        f"with --deleted-days {days}, or reconcile from then on only (--from {since})"
    )


def faults_of(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what is missing in a manifest: file, and what is wrong with it."""
    found = [
        (fault.file, f"{fault.file} at {fault.position}: {fault.reason}")
        for fault in manifest.faults
    ]
    return found + [
        (
            path,
            f"{path} was put aside, maybe with lost rows: run `delaywheel log salvage`",
        )
        for path in manifest.quarantined
    ]


def logs_of(manifest: Manifest) -> list[LogRange]:
    """Return the files of the message_log, as far as their records count."""
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
    return {hour for one in extents for hour in range(hour_of(one.start), one.end, 60)}


def _spans(
    extents: Sequence[Extent], cover: Cover, loose: Loose, rules: Rules
) -> Iterator[tuple[int, int, Extent | None]]:
    """Yield the minutes of each segment, and the hours of what is loose and in none."""
    for extent in extents:
        yield extent.start, extent.end, extent
    minutes = np.concatenate([loose.rows.minute, loose.facts.minute])
    hours = np.unique(hour_of(minutes[cover.is_open(minutes)]))
    for hour in hours[(hours < rules.to_minute) & (hours + 60 > rules.from_minute)].tolist():
        yield hour, hour + 60, None


def _part_of(loose: Loose, start: int, end: int, cover: Cover, *, is_covered: bool) -> Loose:
    """Return what is loose of some minutes; without a segment, of those that no other covers."""

    def chosen(minute: Int64s) -> Mask:
        mine = (minute >= start) & (minute < end)
        return mine if is_covered else mine & cover.is_open(minute)

    return replace(
        loose,
        rows=loose.rows.take(chosen(loose.rows.minute)),
        facts=loose.facts.take(chosen(loose.facts.minute)),
    )
