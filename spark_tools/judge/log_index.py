"""What was read of the message_log once, and need not be read again: digests by filed hour.

A record lies in the message_log by when it came, its row in the segment of the minute in which it
is due, perhaps a year later. What is filed of the message_log never changes: so it is read once
(`IndexTask`), as a *piece* of some sequences, and of each hour in which messages of the piece are
due the index keeps their count and digest. The rows of this hour are held against these when it is
done, whether the file is still there or not; only if they differ is the message_log read again, as
far as it is kept.

Records that no checkpoint has filed yet are of no piece. A run takes those of its hour from the end
of the log, which it reads anyway (`spark_tools/judge/unfiled_tail.py`).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import Names, hour_of
from spark_tools.judge.account import Account, TaskResult
from spark_tools.judge.digests import Digest, add_digests, digests_by, hashes_of_rows
from spark_tools.judge.findings import FindingsMaker
from spark_tools.judge.message_log import read_records
from spark_tools.judge.tasks import LogRange, Node
from storage.batch.batches import Damage

INDEX_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("first", "after", "hour", "count")),
        ("low", pa.uint64()),
        ("high", pa.uint64()),
    ]
)
"""A row for each piece and hour; `after` is exclusive, hours are minutes since 1970."""
_NO_HOUR = -1
"""The hour of a row that each piece has, with an empty digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTask:
    """Read records of the message_log once, and hand them back as a piece."""

    node: Node
    log: LogRange

    @property
    def weight(self) -> int:
        """About how many bytes are read."""
        return self.log.length

    def __call__(self) -> TaskResult:
        """Run the task and return what it counted."""
        digests: dict[int, Digest] = {}
        damages: list[Damage] = []
        for rows in read_records(self.node, self.log, Names(), 0, damages):
            add_digests(digests, digests_by(hour_of(rows.minute), hashes_of_rows(rows)))
        account = Account(pieces=[piece_of(self.log, digests)])
        account.damages = {(self.node.node_id, damage) for damage in damages}
        return TaskResult(self.node.name, account, FindingsMaker.nothing())


def piece_of(log: LogRange, digests: Mapping[int, Digest]) -> pa.Table:
    """Return the piece of some sequences, a table of INDEX_SCHEMA. digests: by hour."""
    rows = [
        {
            "first": log.first_sequence,
            "after": log.next_sequence,
            "hour": hour,
            "count": one.count,
            "low": one.low,
            "high": one.high,
        }
        for hour, one in sorted({_NO_HOUR: Digest(), **digests}.items())
    ]
    return pa.Table.from_pylist(rows, schema=INDEX_SCHEMA)


class LogIndex:
    """What was read of the message_log of one group.

    table: of INDEX_SCHEMA; first_sequence: from there on the message_log is kept; damages: what
    could not be read of it, by node.
    """

    def __init__(self, table: pa.Table | None = None) -> None:
        """table: what earlier runs have read."""
        self.table = INDEX_SCHEMA.empty_table() if table is None else table
        self.first_sequence = 0
        self.damages: set[tuple[str, Damage]] = set()

    def ranges(self) -> list[tuple[int, int]]:
        """Return the sequences of the pieces, in order."""
        pairs = self.table.select(["first", "after"]).group_by(["first", "after"]).aggregate([])
        return sorted(zip(pairs["first"].to_pylist(), pairs["after"].to_pylist(), strict=True))

    def missing(self, logs: Sequence[LogRange], filed_sequence: int) -> list[LogRange]:
        """Return what is filed, and was not read yet."""
        found, read = [], self.ranges()
        for log in logs:
            first = log.first_sequence
            end = min(log.next_sequence, filed_sequence + 1)
            for begin, after in [*read, (end, end)]:
                gap = log.part(first, min(begin, end))
                found += [gap] if gap is not None else []
                first = max(first, after)
        return found

    def add(self, account: Account) -> None:
        """Add what tasks have read."""
        self.table = pa.concat_tables([self.table, *account.pieces])
        self.damages |= account.damages

    def shrink(self, first_sequence: int, since_hour: int) -> None:
        """Join pieces that have left the message_log, and forget the hours before one.

        first_sequence: from there on the message_log is kept.
        """
        self.first_sequence = first_sequence
        first, after, hour = (self.table[name].to_numpy() for name in ("first", "after", "hour"))
        first, after = first.copy(), after.copy()
        for begin, end in _joined([one for one in self.ranges() if one[1] <= first_sequence]):
            mine = (first >= begin) & (after <= end)
            first[mine], after[mine] = begin, end
        sums = [self.table[name] for name in ("count", "low", "high")]
        table = pa.table([first, after, hour, *sums], schema=INDEX_SCHEMA)
        table = table.filter(pa.array((hour >= since_hour) | (hour == _NO_HOUR)))
        keys = ["first", "after", "hour"]
        # Sums of unsigned numbers are modulo 2^64, as those of digests.
        summed = table.group_by(keys, use_threads=False).aggregate(
            [(name, "sum") for name in ("count", "low", "high")]
        )
        self.table = summed.rename_columns(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)

    def of_hour(self, hour: int) -> "Known":
        """Return what the rows of one hour are held against."""
        mine = self.table.filter(pc.equal(self.table["hour"], hour)).to_pylist()
        digests = {
            (row["first"], row["after"]): Digest(row["count"], row["low"], row["high"])
            for row in mine
        }
        return Known(
            pieces=tuple(
                Expected(first=first, after=after, digest=digests.get((first, after), Digest()))
                for first, after in self.ranges()
            ),
            first_sequence=self.first_sequence,
            damages=frozenset(self.damages),
        )


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, after in ranges:
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], after
        else:
            joined.append((first, after))
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Sequences of the message_log, and the digest of those records that must have a row."""

    first: int
    after: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The messages of one hour, as they were read in the message_log.

    first_sequence: pieces before it have left the message_log since; damages: what could not be
    read, by node.
    """

    pieces: tuple[Expected, ...]
    first_sequence: int
    damages: frozenset[tuple[str, Damage]]

    def with_tail(self, first: int, after: int, digest: Digest) -> "Known":
        """Return this with the end of the log, which is of no piece.

        first, after: its sequences, the second exclusive; digest: of those of its records that are
        of the hour, and in a segment already.
        """
        # An authority that is behind the one before it has less than is known.
        first = max([first, *(one.after for one in self.pieces)])
        tail = Expected(first=first, after=max(after, first), digest=digest)
        return replace(self, pieces=(*self.pieces, tail))

    def edges(self) -> tuple[int, ...]:
        """Return where sequences are cut, so that each piece is made of whole cuts."""
        ranges = [(one.first, one.after) for one in self.pieces]
        return tuple(sorted({0, *itertools.chain.from_iterable(ranges)}))

    def kept_records(self) -> int:
        """Return how many records of the hour the message_log still has."""
        return sum(one.digest.count for one in self.pieces if one.after > self.first_sequence)

    def differing(self, cuts: Mapping[int, Digest], *, kept: bool) -> list[tuple[Digest, Digest]]:
        """Return the pieces that are not as the rows: the digest of the records, and of the rows.

        kept: of the message_log as it is kept, or else of what has left it; cuts: digests of the
        rows of the hour by `edges`.
        """
        found = []
        for one in self.pieces:
            rows = Digest()
            for edge, digest in cuts.items():
                if one.first <= edge < one.after:
                    rows.add(digest)
            if (one.after > self.first_sequence) == kept and rows != one.digest:
                found.append((one.digest, rows))
        return found
