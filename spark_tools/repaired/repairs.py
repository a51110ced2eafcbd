"""What was repaired, as a run needs to know it: sequences that were sent again and accepted.

16 bytes for each, whatever the audits hold beside.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from spark_tools.files.columns import Int64s
from spark_tools.repaired.repair_audit import ACCEPTED, read_audit

LOST: Final = "lost"
MISSING: Final = "missing"
KINDS: Final = (LOST, MISSING)
"""Classes of findings that can be repaired."""


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
class Repairs:
    """All that audits say was repaired."""

    rows: dict[LogName, Repaired] = field(default_factory=dict)
    """What had been lost: it has a row."""
    records: dict[LogName, Repaired] = field(default_factory=dict)
    """What had been missing: it has none."""
    damaged_lines: int = 0
    """Lines that nobody can read: what they say may have been sent again."""

    def rows_of(self, log: LogName) -> Repaired:
        """Return what had been lost of one log."""
        return self.rows.get(log, _NONE)

    def records_of(self, log: LogName) -> Repaired:
        """Return what had been missing of one log."""
        return self.records.get(log, _NONE)

    def given(self, log: LogName, start: int, end: int) -> int:
        """Return how many of one log are of the filed minutes from `start` up to `end`."""
        found = (self.rows_of(log), self.records_of(log))
        return sum(len(one.of_minutes(start, end)) for one in found)

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
    for path in audits:
        for line in read_audit(path):
            if line is None:
                damaged += 1
            elif line.kind in found and line.result == ACCEPTED:
                log = LogName(line.cluster, line.group, line.log_uuid)
                minutes, sequences = found[line.kind][log]
                minutes.append(line.filed_minute)
                sequences.append(line.sequence)
    rows, records = (
        {
            log: Repaired.of(np.frombuffer(minutes, np.int64), np.frombuffer(sequences, np.int64))
            for log, (minutes, sequences) in found[kind].items()
        }
        for kind in KINDS
    )
    return Repairs(rows, records, damaged)
