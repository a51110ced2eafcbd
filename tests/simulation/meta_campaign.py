"""The account of a campaign in the meta server's world, and its ledger.

Beside campaign.py, whose worlds count other things; the sum is on the same page.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.ledger import (
    Account,
    LedgerEntry,
    added,
    campaign_table,
    counts_line,
    fault_table,
    read_entries,
    sum_table,
)
from tests.simulation.meta_world import MetaResult

META_LEDGER = Path("docs/reliability-meta-ledger.jsonl")
META_BEGIN = (
    "<!-- the sum of docs/reliability-meta-ledger.jsonl: python -m tests.simulation.campaign -->"
)
META_END = "<!-- end of the meta server's sum -->"


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

    def entry(self, *, date: str, commit: str, first: int, seconds: float) -> "MetaEntry":
        """Return the line of the ledger for this campaign."""
        return MetaEntry(
            **self.common(date=date, commit=commit, first=first, seconds=seconds),
            counts=dict(sorted(self.counts.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaEntry(LedgerEntry):
    """One campaign in the ledger."""

    counts: dict[str, int]


def read_meta_ledger(path: Path) -> list[MetaEntry]:
    """Return the campaigns of a ledger, oldest first; raise ValueError or TypeError at nonsense."""
    return read_entries(path, MetaEntry)


def meta_tables(entries: Iterable[MetaEntry]) -> str:
    """Return the sum of the meta server's campaigns as it stands in docs/reliability.md."""
    campaigns = list(entries)
    counts = added(entry.counts for entry in campaigns)
    return "\n\n".join(
        (
            sum_table(campaigns, sorted(counts.items())),
            fault_table(campaigns),
            campaign_table(campaigns),
        )
    )
