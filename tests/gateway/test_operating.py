"""gateway.operating: a dry run changes nothing, a change names what it means, and who may do it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from delay_transport.http.access import Caller
from delay_transport.http.problems import RequestError
from gateway.cluster import Answers, Json
from gateway.overview import STREAMS_MAX
from tests.gateway.calls import ADMIN, ONLY_A, answer_of, ask_operation, parts_of


class Servers:
    """Answers as the servers of a cluster do, and keeps what is changed."""

    def __init__(self) -> None:
        self.changed: list[tuple[Any, ...]] = []
        self.queries: list[Json | None] = []
        self.missing: list[int] = []

    async def ask_meta(
        self,
        method: str,
        *path: str,
        query: Json | None = None,
        body: Json | None = None,
    ) -> Json:
        if method == "PUT":
            self.changed.append((*path, body))
            return {}
        self.queries.append(query)
        rows: dict[str, list[Json]] = {
            "cluster": [{"name": "east"}, {"name": "west"}],
            "subject-rule": [{"subject": "b", "paused": True}, {"subject": "c", "paused": False}],
            "group-rule": [{"group": "g", "paused": True}],
        }
        return {"items": rows[path[0]], "next": None}

    async def ask_master(
        self,
        group: str,
        method: str,
        *path: str,
        query: Json | None = None,
        body: Json | None = None,
    ) -> Json:
        self.queries.append(query)
        if method == "GET":
            return {"pending": 9, "matched": 4, "items": [], "next": None}
        self.changed.append((group, *path, body))
        return {"done": 4, "missing": self.missing, "damaged": []}

    async def ask_masters(self, _: str, query_of: Callable[[str], Mapping[str, Any]]) -> Answers:
        self.queries.append(dict(query_of("d1")))
        row = {"before": 1, "counts": [2], "later": 3}
        return Answers({"d1": {"rows": {"": row}}, "d2": {"rows": {}}}, {"d3": "away"})


def ask(
    servers: Servers, method: str, path: str, query: str = "", caller: Caller = ADMIN, **parts: str
) -> Json:
    """Ask a caller's question, whose role is checked; return the JSON."""
    answer = answer_of(servers, method, f"/{path}", query, caller=caller, **parts)
    found: Json = msgspec.to_builtins(answer)
    return found


DEAD = "dead/{delay_group}"
PAUSE = "pauses/{subject}"


def test_a_dry_run_counts_and_changes_nothing() -> None:
    servers = Servers()
    for query, messages in (("group=mail", 4), ("subject=a", 4), ("sequence=7", 1)):
        for method, path in (("DELETE", DEAD), ("POST", f"{DEAD}/requeue")):
            found = ask(servers, method, path, f"{query}&dry_run=true", delay_group="d1")
            assert found["messages"] == messages
    for method in ("PUT", "DELETE"):
        found = ask(servers, method, PAUSE, "dry_run=true", subject="b.*")
        assert found == {"messages": 6, "away": {"d3": "away"}}
        assert servers.queries[-1] == {"subject": "b.*"}
    assert servers.changed == []


def test_dead_letters_are_changed_as_they_are_named() -> None:
    servers = Servers()
    assert ask(servers, "DELETE", DEAD, "sequence=7", delay_group="d1")["messages"] == 4
    ask(servers, "POST", f"{DEAD}/requeue", "group=mail", delay_group="d1")
    one, all_of_mail = servers.changed
    assert one == ("d1", "dead", "drop", {"subject": None, "group": None, "sequences": [7]})
    meant = {"subject": None, "group": "mail", "sequences": None}
    assert all_of_mail == ("d1", "dead", "requeue", meant)
    servers.missing = [7]
    with pytest.raises(RequestError, match="no dead letter any more") as gone:
        ask(servers, "DELETE", DEAD, "sequence=7", delay_group="d1")
    assert gone.value.code == 404


@pytest.mark.parametrize("query", ["", "subject=a&group=b", "sequence=1&subject=a", "dry_run=true"])
def test_all_dead_letters_together_are_never_meant(query: str) -> None:
    servers = Servers()
    with pytest.raises(RequestError, match="give one of sequence, subject and group"):
        ask(servers, "DELETE", DEAD, query, delay_group="d1")
    assert servers.changed == []


def test_a_pause_is_set_in_every_cluster_and_shown() -> None:
    servers = Servers()
    ask(servers, "PUT", PAUSE, subject="b.*")
    ask(servers, "DELETE", PAUSE, subject="b.*")
    assert servers.changed == [
        ("subject-rule", cluster, "b.*", {"paused": paused})
        for paused in (True, False)
        for cluster in ("east", "west")
    ]
    found = ask(servers, "GET", "pauses")
    assert found == {"subjects": ["b"], "groups": ["g"], "complete": True}


def test_a_token_with_subjects_may_neither_see_nor_change_others() -> None:
    servers = Servers()
    for method, path, query, parts in (
        ("GET", "cluster", "", {}),
        ("GET", "events", "", {}),
        ("GET", "timeline", "", {}),
        ("GET", "pauses", "", {}),
        ("GET", DEAD, "", {"delay_group": "d1"}),
        ("DELETE", DEAD, "group=mail", {"delay_group": "d1"}),
        ("DELETE", DEAD, "sequence=7", {"delay_group": "d1"}),
        ("POST", f"{DEAD}/requeue", "subject=b", {"delay_group": "d1"}),
        ("PUT", PAUSE, "", {"subject": "a*"}),
        ("DELETE", PAUSE, "", {"subject": "b"}),
    ):
        with pytest.raises(RequestError) as refused:
            ask(servers, method, path, query, ONLY_A, **parts)
        assert refused.value.kind == "role"
    assert servers.changed == []
    assert ask(servers, "GET", DEAD, "subject=a", ONLY_A, delay_group="d1")["matched"] == 4


def test_one_stream_too_many_is_refused() -> None:
    async def main() -> None:
        parts = parts_of(Servers())
        parts.live.streams = STREAMS_MAX
        with pytest.raises(RequestError) as refused:
            await ask_operation(parts, "GET", "/events")
        assert (refused.value.code, refused.value.retry_after_s) == (429, 5)

    asyncio.run(main())
