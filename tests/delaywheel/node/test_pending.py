"""`delaywheel find`, `list`, `count` and `explain`, of one master and of all."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner, Result

from delaywheel.main import main
from tests.delaywheel.json_servers import answering
from tests.delaywheel.node.test_dead import group

Json = dict[str, Any]
Query = dict[str, str]
LOOKED = {"as_of": 7, "rows_looked_at": 1234, "complete": True}


class Node:
    """A delay server with pending messages, in pages of two at the most."""

    def __init__(self, *due_ms: int) -> None:
        self.due_ms = sorted(due_ms)
        self.asked: list[tuple[str, Query]] = []
        self.counts: Json = {}
        self.found: Json = {}

    def answer(
        self, _method: str, target: str, _headers: dict[str, str], _body: bytes
    ) -> tuple[int, bytes]:
        path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        if path == "/status":
            return 200, b"{}"
        self.asked.append((path, query))
        found = self.counts if path == "/count" else self.found
        return 200, json.dumps(self._page(query) if path == "/list" else found).encode()

    def _page(self, query: Query) -> Json:
        after = int(query.get("after", int(query.get("due_from", 0)) - 1))
        further = [due_ms for due_ms in self.due_ms if due_ms > after]
        page = further[: min(int(query["limit"]), 2)]
        has_more = len(further) > len(page)
        items = [
            {
                "due_ms": due_ms,
                "subject": "s",
                "name": None,
                "message_id": f"m{due_ms}",
                "size_bytes": 100,
                "segment": "",
            }
            for due_ms in page
        ]
        return LOOKED | {
            "items": items,
            "next": str(page[-1]) if has_more else None,
            "covered_to_ms": page[-1] if has_more else None,
        }


@contextmanager
def cluster(*nodes: Node, is_one_away: bool = False) -> Iterator[list[str]]:
    """Serve nodes as the masters d1, d2, … of a cluster; gives the words that name it."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(answering(node.answer)) for node in nodes]
        addresses += ["127.0.0.1:1"] * is_one_away
        groups = [group(f"d{number}", address) for number, address in enumerate(addresses, 1)]

        def meta(*_: object) -> tuple[int, bytes]:
            return 200, json.dumps({"delay_groups": groups}).encode()

        yield ["--meta", stack.enter_context(answering(meta)), "--cluster", "c"]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_a_list_of_all_masters_has_each_message_once_in_order(limit: int) -> None:
    nodes = (Node(10, 11, 12, 13, 14, 30), Node(11, 20, 31), Node(), Node(9))
    expected = sorted(due_ms for node in nodes for due_ms in node.due_ms)
    with cluster(*nodes) as where:
        words = ["list", "--subject", "s", "--limit", str(limit), "--json", *where]
        answer = json.loads(run(*words).stdout)
    assert [row["due_ms"] for row in answer["items"]] == expected[:limit]
    assert answer["covered_to_ms"] == (expected[limit] if limit < len(expected) else None)
    assert {row["delay_group"] for row in answer["items"]} <= {"d1", "d2", "d4"}


def test_a_list_says_how_far_it_reaches_and_how_to_go_on() -> None:
    node = Node(60_000, 120_000, 180_000)
    with answering(node.answer) as server:
        result = run("list", "--subject", "s", "--limit", "2", "--server", server)
        assert "1970-01-01 00:02:00.000Z" in result.stdout
        assert "m60000" in result.stdout
        said = "there are more: --due-from '1970-01-01 00:03:00.000Z'\n"
        assert result.stderr == said
        words = ["list", "--due-from", "1970-01-01 00:03:00.000Z", "--server", server]
        assert run(*words).stderr == ""
    path, query = node.asked[-1]
    assert (path, query["due_from"], query["ids"]) == ("/list", "180000", "true")


def test_a_group_that_is_away_is_named_beside_what_the_others_answer() -> None:
    with cluster(Node(1, 2), is_one_away=True) as where:
        result = run("list", "--subject", "s", "--json", *where)
        answer = json.loads(result.stdout)
        assert (result.exit_code, list(answer["unanswered"])) == (6, ["d2"])
        assert [row["due_ms"] for row in answer["items"]] == [1, 2]
    with cluster(Node(), is_one_away=True) as where:
        # It may be there that something waits.
        assert run("list", "--subject", "s", *where).stdout == ""
    with cluster(Node()) as where:
        assert run("list", "--subject", "s", *where).stdout == "nothing is pending\n"


def row(before: int, counts: list[int], later: int, **more: object) -> Json:
    return {"before": before, "counts": counts, "later": later, **more}


def counted(**rows: Json) -> Json:
    return LOOKED | {"begin_ms": 3_600_000, "column_ms": 3_600_000, "rows": rows}


