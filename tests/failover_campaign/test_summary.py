"""The bars of a campaign: what is too long, needless, failed or stored twice is told."""

from tests.failover_campaign.campaign_round import Outcome, Reckoning
from tests.failover_campaign.summary import UNNOTICED, broken_bars, describe


def test_bars_that_hold_say_nothing() -> None:
    quick = Outcome(1, "kill, gone", 0.5, 0.0, "n1", epochs=1, no_answers_ms=5000)
    total = Reckoning(failovers=[quick])
    assert broken_bars(total) == []
    assert "kill, gone" in describe(total, [], 1.0)


def test_each_bar_that_does_not_hold_is_told() -> None:
    outcomes = [
        Outcome(1, "handover", 0.5, 0.0, "n1", epochs=1, no_receptions_ms=1001),
        Outcome(2, UNNOTICED, 0.5, 0.0, "n1", epochs=1),
    ]
    broken = broken_bars(Reckoning(failovers=outcomes, failed=1))
    assert [text.split(",")[0] for text in broken] == [
        "handover: p50 1001 ms",
        "handover: p99 1001 ms",
        f"{UNNOTICED}: number 2 had an election that nobody needed",
        "1 sends failed",
    ]


def test_where_the_meta_server_was_away_time_counts_from_its_return() -> None:
    kind = "kill, meta server killed in the election"
    one = Outcome(1, kind, 0.5, 0.0, "n1", epochs=1, no_answers_ms=12_000, meta_away_ms=5000)
    assert broken_bars(Reckoning(failovers=[one])) == []
