"""The summary of a campaign: distributions for each kind, and the bars that have to hold."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from examples.departures.account import quantile
from tests.failover_campaign.campaign_round import Outcome, Reckoning


@dataclass(frozen=True, slots=True)
class Bar:
    """For how long nobody is to answer and nothing to come, in ms; None is no bar."""

    p50: int | None = None
    p99: int | None = None
    most: int | None = None


_RESTARTED: Final = Bar(p99=2500)
_GONE: Final = Bar(p99=5000, most=7100)
_PLANNED: Final = Bar(p50=500, p99=1000)

UNNOTICED: Final = "cut off from the meta server"
"""The kind through which a group is to keep its master."""

BARS: Final = {
    "kill, restarted": _RESTARTED,
    "power cut": _RESTARTED,
    "kill, gone": _GONE,
    "link down": _GONE,
    "SIGSTOP for 12 s": _GONE,
    "one-way partition": _GONE,
    "cut off from slaves": _GONE,
    "fsync fails": _RESTARTED,
    "kill, meta server killed in the election": Bar(p99=8000, most=10100),
    UNNOTICED: _PLANNED,
    "handover": _PLANNED,
    "SIGTERM, restarted": _PLANNED,
}
"""By kind. What is not here is measured and has no bar: it begins with a wait of its own."""


COLUMNS: Final = {
    "answers": "no_answers_ms",
    "deliveries": "no_deliveries_ms",
    "receptions": "no_receptions_ms",
}
"""For how long there were none of these, and where that is in an outcome."""


def _felt_ms(one: Outcome) -> int:
    """Return how long anybody felt it; where the meta server was away, from its return."""
    felt_ms: int = max(getattr(one, name) for name in COLUMNS.values())
    return felt_ms - one.meta_away_ms


def by_kind(outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
    """Return outcomes by kind, in the order of their names."""
    found = defaultdict(list)
    for one in outcomes:
        found[one.kind].append(one)
    return dict(sorted(found.items()))


def broken_bars(total: Reckoning) -> list[str]:
    """Return a sentence for each bar that does not hold."""
    broken = []
    for kind, outcomes in by_kind(total.failovers).items():
        felt = [_felt_ms(one) for one in outcomes]
        bar = BARS.get(kind, Bar())
        for name, limit, found in (
            ("p50", bar.p50, quantile(felt, 0.5)),
            ("p99", bar.p99, quantile(felt, 0.99)),
            ("max", bar.most, max(felt)),
        ):
            if limit is not None and found > limit:
                broken.append(f"{kind}: {name} {found} ms, at most {limit} ms were to be")
    broken += [
        f"{one.kind}: number {one.number} had an election that nobody needed"
        for one in total.failovers
        if one.kind == UNNOTICED and one.epochs
    ]
    if total.failed:
        broken.append(f"{total.failed} sends failed, and none was to")
    return broken


def describe(total: Reckoning, broken: list[str], seconds: float) -> str:
    """Return the figures of a campaign, for people."""
    head = "".join(f"{name:>24}" for name in COLUMNS)
    lines = [
        f"{len(total.failovers)} failovers in {seconds:.0f} s, {len(total.violations)} violations",
        f"  messages: {total.acknowledged} acknowledged, {total.failed} failed",
        f"  delivered: {total.delivered}",
        f"  delivered again: {total.twice}, first {total.oldest_twice_ms:.0f} ms before a fault",
        f"  stored twice: {total.stored_twice}",
        f"  tries of acknowledged messages: {dict(sorted(total.attempts.items()))}",
        f"  failed sends: {dict(total.maybe_kept)}",
        f"  {'ms without, p50 / p99 / max':42} {'n':>4}{head}",
    ]
    for kind, outcomes in by_kind(total.failovers).items():
        columns = [[getattr(one, name) for one in outcomes] for name in COLUMNS.values()]
        texts = (
            f"{quantile(column, 0.5)} / {quantile(column, 0.99)} / {max(column)}"
            for column in columns
        )
        lines.append(f"  {kind:42} {len(outcomes):4}" + "".join(f"{text:>24}" for text in texts))
    return "\n".join([*lines, *(f"  BAR {text}" for text in broken)])
