"""What was repaired, as a run needs to know it: sequences that were sent again and accepted.

24 bytes for each, whatever the audits hold beside.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from spark_tools.files.columns import Int64s, Mask
from spark_tools.judge.digests import Uint64s
from spark_tools.repaired.repair_audit import ACCEPTED, Answer, Intent, read_audit
from storage.disk.spans import MINUTE_MS

LOST: Final = "lost"
MISSING: Final = "missing"
KINDS: Final = (LOST, MISSING)
"""Classes of findings that can be repaired."""
LATE: Final = "late"
LATE_REPAIRED: Final = "late_repaired"
"""What is late as it was sent again; no finding."""


class LogName(NamedTuple):
    """Whose sequences these are."""

    cluster: str
    group: str
    log_uuid: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """Sequences of one log that were repaired, each once, by filed minute; arrays of one length."""

    minute: Int64s
    sequence: Int64s

    @classmethod
    def of(cls, minute: Int64s, sequence: Int64s) -> "Repaired":
        """Return these, in order. Of a sequence that is there twice the first minute counts."""
        _, first = np.unique(sequence, return_index=True)
        first = first[np.argsort(minute[first], kind="stable")]
        return cls(minute[first], sequence[first])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.sequence)

    def of_minutes(self, start: int, end: int) -> Int64s:
        """Return the sequences of the filed minutes from `start` up to `end`, ascending."""
        first, after = np.searchsorted(self.minute, [start, end])
        return np.sort(self.sequence[first:after])


_NONE: Final = Repaired(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Resent:
    """The messages that were sent again: a hash of message id and due time each, ascending."""

    hashes: Uint64s = field(default_factory=lambda: np.empty(0, np.uint64))

    def names(self, findings: pa.Table) -> Mask:
        """Say of rows whether one like it was sent again, when its minute had passed.

        What a producer had sent before, in time, is filed in the minute in which it is due.
        """
        named = np.zeros(findings.num_rows, np.bool_)
        if not len(self.hashes):
            return named
        due_ms = findings["due_ms"].fill_null(0).to_numpy()
        behind = findings["filed_minute"].to_numpy() > due_ms // MINUTE_MS
        places = np.flatnonzero(behind & findings["message_id"].is_valid().to_numpy())
        some = findings.select(["message_id", "due_ms"]).take(places).to_pylist()
        hashes = [_hash_of(one["message_id"], one["due_ms"]) for one in some]
        named[places] = np.isin(np.array(hashes, np.uint64), self.hashes)
        return named

    def excuse(self, findings: pa.Table) -> tuple[pa.Table, int]:
        """Return findings of which those that are late, as they were sent again, are none.

        And how many these are.
        """
        if not len(self.hashes) or not findings.num_rows:
            return findings, 0
        late = pc.equal(findings["class"], LATE).to_numpy()
        if not late.any():
            return findings, 0
        excused = late.copy()
        excused[late] = self.names(findings.filter(pa.array(late)))
        classes = pc.if_else(pa.array(excused), LATE_REPAIRED, findings["class"])
        place = findings.schema.get_field_index("class")
        table = findings.set_column(place, findings.schema.field(place), classes)
        return table, int(np.count_nonzero(excused))


def _hash_of(message_id: str, due_ms: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{due_ms} {message_id}".encode())


@dataclass(frozen=True, slots=True)
class Repairs:
    """All that audits say was repaired."""

    rows: dict[LogName, Repaired] = field(default_factory=dict)
    """What had been lost: it has a row."""
    records: dict[LogName, Repaired] = field(default_factory=dict)
    """What had been missing: it has none."""
    resent: Resent = field(default_factory=Resent)
    """What was sent for both: messages of their own."""
    damaged_lines: int = 0
    """Lines that nobody can read: what they say may have been sent again."""

    def digest(self) -> str:
        """Return what is the same for the same repairs, nothing if there are none."""
        if not self.logs():
            return ""
        found = xxhash.xxh3_128(self.resent.hashes.tobytes())
        for kind, logs in zip(KINDS, (self.rows, self.records), strict=True):
            for log, one in sorted(logs.items(), key=lambda item: item[0]):
                found.update(repr((kind, log, len(one))).encode())
                found.update(one.minute.tobytes() + one.sequence.tobytes())
        return found.hexdigest()

    def rows_of(self, log: LogName) -> Repaired:
        """Return what had been lost of one log."""
        return self.rows.get(log, _NONE)

    def records_of(self, log: LogName) -> Repaired:
        """Return what had been missing of one log."""
        return self.records.get(log, _NONE)

    def logs(self) -> set[LogName]:
        """Return the logs of which anything was repaired."""
        return {*self.rows, *self.records}


def read_repairs(audits: Iterable[Path]) -> Repairs:
    """Return what audits say was accepted.

    Raises ReconcileError for what is no audit, or one of a newer version, StorageError or OSError.
    """
    found: dict[str, dict[LogName, tuple[array[int], array[int]]]] = {
        kind: defaultdict(lambda: (array("q"), array("q"))) for kind in KINDS
    }
    damaged = 0
    resent = array("Q")
    for path in audits:
        # An intent comes before its answer; those that never got one are few.
        due_ms: dict[tuple[str, LogName, int], int] = {}
        for line in read_audit(path):
            if line is None:
                damaged += 1
            elif isinstance(line, Intent):
                due_ms[_place(line)] = line.due_ms
            elif isinstance(line, Answer) and line.kind in found:
                due = due_ms.pop(_place(line), None)
                if line.result != ACCEPTED:
                    continue
                minutes, sequences = found[line.kind][_log_of(line)]
                minutes.append(line.filed_minute)
                sequences.append(line.sequence)
                if due is not None:
                    resent.append(_hash_of(line.message_id, due))
    rows, records = (
        {
            log: Repaired.of(np.frombuffer(minutes, np.int64), np.frombuffer(sequences, np.int64))
            for log, (minutes, sequences) in found[kind].items()
        }
        for kind in KINDS
    )
    return Repairs(rows, records, Resent(np.unique(np.frombuffer(resent, np.uint64))), damaged)


def _log_of(line: Intent | Answer) -> LogName:
    return LogName(line.cluster, line.group, line.log_uuid)


def _place(line: Intent | Answer) -> tuple[str, LogName, int]:
    return line.kind, _log_of(line), line.sequence
