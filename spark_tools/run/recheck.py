"""Where a run with an index of the message_log has to look twice, and what nobody can vouch for.

Rows of an hour are held against what its records were when they were read (`Known`). If both are
alike, each row is where it belongs: of a sequence that has one record there is one row in all hours
of which that was seen. What is left are the rows that are unlike, and those whose records nobody
ever read: only these can be in two hours, and are remembered for the hours to come.
"""

from dataclasses import dataclass

import numpy as np

from spark_tools.files.columns import Int64s, hour_of
from spark_tools.judge.account import Account
from spark_tools.judge.digests import Digest
from spark_tools.judge.log_index import Known
from spark_tools.judge.row_in_two_hours import EarlierTask
from spark_tools.judge.tasks import Extent
from spark_tools.run.plan import GroupPlan


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What differs. ranges: sequences of pieces; gone_rows: None if nobody says that they do."""

    ranges: list[tuple[int, int]]
    gone_rows: Digest | None


def first_look(known: Known, account: Account) -> FirstLook:
    """Compare rows with what their records were; count the records that are as their rows."""
    account.totals["records"] += known.agreeing(account.cuts)
    gone_rows: Digest | None = known.gone_rows(account.cuts)
    # Of a segment that is gone, or damaged, there are fewer rows for a reason that is told.
    if account.totals["unread_segments"] or gone_rows == known.gone_digest:
        gone_rows = None
    return FirstLook(known.differing(account.cuts), gone_rows)


def third_look(
    group: GroupPlan, known: Known, account: Account, look: FirstLook
) -> list[EarlierTask]:
    """Return the task that looks for rows in hours that are done, if there can be any."""
    certain = account.sequences.common(known.unproven)
    sequence, minute = _strays(account)
    settled = np.array(sorted(known.settled), np.int64)
    at_home = np.isin(hour_of(minute), settled)
    suspects, homes = [sequence[at_home]], np.unique(minute[at_home])
    if look.gone_rows is not None:
        suspects += [account.sequences.within(first, after) for first, after in known.gone]
    wanted = np.unique(np.concatenate(suspects))
    if not len(certain) and not len(wanted):
        return []
    others = [
        one
        for one in group.authority.extents
        if not one.is_deleted
        and not known.settled.isdisjoint(range(hour_of(one.start), one.end, 60))
        and (look.gone_rows is not None or _has(one, homes))
    ]
    return [
        EarlierTask(
            node=group.node,
            rules=group.rules,
            certain=certain,
            suspects=wanted,
            others=tuple(others),
            settled=settled,
            extents=tuple(group.extents),
        )
    ]


def unproven(known: Known, account: Account, look: FirstLook) -> Int64s:
    """Return the sequences of rows that may be in another hour, too, in order."""
    ranges = list(known.unindexed())
    if look.gone_rows is not None:
        ranges += known.gone
    if known.damages:
        ranges += look.ranges
    parts = [account.sequences.within(first, after) for first, after in ranges]
    return np.unique(np.concatenate([_strays(account)[0], *parts]))


def _strays(account: Account) -> tuple[Int64s, Int64s]:
    nothing = np.empty(0, np.int64)
    return (
        np.concatenate([nothing, *(sequence for sequence, _ in account.strays)]),
        np.concatenate([nothing, *(minute for _, minute in account.strays)]),
    )


def _has(extent: Extent, minutes: Int64s) -> bool:
    begin, end = np.searchsorted(minutes, [extent.start, extent.end])
    return bool(begin < end)
