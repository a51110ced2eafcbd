"""gateway.looking: lists of several delay groups as one, and messages that are found or not."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_transport.http.problems import BadValueError, RequestError
from gateway.cluster import Answers, Json
from gateway.looking import Found, ListPage
from gateway.refusals import NoAnswerError
from gateway.times import rfc3339
from tests.gateway.calls import answer_of

Row = tuple[int, int]
"""Due time and sequence."""


class Groups:
    """Answers as the masters of delay groups do, whose pages may end early."""

    def __init__(
        self, rows: Mapping[str, list[Row]], cut: Callable[[], int] = lambda: 1000
    ) -> None:
        self.rows = rows
        self.cut = cut
        """Rows that a master looks at for a page."""
        self.away: dict[str, str] = {}
        self.complete = True

    async def ask_masters(
        self, path: str, *, query_of: Callable[[str], Mapping[str, Any]]
    ) -> Answers:
        assert path == "list"
        found = {name: self._page(name, query_of(name)) for name in sorted(self.rows)}
        for name in self.away:
            del found[name]
        return Answers(found, self.away)

    def _page(self, name: str, query: Mapping[str, Any]) -> Json:
        due, _, sequence = query["after"].partition(".")
        behind = max((int(due), int(sequence)), (query["due_from"] or 0, 0))
        left = sorted(row for row in self.rows[name] if row > behind)
        if query["due_to"] is not None:
            left = [row for row in left if row[0] < query["due_to"]]
        most = min(query["limit"], self.cut())
        # One that looked at nothing new ends where it began.
        end = left[most - 1] if 0 < most <= len(left) else behind
        return {
            "items": [
                {"due_ms": due_ms, "sequence": number, "message_id": f"{name}.{number}"}
                for due_ms, number in left[:most]
            ],
            "next": f"{end[0]}.{end[1]}" if len(left) > most else None,
            "complete": self.complete,
        }


def listed(groups: Groups, **query: object) -> ListPage:
    given = {name: one for name, one in ({"subject": "s"} | query).items() if one is not None}
    found: ListPage = answer_of(groups, "GET", "/messages", urlencode(given))
    return found


ROWS = st.dictionaries(
    st.sampled_from(["d1", "d2", "e.1", "f/2"]),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), unique_by=lambda row: row[1]),
    min_size=1,
)


@given(ROWS, ROWS, st.integers(1, 4), st.data())
def test_what_waits_all_the_time_is_listed_once_in_order_whatever_comes_and_goes(
    rows: dict[str, list[Row]], others: dict[str, list[Row]], limit: int, data: st.DataObject
) -> None:
    """Some masters look at few rows for a page, and so may answer with none."""
    stays = {(due, name, number) for name, some in rows.items() for due, number in some}
    cuts = iter(data.draw(st.lists(st.integers(0, 3), max_size=20)))
    groups = Groups(
        {name: list(rows.get(name, [])) for name in rows.keys() | others.keys()},
        lambda: next(cuts, 1000),
    )
    seen: list[tuple[int, str, int]] = []
    cursor: str | None = ""
    for _ in range(400):
        page = listed(groups, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        seen += [(row["due_ms"], row["delay_group"], row["sequence"]) for row in page.items]
        for name, some in others.items():
            come = data.draw(st.sets(st.sampled_from(some), max_size=3)) if some else ()
            groups.rows[name][:] = rows.get(name, []) + [
                (due, number + 100) for due, number in come
            ]
        cursor = page.next
        if cursor is None:
            break
    assert cursor is None
    assert seen == sorted(set(seen))
    assert stays <= set(seen)


def test_a_list_has_the_times_that_are_asked_for() -> None:
    groups = Groups({"d1": [(n * 1000, n) for n in range(1, 9)]})
    page = listed(groups, due_after="3", due_before="1970-01-01T00:00:05Z")
    assert [row["id"] for row in page.items] == ["d1.3", "d1.4"]
    assert page.items[0]["due"] == "1970-01-01T00:00:03.000Z"
    assert (page.next, page.complete) == (None, True)


def test_a_list_says_what_it_lacks() -> None:
    groups = Groups({"d1": [(1, 1)], "d2": [(2, 2)]})
    groups.away["d2"] = "it is down"
    page = listed(groups)
    assert [row["id"] for row in page.items] == ["d1.1"]
    assert (page.away, page.complete) == ({"d2": "it is down"}, False)
    groups.away, groups.complete = {}, False
    assert not listed(groups).complete


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"subject": None}, "give a filter"),
        ({"subject": "*"}, "give a filter"),
        ({"due_after": "5", "due_before": "5"}, "due_before"),
        ({"due_after": "soon"}, "due_after"),
        *(({"cursor": text}, "cursor") for text in ("1", "1.2", ".1.a", "1.b.a", "²1.1.a")),
    ],
)
def test_a_list_that_cannot_be_is_refused(query: Mapping[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        listed(Groups({"d1": []}), **query)
    assert refused.value.code == 400
    assert isinstance(refused.value, BadValueError) is (why != "give a filter")


class Finders:
    """Answers of masters that were asked for one message."""

    def __init__(self, answers: Mapping[str, Json], away: dict[str, str]) -> None:
        self.answers = Answers(dict(answers), away)
        self.asked: Mapping[str, Any] = {}

    async def ask_masters(
        self, path: str, *, query_of: Callable[[str], Mapping[str, Any]]
    ) -> Answers:
        assert path == "find"
        self.asked = query_of("d1")
        return self.answers


def found(finders: Finders, due_ms: int | None = None) -> Found:
    query = "" if due_ms is None else urlencode({"due": rfc3339(due_ms)})
    path = "/messages/{subject}/{id}"
    answer: Found = answer_of(finders, "GET", path, query, subject="orders", id="one")
    return answer


def none_there(*, complete: bool = True, since_ms: int = 1000) -> Json:
    return {"messages": [], "complete": complete, "facts_since_ms": since_ms}


def test_a_message_is_found_with_its_group() -> None:
    row = {"sequence": 7, "due_ms": 90_000, "reason": "waiting"}
    finders = Finders({"d1": none_there(), "d2": none_there() | {"messages": [row]}}, {"d3": "no"})
    answer = found(finders, 90_000)
    assert finders.asked == {"id": "one", "subject": "orders", "minute": 1}
    assert answer.messages == [
        row | {"delay_group": "d2", "id": "one", "due": "1970-01-01T00:01:30.000Z"}
    ]
    assert answer.away == {"d3": "no"}


def test_one_that_is_unknown_everywhere_is_said_so_with_how_far_back_that_is_known() -> None:
    nowhere = {"d1": none_there(), "d2": none_there(since_ms=2000)}
    with pytest.raises(RequestError, match=r"known since 1970-01-01T00:00:02\.000Z$") as unknown:
        found(Finders(nowhere, {}), 1)
    assert (unknown.value.code, unknown.value.kind) == (404, "unknown")
    with pytest.raises(RequestError, match="add due=, when it was due"):
        found(Finders(nowhere, {}))
    # Somebody may know it.
    with pytest.raises(NoAnswerError, match="could not look: d3"):
        found(Finders(nowhere, {"d3": "down"}))
    with pytest.raises(NoAnswerError, match="could not look: d2"):
        found(Finders(nowhere | {"d2": none_there(complete=False)}, {}))
