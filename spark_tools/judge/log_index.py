"""What was read of the message_log once, and need not be read again: digests by filed hour.

A record lies in the message_log by when it came, its row in the segment of the minute in which it
is due, perhaps a year later. Closed files of the message_log never change, and no more does what is
durable of the newest: so what has been filed of it is read once (`IndexTask`), as a *piece*, and of
each hour in which messages of the piece are due the piece remembers their count and digest. That is
what the rows of this hour are held against when it is done, whether the file is still there or not;
only where they differ is the piece read once more, as far as it is kept.

Records that no checkpoint has filed yet are of no piece. A run takes those of its hour from the end
of the log, which it reads anyway (`spark_tools/judge/unfiled_tail.py`).

A piece takes 32 bytes for each hour in which its messages are due, on disk before it is compressed:
560 KB if that is each hour of two years, some KB as a rule.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_tools.files.columns import Names, hour_of
from spark_tools.judge.account import Account, TaskResult
from spark_tools.judge.digests import Digest, add_digests, digests_by, hashes_of_rows
from spark_tools.judge.findings import FindingsMaker
from spark_tools.judge.message_log import read_records
from spark_tools.judge.pieces import HourDigests, Piece
from spark_tools.judge.sequences import Sequences
from spark_tools.judge.tasks import LogRange, Node
from storage.batch.batches import Damage


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
        piece = Piece(
            first=self.log.first_sequence,
            after=self.log.next_sequence,
            hours=HourDigests.from_dict(digests),
            damages=tuple(damages),
        )
        return TaskResult(self.node.name, Account(pieces=[piece]), FindingsMaker.nothing())


@dataclass(slots=True)
class LogIndex:
    """What was read of the message_log of one group.

    pieces: in order, of what is kept there; gone: sequences that were read and have left since;
    gone_hours: what was due when of these.
    """

    pieces: list[Piece] = field(default_factory=list)
    gone: list[tuple[int, int]] = field(default_factory=list)
    gone_hours: HourDigests = field(default_factory=lambda: HourDigests.from_dict({}))

    def missing(self, logs: Sequence[LogRange], filed_sequence: int) -> list[LogRange]:
        """Return what is filed, and was not read yet."""
        found = []
        read = [(one.first, one.after) for one in self.pieces]
        for log in logs:
            first = log.first_sequence
            end = min(log.next_sequence, filed_sequence + 1)
            for begin, after in [*read, (end, end)]:
                if first < min(begin, end):
                    gap = log.part(first, min(begin, end))
                    found += [gap] if gap is not None else []
                first = max(first, after)
        return found

    def add(self, piece: Piece) -> None:
        """Add what was read."""
        self.pieces = sorted([*self.pieces, piece], key=lambda one: one.first)

    def retire(self, first_sequence: int, since_hour: int) -> list[Piece]:
        """Remember of what has left the message_log as much as rows are still held against.

        first_sequence: from there on it is kept; since_hour: the first that is not done yet.
        Returns the pieces that are none any more.
        """
        left = [one for one in self.pieces if one.after <= first_sequence]
        hours = self.gone_hours.since(since_hour).dict()
        # Of what was damaged nobody knows what is missing in the digests.
        whole = [one for one in left if not one.damages]
        for piece in whole:
            add_digests(hours, piece.hours.since(since_hour).dict())
        self.pieces = [one for one in self.pieces if one.after > first_sequence]
        self.gone = _joined([*self.gone, *((one.first, one.after) for one in whole)])
        self.gone_hours = HourDigests.from_dict(hours)
        return left

    def of_hour(self, hour: int, *, unproven: Sequences, settled: frozenset[int]) -> "Known":
        """Return what the rows of one hour are held against."""
        return Known(
            pieces=tuple(
                Expected(first=one.first, after=one.after, digest=one.hours.of(hour))
                for one in self.pieces
            ),
            gone=tuple(self.gone),
            gone_digest=self.gone_hours.of(hour),
            damages=tuple(damage for one in self.pieces for damage in one.damages),
            unproven=unproven,
            settled=settled,
        )


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, after in sorted(ranges):
        if joined and joined[-1][1] >= first:
            joined[-1] = joined[-1][0], max(joined[-1][1], after)
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
    """What earlier runs know of the messages of one hour.

    pieces: of the message_log as it is kept; gone: sequences of which the records were read and
    have left since, gone_digest: of those of the hour; damages: what could not be read of pieces;
    unproven: rows of earlier hours of which nobody knows that they belong there; settled: hours
    that are done for good.
    """

    pieces: tuple[Expected, ...]
    gone: tuple[tuple[int, int], ...]
    gone_digest: Digest
    damages: tuple[Damage, ...]
    unproven: Sequences
    settled: frozenset[int]

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
        ranges = [(one.first, one.after) for one in self.pieces] + list(self.gone)
        return tuple(sorted({0, *itertools.chain.from_iterable(ranges)}))

    def differing(self, cuts: Mapping[int, Digest]) -> list[tuple[int, int]]:
        """Return the sequences of the pieces of which the rows are not as the records are.

        cuts: digests of the rows of the hour by `edges`.
        """
        return [
            (one.first, one.after)
            for one in self.pieces
            if _sum(cuts, one.first, one.after) != one.digest
        ]

    def agreeing(self, cuts: Mapping[int, Digest]) -> int:
        """Return how many records the other pieces have."""
        return sum(
            one.digest.count
            for one in self.pieces
            if _sum(cuts, one.first, one.after) == one.digest
        )

    def gone_rows(self, cuts: Mapping[int, Digest]) -> Digest:
        """Return the digest of the rows whose records have left."""
        digest = Digest()
        for first, after in self.gone:
            digest.add(_sum(cuts, first, after))
        return digest

    def unindexed(self) -> Iterator[tuple[int, int]]:
        """Yield the sequences, the second exclusive, of which no record was ever read."""
        first = 0
        ranges = [(one.first, one.after) for one in self.pieces] + list(self.gone)
        for begin, after in _joined(ranges):
            if first < begin:
                yield first, begin
            first = after


def _sum(cuts: Mapping[int, Digest], first: int, after: int) -> Digest:
    digest = Digest()
    for edge, found in cuts.items():
        if first <= edge < after:
            digest.add(found)
    return digest
