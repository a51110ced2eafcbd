"""What the seeds of a campaign in the cluster's world came to.

Beside what campaign.py counts, how much there was to be judged.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.campaign import Campaign
from tests.simulation.ledger import counts_line
from tests.simulation.world import WorldResult

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
