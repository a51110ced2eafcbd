"""gateway.timeline: what is due in each column, of all delay groups together."""

from gateway.cluster import Json
from tests.gateway.calls import answer_of
from tests.gateway.test_overview import Servers


def test_columns_are_alike_in_all_groups_and_their_counts_are_added() -> None:
    def row(*counts: int, rate: float | None = None) -> Json:
        numbers = {"before": 1, "counts": list(counts), "later": 2}
        return numbers | {"rate_per_s": rate, "rate_is_limit": True}

    one = {"complete": True, "rows": {"": row(1, 2), "mail": row(1, 2, rate=5.0)}}
    other = {"complete": True, "rows": {"": row(10, 20), "mail": row(10, 20, rate=1.0)}}
    servers = Servers({"d1": one, "d2": other})
    query = "by=group&step=hour&columns=2"
    found = answer_of(servers, "GET", "/timeline", query)
    assert servers.query["due_from"] == found.begin_ms == 7_200_000
    assert servers.query["due_to"] == 7_200_000 + 2 * 3_600_000
    assert found.rows["mail"]["counts"] == [11, 22]
    assert (found.rows[""]["before"], found.rows[""]["later"]) == (2, 4)
    assert (found.rows["mail"]["rate_per_s"], found.rows[""]["rate_per_s"]) == (6.0, None)
    assert found.complete
    servers.away = {"d3": "away"}
    assert not answer_of(servers, "GET", "/timeline", query).complete
