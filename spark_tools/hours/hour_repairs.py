"""Final hours of which a repair has sent messages since.

Their results stay what was found. What is lost no more is moved in the ledger and in the sums, so
that these say what a run would that had known of the repair.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import Mask
from spark_tools.hours.state import HOURS, GroupSums, HourEntry, Ledger, StateDirectory, hour_name
from spark_tools.hours.sums import Sums
from spark_tools.judge.tasks import GroupName
from spark_tools.repaired.repairs import LOST, MISSING, LogName, Repairs

_FINDINGS: Final = "findings"
_REPAIRED: Final = "repaired"
_MOVED: Final = (LOST, MISSING)
"""Classes of findings that a repair ends."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """Findings of an hour that are none any more; `rows`: of FINDINGS_SCHEMA, not empty."""

    entry: HourEntry
    rows: pa.Table

    @property
    def counts(self) -> dict[str, int]:
        """How many of each class."""
        return dict(sorted(Counter(self.rows["class"].to_pylist()).items()))


def amendments_of(
    state: StateDirectory,
    entries: Iterable[HourEntry],
    repairs: Repairs,
    groups: Sequence[GroupSums],
) -> list[Amendment]:
    """Return the repairs of some hours since they were done. Raises ReconcileError."""
    found = []
    for entry in entries:
        if _FINDINGS not in entry.details or not entry.findings.keys() & set(_MOVED):
            continue
        table = state.read_table(f"{HOURS}/{entry.details[_FINDINGS]}")
        rows = table.filter(pa.array(_repaired(entry.hour, table, repairs, groups)))
        if _REPAIRED in entry.details:
            known = {_key(row) for row in _told(state, entry).to_pylist()}
            new = [_key(row) not in known for row in rows.to_pylist()]
            rows = rows.filter(pa.array(new, pa.bool_()))
        if rows.num_rows:
            found.append(Amendment(entry, rows))
    return found


def _repaired(hour: int, table: pa.Table, repairs: Repairs, groups: Sequence[GroupSums]) -> Mask:
    """Say of findings of an hour whether audits name them."""
    chosen = np.zeros(table.num_rows, np.bool_)
    sequence = table["sequence"].fill_null(-1).to_numpy()
    for group in groups:
        log = LogName(group.cluster, group.group, group.log_uuid)
        mine = pc.and_(
            pc.equal(table["cluster"], group.cluster), pc.equal(table["group"], group.group)
        )
        for kind, known in ((LOST, repairs.rows_of(log)), (MISSING, repairs.records_of(log))):
            is_kind = pc.and_(mine, pc.equal(table["class"], kind)).to_numpy()
            chosen |= is_kind & np.isin(sequence, known.of_minutes(hour, hour + 60))
    return chosen


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["class"], row["cluster"], row["group"], row["sequence"], row["file"], row["position"]


def _told(state: StateDirectory, entry: HourEntry) -> pa.Table:
    """Return the repaired findings of an hour that earlier runs have written."""
    return state.read_table(f"{HOURS}/{entry.details[_REPAIRED]}")


def write_down(state: StateDirectory, amendments: Sequence[Amendment]) -> None:
    """Write the repaired findings beside the results of the hours; nothing names them yet."""
    for one in amendments:
        table = one.rows
        if _REPAIRED in one.entry.details:
            table = pa.concat_tables([_told(state, one.entry), table])
        # A name that was never there: it grows.
        prefix = f"{hour_name(one.entry.hour)}-{one.entry.tries}"
        name = f"{prefix}-{_REPAIRED}-{table.num_rows}.parquet"
        state.write_table(f"{HOURS}/{name}", table)
        one.entry.details[_REPAIRED] = name
    if amendments:
        state.sync(f"{HOURS}/")


def amend(ledger: Ledger, sums: Sums, amendments: Sequence[Amendment]) -> None:
    """Count repaired findings as such in the hours, in the ledger and in the sums."""
    for one in amendments:
        entry, counts = one.entry, one.counts
        ledger.verdicts = _moved(ledger.verdicts, {entry.verdict: -1})
        ledger.findings = _less(ledger.findings, counts)
        entry.findings = _less(entry.findings, counts)
        entry.repaired = _moved(entry.repaired, counts)
        if not entry.findings:
            entry.verdict = "clean" if entry.complete else "incomplete"
        ledger.verdicts = _moved(ledger.verdicts, {entry.verdict: 1})
        for group in ledger.groups:
            _amend_group(group, sums, one.rows)


def _amend_group(group: GroupSums, sums: Sums, rows: pa.Table) -> None:
    mine = rows.filter(
        pc.and_(pc.equal(rows["cluster"], group.cluster), pc.equal(rows["group"], group.group))
    )
    counts = Counter(mine["class"].to_pylist())
    if not counts:
        return
    moved = {
        LOST: -counts[LOST],
        "repaired": counts[LOST],
        MISSING: -counts[MISSING],
        "repaired_records": counts[MISSING],
    }
    group.totals = _moved(group.totals, moved)
    lost = mine.filter(pc.equal(mine["class"], LOST))
    if lost.num_rows:
        subjects = Counter(lost["subject"].to_pylist())
        sums.move(GroupName(group.cluster, group.group), LOST, "repaired", subjects)


def _moved(counts: Mapping[str, int], by: Mapping[str, int]) -> dict[str, int]:
    """Return counts that were changed, without zeros."""
    found = {name: counts.get(name, 0) + by.get(name, 0) for name in sorted({*counts, *by})}
    return {name: count for name, count in found.items() if count}


def _less(counts: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, int]:
    return _moved(counts, {name: -count for name, count in taken.items()})
