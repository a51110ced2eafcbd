"""What campaigns in all worlds have alike: their accounts, and a line each in docs/campaigns.jsonl.

Failed seeds stay in it as they were then: what was done about them is told elsewhere.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


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

    def line(self, *, world: str, date: str, commit: str, first: int, seconds: float) -> str:
        """Return the line of the ledger for this campaign."""
        fields = {
            "date": date,
            "commit": commit,
            "world": world,
            "first": first,
            "seeds": self.seeds,
            "failed": [result.seed for result in self.failed],
            "cpu_s": round(self.cpu_s, 1),
            "seconds": round(seconds, 1),
        }
        return json.dumps(fields) + "\n"


def counts_line(counter: Counter[str]) -> str:
    """Return counts as one line."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"
