"""The parts of a partition as tables: what Spark's workers run. Knows nothing of Spark.

What is damaged ends it with DamagedInputError, or becomes a row that tells of it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import Mask, ints
from spark_tools.files.errors import DamagedInputError
from spark_tools.files.roots import local_path
from spark_tools.judge.message_log import WITH_ROWS
from spark_tools.judge.tasks import Node
from spark_tools.judge.unfiled_tail import Unfiled
from spark_tools.run.source_options import DAMAGE_COLUMN, About, OnDamage, ReadOptions
from spark_tools.source.parts import Part, PartitionPlan, Role
from storage.batch.batches import Damage
from storage.disk.spans import DEAD_MINUTES_FROM
from storage.readers.arrow import COLUMNS, ArrowReader, Kind


def read_partition(plan: PartitionPlan, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield what a partition has, in tables of `options.schema`, none of them empty."""
    for one in plan.missing:
        yield _damaged(options, one.node, one.file, None, one.reason)
    for part in plan.parts:
        yield from _PartReading(part, options).run()


def _damaged(
    options: ReadOptions, node: Node, file: str, position: int | None, reason: str
) -> pa.RecordBatch:
    """Return the row that tells of damage, or end with an error that does."""
    if options.damage is OnDamage.FAIL:
        path = local_path(node.root)
        looking = f"look with `delaywheel log verify {path}`"
        if path is None:
            looking = "hold it against its original, or copy it anew"
        raise DamagedInputError(
            f"node {node.node_id} of group {node.name.group} in {node.root}: {reason}; {looking}, "
            "or read what is whole with the option damage=skip, which tells of each such place in "
            "a row of its own"
        )
    told = {
        "cluster": node.name.cluster,
        "group": node.name.group,
        "node": node.node_id,
        "file": file,
        "position": position,
        DAMAGE_COLUMN: reason,
    }
    row = {name: told.get(name) for name in options.columns}
    return pa.RecordBatch.from_pylist([row], schema=options.schema)


class _PartReading:
    """One reading of a part."""

    def __init__(self, part: Part, options: ReadOptions) -> None:
        self._part = part
        self._options = options
        self._schema = options.schema
        self._unfiled_rows = part.unfiled if part.role is Role.RECORDS else None
        """Which of the records are wanted, None for all of them."""
        names = dict.fromkeys(name for name in options.columns if name in COLUMNS[options.kind])
        names |= dict.fromkeys(self._asked())
        self._names = list(names) or ["sequence"]
        self._reader = ArrowReader(part.node.disk(), part.node.log_uuid, options.kind, self._names)

    def run(self) -> Iterator[pa.RecordBatch]:
        """Yield tables, and what tells of damage."""
        part, count, is_whole = self._part, 0, True
        for found in self._found():
            if isinstance(found, Damage):
                is_whole = False
                reason = f"{found.path} at {found.position}: {found.reason}"
                yield _damaged(self._options, part.node, found.path, found.position, reason)
                continue
            count += found.num_rows
            if self._options.damage is OnDamage.ONLY:
                continue
            chosen = self._chosen(found)
            kept = found if chosen is None else found.filter(pa.array(chosen))
            if kept.num_rows:
                yield self._table(kept)
        if is_whole and part.count is not None and count != part.count:
            what = f"{part.file} has {count} {part.role}, not {part.count}"
            yield _damaged(self._options, part.node, part.file, 0, what)

    def _found(self) -> Iterator[pa.RecordBatch | Damage]:
        part, reader = self._part, self._reader
        match part.role:
            case Role.ROWS:
                return reader.rows(part.file, length=part.length, is_sealed=part.is_sealed)
            case Role.FACTS:
                return reader.filed_facts(part.file, length=part.length)
            case Role.RECORDS:
                return reader.messages(
                    part.file,
                    length=part.length,
                    first_sequence=part.first,
                    next_sequence=part.after,
                )
            case Role.TAIL:
                assert part.unfiled is not None
                return self._tail(part.unfiled)

    def _tail(self, unfiled: Unfiled) -> Iterator[pa.RecordBatch | Damage]:
        minutes = unfiled.minutes()
        for log in unfiled.fact_logs:
            yield from unfiled.facts(log, self._names, minutes)

    # -- which rows --------------------------------------------------------------------------

    def _asked(self) -> Sequence[str]:
        """Return the columns that say which rows are wanted."""
        if self._unfiled_rows is not None:
            return ["filed_minute", "sequence", "kind"]
        if not self._is_trimmed() and self._part.role is not Role.TAIL:
            return []
        return ["old_minute"] if self._options.kind is Kind.DEAD else ["filed_minute"]

    def _is_trimmed(self) -> bool:
        """Say whether some rows may lie outside of the range."""
        options, part = self._options, self._part
        if not options.has_range:
            return False
        if options.kind is Kind.DEAD or part.role not in {Role.ROWS, Role.FACTS}:
            return True
        return part.start < options.from_minute or part.end > options.to_minute

    def _chosen(self, table: pa.RecordBatch) -> Mask | None:
        """Say which rows are wanted, None for all of them."""
        part, options = self._part, self._options
        asked = self._asked()
        if not asked:
            return None
        minute = table.column(asked[0])
        chosen: Mask = np.ones(table.num_rows, np.bool_)
        if self._is_trimmed():
            chosen &= _flags(pc.is_valid(minute))
        minutes = ints(table, asked[0])
        if part.role is Role.TAIL:
            about_dead = minutes >= DEAD_MINUTES_FROM
            chosen &= about_dead if options.about is About.DEAD else ~about_dead
        if self._is_trimmed():
            # A fact counts where it is filed, even if it tells of another minute.
            if part.role is Role.FACTS:
                minutes = np.clip(minutes, part.start, part.end - 1)
            chosen &= (minutes >= options.from_minute) & (minutes < options.to_minute)
        if self._unfiled_rows is not None:
            chosen &= _flags(pc.is_in(table.column("kind"), value_set=WITH_ROWS))
            chosen &= self._unfiled_rows.has_row(ints(table, "sequence"), minutes)
        return chosen

    # -- what is said of them ----------------------------------------------------------------

    def _table(self, table: pa.RecordBatch) -> pa.RecordBatch:
        node, count = self._part.node, table.num_rows
        same = {
            "cluster": node.name.cluster,
            "group": node.name.group,
            "node": node.node_id,
            DAMAGE_COLUMN: None,
        }
        columns = [
            pa.repeat(pa.scalar(same[field.name], field.type), count)
            if field.name in same
            else table.column(field.name)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _flags(column: pa.Array) -> Mask:
    flags: Mask = column.to_numpy(zero_copy_only=False)
    return flags
