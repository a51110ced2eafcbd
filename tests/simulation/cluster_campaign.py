"""The account of a campaign in the cluster's world, and its ledger.

Beside what campaign.py counts, how much there was to be judged. The sum is on the same page:

    python -m tests.simulation.cluster_campaign     # write its tables of docs/reliability.md anew
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.simulation.campaign import PAGE, Campaign, Entry, page_with, tables
from tests.simulation.ledger import added, counts_line, read_entries, table
from tests.simulation.world import WorldResult

CLUSTER_LEDGER = Path("docs/reliability-cluster-ledger.jsonl")
CLUSTER_MARKS = (
    (
        "<!-- the sum of docs/reliability-cluster-ledger.jsonl: "
        "python -m tests.simulation.cluster_campaign -->"
    ),
    "<!-- end of the cluster's sum -->",
)

STRIKES = (
    "meta server: Kill",
    "meta server: PowerCut",
    "meta server: clean stop",
    "meta store down",
    "store: lost",
    "store: kept unknown",
    "store: kept late",
    "store: conflict",
    "store: refused",
    "store: slow",
    "store set back",
    "store set back, the meta server away",
    "store: commit to one that was set back",
    "another store with rows of before",
    *(
        f"split from {who}: {ways}"
        for who in ("server", "brokers", "client")
        for ways in ("in and out", "in", "out")
    ),
    "group left",
    "group vanished",
    "group at no address",
    "broker: another address",
    "client ended",
    "operator: route",
    "operator: route of a prefix",
    "operator: route of a hot subject",
    "operator: read-only",
    "operator: controls, subject rule",
    "operator: controls, subject prefix",
    "operator: controls, group rule",
    "operator: controls, group weight",
    "operator: controls, rule removed",
    "operator: follow",
    "operator: retired",
    "operator: new group",
    "operator: group moved",
    "new group gone for a while",
    "subject without a route",
    "a copy of the disk registers",
    "NodeRefusedError",
    "FencedError",
)
"""Faults, beside those of the delay server's world, that every campaign must have seen strike."""

JUDGED = (
    "deliveries judged by routes of the last minutes",
    "deliveries judged by routes since the start",
    "had to be on time",
    "had to be on time while the meta server was away",
    "left after the faults, due before",
    "left after the faults, due since",
    "routes that clients knew at the end",
    "controls that had to be known soon",
    "starts that had to hear of controls first",
    "lives that ended with rules of the meta server on the disk",
)
"""What there must have been to judge."""


@dataclass(slots=True)
class ClusterCampaign(Campaign):
    """What the seeds of a campaign came to, added up."""

    counts: Counter[str] = field(default_factory=Counter)

    def _count(self, result: WorldResult) -> None:
        Campaign._count(self, result)
        self.counts.update(result.counts)

    @property
    def never_struck(self) -> list[str]:
        """Faults that no seed has had, and what none had to judge."""
        return [name for name in STRIKES if not self.faults[name]] + [
            name for name in JUDGED if not self.counts[name]
        ]

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield from Campaign.lines(self)
        yield "judged: " + counts_line(self.counts)
        if self.never_struck:
            yield "never struck: " + ", ".join(self.never_struck)

    def entry(self, *, date: str, commit: str, first: int, seconds: float) -> "ClusterEntry":
        """Return the line of the ledger for this campaign."""
        plain = Campaign.entry(self, date=date, commit=commit, first=first, seconds=seconds)
        given = {each.name: getattr(plain, each.name) for each in fields(plain)}
        return ClusterEntry(**given, counts=dict(sorted(self.counts.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEntry(Entry):
    """One campaign in the ledger."""

    counts: dict[str, int]


def read_cluster_ledger(path: Path) -> list[ClusterEntry]:
    """Return the campaigns of a ledger, oldest first; raise ValueError or TypeError at nonsense."""
    return read_entries(path, ClusterEntry)


def cluster_tables(entries: Iterable[ClusterEntry]) -> str:
    """Return the sum of campaigns as it stands in docs/reliability.md."""
    campaigns = list(entries)
    counts = added(entry.counts for entry in campaigns)
    judged = table(("judged", "how much"), sorted(counts.items()))
    return "\n\n".join((judged, tables(campaigns)))


def main() -> int:
    """Write the sum of the ledger into the page."""
    entries = read_cluster_ledger(CLUSTER_LEDGER)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with(page, cluster_tables(entries), marks=CLUSTER_MARKS), encoding="utf-8")
    seeds = sum(entry.seeds for entry in entries)
    sys.stdout.write(f"cluster: {len(entries)} campaigns, {seeds} seeds\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
