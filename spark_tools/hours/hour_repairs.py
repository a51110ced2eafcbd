"""Final hours of which a repair has sent messages since.

Results and sums stay what was found. The summary of a run moves what its audits name, so that it
tells what a run that had known of the repair would.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import Mask
from spark_tools.hours.state import HOURS, GroupSums, Ledger, StateDirectory
from spark_tools.repaired.repairs import LOST, MISSING, LogName, Repairs

_FINDINGS: Final = "findings"
_MOVED: Final = {LOST: "repaired", MISSING: "repaired_records"}
"""Classes of findings that a repair ends, and the counts that these messages are in then."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """Findings of an hour that are none any more; `rows`: of FINDINGS_SCHEMA, not empty."""

    hour: int
    rows: pa.Table

    @property
    def counts(self) -> dict[str, int]:
        """How many of each class."""
        return dict(sorted(Counter(self.rows["class"].to_pylist()).items()))


def amendments_of(state: StateDirectory, ledger: Ledger, repairs: Repairs) -> list[Amendment]:
    """Return the repairs of the hours that the ledger tells of. Raises ReconcileError."""
    found = []
    for entry in ledger.hours if repairs.logs() else ():
        if not entry.is_final or not entry.findings.keys() & _MOVED.keys():
            continue
        table = state.read_table(f"{HOURS}/{entry.details[_FINDINGS]}")
        rows = table.filter(pa.array(_repaired(entry.hour, table, repairs, ledger.groups)))
        if rows.num_rows:
            found.append(Amendment(entry.hour, rows))
    return found


def _repaired(hour: int, table: pa.Table, repairs: Repairs, groups: Sequence[GroupSums]) -> Mask:
    """Say of findings of an hour whether audits name them."""
    chosen = np.zeros(table.num_rows, np.bool_)
    sequence = table["sequence"].fill_null(-1).to_numpy()
    for group in groups:
        log = LogName(group.cluster, group.group, group.log_uuid)
        mine = _of_group(table, group)
        for kind, known in ((LOST, repairs.rows_of(log)), (MISSING, repairs.records_of(log))):
            is_kind = pc.and_(mine, pc.equal(table["class"], kind)).to_numpy()
            chosen |= is_kind & np.isin(sequence, known.of_minutes(hour, hour + 60))
    return chosen


def _of_group(table: pa.Table, group: GroupSums) -> pa.ChunkedArray:
    return pc.and_(pc.equal(table["cluster"], group.cluster), pc.equal(table["group"], group.group))


def amended(ledger: Ledger, amendments: Sequence[Amendment]) -> Ledger:
    """Return a ledger in which repaired findings count as such, in its hours and in its sums."""
    ledger = copy.deepcopy(ledger)
    entries = {entry.hour: entry for entry in ledger.hours}
    for one in amendments:
        entry, counts = entries[one.hour], one.counts
        taken = {name: -count for name, count in counts.items()}
        ledger.verdicts = _moved(ledger.verdicts, {entry.verdict: -1})
        ledger.findings = _moved(ledger.findings, taken)
        entry.findings = _moved(entry.findings, taken)
        entry.repaired = counts
        if not entry.findings:
            entry.verdict = "clean" if entry.complete else "incomplete"
        ledger.verdicts = _moved(ledger.verdicts, {entry.verdict: 1})
        for group in ledger.groups:
            mine = Counter(one.rows.filter(_of_group(one.rows, group))["class"].to_pylist())
            for kind, becomes in _MOVED.items():
                moved = {kind: -mine[kind], becomes: mine[kind]}
                group.totals = _moved(group.totals, moved)
    return ledger


def _moved(counts: Mapping[str, int], by: Mapping[str, int]) -> dict[str, int]:
    """Return counts that were changed, without zeros."""
    found = {name: counts.get(name, 0) + by.get(name, 0) for name in sorted({*counts, *by})}
    return {name: count for name, count in found.items() if count}
