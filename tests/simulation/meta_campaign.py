"""The account of a campaign in the meta server's world, and its ledger.

Beside campaign.py, whose worlds count other things; the sum is on the same page.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.simulation.meta_world import MetaResult

META_LEDGER = Path("docs/reliability-meta-ledger.jsonl")
META_BEGIN = (
    "<!-- the sum of docs/reliability-meta-ledger.jsonl: python -m tests.simulation.campaign -->"
)
META_END = "<!-- end of the meta server's sum -->"


@dataclass(slots=True)
class MetaCampaign:
    """What the seeds of a campaign came to, added up."""

    seeds: int = 0
    failed: list[MetaResult] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    def add(self, result: MetaResult, cpu_s: float = 0.0) -> None:
        """Enter one seed; what a failed one saw is not counted."""
        self.seeds += 1
        self.cpu_s += cpu_s
        if result.violations:
            self.failed.append(result)
            return
        self.counts.update(result.counts)
        self.counts["lives of the meta server"] += result.lives
        self.counts["commits"] += result.commits
        self.counts["virtual minutes"] += round(result.virtual_s / 60)
        self.faults.update(result.faults)

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield f"{self.seeds} seeds, {len(self.failed)} failed"
        yield "seen: " + _counts(self.counts)
        yield "faults: " + _counts(self.faults)

    def entry(self, *, date: str, commit: str, first: int, seconds: float) -> "MetaEntry":
        """Return the line of the ledger for this campaign."""
        return MetaEntry(
            date=date,
            commit=commit,
            first=first,
            seeds=self.seeds,
            failed=[result.seed for result in self.failed],
            counts=dict(sorted(self.counts.items())),
            faults=dict(sorted(self.faults.items())),
            seconds=round(seconds, 1),
            cpu_s=round(self.cpu_s, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaEntry:
    """One campaign in the ledger."""

    date: str
    commit: str
    """Abbreviated; with a + if the tree was not as committed."""
    first: int
    """The first seed."""
    seeds: int
    failed: list[int]
    counts: dict[str, int]
    faults: dict[str, int]
    seconds: float
    cpu_s: float

    def append_to(self, path: Path) -> None:
        """Add this to a ledger."""
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self)) + "\n")


def read_meta_ledger(path: Path) -> list[MetaEntry]:
    """Return the campaigns of a ledger, oldest first; raise ValueError or TypeError at nonsense."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [MetaEntry(**json.loads(line)) for line in lines]


def sums(
    entries: Iterable[MetaEntry],
) -> tuple[list[tuple[str, object]], list[tuple[str, int]], list[tuple[str, ...]]]:
    """Return the rows of three tables: what was seen, faults, campaigns."""
    campaigns = list(entries)
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for entry in campaigns:
        counts.update(entry.counts)
        faults.update(entry.faults)
    seeds = sum(entry.seeds for entry in campaigns)
    cpu_s = sum(entry.cpu_s for entry in campaigns)
    seen: list[tuple[str, object]] = [
        ("campaigns", len(campaigns)),
        ("seeds", seeds),
        ("of them failed", sum(len(entry.failed) for entry in campaigns)),
        *sorted(counts.items()),
        ("CPU seconds a seed", f"{cpu_s / seeds:.2f}" if seeds else "-"),
    ]
    each: list[tuple[str, ...]] = [
        (
            entry.date,
            entry.commit,
            f"{entry.first} to {entry.first + entry.seeds - 1}",
            ", ".join(map(str, entry.failed)) or "none",
            f"{entry.seeds / entry.seconds:.1f}" if entry.seconds else "-",
        )
        for entry in campaigns
    ]
    return seen, sorted(faults.items()), each


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"
