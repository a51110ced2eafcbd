"""What the seeds of a campaign in the delay server's world came to."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.ledger import Account, counts_line
from tests.simulation.world import NAMED_POINTS, WorldResult

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
