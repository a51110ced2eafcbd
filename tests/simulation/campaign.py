"""A campaign's account, and the ledger in which campaigns are added up over time.

The ledger is a file of JSON lines, one for each campaign; `docs/reliability.md` shows its sum:

    python -m tests.simulation.campaign        # write the tables of docs/reliability.md anew

Its failed seeds stay in it as they were then: what was done about them is told elsewhere.
"""

import argparse
import sys
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
    table,
)
from tests.simulation.meta_campaign import (
    META_BEGIN,
    META_END,
    META_LEDGER,
    meta_tables,
    read_meta_ledger,
)
from tests.simulation.world import NAMED_POINTS, WorldResult

LEDGER = Path("docs/reliability-ledger.jsonl")
PAGE = Path("docs/reliability.md")
BEGIN = "<!-- the sum of docs/reliability-ledger.jsonl: python -m tests.simulation.campaign -->"
END = "<!-- end of the sum -->"

_SPANS = ("minute", "hour", "day")


@dataclass(slots=True)
class Campaign(Account[WorldResult]):
    """What the seeds of a campaign came to, added up."""

    messages: int = 0
    messages_min: int | None = None
    segments: Counter[str] = field(default_factory=Counter)
    segments_min: int | None = None
    lacking_a_span: list[int] = field(default_factory=list)
    """Seeds that had no segment of a minute, of an hour or of a day."""
    crashes: int = 0
    twice: int = 0
    points: Counter[str] = field(default_factory=Counter)

    def _count(self, result: WorldResult) -> None:
        segments = result.segments.total()
        self.messages += result.messages
        self.messages_min = min(self.messages_min or result.messages, result.messages)
        self.segments.update(result.segments)
        self.segments_min = min(self.segments_min or segments, segments)
        if not all(result.segments[span] for span in _SPANS):
            self.lacking_a_span.append(result.seed)
        self.crashes += result.crashes
        self.twice += result.twice
        self.points.update(result.points)

    @property
    def points_missed(self) -> list[str]:
        """Named crash points that no seed has hit."""
        return [name for name in NAMED_POINTS if not self.points[name]]

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        yield (
            f"{self.seeds} seeds, {len(self.failed)} failed; {self.messages} messages "
            f"(at least {self.messages_min} a seed), {self.crashes} crashes, "
            f"{self.twice} delivered twice within the window"
        )
        spans = ", ".join(f"{self.segments[name]} {name}" for name in _SPANS)
        yield f"segments: {spans} (at least {self.segments_min} a seed)"
        yield "faults: " + counts_line(self.faults)
        yield "crash points: " + counts_line(self.points)
        if self.points_missed:
            yield "crash points never hit: " + ", ".join(self.points_missed)

    def entry(self, *, date: str, commit: str, first: int, seconds: float) -> "Entry":
        """Return the line of the ledger for this campaign."""
        return Entry(
            **self.common(date=date, commit=commit, first=first, seconds=seconds),
            messages=self.messages,
            crashes=self.crashes,
            twice=self.twice,
            points=dict(sorted(self.points.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(LedgerEntry):
    """One campaign in the ledger."""

    messages: int
    crashes: int
    twice: int
    points: dict[str, int]


def read_ledger(path: Path) -> list[Entry]:
    """Return the campaigns of a ledger, oldest first; raise ValueError or TypeError at nonsense."""
    return read_entries(path, Entry)


def tables(entries: Iterable[Entry]) -> str:
    """Return the sum of campaigns as it stands in docs/reliability.md."""
    campaigns = list(entries)
    points = added(entry.points for entry in campaigns)
    cpu_s = sum(entry.cpu_s for entry in campaigns)
    counts = (
        ("acknowledged messages", sum(entry.messages for entry in campaigns)),
        ("crashes", sum(entry.crashes for entry in campaigns)),
        ("delivered twice inside the window", sum(entry.twice for entry in campaigns)),
        ("CPU hours", f"{cpu_s / 3600:.1f}"),
    )
    return "\n\n".join(
        (
            sum_table(campaigns, counts),
            fault_table(campaigns),
            table(("crashed at", "how often"), sorted(points.items())),
            campaign_table(campaigns),
        )
    )


def page_with(page: str, content: str, *, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """Return a page with other content between the marks; raise ValueError if they are missing."""
    begins, ends = marks
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {begins} or no {ends}")
    return f"{before}{begins}\n\n{content}\n\n{ends}{after}"


def main() -> int:
    """Write the sum of the ledger into the page."""
    parser = argparse.ArgumentParser(prog="tests.simulation.campaign", description=__doc__)
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    parser.add_argument("--meta-ledger", type=Path, default=META_LEDGER)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    entries = read_ledger(options.ledger)
    page = options.page.read_text(encoding="utf-8")
    meta_entries = read_meta_ledger(options.meta_ledger)
    page = page_with(page, tables(entries))
    page = page_with(page, meta_tables(meta_entries), marks=(META_BEGIN, META_END))
    options.page.write_text(page, encoding="utf-8")
    for world, several in (("server", entries), ("meta", meta_entries)):
        seeds = sum(entry.seeds for entry in several)
        sys.stdout.write(f"{world}: {len(several)} campaigns, {seeds} seeds\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