def test_counts_are_those_of_all_masters_together() -> None:
    one, other = Node(), Node()
    limited, best = {"rate_is_limit": True}, {"rate_is_limit": False}
    one.counts = counted(
        billing=row(1, [3000, 20], 2, rate_per_s=0.5, **limited),
        g1=row(0, [5, 0], 0, rate_per_s=None, **best),
    )
    other.counts = counted(billing=row(0, [1000, 1], 0, rate_per_s=0.25, **best))
    with cluster(one, other) as where:
        words = ["count", "--by", "group", "--step", "hour", *where]
        found = json.loads(run(*words, "--json").stdout)
        text = run(*words).stdout
    assert found["rows"]["billing"] == row(1, [4000, 21], 2, rate_per_s=0.75, **best)
    assert found["delay_groups"].keys() == {"d1", "d2"}
    (first, *_), (second, *_) = one.asked, other.asked
    assert first == second
    assert (first[1]["by"], first[1]["step"]) == ("group", "hour")
    lines = text.splitlines()
    (line,) = [line for line in lines if "billing" in line]
    assert "4,024" in line
    assert "0.8/s in the best minute" in line
    (bar,) = [line for line in lines if "1970-01-01 01:00" in line and "4,000" in line]
    assert "█" * 40 + " !" in bar
    (bar,) = [line for line in lines if "1970-01-01 02:00" in line and " 21 " in line]
    assert bar.count("█") == 1
    assert "!" not in bar


def test_a_count_without_steps_is_a_number_for_each_row() -> None:
    node = Node()
    node.counts = counted(orders=row(9, [3], 9)) | {"column_ms": 2**62}
    node.counts["rows"][""] = row(9, [4], 9)
    node.counts["rows"]["%"] = row(9, [1], 9)
    with answering(node.answer) as server:
        result = run("count", "--by", "subject", "--name", "billing", "--server", server)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line for line in lines if line] == [
        ["row", "messages"],
        ["orders", "3"],
        ["all", "4"],
        ["others", "1"],
    ]
    assert result.stderr == "as of record 7, 1,234 rows looked at\n"
    assert node.asked == [("/count", {"by": "subject", "name": "billing"})]


def test_a_message_is_found_at_all_masters() -> None:
    one, other = Node(), Node()
    shown = {
        "sequence": 5,
        "subject": "s",
        "name": "billing",
        "due_ms": 60_000,
        "reason": "done",
        "loaded": False,
        "group": None,
        "segment": "19700101T0001Z.minute",
        "holder": None,
        "dead_letter": False,
        "fact": {"outcome": "moved", "at_ms": 61_000, "group": ""},
    }
    moved = shown | {"sequence": 6, "reason": "waiting", "loaded": True, "fact": None}
    one.found = LOOKED | {"messages": [shown, moved], "hint": ""}
    other.found = LOOKED | {"messages": [], "hint": "no message with this id waits"}
    with cluster(one, other) as where:
        result = run("find", "--id", "m", "--at", "1970-01-01T00:01:00Z", "--subject", "s", *where)
        answer = json.loads(run("find", "--id", "m", "--json", *where).stdout)
    assert result.exit_code == 0
    assert "message d1/5: moved, 1970-01-01 00:01:01.000Z, no group" in result.stdout
    assert "loaded" in result.stdout
    assert one.asked[0] == ("/find", {"id": "m", "subject": "s", "minute": "1"})
    assert [one["delay_group"] for one in answer["messages"]] == ["d1", "d1"]
    with answering(other.answer) as server:
        assert run("find", "--id", "m", "--server", server).stdout == f"{other.found['hint']}\n"


def test_a_subject_is_explained_by_all_masters() -> None:
    node = Node()
    node.found = {
        "subject": "s",
        "rule": None,
        "reason": None,
        "seen": True,
        "damaged": 0,
        "dead": 0,
        "groups": [],
        "receivers": [],
        "in_wheel": 3,
        "held": 0,
        "left_on_disk": 0,
        "oldest_left_due_ms": None,
        "due_later": 123_456,
    }
    with cluster(node, is_one_away=True) as where:
        result = run("explain", "--subject", "s", *where)
        answer = json.loads(run("explain", "--subject", "s", "--json", *where).stdout)
    assert result.exit_code == 6
    assert "123,456" in result.stdout
    assert answer["delay_groups"]["d1"] == node.found
    assert list(answer["unanswered"]) == ["d2"]
    with answering(node.answer) as server:
        words = ["explain", "--subject", "s", "--json", "--server", server]
        assert json.loads(run(*words).stdout) == {"delay_groups": {"": node.found}}
