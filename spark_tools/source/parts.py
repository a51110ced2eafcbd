"""Which part of which file is read, and which parts make a partition.

Nothing is opened for it. A file is never cut: one that weighs more than a partition is one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from spark_tools.files.errors import OptionError
from spark_tools.judge.tasks import FOREVER, Extent, Node
from spark_tools.judge.unfiled_tail import Unfiled
from spark_tools.run.plan import (
    Source,
    by_group,
    dead_extents_of,
    extents_of,
    faults_of,
    logs_of,
    node_of,
)
from spark_tools.run.source_options import About, ReadOptions, Replicas
from storage.readers.arrow import Kind
from storage.readers.manifest import Manifest

_OPEN_BYTES = 64 * 1024
"""The weight of opening a file, so that no partition has thousands of small files."""
_ROW_BYTES = 256
"""The least weight of a row, because Spark has work with it even if it is small on disk."""


class Role(StrEnum):
    """What is read of a file."""

    ROWS = "rows"
    FACTS = "facts"
    RECORDS = "records"
    TAIL = "facts of the tail"
    """The files that make up the end of the message_log, all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of one file that is read, or the tail.

    length: its bytes that count; start, end: the minutes of its segment, all where it is of none;
    first, after: the sequences that are wanted of the message_log; count: rows that there must be,
    None where the reader itself says what is missing; unfiled: only what is in no file of a segment
    is wanted, None for all.
    """

    node: Node
    role: Role
    file: str
    length: int
    start: int = 0
    end: int = FOREVER
    first: int = 0
    after: int = 0
    count: int | None = None
    is_sealed: bool = False
    unfiled: Unfiled | None = None

    @property
    def weight(self) -> int:
        """The work of reading it, in bytes."""
        rows = self.after - self.first if self.count is None else self.count
        return max(self.length, _ROW_BYTES * rows)


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that is missing or unreadable, as the manifest says."""

    node: Node
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The parts that one task of Spark reads."""

    parts: tuple[Part, ...]
    missing: tuple[Missing, ...] = ()


@dataclass(slots=True)
class _Planned:
    parts: list[Part] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def plan_partitions(sources: Sequence[Source], options: ReadOptions) -> list[PartitionPlan]:
    """Return the partitions; together they have each row once.

    Raises OptionError for groups that are not there, ReconcileError for manifests that do not
    belong together.
    """
    groups = by_group(sources)
    absent = sorted(set(options.groups) - {name.group for name in groups})
    if absent:
        raise OptionError(f"no manifest is of group {', '.join(absent)}")
    planned = _Planned()
    for name, nodes in groups.items():
        if options.groups and name.group not in options.groups:
            continue
        for source in nodes if options.replicas is Replicas.ALL else nodes[:1]:
            node = node_of(source)
            planned.missing += [Missing(node, *one) for one in faults_of(source.manifest)]
            planned.parts += _parts(source.manifest, node, options)
    plans = [PartitionPlan(tuple(parts)) for parts in _packed(planned.parts, options)]
    if planned.missing:
        plans.insert(0, PartitionPlan((), tuple(planned.missing)))
    return plans


def _parts(manifest: Manifest, node: Node, options: ReadOptions) -> Iterator[Part]:
    """Yield the parts of a node's files, in order of time."""
    match options.kind:
        case Kind.SCHEDULE:
            yield from _segments(_accepted(manifest, options), node, Role.ROWS)
        case Kind.DEAD:
            yield from _segments(_dead(manifest), node, Role.ROWS)
        case Kind.MESSAGE:
            yield from _records(manifest, node, options)
        case Kind.DISPATCH:
            dead = options.about is About.DEAD
            extents = _dead(manifest) if dead else _accepted(manifest, options)
            yield from _segments(extents, node, Role.FACTS)
            yield from _tail(manifest, node)


def _accepted(manifest: Manifest, options: ReadOptions) -> list[Extent]:
    extents = [one for one in extents_of(manifest) if options.wants(one.start, one.end)]
    return _in_order(extents)


def _dead(manifest: Manifest) -> list[Extent]:
    return _in_order(dead_extents_of(manifest))


def _in_order(extents: Sequence[Extent]) -> list[Extent]:
    return sorted((one for one in extents if not one.is_deleted), key=lambda one: one.start)


def _segments(extents: Sequence[Extent], node: Node, role: Role) -> Iterator[Part]:
    is_rows = role is Role.ROWS
    for one in extents:
        length, count = (one.length, one.rows) if is_rows else (one.facts_length, one.facts)
        if not length and not count:
            continue
        yield Part(
            node=node,
            role=role,
            file=one.file if is_rows else one.facts_file,
            length=length,
            start=one.start,
            end=one.end,
            count=count,
            is_sealed=one.is_sealed,
        )


def _records(manifest: Manifest, node: Node, options: ReadOptions) -> Iterator[Part]:
    unfiled = _unfiled(manifest, node) if options.unfiled else None
    for log in logs_of(manifest) if unfiled is None else unfiled.logs:
        if log.first_sequence < log.next_sequence:
            yield Part(
                node=node,
                role=Role.RECORDS,
                file=log.file,
                length=log.length,
                first=log.first_sequence,
                after=log.next_sequence,
                unfiled=unfiled,
            )


def _tail(manifest: Manifest, node: Node) -> Iterator[Part]:
    """Yield the end of the message_log; whole, as which facts count depends on all of its rows."""
    unfiled = _unfiled(manifest, node)
    if logs := unfiled.fact_logs:
        yield Part(
            node=node,
            role=Role.TAIL,
            file=logs[0].file,
            length=sum(log.length for log in logs),
            first=logs[0].first_sequence,
            after=logs[-1].next_sequence,
            unfiled=unfiled,
        )


def _unfiled(manifest: Manifest, node: Node) -> Unfiled:
    extents = [*extents_of(manifest), *dead_extents_of(manifest)]
    return Unfiled.of(node, manifest, logs_of(manifest), extents)


def _packed(parts: Sequence[Part], options: ReadOptions) -> Iterator[list[Part]]:
    """Yield parts that follow each other, as many as make up a partition."""
    gathered: list[Part] = []
    weight = 0
    for part in parts:
        if gathered and weight + part.weight + _OPEN_BYTES > options.partition_bytes:
            yield gathered
            gathered, weight = [], 0
        gathered.append(part)
        weight += part.weight + _OPEN_BYTES
    if gathered:
        yield gathered
