"""What the campaigns of all worlds have alike: accounts, lines of a ledger, and their tables.

A ledger is a file of JSON lines, one for each campaign.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar


class SeedResult(Protocol):
    """What a seed came to, in any world."""

    @property
    def seed(self) -> int:
        """Which one."""

    @property
    def violations(self) -> list[str]:
        """Promises that were broken."""

    @property
    def faults(self) -> Counter[str]:
        """What went wrong on purpose."""


R = TypeVar("R", bound=SeedResult)


@dataclass(slots=True)
class Account(Generic[R]):
    """What the seeds of a campaign came to, added up; what a failed one saw is not counted."""

    seeds: int = 0
    failed: list[R] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    def add(self, result: R, cpu_s: float = 0.0) -> None:
        """Enter one seed."""
        self.seeds += 1
        self.cpu_s += cpu_s
        if result.violations:
            self.failed.append(result)
        else:
            self.faults.update(result.faults)
            self._count(result)

    def _count(self, result: R) -> None:
        """Add up what this world counts beside its faults."""
        raise NotImplementedError

    def lines(self) -> Iterator[str]:
        """Yield the account for people."""
        raise NotImplementedError

    def entry(self, *, date: str, commit: str, first: int, seconds: float) -> "LedgerEntry":
        """Return the line of the ledger for this campaign."""
        raise NotImplementedError

    def common(self, *, date: str, commit: str, first: int, seconds: float) -> dict[str, Any]:
        """Return what a line of every ledger has."""
        return {
            "date": date,
            "commit": commit,
            "first": first,
            "seeds": self.seeds,
            "failed": [result.seed for result in self.failed],
            "faults": dict(sorted(self.faults.items())),
            "seconds": round(seconds, 1),
            "cpu_s": round(self.cpu_s, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One campaign in a ledger; what its failed seeds saw is not counted."""

    date: str
    commit: str
    """Abbreviated; with a + if the tree was not as committed."""
    first: int
    """The first seed."""
    seeds: int
    failed: list[int]
    faults: dict[str, int]
    seconds: float
    cpu_s: float

    def append_to(self, path: Path) -> None:
        """Add this to a ledger."""
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self)) + "\n")


E = TypeVar("E", bound=LedgerEntry)


def read_entries(path: Path, kind: type[E]) -> list[E]:
    """Return the campaigns of a ledger, oldest first; raise ValueError or TypeError at nonsense."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [kind(**json.loads(line)) for line in lines]


def sum_table(entries: Sequence[LedgerEntry], counts: Iterable[tuple[str, object]]) -> str:
    """Return the table of sums; `counts` are those of this world."""
    seeds = sum(entry.seeds for entry in entries)
    cpu_s = sum(entry.cpu_s for entry in entries)
    rows: list[tuple[str, object]] = [
        ("campaigns", len(entries)),
        ("seeds", seeds),
        ("of them failed", sum(len(entry.failed) for entry in entries)),
        *counts,
        ("CPU seconds a seed", f"{cpu_s / seeds:.2f}" if seeds else "-"),
    ]
    return table(("all campaigns", "sum"), rows)


def fault_table(entries: Iterable[LedgerEntry]) -> str:
    """Return how often each fault happened."""
    return table(("fault", "how often"), sorted(added(entry.faults for entry in entries).items()))


def campaign_table(entries: Iterable[LedgerEntry]) -> str:
    """Return a row for each campaign."""
    return table(
        ("campaign", "commit", "seeds", "failed", "seeds a second"),
        [
            (
                entry.date,
                entry.commit,
                f"{entry.first} to {entry.first + entry.seeds - 1}",
                ", ".join(map(str, entry.failed)) or "none",
                f"{entry.seeds / entry.seconds:.1f}" if entry.seconds else "-",
            )
            for entry in entries
        ],
    )


def added(several: Iterable[dict[str, int]]) -> Counter[str]:
    """Return the sum of several counts."""
    total: Counter[str] = Counter()
    for counts in several:
        total.update(counts)
    return total


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:  # noqa: ANN401 (numbers get their thousands apart)
    return f"{value:,}" if isinstance(value, int) else str(value)


def counts_line(counter: Counter[str]) -> str:
    """Return counts as one line."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"
