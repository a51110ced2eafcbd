"""What the seeds of a campaign in the meta server's world came to."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.ledger import Account, counts_line
from tests.simulation.meta_world import MetaResult


@dataclass(slots=True)
class MetaCampaign(Account[MetaResult]):
    """What the seeds of a campaign came to, added up."""

    counts: Counter[str] = field(default_factory=Counter)

    def _count(self, result: MetaResult) -> None:
        self.counts.update(result.counts)
        self.counts["lives of the meta server"] += result.lives
        self.counts["commits"] += result.commits
        self.counts["virtual minutes"] += round(result.virtual_s / 60)

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield f"{self.seeds} seeds, {len(self.failed)} failed"
        yield "seen: " + counts_line(self.counts)
        yield "faults: " + counts_line(self.faults)
